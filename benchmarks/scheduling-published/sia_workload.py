"""Reads the workloads of Sia's artifact as jobs with a fixed batch on nodes of four T4s."""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from pathlib import Path

import numpy as np

from brim.domain.scaling import ScalingCurve
from brim.domain.workload import Job

_NODE = 4
_MAX_DEVICES = 64  # devices of a job, as in the artifact
_EPOCHS = {"bert": 2, "cifar10": 100, "deepspeech2": 80, "imagenet": 90, "yolov3": 50}
_SLOWDOWN = {"cifar10": 1.8}  # of real runs over the profile; of the others:
_USUAL_SLOWDOWN = 1.2


def read_sia_workload(simulator: Path, workload: str) -> tuple[Job, ...]:
    """Return the jobs of a workload, by time of submission.

    Args:
        simulator: the folder `sia-simulator` of the artifact.
        workload: a file in its folder `workloads`.
    """
    models = {name: _Model(simulator / "traces" / name) for name in _EPOCHS}
    jobs = []
    for row in _rows(simulator / "workloads" / workload):
        model, batch = models[row["application"]], int(row["batch_size"])
        jobs.append(
            Job(
                id=row["name"],
                submitted=float(row["time"]),
                work=model.steps(batch),
                curve=model.curve(batch),
                requested=int(row["num_replicas"]),
                label=f"{row['application']}-{batch}",
            )
        )
    return tuple(sorted(jobs, key=lambda job: (job.submitted, job.id)))


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


class _Model:
    """The profile of one model: seconds of a step, and what a step of a batch is worth."""

    def __init__(self, folder: Path) -> None:
        self.name = folder.name
        epochs = range(_EPOCHS[self.name])
        self.epochs: dict[int, list[dict[str, float]]] = {}
        for path in folder.glob("validation-*.csv"):
            measured = [{key: float(cell) for key, cell in row.items()} for row in _rows(path)]
            self.epochs[int(path.stem.partition("-")[2])] = [measured[epoch] for epoch in epochs]
        # By devices: (samples of a device, seconds of a step, seconds of those for communication).
        self.times: dict[int, list[tuple[float, float, float]]] = defaultdict(list)
        for row in _rows(folder / "scalability-aws.csv"):
            if int(row["num_nodes"]) * _NODE == int(row["num_replicas"]):
                self._add(int(row["num_replicas"]), row)
        placed = _rows(folder / "placements-aws.csv")
        for devices in {sum(map(int, row["placement"])) for row in placed}:
            name = str(_NODE) * (devices // _NODE) or str(devices)
            rows = [row for row in placed if row["placement"] == name]
            if rows and sum(map(int, name)) == devices:
                self.times[devices].clear()
                for row in rows:
                    self._add(devices, row)

    def _add(self, devices: int, row: dict[str, str]) -> None:
        self.times[devices].append(
            (float(row["local_bsz"]), float(row["step_time"]), float(row["sync_time"]))
        )

    def steps(self, batch: int) -> float:
        """Steps of the whole job, each worth its gain over one of the smallest batch."""
        smallest = min(self.epochs)
        lower = max(size for size in self.epochs if size <= batch)
        upper = min(size for size in self.epochs if size >= batch)
        weight = (batch - lower) / (upper - lower) if upper > lower else 0.0
        total = previous = 0.0
        for epoch in range(_EPOCHS[self.name]):
            rows = self.epochs[lower][epoch], self.epochs[upper][epoch]
            noise, signal = (
                (1 - weight) * rows[0][key] + weight * rows[1][key]
                for key in ("grad_var", "grad_sqr")
            )
            gain = (noise + signal) / (noise * smallest / batch + signal)
            progress = min(rows[epoch]["progress"] for rows in self.epochs.values())
            total += (progress - previous) / gain
            previous = progress
        return total

    def curve(self, batch: int) -> ScalingCurve:
        """Steps a second by devices, where a device's part of the batch was profiled."""
        points = []
        for devices in sorted(self.times):
            seconds = self._seconds(batch, devices) if devices <= _MAX_DEVICES else None
            if seconds is not None:
                slowdown = _SLOWDOWN.get(self.name, _USUAL_SLOWDOWN)
                points.append((devices, 1.0 / seconds / slowdown))
        return ScalingCurve(points=tuple(points))

    def _seconds(self, batch: int, devices: int) -> float | None:
        """Seconds of a step that is accumulated where a device's part of it has no room."""
        samples, steps, syncs = np.array(sorted(self.times[devices])).T
        local = math.ceil(batch / devices - 1e-8)
        parts = math.ceil(local / float(samples[-1]) - 1e-8)
        if devices == 1 and batch > min(self.epochs):
            parts = max(parts, 2)
        part = math.ceil(local / parts - 1e-8)
        if part < samples[0]:
            return None
        step, sync = (float(np.interp(part, samples, column)) for column in (steps, syncs))
        return step + (step - sync) * (parts - 1)
