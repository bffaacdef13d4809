"""A Trainer's evaluation while it trains: each batch by one worker, merged in the data's order."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.trainer_pt_utils import EvalLoopContainer

from brim.train.state.flattening import flatten, unflatten

_SKELETON = "skeleton"


class CountedCollate:
    """Collates samples as a Trainer does, beside their number.

    Args:
        collate: the Trainer's data collator.
    """

    def __init__(self, collate: Callable[[list[Any]], Any]) -> None:
        self.collate = collate

    def __call__(self, samples: list[Any]) -> dict[str, Any]:
        """Return the collated samples and their number."""
        return {"inputs": self.collate(samples), "samples": len(samples)}


class Merged:
    """The losses, predictions and labels of all batches, as a metric of `Job.evaluate`.

    Each batch is observed by one worker. `result` merges them on every worker.

    Attributes:
        samples: of all batches.
        predictions, labels, inputs, losses: numpy arrays as transformers' evaluation loop has them,
            or None.
    """

    def __init__(self, *, concatenate: bool) -> None:
        self._concatenate = concatenate
        self.samples = 0
        self.predictions: Any = None
        self.labels: Any = None
        self.inputs: Any = None
        self.losses: Any = None

    def observe(self, output: Any, target: object) -> bytes:
        """Return what `Trainer.prediction_step` gave for a batch, as bytes."""
        skeleton, tensors = flatten(output)
        arrays = {str(number): _array(tensor) for number, tensor in enumerate(tensors)}
        arrays[_SKELETON] = np.frombuffer(json.dumps(skeleton).encode(), np.uint8)
        stream = io.BytesIO()
        np.savez(stream, allow_pickle=False, **arrays)
        return stream.getvalue()

    def result(self, states: Sequence[bytes]) -> float:
        """Merge the batches in their order, and return the mean loss over samples."""
        batches = [_batch(state) for state in states]
        self.samples = sum(batch["samples"] for batch in batches)
        self.predictions = self._joined([batch["logits"] for batch in batches])
        self.labels = self._joined([batch["labels"] for batch in batches])
        self.inputs = self._joined([batch["inputs"] for batch in batches])
        losses = [
            batch["loss"].reshape(1).repeat(batch["samples"])
            for batch in batches
            if batch["loss"] is not None
        ]
        self.losses = torch.cat(losses).numpy() if losses else None
        return float(self.losses.mean()) if losses else float("nan")

    def _joined(self, parts: list[Any]) -> Any:
        container = EvalLoopContainer(self._concatenate, padding_index=-100)
        for part in parts:
            if part is not None:
                container.add(part)
        return container.get_arrays()


def _array(tensor: Tensor) -> Any:
    host = tensor.detach().cpu()
    return (host.float() if host.dtype == torch.bfloat16 else host).numpy()


def _batch(state: bytes) -> Any:
    with np.load(io.BytesIO(state), allow_pickle=False) as arrays:
        skeleton = json.loads(arrays[_SKELETON].tobytes())
        tensors = [torch.from_numpy(arrays[str(n)]) for n in range(len(arrays.files) - 1)]
    return unflatten(skeleton, tensors)
