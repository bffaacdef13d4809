"""Chaos breaks runs as it says, undoes it, and finds planted faults."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from brim.cli.__main__ import cli
from brim.domain.faults import parse_faults
from brim.domain.job import WorkerRange
from brim.errors import EnvironmentFault
from brim.host.clock import SystemClock, VirtualClock
from brim.host.process import state_of
from brim.storage.checkpoints import Checkpoint, Store
from brim.storage.contact import Contact, write_contact
from brim.storage.file_stores import Directory
from brim.telemetry.events import RoundFormed
from brim.telemetry.history import RunHistory, WorkerLife
from brim_lab.chaos import hosts as chaos_hosts
from brim_lab.chaos.clocks import JumpingClock
from brim_lab.chaos.disk import can_mount, small_disk
from brim_lab.chaos.hosts import Host, can_make_hosts, hosts_in
from brim_lab.chaos.outside import OutsideFaults
from brim_lab.chaos.promises import (
    brim_did_not_stumble,
    nothing_left_behind,
    result_is_the_calm_one,
    run_directory_is_whole,
)
from brim_lab.chaos.results import Job
from brim_lab.chaos.trial import Trial, _Running, copy_files
from brim_lab.driver import Driver, MarkedProcesses
from e2e.running import ROOT
from recorded_run import RecordedRun, spec

needs_hosts = pytest.mark.skipif(not can_make_hosts(), reason="needs root, ip and /dev/net/tun")


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """The directory of a run that is as it should be."""
    run = RecordedRun(tmp_path / "run", spec(epochs=1))
    run.begin()
    run.train_to_end()
    run.end()
    store = Store(Directory(tmp_path / "run" / "checkpoints"))
    store.publish(store.draft(Checkpoint(step=8, tree={}, versions={}, data=b"x"), writer="w1"))
    return tmp_path / "run"


def test_a_whole_run_keeps_its_promises(whole: Path) -> None:
    assert run_directory_is_whole(whole) == []
    assert result_is_the_calm_one(whole, {"exit": "done", "weights_sha256": "ab"}, "ab") == []


def test_differing_weights_and_unfinished_runs_are_found(whole: Path) -> None:
    other_summary = {"exit": "done", "weights_sha256": "cd"}
    assert result_is_the_calm_one(whole, other_summary, "ab") == [
        "weights cd, those of the calm run are ab"
    ]
    assert "ended as 'failed'" in result_is_the_calm_one(whole, {"exit": "failed"}, "ab")[0]


def test_a_sample_that_counts_twice_is_found(whole: Path) -> None:
    lines = (whole / "steps.jsonl").read_text().splitlines(keepends=True)
    (whole / "steps.jsonl").write_text("".join([*lines, lines[-1]]))
    (broken,) = result_is_the_calm_one(whole, {"exit": "done", "weights_sha256": "ab"}, "ab")
    assert broken == "the ledger is not exact: epoch 1: 0 missing, 512 repeated"


@pytest.mark.parametrize(
    ("name", "content", "found"),
    [
        (".steps.jsonl.x1", "", "left behind: .steps.jsonl.x1"),
        ("master.json", "{}", "left behind: master.json"),
        ("events.jsonl", '{"at": 1}\n{"at"', "events.jsonl ends within a line"),
        ("steps.jsonl", '{"at": 1}\n{"a\n', "steps.jsonl:2 is not a record: b'{\"a'"),
        (
            "checkpoints/step-00000008/w1-.safetensors",
            "",
            "a draft is left: step-00000008/w1-.safetensors",
        ),
        ("checkpoints/step-00000009/w1-0.json", "", "a draft is left: step-00000009/w1-0.json"),
    ],
)
def test_what_is_half_written_is_found(whole: Path, name: str, content: str, found: str) -> None:
    (whole / name).parent.mkdir(parents=True, exist_ok=True)
    (whole / name).write_text(content)
    (broken,) = run_directory_is_whole(whole)
    assert found in broken


def test_a_damaged_checkpoint_is_found(whole: Path) -> None:
    manifest = whole / "checkpoints" / "step-00000008" / "manifest.json"
    manifest.write_bytes(manifest.read_bytes().replace(b"8", b"9", 1))
    (broken,) = run_directory_is_whole(whole)
    assert broken.startswith(f"{manifest} is damaged")


def test_a_bug_that_was_survived_is_found(tmp_path: Path) -> None:
    (tmp_path / "master.log").write_text(
        'Traceback (most recent call last):\n  File "src/brim/master/loop.py"\nKeyError: 1\n'
    )
    logs = [tmp_path / "master.log", tmp_path / "agent.log"]
    assert brim_did_not_stumble(logs) == ["a traceback in master.log: KeyError: 1"]


def test_leftovers_are_found_except_of_the_killed(tmp_path: Path) -> None:
    (tmp_path / "brim-socket").mkdir()
    shared = os.listdir("/dev/shm")
    assert nothing_left_behind(tmp_path, shared, killed=0) == ["left behind in TMPDIR: brim-socket"]
    assert nothing_left_behind(tmp_path, shared, killed=1) == []


def test_processes_are_found_by_their_mark() -> None:
    mark = MarkedProcesses(uuid.uuid4().hex)
    program = "import os, time; os.setsid(); print(os.fork(), flush=True); time.sleep(60)"
    command = [sys.executable, "-c", program]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, env={**os.environ, **mark.environment}
    )
    assert process.stdout is not None
    process.stdout.readline()
    assert len(mark.left_after(0.0)) == 2
    mark.kill()
    process.communicate()
    assert mark.alive() == {}


def test_a_verb_is_followed_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRIM_HOME", "/nowhere")
    driver = Driver(tmp_path, SEEN="yes")
    assert driver.environment["SEEN"] == "yes"
    assert "BRIM_HOME" not in driver.environment
    assert driver.call("--version").stdout.startswith("brim")
    with pytest.raises(EnvironmentFault, match=r"brim ledger nowhere failed with 2"):
        driver.call("ledger", "nowhere")
    looks: list[int] = []
    with driver.start("--version") as process:
        code = driver.follow(process, lambda: looks.append(1), deadline=time.monotonic() + 60)
    assert (code, bool(looks)) == (0, True)


def test_a_verb_at_its_deadline_is_killed() -> None:
    driver = Driver()
    with driver.with_prefix(["sh", "-c", "sleep 60 & wait", "sh"]).start("--version") as process:
        assert driver.follow(process, lambda: None, deadline=time.monotonic() + 0.2) is None
    assert driver.mark.alive() == {}


def test_slow_workers_pause_repeatedly_then_continue(tmp_path: Path) -> None:
    clock = VirtualClock()
    outside_faults = OutsideFaults(tmp_path, Driver(), JumpingClock(tmp_path / "clock"), clock)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as worker:
        history = RunHistory(
            round=RoundFormed(at=0.0, round=1, world_size=1, workers=["w1"]),
            crew={"w1": WorkerLife(at=0.0, worker="w1", state="ready", pid=worker.pid)},
        )
        (slow,) = parse_faults("slow rank 0 by 50ms for 200ms at step 1")
        outside_faults.perform(slow, history)
        seen: list[bool] = []
        for _ in range(6):
            end = time.monotonic() + 10
            is_stopped = len(seen) % 2 == 0 and len(seen) < 4
            while (state_of(worker.pid) == "T") != is_stopped and time.monotonic() < end:
                time.sleep(0.01)
            seen.append(state_of(worker.pid) == "T")
            clock.advance(0.05)
            outside_faults.poll()
        worker.kill()
    assert seen == [True, False, True, False, False, False]


def test_a_fault_excuses_one_end_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that was killed once, and whose resumption then fails by itself,
    has broken a promise.
    """
    (kill,) = parse_faults("kill everything at step 4")
    trial = Trial(seed=0, workers=WorkerRange.parse("2"), faults=(kill, kill))
    run = _Running(Job(file="job.py"), trial, tmp_path, tmp_path / "run")

    def end(*, deadline: float) -> None:
        run.lives, run.code = run.lives + 1, 1
        run.struck = [(0.0, kill)]
        for name in ("summary-{}.json", "stderr-{}.log"):
            (tmp_path / name.format(run.lives)).write_text("")

    monkeypatch.setattr(run, "live", end)
    with run:
        (broken,) = run.to_the_end(1.0)
    assert broken.startswith(
        "life 2 ended with code 1, and 1 of the faults until then could end one"
    )


