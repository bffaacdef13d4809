"""What a worker does for a command that knows nothing of brim: checkpoints, reports, prints."""

from __future__ import annotations

import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import brim
from brim.domain.job import JobSpec, WorkerRange
from brim.domain.reported import Report
from brim.errors import SpecError
from brim.launch.command import CommandProcess
from brim.launch.progress import PrintedProgress, ProgressServer
from brim.storage.saved_files import SavedFiles
from brim.wire import reporting


def until_told(server: ProgressServer, start: int) -> list[Report]:
    end = time.monotonic() + 30.0
    while time.monotonic() < end:
        if found := server.fresh(start):
            return found
        time.sleep(0.01)
    raise AssertionError("no report came")


@pytest.fixture(scope="module")
def server() -> Iterator[ProgressServer]:
    server = ProgressServer()
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def command(server: ProgressServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[ProgressServer]:
    """This process, as a command of the third start."""
    for name, value in server.variables(3).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(reporting, "_sent_at", -10.0)
    yield server
    server.fresh(3)


def post(body: bytes, *, token: str | None = None, start: str = "3") -> int:
    """The status of the answer to a report."""
    context = ssl.create_default_context(cafile=os.environ["KUBEFLOW_TRAINER_SERVER_CA_CERT"])
    token = token or Path(os.environ["KUBEFLOW_TRAINER_SERVER_TOKEN"]).read_text()
    url = os.environ["KUBEFLOW_TRAINER_SERVER_URL"].removesuffix("3") + start
    request = urllib.request.Request(url, body, {"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=60, context=context) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def test_reports_of_transformers_are_read(command: ProgressServer) -> None:
    metrics = [
        {"name": "current_step", "value": "120"},
        {"name": "total_steps", "value": "960"},
        {"name": "loss", "value": "0.5"},
        {"name": "odd", "value": "nan"},
    ]
    status = {"progressPercentage": 100, "estimatedRemainingSeconds": 0, "metrics": metrics}
    assert post(json.dumps({"trainerStatus": status}).encode()) == 200
    assert until_told(command, 3) == [Report(step=120, total=960, values={"loss": 0.5})]


def test_two_lines_of_curl_report(command: ProgressServer) -> None:
    line = (
        'curl --silent --show-error --cacert "$BRIM_PROGRESS_CA" -H @"$BRIM_PROGRESS_HEADER" '
        '-d step=3 -d total=9 "$BRIM_PROGRESS_URL"'
    )
    subprocess.run(["sh", "-c", line], check=True, timeout=30, capture_output=True)
    assert until_told(command, 3) == [Report(step=3, total=9)]


def test_brim_progress_reports(command: ProgressServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporting, "_TO_ANSWER", 60.0)
    brim.progress(5, 10, loss=0.25)
    assert until_told(command, 3) == [Report(step=5, total=10, values={"loss": 0.25})]
    monkeypatch.setattr(reporting, "_INTERVAL", 3600.0)
    brim.progress(6, 10)  # too soon
    brim.progress(10, 10)  # the last step is told at once
    assert until_told(command, 3) == [Report(step=10, total=10)]


def test_progress_alone_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BRIM_PROGRESS_URL", raising=False)
    brim.progress(5, 10)
    with pytest.raises(SpecError, match="got 101 of 100, need at most the total"):
        brim.progress(101, 100)


WRONG = {
    "101 of 100": (b"step=101&total=100", 400),
    "a step below 0": (b"step=-1", 400),
    "half a step": (b"step=1.5", 400),
    "a step without end": (b"step=inf", 400),
    "no fields": (b"hello", 400),
    "no object": (b"[1]", 400),
    "half of an object": (b'{"step": 3', 400),
    "too many values": ("&".join(f"v{n}=1" for n in range(40)).encode(), 400),
    "too long": (b"step=1&name=" + b"x" * (17 << 10), 413),
}


@pytest.mark.parametrize(("body", "status"), WRONG.values(), ids=WRONG)
def test_wrong_reports_are_refused(command: ProgressServer, body: bytes, status: int) -> None:
    assert post(body) == status
    assert post(b"step=1") == 200
    assert until_told(command, 3) == [Report(step=1)]


def test_strangers_and_late_reports_do_not_count(command: ProgressServer) -> None:
    assert post(b"step=9", token="wrong") == 401
    assert post(b"step=9", start="2") == 200  # of a start that is over
    assert post(b"step=9", start="x") == 404
    assert post(b"step=1") == 200
    assert until_told(command, 3) == [Report(step=1)]


def test_killed_server_takes_reports_again(command: ProgressServer) -> None:
    assert post(b"step=7") == 200
    assert until_told(command, 3)
    os.kill(command.pid, signal.SIGKILL)
    os.waitid(os.P_PID, command.pid, os.WEXITED | os.WNOWAIT)
    assert command.fresh(3) == []
    assert post(b"step=8") == 200  # at the same address, by the same token
    assert until_told(command, 3) == [Report(step=8)]


def test_addresses_files_are_private_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "a.example")
    server = ProgressServer()
    variables = server.variables(1)
    files = [Path(variables[name]) for name in ("BRIM_PROGRESS_CA", "BRIM_PROGRESS_HEADER")]
    assert {file.stat().st_mode & 0o077 for file in files} == {0}
    assert variables["NO_PROXY"] == "a.example,127.0.0.1"
    server.close()
    assert not any(file.exists() for file in files)


# What it saves ------------------------------------------------------------------------------------


def checkpoint(folder: Path, number: int, *names: str) -> None:
    place = folder / f"checkpoint-{number}"
    place.mkdir(parents=True)
    for name in names:
        (place / name).touch()


def test_unfinished_checkpoints_are_put_aside(tmp_path: Path) -> None:
    checkpoint(tmp_path, 10, "trainer_state.json")
    checkpoint(tmp_path, 20, "model.safetensors")
    checkpoint(tmp_path, 30, "trainer_state.json", "checkpoint-is-incomplete.txt")
    (tmp_path / "model-20").mkdir()
    saved = SavedFiles(tmp_path)
    assert saved.put_aside() == ["checkpoint-20", "checkpoint-30"]
    assert sorted(path.name for path in saved.aside.iterdir()) == [
        "checkpoint-20-0",
        "checkpoint-30-0",
    ]
    assert {path.name for path in tmp_path.iterdir()} == {
        ".incomplete",
        "checkpoint-10",
        "model-20",
    }
    checkpoint(tmp_path, 20)
    assert saved.put_aside() == ["checkpoint-20"]  # a second time, beside the first


def test_checkpoints_of_others_stay(tmp_path: Path) -> None:
    checkpoint(tmp_path, 10, "model.safetensors", "optimizer.bin", "random_states_0.pkl")
    checkpoint(tmp_path, 20, "model.pt")
    saved = SavedFiles(tmp_path)
    assert saved.put_aside() == []
    checkpoint(tmp_path, 30, "training_args.bin")
    checkpoint(tmp_path, 40)
    assert saved.put_aside() == ["checkpoint-30", "checkpoint-40"]


def test_removed_asides_leave_room_for_more(tmp_path: Path) -> None:
    saved = SavedFiles(tmp_path)
    for number in (10, 20):
        checkpoint(tmp_path, number, "training_args.bin")
    saved.put_aside()
    shutil.rmtree(min(saved.aside.iterdir()))  # somebody clears up
    checkpoint(tmp_path, 20, "training_args.bin")
    assert saved.put_aside() == ["checkpoint-20"]


def test_new_checkpoints_are_noticed_once(tmp_path: Path) -> None:
    saved = SavedFiles(tmp_path / "saved")
    assert not saved.has_grown()
    assert saved.put_aside() == []
    checkpoint(saved.directory, 10)
    assert not saved.has_grown()  # it is being written
    (saved.directory / "checkpoint-10" / "trainer_state.json").touch()
    assert saved.has_grown()
    assert not saved.has_grown()
    os.utime(saved.directory / "checkpoint-10", (1e9, 1e9))
    assert not saved.has_grown()
    deep = saved.directory / "version_0" / "checkpoints"
    deep.mkdir(parents=True)
    assert saved.has_grown()
    (deep / "last.ckpt").touch()
    assert saved.has_grown()


# What it prints -----------------------------------------------------------------------------------

PATTERN = r"step (?P<step>\d+)/(?P<total>\d+)(?: loss (?P<loss>\S+))?"
PRINTED: dict[str, tuple[str, list[Report]]] = {
    "the last of several": ("step 1/9\nstep 2/9\n", [Report(step=2, total=9)]),
    "with a value": ("step 2/9 loss 0.5\n", [Report(step=2, total=9, values={"loss": 0.5})]),
    "a bar that moves": ("\rstep 3/9 ###\rstep 4/9 ####\r", [Report(step=4, total=9)]),
    "half a line": ("step 5/9 lo", []),
    "another line that fits": ("step 5/9\nstep 7/3\n", [Report(step=5, total=9)]),
    "nothing": ("hello\n", []),
}


@pytest.mark.parametrize(("text", "found"), PRINTED.values(), ids=PRINTED)
def test_progress_is_read_in_prints(tmp_path: Path, text: str, found: list[Report]) -> None:
    log = tmp_path / "w1.log"
    log.write_text("step 1/9 of an earlier start\n")
    printed = PrintedProgress(log, PATTERN)
    with log.open("a") as file:
        file.write(text)
    assert printed.fresh() == found
    assert printed.fresh() == []


def test_shortened_log_is_read_on(tmp_path: Path) -> None:
    log = tmp_path / "w1.log"
    log.write_text("x" * 1000)
    printed = PrintedProgress(log, PATTERN)
    log.write_text("")
    assert printed.fresh() == []
    log.write_text("step 3/9\n")
    assert printed.fresh() == [Report(step=3, total=9)]


# What is asked of it ------------------------------------------------------------------------------


def spec(**options: Any) -> JobSpec:
    usual: dict[str, Any] = {
        "command": ("python", "x.py"),
        "workers": WorkerRange(minimum=1, maximum=4),
    }
    return JobSpec(restart=True, **(usual | options))


REFUSED: dict[str, Callable[[], JobSpec]] = {
    "--restart: got it beside a training file": lambda: spec(file="a.py", command=()),
    "--ps: got it for a command at the restart level": lambda: spec(servers=1),
    "--checkpoints URL: got it for a command at the restart level": lambda: spec(
        checkpoints="s3://b/c"
    ),
    "--progress: got 'step' (without a group": lambda: spec(progress="step"),
    "--progress: got '(' (missing": lambda: spec(progress="("),
    "--workers: got '3:4'": lambda: spec(workers=WorkerRange(minimum=3, maximum=4)),
}


@pytest.mark.parametrize(("message", "make"), REFUSED.items(), ids=REFUSED)
def test_what_no_command_can_do_is_refused(message: str, make: Callable[[], JobSpec]) -> None:
    with pytest.raises(SpecError) as error:
        make()
    assert str(error.value).startswith(message)


def test_marks_show_whether_a_disk_is_shared(tmp_path: Path) -> None:
    saved, other_host = SavedFiles(tmp_path / "a"), SavedFiles(tmp_path / "b")
    saved.mark(1)
    saved.mark(2)
    assert [saved.is_marked(round) for round in (1, 2)] == [False, True]
    assert not other_host.is_marked(2)
    assert not saved.has_grown()


def test_all_that_a_command_started_ends(tmp_path: Path) -> None:
    # A shell ends at once, what it has started saves first; and torchrun's processes leave its group.
    script = """
import os, signal, sys, time
from brim.host.process import adopt_orphans, children_of
from brim.launch.command import CommandProcess

signal.signal(signal.SIGCHLD, lambda *_: None)
adopt_orphans()
inner = "trap 'sleep 0.3; touch saved; exit' TERM; touch ready; while :; do sleep 0.05; done"
outer = f'setsid sh -c "touch apart; exec sleep 60" & sh -c "{inner}"; true'
command = CommandProcess(["sh", "-c", outer], os.environ)
while not (os.path.exists("ready") and os.path.exists("apart")):
    time.sleep(0.01)
command.ask_to_end(20.0)
while not command.is_over:
    command.press()
    time.sleep(0.01)
assert os.path.exists("saved")
assert children_of(os.getpid())
command.clear_away()
assert not children_of(os.getpid())
"""
    subprocess.run([sys.executable, "-c", script], check=True, cwd=tmp_path, timeout=120)


def test_commands_can_be_interrupted() -> None:
    """Workers ignore SIGINT; what they start would inherit that."""
    usual = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        script = "import signal, sys; sys.exit(signal.getsignal(signal.SIGINT) == signal.SIG_IGN)"
        process = CommandProcess([sys.executable, "-c", script], os.environ)
        end = time.monotonic() + 30.0
        while process.status is None and time.monotonic() < end:
            time.sleep(0.01)
        assert process.status == 0
    finally:
        signal.signal(signal.SIGINT, usual)
