"""Checkpoints in a place: complete or absent, and saying so when they are damaged.

`step-00000820/` holds the file of tensors and `manifest.json`: the tree that the tensors hang in,
versions, metrics, the name and the checksum of that file, and its own checksum. The manifest comes
last and in one piece: it makes the checkpoint official. A draft is files that no manifest names;
the names of files begin with that of their writer, so that those of the dead can be told from those
of writers who are still at it.

Large tables are not in that file. The manifest lists the parts of each (`domain/table_parts.py`),
whose files lie in `tables/`: several checkpoints may name them, so each stays as long as one does.
The same is true of the tensors that training leaves as they are, in `frozen/`
(`domain/frozen_parts.py`).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from brim.decoding import UNDECODABLE
from brim.domain.checkpointing import Best, surplus
from brim.domain.frozen_parts import FROZEN_FOLDER, FrozenPart
from brim.domain.table_parts import (
    FOLDER,
    Lineage,
    PartFile,
    StoredFile,
    StoredTable,
    disused,
    is_chain,
)
from brim.errors import EnvironmentFault
from brim.storage.file_stores import Data, FileStore

_MANIFEST = "manifest.json"
_FORMAT = 5
_READABLE = (2, 3, 4, 5)  # 2 had no tables, 3 no strides, 4 no frozen tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The content of a checkpoint.

    Args:
        step: committed steps.
        tree: plain data, with a number where a tensor hangs.
        versions: of what wrote it.
        data: the tensors, as safetensors.
        written_at: seconds since 1970.
        metrics: of the test split, where they were measured on these weights.
        lineage: the id of the history that led here.
        tables: whose rows are not in `data`.
        frozen: tensors that are not in `data`, since training leaves them as they are.
        frozen_data: the content of the files of `frozen`, in the same order; empty where it is
            written.
    """

    step: int
    tree: Any
    versions: Mapping[str, str]
    data: Data
    written_at: float = 0.0
    metrics: Mapping[str, float] = field(default_factory=dict)
    lineage: str = ""
    tables: tuple[StoredTable, ...] = ()
    frozen: tuple[FrozenPart, ...] = ()
    frozen_data: tuple[Data, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Bytes that a restore reads."""
        tables_bytes = sum(file.size_bytes for table in self.tables for file in table.files)
        return len(self.data) + tables_bytes + self.frozen_bytes

    @property
    def frozen_bytes(self) -> int:
        """Bytes of the files that later checkpoints may name as well, rather than write."""
        return sum(part.file.size_bytes for part in self.frozen)


@dataclass(frozen=True, slots=True)
class Draft:
    """A checkpoint that is stored and not official.

    `file` and `manifest` are names of its files.
    """

    step: int
    file: str
    manifest: str
    content: bytes


class _CheckpointFile(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    sha256: str
    size_bytes: int


class _Manifest(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    step: int
    written_at: float
    metrics: dict[str, float]
    versions: dict[str, str]
    file: _CheckpointFile
    tree: Any
    lineage: str = ""
    tables: tuple[StoredTable, ...] = ()
    frozen: tuple[FrozenPart, ...] = ()

    @property
    def part_files(self) -> list[StoredFile]:
        """The files that other checkpoints may name, too."""
        frozen = [part.file for part in self.frozen]
        return [*frozen, *(file for table in self.tables for file in table.files)]

    @property
    def parts(self) -> set[str]:
        """The names of these files."""
        return {file.name for file in self.part_files}


class Store:
    """The checkpoints of one job.

    Args:
        place: where they are.
    """

    def __init__(self, place: FileStore) -> None:
        self._place = place
        self._damaged: set[int] = (
            set()
        )  # whose bytes were found wrong, though their manifests are right
        self._sound: set[StoredFile] = set()  # whose bytes were found right
        self._at_hand: set[str] = set()  # files of parts that this process is about to name

    def location(self, step: int | None = None) -> str:
        """Return the name for people of the place, or of a checkpoint in it."""
        return self._place.location("" if step is None else _folder(step))

    # Reading --------------------------------------------------------------------------------------

    def steps(self) -> list[int]:
        """The steps of all official checkpoints, oldest first, sound or not."""
        return _official(self._place.names())

    def load(self, step: int) -> Checkpoint:
        """Read a checkpoint and check every byte of it, but those of its tables.

        `read_part` and `check` read these.

        Raises:
            EnvironmentFault: a file is missing or damaged; the message names it.
        """
        manifest = self._manifest(step)
        name = f"{_folder(step)}/{manifest.file.name}"
        data = self._place.read(name)
        if hashlib.sha256(data).hexdigest() != manifest.file.sha256:
            raise EnvironmentFault(
                f"{self._place.location(name)} is damaged: its bytes do not have the checksum of the "
                "manifest"
            )
        return Checkpoint(
            step=manifest.step,
            tree=manifest.tree,
            versions=manifest.versions,
            data=data,
            written_at=manifest.written_at,
            metrics=manifest.metrics,
            lineage=manifest.lineage,
            tables=manifest.tables,
            frozen=manifest.frozen,
            frozen_data=tuple(self.read_part(part.file) for part in manifest.frozen),
        )

    def read_part(self, file: StoredFile) -> bytes:
        """Read a file that checkpoints share and check every byte of it; raises as `load` does."""
        data = self._place.read(file.name)
        if len(data) != file.size_bytes or hashlib.sha256(data).hexdigest() != file.sha256:
            raise EnvironmentFault(
                f"{self._place.location(file.name)} is damaged: its bytes do not have the checksum of "
                "the manifest"
            )
        self._sound.add(file)
        return data

    def check(self, checkpoint: Checkpoint) -> None:
        """Check every byte of a checkpoint's tables, each file once; raises as `load` does."""
        for table in checkpoint.tables:
            for file in table.files:
                if file not in self._sound:
                    self.read_part(file)

    def tables_of(self, lineage: Lineage, *, at_most: int) -> tuple[StoredTable, ...]:
        """Return the tables of the newest complete checkpoint that a state can build on.

        Args:
            lineage: of the state.
            at_most: its step.

        Raises:
            EnvironmentFault: the place does not answer.
        """
        names = self._place.names()
        for step in reversed([step for step in _official(names) if step <= at_most]):
            manifest = self._complete(step, names)
            if manifest is not None and lineage.includes(manifest.lineage, step):
                return manifest.tables
        return ()

    def frozen_files(self) -> dict[str, StoredFile]:
        """Return the frozen tensors of the newest complete checkpoint, by digest.

        Raises:
            EnvironmentFault: the place does not answer.
        """
        names = self._place.names()
        for step in reversed(_official(names)):
            manifest = self._complete(step, names)
            if manifest is not None:
                return {
                    digest: file
                    for part in manifest.frozen
                    for digest, file in part.by_digest.items()
                }
        return {}

    def _manifest(self, step: int) -> _Manifest:
        name = f"{_folder(step)}/{_MANIFEST}"
        path = self._place.location(name)
        manifest = _read_manifest(self._place.read(name), path)
        if manifest.step != step or not _is_name(
            manifest.file.name
        ):  # what it names may be removed
            raise EnvironmentFault(
                f"{path} is damaged: it is of step {manifest.step}, in {manifest.file.name!r}"
            )
        return manifest

    def newest_sound(
        self, *, at_most: int | None = None, take: Callable[[Checkpoint], None] | None = None
    ) -> tuple[Checkpoint | None, list[str]]:
        """The newest checkpoint that is whole, and the problems of those after it.

        Args:
            at_most: passes over those of later steps, which a worker that was cut off has made.
            take: reads its tables, and raises EnvironmentFault where they are damaged; None checks
                them.

        Raises:
            EnvironmentFault: the place does not answer, so that is unknown.
        """
        problems: list[str] = []
        for step in reversed(self.steps()):
            if at_most is not None and step > at_most:
                continue
            try:
                found = self.load(step)
                (take or self.check)(found)
                return found, problems
            except EnvironmentFault as fault:
                if fault.retryable:
                    raise
                problems.append(str(fault))
                self._damaged.add(step)
        return None, problems

    # Writing --------------------------------------------------------------------------------------

    def write_part(self, data: Data, *, rows: int, writer: str) -> PartFile:
        """Store a file of a table, which `publish` makes official with its checkpoint.

        Else `give_up` is to follow.

        Raises:
            EnvironmentFault: the place did not take it.
        """
        file = self._write_shared(FOLDER, data, writer=writer)
        part = PartFile(name=file.name, sha256=file.sha256, size_bytes=file.size_bytes, rows=rows)
        self._sound.add(part)
        return part

    def write_frozen(self, data: Data, *, writer: str) -> StoredFile:
        """Store a file of frozen tensors; what is said of `write_part` is true of it as well."""
        file = self._write_shared(FROZEN_FOLDER, data, writer=writer)
        self._sound.add(file)
        return file

    def _write_shared(self, folder: str, data: Data, *, writer: str) -> StoredFile:
        """Store a file that several checkpoints may name."""
        name = f"{folder}/{writer}-{uuid.uuid4().hex[:16]}.safetensors"
        self._at_hand.add(name)  # before it is there
        try:
            self._place.write(name, data)
        except EnvironmentFault:
            self._at_hand.discard(name)
            raise
        sha256 = hashlib.sha256(data).hexdigest()
        return StoredFile(name=name, sha256=sha256, size_bytes=len(data))

    def give_up(self, files: Iterable[StoredFile], *, remove: bool = True) -> None:
        """Remove files of tables or of frozen tensors that nothing names.

        Args:
            remove: False leaves them, as drafts: the next `prune` removes them.

        Raises:
            EnvironmentFault: the place does not answer; they are drafts then.
        """
        names = [file.name for file in files]
        self._at_hand.difference_update(names)
        for name in names if remove else ():
            self._place.remove(name)

    def draft(self, checkpoint: Checkpoint, *, writer: str) -> Draft:
        """Store a checkpoint without making it official.

        Raises:
            EnvironmentFault: the place did not take it.
        """
        identity = f"{writer}-{uuid.uuid4().hex[:8]}"
        folder, file = _folder(checkpoint.step), f"{identity}.safetensors"
        sha256 = hashlib.sha256(checkpoint.data).hexdigest()
        content = _write_manifest(
            _Manifest(
                format=_FORMAT,
                step=checkpoint.step,
                written_at=checkpoint.written_at,
                metrics=dict(checkpoint.metrics),
                versions=dict(checkpoint.versions),
                file=_CheckpointFile(name=file, sha256=sha256, size_bytes=len(checkpoint.data)),
                tree=checkpoint.tree,
                lineage=checkpoint.lineage,
                tables=checkpoint.tables,
                frozen=checkpoint.frozen,
            )
        )
        draft = Draft(checkpoint.step, f"{folder}/{file}", f"{folder}/{identity}.json", content)
        try:
            self._place.write(draft.file, checkpoint.data)
            self._place.write(draft.manifest, content)
        except EnvironmentFault as fault:
            if (
                not fault.retryable
            ):  # a full disk needs every byte; a store that is away takes no orders
                with contextlib.suppress(EnvironmentFault):
                    self._place.remove(draft.file)
            raise
        return draft

    def publish(self, draft: Draft) -> str:
        """Make a draft official, in one piece; where it is.

        Raises:
            EnvironmentFault: it is gone, or what it builds on, or the place did not take its
                manifest.
        """
        names = self._place.names()
        draft_manifest = _read_manifest(draft.content, self._place.location(draft.manifest))
        if not {draft.file, draft.manifest} <= set(names):
            raise EnvironmentFault(f"the draft {self._place.location(draft.file)} is gone")
        if missing := draft_manifest.parts - set(names):
            raise EnvironmentFault(
                f"the draft of step {draft.step} builds on {self._place.location(min(missing))}, which "
                "is gone"
            )
        manifest = f"{_folder(draft.step)}/{_MANIFEST}"
        earlier = self._complete(draft.step, names) if manifest in names else None
        self._place.publish(draft.manifest, manifest, draft.content)
        self._damaged.discard(draft.step)
        self._at_hand -= draft_manifest.parts
        with contextlib.suppress(
            EnvironmentFault
        ):  # it is official; what it replaced only takes space
            self._remove_file(draft.step, earlier)
            if earlier is not None and earlier.parts - draft_manifest.parts:
                self._remove_parts(dropped=earlier.parts, candidates=earlier.parts)
        return self.location(draft.step)

    def adopt(self, writer: str, *, at_most: int) -> None:
        """Make the newest draft of a dead writer official, if it is newer than all others.

        Args:
            writer: whose drafts these are.
            at_most: passes over drafts of later steps.

        Raises:
            EnvironmentFault: the place does not answer, or did not take the manifest.
        """
        newest = max((step for step in self.steps() if step <= at_most), default=0)
        left_drafts = [name for name in self.drafts() if name.endswith(".json")]
        for name in sorted(left_drafts, reverse=True):
            folder, _, file = name.partition("/")
            step = _step_of(folder)
            if step is None or not newest < step <= at_most or file.partition("-")[0] != writer:
                continue
            content = self._place.read(name)
            with contextlib.suppress(EnvironmentFault):  # its writer was killed over it
                manifest = _read_manifest(content, self._place.location(name))
                self.publish(Draft(step, f"{folder}/{manifest.file.name}", name, content))
                return

    def prune(
        self,
        *,
        keep: int,
        best: Best | None,
        writers: Collection[str] = (),
        newest: int | None = None,
        unsound_since: int | None = None,
    ) -> None:
        """Remove old checkpoints, and leftovers of dead writers.

        The newest `keep`, the best and the last sound one stay.

        Args:
            keep: from 1.
            newest: the step that the job is at: what is beyond it is not its own, does not count
                and stays.
            unsound_since: the step since which losses are no numbers; None where they are.
            best: by which metric, or None.
            writers: whose drafts are to be left alone.

        Raises:
            EnvironmentFault: the place does not answer.
        """
        names = self._place.names()
        manifests = {step: self._complete(step, names) for step in _official(names)}
        own_drafts = {
            step: manifest
            for step, manifest in manifests.items()
            if newest is None or step <= newest
        }
        sound = {step: manifest.metrics for step, manifest in own_drafts.items() if manifest}
        obsolete = set(surplus(sound, keep=keep, best=best, unsound_since=unsound_since))
        # What is damaged does not count; it goes when it is older than all that are kept.
        obsolete |= {step for step in manifests if step < min(sound.keys() - obsolete, default=0)}
        for step in sorted(obsolete):
            # The manifest first: what is half removed must not be official.
            self._place.remove(f"{_folder(step)}/{_MANIFEST}")
            self._remove_file(step, manifests[step])
        remaining = {step: manifests[step] for step in manifests.keys() - obsolete}
        for name in _unnamed(names, remaining, writers):
            self._place.remove(name)
        if any(map(_is_part, names)):
            dropped = [manifests[step] for step in obsolete]
            self._remove_parts(
                dropped={
                    name for manifest in dropped if manifest is not None for name in manifest.parts
                },
                writers=writers,
            )

    def _remove_file(self, step: int, manifest: _Manifest | None) -> None:
        """Remove the file of a manifest that is gone.

        Its writer may live, so no other process removes it as a dead writer's.
        """
        if manifest is not None:
            self._place.remove(f"{_folder(step)}/{manifest.file.name}")

    def _remove_parts(
        self,
        *,
        dropped: Collection[str],
        writers: Collection[str] = (),
        candidates: Collection[str] | None = None,
    ) -> None:
        """Remove shared files that neither an official checkpoint nor a draft names.

        Args:
            dropped: what checkpoints named that are gone now.
            writers: whose files are to be left alone.
            candidates: of these; None of all.
        """
        names = self._place.names()  # after what else is removed: drafts may have come meanwhile
        named = self._named_parts(names)
        if named is not None:
            found = filter(_is_part, names if candidates is None else names.keys() & candidates)
            for name in disused(
                found, named=named, dropped=dropped, writers=writers, at_hand=self._at_hand
            ):
                self._place.remove(name)

    def _named_parts(self, names: Mapping[str, int], *, drafts: bool = True) -> set[str] | None:
        """Return the shared files that a manifest names.

        None where that is unknown: then all may be needed.

        Args:
            drafts: those that drafts name count as well.
        """
        named: set[str] = set()
        official = {f"{_folder(step)}/{_MANIFEST}" for step in _official(names)}
        other_manifests = {
            name
            for name in names
            if name.endswith(".json") and _step_of(name.partition("/")[0]) is not None
        }
        for name in official | other_manifests if drafts else official:
            try:
                named |= _read_manifest(self._place.read(name), self._place.location(name)).parts
            except EnvironmentFault as fault:
                if fault.retryable:
                    raise
                return None
        return named

    def drafts(self) -> list[str]:
        """The files that no manifest names; raises as `prune` does."""
        names = self._place.names()
        found = _unnamed(names, {step: self._complete(step, names) for step in _official(names)})
        parts = list(filter(_is_part, names))
        named = self._named_parts(names, drafts=False) if parts else None
        return (
            found if named is None else found + disused(parts, named=named, at_hand=self._at_hand)
        )

    def tidy(self) -> None:
        """Remove all drafts: without other writers, only dead ones left any.

        Raises as `prune` does.
        """
        for name in self.drafts():
            self._place.remove(name)

    def _complete(self, step: int, names: Mapping[str, int]) -> _Manifest | None:
        """Return the manifest of a checkpoint that looks whole.

        The files that it names are there, and of the right size.
        """
        if step in self._damaged:
            return None
        try:
            manifest = self._manifest(step)
        except EnvironmentFault as fault:
            if fault.retryable:
                raise
            return None
        expected = {f"{_folder(step)}/{manifest.file.name}": manifest.file.size_bytes}
        expected |= {file.name: file.size_bytes for file in manifest.part_files}
        return manifest if expected.items() <= names.items() else None


def _folder(step: int) -> str:
    return f"step-{step:08d}"


def _step_of(folder: str) -> int | None:
    number = folder.removeprefix("step-")
    return int(number) if folder.startswith("step-") and number.isdecimal() else None


def _official(names: Collection[str]) -> list[int]:
    folders = (name.partition("/") for name in names)
    return sorted(
        step
        for folder, _, file in folders
        if file == _MANIFEST and (step := _step_of(folder)) is not None
    )


def _is_part(name: str) -> bool:
    folder, _, file = name.partition("/")
    return folder in (FOLDER, FROZEN_FOLDER) and _is_name(file)


def _is_name(file: str) -> bool:
    """Return whether a text may name a file of a folder."""
    return file not in ("", ".", "..") and not {"/", "\0"} & set(file)


def _unnamed(
    names: Iterable[str], manifests: Mapping[int, _Manifest | None], writers: Collection[str] = ()
) -> list[str]:
    """Files of checkpoints that none of these manifests names, and none of these writers made.

    What a damaged manifest named is not known: it may be any file beside it.
    """
    found = []
    for name in sorted(names):
        folder, _, file = name.partition("/")
        step = _step_of(folder)
        if step is None or file == _MANIFEST or file.partition("-")[0] in writers:
            continue
        manifest = manifests.get(step)
        if step not in manifests or (manifest and file != manifest.file.name):
            found.append(name)
    return found


def _write_manifest(manifest: _Manifest) -> bytes:
    fields = msgspec.to_builtins(manifest)
    return json.dumps({**fields, "manifest_sha256": _checksum(fields)}).encode()


def _read_manifest(content: bytes, path: str) -> _Manifest:
    """Decode a manifest.

    Raises EnvironmentFault where the bytes are no manifest of this version.
    """
    try:
        fields = json.loads(content)
        if not isinstance(fields, dict) or fields.get("manifest_sha256") != _checksum(fields):
            raise EnvironmentFault(f"{path} is damaged: it does not have its own checksum")
        if fields.get("format") not in _READABLE:
            raise EnvironmentFault(
                f"{path} has format {fields.get('format')}, this version reads {_FORMAT}"
            )
        manifest = msgspec.convert(fields, _Manifest)
    except UNDECODABLE as error:
        raise EnvironmentFault(f"{path} is damaged: {error}") from error
    if not all(map(_is_part, manifest.parts)) or not all(
        is_chain(table.parts) for table in manifest.tables
    ):
        raise EnvironmentFault(f"{path} is damaged: its tables do not consist of bases and deltas")
    return manifest


def _checksum(manifest: Mapping[str, Any]) -> str:
    rest = {key: value for key, value in manifest.items() if key != "manifest_sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()
