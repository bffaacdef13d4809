"""Replicas that are started for the load to come, beside those that follow the load: see README.md.

python -m benchmarks.demand.run [NAB]
"""

from __future__ import annotations

import csv
import datetime
import math
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from benchmarks.harness.report import Report, table
from brim.domain.demand import DAY, Past, foresee

FOLDER = Path(__file__).parent
SEED = 0
REPLICAS = 20.0  # that the highest load of a series needs
HOLD = 3  # times as long as a start takes: a replica is ended after so long without need
# Shares of what it can bear at which a replica that follows the load is meant to be, as an autoscaler has them.
TARGETS = (1.2, 1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)
PUBLIC = {
    "requests of a load balancer, 5 minutes": "realAWSCloudwatch/elb_request_count_8c0756.csv",
    "passengers of taxis, 30 minutes": "realKnownCause/nyc_taxi.csv",
    "mentions of a company, 5 minutes": "realTweets/Twitter_volume_GOOG.csv",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A load over time.

    Args:
        width: seconds between two values.
        season: seconds of its day.
        start_seconds: seconds that a replica takes to start.
        loads: the mean of each of these times.
    """

    name: str
    width: float
    season: float
    start_seconds: float
    loads: Sequence[float]

    @property
    def per_replica(self) -> float:
        return max(self.loads) / REPLICAS

    @property
    def steps(self) -> int:
        return max(1, math.ceil(self.start_seconds / self.width))


@dataclass(frozen=True, slots=True)
class Course:
    """A way to choose replicas, over one series.

    Args:
        late: the part of all load that came while there were too few replicas for it.
        cost: replica time, beside what the load needed at each moment.
    """

    late: float
    cost: float


Choose = Callable[[int], float]
"""Foresees a load once so many values of a series are known."""


def course_of(series: Series, choose: Choose) -> Course:
    """Run a service for one series, from its second season on.

    A replica serves once it has started; one that is not needed goes after a while.
    """
    per, steps = series.per_replica, series.steps
    begin = round(series.season / series.width)
    chosen: list[int] = []
    late = total = used = needed = 0.0
    for place in range(begin, len(series.loads)):
        chosen.append(max(1, math.ceil(choose(place) / per)))
        kept_count = max(chosen[-HOLD * steps :])
        # Those that are wanted now serve in a while, unless they serve already.
        serving = min(kept_count, max(chosen[-(HOLD + 1) * steps : -steps], default=kept_count))
        load = series.loads[place]
        late += max(0.0, load - serving * per)
        total += load
        used += max(kept_count, serving)
        needed += max(1, math.ceil(load / per))
    return Course(late / total, used / needed)


def foreseeing(series: Series) -> Choose:
    """Choose by what is foreseen."""
    past = Past(width=series.width, season=series.season)
    known_count = 0

    def choose(place: int) -> float:
        nonlocal known_count
        for number in range(known_count, place):
            past.add(number * series.width, series.loads[number])
        known_count = place
        now = (place - 1) * series.width
        return foresee(past, now, 2 * series.start_seconds) or 0.0

    return choose


def following(series: Series, target: float) -> Choose:
    """Choose by the last load, as an autoscaler does that keeps replicas at a share of their capacity."""
    return lambda place: series.loads[place - 1] / target


def yesterday(series: Series, share: float) -> Choose:
    """Choose by the same time of the day before, with a margin."""
    season, steps = round(series.season / series.width), series.steps

    def choose(place: int) -> float:
        loads = series.loads[place - season : place - season + 2 * steps]
        return max(loads, default=0.0) / share

    return choose


def generated(name: str, *, days: int, busiest: float, seed: int) -> Series:
    """A day's curve in four minutes: two rises, noise of counts, and a burst that no other day has."""
    rng, day = random.Random(seed), 240
    loads = []
    bursts = {number: rng.randrange(day) for number in range(days)}
    for second in range(days * day):
        number, moment = divmod(second, day)
        phase = moment / day
        curve = (
            0.35 - 0.3 * math.cos(2 * math.pi * phase) + 0.2 * math.sin(6 * math.pi * phase) ** 2
        )
        age = moment - bursts[number]
        burst = 0.25 * math.exp(-age / 10) if age >= 0 else 0.0
        mean = busiest * (0.9 + 0.05 * (number % 3)) * (curve + burst)
        loads.append(max(0.0, rng.gauss(mean, math.sqrt(mean))))
    return Series(name=name, width=1.0, season=float(day), start_seconds=5.0, loads=loads)


def public(name: str, path: Path) -> Series:
    """A series of the Numenta Anomaly Benchmark: a time and a value a row."""
    with path.open() as file:
        rows = [
            (datetime.datetime.fromisoformat(t), float(v)) for t, v in list(csv.reader(file))[1:]
        ]
    width = min((b - a).total_seconds() for (a, _), (b, _) in pairwise(rows) if b > a)
    return Series(
        name=name, width=width, season=DAY, start_seconds=width, loads=[v for _, v in rows]
    )


def at_equal_cost(found: Sequence[tuple[float, Course]], cost: float) -> float:
    """Return how much is late where a way costs as much, by a line between two of its courses."""
    ordered = sorted((course.cost, course.late) for _, course in found)
    if cost <= ordered[0][0]:
        return ordered[0][1]
    for (low, late_low), (high, late_high) in pairwise(ordered):
        if low <= cost <= high:
            return late_low + (late_high - late_low) * (cost - low) / max(1e-12, high - low)
    return ordered[-1][1]


def main() -> None:
    """Run all series, and write the report where the public ones are there."""
    report = Report(FOLDER, "Replicas for the load to come", seed=SEED)
    all_series = [
        generated("generated, 1,000 a second at most", days=10, busiest=1000.0, seed=SEED),
        generated("generated, 100 a second at most", days=10, busiest=100.0, seed=SEED + 1),
    ]
    if len(sys.argv) > 1:
        data = Path(sys.argv[1])
        all_series += [public(name, data / path) for name, path in PUBLIC.items()]
    rows, values = [], {}
    for load in all_series:
        started = time.process_time()
        foreseen = course_of(load, foreseeing(load))
        look = (time.process_time() - started) / len(load.loads)
        reacting = [(t, course_of(load, following(load, t))) for t in TARGETS]
        repeating = [(t, course_of(load, yesterday(load, t))) for t in TARGETS]
        late = [at_equal_cost(found, foreseen.cost) for found in (reacting, repeating)]
        rows.append(
            (
                load.name,
                f"{foreseen.cost:.2f}",
                *(f"{100 * part:.3f} %" for part in (foreseen.late, *late)),
                f"{100 * reacting[3][1].late:.3f} % ({reacting[3][1].cost:.2f})",
                f"{1e3 * look:.2f} ms",
            )
        )
        values[load.name] = {
            "foreseen": [foreseen.cost, foreseen.late],
            "following": [[t, c.cost, c.late] for t, c in reacting],
            "yesterday": [[t, c.cost, c.late] for t, c in repeating],
            "seconds": look,
        }
        report.say(f"{load.name}: {foreseen}")
    head = (
        "load", "replica time", "late, foreseen", "late, following", "late, as yesterday",
        "late, following at 80 % (its replica time)", "a look",
    )  # fmt: skip
    report.add(table(head, rows))
    if len(sys.argv) > 1:
        report.write({"series": values})


if __name__ == "__main__":
    main()
