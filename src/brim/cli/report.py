"""`brim report`: the page of a run, or of all that a scheduler did."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from pathlib import Path

import click

from brim.cli.shared.usage import EXIT_DONE
from brim.errors import SpecError
from brim.runs import completing
from brim.runs.directories import read_run
from brim.runs.options import STATE
from brim.runs.outcome import write_report


@click.command()
@click.argument("run", required=False, metavar="[RUN]", shell_complete=completing.runs)
@click.option(
    "--cluster",
    is_flag=True,
    help="Report on all that this host's scheduler did. This works after brim down, too.",
)
@click.option(
    "--last", metavar="DURATION", help="With --cluster: report only on the last part, such as 2h."
)
@click.option(
    "--table",
    "as_table",
    is_flag=True,
    help="With --cluster: print a table of the jobs, and write nothing.",
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
        option = "--last" if last else "--table"
        raise SpecError(
            "--cluster",
            got="a RUN beside it" if cluster else f"{option} without it",
            need="one or the other",
            hint="brim report --cluster --last 2h",
        )
    run_dir, history = read_run(run, state=state)
    click.echo(write_report(history, run_dir))
    return EXIT_DONE


def _report_cluster(state: Path | None, last: str | None, *, as_table: bool) -> int:
    from brim.cli.shared.state import database_of
    from brim.cli.shared.tables import table
    from brim.domain.quantities import parse_duration
    from brim.report.course import CourseView, draw_png, render_course, rows_of
    from brim.scheduler.story import cluster_course
    from brim.storage.contact import SCHEDULER_LOCK
    from brim.storage.files import is_locked, write_whole
    from brim.storage.scheduler_clock import own_clock

    period = parse_duration(last, field="--last") if last else None
    with _nothing_collected():
        with database_of(state) as (folder, database):
            now = own_clock(folder).wall() if is_locked(folder / SCHEDULER_LOCK) else None
            course = cluster_course(database, subject=str(folder), now=now, start_time=period)
        if as_table:
            click.echo(table(*rows_of(CourseView(course))))
            return EXIT_DONE
        path = folder / "report.html"
        write_whole(path, render_course(course).encode())
        write_whole(path.with_suffix(".png"), draw_png(course))
    click.echo(path)
    return EXIT_DONE


@contextlib.contextmanager
def _nothing_collected() -> Iterator[None]:
    """Turn garbage collection off while a report is made.

    A history of thousands of jobs has no garbage, and looking for it takes a fifth of the time.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
