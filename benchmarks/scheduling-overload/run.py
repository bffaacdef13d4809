"""Deadlines met on clusters that are too small, and promises broken by wrong profiles.

python -m benchmarks.scheduling-overload.run DATA sizes|slot|errors|unseen|random [TRACE...]
"""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path

from benchmarks.harness.traces import FURTHER, SHAPES, read
from brim.domain.cluster import Cluster
from brim.domain.promising import PromiseAt
from brim.domain.resizing import OVERHEADS
from brim.domain.scaling import ScalingCurve
from brim.domain.workload import Job
from brim.policies.baselines.ceiling import ceiling_with_capacity
from brim.policies.brim import brim
from brim.simulator.compare import run_policy
from brim.simulator.engine import Settings, simulate
from brim.simulator.generate import ARRIVALS, Recipe, generate
from brim.simulator.profiles import read_profiles
from brim.simulator.run import measure
from brim.simulator.traces import read_trace
from brim.user_code.policies import POLICIES

PARTS = (1, 2, 4)
CURVES = (
    ScalingCurve(points=((1, 1.0), (2, 1.9), (4, 3.4), (8, 5.6), (16, 7.5))),
    ScalingCurve(points=((1, 2.0), (2, 3.0), (4, 3.3))),
    ScalingCurve(points=((1, 1.0), (2, 2.2), (4, 3.0), (8, 2.5))),
)


