"""A GPT of 30 million parameters on two workers: a step and its memory, beside DDP:
see README.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.harness import jobs
from benchmarks.harness.brim_run import BrimRun, repository
from benchmarks.harness.report import Report, ms, spread, table
from brim.storage.contact import read_contact

BENCHMARK = Path(__file__).parent
TRAINING_FILE = BENCHMARK.parent / "harness" / "training_file.py"
WORKERS, BATCH, OPTIMIZER = 2, 16, "adam"
SIDES = {"exact": 8, "exact, 2 micro-batches": 2, "inexact": 0}  # micro-batches of a step
WARM_UP, _LOOK = 2, 0.2
_HZ = os.sysconf("SC_CLK_TCK")
TARGETS = "targets: a step 1.0 times DDP's, memory 1.2 times"
_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How long it may take; `timeout` is of one side."""

    rounds: int
    steps: int
    timeout: float = 120.0


@dataclass(slots=True)
class Side:
    """One side, over all rounds."""

    steps: list[float] = field(default_factory=list)  # of each round: the median step
    cpu: list[float] = field(
        default_factory=list
    )  # of each round: processor time of a step on one worker
    memory: dict[str, list[float]] = field(
        default_factory=lambda: defaultdict(list)
    )  # bytes, by process kind

    @property
    def total(self) -> list[float]:
        """Bytes of all processes, of each round."""
        return [sum(round_bytes) for round_bytes in zip(*self.memory.values(), strict=True)]

    def add(self, gaps: list[float], cpu: float, memory: dict[str, float]) -> None:
        self.cpu.append(cpu)
        self.steps.append(statistics.median(gaps))
        for kind, size in memory.items():
            self.memory[kind].append(size)


def _kind(pid: int, run: BrimRun) -> str:
    members = {life.pid for life in run.members}
    if pid in members:
        return "workers"
    if any(life.pid == pid for life in run.history.workers.values()):
        return "spare"
    name = Path(f"/proc/{pid}/comm").read_text().strip()
    return {"brim-template": "template", "brim-master": "master", "brim-agent": "agent"}.get(
        name, "others"
    )


class Watch:
    """The largest sum of memory that was seen of some processes, by their kinds."""

    def __init__(self) -> None:
        self.largest: dict[str, float] = {}

    def look(self, pids: list[int], kind: Callable[[int], str]) -> None:
        found: dict[str, float] = defaultdict(float)
        for pid in pids:
            with contextlib.suppress(OSError):  # it has just ended
                found[kind(pid)] += _pss(pid)
        if sum(found.values()) > sum(self.largest.values()):
            self.largest = dict(found)


def _pss(pid: int) -> float:
    """Bytes of a process, where a page that several have is shared out among them."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    found = re.search(r"^Pss: +(\d+) kB$", text, re.MULTILINE)
    return 1024.0 * int(found[1]) if found else 0.0


def _in_sessions(leaders: set[int]) -> list[int]:
    """All processes of these sessions: workers outlive the processes that they were forked by."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(ValueError, ProcessLookupError):
            if os.getsid(int(entry.name)) in leaders:
                found.append(int(entry.name))
    return found


def measure_peer(plan: Plan, side: Side) -> None:
    command = [
        *(sys.executable, "-m", "benchmarks.cost.peers", "--kind", "gpt", "--optimizer", OPTIMIZER),
        *(
            "--batch",
            str(BATCH),
            "--seconds",
            "0",
            "--least",
            str(plan.steps),
            "--workers",
            str(WORKERS),
        ),
    ]
    environment = {**os.environ, "PYTHONPATH": str(repository()), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command,
        env=environment,
        cwd=repository(),
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    watch, deadline = Watch(), time.monotonic() + plan.timeout
    try:
        while process.poll() is None:
            watch.look(
                _in_sessions({process.pid}),
                lambda pid: "launcher" if pid == process.pid else "workers",
            )
            if time.monotonic() > deadline:
                raise RuntimeError(f"{' '.join(command)}: not done in {plan.timeout:g} s")
            time.sleep(_LOOK)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.stdout is not None, "it was asked for"
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)}: exit status {process.returncode}")
    result = json.loads(process.stdout.read())
    side.add(result["seconds"], result["cpu"], watch.largest)


def measure_brim(plan: Plan, name: str, side: Side) -> None:
    parts = SIDES[name]
    fields: dict[str, Any] = {"exact": bool(parts)} | ({"micro_batches": parts} if parts else {})
    parameters = {"kind": "gpt", "optimizer": OPTIMIZER}
    with BrimRun(
        TRAINING_FILE, workers=WORKERS, parameters=parameters, global_batch_size=BATCH, **fields
    ) as run:
        run.until_steady(WORKERS, steps=WARM_UP + 1, spares=1, timeout=plan.timeout)
        contact = read_contact(run.directory)
        assert contact is not None, "it has made steps"
        watch, first, cpu = Watch(), len(run.steps) - 1, _cpu_of(run)

        def is_enough() -> bool:
            watch.look(_in_sessions({contact.pid, contact.keeper}), lambda pid: _kind(pid, run))
            time.sleep(_LOOK)
            return len(run.steps) > first + plan.steps

        run.until("enough steps", is_enough, timeout=plan.timeout)
        gaps = [current.at - previous.at for previous, current in pairwise(run.steps[first:])]
        cpu = (_cpu_of(run) - cpu) / len(gaps)
    side.add(gaps, cpu, watch.largest)


