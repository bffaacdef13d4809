"""Checkpoints: the state of a job in a directory that is complete or absent.

`checkpoints/step-00000820/` holds `state.safetensors` (every tensor, by number) and `manifest.json` (the tree that
they hang in, versions, and the checksum of the tensors). The directory gets its name by one rename.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save

import brim
from brim.errors import EnvironmentFault
from brim.train.state import flatten, unflatten

__all__ = ["Written", "latest_checkpoint", "read_checkpoint", "step_of", "write_checkpoint"]

_KEEP = 2
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Written:
    path: str
    size_bytes: int


def write_checkpoint(directory: Path, step: int, tree: Any) -> Written:
    """Write the state as of `step` committed steps, then remove all but the newest few.

    Raises:
        EnvironmentFault: the disk did not take it; nothing half-written is left under the final name.
    """
    skeleton, tensors = flatten(tree)
    data = save({str(index): tensor.detach().cpu().contiguous() for index, tensor in enumerate(tensors)})
    manifest = {
        "format": _VERSION,
        "step": step,
        "tree": skeleton,
        "sha256": hashlib.sha256(data).hexdigest(),
        "versions": {"brim": brim.__version__, "torch": torch.__version__},
    }
    final = directory / f"step-{step:08d}"
    draft = directory / f".{final.name}-{uuid.uuid4().hex[:8]}"
    try:
        draft.mkdir(parents=True)
        _write_through(draft / "state.safetensors", data)
        _write_through(draft / "manifest.json", json.dumps(manifest).encode())
        if final.exists():  # the same step after a restore: the same bits
            shutil.rmtree(final)
        draft.rename(final)
    except OSError as error:
        shutil.rmtree(draft, ignore_errors=True)
        raise EnvironmentFault(f"cannot write checkpoint {final}: {error}") from error
    for old in _checkpoints(directory)[:-_KEEP]:
        shutil.rmtree(old, ignore_errors=True)
    return Written(str(final), len(data))


def _write_through(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _checkpoints(directory: Path) -> list[Path]:
    return sorted(path for path in directory.glob("step-*") if (path / "manifest.json").is_file())


def latest_checkpoint(directory: Path) -> Path | None:
    """The newest complete checkpoint under a directory."""
    found = _checkpoints(directory)
    return found[-1] if found else None


def step_of(checkpoint: Path) -> int:
    """The committed steps that a checkpoint has."""
    return int(checkpoint.name.removeprefix("step-"))


def read_checkpoint(path: Path) -> Any:
    """The state that was written.

    Raises:
        EnvironmentFault: a file is missing or its bytes are not those that were written.
    """
    try:
        manifest = json.loads((path / "manifest.json").read_bytes())
        data = (path / "state.safetensors").read_bytes()
    except (OSError, ValueError) as error:
        raise EnvironmentFault(f"cannot read checkpoint {path}: {error}") from error
    if hashlib.sha256(data).hexdigest() != manifest["sha256"]:
        raise EnvironmentFault(
            f"checkpoint {path}: state.safetensors does not have the checksum of its manifest"
        )
    tensors = load(data)
    return unflatten(manifest["tree"], [tensors[str(index)] for index in range(len(tensors))])
