"""What a scheduler costs: its cycles, its share of a processor, its answers, and the jobs' speed: see README.md."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from benchmarks.harness.brim_cluster import BrimCluster, Kind, Learnt
from benchmarks.harness.report import Report, interval, spread, table
from benchmarks.harness.speed import Speed, by_brim_train, stopped, under_scheduler
from benchmarks.harness.waiting import MICRO_BATCHES
from brim.client import Client
from brim.domain.measuring import Measured
from brim.storage.contact import read_scheduler_contact
from brim.wire.cluster import Submit

HERE = Path(__file__).parent
TRAINS = HERE.parent / "harness" / "training_file.py"
WAITS = Kind(name="waits", wait=0.25, maximum=1)
_EPOCHS = 1000  # more than any of them makes
_MEASURED = ("steps_per_second", "workers_ms", "others_ms")
_TARGET = 0.99  # of the speed of `brim train`


@dataclass(frozen=True, slots=True)
class Size:
    """How much of it is done."""

    running: int
    submitted: int
    questions: int
    watch: float
    pairs: int
    steps: int


FULL = Size(running=20, submitted=100, questions=300, watch=30.0, pairs=14, steps=600)
QUICK = Size(running=4, submitted=12, questions=30, watch=5.0, pairs=1, steps=300)


@dataclass(slots=True)
class Found:
    submits: list[float] = field(default_factory=list)
    statuses: list[float] = field(default_factory=list)
    commands: list[float] = field(default_factory=list)
    load: dict[str, Any] = field(default_factory=dict)
    alone: list[Speed] = field(default_factory=list)
    scheduled: list[Speed] = field(default_factory=list)


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


def pairs(size: Size, found: Found, report: Report) -> None:
    """The same job alone and under a scheduler, in turns; who is first changes with each pair."""
    batch = 512
    words = [str(TRAINS), "--workers", "2", "--global-batch-size", str(batch)]
    words += ["--set", f"samples={size.steps * batch}"]
    with BrimCluster({"nodes": [{"name": "n1", "workers": 2}]}) as cluster:
        cluster.warm_up(replace(WAITS, wait=0.0))
        scheduler = scheduler_of(cluster)

        def alone() -> None:
            with stopped(scheduler):
                found.alone.append(by_brim_train(words, size.steps))

        def scheduled() -> None:
            found.scheduled.append(under_scheduler(cluster, scheduler, words, size.steps))

        for number in range(size.pairs):
            report.say(f"pair {number + 1} of {size.pairs}")
            for side in (scheduled, alone) if number % 2 else (alone, scheduled):
                report.attempt(side)


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
    tell_speed(report, found)
    return {
        "submit_seconds": found.submits,
        "status_seconds": found.statuses,
        "command_seconds": found.commands,
        "processor_share": found.load["share"],
        "cycle_ms": {"count": cycles.count, "median": cycles.median_ms, "p99": cycles.p99_ms},
        "look_ms": {"count": looks.count, "median": looks.median_ms, "p99": looks.p99_ms},
        "train": [asdict(each) for each in found.alone],
        "submit": [asdict(each) for each in found.scheduled],
    }


def tell_speed(report: Report, found: Found) -> None:
    """Both sides, and what the pairs say of them."""
    rows = [
        [name, *(spread([getattr(each, field) for each in side], digits=2) for field in _MEASURED)]
        for name, side in (("`brim train`", found.alone), ("`brim submit`", found.scheduled))
    ]
    head = ["run", "steps / s", "processor time of a step, ms: workers", "all others"]
    both = list(zip(found.alone, found.scheduled, strict=True))
    speeds = [under.steps_per_second / alone.steps_per_second for alone, under in both]
    thrift = [alone.processor_ms / under.processor_ms for alone, under in both]
    judged = [
        [
            name,
            len(ratios),
            spread(ratios, digits=3),
            "{:.3f} to {:.3f}".format(*interval(ratios)),
            verdict(ratios),
        ]
        for name, ratios in (
            ("steps / s: submit / train", speeds),
            ("processor time: train / submit", thrift),
        )
    ]
    names = ["in each pair", "pairs", "median (all)", "95 % interval of the median", f"at least {_TARGET}"]
    report.add(f"## The speed of a job\n\n{table(head, rows)}\n\n{table(names, judged)}")


def verdict(ratios: list[float]) -> str:
    """Whether the pairs show what is claimed, or cannot tell."""
    low, high = interval(ratios)
    return "yes" if low >= _TARGET else "**no**" if high < _TARGET else "undecided: the interval has both"


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
    alone, scheduled = ([each.steps_per_second for each in side] for side in (found.alone, found.scheduled))
    right.plot(alone, scheduled, "o")
    ends = [min(alone + scheduled), max(alone + scheduled)]
    right.plot(ends, ends, color="grey", linewidth=0.8)
    right.set_xlabel("steps per second, brim train")
    right.set_ylabel("brim submit")
    figure.tight_layout()
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=f"{__doc__} About 5 minutes on two quiet cores.")
    parser.add_argument("--quick", action="store_true", help="a smoke run: no report is written")
    quick = parser.parse_args().quick
    size = QUICK if quick else FULL
    report = Report(HERE, "What the scheduler costs", seed=0)
    found = Found()
    under_load(size, found, report)
    pairs(size, found, report)
    data = tell(report, size, found)
    if not quick:
        report.write(data, plot(found))


if __name__ == "__main__":
    main()
