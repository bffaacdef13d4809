"""A step with one worker at a third of the speed of the others, beside torchrun: see README.md."""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.harness.brim_run import BrimRun
from benchmarks.harness.pacing import VARIABLE, Pace
from benchmarks.harness.report import Report, ms, ratio, seconds, table
from benchmarks.harness.torchrun import Line, Torchrun
from brim.domain.step_records import StepRecord

BENCHMARK = Path(__file__).parent
TRAINING_FILE = BENCHMARK.parent / "harness" / "training_file.py"
WORKERS, BATCH, TIMES, SEED = 4, 512, 3.0, 0
PER_SAMPLE = 0.001  # seconds of sleep: several times what the arithmetic takes
STEPS = 40  # measured in each state
SIDES = ("brim, 8 micro-batches", "brim, 32 micro-batches", "torchrun")
STATES = ("alike", "one slow", "other shares")

Found = dict[str, dict[str, list[float]]]  # side -> state -> medians, one of each run


def gaps(moments: list[float]) -> float:
    return statistics.median(current - previous for previous, current in pairwise(moments))


def ideal(times: float) -> float:
    """The sleep of a step whose samples are shared out in proportion to speed."""
    return BATCH * PER_SAMPLE / (WORKERS - 1 + 1 / times)


def with_brim(pace: Pace, micro_batches: int) -> dict[str, float]:
    pace.say(1.0)
    with BrimRun(
        TRAINING_FILE, workers=WORKERS, global_batch_size=BATCH, micro_batches=micro_batches
    ) as run:
        run.until_steady(WORKERS, steps=STEPS + 10, timeout=120.0)
        alike = [step.at for step in run.steps_of(1)[10:]]
        slowed = time.time()
        pace.say(TIMES)
        run.until("other shares", lambda: run.round.round > 1, timeout=120.0)
        noticed = run.round.at - slowed
        run.until_steady(WORKERS, steps=STEPS + 5, timeout=120.0)
        if run.round.round > 2:
            raise RuntimeError(f"shares moved more than once: {list(run.rounds.values())}")
        slow: list[StepRecord] = [step for step in run.steps_of(1) if step.at > slowed]
        return {
            "alike": gaps(alike),
            "one slow": gaps([step.at for step in slow][2:]),
            "other shares": gaps([step.at for step in run.steps_of(2)][5:]),
            "noticed": noticed,
            "steps": float(len(slow)),
            "pause": run.re_formed[2].seconds,
        }


def with_torchrun(pace: Pace) -> dict[str, float]:
    pace.say(1.0)
    with Torchrun(workers=WORKERS, batch=BATCH) as run:
        run.until_all_stepped(steps=STEPS + 10)
        slowed = time.time()
        pace.say(TIMES)
        run.until_all_stepped(steps=2 * STEPS + 20)
        first: list[Line] = [line for line in run.lines() if line.rank == 0]
    shutil.rmtree(run.directory, ignore_errors=True)
    return {
        "alike": gaps([line.at for line in first if line.at < slowed][10:]),
        "one slow": gaps([line.at for line in first if line.at > slowed][2:]),
    }


def measure(rounds: int, report: Report) -> Found:
    found: Found = {side: defaultdict(list) for side in SIDES}
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "pace.json"
        os.environ[VARIABLE] = str(file)
        pace = Pace(file, per_sample=PER_SAMPLE, slow=(f"w{WORKERS}", str(WORKERS - 1)))
        for round in range(rounds):
            for side, attempt in (
                (SIDES[0], lambda: report.attempt(with_brim, pace, 8)),
                (SIDES[1], lambda: report.attempt(with_brim, pace, 32)),
                (SIDES[2], lambda: report.attempt(with_torchrun, pace)),
            ):
                for name, value in attempt().items():
                    found[side][name].append(value)
                report.say(f"round {round + 1} of {rounds}: {side}")
    return found


def tell(found: Found, report: Report) -> None:
    rows = []
    for side in SIDES:
        results = found[side]
        settled = results["other shares"] or results["one slow"]
        rows.append(
            [side, *(ms(results[state]) for state in STATES), ratio(results["one slow"], settled)]
        )
    rows.append(
        ["ideal: the sleep alone", f"{1000 * ideal(1.0):.1f}", "", f"{1000 * ideal(TIMES):.1f}", ""]
    )
    report.add(
        f"Milliseconds a step, medians of the runs (minimum to maximum). {WORKERS} workers, one of "
        "which becomes "
        f"{TIMES:g} times as slow.\n\n"
        + table(["side", "all alike", "one slow", "after shares moved", "times faster"], rows)
    )
    rows = [
        [side, seconds(found[side]["noticed"]), f"{statistics.median(found[side]['steps']):.0f}",
         ms(found[side]["pause"])]
        for side in SIDES[:2]
    ]  # fmt: skip
    head = ["side", "seconds until shares moved", "steps until then", "pause of the round, ms"]
    report.add("## What it takes to notice\n\n" + table(head, rows))


def plot(found: Found) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.2))
    axis = figure.subplots()
    for index, state in enumerate(STATES):
        heights = [
            1000 * statistics.median(found[side][state] or found[side]["one slow"])
            for side in SIDES
        ]
        axis.bar(
            [place + 0.27 * (index - 1) for place in range(len(SIDES))],
            heights,
            width=0.25,
            label=state,
        )
    axis.axhline(
        1000 * ideal(TIMES), color="grey", linewidth=0.8, linestyle="--", label="ideal, one slow"
    )
    axis.set_xticks(range(len(SIDES)), SIDES, fontsize=8)
    axis.set_ylabel("ms a step")
    axis.legend(fontsize=8)
    figure.tight_layout()
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke run: no report is written")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each side, in turns")
    arguments = parser.parse_args()
    report = Report(BENCHMARK, "A step with one slow worker", seed=SEED)
    found = measure(1 if arguments.quick else arguments.rounds, report)
    tell(found, report)
    if not arguments.quick:
        report.write({"found": found}, plot(found))


if __name__ == "__main__":
    main()