def test_a_master_that_comes_back_is_struck_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    write_contact(tmp_path, Contact(address="a:1", token="t", pid=dead.pid, keeper=1))
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as master:
        contact = Contact(address="a:1", token="t", pid=master.pid, keeper=1)
        coming = threading.Timer(0.2, write_contact, (tmp_path, contact))
        coming.start()
        clock = JumpingClock(tmp_path / "clock")
        OutsideFaults(tmp_path, Driver(), clock, SystemClock()).perform(
            parse_faults("kill master at step 1")[0], RunHistory()
        )
        assert master.wait(10) == -9
        coming.join()


def test_only_the_wall_clock_jumps(tmp_path: Path) -> None:
    clock = JumpingClock(tmp_path / "clock")
    program = (
        "import sys, time\n"
        "for line in sys.stdin:\n"
        "    print(time.time(), time.time_ns() / 1e9, time.monotonic(), flush=True)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **clock.environment},
    )

    def ask() -> tuple[float, ...]:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        own_times = (time.time(), time.time(), time.monotonic())
        process_times = map(float, process.stdout.readline().split())
        return tuple(round(a - b, -2) for a, b in zip(process_times, own_times, strict=True))

    assert ask() == (0, 0, 0)
    clock.jump(3600)
    assert ask() == (3600, 3600, 0)
    clock.jump(-90000)
    assert ask() == (-86400, -86400, 0)
    process.communicate()


