"""Metrics of the test split, computed by all workers together and merged exactly.

The split is cut into chunks of a fixed size. A chunk's partial state depends on nothing but the chunk, and the
result on nothing but the states in their order: so the value is the same for any number of workers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from brim.coordination.reduction import share
from brim.domain.batch import Span
from brim.domain.inference import CHUNK, chunks_of_step
from brim.domain.seeds import mix
from brim.errors import SpecError
from brim.train.chance import seed_everything
from brim.train.data import fetch
from brim.train.data.feed import Feed, Request
from brim.train.job import Evaluate, Job, pair, to_device
from brim.train.metrics import Metric

__all__ = ["evaluation", "forward", "observe", "results"]

_EVALUATION = 1 << 40  # in the place of a step, where no step is


def evaluation(dataset: Any, metrics: Mapping[str, Metric]) -> Evaluate:
    """The function that a job calls after each epoch.

    Args:
        dataset: the test split: whatever `Feed` reads.
        metrics: by name.
    """

    def evaluate(job: Job) -> dict[str, float]:
        shuffle = None if isinstance(dataset, DataLoader) else False
        with closing(Feed(dataset, seed=job.spec.seed, shuffle=shuffle, loaders=job.spec.loaders)) as feed:
            chunks = -(-feed.samples // CHUNK)
            spans = chunks_of_step(0, max(1, chunks), feed.samples)
            wanted = (
                Request(_EVALUATION, chunk, 0, spans[chunk])
                for chunk in share(chunks, job.world_size, job.rank)
            )
            mine = []
            for read in feed.read(wanted):
                seed_everything(mix(job.spec.seed, _EVALUATION, read.request.micro))
                mine.append(observe(metrics, *forward_sample(job.model, read.sample)))
        everyone = job.gather(msgspec.msgpack.encode(mine))
        return results(metrics, [state for payload in everyone for state in msgspec.msgpack.decode(payload)])

    return evaluate


def forward(model: nn.Module, dataset: Any, chunk: int, span: Span, *, seed: int) -> tuple[Any, Any]:
    """The model's output for a chunk of samples, on the host, and their target (None where samples have none).

    The chunk's chance (a dataset may augment) follows from its number alone.
    """
    seed_everything(mix(seed, _EVALUATION, chunk))
    return forward_sample(model, fetch(dataset, np.arange(span.start, span.stop)))


def forward_sample(model: nn.Module, sample: Any) -> tuple[Any, Any]:
    """As `forward`, of what was read."""
    inputs, target = pair(sample)
    device = next((tensor.device for tensor in model.parameters()), torch.device("cpu"))
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            output = model(to_device(inputs, device))
        return output.cpu() if isinstance(output, Tensor) else output, target
    finally:
        model.train(was_training)


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


def results(metrics: Mapping[str, Metric], states: Sequence[Mapping[str, bytes]]) -> dict[str, float]:
    """The values over all chunks, whose states come in chunk order."""
    return {name: metric.result([state[name] for state in states]) for name, metric in metrics.items()}
