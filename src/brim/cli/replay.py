"""`brim simulate replay`: the journal of a live scheduler, decided again."""

from __future__ import annotations

import json
from pathlib import Path

import click
import msgspec

from brim.cli.shared.state import database_of
from brim.cli.shared.usage import EXIT_DONE, EXIT_FAILED
from brim.errors import SpecError, did_you_mean
from brim.policies.named import POLICIES
from brim.runs.times import clock_time
from brim.scheduler.replay import Difference, Replay, replay
from brim.storage.book import Book
from brim.storage.files import write_whole

_SHOWN = 10  # differing cycles that are printed


def show_replay(state: Path | None, policy: str | None, *, out: Path | None, as_json: bool) -> int:
    """Replay the journal of a state directory; the exit code.

    Args:
        out: folder for a page and a picture of both, beside each other.

    Raises:
        SpecError: there is no such policy, or no journal.
    """
    if policy is not None and policy not in POLICIES:
        hint = did_you_mean(policy, POLICIES)
        raise SpecError("--policy", got=repr(policy), need="the name of a policy", hint=hint)
    with database_of(state) as (folder, database):
        states = {job: record.life.phase.value for job, record in Book(database).jobs.items()}
        rows = database.cycles()
        found = replay(rows, policy=policy, subject=str(folder), states=states)
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