@pytest.mark.skipif(not can_mount(), reason="needs root, to mount")
def test_a_small_disk_is_filled_and_freed(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        disk.fill()
        (disk.path / "record").write_bytes(bytes(1 << 12))
        with pytest.raises(OSError, match="No space") as full:
            (disk.path / "checkpoint").write_bytes(bytes(64 << 10))
        assert full.value.errno == errno.ENOSPC
        disk.free()
        (disk.path / "checkpoint").write_bytes(bytes(64 << 10))
    assert not (tmp_path / "disk").exists()


@pytest.mark.skipif(not can_mount(), reason="needs root, to mount")
def test_disks_hold_an_undisturbed_run(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", kept_bytes=30 << 20) as disk:
        (disk.path / "tables").write_bytes(bytes(60 << 20))
        disk.fill()
        with pytest.raises(OSError, match="No space"):
            (disk.path / "checkpoint").write_bytes(bytes(64 << 10))


def test_records_are_copied_without_sockets(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "control").mkdir(parents=True)
    (run / "events.jsonl").write_text("{}")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(run / "control" / "master"))
        copy_files(run, tmp_path / "kept")
    assert [path.name for path in sorted((tmp_path / "kept").rglob("*"))] == [
        "control",
        "events.jsonl",
    ]


_ECHO = """
import socket
with socket.create_server(("10.77.0.2", 5000)) as server:
    print("ready", flush=True)
    connection, _ = server.accept()
    while data := connection.recv(1 << 16):
        connection.sendall(data)
"""
_CALL = """
import socket, sys
connection = socket.create_connection(("10.77.0.2", 5000), timeout=60)
owed = 0  # echoes: one that was late is heard with the next
for line in sys.stdin:
    connection.settimeout(float(line))
    try:
        connection.sendall(b"x")
        owed += 1
        while owed and (echo := connection.recv(owed)):
            owed -= len(echo)
        print(not owed, flush=True)
    except TimeoutError:
        print("late", flush=True)
    except ConnectionError:
        print("closed", flush=True)
"""


@pytest.fixture
def three(tmp_path: Path) -> Iterator[tuple[Host, ...]]:
    with hosts_in(tmp_path, 3) as hosts:
        yield hosts


@contextlib.contextmanager
def _running(host: Host, *words: str) -> Iterator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    with subprocess.Popen([*host.prefix, *words], stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def _line(process: subprocess.Popen[str], prompt: str = "") -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    if prompt:
        print(prompt, file=process.stdin, flush=True)
    return process.stdout.readline().strip()


@needs_hosts
@pytest.mark.netns
def test_cables_are_delayed_cut_and_mended(three: tuple[Host, ...]) -> None:
    first, second, third = three
    with _running(second, sys.executable, "-c", _ECHO) as echo:
        assert _line(echo) == "ready"
        with _running(first, sys.executable, "-c", _CALL) as caller:
            assert _line(caller, "10") == "True"
            third.cable.cut()  # which is nobody's way
            assert _line(caller, "10") == "True"
            started = time.monotonic()
            second.cable.delay(0.05)
            assert _line(caller, "10") == "True"
            assert time.monotonic() - started >= 0.1
            for cut in ({"to_host": False}, {"from_host": False}):
                second.cable.cut(**cut)
                assert _line(caller, "0.3") == "late"
                second.cable.mend()
                assert _line(caller, "20") == "True"  # TCP sends it again


@needs_hosts
@pytest.mark.netns
def test_hosts_share_no_files_or_processes(three: tuple[Host, ...], tmp_path: Path) -> None:
    shared_path = tmp_path / "host-1"
    places = [
        shared_path / "x",
        shared_path / "home" / "x",
        *map(Path, ("/tmp/x", "/dev/shm/x", "/run/x")),
    ]
    write = f"for place in {' '.join(map(str, places))}; do echo 1 > $place; done; echo $HOME $$"
    with _running(three[0], "sh", "-c", write + "; sleep 100") as process:
        home, pid = _line(process).split()
        assert home == str(shared_path / "home")
        assert process.pid < three[0].outer_pid(int(pid))
        looks = [f"test ! -e {place}" for place in [*places, tmp_path / "host-3"]]
        looks += [f"! touch {ROOT}/x 2> /dev/null", "! pgrep -x sleep"]
        script = " && ".join(looks)
        assert subprocess.run([*three[1].prefix, "sh", "-c", script], check=False).returncode == 0
    assert (shared_path / "x").exists()
    assert not Path("/run/x").exists()


@needs_hosts
@pytest.mark.netns
def test_hosts_see_a_temporary_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a clone into /tmp. They can only read it, as anywhere else."""
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    (checkout / "code").write_text("of brim\n")
    monkeypatch.setattr(chaos_hosts, "CODE", (str(checkout), sys.prefix))
    with hosts_in(tmp_path / "hosts", 1) as (host,):
        read = ("cat", str(checkout / "code"))
        assert subprocess.check_output([*host.prefix, *read], text=True) == "of brim\n"
        write = ("touch", str(checkout / "more"))
        assert subprocess.run([*host.prefix, *write], stderr=subprocess.DEVNULL).returncode
    assert [path.name for path in checkout.iterdir()] == ["code"]


@needs_hosts
@pytest.mark.netns
def test_killed_hosts_keep_only_their_disk(three: tuple[Host, ...]) -> None:
    host = three[1]
    with _running(host, sys.executable, "-c", _ECHO) as echo:
        assert _line(echo) == "ready"
        with _running(three[0], sys.executable, "-c", _CALL) as caller:
            assert _line(caller, "10") == "True"
            subprocess.run([*host.prefix, "touch", "/tmp/lost", "kept"], check=True)
            host.kill()
            assert echo.wait(10) == -signal.SIGKILL
            assert _line(caller, "10") in ("closed", "False")  # its kernel lives, and says so
    host.start()
    found = subprocess.run([*host.prefix, "ls", ".", "/tmp"], capture_output=True, text=True)
    assert "kept" in found.stdout
    assert "lost" not in found.stdout


@needs_hosts
@pytest.mark.netns
def test_signals_reach_a_hosts_command(
    three: tuple[Host, ...],
) -> None:
    script = "trap 'exit 7' TERM; echo ready; while :; do sleep 0.01; done"
    with _running(three[0], "sh", "-c", script) as process:
        assert _line(process) == "ready"
        process.terminate()
        assert process.wait(10) == 7
    with _running(three[0], "sh", "-c", "kill -INT $$") as process:
        assert process.wait(10) == -signal.SIGINT
    with _running(three[0], "sh", "-c", "echo $$; sleep 100") as process:
        outer_pid = three[0].outer_pid(int(_line(process)))
        process.kill()
        process.wait(10)
        deadline = time.monotonic() + 10
        while state_of(outer_pid) not in ("", "Z") and time.monotonic() < deadline:
            time.sleep(0.01)
        assert state_of(outer_pid) in ("", "Z")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--kinds", "kil"], "hint: did you mean 'kill'?"),
        (["--kinds", "cut"], "need a fault that can be performed: it needs"),
        (
            ["--faults", "cut host 2 for 1s at step 4"],
            "need a fault that can be performed: it needs",
        ),
        (["--faults", "kill agent 2 at step 4"], "it needs --hosts 2"),
        (["--faults", "explode"], "--faults: got 'explode'"),
        (["--workers", "none"], "--workers: got 'none'"),
        (["--cluster", "--hosts", "2"], "--hosts: got 2"),
        (["--cluster", "--faults", "cancel job 1 at 3s"], "a job that is submitted: 1 to 0"),
        (["--cluster", "--faults", "kill rank 1 at step 3"], "kill scheduler for 1s at 5s"),
        (["--nodes", "2"], "--nodes: got 2, need --cluster"),
        (["--cluster", "--nodes", "5"], "--nodes: got 5, need 1 to 4"),
        (
            ["--cluster", "--nodes", "2", "--faults", "kill node 3 at 1s"],
            "--nodes: got 2, need 3 to 4",
        ),
        (["--cluster", "--kinds", "kil-node"], "did you mean 'kill-node'?"),
    ],
)
def test_impossible_trials_are_refused_first(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = Path(__file__).parents[1] / "e2e" / "files" / "digits.py"
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(cli, ["chaos", str(file), *words])
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert list(tmp_path.iterdir()) == []
