"""Streams: samples that come one after the other, read exactly.

A stream is one iteration, or a fixed number of shards.
"""

from __future__ import annotations

import contextlib
import copy
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from torch.utils.data import _utils, default_collate
from torch.utils.data._utils.worker import WorkerInfo

from brim.data.batches import Collate
from brim.data.repeatable import hash_of
from brim.domain.batch import Span, shard_spans
from brim.domain.quantities import counted
from brim.domain.seeds import mix
from brim.errors import SpecError
from brim.tensors.chance import Chance, own_generators, seed_generators, seed_host

_ITERATION = 1 << 42  # in the place of a step, where no step is


_DIGEST = (1 << 64) - 1
_ADVICE = {
    "webdataset": "brim.data.stream(lambda epoch: wds.WebDataset(urls, shardshuffle=False)"
    ".shuffle(1000, seed=epoch), samples=…)",
    "streaming": "read it by index: torch.utils.data.Subset(dataset, range(len(dataset)))",
}


class StreamMark(NamedTuple):
    """Place of an iteration in an epoch, with a digest of all that it has yielded.

    The digest is a sum over the samples, each hashed with its position: so the parts of a step add
    up to it, and two iterations have the same one only if each sample came at the same position.

    Attributes:
        position: samples that were yielded.
        digest: of them, of 64 bits.
    """

    position: int
    digest: int


class StreamPart(NamedTuple):
    """Some samples of a stream.

    Attributes:
        sample: they, collated.
        contents: the sum of their hashes, of 64 bits.
        marks: of each shard that they come from, at the end of the step; 0 for one iteration.
    """

    sample: Any
    contents: int
    marks: dict[int, StreamMark]


def reads_differently(dataset: Any, subject: str) -> SpecError:
    """Return the error of a stream that does not yield the same again.

    Args:
        dataset: the stream.
        subject: it yielded, and where.
    """
    package = type(dataset).__module__.partition(".")[0]
    return SpecError(
        f"stream {type(dataset).__name__}",
        got=subject,
        need="an order that follows from the epoch alone: each worker iterates over the whole "
        "stream and keeps its own samples",
        hint=_ADVICE.get(
            package,
            "seed its shuffle by the epoch: a method set_epoch(epoch), which is called before each, "
            "or brim.data.stream(lambda epoch: …, samples=…)",
        ),
    )


