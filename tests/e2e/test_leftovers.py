"""Processes that user code leaves end with the worker that started them, and none outlives the
job.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from brim.host.control_groups import groups_of
from e2e.running import FILES, PACED, Run, has_ended, started, until
from groups import needs_groups

pytestmark = pytest.mark.e2e


@pytest.fixture
def notes(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "notes"
    folder.mkdir()
    yield folder
    for pid in children(folder).values():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def children(notes: Path) -> dict[int, int]:
    """The processes started, by their parents."""
    return {int(note.name): int(note.read_text()) for note in notes.iterdir() if note.read_text()}


@contextlib.contextmanager
def run_of(tmp_path: Path, notes: Path, *options: str) -> Iterator[Run]:
    job = (
        "train",
        str(FILES / "leaves_children.py"),
        "--set",
        f"notes={notes}",
        "--epochs",
        "12",
        *options,
    )
    with started(tmp_path / "run", *job, *PACED, "--workers", "2", "--spares", "0") as run:
        run.wait_for_step(5)
        yield run


def test_child_processes_end_with_worker_and_run(tmp_path: Path, notes: Path) -> None:
    with run_of(tmp_path, notes) as run:
        victim = run.pid(run.members()[0])
        os.kill(victim, signal.SIGKILL)
        until(lambda: has_ended(children(notes)[victim]), "the end of what it had started", run)
        other_processes = {
            pid: child for pid, child in children(notes).items() if pid in workers(run) - {victim}
        }
        assert other_processes
        assert not any(map(has_ended, other_processes.values()))
        # The template's as well, and that of another worker.
        until(lambda: len(children(notes)) >= 4, "what the next worker starts", run)
        run.process.send_signal(signal.SIGINT)
        assert run.finish()["exit"] == "suspended"
    assert all(map(has_ended, children(notes).values()))


@needs_groups
def test_leftovers_of_a_killed_agent_end(tmp_path: Path, notes: Path) -> None:
    """It has no new parent: its agent is gone, and the command that started that is no parent of
    all processes below.
    """
    with run_of(tmp_path, notes) as run:
        first = children(notes)
        assert len(first) >= 2
        agent = psutil.Process(run.pid("w1")).parent()
        assert agent is not None
        agent.kill()
        until(
            lambda: all(map(has_ended, first.values())), "the end of what the first agent left", run
        )
        until(lambda: len(children(notes)) >= len(first) + 2, "what the next workers start", run)
        run.process.send_signal(signal.SIGINT)
        assert run.finish()["exit"] == "suspended"
    assert all(map(has_ended, children(notes).values()))
    assert groups_of(tmp_path / "run") == []


@pytest.mark.long
@needs_groups
def test_leftovers_of_a_killed_run_end_on_resume(tmp_path: Path, notes: Path) -> None:
    with run_of(tmp_path, notes) as run:
        survivors = children(notes)
        agent = psutil.Process(run.pid("w1")).parent()
        assert agent is not None
        run.process.kill()
        agent.kill()
        run.process.communicate()
        assert not any(map(has_ended, survivors.values()))
        with run_of(tmp_path, notes, "--resume") as resumed:
            until(
                lambda: all(map(has_ended, survivors.values())), "the end of what was left", resumed
            )
            until(
                lambda: len(children(notes)) >= len(survivors) + 2,
                "what the next workers start",
                resumed,
            )
            resumed.process.send_signal(signal.SIGINT)
            assert resumed.finish()["exit"] == "suspended"
    assert all(map(has_ended, children(notes).values()))
    assert groups_of(tmp_path / "run") == []


def workers(run: Run) -> set[int]:
    return {event["pid"] for event in run.events("worker") if event.get("pid")}
