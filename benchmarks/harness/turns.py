"""Steps of several programs, measured by turns.

Every side has turns of a moment, one after the other: loops in this process, and programs such as
`brim train`, whose workers wait while it is not their turn. So other load of the machine meets all
of them alike.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.harness.brim_run import repository
from benchmarks.harness.gate import VARIABLE, Gate

_LIMIT = 300.0  # seconds until a run must have started, or ended
_STARTED = 10  # steps after which a run trains as it will for ever
_SETTLE = 0.15  # seconds
_FEWEST = 3  # steps in a turn
_TICK = 1 / os.sysconf("SC_CLK_TCK")
Step = Callable[[], object]


class Turn(NamedTuple):
    """The figures of a side in a turn.

    Args:
        seconds: of its median step.
        cpu: seconds of CPU time for each step, over all processes of the side.
        phases: seconds of the median step's phases, where the side records them.
    """

    seconds: float
    cpu: float
    phases: dict[str, float]


class Program:
    """A program that makes steps while it has its turn: it looks at the gate, and writes
    `run/steps.jsonl`.

    Args:
        folder: for its records and its output.
        command: that starts it.
        checkout: of brim, which it imports.
    """

    def __init__(self, folder: Path, command: Sequence[str], checkout: Path) -> None:
        self._steps = folder / "run" / "steps.jsonl"
        self._gate = Gate(folder / "gate")
        self._mark = f"{VARIABLE}={folder / 'gate'}".encode()
        places = os.pathsep.join([str(checkout / "src"), str(repository())])
        environment = {**os.environ, "PYTHONPATH": places, VARIABLE: str(folder / "gate")}
        self._output = folder / "output"
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)

    def trains(self) -> bool:
        """Whether it has come to its steps, before which it then waits."""
        if self._process.poll() is not None:
            raise RuntimeError(f"a run ended: {self._output.read_text()}")
        if len(self._records()) < _STARTED:
            return False
        self._gate.close()
        return True

    def turn(self, seconds: float) -> Turn:
        """Let it make steps, timed from commit to commit; a turn of long steps lasts for a few of
        them.
        """
        first, spent = len(self._records()), self._cpu()
        self._gate.open()
        time.sleep(_SETTLE + seconds)
        end = time.monotonic() + _LIMIT
        while len(self._records()) < first + _FEWEST + 2 and time.monotonic() < end:
            time.sleep(_SETTLE)
        self._gate.close()
        time.sleep(
            _SETTLE
        )  # commits wait a tenth of a second for company on their way to the records
        spent, counted = self._cpu() - spent, self._records()[first + 1 :]
        gaps = [current["at"] - previous["at"] for previous, current in pairwise(counted)]
        if len(gaps) < _FEWEST:
            raise RuntimeError(f"{len(gaps)} steps in a turn: {self._output.read_text()}")
        phases = _medians([record.get("seconds", {}) for record in counted[1:]])
        return Turn(statistics.median(gaps), spent / (len(counted) + 1), phases)

    def _cpu(self) -> float:
        """Seconds that its processes have computed for: those that have files of its folder open,
        such as forks of a warm process, and those that know of its gate.
        """
        ticks = 0
        for process in Path("/proc").iterdir():
            try:
                if process.name.isdigit() and self._owns(process):
                    fields = (process / "stat").read_text().rpartition(")")[2].split()
                    ticks += int(fields[11]) + int(fields[12])  # in user mode, in the kernel
            except OSError:  # it is gone
                continue
        return ticks * _TICK

    def _owns(self, process: Path) -> bool:
        if self._mark in (process / "environ").read_bytes().split(b"\0"):
            return True
        folder = f"{self._output.parent}/"
        return any(os.readlink(file).startswith(folder) for file in (process / "fd").iterdir())

    def end(self) -> None:
        self._gate.open()
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(_LIMIT)
        finally:
            self._process.kill()

    def _records(self) -> list[dict[str, Any]]:
        """The steps that are done."""
        lines = self._steps.read_bytes().split(b"\n")[:-1] if self._steps.exists() else []
        return [json.loads(line) for line in lines]


class Run(Program):
    """A run of `brim train`.

    Args:
        words: arguments of the command.
    """

    def __init__(self, folder: Path, words: list[str], checkout: Path) -> None:
        command = [
            sys.executable,
            "-m",
            "brim.cli",
            "train",
            *words,
            "--run-dir",
            str(folder / "run"),
        ]
        super().__init__(folder, command, checkout)


def _medians(records: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: statistics.median(record[name] for record in records) for name in records[0]}


def await_all(runs: Collection[Program]) -> None:
    """Wait until all have come to their steps."""
    starting, end = list(runs), time.monotonic() + _LIMIT
    while starting:
        starting = [run for run in starting if not run.trains()]
        if time.monotonic() > end:
            raise RuntimeError(f"{len(starting)} runs came to no step {_STARTED}")
        time.sleep(0.1)


def by_turns(
    loops: Mapping[str, Step], runs: Mapping[str, Program], *, rounds: int, seconds: float
) -> dict[str, list[Turn]]:
    """Return the figures of each side in each of its turns."""
    sides: dict[str, Callable[[], Turn]] = {
        **{name: partial(_turn, step, seconds) for name, step in loops.items()},
        **{name: partial(run.turn, seconds) for name, run in runs.items()},
    }
    turns: dict[str, list[Turn]] = {name: [] for name in sides}
    for number in range(rounds):
        # There and back: a side may be disturbed by what the one before it leaves.
        for name, turn in list(sides.items())[:: -1 if number % 2 else 1]:
            turns[name].append(turn())
    return turns


def _turn(step: Step, seconds: float) -> Turn:
    step()
    durations: list[float] = []
    spent, end = time.process_time(), time.perf_counter() + seconds
    while time.perf_counter() < end or len(durations) < _FEWEST:
        started = time.perf_counter()
        step()
        durations.append(time.perf_counter() - started)
    return Turn(statistics.median(durations), (time.process_time() - spent) / len(durations), {})
