"""Runs in more than one place: their files kept elsewhere, and copies that are brought up to date."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from brim.cli.__main__ import cli
from brim.domain.job import JobSpec, WorkerRange
from brim.domain.kept_run import LIVENESS_FILE, PART, KeptFile, is_kept, part_name
from brim.errors import EnvironmentFault, SpecError
from brim.runs.copies import copy_of_stored
from brim.runs.directories import claim, find_run, holds_run
from brim.runs.starting import check_new_place
from brim.storage import kept_runs
from brim.storage.contact import read_scheduler_contact
from brim.storage.file_stores import Directory
from brim.storage.files import lock
from brim.storage.job_file import CHANGED_CODE, CODE
from brim.storage.kept_runs import Keeping, StoredRun, copy_run, files_of
from brim.telemetry.log_limit import LogLimit
from brim.telemetry.logs import Tail
from brim.telemetry.record_files import EVENTS, STEPS
from edges.test_tenants import OTHER, OWNER, House, job_of


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    run_dir = tmp_path / "run"
    (run_dir / "logs").mkdir(parents=True)
    (run_dir / "job.json").write_text('{"file": "flights.py"}')
    (run_dir / "events.jsonl").write_text('{"kind": "run_started"}\n')
    (run_dir / "logs" / "w1.log").write_text("hello\n")
    (run_dir / "master.json").write_text('{"token": "secret"}')
    (run_dir / "journal").write_bytes(b"\0" * 9)
    return run_dir


@pytest.mark.parametrize(
    "name",
    ["master.json", "journal", ".agent.lock", "logs/../master.json", "/etc/passwd", "logs//x.log",
     "checkpoints/step-1/manifest.json", "quarantine/a/b", "events.jsonl\n", ""],
)  # fmt: skip
def test_secrets_and_outside_links_are_not_kept(name: str) -> None:
    assert not is_kept(name)


@pytest.mark.parametrize(
    "name",
    ["job.json", "columns.json", CODE, CHANGED_CODE, "report.html", "logs/w1.log", EVENTS, STEPS,
     "quarantine/clicks.csv.jsonl"],
)  # fmt: skip
def test_what_people_need_of_a_run_is_kept(name: str) -> None:
    assert is_kept(name)


def test_what_is_kept_is_what_a_copy_has(run_dir: Path, tmp_path: Path) -> None:
    place, copy = Directory(tmp_path / "store"), tmp_path / "copy"
    keeping, stored = Keeping(run_dir, place), StoredRun(place)
    steps = run_dir / "steps.jsonl"
    line = b'{"step": 1}\n'
    for size in (1, 3, PART // len(line), 2 * PART // len(line) + 7):
        steps.write_bytes(line * size)
        (run_dir / "columns.json").write_text(str(size))
        keeping.bring_up_to_date()
        copy_run(stored, copy)
        for file in files_of(run_dir):
            assert (copy / file.name).read_bytes() == (run_dir / file.name).read_bytes(), file.name
    assert not (copy / "master.json").exists()
    assert not (copy / "journal").exists()
    assert {part_name("steps.jsonl", number) for number in range(3)} <= place.names().keys()


def test_a_part_that_is_full_is_written_once(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Directory(tmp_path / "store")
    (run_dir / "steps.jsonl").write_bytes(b"x" * (PART + 5))
    Keeping(run_dir, place).bring_up_to_date()
    written: list[str] = []
    write = place.replace

    def note(name: str, data: bytes) -> None:
        written.append(name)
        write(name, data)

    monkeypatch.setattr(place, "replace", note)
    (run_dir / "steps.jsonl").write_bytes(b"x" * (PART + 9))
    Keeping(run_dir, place).bring_up_to_date()  # a master that has just taken over
    assert part_name("steps.jsonl", 1) in written
    assert part_name("steps.jsonl", 0) not in written
    assert part_name("events.jsonl", 0) not in written


def test_what_a_log_limit_gave_back_is_nowhere(run_dir: Path, tmp_path: Path) -> None:
    """A job may print for weeks: neither its store nor a copy keeps more than its host does."""
    place, copy = Directory(tmp_path / "store"), tmp_path / "copy"
    keeping, log = Keeping(run_dir, place), run_dir / "logs" / "w1.log"
    limit = LogLimit(run_dir / "logs", "*.log", limit=2 * PART)
    lines_followed: list[tuple[str, str]] = []
    tail: Tail | None = None
    for turn in range(4):
        with log.open("a") as file:
            file.writelines(f"line {turn} {number:9d}\n" for number in range(2 * PART // 17))
        limit.enforce()
        keeping.bring_up_to_date()
        copy_run(StoredRun(place), copy)
        tail = tail or Tail(copy)
        lines_followed += tail.fresh(reads=100)
    kept_parts = [name for name in place.names() if name.startswith("logs/w1.log/")]
    assert len(kept_parts) <= 3, "two parts, and the one that is added to"
    found = (copy / "logs" / "w1.log").stat()
    assert found.st_size == log.stat().st_size
    assert found.st_blocks * 512 <= 4 * PART
    assert any("bytes are left out" in line for _, line in lines_followed)
    assert lines_followed[-1] == ("w1", log.read_bytes().splitlines()[-1].decode())
    copy_run(StoredRun(place), tmp_path / "fresh")
    fresh = (tmp_path / "fresh" / "logs" / "w1.log").stat()
    assert fresh.st_size == log.stat().st_size
    assert fresh.st_blocks * 512 <= 4 * PART


def test_what_user_code_leaves_there_holds_nothing_up(run_dir: Path, tmp_path: Path) -> None:
    """Its links and pipes are not kept, and all else is."""
    (run_dir / "logs" / "a.log").symlink_to("/etc/passwd")
    os.mkfifo(run_dir / "logs" / "b.log")
    place = Directory(tmp_path / "store")
    Keeping(run_dir, place).bring_up_to_date()
    assert place.names().keys() == {
        "job.json", part_name("events.jsonl", 0), part_name("logs/w1.log", 0)
    }  # fmt: skip


def test_a_fetched_run_hides_its_keeping_time(run_dir: Path, tmp_path: Path) -> None:
    place = Directory(tmp_path / "store")
    (run_dir / LIVENESS_FILE).write_text("1")  # of a host that is gone
    keeping = Keeping(run_dir, place)
    keeping.note_alive(1e9)
    keeping.bring_up_to_date()
    assert place.read(LIVENESS_FILE) == b"1000000000"
    keeping.note_end()
    Keeping(run_dir, place).bring_up_to_date()  # the command, after the master's end
    assert LIVENESS_FILE not in place.names()


def test_a_full_disk_leaves_what_was_kept_before(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Directory(tmp_path / "store")
    Keeping(run_dir, place).bring_up_to_date()
    kept_before = {name: place.read(name) for name in place.names()}
    (run_dir / "job.json").write_text('{"file": "another.py"}')
    with (run_dir / "events.jsonl").open("a") as events:
        events.write('{"kind": "round"}\n')

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr("brim.storage.files.os.fsync", full)
        for _ in range(2):
            with pytest.raises(EnvironmentFault, match="No space left"):
                Keeping(run_dir, place).bring_up_to_date()
    assert {name: place.read(name) for name in place.names()} == kept_before


def test_a_line_is_copied_once_it_is_whole(run_dir: Path, tmp_path: Path) -> None:
    """A master that was killed leaves a torn line, which the next one cuts off and writes again."""

    class ThisRun:
        def files(self) -> list[KeptFile]:
            return files_of(run_dir)

        def read(self, name: str, start: int) -> bytes:
            return (run_dir / name).read_bytes()[start:][:4]

    events, copy = run_dir / "events.jsonl", tmp_path / "copy"
    whole = events.read_bytes()
    events.write_bytes(whole + b'{"kind": "tor')
    copy_run(ThisRun(), copy)
    assert (copy / "events.jsonl").read_bytes() == whole
    events.write_bytes(whole + b'{"kind": "round"}\n')
    copy_run(ThisRun(), copy)
    assert (copy / "events.jsonl").read_bytes() == events.read_bytes()


@pytest.mark.parametrize("lines", [1, 2, 9], ids=["shorter", "as long", "longer"])
def test_a_reused_run_name_is_copied_anew(lines: int, run_dir: Path, tmp_path: Path) -> None:
    """A scheduler with a new state directory numbers its jobs from 1 again."""
    place, copy = Directory(tmp_path / "store"), tmp_path / "copy"
    weights = run_dir / "checkpoints" / "step-00000001" / "state.safetensors"
    weights.parent.mkdir(parents=True)

    def keep(run: str, lines: int) -> None:
        (run_dir / "events.jsonl").write_text(f'{{"run": "{run}"}}\n' * lines)
        (run_dir / "logs" / "w1.log").write_text(f"{run} " * 20)
        weights.write_text(run)
        shutil.rmtree(tmp_path / "store", ignore_errors=True)
        Keeping(run_dir, place).bring_up_to_date()
        place.write("checkpoints/step-00000001/state.safetensors", weights.read_bytes())
        copy_run(StoredRun(place), copy, checkpoints=True)

    keep("first", 2)
    (copy / "logs" / "w9.log").touch()  # of the first run alone
    keep("other", 2)
    keep("third", lines)
    for file in files_of(run_dir, checkpoints=True):
        assert (copy / file.name).read_bytes() == (run_dir / file.name).read_bytes(), file.name
    assert not (copy / "logs" / "w9.log").exists()


def test_concurrent_copies_take_turns(run_dir: Path, tmp_path: Path) -> None:
    """Each cuts off a line without its end: another's, which is about to be written on."""
    place, copy = Directory(tmp_path / "store"), tmp_path / "copy"
    (run_dir / "steps.jsonl").write_bytes(b'{"step": 1}\n' * (3 * PART // 12))
    Keeping(run_dir, place).bring_up_to_date()
    under_way, go_on = threading.Event(), threading.Event()
    order: list[str] = []

    class Slow(StoredRun):
        def read(self, name: str, start: int) -> bytes:
            if start == PART and not under_way.is_set():
                order.append("first")
                under_way.set()
                assert go_on.wait(30)
                order.append("first")
            return super().read(name, start)

    class Noted(StoredRun):
        def files(self) -> list[KeptFile]:
            order.append("second")
            return super().files()

    copies = [threading.Thread(target=copy_run, args=(Slow(place), copy))]
    copies[0].start()
    assert under_way.wait(30)
    copies.append(threading.Thread(target=copy_run, args=(Noted(place), copy)))
    copies[1].start()
    copies[1].join(1.0)  # where it does not wait, it is over by now
    go_on.set()
    for process in copies:
        process.join(30)
    assert order == ["first", "first", "second"]
    assert (copy / "steps.jsonl").read_bytes() == (run_dir / "steps.jsonl").read_bytes()


def test_a_copy_that_takes_too_long_is_said(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, copy = Directory(tmp_path / "store"), tmp_path / "copy"
    Keeping(run_dir, place).bring_up_to_date()
    copy_run(StoredRun(place), copy)
    monkeypatch.setattr(kept_runs, "_TO_COPY", 0.0)
    lock_file = lock(copy / ".copy.lock")
    assert lock_file is not None
    with pytest.raises(EnvironmentFault, match="another process has been copying"):
        copy_run(StoredRun(place), copy)
    os.close(lock_file)
    copy_run(StoredRun(place), copy)


def test_a_growing_part_does_not_end_a_copy(run_dir: Path, tmp_path: Path) -> None:
    place, copy = Directory(tmp_path / "store"), tmp_path / "copy"
    Keeping(run_dir, place).bring_up_to_date()
    copy_run(StoredRun(place), copy)
    (copy / "report.html").touch()
    content = place.read(part_name("events.jsonl", 0))
    place.write(part_name("events.jsonl", 0), b"")
    copy_run(StoredRun(place), copy)
    place.write(part_name("events.jsonl", 0), content)
    copy_run(StoredRun(place), copy)
    assert (copy / "events.jsonl").read_bytes() == content
    assert (copy / "report.html").exists()


def test_a_removed_checkpoint_leaves_the_copy(run_dir: Path, tmp_path: Path) -> None:
    class ThisRun:
        def files(self) -> list[KeptFile]:
            return files_of(run_dir, checkpoints=True)

        def read(self, name: str, start: int) -> bytes:
            return (run_dir / name).read_bytes()[start:]

    copy = tmp_path / "copy"
    for step in (1, 2):
        folder = run_dir / "checkpoints" / f"step-{step:08d}"
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text("{}")
        (folder / "state.safetensors").write_bytes(b"weights")
    copy_run(ThisRun(), copy, checkpoints=True)
    assert files_of(copy, checkpoints=True)
    for file in (run_dir / "checkpoints" / "step-00000001").iterdir():
        file.unlink()
    copy_run(ThisRun(), copy, checkpoints=True)
    assert [path.name for path in (copy / "checkpoints").iterdir()] == ["step-00000002"]


def test_a_copy_that_nobody_asks_for_is_removed(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    copies = {}
    for name in ("old", "asked", "other"):
        place = f"file://{tmp_path}/{name}"
        Keeping(run_dir, Directory(tmp_path / name)).bring_up_to_date()
        copies[name] = copy_of_stored(place)
    for name in ("old", "asked"):
        os.utime(copies[name], (0, 0))
    assert copy_of_stored(f"file://{tmp_path}/asked") == copies["asked"]
    assert not copies["old"].exists()
    assert (copies["asked"] / "job.json").exists()
    assert (copies["other"] / "job.json").exists()


def test_a_run_among_copies_is_found_by_path(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    Keeping(run_dir, Directory(tmp_path / "kept runs" / "one")).bring_up_to_date()
    monkeypatch.chdir(tmp_path / "kept runs")
    for name in ("one", str(tmp_path / "kept runs" / "one")):
        assert holds_run(find_run(name))


@pytest.mark.parametrize(
    ("runs", "is_own"),
    [
        ("runs", True),
        ("runs/", True),
        ("./elsewhere/../runs", True),
        ("{folder}/runs", True),
        ("file://{folder}/runs", True),
        ("link", True),
        ("runs/one", True),  # within the run: each copy would have the ones before
        ("elsewhere", False),
        ("file://{folder}/elsewhere", False),
        ("runs/copies", False),
    ],
)
def test_a_run_is_not_kept_in_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: str, is_own: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    fresh = claim(Path("runs/one"))
    (tmp_path / "link").symlink_to("runs")
    (tmp_path / "elsewhere").mkdir()
    spec = JobSpec(
        file="f.py",
        parameters={},
        workers=WorkerRange.parse("1"),
        runs=runs.format(folder=tmp_path),
    )
    if not is_own:
        check_new_place(spec, fresh)
        assert fresh.path.is_dir()
        return
    with pytest.raises(SpecError, match="in which this run is already") as raised:
        check_new_place(spec, fresh)
    assert raised.value.hint.startswith("leave out --runs")
    assert not fresh.path.exists()


def test_where_no_run_is_kept_is_said(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="where no run is"):
        copy_of_stored(f"file://{tmp_path}/nothing")


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    house = House(tmp_path)
    yield house
    house.close()


def test_owners_read_job_records_over_http(house: House) -> None:
    job = house.client.submit(job_of("ads")).job
    run_dir = Path(house.client.job(job).run)
    (run_dir / "logs").mkdir(parents=True, exist_ok=True)
    (run_dir / "events.jsonl").write_bytes(b"x" * (PART + 1))
    (run_dir / "master.json").write_text("secret")
    (run_dir / "job.json").symlink_to(house.folder / "scheduler.json")
    owner = house.as_(OWNER)
    names = {file.name: file.size for file in owner.files(job)}
    assert names["events.jsonl"] == PART + 1
    assert "master.json" not in names
    assert len(owner.read_file(job, "events.jsonl")) == PART
    assert owner.read_file(job, "events.jsonl", PART) == b"x"
    assert owner.read_file(job, "events.jsonl", PART + 1) == b""
    for path in ("master.json", "logs/..%2Fmaster.json", "../scheduler.json", "columns.json"):
        with pytest.raises(FileNotFoundError):
            owner.read_file(job, path)
    assert house.ask(OWNER, "GET", f"/v1/jobs/{job}/files/job.json")[0] == 409, "a link"
    for path in ("files", "files/events.jsonl"):
        assert house.ask(OTHER, "GET", f"/v1/jobs/{job}/{path}")[0] == 404


def test_verbs_ask_the_server_that_is_named(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    contact = read_scheduler_contact(house.folder)
    assert contact is not None
    monkeypatch.setenv("BRIM_HOME", str(house.folder / "elsewhere"))
    monkeypatch.setenv("BRIM_TOKEN", house.tokens[OWNER])
    # Set first: what --server puts into the environment goes with it at the end of this test.
    monkeypatch.setenv("BRIM_SERVER", "")
    job = house.client.submit(job_of("ads")).job

    def brim(*words: str) -> Any:
        result = CliRunner().invoke(
            cli, ["--server", f"http://127.0.0.1:{contact.port}", *words], catch_exceptions=False
        )
        monkeypatch.setenv("BRIM_SERVER", "")
        monkeypatch.setenv("BRIM_HOME", str(house.folder / "elsewhere"))
        return result

    assert job in brim("jobs").stdout
    assert f'"job": "{job}"' in brim("status", job, "--json").stdout
    wrong = CliRunner().invoke(cli, ["--server", "host", "jobs"])
    assert wrong.exit_code == 2
    assert "https://HOST:PORT" in wrong.stderr
