"""CPU time of simulations and of one scheduling cycle, and how it grows.

python -m benchmarks.scheduling-fast.run DATA SCRATCH_FOLDER [cycles|large]    # only these
"""

from __future__ import annotations

import gc
import random
import sys
from dataclasses import replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from statistics import median

from brim.domain.cluster import Cluster
from brim.domain.resizing import OVERHEADS
from brim.domain.schedule import Admitted, Decision, JobState, Policy, Snapshot, Standing
from brim.domain.workload import Job
from brim.host.clock import SystemClock
from brim.policies.brim import Remembered, brim
from brim.policies.cycle import cycle
from brim.simulator.compare import run_policy
from brim.simulator.engine import Settings
from brim.simulator.generate import Recipe, generate
from brim.simulator.profiles import Profiles, read_profiles
from brim.simulator.traces import read_trace

CLOCK = SystemClock()
SIZES = (
    (100, 1000),
    (1000, 1000),
    (1000, 2000),
    (1000, 10_000),
    (10_000, 10_000),
    (10_000, 100_000),
)


def snapshot(profiles: Profiles, *, jobs: int, devices: int) -> Snapshot:
    """`jobs` promised jobs at random sizes and slacks, none of them started."""
    rng = random.Random(1)
    keys = sorted(profiles)
    states = []
    for number in range(jobs):
        curve = profiles[rng.choice(keys)]
        work = curve.best[1] * rng.uniform(600, 60000)
        due = work / curve.maximum_rate * rng.uniform(1.2, 20)
        job = Job(id=f"{number:06}", submitted=0.0, work=work, curve=curve, deadline=due)
        states.append(JobState(job=job, remaining=work, standing=Standing.ADMITTED))
    return Snapshot(
        now=0.0,
        cluster=Cluster.uniform(nodes=devices // 8, devices=8),
        capacity=devices,
        jobs=tuple(states),
        overheads=OVERHEADS["published"],
    )


def cycles(profiles: Profiles) -> None:
    """A first cycle, the next a minute later, the same if it makes all plans anew, and as a live
    cluster has it.
    """
    print(
        "\n| active jobs | devices | first cycle ms | next ms | made anew ms | next, with rights "
        "ms |"
    )
    print("|---|---|---|---|---|---|")
    for jobs, devices in SIZES:
        first = snapshot(profiles, jobs=jobs, devices=devices)
        rows = [times_of(brim, first), times_of(partial(cycle, policy=brim, placed=False), first)]
        cells = " | ".join(f"{seconds * 1e3:.0f}" for seconds in (*rows[0], rows[1][1]))
        print(f"| {jobs} | {devices} | {cells} |", flush=True)


def times_of(decide: Policy, first: Snapshot) -> tuple[float, float, float]:
    """CPU seconds of a first cycle, of the next one, and of that one if it finds no plan of use;
    medians of three.
    """
    found = []
    for _ in range(3):
        took, decision = timed(decide, first)
        second = replace(
            first, now=60.0, jobs=a_minute_later(first, decision), memory=decision.memory
        )
        following, _ = timed(decide, second)
        long_ago = replace(second, memory=aged(decision.memory))
        found.append((took, following, timed(decide, long_ago)[0]))
    first_ones, nexts, anew = zip(*found, strict=True)
    return median(first_ones), median(nexts), median(anew)


def timed(decide: Policy, snap: Snapshot) -> tuple[float, Decision]:
    gc.collect()
    start = CLOCK.cpu()
    decision = decide(snap)
    return CLOCK.cpu() - start, decision


def a_minute_later(first: Snapshot, decision: Decision) -> tuple[JobState, ...]:
    later_states = []
    for state in first.jobs:
        workers = decision.workers.get(state.job.id, 0)
        ready = first.overheads.cost(0, workers)
        done = state.job.curve.rate(workers) * max(60.0 - ready, 0.0) if workers else 0.0
        later_states.append(
            state._replace(workers=workers, remaining=state.remaining - done, ready=ready)
        )
    return tuple(later_states)


def aged(memory: object) -> object:
    """As if these plans had been made long ago."""
    return replace(memory, planned=-1e9) if isinstance(memory, Remembered) else memory


def arrivals(profiles: Profiles) -> None:
    """A thousand jobs that arrive in one cycle."""
    print("\n| arrivals | devices | cycle ms | promised |")
    print("|---|---|---|---|")
    for jobs, devices in ((1000, 10_000), (1000, 1000)):
        snap = snapshot(profiles, jobs=jobs, devices=devices)
        waiting = tuple(state._replace(standing=Standing.WAITING) for state in snap.jobs)
        snap = replace(snap, jobs=waiting, arrived=tuple(state.job.id for state in waiting))
        seconds, decision = timed(partial(cycle, policy=brim, placed=False), snap)
        promised = sum(isinstance(verdict, Admitted) for verdict in decision.verdicts)
        print(f"| {jobs} | {devices} | {seconds * 1e3:.0f} | {promised} |", flush=True)


def traces(data: Path, profiles: Profiles) -> None:
    print("| trace | devices | policy | CPU s (best of 3 up to 300 jobs) |")
    print("|---|---|---|---|")
    for trace, shape in (("195job", "16x8"), ("cluster01", "64x8"), ("cluster09", "128x8")):
        jobs = read_trace(data / "itp" / f"{trace}.csv", profiles)
        for name in ("elasticflow", "brim", "edf", "tiresias"):
            cluster = Cluster.parse(shape)
            times = 3 if len(jobs) < 300 else 1
            seconds = min(
                run_policy(name, jobs, cluster, settings=Settings()).cpu_seconds
                for _ in range(times)
            )
            print(f"| {trace} | {cluster.devices} | {name} | {seconds:.3f} |", flush=True)


def growth(profiles: Profiles, folder: Path) -> None:
    """More jobs at the same load: a longer trace on 1,024 devices. (More devices: see `cycles`.)"""
    print("\n| jobs | devices | policy | CPU s | ms a job |")
    print("|---|---|---|---|---|")
    for count in (1000, 10_000, 100_000):
        path = folder / f"generated-{count}.csv"
        lines = generate(Recipe(jobs=count, interarrival=400.0, seed=1), profiles)
        path.write_text("\n".join(lines) + "\n")
        jobs = read_trace(path, profiles)
        for name in ("edf", "elasticflow", "brim"):
            seconds = run_policy(
                name, jobs, Cluster.parse("128x8"), settings=Settings()
            ).cpu_seconds
            print(
                f"| {count} | 1024 | {name} | {seconds:.1f} | {seconds / count * 1e3:.2f} |",
                flush=True,
            )


def large(profiles: Profiles, folder: Path) -> None:
    """3,000 jobs within 15 minutes on 100,000 devices: most of them are busy at the peak."""
    print(
        "\n| jobs | devices | busy at the peak | most active jobs | policy | cycles | CPU s | ms a "
        "cycle |"
    )
    print("|---|---|---|---|---|---|---|---|")
    path = folder / "generated-large.csv"
    path.write_text(
        "\n".join(generate(Recipe(jobs=3000, interarrival=0.3, seed=1), profiles)) + "\n"
    )
    jobs = read_trace(path, profiles)
    for name in ("edf", "brim"):
        found = run_policy(name, jobs, Cluster.parse("12500x8"), settings=Settings())
        busy, cycles = max(used for _, used, _ in found.run.usage), found.run.cycles
        moments = [(outcome.job.submitted, 1) for outcome in found.run.outcomes]
        moments += [(outcome.finished or 0.0, -1) for outcome in found.run.outcomes]
        active = max(accumulate(step for _, step in sorted(moments)))
        seconds = found.cpu_seconds
        print(
            f"| {len(jobs)} | 100000 | {busy} | {active} | {name} | {cycles} | {seconds:.1f} "
            f"| {seconds / cycles * 1e3:.1f} |",
            flush=True,
        )


def main(data: Path, folder: Path) -> None:
    profiles = read_profiles(data / "profiles" / "a100")
    profiles = {key: curve for key, curve in profiles.items() if key[0] != "resnet50_cifar10"}
    names_given = sys.argv[3:]
    if not names_given:
        traces(data, profiles)
        growth(profiles, folder)
    if "large" not in names_given:
        cycles(profiles)
        arrivals(profiles)
    if "cycles" not in names_given:
        large(profiles, folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
