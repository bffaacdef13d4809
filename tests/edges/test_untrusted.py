"""Things that a tenant's account leaves in place of its files neither hold a scheduler up nor fill
its memory.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from brim.backends import watching
from brim.backends.local import agent_log
from brim.backends.processes import Launch
from brim.backends.watching import RunWatch
from brim.errors import EnvironmentFault
from brim.host.untrusted import NotRegularError, open_regular, read_regular
from brim.storage import backup, journal
from brim.storage.contact import read_contact
from brim.storage.files import is_locked, lock
from brim.storage.journal import set_aside_if_damaged
from brim.telemetry.events import CheckpointPublished, Event, RunFailed
from brim.telemetry.logs import Tail, last_line
from brim.telemetry.record_files import EVENTS, STEPS, follow_events, follow_steps
from edges.test_runs_on_nodes import FakeNodes, launch, nodes, processes

__all__ = ["launch", "nodes"]
pytestmark = pytest.mark.timeout(120)  # who opens a pipe waits for ever

ODD: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "link": lambda path: path.symlink_to("/dev/zero"),
    "link to a file": lambda path: path.symlink_to(__file__),
    "directory": os.mkdir,
}
HUGE = 900 << 30


@pytest.fixture(params=list(ODD.values()), ids=list(ODD))
def odd(request: pytest.FixtureRequest) -> Callable[[Path], object]:
    make: Callable[[Path], object] = request.param
    return make


def test_what_is_no_regular_file_is_not_opened(
    tmp_path: Path, odd: Callable[[Path], object]
) -> None:
    odd(tmp_path / "odd")
    for flags in (os.O_RDONLY, os.O_WRONLY | os.O_APPEND | os.O_CREAT, os.O_RDWR | os.O_CREAT):
        with pytest.raises(NotRegularError, match="no regular file"):
            open_regular(tmp_path / "odd", flags)


def test_regular_files_are_read_up_to_limits(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    assert read_regular(tmp_path / "file", at_most=5) == b"12345"
    with pytest.raises(OSError, match="more than 4 bytes"):
        read_regular(tmp_path / "file", at_most=4)
    descriptor = open_regular(tmp_path / "file")
    assert os.get_blocking(descriptor)
    os.close(descriptor)


def test_it_is_nobodys_lock_and_cannot_be_taken(
    tmp_path: Path, odd: Callable[[Path], object]
) -> None:
    odd(tmp_path / ".agent.lock")
    assert not is_locked(tmp_path / ".agent.lock")
    with pytest.raises(NotRegularError):
        lock(tmp_path / ".agent.lock")


def test_a_restore_does_not_wait_for_it(tmp_path: Path, odd: Callable[[Path], object]) -> None:
    run_dir = tmp_path / "job-1"
    run_dir.mkdir()
    odd(run_dir / ".agent.lock.n2")
    backup._check_nobody_trains(tmp_path)
    lock_file = lock(run_dir / ".agent.lock")
    assert lock_file is not None
    with pytest.raises(EnvironmentFault, match="job-1"):
        backup._check_nobody_trains(tmp_path)
    os.close(lock_file)


def test_special_record_files_are_ignored(tmp_path: Path, odd: Callable[[Path], object]) -> None:
    (tmp_path / "logs").mkdir()
    for name in ("logs/w1.log", "logs/agent.log", EVENTS, STEPS, "master.json", "journal"):
        odd(tmp_path / name)
    (tmp_path / "logs" / "w2.log").write_text("a line\n")
    assert Tail(tmp_path).fresh() == [("w2", "a line")]
    assert last_line(tmp_path / "logs" / "w1.log") == ""
    assert read_contact(tmp_path) is None
    for reader in (follow_events(tmp_path), follow_steps(tmp_path, at_most=100)):
        assert reader.poll() == []
        assert "no regular file" in reader.damage
    with pytest.raises(NotRegularError):
        agent_log(tmp_path)
    assert "no regular file" in set_aside_if_damaged(tmp_path / "journal")
    assert (tmp_path / "journal.damaged").is_symlink() or (tmp_path / "journal.damaged").exists()


@pytest.fixture
def little_memory() -> object:
    """So that reading a huge file fails here as well, and not the whole host."""
    limit_before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (64 << 30, limit_before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, limit_before)


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("name", [EVENTS, STEPS])
def test_huge_record_fails_its_job_without_using_memory(
    tmp_path: Path, nodes: FakeNodes, launch: Launch, name: str
) -> None:
    run_dir = tmp_path / launch.job
    run_dir.mkdir()
    line = msgspec.json.encode(_EVENT) + b"\n" if name == EVENTS else b"{}\n"
    (run_dir / name).write_bytes(line)
    os.truncate(run_dir / name, HUGE)
    lock_file = lock(run_dir / ".agent.lock")
    assert lock_file is not None
    runs = processes(tmp_path, nodes)
    assert runs.look(launch).alive, "the job itself goes on"
    os.close(lock_file)
    seen = runs.look(launch)
    assert (seen.alive, seen.outcome, seen.who) == (False, "failed", "user")
    assert f"{name} is damaged at byte" in seen.problem
    os.truncate(run_dir / name, len(line))  # as a master does that begins again
    assert runs.look(launch).problem == ""


_EVENT: Event = CheckpointPublished(at=1.0, step=1, path="step-1")


@pytest.mark.usefixtures("little_memory")
def test_a_huge_journal_or_contact_is_not_read(tmp_path: Path) -> None:
    for name in ("journal", "master.json"):
        (tmp_path / name).touch()
        os.truncate(tmp_path / name, HUGE)
    assert f"more than {journal._MAX_JOURNAL_BYTES:,} bytes" in set_aside_if_damaged(
        tmp_path / "journal"
    )
    assert read_contact(tmp_path) is None


def test_many_events_are_taken_in_over_some_looks(
    tmp_path: Path, nodes: FakeNodes, launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job whose last words are not read yet has not ended."""
    monkeypatch.setattr(watching, "_READ_BYTES", 1000)
    run_dir = tmp_path / launch.job
    run_dir.mkdir()
    line = msgspec.json.encode(_EVENT) + b"\n"
    count = 2 * watching._MAX_READS * 1000 // len(line)
    failed = msgspec.json.encode(RunFailed(at=2.0, who="user", message="no", trace="")) + b"\n"
    (run_dir / EVENTS).write_bytes(line * count + failed)
    runs = processes(tmp_path, nodes)
    looks = [runs.look(launch)]
    while looks[-1].alive and len(looks) < 10:
        looks.append(runs.look(launch))
    assert 2 <= len(looks) <= 4
    assert (looks[-1].alive, looks[-1].problem) == (False, "no")


def test_only_overlong_lines_are_reported(tmp_path: Path) -> None:
    long = (
        msgspec.json.encode(RunFailed(at=2.0, who="user", message="x" * (2 << 20), trace=""))
        + b"\n"
    )
    (tmp_path / EVENTS).write_bytes(long)
    watch = RunWatch(tmp_path)
    watch.poll()
    assert watch.failed is not None
    assert not watch.damage
    with (tmp_path / EVENTS).open("ab") as file:
        file.write(b"y" * (5 << 20) + b"\n")
    watch.poll()
    assert f"damaged at byte {len(long)}: a line of more than 4 MiB" in watch.damage
