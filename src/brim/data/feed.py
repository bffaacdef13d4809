"""The micro-batches of a job, read in the order in which a rank needs them.

The data is whatever the user gave.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np
from torch.utils.data import _utils

from brim.data.batches import Collate, Indices, fetch, is_quick
from brim.data.culprits import find_deadly_sample
from brim.data.description import describe
from brim.data.loaders import Loaders
from brim.data.repeatable import digest_of, is_same
from brim.data.streams import Stream, StreamMark, StreamPart, reads_differently
from brim.domain.accounting import sample_checksum
from brim.domain.batch import Schedule, Span, cut
from brim.domain.seeds import mix
from brim.errors import BrimError, SpecError
from brim.storage.trails import SamplesRead, Trail
from brim.tensors.chance import Generator as OwnGenerator
from brim.tensors.chance import own_generators, seed_generators, seed_host

_READING = 1  # keeps the seed for reading a micro-batch apart from that for computing it


class MicroBatchRequest(msgspec.Struct, frozen=True):  # made in a third of a tuple's time
    """A micro-batch that a rank is going to need.

    `span` are positions in the order of its epoch. One that `is_audit` is another rank's, or comes
    a second time.
    """

    step: int
    micro: int
    epoch: int
    span: Span
    is_audit: bool = False


def requests(
    schedule: Schedule,
    *,
    parts: int,
    micro_batches: Iterable[int],
    after: int,
    audited: Callable[[int], int | None] = lambda _: None,
) -> Iterator[MicroBatchRequest]:
    """Yield the micro-batches that a rank needs in all steps to come, in order.

    Micro-batches without a sample are left out.

    Args:
        schedule: of the job.
        parts: micro-batches of a step.
        micro_batches: those of this rank.
        after: steps that are done.
        audited: gives the micro-batch of a step that is to be computed again; it comes before the
            last one of this rank.
    """
    numbers = tuple(micro_batches)
    for step in range(after, schedule.steps):
        span, epoch = schedule.span(step), schedule.epoch_of(step)
        spans, has_empty = cut(span, parts), span.stop - span.start < parts
        coming_steps = [
            MicroBatchRequest(step, number, epoch, spans[number])
            for number in numbers
            if not has_empty or len(spans[number])
        ]
        audited_number = audited(step)
        if coming_steps and audited_number is not None and len(spans[audited_number]):
            coming_steps.insert(
                -1,
                MicroBatchRequest(
                    step, audited_number, epoch, spans[audited_number], is_audit=True
                ),
            )
        yield from coming_steps


class Read(msgspec.Struct, frozen=True):
    """A micro-batch that was read.

    It has the collated sample on the host, and `sample_checksum` of the samples. Of a stream it has
    the last 32 bits of the hash of their contents, and the marks at the end of the step.
    """

    request: MicroBatchRequest
    sample: Any
    crc32: int
    marks: Mapping[int, StreamMark] = {}


class Reads(Iterator[Read]):
    """Micro-batches in their order, the next of which can be read before it is asked for.

    Args:
        reads: the micro-batches.
        is_quick: reading takes next to no time, and draws nothing: what is read depends on nothing
            that happens before it is asked for.
    """

    def __init__(self, reads: Generator[Read], *, is_quick: bool) -> None:
        self._reads, self._is_quick = reads, is_quick
        self._read_ahead: Read | Exception | None = None

    def __next__(self) -> Read:
        read_ahead, self._read_ahead = self._read_ahead, None
        if isinstance(read_ahead, Exception):
            raise read_ahead
        return next(self._reads) if read_ahead is None else read_ahead

    def look_ahead(self) -> None:
        """Read the next one, where that is quick; an error is raised where it is asked for."""
        if not self._is_quick or self._read_ahead is not None:
            return
        try:
            self._read_ahead = next(self._reads, None)
        except Exception as error:  # noqa: BLE001 - it belongs to the next step
            self._read_ahead = error

    def close(self) -> None:
        """Drop prefetched batches, and read nothing more."""
        self._read_ahead = None
        self._reads.close()


class _Work(NamedTuple):
    request: MicroBatchRequest
    indices: Indices
    expected: Mapping[int, StreamMark] | None


class Feed:
    """Reads a job's micro-batches, beside the step where it is asked to.

    What is read follows from the request and the seed alone, also where the data draws from
    torch's, numpy's or Python's global generators: so it is the same for every reader, at any time.

    Args:
        data: a map-style dataset, a torch DataLoader, or a stream (an IterableDataset, or anything
            else that can be iterated again for each epoch).
        seed: the job's.
        global_batch_size: samples per step; None takes that of the DataLoader.
        shuffle: False reads a map-style dataset as it lies; None shuffles it. A DataLoader says it
            itself.
        sampler: draws the indices of each epoch, instead of a shuffle.
        collate_fn: makes a list of samples one; None collates as torch does.
        samples: of an epoch, where a stream does not say it.
        shards: that a stream is cut into: it has a method `shard(num_shards, index)`, or asks
            `get_worker_info` which one to read. None iterates all of it.
        loaders: processes that read beside the step, each a few micro-batches ahead; 0 reads in the
            step, None does as the DataLoader says. A stream is read by one at most for each shard,
            data that is held in tensors by none.

    Attributes:
        samples: of an epoch.
        loaders: how many processes may read.
        block_size: as in `EpochOrder`.
        order: `shuffled`, `sequential`, `stream` or `sampler`.
        order_size: samples that a shuffle permutes: more than `samples` where the last batch is
            dropped.
        mark: what tells this data from other data of the same length, once it was checked: a digest
            of two samples; for streams, the number of shards.
        trail: of this worker, for its successor where a sample kills it; or None.
        warn: told of something about the processes that read, in words.
        marks_of: gives, for an epoch, the marks up to which all workers have read a stream; None
            where they compare none.

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
        shards: int | None = None,
        loaders: int | None = None,
    ) -> None:
        description = describe(
            data,
            seed=seed,
            global_batch_size=global_batch_size,
            shuffle=shuffle,
            sampler=sampler,
            collate_fn=collate_fn,
            samples=samples,
            shards=shards,
        )
        self.dataset = description.dataset
        self.samples = description.samples
        self.order, self.order_size = description.order.kind, description.order.size
        self.block_size = int(getattr(description.dataset, "block_size", 1))
        self.mark = ""
        self.trail: Trail | None = None
        self.warn: Callable[[str], None] = lambda _: None
        self.marks_of: Callable[[int], Mapping[int, StreamMark]] | None = None
        self._description, self._seed = description, seed
        self._stream = self._new_stream() if description.streams else None
        self._generators: list[OwnGenerator] | None = None
        self._quick = (
            description.collate is None
            and not description.streams
            and is_quick(description.dataset)
        )
        loader_count = (description.loaders or 0) if loaders is None else loaders
        self.loaders = (
            0
            if self._quick
            else min(loader_count, description.shards or 1)
            if description.streams
            else loader_count
        )
        self._loaders: Loaders[_Work] | None = None
        if self.loaders:
            self._loaders = Loaders(
                self._load,
                depth=description.ahead,
                start=self._start_loader,
                shard_of=self._shard_of if description.streams else None,
                find_cause=self._find_cause,
                warn=lambda text: self.warn(text),
            )

    @property
    def global_batch_size(self) -> int:
        """Samples per step.

        Raises:
            SpecError: the number is unset.
        """
        if self._description.batch_size is None:
            raise SpecError(
                "global_batch_size",
                got="a dataset, and no number of samples per step",
                need="a whole number from 1",
                hint="job.batches(train, global_batch_size=512)",
            )
        return self._description.batch_size

    def read(
        self,
        requests: Iterator[MicroBatchRequest],
        *,
        loaders: int | None = None,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> Generator[Read]:
        """Read the requested batches, in this order.

        The caller closes the generator where it wants no more.

        Args:
            requests: taken some way ahead of what is given out where processes read.
            loaders: how many of the processes read, from 1; None has all of them. Others than these
                are ended.
            meanwhile: called now and then while these have nothing ready; may raise.

        Raises:
            UserCodeError: the user's code raised in a process that reads; in the step, what it
                raised comes as it is.
            SpecError: the data breaks its promises.
            EnvironmentFault: processes that read died three times over the same data.
        """
        if self._quick:
            order = self._description.order
            for request in requests:
                span = request.span
                indices = order.at(request.epoch, span.start, span.stop)
                yield Read(request, fetch(self.dataset, indices), sample_checksum(indices))
            return
        works = map(self._work, requests)
        if self._loaders is None:
            for work in works:
                yield _read(work, self._load(work))
            return
        read = self._loaders.read(works, count=loaders or self.loaders, meanwhile=meanwhile)
        for work, loaded in read:
            yield _read(work, loaded)

    def _work(self, request: MicroBatchRequest) -> _Work:
        indices = self.indices(request.epoch, request.span)
        return _Work(request, indices, self.marks_of(request.epoch) if self.marks_of else None)

    @property
    def shards(self) -> int | None:
        """Return the number of shards that a stream is read in, or None for one iteration."""
        return self._description.shards

    @property
    def is_stream(self) -> bool:
        """Return whether samples come one after the other."""
        return self._description.streams

    @property
    def has_shards(self) -> bool:
        """Return whether each worker reads the parts of a stream that it needs, and no others."""
        return self._description.shards is not None

    @property
    def is_quick(self) -> bool:
        """Return whether reading draws nothing by chance and takes next to no time."""
        return self._quick

    @property
    def is_computed(self) -> bool:
        """True if the order follows from arithmetic alone.

        Then no sampler is asked, and no stream is begun.
        """
        return self.order in ("shuffled", "sequential")

    def close(self) -> None:
        """End the processes that read; they start again where something is read again."""
        if self._loaders is not None:
            self._loaders.close()

    def order_crc32(self, epoch: int) -> int:
        """Return a checksum of an epoch's order.

        Ranks whose samplers drew differently find it out by this.
        """
        return sample_checksum(self.indices(epoch, Span(0, self.samples)))

    def first(self, count: int) -> Any:
        """The first so many samples as they lie, collated: to look at, and to try a model with."""
        count = min(count, self._description.order.size)
        if self._description.streams:
            return self._new_stream().read(0, Span(0, count), seed=self._seed).sample
        return fetch(self.dataset, np.arange(count), self._description.collate)

    def check(self) -> None:
        """Read two samples twice: data that depends on reader or time cannot be trained exactly.

        A stream is begun twice for this, and goes on from there where no other process reads it.

        Raises:
            SpecError: it does.
        """
        if not self.samples:
            return
        if self._description.streams:
            self.mark = f"stream of {self._description.shards or 1}"
            if not getattr(self.dataset, "waits", False):
                self._check_stream()
            return
        span = Span(0, min(2, self.samples))
        work = _Work(MicroBatchRequest(0, 0, 0, span), self.indices(0, span), None)
        sample = self._load(work)
        self.mark = digest_of(sample)
        if not self._quick and not is_same(sample, self._load(work)):
            raise SpecError(
                type(self.dataset).__name__,
                got="different data when the same samples are read again with the same seed",
                need="samples that depend only on their index and on seeded random numbers",
                hint="draw from torch's, numpy's or Python's global generator, or from one kept in "
                "the dataset",
            )

    def digest(self) -> int | None:
        """Return the digest of a stream's first epoch, which it reads to its end; of others None."""
        return None if self._stream is None else self._stream.digest(0)

    def _check_stream(self) -> None:
        span = Span(0, min(2, self.samples // (self._description.shards or 1)))
        first_reading = self._new_stream().read(0, span, seed=self._seed)
        stream = self._new_stream()
        if stream.read(0, span, seed=self._seed).contents != first_reading.contents:
            raise reads_differently(
                self.dataset, "other samples when it is begun again with the same seed and epoch"
            )
        if self._loaders is None:
            self._stream = stream

    def look_into(self, steps: SamplesRead) -> None:
        """Look into another worker's last read before it died.

        Raises:
            UserCodeError: one of these samples kills its reader.
        """
        if steps.size == self.samples and self.is_by_index:
            span = Span(steps.start, min(steps.stop, self.samples))
            indices = self.indices(steps.epoch, span).tolist()
            culprit = find_deadly_sample(self.dataset, indices)
            if culprit is not None:
                raise culprit

    @property
    def is_by_index(self) -> bool:
        """Return whether samples are read one by one, by the user's code."""
        return not (self._description.streams or self._quick)

    def _find_cause(self, work: _Work, tick: Callable[[], None]) -> BrimError | None:
        if not self.is_by_index:
            return None
        return find_deadly_sample(self.dataset, work.indices.tolist(), tick=tick)

    def indices(self, epoch: int, span: Span) -> Indices:
        """Return the samples at these positions of an epoch, int64.

        Samples of a stream are numbered as they come.
        """
        return self._description.order.at(epoch, span.start, span.stop)

    def _load(self, work: _Work) -> Any:
        if self._quick:
            return fetch(self.dataset, work.indices)
        request = work.request
        seed = mix(self._seed, request.step, request.micro, _READING)
        if self._stream is not None:
            return self._stream.read(
                request.epoch,
                request.span,
                seed=seed,
                expected=work.expected,
            )
        if (
            self._generators is None
        ):  # found where they are used: a process that reads may have made its own
            self._generators = own_generators(self.dataset, self._description.collate)
        seed_host(seed)
        seed_generators(self._generators, seed)
        if self.trail is None or self._loaders is not None:
            return fetch(self.dataset, work.indices, self._description.collate)
        steps = SamplesRead(self.samples, request.epoch, request.span.start, request.span.stop)
        self.trail.note(steps)
        sample = fetch(self.dataset, work.indices, self._description.collate)
        self.trail.note(steps._replace(stop=steps.start))
        return sample

    def _start_loader(self, number: int) -> None:
        """Start a loader process as torch does.

        `get_worker_info` gives there the values for `worker_init_fn`.

        Behind it `get_worker_info` says nothing: streams that shard themselves by it would leave
        samples out.
        """
        if self._description.loader_init is None:
            return
        worker = _utils.worker
        seed = mix(self._seed, number) >> 1
        worker._worker_info = worker.WorkerInfo(
            id=number, num_workers=self.loaders, seed=seed, dataset=self.dataset
        )
        self._description.loader_init(number)
        worker._worker_info = None

    def _new_stream(self) -> Stream:
        description = self._description
        remembered = (description.ahead + 1) * (
            description.batch_size or 1
        )  # of the steps that may be under way
        return Stream(
            description.dataset,
            samples=description.samples,
            batch_size=description.batch_size
            or description.shards
            or 1,  # without steps, from each shard in turn
            collate=description.collate,
            seed=self._seed,
            remembered=remembered,
            shards=description.shards,
        )

    def _shard_of(self, work: _Work) -> int:
        """The shard that this begins in: one process reads all of a shard."""
        assert self._stream is not None, "made where this is given"
        return self._stream.shard_at(work.request.span)


def _read(work: _Work, loaded: Any) -> Read:
    if isinstance(loaded, StreamPart):
        return Read(work.request, loaded.sample, loaded.contents & 0xFFFFFFFF, loaded.marks)
    return Read(work.request, loaded, sample_checksum(work.indices))
