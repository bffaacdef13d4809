"""An index of keys: a hash table in shared memory that says where a key's row lies.

The memory is cut into partitions by the keys' highest bits. Each has its own buckets, places and
counter; so an owner writes to its partitions and asks nobody. A bucket has 8 keys, which is a cache
line, and beside it their places. Bits behind those of the partition choose the bucket: ascending
keys walk through memory in its order.

A key lies in its own bucket, or in one behind it where all before are full. Memory of zeros is an
empty table: keys are kept inverted, and so are never zero. A removed key leaves a mark as long as
some key lies behind it: no search ends too early, whenever a writer dies.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from brim.embeddings.tables.keys import BITS
from brim.errors import InternalError

_Words = NDArray[np.int64]
_Flags = NDArray[np.bool_]

_LINE = 64  # bytes
_WORDS = _LINE // 8
_FEWEST, _LARGEST = 64, 1 << 18  # partitions; places in one, from which on there are more of them
_LOAD = 0.75  # of the buckets, when all places are taken
_EMPTY, _REMOVED = 0, 1
_SPREAD_BITS = 31  # of a key, which choose the bucket


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of an index.

    Args:
        places: that each partition has.
        partitions: a power of two.
    """

    places: int
    partitions: int

    @classmethod
    def for_keys(cls, limit: int, *, partitions: int = _FEWEST) -> Shape:
        """Return the shape for so many keys.

        Chance gives some partitions more keys than others, and all have room.

        Args:
            limit: keys.
            partitions: that there are at least.
        """
        while limit > partitions * _LARGEST:
            partitions *= 2
        average = limit / partitions
        return cls(math.ceil(average + 4 * math.sqrt(average) + 4), partitions)

    @property
    def all_places(self) -> int:
        """Places that an index has, of all its partitions."""
        return self.places * self.partitions

    @property
    def buckets(self) -> int:
        """Buckets of a partition."""
        return math.ceil(self.places / _LOAD / _WORDS) + 1

    @property
    def lines(self) -> int:
        """Cache lines of a partition.

        They hold its counter, buckets with their places, and the order of places.
        """
        return 1 + 2 * self.buckets + -(-self.places * 4 // _LINE)

    @property
    def bytes(self) -> int:
        """Bytes of memory that an index takes."""
        return self.partitions * self.lines * _LINE


class Index:
    """Finds the places of keys.

    All keys that a method takes are ascending, each once. Readers take no lock: nobody may write
    meanwhile. One owner writes to a partition.

    Args:
        memory: uint8, `shape.bytes` long and aligned to 8 bytes; zeros at first.
        shape: of the index.
    """

    def __init__(self, memory: Tensor, shape: Shape) -> None:
        self.shape = shape
        self._words: _Words = memory.numpy().view(np.int64)
        self._lines = self._words.reshape(-1, _WORDS)
        self._parts = self._words.reshape(shape.partitions, -1)
        self._shift = BITS - (shape.partitions.bit_length() - 1)

    # Reading --------------------------------------------------------------------------------------

    def find(self, keys: Tensor) -> Tensor:
        """Return the place of each key, -1 where it has none."""
        slots = self._slots(keys.numpy())
        places = self._words.take(slots + _WORDS)  # beside its key
        places[slots < 0] = -1
        return torch.from_numpy(places)

    def reserve(self, keys: Tensor) -> Tensor:
        """Return the places that `insert` would give to new keys, and write nothing.

        -1 where a partition has none left.
        """
        parts, rank = _ranked(keys.numpy() >> self._shift)
        number = rank + self._parts[parts, 0]
        has_room = number < self.shape.places
        places = np.full(len(number), -1, np.int64)
        parts, number = parts[has_room], number[has_room]
        places[has_room] = parts * self.shape.places + number + self._moved(parts, number)
        return torch.from_numpy(places)

    def partitions_of(self, keys: Tensor) -> Tensor:
        """Return the partition of each key."""
        return keys >> self._shift

    def used(self) -> int:
        """Return the number of keys."""
        return int(self._parts[:, 0].sum())

    def items(self, partitions: range | None = None) -> tuple[Tensor, Tensor]:
        """Return the keys of some partitions, ascending, and their places."""
        partitions = range(self.shape.partitions) if partitions is None else partitions
        keys, places = self._pairs(partitions)
        occupied = np.flatnonzero(keys < 0)
        occupied = occupied[np.argsort(~keys[occupied])]
        return torch.from_numpy(~keys[occupied]), torch.from_numpy(places[occupied])

    # Writing --------------------------------------------------------------------------------------

    def insert(self, keys: Tensor, places: Tensor) -> None:
        """Add keys.

        Args:
            keys: new ones.
            places: that `reserve` gave them; none is -1.

        Raises:
            InternalError: these places are not the next.
        """
        if not torch.equal(places, self.reserve(keys)) or (len(places) and int(places.min()) < 0):
            raise InternalError("keys must be inserted at consecutive slots")
        words_of_keys, numbers, lines = ~keys.numpy(), places.numpy(), self._homes(keys.numpy())
        parts, counts = np.unique(keys.numpy() >> self._shift, return_counts=True)
        while len(words_of_keys):
            lines, rank = _ranked(lines)
            free = self._lines.take(lines, axis=0) >= 0
            nth = free.cumsum(1)
            fits = rank < nth[:, -1]
            slots = lines * _WORDS + (free & (nth == rank[:, None] + 1)).argmax(1)
            self._write(slots[fits] + _WORDS, numbers[fits])
            self._write(slots[fits], words_of_keys[fits])
            order = np.argsort(self._next(lines[~fits]), kind="stable")
            words_of_keys, numbers = words_of_keys[~fits][order], numbers[~fits][order]
            lines = self._next(lines[~fits])[order]
        self._write(parts * self._parts.shape[1], self._parts[parts, 0] + counts)

    def remove(self, keys: Tensor) -> None:
        """Remove keys, if they are there.

        This also mends what an `insert` or a `remove` of these keys left that was cut off anywhere.
        """
        slots = self._slots(keys.numpy())
        self._write(slots[slots >= 0], _REMOVED)
        self.mend(np.unique(keys.numpy() >> self._shift).tolist())

    def mend(self, partitions: Iterable[int]) -> None:
        """Finish a `remove` that was cut off.

        Clear marks that are not needed, and count used places.
        """
        for part in partitions:
            first = part * self.shape.lines + 1
            slots = np.flatnonzero(self._pairs(range(part, part + 1))[0] == _REMOVED)
            marked = np.unique(first + slots // _WORDS * 2)
            clear = marked[~self._is_passed(marked)]
            marks = np.flatnonzero(self._lines[clear] == _REMOVED)
            self._write(clear[marks // _WORDS] * _WORDS + marks % _WORDS, _EMPTY)
            self._count(part)

    def clear(self, partitions: Iterable[int]) -> None:
        """Remove all keys of some partitions.

        Cut off, it must be called again before anything else is.
        """
        size = self._parts.shape[1]
        for part in partitions:
            self._write(np.arange(part * size, (part + 1) * size), 0)

    def _count(self, part: int) -> None:
        """Write the order of a partition's places, and how many are taken.

        Both follow from what is in its buckets.
        """
        size = self.shape.places
        keys, places = self._pairs(range(part, part + 1))
        used = np.zeros(size, np.bool_)
        used[places[keys < 0] - part * size] = True
        order = np.concatenate([np.flatnonzero(used), np.flatnonzero(~used)])
        moved = np.zeros(-(-size // 2) * 2, np.int32)
        moved[:size] = order - np.arange(size)
        start = part * self._parts.shape[1]
        words = moved.view(np.int64)
        self._write(start + self._order_word + np.arange(len(words)), words)
        self._write(np.array([start]), np.array([np.count_nonzero(used)]))

    def _write(self, words: _Words, values: Any) -> None:
        """All that is ever written is written here, in the order of `words`."""
        self._words[words] = values

    # Buckets --------------------------------------------------------------------------------------

    @property
    def _order_word(self) -> int:
        """Return the word at which the order of a partition's places begins.

        It is stored as 32-bit differences from its own order.
        """
        return (1 + 2 * self.shape.buckets) * _WORDS

    def _pairs(self, partitions: range) -> tuple[_Words, _Words]:
        """Return the content of some partitions' slots.

        Inverted keys, where there are any, and their places.
        """
        lines = self._parts[partitions.start : partitions.stop, _WORDS : self._order_word]
        pairs = lines.reshape(len(partitions), -1, 2, _WORDS)
        return pairs[:, :, 0].ravel(), pairs[:, :, 1].ravel()

    def _moved(self, parts: _Words, numbers: _Words) -> _Words:
        halves = self._words.view(np.int32)
        return halves.take((parts * self._parts.shape[1] + self._order_word) * 2 + numbers).astype(
            np.int64
        )

    def _homes(self, keys: _Words) -> _Words:
        """The line of each key's own bucket."""
        spread = (keys >> (self._shift - _SPREAD_BITS)) & ((1 << _SPREAD_BITS) - 1)
        bucket = (spread * self.shape.buckets) >> _SPREAD_BITS
        return (keys >> self._shift) * self.shape.lines + 1 + 2 * bucket

    def _next(self, lines: _Words) -> _Words:
        """The buckets behind some; the first of a partition is behind its last."""
        round_trip = 2 * self.shape.buckets
        is_last = lines % self.shape.lines == round_trip - 1
        following: _Words = lines + 2 - is_last * round_trip
        return following

    def _slots(self, keys: _Words) -> _Words:
        """The word that has each key, -1 where none has."""
        lines, want = self._homes(keys), ~keys
        found, unfound = np.full(len(keys), -1), np.arange(len(keys))
        for _ in range(self.shape.buckets):
            bucket = self._lines.take(lines, axis=0)
            matches = np.flatnonzero(bucket == want[:, None])
            hit = matches // _WORDS
            found[unfound[hit]] = lines[hit] * _WORDS + matches % _WORDS
            if len(hit) == len(unfound):
                break
            open_ = np.ones(len(unfound), np.bool_)
            open_[hit] = False
            passed = np.flatnonzero(open_)
            passed = passed[(bucket[passed] != _EMPTY).all(1)]
            if not len(passed):
                break
            unfound, want, lines = unfound[passed], want[passed], self._next(lines[passed])
        return found

    def _is_full(self, lines: _Words) -> _Flags:
        full: _Flags = (self._lines.take(lines, axis=0) != _EMPTY).all(1)
        return full

    def _is_passed(self, lines: _Words) -> _Flags:
        """Return whether each bucket was passed over because it is full.

        A key then lies behind it that could not lie there otherwise.
        """
        passed = np.zeros(len(lines), np.bool_)
        unfound, lines_behind = np.arange(len(lines)), lines
        for _ in range(self.shape.buckets - 1):
            lines_behind = self._next(lines_behind)
            bucket = self._lines.take(lines_behind, axis=0)
            homes = self._homes(~bucket)
            round_trip = 2 * self.shape.buckets
            way = (lines_behind - lines[unfound])[
                :, None
            ] % round_trip  # from the bucket that is asked about
            passes = (bucket < 0) & ((lines_behind[:, None] - homes) % round_trip >= way)
            hit = passes.any(1)
            passed[unfound[hit]] = True
            continuing = ~hit & self._is_full(lines_behind)
            if not continuing.any():
                break
            unfound, lines_behind = unfound[continuing], lines_behind[continuing]
        return passed


def _ranked(groups: _Words) -> tuple[_Words, _Words]:
    """Ascending groups as they are, and the rank of each entry within its group.

    >>> _ranked(np.array([3, 3, 5]))[1].tolist()
    [0, 1, 0]
    """
    positions = np.arange(len(groups))
    starts = np.ones(len(groups), np.bool_)
    starts[1:] = groups[1:] != groups[:-1]
    return groups, positions - np.maximum.accumulate(np.where(starts, positions, 0))
