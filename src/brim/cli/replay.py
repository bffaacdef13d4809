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

_SHOWN = 10  # differing cycles that are printed


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
        told = {name: msgspec.to_builtins(getattr(found, name)) for name in names}
        click.echo(json.dumps({"asked": policy, **told}))
    else:
        click.echo("\n".join(_lines(found, policy)))
    return EXIT_FAILED if found.differences and policy is None else EXIT_DONE


def _draw(found: Replay, out: Path) -> None:
    from brim.report.course import draw_png, render_course

    out.mkdir(parents=True, exist_ok=True)
    write_whole(out / "index.html", render_course(found.then, found.again).encode())
    write_whole(out / "course.png", draw_png(found.then, found.again))
    click.echo(f"wrote {out}/index.html and {out}/course.png", err=True)


def _lines(found: Replay, policy: str | None) -> list[str]:
    if found.first is None or found.last is None:
        return ["no cycle has been decided yet"]
    count, when = len(found.differences), f"{clock_time(found.first)} to {clock_time(found.last)}"
    text = f"{found.cycles:,} cycles, {when}, decided by {', '.join(found.policies)}"
    asked = f"asked {policy}" if policy else "decided again"
    lines = [f"{text}; {asked}: {f'{count:,} of them differ' if count else 'the same plans'}"]
    for each in found.differences[:_SHOWN]:
        lines += _told(each)
    if count > _SHOWN:
        lines.append(f"… and {count - _SHOWN:,} more; --json has them all")
    return lines


def _told(each: Difference) -> list[str]:
    return [
        f"cycle {each.cycle}, {clock_time(each.at)}, {each.policy}:",
        *(f"  {line}" for line in each.what),
    ]
