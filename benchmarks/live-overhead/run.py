"""The cost of a scheduler: its cycles, its share of a processor, its answers, and the jobs' speed:
see README.md.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness.asking import percentiles, scheduler_of, share, stepping, timed
from benchmarks.harness.brim_cluster import BrimCluster, Kind, Learnt
from benchmarks.harness.report import Report, interval, table
from benchmarks.harness.speed import Speed, by_brim_train, in_turns, under_scheduler
from benchmarks.harness.waiting import MICRO_BATCHES
from brim.domain.measuring import Measured
from brim.wire.cluster import Submit

BENCHMARK = Path(__file__).parent
TRAINS = BENCHMARK.parent / "harness" / "training_file.py"
WAITS = Kind(name="waits", wait=0.25, maximum=1)
_EPOCHS = 1000  # more than any of them makes
_ENOUGH = 6  # clusters to judge by
_TURN = 0.7  # seconds
_TARGET = 0.99  # of the speed of `brim train`


@dataclass(frozen=True, slots=True)
class Size:
    """How much of it is done."""

    running: int
    submitted: int
    questions: int
    watch: float
    clusters: int
    pairs: int


FULL = Size(running=20, submitted=100, questions=300, watch=30.0, clusters=24, pairs=16)
QUICK = Size(running=4, submitted=12, questions=30, watch=5.0, clusters=1, pairs=6)


@dataclass(frozen=True, slots=True)
class Pairs:
    """One cluster's job and one of `brim train`, in turns."""

    alone: tuple[Speed, ...]
    scheduled: tuple[Speed, ...]

    @property
    def speed(self) -> float:
        """The scheduled job's, in parts of the other's: median of the pairs."""
        pairs_of_turns = zip(self.scheduled, self.alone, strict=True)
        return statistics.median(
            scheduled_turn.steps_per_second / plain_turn.steps_per_second
            for scheduled_turn, plain_turn in pairs_of_turns
        )


@dataclass(slots=True)
class Found:
    submits: list[float] = field(default_factory=list)
    statuses: list[float] = field(default_factory=list)
    commands: list[float] = field(default_factory=list)
    load: dict[str, Any] = field(default_factory=dict)
    speeds: list[Pairs] = field(default_factory=list)


def under_load(size: Size, found: Found, report: Report) -> None:
    """So many jobs, of which some run and the others wait, half of them with a deadline."""
    learnt = Learnt(
        measured={WAITS.name: Measured({1: (20.0, 20.0 * MICRO_BATCHES * WAITS.wait)})}, costs={}
    )
    nodes = {"nodes": [{"name": "n1", "workers": size.running}]}
    with BrimCluster(nodes, learnt=learnt, kinds=[WAITS]) as cluster:
        client = cluster.client
        for number in range(size.submitted):
            deadline = time.time() + 36_000.0 + 3600.0 * number if number % 2 else None
            request = Submit(
                submission=WAITS.submission(epochs=_EPOCHS, deadline=deadline), name="waits"
            )
            found.submits.append(timed(partial(client.submit, request)))
        report.say(f"{size.submitted} jobs are submitted")
        cluster.until(
            f"{size.running} jobs with a step",
            lambda: stepping(client) >= size.running,
            timeout=300,
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


def pairs(number: int, size: Size) -> Pairs:
    """The same job alone and under a scheduler of its own, in turns; the order of their starts
    changes with each cluster.
    """
    words = [str(TRAINS), "--workers", "2", "--global-batch-size", "512"]
    with (
        BrimCluster({"nodes": [{"name": "n1", "workers": 2}]}) as cluster,
        contextlib.ExitStack() as stack,
    ):
        cluster.warm_up(replace(WAITS, wait=0.0))
        starts = [
            partial(by_brim_train, words),
            partial(under_scheduler, cluster, scheduler_of(cluster), words),
        ]
        sides = {}
        for side_index in (1, 0) if number % 2 else (0, 1):
            sides[side_index] = stack.enter_context(starts[side_index]())
            sides[side_index].stop()
        found = in_turns(sides[0], sides[1], pairs=size.pairs, seconds=_TURN)
    return Pairs(
        tuple(plain_turn for plain_turn, _ in found),
        tuple(scheduled_turn for _, scheduled_turn in found),
    )


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
        "speeds": [asdict(speed) for speed in found.speeds],
    }


