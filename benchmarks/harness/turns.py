"""Steps of several programs, measured by turns.

Every side has turns of a moment, one after the other: loops in this process, and runs of `brim train`, whose workers
wait while it is not their turn. So whatever else the machine does meets all of them alike.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping
from itertools import pairwise
from pathlib import Path

from benchmarks.harness.brim_run import repository
from benchmarks.harness.gate import VARIABLE, Gate

__all__ = ["Run", "Step", "await_all", "by_turns"]

_LIMIT = 120.0  # seconds until a run must have started, or ended
_STARTED = 10  # steps after which a run trains as it will for ever
_SETTLE = 0.15  # seconds
_FEWEST = 3  # steps in a turn
Step = Callable[[], object]


class Run:
    """A run of `brim train` that makes steps while it has its turn.

    Args:
        folder: for its records, and for what it prints.
        words: what the command is told.
        checkout: of brim.
    """

    def __init__(self, folder: Path, words: list[str], checkout: Path) -> None:
        self._steps = folder / "run" / "steps.jsonl"
        self._gate = Gate(folder / "gate")
        command = [sys.executable, "-m", "brim.cli", "train", *words, "--run-dir", str(folder / "run")]
        places = os.pathsep.join([str(checkout / "src"), str(repository())])
        environment = {**os.environ, "PYTHONPATH": places, VARIABLE: str(folder / "gate")}
        self._output = folder / "output"
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)

    def trains(self) -> bool:
        """Whether it has come to its steps, before which it then waits."""
        if self._process.poll() is not None:
            raise RuntimeError(f"a run ended: {self._output.read_text()}")
        if len(self._commits()) < _STARTED:
            return False
        self._gate.close()
        return True

    def turn(self, seconds: float) -> float:
        """The median step of a turn, from commit to commit; a turn of long steps lasts for a few of them."""
        first = len(self._commits())
        self._gate.open()
        time.sleep(_SETTLE + seconds)
        end = time.monotonic() + _LIMIT
        while len(self._commits()) < first + _FEWEST + 2 and time.monotonic() < end:
            time.sleep(_SETTLE)
        self._gate.close()
        time.sleep(_SETTLE)  # commits wait a tenth of a second for company on their way to the records
        gaps = [after - before for before, after in pairwise(self._commits()[first + 1 :])]
        if len(gaps) < _FEWEST:
            raise RuntimeError(f"{len(gaps)} steps in a turn: {self._output.read_text()}")
        return statistics.median(gaps)

    def end(self) -> None:
        self._gate.open()
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(_LIMIT)
        finally:
            self._process.kill()

    def _commits(self) -> list[float]:
        """When each was."""
        lines = self._steps.read_bytes().split(b"\n")[:-1] if self._steps.exists() else []
        return [json.loads(line)["at"] for line in lines]


def await_all(runs: Collection[Run]) -> None:
    """Wait until all have come to their steps."""
    starting, end = list(runs), time.monotonic() + _LIMIT
    while starting:
        starting = [run for run in starting if not run.trains()]
        if time.monotonic() > end:
            raise RuntimeError(f"{len(starting)} runs came to no step {_STARTED}")
        time.sleep(0.1)


def by_turns(
    loops: Mapping[str, Step], runs: Mapping[str, Run], *, rounds: int, seconds: float
) -> dict[str, list[float]]:
    """Return the median step of each turn of each side, in seconds."""
    turns: dict[str, Callable[[], float]] = {
        **{name: lambda step=step: _turn(step, seconds) for name, step in loops.items()},
        **{name: lambda run=run: run.turn(seconds) for name, run in runs.items()},
    }
    steps: dict[str, list[float]] = {name: [] for name in turns}
    for number in range(rounds):
        # There and back: a side may be disturbed by what the one before it leaves.
        for name, turn in list(turns.items())[:: -1 if number % 2 else 1]:
            steps[name].append(turn())
    return steps


def _turn(step: Step, seconds: float) -> float:
    """The median of the steps of a turn."""
    step()
    taken, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(taken) < 3:
        since = time.perf_counter()
        step()
        taken.append(time.perf_counter() - since)
    return statistics.median(taken)
