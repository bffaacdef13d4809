"""A stream that says how it is to be read.

For a training file, which has no `job.batches` to pass keywords to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import FunctionType, MethodType
from typing import Any

from torch.utils.data import IterableDataset

from brim.errors import SpecError


class SizedStream(IterableDataset[Any]):
    """The dataset that `stream` returns.

    Attributes:
        dataset: the stream itself.
        samples: per epoch, or None if it has a length.
        shards: that it is read in, or None for one iteration.
        loaders: processes that read it, where nobody says how many; None leaves it to the job.
    """

    loaders: int | None = None

    def __init__(self, dataset: Any, samples: int | None, shards: int | None) -> None:
        self.dataset, self.samples, self.shards = dataset, samples, shards

    def __iter__(self) -> Iterator[Any]:
        return iter(self.dataset)

    def __len__(self) -> int:
        return len(self.dataset) if self.samples is None else self.samples


class _ByEpoch(IterableDataset[Any]):
    """A stream that is made for each epoch by a function of its number."""

    def __init__(self, make: Callable[[int], Iterable[Any]]) -> None:
        self._make, self._epoch = make, 0

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        return iter(self._make(self._epoch))


def stream(dataset: Any, *, samples: int | None = None, shards: int | None = None) -> SizedStream:
    """Describe how to read a stream: `dataset(split)` of a training file may return this.

    Args:
        dataset: an IterableDataset, or anything else that can be iterated again for each epoch; or
            a function that makes the stream of an epoch from its number, from 0, so that the order
            can follow from it: `lambda epoch: pipeline.shuffle(1000, seed=epoch)`.
        samples: number of samples per epoch; None takes its length, which a function has none of.
        shards: number of parts, each read only by the workers whose micro-batches come from it; see
            `Job.batches`. None makes every worker read the whole stream.

    Returns:
        The same stream, also for a DataLoader.

    Raises:
        SpecError: this is no stream.
    """
    if isinstance(dataset, FunctionType | MethodType | partial):
        dataset = _ByEpoch(dataset)
    if not is_stream(dataset):
        raise SpecError(
            "brim.data.stream",
            got=f"a {type(dataset).__name__}",
            need="a stream, which can only be iterated: an IterableDataset",
            hint="a dataset with __len__ and __getitem__ needs none of this: return it as it is",
        )
    return SizedStream(dataset, samples, shards)


def is_stream(data: Any) -> bool:
    """Return whether samples come one after the other.

    Torch's streams have an inherited `__getitem__` that only raises.
    """
    if isinstance(data, IterableDataset):
        return True
    return hasattr(data, "__iter__") and not hasattr(data, "__getitem__")
