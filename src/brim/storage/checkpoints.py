"""Checkpoints in a place: complete or absent, and saying so when they are damaged.

`step-00000820/` holds `manifest.json` (the tree that the tensors hang in, versions, metrics, the checksum of every
file, and its own) and the file of tensors that it names. The manifest comes last and in one piece, and makes it
official. A draft is files that no manifest names; the names of files begin with that of their writer, so that those
of the dead can be told from those of writers who are still at it.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from brim.domain.checkpointing import Best, surplus
from brim.errors import EnvironmentFault
from brim.storage.places import Data, Place

__all__ = ["Checkpoint", "Draft", "Store"]

_MANIFEST = "manifest.json"
_FORMAT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What a checkpoint holds.

    Args:
        step: committed steps.
        tree: plain data, with a number where a tensor hangs.
        versions: of what wrote it.
        data: the tensors, as safetensors.
        written_at: seconds since 1970.
        metrics: of the test split, where they were measured on these weights.
    """

    step: int
    tree: Any
    versions: Mapping[str, str]
    data: Data
    written_at: float = 0.0
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Draft:
    """A checkpoint that is stored and not official; `file` and `manifest` are names of its files."""

    step: int
    file: str
    manifest: str
    content: bytes


class Store:
    """The checkpoints of one job.

    Args:
        place: where they are.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self._damaged: set[int] = set()  # whose bytes were found wrong, though their manifests are right

    def where(self, step: int | None = None) -> str:
        """What people call the place, or a checkpoint in it."""
        return self._place.where("" if step is None else _folder(step))

    # Reading -----------------------------------------------------------------------------------------------

    def steps(self) -> list[int]:
        """The steps of all official checkpoints, oldest first, sound or not."""
        return _official(self._place.names())

    def load(self, step: int) -> Checkpoint:
        """Read a checkpoint and check every byte of it.

        Raises:
            EnvironmentFault: a file is missing or damaged; the message names it.
        """
        manifest = self._manifest(step)
        ((file, about),) = manifest["files"].items()
        name = f"{_folder(step)}/{file}"
        data = self._place.read(name)
        if hashlib.sha256(data).hexdigest() != about["sha256"]:
            raise EnvironmentFault(
                f"{self._place.where(name)} is damaged: its bytes do not have the checksum of the manifest"
            )
        known = {key: manifest[key] for key in ("step", "tree", "versions", "written_at", "metrics")}
        return Checkpoint(data=data, **known)

    def _manifest(self, step: int) -> dict[str, Any]:
        name = f"{_folder(step)}/{_MANIFEST}"
        content, where = self._place.read(name), self._place.where(name)
        try:
            manifest = json.loads(content)
        except ValueError as error:
            raise EnvironmentFault(f"{where} is damaged: {error}") from error
        if not isinstance(manifest, dict) or manifest.get("manifest_sha256") != _checksum(manifest):
            raise EnvironmentFault(f"{where} is damaged: it does not have its own checksum")
        if manifest["format"] != _FORMAT:
            raise EnvironmentFault(f"{where} has format {manifest['format']}, this version reads {_FORMAT}")
        return manifest

    def newest_sound(self) -> tuple[Checkpoint | None, list[str]]:
        """The newest checkpoint that is whole, and what is wrong with those after it.

        Raises:
            EnvironmentFault: the place does not answer, so nobody knows.
        """
        problems: list[str] = []
        for step in reversed(self.steps()):
            try:
                return self.load(step), problems
            except EnvironmentFault as fault:
                if fault.retryable:
                    raise
                problems.append(str(fault))
                self._damaged.add(step)
        return None, problems

    # Writing -----------------------------------------------------------------------------------------------

    def draft(self, checkpoint: Checkpoint, *, writer: str) -> Draft:
        """Store a checkpoint without making it official.

        Raises:
            EnvironmentFault: the place did not take it.
        """
        identity = f"{writer}-{uuid.uuid4().hex[:8]}"
        folder, file = _folder(checkpoint.step), f"{identity}.safetensors"
        digest = {"sha256": hashlib.sha256(checkpoint.data).hexdigest(), "bytes": len(checkpoint.data)}
        manifest = {
            "format": _FORMAT,
            "step": checkpoint.step,
            "written_at": checkpoint.written_at,
            "metrics": dict(checkpoint.metrics),
            "versions": dict(checkpoint.versions),
            "files": {file: digest},
            "tree": checkpoint.tree,
        }
        manifest["manifest_sha256"] = _checksum(manifest)
        content = json.dumps(manifest).encode()
        draft = Draft(checkpoint.step, f"{folder}/{file}", f"{folder}/{identity}.json", content)
        self._place.write(draft.file, checkpoint.data)
        self._place.write(draft.manifest, content)
        return draft

    def publish(self, draft: Draft) -> str:
        """Make a draft official, in one piece; where it is.

        Raises:
            EnvironmentFault: it is gone, or the place did not take its manifest.
        """
        if not {draft.file, draft.manifest} <= set(self._place.names()):
            raise EnvironmentFault(f"the draft {self._place.where(draft.file)} is gone")
        self._place.publish(draft.manifest, f"{_folder(draft.step)}/{_MANIFEST}", draft.content)
        self._damaged.discard(draft.step)
        return self.where(draft.step)

    def prune(self, *, keep: int, best: Best | None, writers: Collection[str] = ()) -> None:
        """Remove all but the newest `keep` checkpoints and the best one, and what dead writers left.

        Args:
            keep: from 1.
            best: by which metric, or None.
            writers: whose drafts are to be left alone.

        Raises:
            EnvironmentFault: the place does not answer.
        """
        names = self._place.names()
        manifests = {step: self._complete(step, names) for step in _official(names)}
        sound = {step: manifest["metrics"] for step, manifest in manifests.items() if manifest}
        gone = set(surplus(sound, keep=keep, best=best))
        # What is damaged does not count; it goes when it is older than all that are kept.
        gone |= {step for step in manifests if step < min(sound.keys() - gone, default=0)}
        for step in sorted(gone):
            # The manifest first: what is half removed must not be official.
            self._place.remove(f"{_folder(step)}/{_MANIFEST}")
        self._tidy(names, {step: manifests[step] for step in manifests.keys() - gone}, writers)

    def tidy(self, *, writers: Collection[str] = ()) -> None:
        """Remove what dead writers left, and no checkpoint; `writers` and Raises as for `prune`."""
        names = self._place.names()
        self._tidy(names, {step: self._complete(step, names) for step in _official(names)}, writers)

    def _tidy(
        self, names: Iterable[str], manifests: Mapping[int, dict[str, Any] | None], writers: Collection[str]
    ) -> None:
        for name in sorted(names):
            folder, _, file = name.partition("/")
            step = _step_of(folder)
            if step is None or file == _MANIFEST or file.partition("-")[0] in writers:
                continue
            manifest = manifests.get(step)
            if step not in manifests or (manifest and file not in manifest["files"]):
                self._place.remove(name)

    def _complete(self, step: int, names: Mapping[str, int]) -> dict[str, Any] | None:
        """The manifest of a checkpoint that looks whole: what it names is there, and of the right size."""
        if step in self._damaged:
            return None
        try:
            manifest = self._manifest(step)
        except EnvironmentFault as fault:
            if fault.retryable:
                raise
            return None
        sizes = {file: names.get(f"{_folder(step)}/{file}") for file in manifest["files"]}
        whole = all(sizes[file] == about["bytes"] for file, about in manifest["files"].items())
        return manifest if whole else None


def _folder(step: int) -> str:
    return f"step-{step:08d}"


def _step_of(folder: str) -> int | None:
    number = folder.removeprefix("step-")
    return int(number) if folder.startswith("step-") and number.isdecimal() else None


def _official(names: Collection[str]) -> list[int]:
    folders = (name.partition("/") for name in names)
    return sorted(
        step for folder, _, file in folders if file == _MANIFEST and (step := _step_of(folder)) is not None
    )


def _checksum(manifest: Mapping[str, Any]) -> str:
    rest = {key: value for key, value in manifest.items() if key != "manifest_sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()
