"""Streams: samples that come one after the other, read exactly.

A stream is one iteration, or a fixed number of shards.
"""

from __future__ import annotations

import contextlib
import copy
from collections import deque
from collections.abc import Iterator
from typing import Any

from torch.utils.data import _utils, default_collate
from torch.utils.data._utils.worker import WorkerInfo

from brim.chance import Chance, own_generators, seed_generators, seed_host
from brim.data.batches import Collate
from brim.domain.batch import Span, shard_spans
from brim.domain.seeds import mix
from brim.errors import SpecError

_ITERATION = 1 << 42  # in the place of a step, where no step is


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
        kept: samples to keep behind the last one read: a step that has to be done again goes back
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
        kept: int,
        shards: int | None = None,
    ) -> None:
        self._dataset, self._samples, self._batch_size = dataset, samples, batch_size
        self._seed, self._shards, self._kept = seed, shards, kept
        self._collate = collate or default_collate
        self._generators = own_generators(collate)
        self._iterations: dict[int, _Iteration] = {}

    def read(self, epoch: int, span: Span, *, seed: int) -> Any:
        """The collated samples at these positions of an epoch.

        Raises:
            SpecError: the stream ends before, or is not cut into shards.
        """
        samples: list[Any] = []
        for shard, part in self._parts(span):
            samples += self._iteration(shard).take(epoch, part)
        seed_host(seed)
        seed_generators(self._generators, seed)
        return self._collate(samples)

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
                self._dataset, samples=self._samples, seed=self._seed, kept=self._kept
            )
        samples, kept, seed = (
            self._samples // count,
            -(-self._kept // count),
            mix(self._seed, shard),
        )
        if hasattr(self._dataset, "shard"):
            part = self._dataset.shard(num_shards=count, index=shard)
            return _Iteration(part, samples=samples, seed=seed, kept=kept, place=(shard, count))
        part = _copy_of(self._dataset)
        return _Iteration(
            part, samples=samples, seed=seed, kept=kept, place=(shard, count), asks=True
        )


class _Iteration:
    """Reads spans of what is iterated.

    Its random draws come from generators that the epoch seeds.

    Args:
        dataset: what is iterated.
        samples: of an epoch.
        seed: of the iterations.
        kept: as in `Stream`.
        place: which shard of how many it is, or None.
        asks: it must ask `get_worker_info` for its place.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        samples: int,
        seed: int,
        kept: int,
        place: tuple[int, int] | None = None,
        asks: bool = False,
    ) -> None:
        self._dataset, self._samples, self._seed = dataset, samples, seed
        self._keep, self._place, self._asks = kept, place, asks
        self._kept: deque[Any] = deque()
        self._epoch, self._position = -1, 0
        self._iterator: Iterator[Any] = iter(())
        self._chance = Chance(seed)
        self._info: _ShardInfo | None = None

    def take(self, epoch: int, span: Span) -> list[Any]:
        """The samples in these places of an epoch."""
        if epoch != self._epoch or span.start < self._position - len(self._kept):
            self._begin(epoch)
        self._keep = max(self._keep, len(span))
        with self._chance.drawing(), self._being_asked():
            while self._position < span.stop:
                self._kept.append(self._next())
                self._position += 1
                if len(self._kept) > self._keep:
                    self._kept.popleft()
        first = self._position - len(self._kept)
        return [self._kept[position - first] for position in range(span.start, span.stop)]

    def _begin(self, epoch: int) -> None:
        self._kept.clear()
        self._epoch, self._position = epoch, 0
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
        before, worker._worker_info = worker._worker_info, self._info
        try:
            yield
        finally:
            worker._worker_info = before

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
                f"{self._info.num_workers} times",
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
            got=f"a stream that ended after {self._position:,} samples{of_shard} of epoch "
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
