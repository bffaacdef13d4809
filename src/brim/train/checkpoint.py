"""A job's state to and from a checkpoint (`storage/checkpoints.py` has the files)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save

import brim
from brim.storage import checkpoints
from brim.storage.checkpoints import Checkpoint
from brim.train.state import flatten, unflatten

__all__ = ["state_of", "write_checkpoint"]

_KEEP = 2


def write_checkpoint(directory: Path, step: int, tree: Any) -> tuple[Path, int]:
    """Write the state as of `step` committed steps, and keep the newest few; its path and its size in bytes.

    Raises:
        EnvironmentFault: the disk did not take it.
    """
    skeleton, tensors = flatten(tree)
    data = save({str(index): tensor.detach().cpu().contiguous() for index, tensor in enumerate(tensors)})
    versions = {"brim": brim.__version__, "torch": str(torch.__version__)}
    checkpoint = Checkpoint(step=step, tree=skeleton, versions=versions, data=data)
    return checkpoints.publish(directory, checkpoint, keep=_KEEP), len(data)


def state_of(checkpoint: Checkpoint) -> Any:
    """The state that was written."""
    tensors = load(checkpoint.data)
    return unflatten(checkpoint.tree, [tensors[str(index)] for index in range(len(tensors))])
