"""The second run begins as a fork of what the first one left, and has nothing of it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.cold]

DEADLINE = 300.0  # seconds
SECRET = "hunter2-of-the-first-run"
FILE = """
import json, os, pathlib, sys
import psutil, torch

telling = {"parents": [(p.pid, p.name()) for p in psutil.Process().parents()],
           "modules": sorted(sys.modules), "environment": dict(os.environ),
           "hash": hash("brim"), "umask": os.umask(0o077), "folder": os.getcwd()}
os.umask(telling["umask"])
pathlib.Path(os.environ["BRIM_RUN_DIR"], "told").write_text(json.dumps(telling))

def model(): return torch.nn.Linear(4, 1)

def dataset(split):
    inputs = torch.randn(SAMPLES, 4, generator=torch.Generator().manual_seed(0))
    return torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))

def loss(output, target): return ((output - target) ** 2).mean()

def optimizer(model): return torch.optim.SGD(model.parameters(), lr=0.01)
"""

# The same, slow until there is a file `hurry` in the directory of its run.
SLOW = FILE.replace(
    "def loss(output, target): return",
    """import time

def loss(output, target):
    if not pathlib.Path(os.environ["BRIM_RUN_DIR"], "hurry").exists():
        time.sleep(0.01)
    return""",
)


@dataclass
class Commands:
    """Commands of one account, with a place for its warm processes.

    Args:
        folder: for all of it.
        variables: of their environment.
    """

    folder: Path
    variables: dict[str, str] = field(default_factory=dict)
    runs: int = 0

    @property
    def sockets(self) -> list[Path]:
        return sorted((self.folder / "runtime" / "brim").glob("*"))

    def warm_processes(self) -> dict[int, psutil.Process]:
        return {
            process.pid: process
            for process in psutil.process_iter(["name"])
            if process.info["name"] == "brim-warm"
            and f"{self.folder}/" in " ".join(words_of(process))
            and "brim.node.warm_process" in words_of(process)
        }

    def warm_process(self) -> psutil.Process:
        """The one that has no parent of its kind: its forks have its command line."""
        found = self.warm_processes()
        (process,) = (one for one in found.values() if one.ppid() not in found)
        return process

    def start(
        self, text: str = FILE, *options: str, samples: int = 256, **variables: str
    ) -> Started:
        self.runs += 1
        file, run_dir = self.folder / "file.py", self.folder / f"run{self.runs}"
        file.write_text(text.replace("SAMPLES", str(samples)))
        command = [sys.executable, "-m", "brim", "train", str(file), "--run-dir", str(run_dir)]
        process = subprocess.Popen(
            [*command, "--global-batch-size", "32", "--json", *options],
            env={**os.environ, **self.variables, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
        )
        return Started(process, run_dir)

    def train(self, text: str = FILE, *options: str, **variables: str) -> Mapping[str, Any]:
        """Train to the end; return what the file tells of the process that it was run in."""
        started = self.start(text, *options, samples=256, **variables)
        output, errors = started.process.communicate(timeout=DEADLINE)
        assert started.process.returncode == 0, errors
        assert json.loads(output)["exit"] == "done"
        return started.told()

    def end(self) -> None:
        for process in self.warm_processes().values():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


@dataclass
class Started:
    process: subprocess.Popen[str]
    directory: Path

    def told(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.directory / "told").read_text())
        return found

    def agent(self) -> int:
        """The agent's process, once a step is made."""
        until((self.directory / "told").exists)
        steps = self.directory / "steps.jsonl"
        until(lambda: steps.exists() and steps.stat().st_size > 0)
        return next(int(pid) for pid, name in self.told()["parents"] if name == "brim-agent")


def words_of(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error):
        return list(process.cmdline())
    return []