class Stream:
    """Reads spans of an epoch from something that can only be iterated.

    As one iteration, position p of an epoch is its p-th sample: every rank iterates all of it and
    keeps its own samples, so that any number of workers sees one order. Of shards, each gives every
    step an equal part, and a rank iterates those that its micro-batches come from. A newcomer skips
    to where the others are.

    Args:
        dataset: iterated again for each epoch; `set_epoch` is called before where it has one.
        samples: of an epoch.
        batch_size: samples of a step; without shards it says nothing.
        collate: makes a list of samples one; None collates as torch does.
        seed: the job's.
        remembered: samples to keep behind the last one read: a step that has to be done again goes back
            by so many without a new iteration.
        shards: how many, or None for one iteration.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        samples: int,
        batch_size: int,
        collate: Collate | None,
        seed: int,
        remembered: int,
        shards: int | None = None,
    ) -> None:
        self._dataset, self._samples, self._batch_size = dataset, samples, batch_size
        self._seed, self._shards, self._remembered = seed, shards, remembered
        self._collate = collate or default_collate
        self._generators = own_generators(collate)
        self._iterations: dict[int, _Iteration] = {}

    def read(
        self,
        epoch: int,
        span: Span,
        *,
        seed: int,
        expected: Mapping[int, StreamMark] | None = None,
    ) -> StreamPart:
        """The collated samples at these positions of an epoch.

        Args:
            epoch: to read in.
            span: its positions.
            seed: of what collating draws.
            expected: marks of shards that others have passed in this epoch. Then it iterates to
                the end of the step, where all workers compare theirs: that takes no longer, for
                what is not read within this step is read in the next. None: nobody compares them.

        Raises:
            SpecError: the stream ends before, is not cut into shards, or yields something else than
                others have read.
        """
        samples: list[Any] = []
        contents, marks = 0, {}
        for shard, part in self._parts(span):
            iteration = self._iteration(shard)
            end = part.stop if expected is None else self._end_of_step(part)
            passed = (expected or {}).get(shard)
            found, hashes, marks[shard] = iteration.take(epoch, part, end=end, expected=passed)
            samples += found
            contents += sum(hashes)
        seed_host(seed)
        seed_generators(self._generators, seed)
        return StreamPart(self._collate(samples), contents & _DIGEST, marks)

    def _end_of_step(self, part: Span) -> int:
        """Return where the step that has these places of a shard ends in it."""
        shards = self._shards or 1
        shard_step = self._batch_size // shards
        return min(-(-part.stop // shard_step) * shard_step, self._samples // shards)

    def digest(self, epoch: int) -> int:
        """Return the digest of all samples of an epoch, of 64 bits; reads on to their end."""
        size = self._samples // (self._shards or 1)
        end = Span(size, size)
        marks = [
            self._iteration(shard).take(epoch, end, end=size, expected=None)[2]
            for shard in range(self._shards or 1)
        ]
        return sum(mark.digest for mark in marks) & _DIGEST

    def shard_at(self, span: Span) -> int:
        """The shard in which these positions begin; 0 for one iteration."""
        return next(self._parts(span))[0]

    def _parts(self, span: Span) -> Iterator[tuple[int, Span]]:
        if self._shards is None:
            return iter([(0, span)])
        return shard_spans(
            span, samples=self._samples, batch_size=self._batch_size, shards=self._shards
        )

    def _iteration(self, shard: int) -> _Iteration:
        if shard not in self._iterations:
            self._iterations[shard] = self._new_iteration(shard)
        return self._iterations[shard]

    def _new_iteration(self, shard: int) -> _Iteration:
        count = self._shards
        if count is None:
            return _Iteration(
                self._dataset, samples=self._samples, seed=self._seed, remembered=self._remembered
            )
        samples, remembered, seed = (
            self._samples // count,
            -(-self._remembered // count),
            mix(self._seed, shard),
        )
        if hasattr(self._dataset, "shard"):
            part = self._dataset.shard(num_shards=count, index=shard)
            return _Iteration(
                part, samples=samples, seed=seed, remembered=remembered, place=(shard, count)
            )
        part = _copy_of(self._dataset)
        return _Iteration(
            part, samples=samples, seed=seed, remembered=remembered, place=(shard, count), asks=True
        )


class _Iteration:
    """Reads spans of an iterable.

    Its random draws come from generators that the epoch seeds.

    Args:
        dataset: what is iterated.
        samples: of an epoch.
        seed: of the iterations.
        remembered: as in `Stream`.
        place: which shard of how many it is, or None.
        asks: it must ask `get_worker_info` for its place.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        samples: int,
        seed: int,
        remembered: int,
        place: tuple[int, int] | None = None,
        asks: bool = False,
    ) -> None:
        self._dataset, self._samples, self._seed = dataset, samples, seed
        self._keep, self._place, self._asks = remembered, place, asks
        self._recent: deque[tuple[Any, int]] = deque()  # with their hashes
        self._epoch, self._position, self._digest = -1, 0, 0
        self._salt = (place[0] if place else 0) << 40
        self._expected: StreamMark | None = None
        self._iterator: Iterator[Any] = iter(())
        self._chance = Chance(seed)
        self._info: _ShardInfo | None = None

    def take(
        self, epoch: int, span: Span, *, end: int, expected: StreamMark | None
    ) -> tuple[list[Any], list[int], StreamMark]:
        """The samples in these places of an epoch, their hashes, and the mark at `end`."""
        if epoch != self._epoch or span.start < self._position - len(self._recent):
            self._begin(epoch)
            self._expected = expected
        self._keep = max(self._keep, end - span.start)
        with self._chance.drawing(), self._being_asked():
            while self._position < end:
                self._read_next()
        first = self._position - len(self._recent)
        hashes = list(self._recent)
        part = hashes[span.start - first : span.stop - first]
        hash_sum = sum(hashed for _, hashed in hashes[end - first :])
        mark = StreamMark(end, (self._digest - hash_sum) & _DIGEST)
        return [sample for sample, _ in part], [hashed for _, hashed in part], mark

    def _read_next(self) -> None:
        sample = self._next()
        hashed = hash_of(sample, seed=self._salt + self._position)
        self._digest = (self._digest + hashed) & _DIGEST
        self._position += 1
        self._recent.append((sample, hashed))
        if len(self._recent) > self._keep:
            self._recent.popleft()
        expected = self._expected
        if expected is not None and expected.position == self._position:
            if expected.digest != self._digest:
                raise reads_differently(
                    self._dataset,
                    f"other samples among the first {self._position:,} of epoch {self._epoch + 1} "
                    "than this job has read before",
                )
            self._expected = None

    def _begin(self, epoch: int) -> None:
        self._recent.clear()
        self._epoch, self._position, self._digest = epoch, 0, 0
        seed = mix(self._seed, _ITERATION, epoch)
        self._chance = Chance(seed)
        seed_generators(own_generators(self._dataset), seed)
        if self._asks and self._place is not None:
            shard, count = self._place
            self._info = _ShardInfo(
                id=shard, num_workers=count, seed=seed >> 1, dataset=self._dataset
            )
        with self._chance.drawing(), self._being_asked():
            if hasattr(self._dataset, "set_epoch"):
                self._dataset.set_epoch(epoch)
            self._iterator = iter(self._dataset)

    @contextlib.contextmanager
    def _being_asked(self) -> Iterator[None]:
        """Have `get_worker_info` name the shard that is read.

        It does so in a process of torch's DataLoader.
        """
        if self._info is None:
            yield
            return
        worker = _utils.worker
        info_before, worker._worker_info = worker._worker_info, self._info
        try:
            yield
        finally:
            worker._worker_info = info_before

    def _next(self) -> Any:
        try:
            sample = next(self._iterator)
        except StopIteration:
            raise self._ended() from None
        if self._info is not None and not self._info.was_asked:
            raise SpecError(
                type(self._dataset).__name__,
                got="a stream that gave a sample without asking which shard it is to read",
                need="get_worker_info().id and num_workers in its __iter__, or no shards=: each "
                "sample would come "
                f"{counted(self._info.num_workers, 'time')}",
                hint="return itertools.islice(samples, info.id, None, info.num_workers)",
            )
        return sample

    def _ended(self) -> SpecError:
        of_shard, shards = "", 1
        if self._place is not None:
            shard, shards = self._place
            of_shard = f" of shard {shard} of {shards}"
        return SpecError(
            type(self._dataset).__name__,
            got=f"a stream that ended after {counted(self._position, 'sample')}{of_shard} of epoch "
            f"{self._epoch + 1}",
            need=f"the {self._samples:,} that len() or samples= "
            f"promised{' of each shard' if of_shard else ''}",
            hint=f"samples={self._position * shards}",
        )


class _ShardInfo(WorkerInfo):
    """The value of `get_worker_info`, and whether somebody looked at the place in it."""

    def __getattribute__(self, name: str) -> Any:
        if name == "id":
            self.__dict__["_looked_at"] = True
        return super().__getattribute__(name)

    @property
    def was_asked(self) -> bool:
        return "_looked_at" in self.__dict__


def _copy_of(dataset: Any) -> Any:
    """Return a copy for a shard, as each process of torch's DataLoader has one.

    Each shard so has its own state.
    """
    try:
        return copy.deepcopy(dataset)
    except Exception as error:
        raise SpecError(
            type(dataset).__name__,
            got=f"a stream that cannot be copied ({error})",
            need="one that can, for shards=: each shard is read from a copy",
            hint="open files and connections in __iter__",
        ) from error
