"""Files of rows: the keys and values of an embedding, and changes in them.

Keys are ascending int64: the row numbers of an ordinary embedding, or ids of any size, of which
there are more or fewer from version to version. A file is safetensors, mapped rather than read:
several views share its pages, and a page that is written to becomes the view's own.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor

from brim.decoding import UNDECODABLE
from brim.errors import EnvironmentFault
from brim.host.untrusted import open_regular

_LENGTH = struct.Struct("<Q")
_LARGEST_HEADER = 16 << 20  # bytes
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_COMPARED_ROWS = 1 << 20  # rows that are compared at once
_SAME_SIZE = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}


class EmbeddingRows(NamedTuple):
    """The rows of an embedding.

    Args:
        keys: ascending, each once; int64, shape [N].
        values: of the rows, shape [N, D].
    """

    keys: Tensor
    values: Tensor


class RowChange(NamedTuple):
    """The rows in which one version differs from another.

    Args:
        rows: that are new or have other values.
        removed: keys of rows that are no more; ascending.
    """

    rows: EmbeddingRows
    removed: Tensor


class FileCopy:
    """The content of a file, in private memory.

    Args:
        path: of the file, for messages.
        descriptor: of the memory, which is closed with this.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path, self.descriptor = path, descriptor
        weakref.finalize(self, os.close, descriptor)


# Files --------------------------------------------------------------------------------------------


def write_rows(path: Path, rows: EmbeddingRows) -> None:
    save_file({"keys": rows.keys.contiguous(), "values": rows.values.detach().contiguous()}, path)


def write_change(path: Path, change: RowChange) -> None:
    save_file(
        {
            "keys": change.rows.keys.contiguous(),
            "values": change.rows.values.detach().contiguous(),
            "removed": change.removed.contiguous(),
        },
        path,
    )


def open_rows(file: Path | FileCopy) -> EmbeddingRows:
    """Map a file of rows, or the copy of one; writes are of this view alone.

    Raises:
        EnvironmentFault: it is none.
    """
    tensors = open_tensors(file)
    rows = EmbeddingRows(tensors.get("keys", torch.empty(0)), tensors.get("values", torch.empty(0)))
    if not _are_rows(rows):
        raise EnvironmentFault(f"{_path_of(file)} is damaged: it has no rows by ascending keys")
    return rows


def open_change(file: Path | FileCopy) -> RowChange:
    """Map a file of changed rows, or the copy of one; raises as `open_rows`."""
    removed = open_tensors(file).get("removed", torch.empty(0))
    if removed.dtype is not torch.int64 or removed.dim() != 1 or not _ascends(removed):
        raise EnvironmentFault(
            f"{_path_of(file)} is damaged: it does not say by ascending keys what is removed"
        )
    return RowChange(open_rows(file), removed)


def _are_rows(rows: EmbeddingRows) -> bool:
    keys, values = rows
    fits = keys.dtype is torch.int64 and keys.dim() == 1 and values.dim() == 2
    return fits and len(keys) == len(values) and _ascends(keys)


def _ascends(keys: Tensor) -> bool:
    return bool((keys[1:] > keys[:-1]).all()) and (not len(keys) or int(keys[0]) >= 0)


def _path_of(file: Path | FileCopy) -> Path:
    return file.path if isinstance(file, FileCopy) else file


def open_tensors(file: Path | FileCopy) -> dict[str, Tensor]:
    """Map a safetensors file, or the copy of one: pages are copied when they are written to.

    Raises:
        EnvironmentFault: it is none.
    """
    path = _path_of(file)
    try:
        descriptor = os.dup(file.descriptor) if isinstance(file, FileCopy) else open_regular(file)
        try:
            size = os.fstat(descriptor).st_size
            memory = mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY)
        finally:
            os.close(descriptor)
        (length,) = _LENGTH.unpack_from(memory)
        if length > min(_LARGEST_HEADER, size):
            raise ValueError(f"its header would have {length} bytes")
        first = _LENGTH.size + length
        header = json.loads(memory[_LENGTH.size : first])
        header.pop("__metadata__", None)
        return {name: _tensor(memory, first, entry) for name, entry in header.items()}
    except OSError as error:
        raise EnvironmentFault(f"cannot read {path}: {error.strerror}") from error
    except (
        LookupError,
        TypeError,
        AttributeError,
        RuntimeError,
        struct.error,
        *UNDECODABLE,
    ) as error:
        raise EnvironmentFault(f"{path} is damaged: {error}") from error


