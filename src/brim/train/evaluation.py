"""Metrics of the test split, computed by all workers together and merged exactly.

The split is cut into chunks of a fixed size. A chunk's partial state depends on nothing but the chunk, and the
result on nothing but the states in their order: so the value is the same for any number of workers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from brim.coordination.reduction import share
from brim.errors import SpecError
from brim.train.data import fetch
from brim.train.job import Evaluate, Job, to_device
from brim.train.metrics import Metric

__all__ = ["CHUNK", "evaluation", "observe"]

CHUNK = 2048  # samples


def evaluation(dataset: Any, metrics: Mapping[str, Metric]) -> Evaluate:
    """The function that a job calls after each epoch.

    Args:
        dataset: the test split, map-style.
        metrics: by name.
    """

    def evaluate(job: Job) -> dict[str, float]:
        chunks = -(-len(dataset) // CHUNK)
        mine = [_observe(job, dataset, metrics, chunk) for chunk in share(chunks, job.world_size, job.rank)]
        everyone = job.gather(msgspec.msgpack.encode(mine))
        states = [state for payload in everyone for state in msgspec.msgpack.decode(payload)]
        return {name: metric.result([state[name] for state in states]) for name, metric in metrics.items()}

    return evaluate


def _observe(job: Job, dataset: Any, metrics: Mapping[str, Metric], chunk: int) -> dict[str, bytes]:
    samples = np.arange(chunk * CHUNK, min((chunk + 1) * CHUNK, len(dataset)))
    inputs, target = fetch(dataset, samples)
    was_training = job.model.training
    job.model.eval()
    try:
        with torch.no_grad():
            output = job.model(to_device(inputs, job.device))
    finally:
        job.model.train(was_training)
    return observe(metrics, output.cpu() if isinstance(output, Tensor) else output, target)


def observe(metrics: Mapping[str, Metric], output: Any, target: Any) -> dict[str, bytes]:
    """The partial state of each metric for one chunk.

    Raises:
        SpecError: a metric of brim cannot take this output and target. What one of the user's raises is theirs.
    """
    return {name: _observe_one(metric, output, target) for name, metric in metrics.items()}


def _observe_one(metric: Metric, output: Any, target: Any) -> bytes:
    try:
        return metric.observe(output, target)
    except (ValueError, TypeError, RuntimeError) as error:
        if not type(metric).__module__.startswith("brim."):
            raise
        raise SpecError("metrics()", got=str(error), need="metrics that fit the model's output") from error
