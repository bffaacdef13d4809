"""The manifest of a bundle, `manifest.json`.

By it each file is known to be whole.

A bundle is a directory with everything that predictions need; a delta is one with what changed
since another version. Either is written beside its place and renamed: it is whole or absent.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from brim.decoding import UNDECODABLE
from brim.errors import EnvironmentFault, SpecError
from brim.host.untrusted import open_regular, read_regular
from brim.storage.files import sync_file, write_through
from brim.storage.ownership import check_ours

MANIFEST = "manifest.json"
DENSE = "dense.safetensors"  # all weights but rows
_FORMAT = 1
_MAX_MANIFEST_BYTES = 16 << 20  # bytes of a manifest
_PIECE = 1 << 22  # bytes that are read at once


class _BundleFile(msgspec.Struct, frozen=True, kw_only=True):
    bytes: int
    sha256: str


class BundledTable(msgspec.Struct, frozen=True, kw_only=True):
    """An embedding whose rows are in a file of their own.

    Args:
        name: of its weight, as the program has it.
        file: beside the manifest.
        keyed: its rows come and go: it is a `brim.Embedding`.
    """

    name: str
    file: str
    keyed: bool = False

    def sibling(self, name: str) -> str:
        """Return the full name of a part with this name beside the weight."""
        return f"{self.name.rpartition('.')[0]}.{name}"


class BundleManifest(msgspec.Struct, frozen=True, kw_only=True):
    """See the fields.

    Args:
        version: of the model: its step and the digest of its weights.
        step: of the checkpoint that it was made of.
        base: the version that a delta changes; empty for a bundle.
        weights_sha256: of the network.
        checkpoint, training_file: where it comes from, for people.
        threads: torch threads of the training's workers.
        versions: of what wrote it.
        columns_sha256: of what was fitted to the training rows; empty where the data has no
            columns.
        inputs: of the program, where there are no columns.
        nulls: texts that mean an empty cell.
        program: file of the traced model; empty where the training file makes it.
        code: the training file, where it is needed; empty where it is not.
        left_out: files that are needed and not in here, in words.
        tables: the embeddings that are files of rows.
        files: name -> size and checksum.
    """

    format: int = _FORMAT
    version: str
    step: int
    base: str = ""
    weights_sha256: str
    checkpoint: str
    training_file: str
    threads: int
    versions: dict[str, str]
    columns_sha256: str = ""
    inputs: Any = None
    nulls: list[str] = []
    program: str = ""
    code: str = ""
    left_out: list[str] = []
    tables: list[BundledTable] = []
    files: dict[str, _BundleFile] = {}


def version_of(step: int, weights_sha256: str) -> str:
    """Return the name of a model's version.

    >>> version_of(575, "1a2b3c4d5e6f7890")
    '00000575-1a2b3c4d5e6f'
    """
    return f"{step:08d}-{weights_sha256[:12]}"


def write_manifest(draft: Path, manifest: BundleManifest) -> BundleManifest:
    """Write the manifest of all files of a draft, which are synced first; return it."""
    files = {}
    for path in sorted(path for path in draft.rglob("*") if path.is_file()):
        sync_file(path)
        files[path.relative_to(draft).as_posix()] = _BundleFile(
            bytes=path.stat().st_size, sha256=_sha256(path)
        )
    whole = msgspec.structs.replace(manifest, files=files)
    fields = msgspec.to_builtins(whole)
    write_through(
        draft / MANIFEST,
        json.dumps({**fields, "manifest_sha256": _checksum(fields)}, indent=2).encode(),
    )
    return whole


def read_manifest(directory: Path) -> BundleManifest:
    """Read the manifest of a bundle or a delta.

    Raises:
        SpecError: this is none, or one that others may write to.
        EnvironmentFault: it is damaged, or of another version of brim.
    """
    path = directory / MANIFEST
    if not directory.is_dir() or not path.exists():
        actual = "no manifest.json" if directory.is_dir() else "no such directory"
        hint = f"brim export RUN --output {directory} --format bundle"
        raise SpecError(str(directory), got=actual, need="a bundle", hint=hint)
    check_ours(directory, field=str(directory))
    try:
        fields = json.loads(read_regular(path, at_most=_MAX_MANIFEST_BYTES))
        if not isinstance(fields, dict) or "format" not in fields:
            raise SpecError(
                str(directory),
                got="a manifest.json of other files",
                need="a bundle",
                hint="brim export RUN --output DIR --format bundle",
            )
        if fields.pop("manifest_sha256", None) != _checksum(fields):
            raise EnvironmentFault(f"{path} is damaged: it does not have its own checksum")
        if fields["format"] != _FORMAT:
            raise EnvironmentFault(
                f"{path} has format {fields['format']}, this version of brim reads {_FORMAT}: "
                "export it again"
            )
        manifest = msgspec.convert(fields, BundleManifest)
    except (OSError, *UNDECODABLE) as error:
        raise EnvironmentFault(f"{path} is damaged: {error}") from error
    for name in manifest.files:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise EnvironmentFault(
                f"{path} is damaged: it names {name!r}, which is not in this directory"
            )
    return manifest


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with os.fdopen(open_regular(path), "rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()


def _checksum(fields: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