def _tensor(memory: mmap.mmap, first: int, entry: dict[str, Any]) -> Tensor:
    dtype, shape = _DTYPES[entry["dtype"]], torch.Size(entry["shape"])
    start, stop = entry["data_offsets"]
    count = shape.numel()
    if not 0 <= start <= stop <= len(memory) - first or stop - start != count * dtype.itemsize:
        raise ValueError("a tensor lies beyond the end of the file")
    if not count:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype, count=count, offset=first + start).view(shape)


# Changes ------------------------------------------------------------------------------------------


def change_between(old: EmbeddingRows, new: EmbeddingRows) -> RowChange:
    """Find the rows whose bits are others now, and the keys that are gone."""
    places = _places_of(new.keys, old.keys)
    changed = places < 0
    shared = (places >= 0).nonzero().squeeze(1)
    for chunk in torch.split(shared, _COMPARED_ROWS):
        new_bits, old_bits = _bits(new.values[chunk]), _bits(old.values[places[chunk]])
        changed[chunk] = (new_bits != old_bits).any(1)
    removed = _places_of(old.keys, new.keys) < 0
    return RowChange(EmbeddingRows(new.keys[changed], new.values[changed]), old.keys[removed])


def _bits(values: Tensor) -> Tensor:
    return values.contiguous().view(_SAME_SIZE[values.dtype.itemsize])


def _places_of(keys: Tensor, other_keys: Tensor) -> Tensor:
    """Return where each key is among others.

    -1 where it is not.
    """
    if not len(other_keys):
        return torch.full_like(keys, -1)
    places = torch.searchsorted(other_keys, keys).clamp_(max=len(other_keys) - 1)
    return torch.where(other_keys[places] == keys, places, -1)


def check_change(rows: EmbeddingRows, change: RowChange) -> str:
    """Say why a change does not fit these rows; empty where it does."""
    values = change.rows.values
    if values.shape[1:] != rows.values.shape[1:] or values.dtype != rows.values.dtype:
        actual, need = (
            f"[{tensor.shape[1]}] of {tensor.dtype}" for tensor in (values, rows.values)
        )
        return f"its rows are {actual}, those of the embedding {need}"
    if bool((_places_of(change.removed, rows.keys) < 0).any()):
        return "it removes rows that there are not"
    if bool((_places_of(change.removed, change.rows.keys) >= 0).any()):
        return "it removes rows that it changes"
    return ""


def put(rows: EmbeddingRows, change: RowChange) -> EmbeddingRows:
    """Change rows: in place where all of them are there, else in a copy."""
    places = _places_of(change.rows.keys, rows.keys)
    if not len(change.removed) and bool((places >= 0).all()):
        rows.values.index_copy_(0, places, change.rows.values)
        return rows
    stays = torch.ones(len(rows.keys), dtype=torch.bool)
    stays[places[places >= 0]] = False
    stays[_places_of(change.removed, rows.keys)] = False
    remaining_keys, new = rows.keys[stays], change.rows.keys
    insert_places = torch.searchsorted(remaining_keys, new) + torch.arange(
        len(new)
    )  # both ascend: so do they merged
    is_new = torch.zeros(len(remaining_keys) + len(new), dtype=torch.bool)
    is_new[insert_places] = True
    keys, values = (
        new.new_empty(len(is_new)),
        rows.values.new_empty((len(is_new), rows.values.shape[1])),
    )
    keys[is_new], keys[~is_new] = new, remaining_keys
    values[is_new], values[~is_new] = change.rows.values, rows.values[stays]
    return EmbeddingRows(keys, values)


class Sides:
    """The rows of all embeddings twice over one file: one side is read while the other is written.

    Pages that nobody wrote to are those of the file on both sides, so this costs the memory of what
    changed.

    Args:
        files: by the name of the weight; nobody writes to them.

    Raises:
        EnvironmentFault: a file is damaged.
    """

    def __init__(self, files: Mapping[str, Path | FileCopy]) -> None:
        self.now, self._spare = (
            {name: open_rows(file) for name, file in files.items()} for _ in range(2)
        )
        self._missed: list[dict[str, RowChange]] = []  # by the spare side
        self._is_whole = True

    def change(self, changes: dict[str, RowChange]) -> dict[str, EmbeddingRows]:
        """Change the rows on the side that is not read, and make it the side that is.

        No request may still read it.

        Args:
            changes: by the name of the weight; they fit, as `check_change` has it.

        Raises:
            EnvironmentFault: an earlier change was cut off.
        """
        if not self._is_whole:
            raise EnvironmentFault(
                "an earlier delta could not be applied to the end: a bundle is needed"
            )
        self._is_whole = False
        side = self._spare
        for changes_missed in (*self._missed, changes):
            for name, change in changes_missed.items():
                side[name] = put(side[name], change)
        self.now, self._spare, self._missed = side, self.now, [changes]
        self._is_whole = True
        return side