def tell_speed(report: Report, found: Found) -> None:
    """Both sides, and the clusters' figures of them."""
    ratios = [speed.speed for speed in found.speeds]
    rows = [
        [
            number + 1,
            *(per(side, "steps", "seconds") for side in (speed.alone, speed.scheduled)),
            *(per(side, "workers", "steps", 1000.0) for side in (speed.alone, speed.scheduled)),
            *(per(side, "others", "steps", 1000.0) for side in (speed.alone, speed.scheduled)),
            f"{speed.speed:.3f}",
        ]
        for number, speed in enumerate(found.speeds)
    ]
    head = [
        "cluster",
        "steps / s: train",
        "submit",
        "workers' ms: train",
        "submit",
        "others' ms: train",
        "submit",
    ]
    low, high = interval(ratios)
    report.add(
        f"## The speed of a job\n\nSteps per second, and processor time of a step.\n\n"
        f"{table([*head, 'speed: submit / train'], rows)}\n\n"
        f"**Under the scheduler a job trains at {statistics.median(ratios):.3f} of its speed by "
        "`brim train`** "
        f"(median of {len(ratios)} clusters; with 95 % confidence {low:.3f} to {high:.3f}). "
        f"At least {_TARGET}: {verdict(ratios)}."
    )


def per(side: Sequence[Speed], numerator: str, denominator: str, unit: float = 1.0) -> str:
    """So much of this for each of that, in all turns together."""
    amount, count = (sum(getattr(turn, name) for turn in side) for name in (numerator, denominator))
    return f"{unit * amount / count:.2f}"


def verdict(ratios: list[float]) -> str:
    """Return whether the clusters show the claim, or cannot tell."""
    low, high = interval(ratios)
    if len(ratios) < _ENOUGH:
        return "too few clusters to tell"
    return (
        "yes"
        if low >= _TARGET
        else "**no**"
        if high < _TARGET
        else "undecided: the interval has both"
    )


def plot(found: Found) -> Any:
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter

    figure = Figure(figsize=(10, 3))
    left, right = figure.subplots(1, 2)
    for name, values in (("submit", found.submits), ("status", found.statuses)):
        ordered = sorted(1000.0 * value for value in values)
        left.plot(ordered, [(k + 1) / len(ordered) for k in range(len(ordered))], label=name)
    left.set_xscale("log")
    left.xaxis.set_major_formatter("{x:g}")
    left.xaxis.set_minor_formatter(NullFormatter())
    left.set_xlabel("milliseconds to the answer")
    left.set_ylabel("part of the questions")
    left.legend()
    for number, speed in enumerate(found.speeds):
        ratios = [
            u.steps_per_second / a.steps_per_second
            for u, a in zip(speed.scheduled, speed.alone, strict=True)
        ]
        right.plot([number + 1] * len(ratios), ratios, ".", color="tab:blue", alpha=0.4)
        right.plot(number + 1, speed.speed, "_", color="black", markersize=14)
    right.axhline(1.0, color="grey", linewidth=0.8)
    right.set_xlabel("cluster (bar: the median of its pairs)")
    right.set_ylabel("speed: submit / train")
    figure.tight_layout()
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=f"{__doc__} About 17 minutes on two quiet cores.")
    parser.add_argument("--quick", action="store_true", help="a smoke run: no report is written")
    quick = parser.parse_args().quick
    size = QUICK if quick else FULL
    report = Report(BENCHMARK, "What the scheduler costs", seed=0)
    found = Found()
    under_load(size, found, report)
    for number in range(size.clusters):
        report.say(f"cluster {number + 1} of {size.clusters}")
        found.speeds.append(report.attempt(pairs, number, size))
    data = tell(report, size, found)
    if not quick:
        report.write(data, plot(found))


if __name__ == "__main__":
    main()
