"""The cost of a step under brim, exact and inexact, beside plain DistributedDataParallel: see
README.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.harness.brim_run import BrimRun, repository
from benchmarks.harness.report import Report, ms, ratio, table
from brim.domain.step_records import STEP_PHASES

BENCHMARK = Path(__file__).parent
TRAINING_FILE = BENCHMARK.parent / "harness" / "training_file.py"
WORKERS = (1, 2, 4, 8)
NETWORKS = (("wide_deep", "sgd"), ("wide_deep", "adam"), ("cnn", "sgd"))
BATCHES = (512, 4096)
SIDES = ("ddp", "exact", "inexact")
WARM_UP, MOST = 3, 400
TARGETS = {"inexact": "≥ 1.0", "exact": "≥ 1.0, alone ≥ 0.8 (512) or 0.95 (4096)"}


@dataclass(slots=True)
class Plan:
    """How long it may take."""

    rounds: int
    seconds: float
    least: int
    workers: tuple[int, ...]
    networks: tuple[tuple[str, str], ...]
    batches: tuple[int, ...]


@dataclass(slots=True)
class Cell:
    """One network, batch, number of workers and side, over all rounds."""

    medians: list[float] = field(default_factory=list)  # of each round: the median step
    means: list[float] = field(default_factory=list)  # of each round: the whole time by the steps
    phases: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def add(self, gaps: list[float]) -> None:
        self.medians.append(statistics.median(gaps))
        self.means.append(statistics.fmean(gaps))


Cells = dict[tuple[str, str, int, int, str], Cell]  # network, optimizer, batch, workers, side


def measure_peers(plan: Plan, kind: str, optimizer: str, batch: int, cells: Cells) -> None:
    command = [
        *(sys.executable, "-m", "benchmarks.cost.peers", "--kind", kind, "--optimizer", optimizer),
        *("--batch", str(batch), "--seconds", str(plan.seconds), "--least", str(plan.least)),
        *("--workers", "0", *map(str, plan.workers)),
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
    try:
        output, _ = process.communicate(timeout=300)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # workers too, where one hangs
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)}: exit status {process.returncode}")
    for line in output.splitlines():
        found = json.loads(line)
        side = "ddp" if found["workers"] else "plain"
        cells[kind, optimizer, batch, found["workers"] or 1, side].add(found["seconds"])


def _has_enough(run: BrimRun, plan: Plan, start: float) -> bool:
    return (
        len(run.steps_of(run.round.round)) > WARM_UP + plan.least
        and run.steps[-1].at - start > plan.seconds
    )


def measure_brim(
    plan: Plan, kind: str, optimizer: str, batch: int, side: str, cells: Cells
) -> None:
    """One run that is resized from the fewest workers to the most; steps after a change are left
    out.
    """
    parameters = {"kind": kind, "optimizer": optimizer}
    with BrimRun(
        TRAINING_FILE,
        workers=plan.workers[0],
        parameters=parameters,
        global_batch_size=batch,
        exact=side == "exact",
    ) as run:
        for workers in plan.workers:
            if workers != plan.workers[0]:
                run.resize(workers)
            run.until_steady(workers, steps=WARM_UP + 1, timeout=90)
            start = run.steps[-1].at
            run.until(
                "enough steps",
                partial(_has_enough, run, plan, start),
                timeout=60,
            )
            steps = run.steps_of(run.round.round)[WARM_UP:][: MOST + 1]
            cell = cells[kind, optimizer, batch, workers, side]
            cell.add([current.at - previous.at for previous, current in pairwise(steps)])
            for phase in STEP_PHASES:
                cell.phases[phase].append(
                    statistics.median(step.seconds.get(phase, 0.0) for step in steps)
                )


def measure(plan: Plan, report: Report) -> Cells:
    cells: Cells = defaultdict(Cell)
    for number in range(plan.rounds):
        for kind, optimizer in plan.networks:
            for batch in plan.batches:
                # Another side begins each time, so that none always runs behind the same other.
                for side in SIDES[number % 3 :] + SIDES[: number % 3]:
                    report.say(
                        f"round {number + 1} of {plan.rounds}: {kind} {optimizer} batch {batch} "
                        f"{side}"
                    )
                    if side == "ddp":
                        report.attempt(measure_peers, plan, kind, optimizer, batch, cells)
                    else:
                        report.attempt(measure_brim, plan, kind, optimizer, batch, side, cells)
    return cells


def tell(plan: Plan, cells: Cells, report: Report) -> None:
    report.add(
        "## Step times\n\n"
        f"Milliseconds, the median step; median (minimum–maximum) of {plan.rounds} rounds. Speed "
        "is relative to "
        "DistributedDataParallel at the same number of workers (above 1: brim is faster), by "
        "median steps, and "
        "in brackets by whole time. Targets: inexact "
        + TARGETS["inexact"]
        + "; exact "
        + TARGETS["exact"]
        + "."
    )
    for kind, optimizer in plan.networks:
        for batch in plan.batches:
            rows = []
            for workers in plan.workers:
                ddp, exact, inexact = (
                    cells[kind, optimizer, batch, workers, side] for side in SIDES
                )
                rows.append(
                    [workers, ms(ddp.medians), ms(exact.medians), ms(inexact.medians)]
                    + [
                        f"{ratio(ddp.medians, side_cell.medians)} ({ratio(ddp.means, side_cell.means)})"
                        for side_cell in (exact, inexact)
                    ]
                )
            plain = cells[kind, optimizer, batch, 1, "plain"]
            head = ["workers", "DDP", "exact", "inexact", "exact's speed", "inexact's speed"]
            text = table(head, rows)
            report.add(
                f"### {kind}, {optimizer}, batch {batch}\n\n{text}\n\n"
                f"A plain loop in one process: {ms(plain.medians)} ms."
            )
    rows = []
    for (kind, optimizer, batch, workers, side), cell in sorted(cells.items()):
        if cell.phases:
            parts = {phase: statistics.median(cell.phases[phase]) for phase in STEP_PHASES}
            rest = statistics.median(cell.medians) - sum(parts.values())
            figures = [f"{1000 * second:.2f}" for second in (*parts.values(), rest)]
            rows.append([kind, optimizer, batch, workers, side, *figures])
    report.add(
        "## Where the time of brim's step goes\n\nMilliseconds, mean over the ranks, medians. "
        "`wait` is the time "
        "at barriers: with more workers than cores it is mostly the others' computing.\n\n"
        + table(["network", "optimizer", "batch", "workers", "side", *STEP_PHASES, "rest"], rows)
    )


def plot(plan: Plan, cells: Cells) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4 * len(plan.networks), 3.2 * len(plan.batches)))
    axes = figure.subplots(len(plan.batches), len(plan.networks), squeeze=False)
    for row, batch in enumerate(plan.batches):
        for column, (kind, optimizer) in enumerate(plan.networks):
            axis = axes[row][column]
            for side in ("exact", "inexact"):
                speeds = [
                    statistics.median(cells[kind, optimizer, batch, workers, "ddp"].medians)
                    / statistics.median(cells[kind, optimizer, batch, workers, side].medians)
                    for workers in plan.workers
                ]
                axis.plot(range(len(speeds)), speeds, marker="o", label=side)
            axis.axhline(1.0, color="grey", linewidth=0.8)
            axis.set_xticks(range(len(plan.workers)), [str(workers) for workers in plan.workers])
            axis.set_ylim(bottom=0)
            axis.set_title(f"{kind}, {optimizer}, batch {batch}", fontsize=9)
            axis.set_xlabel("workers")
            axis.set_ylabel("speed, DDP = 1")
            axis.legend(fontsize=8)
    figure.tight_layout()
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke run: no report is written")
    parser.add_argument("--rounds", type=int, help="rounds over all configurations")
    parser.add_argument(
        "--network",
        action="append",
        help="only these (no report is written), as wide_deep:sgd; may be repeated",
    )
    parser.add_argument("--batch", type=int, action="append", help="only these; may be repeated")
    parser.add_argument("--workers", type=int, nargs="+", help="only these, in rising order")
    arguments = parser.parse_args()
    plan = Plan(rounds=3, seconds=0.6, least=4, workers=WORKERS, networks=NETWORKS, batches=BATCHES)
    if arguments.quick:
        plan = Plan(
            rounds=1,
            seconds=0.5,
            least=5,
            workers=(1, 2),
            networks=NETWORKS[:1] + NETWORKS[2:],
            batches=(512,),
        )
    plan.rounds = arguments.rounds or plan.rounds
    plan.networks = (
        tuple(tuple(network.split(":")) for network in arguments.network)
        if arguments.network
        else plan.networks
    )
    plan.batches = tuple(arguments.batch) if arguments.batch else plan.batches
    plan.workers = tuple(arguments.workers) if arguments.workers else plan.workers
    report = Report(
        BENCHMARK, "The cost of a step under brim beside DistributedDataParallel", seed=0
    )
    cells = measure(plan, report)
    tell(plan, cells, report)
    whole = not any((arguments.quick, arguments.network, arguments.batch, arguments.workers))
    if whole:  # a part is no report
        data = {
            "cells": [
                {
                    **dict(
                        zip(("network", "optimizer", "batch", "workers", "side"), key, strict=True)
                    ),
                    "median_steps": cell.medians,
                    "mean_steps": cell.means,
                    "phases": dict(cell.phases),
                }
                for key, cell in sorted(cells.items())
            ]
        }
        report.write(data, plot(plan, cells))


if __name__ == "__main__":
    main()
