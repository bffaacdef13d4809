"""What must hold once every job of a cluster has ended, whatever befell it: each check returns what is broken, in words."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from brim.chaos.promises import brim_did_not_stumble, result_is_the_calm_one, run_directory_is_whole
from brim.chaos.user import LOCK, Acknowledged
from brim.coordination.lifecycle import Phase
from brim.domain.deeds import SUBMITS, DeedKind
from brim.scheduler.replay import replay
from brim.storage.book import Book, Change, JobRecord
from brim.storage.database import Database

if TYPE_CHECKING:
    from brim.chaos.cluster import _Running
    from brim.chaos.trial import Calm

__all__ = ["broken_promises"]

_TO_CLEAN_UP = 15.0


def broken_promises(run: _Running, calm: Mapping[int, Calm]) -> list[str]:
    """Everything that is not as it should be now that the scheduler is down."""
    left = run.around.marked.left_after(_TO_CLEAN_UP)
    broken = [f"process left over: {pid} {command}" for pid, command in left.items()]
    broken += run.recount.broken
    broken += _database_is_whole(run.state / "scheduler.db")
    database = Database(run.state / "scheduler.db")
    book = Book(database)
    stories = {record.id: book.story(record) for record in book.jobs.values()}
    broken += nobody_is_forgotten(run.user.acknowledged, book.jobs)
    broken += stories_make_sense(stories, book.jobs)
    for record in book.jobs.values():
        broken += [f"{record.id}: {each}" for each in _job_is_whole(run.state / "jobs", record, calm)]
    broken += replays(database)
    database.close()
    broken += _state_is_whole(run.state)
    broken += brim_did_not_stumble([run.state / "scheduler.log", run.directory / "up.log"])
    return broken + [f"left behind in TMPDIR: {path.name}" for path in run.around.scratch.iterdir()]


def nobody_is_forgotten(acknowledged: Iterable[Acknowledged], jobs: Mapping[str, JobRecord]) -> list[str]:
    """Every job ended as it should: what nobody cancelled is done."""
    broken = []
    cancelled = {one.job for one in acknowledged if one.deed.kind is DeedKind.CANCEL}
    for one in acknowledged:
        if one.deed.kind in SUBMITS and one.job not in jobs:
            broken.append(f"{one.job} was acknowledged and is forgotten")
    for name, record in jobs.items():
        allowed = {Phase.DONE, Phase.CANCELLED} if name in cancelled else {Phase.DONE}
        if record.life.phase not in allowed:
            broken.append(f"{name} ended as {record.life.phase.value}: {record.problem}")
    return broken


_JUDGED = {
    "promised": True,
    "refused": False,
    "accepted": False,
    "hold": False,
    "release": False,
    "resized": False,
}


def stories_make_sense(stories: Mapping[str, Sequence[Change]], jobs: Mapping[str, JobRecord]) -> list[str]:
    """Nobody starts who runs or is held, and a promise that was given is remembered."""
    broken = []
    for name, story in stories.items():
        running = held = promised = False
        for change in story:
            if change.event == "running":
                if running:
                    broken.append(f"{name} was started while it ran")
                if held:
                    broken.append(f"{name} was started while it was held")
                running = True
            elif change.event in {phase.value for phase in Phase}:
                running = False
            held = {"hold": True, "release": False}.get(change.event, held)
            promised = _JUDGED.get(change.event, promised)
        if promised and not jobs[name].promised:
            broken.append(f"{name} was promised its deadline, and that is forgotten")
        if [change.event for change in story].count("submitted") != 1:
            broken.append(
                f"{name} was submitted {[c.event for c in story].count('submitted')} times in its story"
            )
    return broken


def _job_is_whole(jobs: Path, record: JobRecord, calm: Mapping[int, Calm]) -> list[str]:
    if record.life.phase is not Phase.DONE:
        return []
    digest = calm[record.submission.spec.epochs].digest
    return [
        *result_is_the_calm_one(jobs / record.id, record.summary, digest),
        *run_directory_is_whole(jobs / record.id),
    ]


def _database_is_whole(path: Path) -> list[str]:
    with sqlite3.connect(path) as sql:
        (answer,) = sql.execute("pragma integrity_check").fetchone()
    sql.close()
    return [] if answer == "ok" else [f"the database is damaged: {answer}"]


def replays(database: Database) -> list[str]:
    """Every cycle decided again gives the same plan."""
    return [
        f"cycle {one.cycle} replayed: {'; '.join(one.what)}" for one in replay(database.cycles()).differences
    ]


def _state_is_whole(state: Path) -> list[str]:
    known = {"scheduler.db", "scheduler.db-wal", "scheduler.db-shm", "scheduler.log", "jobs", LOCK}
    return [f"left behind: {path.name}" for path in state.iterdir() if path.name not in known]
