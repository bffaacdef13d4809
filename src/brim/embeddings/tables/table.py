"""One table: the rows of an embedding with the optimizer's state of each, and the log of a step.

An owner logs what is at the places that it is about to change, then changes them. A worker that
finds a log of a step that did not count puts back what was there: so a row is never half of one step
and half of another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from math import prod

import numpy as np
import torch
from torch import Tensor

from brim.embeddings.tables.changes import Changes
from brim.embeddings.tables.kernels import gather, put
from brim.tensors.raw import ALIGNMENT

MOST_OWNERS = 4096  # ranks of one host
WEIGHT = "weight"
_FIRST, _COUNT, _STEP = range(3)  # the head of an owner's log


class Table:
    """The rows of one embedding, in memory that is bound to it later.

    Args:
        name: of the parameter.
        shape: of the weight, [R, D].
        dtype: of the weight, and of what the optimizer keeps of each row.
        states: names of what the optimizer keeps of each row, of its shape.

    Attributes:
        fields: the weight and these, [R, D] each; what owners write.
        seen: the same for the user's code.
        kept_bytes: that the rows take; the log takes as many as a step changes.
        changed: the committed step that wrote each row last, from 1; 0 where none did. int64, [R].
        changes: places that steps wrote to, for who follows them.
    """

    fields: Mapping[str, Tensor]
    seen: Mapping[str, Tensor]
    changed: Tensor

    def __init__(
        self, name: str, shape: Sequence[int], dtype: torch.dtype, states: Sequence[str]
    ) -> None:
        self.name, self.shape, self.dtype = name, torch.Size(shape), dtype
        self.names = (WEIGHT, *states)
        rows = self.shape[0]
        arrays = [(self.shape, dtype)] * len(self.names) + [((rows,), torch.int64)]
        log = [((rows,), torch.int64), *arrays]
        self._parts = [*arrays, ((MOST_OWNERS, 3), torch.int64), *log]
        sizes = (_aligned(prod(part) * dtype.itemsize) for part, dtype in self._parts)
        self._bounds = list(accumulate(sizes, initial=0))
        self.size_bytes = self._bounds[-1]
        self.kept_bytes = self._bounds[len(arrays)]
        self.changes = Changes(rows=self.shape[0])

    def bind(self, shared: Tensor, seen: Tensor) -> None:
        """Take memory, uint8 of [size_bytes] each.

        One is for what owners write, the other shows the same to the user's code.
        """
        parts, count = self._split(shared), len(self.names)
        self.fields = dict(zip(self.names, parts, strict=False))
        self.seen = dict(zip(self.names, self._split(seen), strict=False))
        self.changed, self._heads = parts[count], parts[count + 1]
        self._places, *logged, self._logged_changed = parts[count + 2 :]
        self._logged = dict(zip(self.names, logged, strict=True))

    def _split(self, memory: Tensor) -> list[Tensor]:
        found = []
        for (shape, dtype), (start, stop) in zip(self._parts, pairwise(self._bounds), strict=True):
            used = memory[start : min(stop, start + prod(shape) * dtype.itemsize)]
            found.append(used.view(dtype).view(shape))
        return found

    @torch.no_grad()
    def fill(self, rows: Mapping[str, Tensor], changed: Tensor | None = None) -> None:
        """Put all rows in, while no other process uses the table."""
        self.clear()
        for name, field in self.fields.items():
            field.copy_(rows[name])
        if changed is None:
            self.changed.zero_()
        else:
            self.changed.copy_(changed)

    def clear(self) -> None:
        """Drop all that could be taken back: all rows are put in again."""
        self._heads.zero_()
        self.changes.forget()

    # A step ---------------------------------------------------------------------------------------

    @torch.no_grad()
    def log(self, places: Tensor, *, step: int, owner: int, at: int) -> dict[str, Tensor]:
        """Log the rows at some places, before they are written to.

        Args:
            places: int64, [N].
            step: that is about to be committed, from 1.
            owner: who writes; each has a log of its own.
            at: where in the log: a place that no other owner's part of this step reaches.

        Returns:
            The present values of each field, [N, D]: views of the log.
        """
        part = slice(at, at + len(places))
        self._places[part] = places
        gather(self.changed, places, self._logged_changed[part])
        for name, field in self.fields.items():
            gather(field, places, self._logged[name][part])
        head = self._heads[owner]
        head[_FIRST], head[_COUNT] = at, len(places)
        head[_STEP] = step  # last: from here on the log stands
        return {name: logged[part] for name, logged in self._logged.items()}

    @torch.no_grad()
    def write(self, places: Tensor, rows: Mapping[str, Tensor], *, step: int) -> None:
        """Write rows to places that were logged."""
        for name, field in self.fields.items():
            put(field, places, rows[name])
        put(self.changed, places, torch.full_like(places, step))

    def settle(self, step: int) -> None:
        """A step counts; no worker has begun to write the next."""
        if (first := self.changes.first) is None:
            return
        parts = []
        for owner in (self._heads[:, _STEP] == step).nonzero().flatten().tolist():
            start, count = self._heads[owner, :_STEP].tolist()
            part = slice(start, start + count)
            parts.append(self._places[part][self._logged_changed[part] <= first])
        self.changes.add(step, torch.cat(parts).numpy() if parts else np.empty(0, np.int64))

    @torch.no_grad()
    def take_back(self, committed: int) -> None:
        """Undo the writes for steps beyond the committed ones."""
        for owner in (self._heads[:, _STEP] > committed).nonzero().flatten().tolist():
            first, count = self._heads[owner, :_STEP].tolist()
            part = slice(first, first + count)
            places = self._places[part]
            for name, field in self.fields.items():
                put(field, places, self._logged[name][part])
            put(self.changed, places, self._logged_changed[part])
        self._heads[:, _STEP] = 0


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT
