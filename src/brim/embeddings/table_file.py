"""Rows of a table to and from the bytes of a file.

A safetensors file with keys, fields, and when each row changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from brim.decoding import UNDECODABLE
from brim.domain.quantities import counted
from brim.embeddings.tables.changes import Changes
from brim.errors import EnvironmentFault
from brim.tensors.file_layout import copy_to, lay_out

WEIGHT = "weight"  # the name of a table's field; all others are the optimizer's
LARGEST = 128 << 20  # bytes of a file, about
_KEYS, _CHANGED = "keys", "changed"
_FIELD = "field."
_INT64_BYTES = 8
_KEY_BITS = 63


class Chunk(NamedTuple):
    """Some rows of a table.

    Args:
        keys: ascending, each once; int64, [N].
        fields: such as the weight, and the optimizer's state of each row; [N, D] each.
        changed: the committed step that wrote each row last; int64, [N].
    """

    keys: Tensor
    fields: Mapping[str, Tensor]
    changed: Tensor

    def rows(self, start: int, stop: int) -> Chunk:
        """Return the rows of these places: views, not copies."""
        fields = {name: tensor[start:stop] for name, tensor in self.fields.items()}
        return Chunk(self.keys[start:stop], fields, self.changed[start:stop])

    def masked(self, chosen: Tensor) -> Chunk:
        """Return the rows where a mask is true (bool, [N])."""
        if bool(chosen.all()):
            return self
        return Chunk(
            self.keys[chosen],
            {name: tensor[chosen] for name, tensor in self.fields.items()},
            self.changed[chosen],
        )


class RowTable(Protocol):
    """A table as checkpoints see it, at a boundary between steps."""

    @property
    def name(self) -> str: ...

    @property
    def count(self) -> int:
        """Return how many rows there are.

        Rows that have gone may count for a while.
        """
        ...

    @property
    def oldest(self) -> tuple[int, ...]:
        """Return the first step whose rows are there, for each range of keys.

        As `StoredTable` has it.
        """
        ...

    @property
    def row_bytes(self) -> int:
        """Return the bytes of a row in a file."""
        ...

    def chunks(self, rows: int, *, since: int | None = None) -> Iterator[Chunk]:
        """Every row, or those that steps after `since` wrote.

        Up to so many at a time, by ascending keys.

        Any thread may ask, while steps are made: rows that change meanwhile may be torn, newer, or
        not there.
        """
        ...

    def follow(self, step: int) -> None:
        """Remember which rows steps after this one write."""
        ...

    def follows(self, step: int) -> bool:
        """Return whether rows that later steps wrote are remembered.

        If so, a scan of all rows is not needed then.
        """
        ...

    def changed_since(self, step: int) -> Chunk:
        """A copy of the rows that later steps wrote."""
        ...

    def count_since(self, step: int) -> int:
        """Return how many rows later steps wrote."""
        ...

    def put(self, chunk: Chunk) -> None:
        """Take rows in place of the present ones."""
        ...


class NumberedRows:
    """The table of an ordinary embedding.

    Its keys are the numbers of its rows, and none is ever removed.

    Args:
        name: of the parameter.
        fields: the weight, and the optimizer's state of each row; [R, D] each.
        changed: the committed step that wrote each row last; int64, [R].
        changes: which rows steps write, as told by an observer of the steps.
    """

    oldest: tuple[int, ...] = ()

    def __init__(
        self,
        name: str,
        fields: Mapping[str, Tensor],
        changed: Tensor,
        changes: Changes | None = None,
    ) -> None:
        self.name, self.fields, self.changed = name, fields, changed
        self._changes = changes

    @property
    def count(self) -> int:
        return len(self.changed)

    @property
    def row_bytes(self) -> int:
        return 2 * _INT64_BYTES + sum(tensor[:1].nbytes for tensor in self.fields.values())

    def chunks(self, rows: int, *, since: int | None = None) -> Iterator[Chunk]:
        if since is not None:
            keys = np.flatnonzero(self.changed.numpy() > since)
            for start in range(0, len(keys), rows):
                yield self._chunk_at(keys[start : start + rows])
            return
        whole = Chunk(torch.empty(0, dtype=torch.int64), self.fields, self.changed)
        for start in range(0, self.count, rows):
            stop = min(start + rows, self.count)
            places = torch.from_numpy(np.arange(start, stop, dtype=np.int64))
            yield whole.rows(start, stop)._replace(keys=places)

    def _chunk_at(self, places: npt.NDArray[np.int64]) -> Chunk:
        """A copy of some rows, by numpy: see `file_layout.copy_to`."""
        fields = {name: rows_taken(tensor.detach(), places) for name, tensor in self.fields.items()}
        changed = torch.from_numpy(self.changed.numpy()[places])
        return Chunk(torch.from_numpy(places), fields, changed)

    def follow(self, step: int) -> None:
        if self._changes is not None:
            self._changes.begin(step)

    def follows(self, step: int) -> bool:
        return self._changes is None or self._changes.keys_since(step) is not None

    def changed_since(self, step: int) -> Chunk:
        return self._chunk_at(self._keys_since(step))

    def count_since(self, step: int) -> int:
        return len(self._keys_since(step))

    def _keys_since(self, step: int) -> npt.NDArray[np.int64]:
        keys = None if self._changes is None else self._changes.keys_since(step)
        changed = self.changed.numpy()
        return np.flatnonzero(changed > step) if keys is None else keys[changed[keys] > step]

    @torch.no_grad()
    def put(self, chunk: Chunk) -> None:
        """Raises EnvironmentFault where they are rows of another table."""
        keys, shapes = chunk.keys, {name: tensor.shape[1:] for name, tensor in self.fields.items()}
        wrong = shapes != {name: tensor.shape[1:] for name, tensor in chunk.fields.items()}
        if wrong or (len(keys) and not 0 <= int(keys[0]) <= int(keys[-1]) < self.count):
            raise EnvironmentFault(
                f"{self.name} has {counted(self.count, 'row')} of {_shapes(shapes)}, what was stored has others"
            )
        if not len(keys):
            return
        first, last = int(keys[0]), int(keys[-1]) + 1
        is_run = last - first == len(keys)  # all of a base are: copying is quicker than scattering
        for name, field in (*self.fields.items(), (_CHANGED, self.changed)):
            rows = chunk.changed if field is self.changed else chunk.fields[name]
            if is_run:
                field[first:last].copy_(rows)
            else:
                field.index_copy_(0, keys, rows.to(field.dtype))


def are_there(rows: Chunk, oldest: Sequence[int]) -> Tensor:
    """Return whether each row is still there, as a `StoredTable` says it: bool, [N]."""
    shift = _KEY_BITS - (len(oldest).bit_length() - 1)
    return rows.changed >= torch.tensor(oldest)[rows.keys >> shift]


def rows_taken(field: Tensor, places: npt.NDArray[np.int64]) -> Tensor:
    """Some rows of a field, by their bytes: numpy does not know each type."""
    rows = field.view(torch.uint8).numpy().take(places, axis=0)
    return (
        torch.from_numpy(rows).view(field.dtype)
        if len(rows)
        else field.new_empty((0, *field.shape[1:]))
    )


def _shapes(shapes: Mapping[str, torch.Size]) -> str:
    return ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())


def to_bytes(rows: Chunk) -> bytearray:
    """Write a file."""
    tensors = {_KEYS: rows.keys, _CHANGED: rows.changed}
    tensors |= {_FIELD + name: tensor for name, tensor in rows.fields.items()}
    data, places = lay_out(tensors)
    for name, tensor in tensors.items():
        copy_to(places[name], tensor)
    return data


def from_bytes(data: bytes, *, path: str) -> Chunk:
    """Read a file.

    Raises:
        EnvironmentFault: the bytes are something else, although their checksum is right.
    """
    try:
        tensors = load(data)
        keys, changed = tensors.pop(_KEYS), tensors.pop(_CHANGED)
        fields = {name.removeprefix(_FIELD): tensor for name, tensor in tensors.items()}
        found = Chunk(keys, fields, changed)
        is_right = _are_numbers(keys) and bool((keys[1:] > keys[:-1]).all())
        is_right = is_right and _are_numbers(changed) and bool(fields)
        is_right = is_right and all(
            len(tensor) == len(keys) for tensor in (changed, *fields.values())
        )
    except (SafetensorError, LookupError, TypeError, *UNDECODABLE) as error:
        raise EnvironmentFault(f"{path} holds no rows of a table: {error}") from error
    if not is_right:
        raise EnvironmentFault(f"{path} holds no rows of a table")
    return found


def _are_numbers(tensor: Tensor) -> bool:
    return tensor.dtype == torch.int64 and tensor.dim() == 1
