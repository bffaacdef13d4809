"""Every policy on every trace with one ruler, and the bound that no policy can exceed.

python -m benchmarks.scheduling-better.run DATA [TRACE...]
"""

from __future__ import annotations

import sys
from pathlib import Path

from brim.domain.cluster import Cluster
from brim.simulator.compare import ceilings, run_policy
from brim.simulator.engine import Settings
from brim.simulator.profiles import read_profiles
from brim.simulator.traces import read_trace
from brim.user_code.policies import POLICIES

SHAPES = {
    "itp/195job": "16x8",
    "itp/cluster01": "64x8",
    "itp/cluster06": "64x8",
    "itp/cluster09": "128x8",
    "itp/cluster10": "32x8",
    "itp/fig8a_t4_195jobs": "16x4",
    "generated/100jobs_1500lam": "16x8",
    "generated/1000job_1500lam": "8x8",
    "generated/200jobs_900lam_0.2": "8x8",
    "generated/200jobs_900lam_0.5": "8x8",
}


def main(data: Path, traces: list[str]) -> None:
    for trace in traces or SHAPES:
        kind = "t4" if "t4" in trace else "a100"
        jobs = read_trace(data / f"{trace}.csv", read_profiles(data / "profiles" / kind))
        cluster = Cluster.parse(SHAPES[trace])
        limit = ceilings(jobs, cluster)
        print(f"\n{trace} on {cluster.devices} devices; ceilings {limit}\n")
        print(
            "| policy | deadlines met | of the ceiling | promised | broken | mean JCT h | "
            "changes/job | CPU s |"
        )
        print("|---|---|---|---|---|---|---|---|")
        for name in POLICIES:
            if name in ("chronus", "lyra", "sia") and len(jobs) > 1000:
                continue  # a solver call in each of many cycles
            found = run_policy(name, jobs, cluster, settings=Settings())
            m = found.metrics
            ratio = m.deadline_satisfactory_ratio or 0.0
            row = (
                f"{ratio:.4f} | {ratio / (limit['per_job'] or 1):.4f} | {m.admitted} | "
                f"{m.admitted_missed}"
            )
            tail = (
                f"{(m.average_jct_seconds or 0) / 3600:.3f} | {m.changes / m.jobs:.1f} | "
                f"{found.cpu_seconds:.2f}"
            )
            print(f"| {name} | {row} | {tail} |", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
