"""Reads the traces of Gavel's artifact as jobs for one type of device."""

from __future__ import annotations

import ast
import json
from pathlib import Path

from brim.domain.scaling import ScalingCurve
from brim.domain.workload import Job

_DEVICE = "v100"
_UNPAIRED = "null"  # the other job on the device: none


def read_gavel_trace(scheduler: Path, trace: str) -> tuple[Job, ...]:
    """Return the jobs of a trace, by time of submission.

    A job's curve has the sizes at which its model was measured; it asks for the size of its row.

    Args:
        scheduler: the folder `scheduler` of the artifact.
        trace: a file in its folder `traces`.
    """
    points: dict[str, dict[int, float]] = {}
    measured = json.loads((scheduler / "simulation_throughputs.json").read_text())[_DEVICE]
    for key, rates in measured.items():
        model, size = ast.literal_eval(key)
        if rates[_UNPAIRED] > 0:
            points.setdefault(model, {})[size] = rates[_UNPAIRED]
    jobs = []
    for number, line in enumerate((scheduler / "traces" / trace).read_text().splitlines()):
        model, _, _, _, _, steps, size, *_, arrival = line.split("\t")
        curve = ScalingCurve(points=tuple(sorted(points[model].items())))
        jobs.append(
            Job(
                id=f"{number:05}",
                submitted=float(arrival),
                work=float(steps),
                curve=curve,
                requested=int(size),
                duration=float(steps) / curve.rate(int(size)),
                label=model,
            )
        )
    return tuple(jobs)
