"""`brim explain`: the scheduler's reasons for a job, live or simulated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from brim.cli.shared.handles import client_of
from brim.cli.shared.usage import EXIT_DONE
from brim.domain.quantities import counted
from brim.errors import SpecError
from brim.runs import completing
from brim.runs.options import STATE

if TYPE_CHECKING:
    from brim.client import Client


@click.command()
@click.argument("job", metavar="JOB", shell_complete=completing.jobs)
@click.option(
    "--sim",
    "folder",
    type=click.Path(path_type=Path),
    help="Explain a job of a simulation, from the directory that `simulate --out` wrote.",
)
@click.option("--policy", help="With --sim: show only what this policy decided.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")
@STATE
def explain(
    job: str, folder: Path | None, policy: str | None, as_json: bool, state: Path | None
) -> int:
    """Tell every decision about JOB, with its time and its reason, and what it waits for now.

    \b
    brim explain flights-1
    brim explain 17 --sim out --policy edf      (of a simulation)
    """
    if folder is None:
        return _explain_live(client_of(state), job, as_json=as_json)
    from brim.simulator.files import read_decisions

    rows = [
        row
        for row in read_decisions(folder)
        if _is_job(row["job"], job) and policy in (None, row["policy"])
    ]
    if not rows:
        raise SpecError(
            "JOB", got=job, need="the id of a job of this simulation", hint="see jobs.csv there"
        )
    if as_json:
        click.echo(json.dumps(rows))
        return EXIT_DONE
    last, start = "", rows[0]["time"]
    for row in rows:
        if row["policy"] != last:
            last, start = row["policy"], row["time"]
            click.echo(f"{row['job']} under {last}")
        click.echo(f"  +{row['time'] - start:>10.0f} s  {_sentence(row)}")
    return EXIT_DONE


def _explain_live(client: Client, job: str, *, as_json: bool) -> int:
    """Print the events of a job of the scheduler, line by line, and what it waits for."""
    import msgspec

    from brim.domain.course import sentence_of
    from brim.runs.times import clock_time

    story, waits = client.explain(job), client.job(job).waits
    if as_json:
        values = {"job": job, "story": msgspec.to_builtins(story), "waits": waits}
        click.echo(json.dumps(values))
        return EXIT_DONE
    for change in story:
        click.echo(f"{clock_time(change.at)} {sentence_of(change)}")
    if waits:
        click.echo(f"now waiting: {waits}")
    return EXIT_DONE


def _is_job(name: str, query: str) -> bool:
    """Return whether a job is the one that was asked for.

    `query` may be its id, the number of its row in the trace, or its name in the trace.
    """
    number, _, rest = name.partition("-")
    return query in (name, rest) or (
        query.isdigit() and number.isdigit() and int(query) == int(number)
    )


def _sentence(row: dict[str, Any]) -> str:
    explanation = f"{row['reason']}: {row['detail']}" if row["detail"] else row["reason"]
    if row["event"] != "workers":
        return f"{row['event']} ({explanation})"
    if row["reason"] in ("finished", "failed"):
        return f"{row['reason']} on {counted(row['before'], 'worker')} {row['detail']}".rstrip()
    if row["after"] == 0:
        had = counted(row["before"], "worker")
        return f"suspended, had {had} ({explanation or 'others come first'})"
    verb = "started on" if row["before"] == 0 else f"{row['before']} ->"
    return f"{verb} {counted(row['after'], 'worker')} ({explanation})"
