"""Run Gavel, Sia and Lyra on the traces of their authors, beside the artifacts' figures.

python -m benchmarks.scheduling-published.run GAVEL SIA      (clones of the two artifacts)
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from brim.domain.cluster import Cluster
from brim.domain.resizing import OVERHEADS, Overheads
from brim.domain.workload import Job
from brim.simulator.compare import Result, run_policy
from brim.simulator.engine import Settings

read_gavel_trace = importlib.import_module(
    "benchmarks.scheduling-published.gavel_trace"
).read_gavel_trace
read_sia_workload = importlib.import_module(
    "benchmarks.scheduling-published.sia_workload"
).read_sia_workload

# Mean JCT and makespan in seconds as the artifact gave them on V100s alone, run unchanged, by trace
# and cluster.
GAVEL = {
    ("physical_cluster/max_min_fairness.trace", "3x4"): {
        "gavel": (43066, 121347),
        "gavel-finish-time": (50034, 121348),
        "gavel-makespan": (102407, 118042),
    },
    ("physical_cluster/max_min_fairness.trace", "6x4"): {
        "gavel": (17556, 64815),
        "gavel-finish-time": (18145, 63375),
        "gavel-makespan": (39198, 61512),
    },
    ("physical_cluster/minimize_makespan.trace", "3x4"): {
        "gavel": (97849, 183794),
        "gavel-finish-time": (102063, 182958),
        "gavel-makespan": (179095, 180613),
    },
    ("physical_cluster/minimize_makespan.trace", "6x4"): {
        "gavel": (50681, 91999),
        "gavel-finish-time": (51333, 91802),
        "gavel-makespan": (89539, 90526),
    },
    ("continuous-multiple.trace", "9x4"): {
        "gavel": (62308, 1502060),
        "gavel-finish-time": (63104, 1490182),
        "gavel-makespan": (67940, 1449509),
    },
}
# As above, of Sia with `--disable_bsz_tuning` on 16 nodes of four T4s.
SIA = {
    "philly/workload-1.csv": (9559, 94741),
}
PEERS = ("brim", "lyra", "pollux", "themis", "tiresias")
RESTART = Overheads(name="sia", fixed=50.0)  # what most of its jobs need
DAY = 86400.0


def main(gavel: Path, sia: Path) -> None:
    """Print one table for each paper."""
    print("| trace | V100s | policy | mean JCT h | artifact | difference | makespan h | artifact |")
    print("|---|---|---|---|---|---|---|---|")
    for (trace, shape), measured in GAVEL.items():
        jobs = read_gavel_trace(gavel / "scheduler", trace)
        settings = Settings(overheads=OVERHEADS["none"])
        for name in (*measured, *PEERS):
            result = run_policy(name, jobs, Cluster.parse(shape), settings=settings)
            print(f"| {trace} | {shape} | {_row(result, measured.get(name))} |", flush=True)
    print("\n| workload | policy | mean JCT h | artifact | difference | makespan h | artifact |")
    print("|---|---|---|---|---|---|---|")
    for workload, figures in SIA.items():
        jobs = read_sia_workload(sia / "sia-simulator", workload)
        for name in ("sia", "gavel", *PEERS):
            settings = Settings(overheads=RESTART)
            result = run_policy(name, jobs, Cluster.parse("16x4"), settings=settings)
            print(
                f"| {workload} | {_row(result, figures if name == 'sia' else None)} |", flush=True
            )
    lend(read_sia_workload(sia / "sia-simulator", next(iter(SIA))))


def _row(result: Result, measured: tuple[int, int] | None) -> str:
    jct, makespan = result.metrics.average_jct_seconds or 0.0, result.metrics.makespan_seconds
    cells = [result.policy, f"{jct / 3600:.2f}"]
    if measured is None:
        return " | ".join([*cells, "", "", f"{makespan / 3600:.2f}", ""])
    cells += [f"{measured[0] / 3600:.2f}", f"{jct / measured[0] - 1:+.1%}"]
    return " | ".join([*cells, f"{makespan / 3600:.2f}", f"{measured[1] / 3600:.2f}"])


def lend(jobs: Sequence[Job]) -> None:
    """Print what Lyra gains by loans and by elasticity.

    A third of the devices is an inference cluster's, which lends them all from 0 to 8 o'clock. Each
    job has at least the workers that it asked for, and under elastic policies at most twice as many.
    """
    jobs = [replace(job, minimum=job.requested, maximum=2 * job.requested) for job in jobs]
    nights = [(day * DAY + hour * 3600.0, hour) for day in range(30) for hour in (0, 8)]
    loans = tuple((moment, 96 if hour == 0 else 64) for moment, hour in nights)
    print("\n| jobs | loans | mean wait h | mean JCT h | makespan h | use |")
    print("|---|---|---|---|---|---|")
    for name in ("fifo-gang", "lyra", "brim"):
        for capacity in (((0.0, 64),), loans):
            settings = Settings(overheads=RESTART, capacity=capacity)
            m = run_policy(name, jobs, Cluster.parse("24x4"), settings=settings).metrics
            wait, jct = (
                (m.average_wait_seconds or 0.0) / 3600,
                (m.average_jct_seconds or 0.0) / 3600,
            )
            row = f"{wait:.2f} | {jct:.2f} | {m.makespan_seconds / 3600:.2f} | {m.utilisation:.2f}"
            print(f"| {name} | {'nights' if len(capacity) > 1 else 'none'} | {row} |", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
