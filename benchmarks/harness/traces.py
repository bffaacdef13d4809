"""The traces of the scheduling benchmarks, with the clusters that they are made for."""

from __future__ import annotations

from pathlib import Path

from brim.domain.workload import Job
from brim.simulator.profiles import read_profiles
from brim.simulator.traces import read_trace

# Nodes, and devices on each.
SHAPES = {
    "itp/195job": (16, 8),
    "itp/fig8a_t4_195jobs": (16, 4),
    "itp/cluster10": (32, 8),
    "itp/cluster06": (64, 8),
    "itp/cluster01": (64, 8),
    "generated/100jobs_1500lam": (16, 8),
    "generated/200jobs_900lam_0.2": (8, 8),
    "generated/200jobs_900lam_0.5": (8, 8),
    "generated/1000job_1500lam": (8, 8),
    "itp/cluster09": (128, 8),
}
# Of the same public set; nothing was chosen on them, and they are run only where they are named.
FURTHER = {"itp/cluster03": (64, 8), "itp/cluster05": (64, 8)}


def read(data: Path, trace: str) -> tuple[Job, ...]:
    """Return the jobs of a trace, with the profiles of its kind of device."""
    kind = "t4" if "t4" in trace else "a100"
    return read_trace(data / f"{trace}.csv", read_profiles(data / "profiles" / kind))
