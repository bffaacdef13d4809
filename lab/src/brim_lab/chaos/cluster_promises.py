"""Checks that hold once every job of a cluster has ended, after any faults.

Each returns what is broken.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from brim.domain.lifecycle import Phase
from brim.domain.scheduled_job import ScheduledJob
from brim.scheduler.replay import replay
from brim.storage.database import Database
from brim.wire.listening import holder_of
from brim_lab.chaos.promises import (
    brim_did_not_stumble,
    result_is_the_calm_one,
    run_directory_is_whole,
)
from brim_lab.chaos.results import Calm

_EXPECTED_FILES = {
    "scheduler.db",
    "scheduler.db-wal",
    "scheduler.db-shm",
    "scheduler.log",
    "audit.jsonl",
    "authority.pem",
    "clock.json",
    "token",
    "metrics-token",
    "tenant-tokens.json",
    "jobs",
    "nodes",
    "services",
    ".scheduler.lock",
}


def job_is_whole(run_dir: Path, record: ScheduledJob, calm: Mapping[int, Calm]) -> list[str]:
    """A job that is done has the weights of a calm one, an exact ledger, and a whole directory.

    Args:
        calm: how jobs end that nothing is done to, by their epochs.
    """
    if record.life.phase is not Phase.DONE:
        return []
    digest = calm[record.submission.spec.epochs].digest
    logs = (run_dir / "logs").glob("[am]*.log")  # of agent and master
    broken = [
        *result_is_the_calm_one(run_dir, record.summary, digest),
        *run_directory_is_whole(run_dir),
        *brim_did_not_stumble(logs),
    ]
    return [f"{record.id}: {problem}" for problem in broken]


def service_is_gone(run_dir: Path, port: int) -> list[str]:
    """A service that was cancelled has left its port, and none of its processes has stumbled."""
    holder = holder_of(port)
    broken = [f"port {port} is still taken, by {holder}"] if holder else []
    broken += brim_did_not_stumble((run_dir / "logs").glob("[am]*.log"))
    return [f"{run_dir.name}: {problem}" for problem in broken]


def database_is_sound(path: Path) -> list[str]:
    """Every page of it is as it should be."""
    try:
        with closing(sqlite3.connect(path)) as sql:
            (answer,) = sql.execute("pragma integrity_check").fetchone()
    except sqlite3.Error as error:
        answer = error
    return [] if answer == "ok" else [f"the database is damaged: {answer}"]


def journal_replays(database: Database) -> list[str]:
    """Every cycle decided again gives the same plan."""
    differences = replay(database.cycles()).differences
    return [
        f"cycle {difference.cycle} decided again differs: {'; '.join(difference.what)}"
        for difference in differences
    ]


def state_is_whole(state: Path) -> list[str]:
    """The scheduler left only its own files, and stumbled nowhere."""
    leftovers = [
        f"left behind: {path.name}" for path in state.iterdir() if path.name not in _EXPECTED_FILES
    ]
    leftovers += [f"left behind: services/{path.name}" for path in state.glob("services/*")]
    return leftovers + brim_did_not_stumble(
        [state / "scheduler.log", *state.glob("nodes/*/node.log")]
    )
