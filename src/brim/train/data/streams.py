"""Streams: samples that come one after the other, read exactly: position p is the p-th sample of the iteration."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from torch.utils.data import default_collate

from brim.domain.batch import Span
from brim.domain.seeds import mix
from brim.errors import SpecError
from brim.train.chance import Chance, seed_host
from brim.train.data.batches import Collate
from brim.train.data.repeatable import own_generators, seed_generators

__all__ = ["Stream"]

_ITERATION = 1 << 42  # in the place of a step, where no step is


class Stream:
    """Reads spans of an epoch from something that can only be iterated.

    Every rank iterates all of it and keeps its own samples, so that any number of workers sees one order; a newcomer
    skips to where the others are. What the iteration draws, it draws from a chance of its own that the epoch seeds.

    Args:
        dataset: iterated anew for each epoch; `set_epoch` is called before where it has one.
        samples: of an epoch.
        collate: makes a list of samples one; None collates as torch does.
        seed: the job's.
        kept: samples to keep behind the last one read: a step that has to be done again goes back by so many
            without a new iteration.
    """

    def __init__(self, dataset: Any, *, samples: int, collate: Collate | None, seed: int, kept: int) -> None:
        self._dataset, self._samples, self._seed = dataset, samples, seed
        self._collate = collate or default_collate
        self._generators = own_generators(collate)
        self._keep = kept
        self._kept: deque[Any] = deque()
        self._epoch, self._position = -1, 0
        self._iterator: Iterator[Any] = iter(())
        self._chance = Chance(seed)

    def read(self, epoch: int, span: Span, *, seed: int) -> Any:
        """The collated samples at these positions of an epoch.

        Raises:
            SpecError: the stream ends before.
        """
        if epoch != self._epoch or span.start < self._position - len(self._kept):
            self._begin(epoch)
        self._keep = max(self._keep, len(span))
        with self._chance.drawing():
            while self._position < span.stop:
                self._kept.append(self._next())
                self._position += 1
                if len(self._kept) > self._keep:
                    self._kept.popleft()
        first = self._position - len(self._kept)
        samples = [self._kept[position - first] for position in range(span.start, span.stop)]
        seed_host(seed)
        seed_generators(self._generators, seed)
        return self._collate(samples)

    def _begin(self, epoch: int) -> None:
        self._kept.clear()
        self._epoch, self._position = epoch, 0
        seed = mix(self._seed, _ITERATION, epoch)
        self._chance = Chance(seed)
        seed_generators(own_generators(self._dataset), seed)
        with self._chance.drawing():
            if hasattr(self._dataset, "set_epoch"):
                self._dataset.set_epoch(epoch)
            self._iterator = iter(self._dataset)

    def _next(self) -> Any:
        try:
            return next(self._iterator)
        except StopIteration:
            raise SpecError(
                type(self._dataset).__name__,
                got=f"a stream that ended after {self._position:,} samples of epoch {self._epoch + 1}",
                need=f"the {self._samples:,} that len() or samples= promised",
                hint=f"samples={self._position}",
            ) from None