def sizes(data: Path, traces: list[str]) -> None:
    """Every policy at full, half and quarter size."""
    print(
        "| trace | devices | bound | policy | met | of the bound | promised | broken | mean JCT h "
        "| changes |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for trace in traces:
        jobs, (nodes, devices) = read(data, trace), (SHAPES | FURTHER)[trace]
        for part in PARTS:
            cluster = Cluster.uniform(nodes=nodes // part, devices=devices)
            bound = (
                ceiling_with_capacity(jobs, devices=cluster.devices) if len(jobs) < 5000 else None
            )
            for name in POLICIES:
                if name == "chronus" and (part > 1 or len(jobs) > 300):
                    continue  # a solver call each lease, for all that wait
                m = run_policy(name, jobs, cluster, settings=Settings()).metrics
                met = m.deadline_satisfactory_ratio or 0.0
                limits = (
                    f"{bound:.3f} | {name} | {met:.4f} | {met / bound:.3f}"
                    if bound
                    else f" | {name} | {met:.4f} | "
                )
                tail = f"{(m.average_jct_seconds or 0) / 3600:.2f} | {m.changes / m.jobs:.1f}"
                row = f"{limits} | {m.admitted} | {m.admitted_missed} | {tail}"
                print(f"| {trace} | {cluster.devices} | {row} |", flush=True)


def slot(data: Path, traces: list[str]) -> None:
    """`brim` beside `elasticflow` at full and quarter size, with cycles a minute apart."""
    print("| trace | devices | brim met | elasticflow met | elasticflow alone met | broken |")
    print("|---|---|---|---|---|---|")
    for trace in traces:
        jobs, (nodes, devices) = read(data, trace), (SHAPES | FURTHER)[trace]
        for part in (1, 4):
            cluster = Cluster.uniform(nodes=nodes // part, devices=devices)
            runs = [
                run_policy(name, jobs, cluster, settings=Settings(), slot=60.0)
                for name in ("brim", "elasticflow")
            ]
            own, peer = (
                {
                    outcome.job.id
                    for outcome in found.run.outcomes
                    if outcome.job.deadline is not None
                    and outcome.finished is not None
                    and outcome.finished <= outcome.job.deadline
                }
                for found in runs
            )
            row = (
                f"{len(own)} | {len(peer)} | {len(peer - own)} | {runs[0].metrics.admitted_missed}"
            )
            print(f"| {trace} | {cluster.devices} | {row} |", flush=True)


def errors(data: Path, traces: list[str]) -> None:
    """Profiles that are wrong by up to 10, 20 and 50 %, by when promises are made; at half size,
    three seeds.
    """
    print("| trace | devices | promise | profile error | promised | broken | met |")
    print("|---|---|---|---|---|---|---|")
    for trace in traces:
        jobs, (nodes, devices) = read(data, trace), SHAPES[trace]
        cluster = Cluster.uniform(nodes=nodes // 2, devices=devices)
        for promise in PromiseAt:
            for error in (0.0, 0.1, 0.2, 0.5):
                found = [
                    run_policy(
                        "brim",
                        jobs,
                        cluster,
                        settings=Settings(profile_error=error, seed=seed, promise=promise),
                    ).metrics
                    for seed in range(3 if error else 1)
                ]
                promised = sum(m.admitted for m in found)
                broken = sum(m.admitted_missed for m in found)
                met = sum(m.deadline_satisfactory_ratio or 0.0 for m in found) / len(found)
                share = f"{broken} ({broken / max(promised, 1):.2%})"
                row = f"{promise.value} | {error:.0%} | {promised} | {share} | {met:.4f}"
                print(f"| {trace} | {cluster.devices} | {row} |", flush=True)


def unseen(data: Path, _: list[str]) -> None:
    """Traces on which nothing was chosen: 400 jobs, three kinds of arrivals, seeds 101 to 103."""
    print(
        "| arrivals | seed | devices | bound | brim | of the bound | elasticflow | promised | "
        "broken |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    folder = data / "profiles" / "a100"
    profiles = {
        key: curve for key, curve in read_profiles(folder).items() if key[0] != "resnet50_cifar10"
    }
    for arrivals in ARRIVALS:
        for seed in (101, 102, 103):
            lines = generate(
                Recipe(jobs=400, interarrival=900.0, arrivals=arrivals, best_effort=0.1, seed=seed),
                profiles,
            )
            with tempfile.TemporaryDirectory() as scratch:
                path = Path(scratch) / "trace.csv"
                path.write_text("".join(line + "\n" for line in lines))
                jobs = read_trace(path, profiles)
            for nodes in (8, 4, 2):
                cluster = Cluster.uniform(nodes=nodes, devices=8)
                bound = ceiling_with_capacity(jobs, devices=cluster.devices) or 1.0
                own_ratio, peer_ratio = (
                    run_policy(name, jobs, cluster, settings=Settings()).metrics
                    for name in ("brim", "elasticflow")
                )
                met, other_met = (
                    own_ratio.deadline_satisfactory_ratio or 0.0,
                    peer_ratio.deadline_satisfactory_ratio or 0.0,
                )
                row = f"{bound:.3f} | {met:.4f} | {met / bound:.3f} | {other_met:.4f}"
                tail = f"{own_ratio.admitted} | {own_ratio.admitted_missed}"
                print(f"| {arrivals} | {seed} | {cluster.devices} | {row} | {tail} |", flush=True)


def random_jobs(rng: random.Random) -> tuple[Job, ...]:
    jobs = []
    for number in range(rng.randint(10, 60)):
        curve, work = rng.choice(CURVES), rng.uniform(50, 4000)
        submitted = rng.uniform(0, 2000)
        due = submitted + work / curve.maximum_rate * rng.uniform(0.8, 6.0)
        deadline = due if rng.random() > 0.2 else None
        jobs.append(
            Job(id=f"{number:03}", submitted=submitted, work=work, curve=curve, deadline=deadline)
        )
    return tuple(sorted(jobs, key=lambda job: (job.submitted, job.id)))


def overloaded(runs: int) -> None:
    """Random jobs, right profiles, 16 devices: none of the promises may break."""
    for promise in PromiseAt:
        promised = broken = 0
        for seed in range(runs):
            rng = random.Random(seed)
            settings = Settings(
                slot=rng.choice((0.0, 60.0)),
                overheads=OVERHEADS[rng.choice(("none", "brim", "published", "restart"))],
                placed=rng.random() < 0.5,
                promise=promise,
            )
            m = measure(simulate(random_jobs(rng), Cluster.parse("2x8"), brim, settings=settings))
            promised += m.admitted
            broken += m.admitted_missed
        print(
            f"{runs} random runs, promise: {promise.value}: {promised} promised, {broken} broken",
            flush=True,
        )


def main(data: Path, what: str, traces: list[str]) -> None:
    if what == "random":
        overloaded(int(traces[0]) if traces else 800)
    else:
        {"sizes": sizes, "slot": slot, "errors": errors, "unseen": unseen}[what](
            data, traces or list(SHAPES)
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
