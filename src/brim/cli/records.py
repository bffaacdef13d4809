"""`brim report` and `brim ledger`: what the records of a run show and prove."""

from __future__ import annotations

import contextlib
import gc
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from brim.cli.usage import EXIT_DONE, EXIT_FAILED
from brim.errors import EnvironmentFault, SpecError
from brim.runs import completing
from brim.runs.options import STATE, option

if TYPE_CHECKING:
    from brim.domain.accounting import Ledger
    from brim.telemetry.history import RunHistory


def read_run(run: str | None, *, state: Path | None = None) -> tuple[Path, RunHistory]:
    """The run's directory and everything its records say.

    Raises:
        SpecError: there is no such run, or its records do not say how it started.
    """
    from brim.runs.directories import find_run
    from brim.telemetry.history import read_history

    run_dir = find_run(run, state=state)
    history = read_history(run_dir)
    if history.started is None:
        raise SpecError(
            str(run_dir),
            got="a run whose workers are not ready yet, or never were",
            need="one that began",
            hint=f"brim logs {run_dir}",
        )
    return run_dir, history


def write_report(run_dir: Path, history: RunHistory) -> Path | None:
    """Write the run's `report.html`; None, and a word on stderr, where that is not possible."""
    from brim.storage.files import write_whole

    if history.started is None:
        return None
    try:
        from brim.report.run import render_report

        path = run_dir / "report.html"
        write_whole(path, render_report(history).encode())
    except (ImportError, OSError) as error:
        click.echo(f"brim: no report was written ({error})", err=True)
        return None
    return path


@click.command()
@click.argument("run", required=False, metavar="[RUN]", shell_complete=completing.runs)
@click.option(
    "--cluster",
    is_flag=True,
    help="Report on all that this host's scheduler did; works after brim down, too.",
)
@click.option("--last", metavar="DURATION", help="With --cluster: only the last part, such as 2h.")
@click.option(
    "--table", "as_table", is_flag=True, help="With --cluster: print its jobs, and write nothing."
)
@STATE
def report(
    run: str | None, cluster: bool, last: str | None, as_table: bool, state: Path | None
) -> int:
    """Write RUN's report.html again and print its path; without RUN, the latest run's.

    \b
    brim report
    brim report flights-20260102-030405
    brim report flights-1              (a job of the scheduler)
    brim report --cluster --last 2h    (all its jobs over time: report.html and report.png)
    brim report --cluster --table      (the same jobs in the terminal)
    """
    if cluster and run is None:
        return _report_cluster(state, last, as_table=as_table)
    if cluster or last or as_table:
        alone = "--last" if last else "--table"
        raise SpecError(
            "--cluster",
            got="a RUN beside it" if cluster else f"{alone} without it",
            need="one or the other",
            hint="brim report --cluster --last 2h",
        )
    run_dir, history = read_run(run, state=state)
    path = write_report(run_dir, history)
    if path is None:
        raise EnvironmentFault(f"the report of {run_dir} could not be written")
    click.echo(path)
    return EXIT_DONE


def _report_cluster(state: Path | None, last: str | None, *, as_table: bool) -> int:
    from brim.cli.state import database_of
    from brim.cli.tables import table
    from brim.domain.quantities import parse_duration
    from brim.report.course import View, draw_png, render_course, rows_of
    from brim.scheduler.story import cluster_course
    from brim.storage.contact import SCHEDULER_LOCK
    from brim.storage.files import is_locked, write_whole
    from brim.storage.scheduler_clock import own_clock

    since = parse_duration(last, field="--last") if last else None
    with _nothing_collected():
        with database_of(state) as (folder, database):
            now = own_clock(folder).wall() if is_locked(folder / SCHEDULER_LOCK) else None
            course = cluster_course(database, subject=str(folder), now=now, since=since)
        if as_table:
            click.echo(table(*rows_of(View(course))))
            return EXIT_DONE
        path = folder / "report.html"
        write_whole(path, render_course(course).encode())
        write_whole(path.with_suffix(".png"), draw_png(course))
    click.echo(path)
    return EXIT_DONE


@contextlib.contextmanager
def _nothing_collected() -> Iterator[None]:
    """Do not look for garbage in a history of thousands of jobs: there is none, and it takes a
    fifth of the time.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@click.command()
@click.argument("run", required=False, metavar="[RUN]", shell_complete=completing.runs)
@option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
@STATE
def ledger(run: str | None, as_json: bool, state: Path | None) -> int:
    """Check from RUN's records that every sample of each epoch was used exactly once.

    \b
    brim ledger
    brim ledger flights-20260102-030405 --json

    Exit code 0 if that is so, else 1.
    """
    from brim.telemetry.ledger import audit_run

    run_dir, history = read_run(run, state=state)
    account = audit_run(run_dir, history)
    click.echo(json.dumps(_plain(run_dir, account)) if as_json else _render(account))
    return EXIT_DONE if account.exact else EXIT_FAILED


def _plain(run_dir: Path, account: Ledger) -> dict[str, Any]:
    from brim.domain.accounting import as_plain

    return {"run": str(run_dir), **as_plain(account)}


def _render(account: Ledger) -> str:
    lines = [f"{'epoch':>5} {'samples':>12} {'applied once':>13} {'missing':>10} {'repeated':>10}"]
    lines += [
        f"{each.epoch:>5} {each.samples:>12,} {each.applied_once:>13,}"
        f" {each.missing:>10,} {each.repeated:>10,}"
        for each in account.epochs
    ]
    shown = account.problems[:10]
    lines += [f"problem: {problem}" for problem in shown]
    if len(account.problems) > len(shown):
        lines.append(f"… and {len(account.problems) - len(shown):,} more problems")
    if account.exact and account.counted == "positions":
        lines.append(
            "exact: every sample that the sampler drew for an epoch was applied exactly once"
        )
    elif account.exact:
        lines.append("exact: every sample of every epoch was applied exactly once")
    else:
        lines.append("not exact: see missing, repeated and the problems above")
    return "\n".join(lines)
