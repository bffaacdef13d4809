"""A job's micro-batches, read from whatever the user gave as data, in the order in which a rank needs them."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from brim.domain.accounting import sample_checksum
from brim.domain.batch import Span
from brim.domain.seeds import mix
from brim.errors import SpecError
from brim.train.chance import seed_host
from brim.train.data.batches import Collate, Indices, fetch, is_quick
from brim.train.data.description import describe
from brim.train.data.streams import Stream

__all__ = ["Feed", "Read", "Request"]

_READING = 1  # keeps the seed for reading a micro-batch apart from that for computing it


@dataclass(frozen=True, slots=True)
class Request:
    """A micro-batch that a rank is going to need: `span` are positions in the order of its epoch."""

    step: int
    micro: int
    epoch: int
    span: Span


@dataclass(frozen=True, slots=True)
class Read:
    """A micro-batch that was read: its collated sample on the host, and `sample_checksum` of its samples."""

    request: Request
    sample: Any
    crc32: int


class Feed:
    """Reads a job's micro-batches.

    What is read follows from the request and the seed alone, also where the data draws from torch's, numpy's or
    Python's global generators: so it is the same whoever reads it, and when.

    Args:
        data: a map-style dataset, a torch DataLoader, or a stream (an IterableDataset, or anything else that can be
            iterated anew for each epoch).
        seed: the job's.
        global_batch_size: samples per step; None takes that of the DataLoader.
        shuffle: False reads a map-style dataset as it lies; None shuffles it. A DataLoader says it itself.
        sampler: draws the indices of each epoch, instead of a shuffle.
        collate_fn: makes a list of samples one; None collates as torch does.
        samples: of an epoch, where a stream does not say it.

    Attributes:
        samples: of an epoch.
        block_size: as in `EpochOrder`.
        order: `shuffled`, `sequential`, `stream` or `sampler`.
        order_size: samples that a shuffle permutes: more than `samples` where the last batch is dropped.

    Raises:
        SpecError: this is no data, or cannot be read exactly.
    """

    def __init__(
        self,
        data: Any,
        *,
        seed: int,
        global_batch_size: int | None = None,
        shuffle: bool | None = None,
        sampler: Iterable[int] | None = None,
        collate_fn: Collate | None = None,
        samples: int | None = None,
    ) -> None:
        given = describe(
            data,
            seed=seed,
            global_batch_size=global_batch_size,
            shuffle=shuffle,
            sampler=sampler,
            collate_fn=collate_fn,
            samples=samples,
        )
        self.dataset = given.dataset
        self.samples = given.samples
        self.order, self.order_size = given.order.kind, given.order.size
        self.block_size = int(getattr(given.dataset, "block_size", 1))
        self._given, self._seed = given, seed
        self._stream = self._new_stream() if given.streams else None
        self._quick = given.collate is None and is_quick(given.dataset)

    @property
    def global_batch_size(self) -> int:
        """Samples per step.

        Raises:
            SpecError: nobody said how many.
        """
        if self._given.batch_size is None:
            raise SpecError(
                "global_batch_size",
                got="a dataset, and no number of samples per step",
                need="a whole number from 1",
                hint="job.batches(train, global_batch_size=512)",
            )
        return self._given.batch_size

    def read(self, requests: Iterator[Request]) -> Generator[Read, None, None]:
        """What is asked for, in this order."""
        for request in requests:
            indices = self.indices(request.epoch, request.span)
            yield Read(request, self._sample(request, indices), sample_checksum(indices))

    def first(self, count: int) -> Any:
        """The first so many samples as they lie, collated: to look at, and to try a model with."""
        count = min(count, self._given.order.size)
        if self._given.streams:
            return self._new_stream().read(0, Span(0, count), seed=self._seed)
        return fetch(self.dataset, np.arange(count), self._given.collate)

    def indices(self, epoch: int, span: Span) -> Indices:
        """Which samples are at these positions of an epoch, int64; those of a stream are numbered as they come."""
        return self._given.order.at(epoch, span.start, span.stop)

    def _sample(self, request: Request, indices: Indices) -> Any:
        seed = mix(self._seed, request.step, request.micro, _READING)
        if self._stream is not None:
            return self._stream.read(request.epoch, request.span, seed=seed)
        if not self._quick:
            seed_host(seed)
        return fetch(self.dataset, indices, self._given.collate)

    def _new_stream(self) -> Stream:
        given = self._given
        batch = given.batch_size or 1
        return Stream(
            given.dataset, samples=given.samples, collate=given.collate, seed=self._seed, kept=3 * batch
        )