def until(condition: Any) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_gone(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    found = Commands(tmp_path, {"XDG_RUNTIME_DIR": str(runtime), "BRIM_KEEP_WARM": "5m"})
    yield found
    found.end()


def test_second_run_is_a_clean_fork(commands: Commands) -> None:
    first = commands.train(
        FILE.replace("import psutil", "import wave, psutil"), PASSWORD=SECRET, BRIM_LOG="info"
    )
    warm = commands.warm_process()
    second = commands.train()
    for run in (first, second):
        assert [warm.pid, "brim-warm"] in run["parents"]
        assert run["folder"] == str(commands.folder)
    assert "wave" in first["modules"]
    assert "wave" not in second["modules"]
    assert first["environment"]["PASSWORD"] == SECRET
    assert not {"PASSWORD", "BRIM_LOG", "BRIM_TOKEN"} & set(second["environment"])
    assert first["hash"] == second["hash"]  # sets have one order in all processes of runs
    assert not {"PASSWORD", "BRIM_TOKEN"} & set(warm.environ())
    assert SECRET.encode() not in memory_of(warm)


def memory_of(process: psutil.Process) -> bytes:
    """All that a process has written to its own memory."""
    found = []
    with (
        open(f"/proc/{process.pid}/maps") as maps,
        open(f"/proc/{process.pid}/mem", "rb") as memory,
    ):
        for line in maps:
            area, rights, *_ = line.split()
            if rights.startswith("rw"):
                start, end = (int(address, 16) for address in area.split("-"))
                with contextlib.suppress(OSError):
                    memory.seek(start)
                    found.append(memory.read(end - start))
    return b"".join(found)


def test_another_world_has_another_warm_process(commands: Commands) -> None:
    commands.train()
    commands.train(OMP_NUM_THREADS="1")
    assert len(commands.sockets) == 2
    old_umask = os.umask(0o027)
    try:
        told = commands.train()
    finally:
        os.umask(old_umask)
    assert told["umask"] == 0o027
    assert len(commands.sockets) == 3


def test_changed_file_ends_the_warm_process(commands: Commands, tmp_path: Path) -> None:
    folder = tmp_path / "path"
    folder.mkdir()
    module = folder / "sitecustomize.py"
    module.write_text("value = 1\n")
    path = {"PYTHONPATH": f"{folder}:{os.environ.get('PYTHONPATH', '')}"}
    commands.train(**path)
    warm = commands.warm_process().pid
    module.write_text("value = 22\n")
    commands.train(**path)
    until(lambda: is_gone(warm))
    assert [warm, "brim-warm"] not in commands.train(**path)["parents"]


def test_idle_warm_process_ends(commands: Commands) -> None:
    commands.train(BRIM_KEEP_WARM="500ms")
    until(lambda: not commands.warm_processes())
    assert commands.sockets == []


def test_nothing_is_left_where_nobody_wants_it(commands: Commands) -> None:
    told = commands.train(BRIM_KEEP_WARM="0")
    assert "brim-warm" not in [name for _, name in told["parents"]]
    assert not commands.warm_processes()
    refused = commands.start(BRIM_KEEP_WARM="soon").process
    assert "BRIM_KEEP_WARM" in refused.communicate(timeout=DEADLINE)[1]
    assert refused.returncode == 2


def test_runs_outlive_the_warm_process(commands: Commands) -> None:
    started = commands.start(SLOW, samples=200_000)
    started.agent()
    commands.warm_process().kill()
    started.process.send_signal(signal.SIGINT)
    output, errors = started.process.communicate(timeout=DEADLINE)
    assert json.loads(output)["exit"] == "suspended", errors


def test_agents_go_with_their_command(commands: Commands) -> None:
    started = commands.start(samples=200_000)
    agent = started.agent()
    started.process.kill()
    started.process.communicate(timeout=DEADLINE)
    until(lambda: is_gone(agent))


def test_killed_agent_is_replaced_by_a_fork(commands: Commands) -> None:
    started = commands.start(SLOW, samples=50_000)
    os.kill(started.agent(), signal.SIGKILL)
    events = started.directory / "events.jsonl"
    until(lambda: "was killed; a new one has replaced it" in events.read_text())
    (started.directory / "hurry").touch()
    output, errors = started.process.communicate(timeout=DEADLINE)
    assert json.loads(output)["exit"] == "done", errors


def test_fork_has_the_port_for_other_hosts(commands: Commands) -> None:
    told = commands.train(FILE, "--listen", "127.0.0.1:0")
    assert "brim-warm" in [name for _, name in told["parents"]]


def test_mistakes_of_users_end_a_fork_as_usual(commands: Commands) -> None:
    started = commands.start(FILE.replace("nn.Linear(4, 1)", "nn.Linear(5, 1)"))
    _, errors = started.process.communicate(timeout=DEADLINE)
    assert started.process.returncode == 1
    assert "shapes cannot be multiplied" in errors
