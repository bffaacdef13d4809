"""The cost for training of a checkpoint every 50 steps, and the time of a restore, beside torch's
own ways.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.harness.brim_run import repository
from benchmarks.harness.report import Report, ms, ratio, table
from brim_lab.driver import Driver

BENCHMARK = Path(__file__).parent
CRITEO = BENCHMARK.parents[1] / "examples" / "01-first-job" / "criteo.py"
EVERY, NEVER = 50, 10**9
WAYS = ("none", "brim", "torch.save", "async_save")
BEHIND, AROUND = (
    10,
    range(-10, 31),
)  # steps: those that a write may slow down, and those that are drawn
AIM = 0.02


@dataclass(frozen=True, slots=True)
class Job:
    """A run of brim: seconds between commits within an epoch, by step; and the bytes written."""

    gaps: dict[int, float]
    checkpoints: list[dict[str, Any]]

    @property
    def step(self) -> float:
        """Seconds per step, the mean: rare long steps must count."""
        return statistics.fmean(self.gaps.values())

    def around(self, offset: int) -> list[float]:
        """Gaps that end so many steps behind a copy; the copy of step k is taken in the gap that
        ends with k + 1.
        """
        steps = [checkpoint["step"] + offset for checkpoint in self.checkpoints]
        return [self.gaps[step] for step in steps if step in self.gaps]


def train(path: str, *, every: int, workers: int, epochs: int) -> Job:
    with tempfile.TemporaryDirectory(prefix="brim-checkpoints-") as scratch:
        words = ["train", str(CRITEO), "--json", "--run-dir", f"{scratch}/run"]
        words += ["--set", f"path={path}", "--workers", str(workers), "--epochs", str(epochs)]
        words += ["--checkpoint-every", str(every)]
        Driver(repository()).call(*words, timeout=600)
        steps, events = (
            [json.loads(line) for line in Path(scratch, "run", name).read_text().splitlines()]
            for name in ("steps.jsonl", "events.jsonl")
        )
    gaps = {
        current["step"]: current["at"] - previous["at"]
        for previous, current in pairwise(steps[20:])  # behind the first times
        if previous["epoch"] == current["epoch"] and previous["round"] == current["round"]
    }
    checkpoints_made = [
        event for event in events if event["kind"] == "checkpoint" and event["step"] % every == 0
    ]
    return Job(gaps, checkpoints_made)


def alone(path: str, way: str, steps: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.checkpoints.alone", "--path", path, "--way", way]
    result: dict[str, Any] = json.loads(
        _output([*command, "--every", str(EVERY), "--steps", str(steps)])
    )
    return result


def _output(command: list[str]) -> str:
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=600, cwd=repository()
    )
    if done.returncode:
        raise RuntimeError(
            f"{command[2]} ended with status {done.returncode}: {done.stderr[-500:]}"
        )
    return done.stdout


def percent(share: float) -> str:
    return f"{100 * share:.2f} %"


def tell_jobs(report: Report, pairs: list[tuple[Job, Job]], workers: int) -> bool:
    """Measure the cost for training of several workers; return whether it is within the aim."""
    without_checkpoints, with_checkpoints = (
        [plain_job for plain_job, _ in pairs],
        [saving_job for _, saving_job in pairs],
    )
    steps = statistics.median(job.step for job in with_checkpoints)
    pauses = [checkpoint["pause"] for job in with_checkpoints for checkpoint in job.checkpoints]
    steps_behind = [
        sum(job.around(1 + n)[i] - statistics.median(job.gaps.values()) for n in range(BEHIND))
        for job in with_checkpoints
        for i in range(min(len(job.around(1 + n)) for n in range(BEHIND)))
    ]
    share = statistics.median(pauses) / (EVERY * steps)
    rows = [
        ["time per step, none", ms([job.step for job in without_checkpoints])],
        [f"time per step, one every {EVERY} steps", ms([job.step for job in with_checkpoints])],
        ["the pause: rank 0 copies its state", ms(pauses)],
        [f"more than {BEHIND} median steps, behind a copy", ms(steps_behind)],
        [
            "written and official, in the background",
            ms([e["seconds"] for job in with_checkpoints for e in job.checkpoints]),
        ],
    ]
    size = with_checkpoints[0].checkpoints[0]["bytes"] / 1e6
    report.add(f"## Wide & Deep on Criteo, {workers} workers, {size:.1f} MB a checkpoint")
    report.add("Milliseconds, median (minimum–maximum).\n\n" + table(["", "ms"], rows))
    ratios = sorted(saving_job.step / plain_job.step - 1 for plain_job, saving_job in pairs)
    report.add(
        f"**The pause is {percent(share)} of the time of {EVERY} steps** (aim: under "
        f"{percent(AIM)}); it was at most "
        f"{percent(max(pauses) / (EVERY * steps))}. Time per step against none, pair by pair: "
        + ", ".join(f"{100 * overhead:+.1f} %" for overhead in ratios)
        + f"; {sum(len(job.checkpoints) for job in with_checkpoints)} checkpoints."
    )
    return bool(share < AIM)


def tell_ways(report: Report, results: dict[str, list[dict[str, Any]]]) -> None:
    plain_steps = [result["step"] for result in results["none"]]
    rows = []
    for way in WAYS[1:]:
        pauses = [pause for result in results[way] for pause in result["pauses"]]
        share = statistics.median(pauses) / (EVERY * statistics.median(plain_steps))
        cpu = statistics.median(
            result["cpu"] / base["cpu"] - 1
            for result, base in zip(results[way], results["none"], strict=True)
        )
        restores = [seconds for result in results[way] for seconds in result["restores"]]
        peers = [pause for result in results["brim"] for pause in result["pauses"]]
        rows.append(
            [way, ms(pauses), percent(share), ratio(pauses, peers), percent(cpu), ms(restores)]
        )
    report.add("## One process, the same loop and state, three ways to keep it")
    head = [
        *("way", "the loop stands still, ms", f"of {EVERY} steps", "against brim"),
        *("processor time", "time to restore, ms"),
    ]
    report.add(table(head, rows))


def plot(pairs: list[tuple[Job, Job]], results: dict[str, list[dict[str, Any]]]) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.2))
    left, right = figure.subplots(1, 2)
    for place, way in enumerate(WAYS[1:]):
        pauses = [1000 * pause for result in results[way] for pause in result["pauses"]]
        left.plot(
            pauses, [place] * len(pauses), "|", markersize=14, color="C0" if way == "brim" else "C1"
        )
        left.plot([statistics.median(pauses)], [place], "o", color="black", markersize=4)
    left.set_yticks(range(len(WAYS) - 1), WAYS[1:])
    left.set_ylim(len(WAYS) - 1.5, -0.5)
    left.set_xscale("log")
    left.set_xlabel("ms that the loop stands still (dot: median)")
    gaps_around: dict[int, list[float]] = defaultdict(list)
    for _, job in pairs:
        for offset in AROUND:
            gaps_around[offset] += job.around(offset)
    offsets_shown = [offset for offset in AROUND if gaps_around[offset]]
    right.plot(
        offsets_shown,
        [1000 * statistics.median(gaps_around[offset]) for offset in offsets_shown],
        color="C0",
    )
    usual = statistics.median(gap for plain_job, _ in pairs for gap in plain_job.gaps.values())
    right.axhline(1000 * usual, color="grey", linestyle=":", label="no checkpoints")
    right.axvline(1, color="black", linewidth=0.8, label="the copy")
    right.set_ylim(bottom=0)
    right.set_xlabel("steps since a checkpoint")
    right.set_ylabel("ms a step, median")
    right.legend()
    figure.tight_layout()
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--path", required=True, help="Criteo's dac_sample, tab separated, without a header"
    )
    parser.add_argument("--quick", action="store_true", help="a smoke run: no report is written")
    arguments = parser.parse_args()
    times, epochs, steps = (1, 1, 100) if arguments.quick else (3, 3, 500)
    workers = 4
    report = Report(BENCHMARK, "Checkpoints: what they cost training, and a restore", seed=0)
    pairs: list[tuple[Job, Job]] = []
    results: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    for number in range(times):
        report.say(f"round {number + 1} of {times}: brim, {workers} workers, without and with")
        plain_job, saving_job = (
            report.attempt(
                lambda interval=interval: train(
                    arguments.path, every=interval, workers=workers, epochs=epochs
                )
            )
            for interval in (NEVER, EVERY)
        )
        pairs.append((plain_job, saving_job))
        for way in WAYS:
            report.say(f"round {number + 1} of {times}: one process, {way}")
            results[way].append(report.attempt(alone, arguments.path, way, steps))
    is_within = tell_jobs(report, pairs, workers)
    tell_ways(report, results)
    if not arguments.quick:
        data: dict[str, Any] = {
            "jobs": [
                [{"gaps": job.gaps, "checkpoints": job.checkpoints} for job in pair]
                for pair in pairs
            ],
            "alone": results,
        }
        for pair in data["jobs"]:
            for job in pair:
                for checkpoint in job["checkpoints"]:
                    checkpoint.pop("path")
        report.write(data, plot(pairs, results))
    if not is_within:
        sys.exit(f"the pause is above {percent(AIM)} of the time of {EVERY} steps")


if __name__ == "__main__":
    main()
