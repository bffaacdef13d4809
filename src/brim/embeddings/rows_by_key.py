"""A table whose keys come and go, as checkpoints see it.

It is read while steps are made, as an ordinary one is; and here a place may get another key
meanwhile. So the reader of a row asks last when it changed: what changed after the boundary at
which reading began is left out, since the next delta has it, if it is still there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from brim.embeddings.table_file import Chunk, rows_taken
from brim.embeddings.tables.changes import Changes
from brim.embeddings.tables.index import Index
from brim.errors import EnvironmentFault, SpecError

_Words = NDArray[np.int64]
_NO_ROWS = np.empty(0, np.int64)


class RowsByKey:
    """The rows of keys, and further state of each.

    Args:
        name: of the table.
        index: where the row of a key lies.
        fields: of each place; [P, D] each.
        changed: of each place, the committed step that wrote its row last; int64, [P].
        step: committed steps.
        oldest: of each of so many ranges of keys the first step whose rows are there, as
            `StoredTable` has it.
        changes: which keys steps write to, as somebody tells it who sees them.
    """

    def __init__(
        self,
        name: str,
        index: Index,
        fields: Mapping[str, Tensor],
        changed: Tensor,
        *,
        step: int,
        oldest: tuple[int, ...],
        changes: Changes,
    ) -> None:
        self.name, self.fields, self.oldest = name, fields, oldest
        self._index, self._changed, self._step, self._changes = index, changed, step, changes

    @property
    def count(self) -> int:
        return self._index.used()

    @property
    def row_bytes(self) -> int:
        return 16 + sum(tensor[:1].nbytes for tensor in self.fields.values())

    # Reading --------------------------------------------------------------------------------------

    def chunks(self, rows: int, *, since: int | None = None) -> Iterator[Chunk]:
        first_step = -1 if since is None else since
        keys, places = _NO_ROWS, _NO_ROWS
        is_owed = since is None  # a base has a file, even if there is nothing in it
        for part in range(self._index.shape.partitions):
            more_items = self._items(part, first_step)
            keys, places = (
                np.concatenate([keys, more_items[0]]),
                np.concatenate([places, more_items[1]]),
            )
            while len(keys) >= rows:
                yield self._chunk_at(keys[:rows], places[:rows], first_step)
                keys, places, is_owed = keys[rows:], places[rows:], False
        if len(keys) or is_owed:
            yield self._chunk_at(keys, places, first_step)

    def follow(self, step: int) -> None:
        self._changes.begin(step)

    def follows(self, step: int) -> bool:
        return self._changes.keys_since(step) is not None

    def changed_since(self, step: int) -> Chunk:
        return self._chunk_at(*self._items_since(step), step)

    def count_since(self, step: int) -> int:
        return len(self._items_since(step)[0])

    def _items_since(self, step: int) -> tuple[_Words, _Words]:
        """The keys that later steps wrote to, and their places."""
        keys = self._changes.keys_since(step)
        if keys is None:
            parts = [self._items(part, step) for part in range(self._index.shape.partitions)]
            found = [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]
            return found[0], found[1]
        places = self._index.find(torch.from_numpy(keys)).numpy()
        found = [array[places >= 0] for array in (keys, places)]
        is_in = self._is_in(found[0], self._changed.numpy()[found[1]], step)
        return found[0][is_in], found[1][is_in]

    def _items(self, part: int, after_step: int) -> tuple[_Words, _Words]:
        """The keys of a partition that later steps wrote to, ascending, and their places."""
        keys, places = (tensor.numpy() for tensor in self._index.items(range(part, part + 1)))
        is_in = self._is_in(keys, self._changed.numpy()[places], after_step)
        return keys[is_in], places[is_in]

    def _is_in(self, keys: _Words, changed: _Words, after_step: int) -> NDArray[np.bool_]:
        """Return whether rows are there at the boundary, and were written since a step.

        `changed` has the last step that wrote each.
        """
        oldest = np.array(self.oldest or (0,))
        ranges = keys >> (63 - (len(oldest).bit_length() - 1))
        is_in: NDArray[np.bool_] = (
            (changed > after_step) & (changed <= self._step) & (changed >= oldest[ranges])
        )
        return is_in

    def _chunk_at(self, keys: _Words, places: _Words, after_step: int) -> Chunk:
        """A copy of some rows, by numpy: see `file_layout.copy_to`."""
        fields = {name: rows_taken(tensor.detach(), places) for name, tensor in self.fields.items()}
        changed = self._changed.numpy()[places]  # last
        chunk = Chunk(torch.from_numpy(keys), fields, torch.from_numpy(changed))
        return chunk.masked(torch.from_numpy(self._is_in(keys, changed, after_step)))

    # Writing --------------------------------------------------------------------------------------

    @torch.no_grad()
    def put(self, chunk: Chunk) -> None:
        """Take rows in place of the present ones.

        Raises:
            EnvironmentFault: they are rows of another table.
            SpecError: there is no room for as many.
        """
        shapes = {name: tensor.shape[1:] for name, tensor in self.fields.items()}
        if shapes != {name: tensor.shape[1:] for name, tensor in chunk.fields.items()}:
            raise EnvironmentFault(f"{self.name} has other columns than what was stored")
        if not len(chunk.keys):
            return
        if int(chunk.keys[0]) < 0:
            raise EnvironmentFault(f"{self.name} has keys that none can have")
        places = self._index.find(chunk.keys)
        is_new = places < 0
        new = chunk.keys[is_new]
        reserved = self._index.reserve(new)
        if len(new) and int(reserved.min()) < 0:
            raise SpecError(
                f"the limit of embedding {self.name!r}",
                got="a checkpoint with more rows than there is room for",
                need="a limit as large as it was",
            )
        places[is_new] = reserved
        for name, field in self.fields.items():
            field.index_copy_(0, places, chunk.fields[name].to(field.dtype))
        self._changed.index_copy_(0, places, chunk.changed)
        self._index.insert(new, reserved)
