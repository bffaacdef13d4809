"""Memory that all workers of a host share: rows of contributions, and their readiness."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Iterable

import torch
from torch import Tensor

from brim.tensors.memory import have_ready
from brim.train.exchange.layout import Layout


class Shelf:
    """Rows of contributions in memory that all workers of a host share.

    Row 0 holds the result, the rows behind it the blocks. Of large rows only those that are used
    take up memory.

    Args:
        descriptor: of an anonymous file; the first worker to come makes it large enough.
        layout: what lies in a row.
        rows: how many.

    Attributes:
        seconds: where the owners of rows tell how long they take, float64.
        ready: a word for each row, int64, in which a worker tells what of its blocks is there.
    """

    def __init__(self, descriptor: int, layout: Layout, rows: int) -> None:
        self.layout, self._row_bytes = layout, -(-layout.row_bytes // 4096) * 4096 or 4096
        words = -(-8 * rows // 4096) * 4096
        size = self._row_bytes * rows + words + 4096
        if _size_of(descriptor) < size:
            os.ftruncate(descriptor, size)
        mapped = mmap.mmap(descriptor, size)
        have_ready(mapped)
        self._memory = torch.frombuffer(mapped, dtype=torch.uint8)
        self.seconds = self._memory[-4096:].view(torch.float64)
        self.ready = self._memory[-4096 - words : -4096].view(torch.int64)
        self._views: dict[int, list[Tensor]] = {}
        self.rows = rows

    def row(self, index: int) -> Tensor:
        start = index * self._row_bytes
        return self._memory[start : start + self.layout.row_bytes]

    def views(self, index: int) -> list[Tensor]:
        if index not in self._views:  # rounds come and go, and rows stay
            self._views[index] = self.layout.views(self.row(index))
        return self._views[index]

    def slices(self, index: int, part: int, parts: int) -> list[Tensor]:
        return self.layout.slices(self.row(index), part, parts)


def _size_of(descriptor: int) -> int:
    return os.fstat(descriptor).st_size


class ReadyPieces:
    """The number of pieces of a step that each worker of a host has ready, as they tell each other.

    A worker's word says the round and the step as well: words of others are ignored.

    Args:
        words: `Shelf.ready`.
        round: its number.
    """

    _COUNT, _VOID, _STEP, _ROUND = (1 << 15) - 1, 1 << 15, (1 << 32) - 1, (1 << 15) - 1

    def __init__(self, words: Tensor, round: int) -> None:
        self._words, self._round = words, round & self._ROUND
        self._fence = threading.Lock()

    def tell(self, place: int, step: int, count: int, *, void: bool = False) -> None:
        """Say that the first so many pieces are where others may read them.

        Args:
            place: the row of the worker's first block.
            void: pieces that were ready before have changed since, and must be read again.
        """
        with self._fence:  # what was written before is seen by those who see the word
            pass
        self._words[place] = self._word(step) | (self._VOID if void else 0) | count

    def count(self, places: Iterable[int], step: int) -> tuple[int, bool]:
        """Return how many pieces all workers at these places have ready, and whether any is void."""
        count, void = self._COUNT, False
        states = self._words.tolist()
        for place in places:
            word = states[place]
            if word & ~(self._COUNT | self._VOID) != self._word(step):
                return 0, False
            count, void = min(count, word & self._COUNT), void or bool(word & self._VOID)
        with self._fence:  # what follows reads no earlier than this
            pass
        return count, void

    def _word(self, step: int) -> int:
        return self._round << 48 | ((step + 1) & self._STEP) << 16
