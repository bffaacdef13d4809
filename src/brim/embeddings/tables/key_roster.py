"""The keys that have rows.

A key comes with an update, and goes when it had none for long.

A row is there or not as a function of the steps that were committed, whichever worker owns its
partition and whenever memory is reclaimed. A row whose time is over counts as absent at once; its
place is free from the next step on that reclaims.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from brim.embeddings.tables.candidates import Candidates, Counted
from brim.embeddings.tables.index import Index, Shape


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules by which a key has a row.

    Args:
        limit: rows that there is room for.
        admit_after: steps in which an id is seen until it has a row.
        expire_after: steps without an update after which a row is gone; None keeps it.
    """

    limit: int
    admit_after: int = 1
    expire_after: int | None = None

    def reclaims(self, step: int) -> bool:
        """Return whether the step after so many frees the places of expired rows."""
        return self.expire_after is not None and step % max(1, self.expire_after // 4) == 0

    @property
    def shape(self) -> Shape:
        """Shape of the rows' index."""
        return Shape.for_keys(self.limit)

    @property
    def candidates(self) -> Shape:
        """Shape of the candidates' index.

        Partitions are the same, so that they have the same owners.
        """
        return Shape.for_keys(max(1, self.limit // 2), partitions=self.shape.partitions)

    @property
    def bytes(self) -> int:
        """Bytes of memory that a roster takes."""
        waiting = Candidates.bytes(self.candidates) if self.admit_after > 1 else 0
        return self.shape.bytes + 8 * self.shape.all_places + waiting


class KeyRosterChange(NamedTuple):
    """The effect of a step on a roster.

    Args:
        number: of the keys that were looked at, those that have a row after the step; shape [M],
            ascending.
        places: of these rows.
        is_fresh: which of them begin with this step.
        created: keys that take a place with this step.
        counted: what becomes of the candidates, where there are any.
        refused: keys that would have a row if there were room.
    """

    number: Tensor
    places: Tensor
    is_fresh: Tensor
    created: Tensor
    counted: Counted | None
    refused: int


class KeyRoster:
    """Knows which keys have rows, and where.

    Keys are ascending, each once. Steps are counted from 0: the step `n` comes after `n` committed
    ones. Readers take no lock: nobody may write meanwhile. Each partition has one owner.

    Args:
        memory: uint8, `rules.bytes` long and aligned to 8 bytes; zeros at first.
        rules: who has a row.

    Attributes:
        changed: of each place, the committed step that wrote its row last, from 1.
        candidates: for a row; None where every id has one at once.
    """

    def __init__(self, memory: Tensor, rules: Rules) -> None:
        shape = rules.shape
        self.rules, self.index = rules, Index(memory[: shape.bytes], shape)
        changed = shape.bytes + 8 * shape.all_places
        self.changed = memory[shape.bytes : changed].view(torch.int64)
        self.candidates = (
            Candidates(memory[changed:], rules.candidates, admit_after=rules.admit_after)
            if rules.admit_after > 1
            else None
        )

    # Reading --------------------------------------------------------------------------------------

    def find(self, keys: Tensor, step: int) -> Tensor:
        """Return the place of each key's row in a step, -1 where it has none."""
        places = self.index.find(keys)
        places[~self._is_there(places, step)] = -1
        return places

    def items(self, step: int, partitions: range | None = None) -> tuple[Tensor, Tensor]:
        """Return the keys of some partitions that have a row in a step, and their places.

        Keys ascend.
        """
        keys, places = self.index.items(partitions)
        is_present = self._is_there(places, step)
        return keys[is_present], places[is_present]

    def look(self, keys: Tensor, step: int) -> KeyRosterChange:
        """Return the effect of a step that has gradients for these keys; write nothing."""
        places = self.index.find(keys)
        absent = ~self._is_there(places, step)
        counted = None
        admitted = absent.clone()
        if self.candidates is not None:
            counted = self.candidates.look(keys[absent])
            admitted[absent] = counted.admitted
        new = admitted & (places < 0)
        places[new] = self.index.reserve(keys[new])
        has_row = (~absent | admitted) & (places >= 0)
        return KeyRosterChange(
            number=has_row.nonzero().flatten(),
            places=places[has_row],
            is_fresh=absent[has_row],
            created=keys[new & has_row],
            counted=counted,
            refused=int((admitted & ~has_row).sum()),
        )

    def oldest(self, step: int) -> int:
        """Return the first step whose rows are there after so many."""
        lifetime = self.rules.expire_after
        return 0 if lifetime is None else step + 1 - lifetime

    # Writing --------------------------------------------------------------------------------------

    def begin(self, step: int, partitions: range) -> None:
        """Free the places of rows of some partitions whose time is over, where the step does so.

        To be undone by nobody: these rows were absent before. Cut off, it is done again with the
        step.
        """
        if self.candidates is not None:
            self.candidates.begin(step, partitions)
        if self.rules.reclaims(step):
            keys, places = self.index.items(partitions)
            self.index.remove(keys[~self._is_there(places, step)])
            self.index.mend(partitions)

    def write(self, step: int, change: KeyRosterChange) -> None:
        """Write the changes that `look` found."""
        if self.candidates is not None and change.counted is not None:
            self.candidates.write(step, change.counted)
        self.changed[change.places] = step + 1
        self.index.insert(change.created, self.index.reserve(change.created))

    def clear(self) -> None:
        """Remove all rows and candidates."""
        all_partitions = range(self.index.shape.partitions)
        self.index.clear(all_partitions)
        if self.candidates is not None:
            self.candidates.clear(all_partitions)

    def take_back(self, created: Tensor, places: Tensor, changed: Tensor) -> None:
        """Undo a `write`, cut off or not, however often; candidates have their own.

        Args:
            created: keys that it gave a place.
            places: that it wrote to.
            changed: what these had before.
        """
        self.index.remove(created)
        self.changed[places] = changed

    def _is_there(self, places: Tensor, step: int) -> Tensor:
        is_present = places >= 0
        if self.rules.expire_after is not None:
            is_present &= self.changed[places.clamp(min=0)] >= self.oldest(step)
        return is_present
