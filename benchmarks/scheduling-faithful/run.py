"""Replay every trace under every `:as-coded` policy; print the artifact's figures beside it.

python -m benchmarks.scheduling-faithful.run DATA      (a folder with itp/, generated/, profiles/)
"""

from __future__ import annotations

import sys
from pathlib import Path

from brim.domain.cluster import Cluster
from brim.simulator.compare import run_policy
from brim.simulator.engine import Settings
from brim.simulator.profiles import read_profiles
from brim.simulator.traces import read_trace

# trace, cluster, slot, jobs met as the artifact measured them: run unchanged, one run a cell; None:
# it did not end
NAMES = ("edf", "gandiva", "tiresias", "themis", "edf-admission", "elasticflow")
CELLS = {
    "itp/195job": ("16x8", 240, (17, 47, 90, 80, 63, 146)),
    "itp/cluster10": ("32x8", 60, (202, 86, 124, 123, 215, 250)),
    "itp/fig8a_t4_195jobs": ("16x4", 60, (23, 18, 56, None, 80, 142)),
    "generated/100jobs_1500lam": ("16x8", 240, (92, 79, 100, 99, 92, 100)),
    "generated/200jobs_900lam_0.2": ("8x8", 240, (26, 35, 70, None, 74, 135)),
    "generated/200jobs_900lam_0.5": ("8x8", 240, (70, 20, 43, 38, 86, 90)),
    "generated/1000job_1500lam": ("8x8", 240, (20, None, None, None, 221, None)),
    "itp/cluster01": ("64x8", 60, (298, 259, 787, None, 598, None)),
}


def main(data: Path) -> None:
    print("| trace | policy | artifact | here | difference | CPU s |")
    print("|---|---|---|---|---|---|")
    for trace, (shape, slot, measured) in CELLS.items():
        kind = "t4" if "t4" in trace else "a100"
        jobs = read_trace(data / f"{trace}.csv", read_profiles(data / "profiles" / kind))
        for name, met in zip(NAMES, measured, strict=True):
            if met is None:
                continue
            found = run_policy(
                f"{name}:as-coded",
                jobs,
                Cluster.parse(shape),
                settings=Settings(),
                slot=float(slot),
            )
            ratio = found.metrics.deadline_satisfactory_ratio or 0.0
            published = met / found.metrics.deadline_jobs
            row = f"{published:.4f} | {ratio:.4f} | {ratio - published:+.4f} | {found.cpu_seconds:.2f}"
            print(f"| {trace} | {name} | {row} |", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
