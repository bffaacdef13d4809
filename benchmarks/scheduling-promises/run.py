"""How many promises break: with right profiles, with wrong ones, with failures; on traces and on
random jobs.

python -m benchmarks.scheduling-promises.run DATA
"""

from __future__ import annotations

import sys
from pathlib import Path

from brim.domain.cluster import Cluster
from brim.domain.resizing import OVERHEADS
from brim.simulator.compare import run_policy
from brim.simulator.engine import Settings
from brim.simulator.profiles import read_profiles
from brim.simulator.traces import read_trace

TRACES = {
    "itp/195job": "16x8",
    "itp/cluster10": "32x8",
    "itp/cluster01": "64x8",
    "itp/cluster06": "64x8",
    "itp/fig8a_t4_195jobs": "16x4",
    "generated/1000job_1500lam": "8x8",
}
WORLDS = {
    "right profiles": Settings(),
    "right profiles, placed": Settings(placed=True),
    "10 % profile error": Settings(profile_error=0.1),
    "20 % profile error": Settings(profile_error=0.2),
    "a worker fails each 1,000 h, brim": Settings(failures=3.6e6, overheads=OVERHEADS["brim"]),
    "a worker fails each 1,000 h, torchrun": Settings(
        failures=3.6e6, overheads=OVERHEADS["torchrun"]
    ),
    "a worker fails each 1,000 h, restart": Settings(
        failures=3.6e6, overheads=OVERHEADS["restart"]
    ),
}


def main(data: Path) -> None:
    print("| trace | world | promised | broken | deadlines met | mean JCT h |")
    print("|---|---|---|---|---|---|")
    for trace, shape in TRACES.items():
        kind = "t4" if "t4" in trace else "a100"
        jobs = read_trace(data / f"{trace}.csv", read_profiles(data / "profiles" / kind))
        for world, settings in WORLDS.items():
            m = run_policy("brim", jobs, Cluster.parse(shape), settings=settings).metrics
            jct = (m.average_jct_seconds or 0) / 3600
            share = m.admitted_missed / max(m.admitted, 1)
            row = (
                f"{m.admitted} | {m.admitted_missed} ({share:.2%}) | "
                f"{m.deadline_satisfactory_ratio:.4f} | {jct:.3f}"
            )
            print(f"| {trace} | {world} | {row} |", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
