"""What a scheduler costs: its cycles, its share of a processor, its answers, and the jobs' speed: see README.md."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from benchmarks.harness.brim_cluster import BrimCluster, Kind, Learnt
from benchmarks.harness.brim_run import repository
from benchmarks.harness.report import Report, spread, table
from benchmarks.harness.waiting import MICRO_BATCHES
from brim.client import Client
from brim.domain.measuring import Measured
from brim.storage.contact import read_scheduler_contact
from brim.wire.cluster import Submit

HERE = Path(__file__).parent
TRAINS = HERE.parent / "harness" / "training_file.py"
WAITS = Kind(name="waits", wait=0.25, maximum=1)
_EPOCHS = 1000  # more than any of them makes
_SETTLE = 20  # first steps of a run that do not count
_BRIM = str(Path(sys.executable).with_name("brim"))


@dataclass(frozen=True, slots=True)
class Size:
    """How much of it is done."""

    running: int
    submitted: int
    questions: int
    watch: float
    pairs: int
    steps: int


FULL = Size(running=20, submitted=100, questions=300, watch=30.0, pairs=6, steps=600)
QUICK = Size(running=4, submitted=12, questions=30, watch=5.0, pairs=1, steps=120)


@dataclass(slots=True)
class Found:
    submits: list[float] = field(default_factory=list)
    statuses: list[float] = field(default_factory=list)
    commands: list[float] = field(default_factory=list)
    load: dict[str, Any] = field(default_factory=dict)
    alone: list[float] = field(default_factory=list)
    scheduled: list[float] = field(default_factory=list)


def timed(function: Callable[[], Any]) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def under_load(size: Size, found: Found, report: Report) -> None:
    """So many jobs, of which some run and the others wait, half of them with a deadline."""
    known = Learnt(measured={WAITS.name: Measured({1: (20.0, 20.0 * MICRO_BATCHES * WAITS.wait)})}, costs={})
    nodes = {"nodes": [{"name": "n1", "workers": size.running}]}
    with BrimCluster(nodes, known=known, kinds=[WAITS]) as cluster:
        client = cluster.client
        for number in range(size.submitted):
            deadline = time.time() + 36_000.0 + 3600.0 * number if number % 2 else None
            request = Submit(submission=WAITS.submission(epochs=_EPOCHS, deadline=deadline), name="waits")
            found.submits.append(timed(partial(client.submit, request)))
        report.say(f"{size.submitted} jobs are submitted")
        cluster.until(
            f"{size.running} jobs with a step", lambda: stepping(client) >= size.running, timeout=300
        )
        report.say(f"{size.running} of them run")
        time.sleep(5.0)
        busy = share(scheduler_of(cluster), size.watch)
        for _ in range(size.questions):
            found.statuses.append(timed(partial(client.job, "waits-1")))
            time.sleep(0.01)
        found.commands += [timed(partial(cluster.brim, "status", "waits-1")) for _ in range(5)]
        for _ in range(20):  # cycles of the full cluster
            client.suspend(f"waits-{size.submitted}")
            time.sleep(0.15)
            client.resume(f"waits-{size.submitted}")
            time.sleep(0.15)
        view = client.cluster()
        found.load = {"share": busy, "cycles": view.cycles, "looks": view.looks}


def scheduler_of(cluster: BrimCluster) -> psutil.Process:
    contact = read_scheduler_contact(cluster.state)
    if contact is None:
        raise RuntimeError("the scheduler is gone")
    return psutil.Process(contact.pid)


def stepping(client: Client) -> int:
    return sum(view.state == "running" and view.step > 0 for view in client.jobs())


def share(process: psutil.Process, seconds: float) -> float:
    """The part of one processor that a process uses."""

    def used() -> float:
        times = process.cpu_times()
        return float(times.user + times.system)

    before, began = used(), time.monotonic()
    time.sleep(seconds)
    return (used() - before) / (time.monotonic() - began)


def pair(size: Size, found: Found, number: int) -> None:
    """The same job alone and under a scheduler, in turns, or nothing of it; who is first changes."""
    one = Found()
    for side in (under_scheduler, alone) if number % 2 else (alone, under_scheduler):
        side(size, one)
    found.alone += one.alone
    found.scheduled += one.scheduled


def arguments(size: Size) -> list[str]:
    batch = 512
    return [
        *(str(TRAINS), "--workers", "2", "--global-batch-size", str(batch)),
        *("--set", f"samples={size.steps * batch}"),
    ]


def alone(size: Size, found: Found) -> None:
    directory = Path(tempfile.mkdtemp(prefix="brim-benchmark-"))
    command = [
        _BRIM,
        "train",
        *arguments(size),
        "--spares",
        "0",
        "--run-dir",
        str(directory / "run"),
        "--json",
    ]
    environment = {**os.environ, "PYTHONPATH": str(repository())}
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=300)
    found.alone.append(speed(directory / "run"))
    shutil.rmtree(directory, ignore_errors=True)


def under_scheduler(size: Size, found: Found) -> None:
    with BrimCluster({"nodes": [{"name": "n1", "workers": 2}]}) as cluster:
        job = cluster.brim("submit", *arguments(size)).strip()
        cluster.brim("status", job, "--wait")
        found.scheduled.append(speed(cluster.state / "jobs" / job))


def speed(run_dir: Path) -> float:
    """Steps per second behind the first ones."""
    ats = [json.loads(line)["at"] for line in (run_dir / "steps.jsonl").read_text().splitlines()][_SETTLE:]
    return (len(ats) - 1) / (ats[-1] - ats[0])


def percentiles(values: list[float]) -> list[str]:
    ordered = sorted(1000.0 * value for value in values)
    return [f"{statistics.median(ordered):.1f}", f"{ordered[round(0.99 * (len(ordered) - 1))]:.1f}"]


def tell(report: Report, size: Size, found: Found) -> dict[str, Any]:
    cycles, looks = found.load["cycles"], found.load["looks"]
    rows = [
        ["one cycle", cycles.count, f"{cycles.median_ms:.1f}", f"{cycles.p99_ms:.1f}"],
        ["one look at the processes", looks.count, f"{looks.median_ms:.1f}", f"{looks.p99_ms:.1f}"],
        ["`submit` over HTTP", len(found.submits), *percentiles(found.submits)],
        ["`status` over HTTP", len(found.statuses), *percentiles(found.statuses)],
        ["the command `brim status`", len(found.commands), *percentiles(found.commands)],
    ]
    report.add(
        f"## With {size.submitted} jobs, {size.running} of them running\n\nMilliseconds.\n\n"
        + table(["what", "times", "median", "p99"], rows)
        + f"\n\nThe scheduler uses {found.load['share']:.1%} of one processor.".replace("%", " %")
    )
    ratios = [under / by_itself for under, by_itself in zip(found.scheduled, found.alone, strict=True)]
    report.add(
        "## The speed of a job\n\nSteps per second, and the ratio in each pair of runs; target: 0.99.\n\n"
        + table(
            ["pairs", "`brim train`", "`brim submit`", "submit / train"],
            [[len(ratios), spread(found.alone), spread(found.scheduled), spread(ratios, digits=3)]],
        )
    )
    return {
        "submit_seconds": found.submits,
        "status_seconds": found.statuses,
        "command_seconds": found.commands,
        "processor_share": found.load["share"],
        "cycle_ms": {"count": cycles.count, "median": cycles.median_ms, "p99": cycles.p99_ms},
        "look_ms": {"count": looks.count, "median": looks.median_ms, "p99": looks.p99_ms},
        "steps_per_second": {"train": found.alone, "submit": found.scheduled, "ratio": ratios},
    }


def plot(found: Found) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3))
    left, right = figure.subplots(1, 2)
    for name, values in (("submit", found.submits), ("status", found.statuses)):
        ordered = sorted(1000.0 * value for value in values)
        left.plot(ordered, [(k + 1) / len(ordered) for k in range(len(ordered))], label=name)
    left.set_xscale("log")
    left.set_xlabel("milliseconds to the answer")
    left.set_ylabel("part of the questions")
    left.legend()
    right.plot(found.alone, found.scheduled, "o")
    ends = [min(found.alone + found.scheduled), max(found.alone + found.scheduled)]
    right.plot(ends, ends, color="grey", linewidth=0.8)
    right.set_xlabel("steps per second, brim train")
    right.set_ylabel("brim submit")
    figure.tight_layout()
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=f"{__doc__} About 4 minutes on two quiet cores.")
    parser.add_argument("--quick", action="store_true", help="a smoke run: no report is written")
    quick = parser.parse_args().quick
    size = QUICK if quick else FULL
    report = Report(HERE, "What the scheduler costs", seed=0)
    found = Found()
    under_load(size, found, report)
    for number in range(size.pairs):
        report.say(f"pair {number + 1} of {size.pairs}")
        report.attempt(pair, size, found, number)
    data = tell(report, size, found)
    if not quick:
        report.write(data, plot(found))


if __name__ == "__main__":
    main()
