"""Where the real traces are, for tests that need them: they are not part of this repository."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from brim.domain.workload import Job
from brim.simulator.profiles import read_profiles
from brim.simulator.traces import read_trace

FOLDER = Path(
    os.environ.get("BRIM_TEST_DATA") or Path(__file__).parents[1] / ".." / "shared" / "data"
)

TRACES = {
    "195job": ("itp/195job.csv", "16x8"),
    "cluster01": ("itp/cluster01.csv", "64x8"),
    "cluster06": ("itp/cluster06.csv", "64x8"),
    "cluster09": ("itp/cluster09.csv", "128x8"),
    "cluster10": ("itp/cluster10.csv", "32x8"),
    "t4": ("itp/fig8a_t4_195jobs.csv", "16x4"),
    "fig10": ("generated/100jobs_1500lam.csv", "16x8"),
    "fig9": ("generated/1000job_1500lam.csv", "8x8"),
    "fig11-20": ("generated/200jobs_900lam_0.2.csv", "8x8"),
    "fig11-50": ("generated/200jobs_900lam_0.5.csv", "8x8"),
}


def jobs_of(name: str) -> tuple[Job, ...]:
    """The jobs of the trace called `name`; skips the test where the data is absent."""
    file = FOLDER / TRACES[name][0]
    profiles = FOLDER / "profiles" / ("t4" if name == "t4" else "a100")
    if not file.exists() or not profiles.exists():
        pytest.skip(f"no {TRACES[name][0]} under ../shared/data or $BRIM_TEST_DATA")
    return read_trace(file, read_profiles(profiles))
