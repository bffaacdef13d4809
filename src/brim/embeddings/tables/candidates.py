"""Ids that have no row yet, and in how many steps each was seen: rows are for ids that come again.

A partition that has no room for another candidate begins again in the next step: an id that comes
often is soon where it was. So what is admitted follows from the ids of the committed steps,
partition by partition, whichever worker counts.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from brim.embeddings.tables.index import Index, Shape

MAX_ADMIT_STEPS = (1 << 31) - 1  # steps that a candidate can be asked to be seen in


class Counted(NamedTuple):
    """The effect of a step on the candidates.

    Args:
        admitted: of each key that was looked at, whether it is to have a row; shape [N].
        known: keys that were candidates before.
        places: of these.
        before: in how many steps they had been seen.
        new: keys that become candidates.
        full: partitions that have no room for another.
    """

    admitted: Tensor
    known: Tensor
    places: Tensor
    before: Tensor
    new: Tensor
    full: Tensor


class Candidates:
    """Counts the steps in which ids without a row are seen.

    Keys are ascending, each once. Owners each have partitions of their own, as with an `Index`.

    Args:
        memory: uint8, `Candidates.bytes(shape)` long and aligned to 8 bytes; zeros at first.
        shape: of the index.
        admit_after: steps in which an id is seen until it has a row, from 2.

    Attributes:
        counts: of each place, in how many steps its key was seen; int32.
        changed: of each place, the committed step that counted its key last, from 1.
    """

    counts: Tensor
    changed: Tensor

    def __init__(self, memory: Tensor, shape: Shape, *, admit_after: int) -> None:
        parts = 8 * shape.partitions
        sizes = [shape.bytes, parts, parts, 8 * shape.all_places, 4 * shape.all_places]
        index, *words, counts = torch.split(memory[: sum(sizes)], sizes)
        self.index = Index(index, shape)
        # Of each partition the step before which it begins again, or 0; and that before which it
        # last did.
        self._full, self._first_steps, self.changed = (array.view(torch.int64) for array in words)
        self.counts = counts.view(torch.int32)
        self._admit_after = admit_after

    @staticmethod
    def bytes(shape: Shape) -> int:
        """Return the bytes of memory that candidates take."""
        return shape.bytes + 16 * shape.partitions + 12 * shape.all_places

    def begin(self, step: int, partitions: range) -> None:
        """Let those of some partitions that were full before a step begin again.

        This cannot be undone.
        """
        full = self._full[partitions.start : partitions.stop]
        cleared = (((full > 0) & (full <= step)).nonzero().flatten() + partitions.start).tolist()
        self.index.clear(cleared)
        self._first_steps[cleared] = self._full[cleared]
        self._full[cleared] = 0

    def look(self, keys: Tensor) -> Counted:
        """Return the effect of a step with these keys, none of which has a row; write nothing."""
        places = self.index.find(keys)
        has_candidate = places >= 0
        counts_before = self.counts[places[has_candidate]]
        admitted = torch.zeros(len(keys), dtype=torch.bool)
        admitted[has_candidate] = (
            _counts_after(counts_before, self._admit_after) >= self._admit_after
        )
        new = keys[~has_candidate]
        has_room = self.index.reserve(new) >= 0
        full = torch.unique(self.index.partitions_of(new[~has_room]))
        return Counted(
            admitted, keys[has_candidate], places[has_candidate], counts_before, new[has_room], full
        )

    def write(self, step: int, counted: Counted) -> None:
        """Write the changes that `look` found, in the step after so many."""
        self.counts[counted.places] = _counts_after(counted.before, self._admit_after)
        self.changed[counted.places] = step + 1
        self._full[counted.full] = step + 1
        places = self.index.reserve(counted.new)
        self.counts[places], self.changed[places] = 1, step + 1
        self.index.insert(counted.new, places)

    def clear(self, partitions: range) -> None:
        """Remove the candidates of some partitions."""
        self.index.clear(partitions)
        self._full[partitions.start : partitions.stop] = 0
        self._first_steps[partitions.start : partitions.stop] = 0

    def fill(self, keys: Tensor, counts: Tensor, changed: Tensor, first_steps: Tensor) -> None:
        """Take items of `items` and `first_steps`, as far as there is room, where there were none."""
        places = self.index.reserve(keys)
        has_room = places >= 0
        self.counts[places[has_room]], self.changed[places[has_room]] = (
            counts[has_room],
            changed[has_room],
        )
        self._first_steps.copy_(first_steps)
        self.index.insert(keys[has_room], places[has_room])

    def take_back(
        self,
        step: int,
        partitions: range,
        new: Tensor,
        places: Tensor,
        counts_before: Tensor,
        changed: Tensor,
    ) -> None:
        """Undo a `write` to some partitions, cut off or not, however often.

        Args:
            step: committed steps.
            partitions: that it wrote to.
            new, places, before: of its `Counted`.
            changed: what `changed` had of these places.
        """
        self.index.remove(new)
        self.counts[places], self.changed[places] = counts_before, changed
        full = self._full[partitions.start : partitions.stop]
        full[full > step] = 0

    def items(self, step: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the candidates after so many steps, ascending.

        With them their counts, and the steps that counted them last.
        """
        keys, places = self.index.items()
        stays = self.changed[places] > self.first_steps(step)[self.index.partitions_of(keys)]
        return keys[stays], self.counts[places[stays]], self.changed[places[stays]]

    def first_steps(self, step: int) -> Tensor:
        """Return of each partition the last step whose candidates are gone, after so many steps."""
        return torch.where((self._full > 0) & (self._full <= step), self._full, self._first_steps)


def _counts_after(counts_before: Tensor, admit_after: int) -> Tensor:
    """Counts after one more step: one that had led to a row, which is gone since, begins again."""
    return torch.where(counts_before >= admit_after, 0, counts_before) + 1
