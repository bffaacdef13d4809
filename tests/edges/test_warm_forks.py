"""The socket of an account's warm process: who is served there, and who is not."""

from __future__ import annotations

import os
import resource
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from brim.backends import warm_agents
from brim.domain.job import JobSpec
from brim.errors import EnvironmentFault
from brim.host.surroundings import surroundings
from brim.wire.private import PrivateFolder
from brim.wire.warm_forks import (
    BecomeAgent,
    become_agent,
    call_warm_process,
    hears_ready,
    listen_for_forks,
    warm_folder,
)
from recorded_run import spec

pytestmark = pytest.mark.cold

NAME = "socket"
PATIENCE = 60.0  # seconds
SERVE = """
import sys
from brim.node import warm_process
warm_process.warm_up = lambda: True
warm_process._LOOK = 0.05
exec(sys.argv.pop(1))
warm_process.main()
"""
CALL = """
import socket, sys
line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
line.connect(sys.argv[1])
print("heard", line.recv(1))
"""
Serve = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def folder() -> Iterator[PrivateFolder]:
    with tempfile.TemporaryDirectory() as path:
        os.chmod(path, 0o700)
        with PrivateFolder(Path(path)) as private:
            yield private


@pytest.fixture
def serve(folder: PrivateFolder) -> Iterator[Serve]:
    """Start a warm process that imports nothing."""
    started: list[subprocess.Popen[bytes]] = []

    def start(changes: str = "") -> subprocess.Popen[bytes]:
        with listen_for_forks(folder, NAME) as listener:
            number = str(listener.fileno())
            options = ["--listener", number, "--idle-time", "600"]
            command = [sys.executable, "-P", "-c", SERVE, changes, *options]
            path = os.path.realpath(folder.path(NAME))
            started.append(
                subprocess.Popen([*command, "--socket", path], pass_fds=[listener.fileno()])
            )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def call(folder: PrivateFolder) -> socket.socket:
    line = call_warm_process(folder, NAME)
    assert line is not None
    return line


def is_served(folder: PrivateFolder) -> bool:
    line = call_warm_process(folder, NAME)
    if line is None:
        return False
    with line:
        return hears_ready(line, patience=PATIENCE)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
def test_another_account_gets_no_fork(folder: PrivateFolder, serve: Serve) -> None:
    """It cannot reach the socket; where its folder were open, it would be sent away."""
    serve()
    assert is_served(folder)
    path = Path(os.path.realpath(folder.path(NAME)))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    command = ["/usr/bin/env", "python3", "-c", CALL, str(path)]

    def stranger() -> str:
        found = subprocess.run(
            command, user=65534, cwd="/", capture_output=True, text=True, timeout=PATIENCE
        )
        return found.stdout + found.stderr

    assert "PermissionError" in stranger()
    path.parent.chmod(0o755)
    assert "PermissionError" in stranger()
    path.chmod(0o666)
    assert stranger() == "heard b''\n"


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o777])
def test_folder_open_to_others_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "brim").mkdir()
    (tmp_path / "brim").chmod(mode)
    with pytest.raises(EnvironmentFault, match="0700"):
        warm_folder()
    monkeypatch.setenv(warm_agents.KEEP_WARM, "5m")
    warm_agents.have_ready(spec(file="train.py"))  # and a run begins as usual
    assert list((tmp_path / "brim").iterdir()) == []


def test_link_in_place_of_the_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "brim").symlink_to("elsewhere")
    with pytest.raises(EnvironmentFault):
        warm_folder()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
def test_runtime_directory_of_another_account_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after `su`, which leaves the variable as it is."""
    theirs, temporary = tmp_path / "theirs", tmp_path / "temporary"
    theirs.mkdir()
    temporary.mkdir()
    os.chown(theirs, 65534, 65534)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(theirs))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    assert warm_folder() == temporary / f"brim-{os.geteuid()}"


@pytest.mark.parametrize("data", [b"x", b"\x81", b"{}" * 1000], ids=["word", "map", "long"])
def test_nonsense_costs_a_fork_and_nothing_else(
    folder: PrivateFolder, serve: Serve, data: bytes
) -> None:
    serve()
    with call(folder) as line:
        assert hears_ready(line, patience=PATIENCE)
        line.send(data)
        assert line.recv(16) == b""
    assert is_served(folder)


def test_request_without_its_descriptors_is_refused(folder: PrivateFolder, serve: Serve) -> None:
    serve()
    request = BecomeAgent(arguments=[], environment={}, directory="/")
    with call(folder) as line:
        assert hears_ready(line, patience=PATIENCE)
        assert become_agent(line, request, [0], patience=PATIENCE) is None
    assert is_served(folder)


def test_silent_callers_have_an_end(folder: PrivateFolder, serve: Serve) -> None:
    serve("warm_process._MOST_FORKS = 2")
    lines = [call(folder) for _ in range(2)]
    assert all(hears_ready(line, patience=PATIENCE) for line in lines)
    assert not is_served(folder)
    for line in lines:
        line.close()
    deadline = time.monotonic() + PATIENCE
    while not is_served(folder):
        assert time.monotonic() < deadline


@pytest.mark.parametrize(
    "change",
    {
        "memory": "warm_process.memory_is_short = lambda: True",
        "another socket is found": "import os; os.unlink(sys.argv[-1])",
    }.items(),
    ids=lambda change: change[0],
)
def test_it_ends_where(folder: PrivateFolder, serve: Serve, change: tuple[str, str]) -> None:
    process = serve(change[1])
    assert process.wait(PATIENCE) == 0
    assert call_warm_process(folder, NAME) is None


def test_forks_keep_a_parent_that_retires(folder: PrivateFolder, serve: Serve) -> None:
    process = serve()
    with call(folder) as line:
        assert hears_ready(line, patience=PATIENCE)
        os.unlink(folder.path(NAME))
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
    assert process.wait(PATIENCE) == 0


def test_process_that_cannot_be_forked_says_so(folder: PrivateFolder, serve: Serve) -> None:
    """Else each run would start another one in vain."""
    process = serve("warm_process.warm_up = lambda: False")
    assert not is_served(folder)
    assert not is_served(folder)
    assert process.poll() is None


def test_slow_warm_process_is_not_waited_for(folder: PrivateFolder) -> None:
    with listen_for_forks(folder, NAME), call(folder) as line:
        assert not hears_ready(line, patience=0.01)


def test_command_has_no_warnings_of_what_it_leaves(tmp_path: Path) -> None:
    """From a folder that was deleted, as before."""
    story = (
        "import os, sys; os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone')\n"
        "from brim.backends import warm_agents\n"
        "from brim.domain.job import JobSpec, WorkerRange\n"
        "spec = JobSpec(file='x.py', workers=WorkerRange(minimum=1, maximum=1))\n"
        "warm_agents.have_ready(spec)\n"
        "started = warm_agents.start_warm(spec, [], environment=os.environ, directory=None, output=1,"
        " listener=None)\n"
        "print(started, len(warm_agents._started))\n"
        "os.kill(warm_agents._started[0].pid, 9)\n"
    )
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    found = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", story],
        env={**os.environ, "XDG_RUNTIME_DIR": str(runtime), "BRIM_KEEP_WARM": "1m"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert (found.stdout, found.stderr) == ("None 1\n", "")


def test_surroundings_are_those_that_count() -> None:
    usual = surroundings({"HOME": "/"})
    assert usual == surroundings({"HOME": "/"})
    assert usual != surroundings({"HOME": "/root"})
    assert usual != _elsewhere(lambda: os.umask(0o123))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    fewer = (soft - 1, hard)
    assert usual != _elsewhere(lambda: resource.setrlimit(resource.RLIMIT_NOFILE, fewer))
    assert usual != _elsewhere(lambda: os.nice(1))
    assert usual != _elsewhere(lambda: signal.signal(signal.SIGUSR2, signal.SIG_IGN))
    assert usual == _elsewhere(lambda: os.chdir("/"))


def _elsewhere(change: Callable[[], object]) -> str:
    """The surroundings of a child that has changed something."""
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        change()
        os.write(writer, surroundings({"HOME": "/"}).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        found = answer.read()
    os.waitpid(pid, 0)  # and no other child of this process
    return found


@pytest.mark.parametrize(
    ("job", "environment", "is_of_use"),
    {
        "a training file": (spec(file="train.py"), {}, True),
        "a script": (spec(file="", command=("python3", "loop.py")), {}, True),
        "another program": (spec(file="", command=("bash", "run.sh")), {}, False),
        "workers that import for themselves": (
            spec(file="train.py", start_method="spawn"),
            {},
            False,
        ),
        "its own variable": (spec(file="train.py"), {"MY_VARIABLE": "1"}, True),
        "a variable that torch reads once": (
            spec(file="train.py"),
            {"OMP_NUM_THREADS": "7"},
            False,
        ),
    }.values(),
)
def test_runs_that_a_warm_process_is_for(
    monkeypatch: pytest.MonkeyPatch, job: JobSpec, environment: dict[str, str], is_of_use: bool
) -> None:
    monkeypatch.setenv(warm_agents.KEEP_WARM, "5m")
    assert bool(warm_agents._time_for(job, os.environ | environment)) == is_of_use
    monkeypatch.setenv(warm_agents.KEEP_WARM, "0")
    assert not warm_agents._time_for(job, os.environ | environment)
