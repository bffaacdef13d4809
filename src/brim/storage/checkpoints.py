"""Checkpoints on disk: directories that are complete or absent, and that say when they are damaged.

`checkpoints/step-00000820/` holds `state.safetensors` (every tensor, by number) and `manifest.json` (the tree that the
tensors hang in, versions, the checksum of the tensors, and its own). A directory gets its name by one rename; what
a writer that died left behind has another name, and goes with the next write.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brim.errors import EnvironmentFault
from brim.storage.files import sync_directory, write_through

__all__ = ["Checkpoint", "load", "newest_sound", "publish", "stored"]

_STATE, _MANIFEST = "state.safetensors", "manifest.json"
_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What a checkpoint holds.

    Args:
        step: committed steps.
        tree: plain data, with a number where a tensor hangs.
        versions: of what wrote it.
        data: the tensors, as safetensors.
    """

    step: int
    tree: Any
    versions: dict[str, str]
    data: bytes


def publish(directory: Path, checkpoint: Checkpoint, *, keep: int) -> Path:
    """Write a checkpoint, then remove all but the newest `keep` and what dead writers left.

    Raises:
        EnvironmentFault: the disk did not take it; nothing of it is left.
    """
    manifest = {
        "format": _FORMAT,
        "step": checkpoint.step,
        "tree": checkpoint.tree,
        "versions": checkpoint.versions,
        "sha256": hashlib.sha256(checkpoint.data).hexdigest(),
    }
    manifest["manifest_sha256"] = _checksum(manifest)
    final = directory / f"step-{checkpoint.step:08d}"
    draft = directory / f".{final.name}-{uuid.uuid4().hex[:8]}"
    try:
        draft.mkdir(parents=True)
        write_through(draft / _STATE, checkpoint.data)
        write_through(draft / _MANIFEST, json.dumps(manifest).encode())
        if final.exists():  # the same step after a restore: the same bits
            shutil.rmtree(final)
        draft.rename(final)
        sync_directory(directory)
    except OSError as error:
        shutil.rmtree(draft, ignore_errors=True)
        raise EnvironmentFault(f"cannot write checkpoint {final}: {error}") from error
    for old in [*stored(directory)[:-keep], *directory.glob(".step-*")]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def _checksum(manifest: dict[str, Any]) -> str:
    rest = {key: value for key, value in manifest.items() if key != "manifest_sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def stored(directory: Path) -> list[Path]:
    """The checkpoints under a directory, oldest first, sound or not."""
    return sorted(path for path in directory.glob("step-*") if path.name[5:].isdecimal())


def load(path: Path) -> Checkpoint:
    """Read a checkpoint and check every byte of it.

    Raises:
        EnvironmentFault: a file is missing or damaged; the message names it.
    """
    manifest = _manifest(path / _MANIFEST)
    try:
        data = (path / _STATE).read_bytes()
    except OSError as error:
        raise EnvironmentFault(f"cannot read {path / _STATE}: {error.strerror}") from error
    if hashlib.sha256(data).hexdigest() != manifest["sha256"]:
        raise EnvironmentFault(
            f"{path / _STATE} is damaged: its bytes do not have the checksum of the manifest"
        )
    return Checkpoint(step=manifest["step"], tree=manifest["tree"], versions=manifest["versions"], data=data)


def _manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = json.loads(path.read_bytes())
    except OSError as error:
        raise EnvironmentFault(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise EnvironmentFault(f"{path} is damaged: {error}") from error
    if not isinstance(manifest, dict) or manifest.get("manifest_sha256") != _checksum(manifest):
        raise EnvironmentFault(f"{path} is damaged: it does not have its own checksum")
    if manifest["format"] != _FORMAT:
        raise EnvironmentFault(f"{path} has format {manifest['format']}, this version reads {_FORMAT}")
    return manifest


def newest_sound(directory: Path) -> tuple[tuple[Path, Checkpoint] | None, list[str]]:
    """The newest checkpoint that is whole, and what is wrong with those after it."""
    problems: list[str] = []
    for path in reversed(stored(directory)):
        try:
            return (path, load(path)), problems
        except EnvironmentFault as fault:
            problems.append(str(fault))
    return None, problems
