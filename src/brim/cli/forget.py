"""`brim forget`: ended jobs go, with their records, logs and checkpoints."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from brim.cli.shared.handles import client_of
from brim.cli.shared.usage import EXIT_DONE, warn
from brim.domain.quantities import counted, format_bytes, parse_duration
from brim.errors import BrimError, EnvironmentFault, SpecError
from brim.host.clock import wall
from brim.runs import completing
from brim.runs.options import STATE, option

if TYPE_CHECKING:
    from brim.client import Client
    from brim.wire.cluster import Forgotten, JobView


_NAMED = 5  # jobs that are named before they are deleted


@click.command()
@click.argument("jobs", nargs=-1, metavar="[JOB]...", shell_complete=completing.jobs)
@option(
    "--ended-before",
    metavar="DURATION",
    help="Delete jobs that ended longer ago than this, such as 30d.",
)
@option("--tenant", help="Delete ended jobs of this tenant.")
@option("--yes", is_flag=True, help="Do not ask before deleting.")
@option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
@STATE
def forget(
    jobs: tuple[str, ...],
    ended_before: str | None,
    tenant: str | None,
    yes: bool,
    as_json: bool,
    state: Path | None,
) -> int:
    """Delete ended jobs: their records, stories and run directories, with logs and checkpoints.

    \b
    brim forget flights-1 flights-2
    brim forget --ended-before 30d --tenant ads --yes

    What was exported, or written to other directories, stays.
    """
    client = client_of(state)
    if jobs and (ended_before or tenant):
        raise SpecError("JOB", got="jobs, and --ended-before or --tenant", need="one or the other")
    if not jobs and not ended_before and not tenant:
        hint = "brim forget --ended-before 30d"
        raise SpecError("JOB", got="none", need="jobs, --ended-before or --tenant", hint=hint)
    named = [_ended(client, job) for job in dict.fromkeys(jobs)]
    views = named or _chosen(client, ended_before, tenant)
    if views and not yes:
        _ask(views)
    forgotten: list[Forgotten] = []
    try:
        for view in views:
            forgotten.append(client.forget(view.job))
    except BrimError:
        if forgotten:
            warn(
                f"forgotten before this failed: {', '.join(job_forgotten.job for job_forgotten in forgotten)}"
            )
        raise
    size = sum(job_forgotten.bytes for job_forgotten in forgotten)
    if as_json:
        rows = [
            {"job": job_forgotten.job, "bytes": job_forgotten.bytes} for job_forgotten in forgotten
        ]
        click.echo(json.dumps({"forgotten": rows, "bytes": size}))
    else:
        click.echo(
            f"forgot {counted(len(forgotten), 'job')}: {format_bytes(size)} came back", err=True
        )
    return EXIT_DONE


def _ended(client: Client, job: str) -> JobView:
    """Raises EnvironmentFault where it has not ended: nothing at all is deleted then."""
    view = client.job(job)
    if not view.has_ended:
        raise EnvironmentFault(
            f"{job} is {view.state}, and cannot be forgotten: brim cancel {job} ends it"
        )
    return view


def _chosen(client: Client, ended_before: str | None, tenant: str | None) -> list[JobView]:
    age = parse_duration(ended_before, field="--ended-before") if ended_before else 0.0
    latest = wall() - age
    return [
        view
        for view in client.jobs()
        if view.ended is not None and view.ended <= latest and tenant in (None, view.tenant)
    ]


def _ask(views: list[JobView]) -> None:
    """Raises SpecError where there is no terminal, and EnvironmentFault where the answer is no."""
    rest = f" and {len(views) - _NAMED} more" if len(views) > _NAMED else ""
    names = ", ".join(view.job for view in views[:_NAMED]) + rest
    if not _can_answer():
        raise SpecError(
            "--yes",
            got="no terminal for the question",
            need="a confirmation to delete jobs",
            hint="add --yes",
        )
    question = f"Delete {counted(len(views), 'job')} ({names}) with all logs and checkpoints?"
    if not click.confirm(question, err=True):
        raise EnvironmentFault("nothing was deleted")


def _can_answer() -> bool:
    return sys.stdin.isatty()