def _cpu_of(run: BrimRun) -> float:
    """Processor time that a member has used up to now, in seconds; the mean."""
    stats = [
        Path(f"/proc/{life.pid}/stat").read_text().rpartition(")")[2].split()
        for life in run.members
    ]
    return (
        statistics.fmean(
            int(user) + int(system) for *_, user, system in (stat[:13] for stat in stats)
        )
        / _HZ
    )


def measure_kernels() -> dict[str, list[float]]:
    """Processor time of a worker's forward and backward passes, in one piece and in those of exact
    training.
    """
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, data = jobs.model("gpt"), jobs.dataset("gpt", BATCH)
    assert isinstance(data, jobs.InMemory)
    found: dict[str, list[float]] = defaultdict(list)
    for number in range(4):
        for pieces in (1, max(SIDES.values()) // WORKERS):
            cpu_before, size = time.process_time(), BATCH // WORKERS // pieces
            for piece in range(pieces):
                model.zero_grad()
                inputs, target = data.take(np.arange(piece * size, (piece + 1) * size))
                jobs.loss("gpt", model(inputs), target).backward()
            if number:
                found[f"kernels in {pieces}"].append(time.process_time() - cpu_before)
    return found


def times(own_seconds: list[float], peers: list[float]) -> str:
    return f"{statistics.median(own_seconds) / statistics.median(peers):.2f}"


def tell(sides: dict[str, Side], kernels: dict[str, list[float]], report: Report) -> None:
    peer = sides["DDP"]
    rows = [
        [
            name,
            ms(side.steps),
            times(side.steps, peer.steps),
            ms(side.cpu),
            times(side.cpu, peer.cpu),
            spread([size / _MIB for size in side.total], digits=0),
            times(side.total, peer.total),
        ]
        for name, side in sides.items()
    ]
    report.add(
        f"## A step of {WORKERS} workers and its memory\n\nMilliseconds and MiB, median "
        "(minimum–maximum) of the "
        f"rounds; beside each how many times DDP's ({TARGETS}). Processor time is that of one "
        "worker for a step: it "
        "says less of waiting, and less of what else the machine does. Memory is what all "
        "processes have together, a "
        "page that several share counted once (PSS), where it was largest.\n\n"
        + table(
            ["side", "step", "times DDP's", "processor", "times DDP's", "memory", "times DDP's"],
            rows,
        )
    )
    whole, pieces = (statistics.median(kernel) for kernel in kernels.values())
    own_ratio = statistics.median(sides["exact"].cpu) / statistics.median(peer.cpu)
    report.add(
        f"The kernels alone, in one process: {1000 * whole:.0f} ms for a worker's samples in one "
        "piece, as DDP and "
        f"inexact training take them, {1000 * pieces:.0f} ms in {max(SIDES.values()) // WORKERS} "
        "pieces: "
        f"{pieces / whole:.2f} times. Apart from that exact training takes "
        f"{own_ratio * whole / pieces:.2f} times "
        "the processor time of DDP."
    )
    kinds = list(dict.fromkeys(kind for side in sides.values() for kind in side.memory))
    rows = [
        [
            kind,
            *(
                spread([size / _MIB for size in side.memory[kind]], digits=0)
                for side in sides.values()
            ),
        ]
        for kind in kinds
    ]
    report.add(
        "## Who has the memory\n\nMiB (PSS). The rows of gradients that workers share count among "
        "the workers'.\n\n" + table(["processes", *sides], rows)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke run: no report is written")
    parser.add_argument("--kernels", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.kernels:
        print(json.dumps(measure_kernels()))
        return
    plan = Plan(rounds=1, steps=3) if arguments.quick else Plan(rounds=3, steps=8)
    report = Report(BENCHMARK, "A GPT of 30 million parameters on two workers", seed=0)
    sides = {name: Side() for name in ("DDP", *SIDES)}
    for number in range(plan.rounds):
        # Another side begins each time, so that none always runs behind the same other.
        names = list(sides)[number % 4 :] + list(sides)[: number % 4]
        for name in names:
            report.say(f"round {number + 1} of {plan.rounds}: {name}")
            if name == "DDP":
                report.attempt(measure_peer, plan, sides[name])
            else:
                report.attempt(measure_brim, plan, name, sides[name])
    command = [sys.executable, "-m", "benchmarks.cost.gpt", "--kernels"]
    output = subprocess.run(
        command, cwd=repository(), capture_output=True, text=True, check=True, timeout=300
    )
    kernels = json.loads(output.stdout)
    tell(sides, kernels, report)
    if not arguments.quick:
        data = {
            name: {"steps": side.steps, "cpu": side.cpu, "memory": dict(side.memory)}
            for name, side in sides.items()
        }
        report.write({"sides": data, "kernels": kernels}, name="gpt")


if __name__ == "__main__":
    main()
