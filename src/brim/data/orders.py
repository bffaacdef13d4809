"""The orders in which an epoch's samples are read.

A shuffle of brim's, the order of the data, or that of a sampler.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import numpy as np

from brim.data.batches import Indices
from brim.domain.order import EpochOrder
from brim.domain.quantities import counted
from brim.domain.seeds import mix
from brim.errors import SpecError
from brim.tensors.chance import own_generators, seed_generators, seed_host

_CHUNK = 1 << 13  # positions computed at once: a call for 64 costs as much as one for 4,000
_DRAWING = 1 << 41  # in the place of a step, where no step is


class Order(Protocol):
    """The sample at each position of an epoch.

    Attributes:
        kind: `shuffled`, `sequential`, `stream` or `sampler`, as the records say it.
        size: samples of the dataset that it orders.
        samples: positions of an epoch.
    """

    @property
    def kind(self) -> str: ...

    @property
    def size(self) -> int: ...

    @property
    def samples(self) -> int: ...

    def at(self, epoch: int, start: int, stop: int) -> Indices:
        """The samples at positions [start, stop) of this epoch, int64."""
        ...


class Shuffled:
    """The permutation of `EpochOrder`, computed for many steps at once."""

    kind = "shuffled"

    def __init__(self, *, seed: int, size: int, block_size: int) -> None:
        self.size = self.samples = size
        self._seed, self._block_size = seed, block_size
        self._epoch, self._start = -1, 0
        self._chunk: Indices = np.empty(0, np.int64)

    def at(self, epoch: int, start: int, stop: int) -> Indices:
        if epoch != self._epoch or start < self._start or stop > self._start + len(self._chunk):
            order = EpochOrder(
                seed=self._seed, epoch=epoch, size=self.size, block_size=self._block_size
            )
            self._chunk = order.samples(start, min(self.size, max(stop, start + _CHUNK)))
            self._epoch, self._start = epoch, start
        return self._chunk[start - self._start : stop - self._start]


class AsTheyLie:
    """One sample after the other.

    The order of a dataset that is not shuffled, and of a stream, which has no other.
    """

    def __init__(self, kind: str, size: int) -> None:
        self.kind = kind
        self.size = self.samples = size

    def at(self, epoch: int, start: int, stop: int) -> Indices:
        return np.arange(start, stop, dtype=np.int64)


class Drawn:
    """The order that a sampler draws, once for each epoch.

    Each epoch has its seed, so the order is the same on every rank.

    Args:
        sampler: gives indices of the dataset; several times the same, or not all of them, where it
            likes.
        size: samples of the dataset.
        seed: the job's.

    Raises:
        SpecError: it draws invalid indices, or other ones each time.
    """

    kind = "sampler"

    def __init__(self, sampler: Iterable[int], *, size: int, seed: int) -> None:
        self.size = size
        self._sampler, self._seed = sampler, seed
        self._epochs: dict[int, Indices] = {0: self._draw(0)}
        self.samples = len(self._epochs[0])
        if not np.array_equal(self._epochs[0], self._draw(0)):
            raise self._wrong(
                "another order each time it is asked under the same seed",
                "one that draws from torch's, numpy's or Python's global generator, or from one of "
                "its own",
                hint="a generator kept in the sampler, which brim seeds for each epoch",
            )

    def at(self, epoch: int, start: int, stop: int) -> Indices:
        if epoch not in self._epochs:
            drawn = self._draw(epoch)
            if len(drawn) != self.samples:
                raise self._wrong(
                    f"{counted(len(drawn), 'sample')} in epoch {epoch + 1} and {self.samples:,} in the "
                    "first",
                    "the same number in every epoch",
                )
            # Two epochs are read at a time: what is read ahead may be of the next.
            self._epochs = {
                number: order for number, order in self._epochs.items() if number == epoch - 1
            }
            self._epochs[epoch] = drawn
        return self._epochs[epoch][start:stop]

    def _draw(self, epoch: int) -> Indices:
        seed = mix(self._seed, _DRAWING, epoch)
        seed_host(seed)
        set_epoch = getattr(self._sampler, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(epoch)
        seed_generators(own_generators(self._sampler), seed)
        drawn = list(self._sampler)
        try:
            indices = np.array([int(index) for index in drawn], np.int64)
        except (TypeError, ValueError):
            raise self._wrong(f"{drawn[0]!r} as a sample", "an index of the dataset") from None
        if not len(indices):
            raise self._wrong("no samples", "at least one")
        if indices.min() < 0 or indices.max() >= self.size:
            out_of_range = indices[(indices < 0) | (indices >= self.size)][0]
            raise self._wrong(
                f"sample {out_of_range}", f"an index of the dataset: 0 to {self.size - 1}"
            )
        return indices

    def _wrong(self, actual: str, need: str, *, hint: str = "") -> SpecError:
        return SpecError(
            f"sampler {type(self._sampler).__name__}", got=actual, need=need, hint=hint
        )
