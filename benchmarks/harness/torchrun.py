"""One run of torchrun, seen from outside:
the peer, with the same network, data and batch as brim.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.harness.brim_run import alive, repository
from brim.train.params import ENVIRONMENT_VARIABLE

TRAINING_FILE = Path(__file__).with_name("training_file.py")
_POLL = 0.02


class TorchrunStuck(RuntimeError):
    """It did not get to where it should, within generous time."""


@dataclass(frozen=True, slots=True)
class Line:
    """A step as one of torchrun's workers wrote it down: wall clock, step, and the writer."""

    at: float
    step: int
    rank: int
    world: int
    restart: int
    pid: int


def _children(pid: int) -> set[int]:
    """The processes that this one started, and so on."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError):
            parents[int(entry.parent.name)] = int(entry.read_text().rpartition(")")[2].split()[1])
    found: set[int] = set()
    fresh = {pid}
    while fresh:
        fresh = {child for child, parent in parents.items() if parent in fresh} - found
        found |= fresh
    return found


def _runs_worker(pid: int) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return b"torchrun_worker.py" in command and b"torch.distributed.run" not in command


class Torchrun:
    """`torchrun --standalone` with the worker of `torchrun_worker.py`.

    TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 is set: without it torchrun does not recover reliably at 4
    workers, and a comparison with a peer that is broken would be worth nothing.

    Args:
        workers: processes.
        file: the training file that brim trains on the other side.
        parameters: of that file, as for `--set`.
        batch: global batch size.
        directory: keeps the checkpoint from an earlier run; None makes a fresh one.
        prefix: of the command, such as one that enters a host.
        meet: options by which the hosts of a job meet; by default there is one host.
        clears: removes what an earlier run has left in the directory.
    """

    def __init__(
        self,
        *,
        workers: int,
        file: Path = TRAINING_FILE,
        parameters: Mapping[str, str] | None = None,
        batch: int = 512,
        directory: Path | None = None,
        prefix: Sequence[str] = (),
        meet: Sequence[str] = ("--standalone",),
        clears: bool = True,
    ) -> None:
        self._prefix, self._meet, self._clears = prefix, meet, clears
        self.workers, self._file, self._batch = workers, file, batch
        self._parameters = dict(parameters or {})
        self.directory = directory or Path(tempfile.mkdtemp(prefix="torchrun-benchmark-"))

    def __enter__(self) -> Self:
        for log in self.directory.glob("rank-*.log") if self._clears else ():
            log.unlink()
        worker = Path(__file__).with_name("torchrun_worker.py")
        environment = {
            **os.environ,
            "PYTHONPATH": str(repository()),
            "OMP_NUM_THREADS": "1",
            ENVIRONMENT_VARIABLE: json.dumps(self._parameters),
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        }
        command = [
            *self._prefix,
            *(sys.executable, "-m", "torch.distributed.run", *self._meet, "--max-restarts", "100"),
            *(
                "--nproc-per-node",
                str(self.workers),
                str(worker),
                "--directory",
                str(self.directory),
            ),
            *("--file", str(self._file), "--batch", str(self._batch)),
        ]
        self._log = (self.directory / "torchrun.log").open("ab")
        self.started = time.time()
        self._process = subprocess.Popen(
            command, env=environment, stdout=self._log, stderr=self._log, start_new_session=True
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()
        if error is not None:
            print(f"the logs of the run that failed: {self.directory}", flush=True)

    def end(self) -> None:
        """SIGTERM to the agent, as a person would; then make sure of everyone."""
        pids = _children(self._process.pid)
        if self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=10)
        for pid in [*filter(alive, pids)]:  # each worker has a session of its own
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(timeout=10)
        self._log.close()

    def kill(self) -> None:
        """Kill -9 the agent and all its workers, as where their host is gone."""
        for pid in [*_children(self._process.pid), self._process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    @property
    def pid(self) -> int:
        """The process of the agent."""
        return self._process.pid

    def pids(self) -> list[int]:
        """The workers that are alive, whether they train yet or not."""
        return sorted(
            pid for pid in _children(self._process.pid) if alive(pid) and _runs_worker(pid)
        )

    def lines(self) -> list[Line]:
        """Return the steps that all workers have written so far."""
        found = []
        for log in self.directory.glob("rank-*.log"):
            for text in log.read_text().splitlines():
                words = text.split()
                if len(words) == 6:
                    moment, *rest = words
                    found.append(Line(float(moment), *map(int, rest)))
        return sorted(found, key=lambda line: line.at)

    def until_all_stepped(
        self, *, restart: int = 0, steps: int = 1, timeout: float = 90.0
    ) -> float:
        """The wall clock at which the last rank had done so many steps of its `restart`-th life, or
        a later one.

        Raises:
            TorchrunStuck: they did not within `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            lives: dict[int, dict[int, list[Line]]] = {}
            for line in self.lines():
                if line.restart >= restart:
                    lives.setdefault(line.restart, {}).setdefault(line.rank, []).append(line)
            for ranks in lives.values():
                if len(ranks) == self.workers and all(
                    len(steps_of_rank) >= steps for steps_of_rank in ranks.values()
                ):
                    return max(steps_of_rank[steps - 1].at for steps_of_rank in ranks.values())
            if self._process.poll() is not None:
                raise TorchrunStuck(f"torchrun ended with status {self._process.returncode}")
            time.sleep(_POLL)
        raise TorchrunStuck(
            f"its {self.workers} workers had not done {steps} steps after {timeout:g} s"
        )
