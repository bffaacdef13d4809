"""`brim simulate replay`: the journal of a live scheduler, decided again."""

from __future__ import annotations

import json
from pathlib import Path

import click
import msgspec

from brim.cli.shared.state import database_of
from brim.cli.shared.usage import EXIT_DONE, EXIT_FAILED
from brim.errors import SpecError, did_you_mean
from brim.runs.options import STATE
from brim.runs.times import clock_time
from brim.scheduler.replay import Difference, Replay
from brim.scheduler.replay import replay as replay_journal
from brim.storage.book import Book
from brim.storage.files import write_whole
from brim.user_code.policies import POLICIES

_MAX_DIFFERENCES_SHOWN = 10  # differing cycles that are printed


@click.command()
@click.option("--policy", help="Ask this policy instead of those that decided then.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Write a page with both courses beside each other to this folder.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
@STATE
def replay(policy: str | None, out: Path | None, as_json: bool, state: Path | None) -> int:
    """Decide again what a live scheduler decided, cycle by cycle, from its journal.

    \b
    brim simulate replay                 # the same plans? exit code 1 where one differs
    brim simulate replay --policy edf    # what would edf have decided, each time?
    brim simulate replay --policy edf --out there    # the same as a page
    """
    if policy is not None and policy not in POLICIES:
        hint = did_you_mean(policy, POLICIES)
        raise SpecError("--policy", got=repr(policy), need="the name of a policy", hint=hint)
    with database_of(state) as (folder, database):
        states = {job: record.life.phase.value for job, record in Book(database).jobs.items()}
        rows = database.cycles()
        found = replay_journal(rows, policy=policy, subject=str(folder), states=states)
    if out is not None and found.cycles:
        _draw(found, out)
    if as_json:
        names = ("cycles", "policies", "first", "last", "differences")
        answer = {name: msgspec.to_builtins(getattr(found, name)) for name in names}
        click.echo(json.dumps({"asked": policy, **answer}))
    else:
        click.echo("\n".join(_lines(found, policy)))
    return EXIT_FAILED if found.differences and policy is None else EXIT_DONE


def _draw(found: Replay, out_folder: Path) -> None:
    from brim.report.course import draw_png, render_course

    out_folder.mkdir(parents=True, exist_ok=True)
    write_whole(out_folder / "index.html", render_course(found.then, found.again).encode())
    write_whole(out_folder / "course.png", draw_png(found.then, found.again))
    click.echo(f"wrote {out_folder}/index.html and {out_folder}/course.png", err=True)


def _lines(found: Replay, policy: str | None) -> list[str]:
    if found.first is None or found.last is None:
        return ["no cycle has been decided yet"]
    count, period = len(found.differences), f"{clock_time(found.first)} to {clock_time(found.last)}"
    text = f"{found.cycles:,} cycles, {period}, decided by {', '.join(found.policies)}"
    action = f"asked {policy}" if policy else "decided again"
    lines = [f"{text}; {action}: {f'{count:,} of them differ' if count else 'the same plans'}"]
    for difference in found.differences[:_MAX_DIFFERENCES_SHOWN]:
        lines += _difference_lines(difference)
    if count > _MAX_DIFFERENCES_SHOWN:
        lines.append(f"… and {count - _MAX_DIFFERENCES_SHOWN:,} more; --json has them all")
    return lines


def _difference_lines(difference: Difference) -> list[str]:
    return [
        f"cycle {difference.cycle}, {clock_time(difference.at)}, {difference.policy}:",
        *(f"  {line}" for line in difference.what),
    ]
