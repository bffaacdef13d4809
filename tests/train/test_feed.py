"""Data of any kind is read exactly, or refused in words."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)
from torch.utils.data.distributed import DistributedSampler

from brim.data import Tensors
from brim.data.feed import Feed, MicroBatchRequest, Read, Reads
from brim.data.repeatable import digest_of, is_same
from brim.domain.accounting import sample_checksum
from brim.domain.batch import Schedule, Span, cut
from brim.domain.order import EpochOrder
from brim.errors import SpecError
from brim.train.samples import to_device

SIZE, BATCH, PARTS = 20, 8, 2


def requests(
    feed: Feed, *, micros: Iterable[int] = range(PARTS), epochs: int = 2, after: int = 0
) -> Iterator[MicroBatchRequest]:
    """The requests of a rank with these micro-batches of each step, from a step on."""
    schedule = Schedule(
        samples=feed.samples, global_batch_size=feed.global_batch_size, epochs=epochs
    )
    for step in range(after, schedule.steps):
        spans = cut(schedule.span(step), PARTS)
        for micro in micros:
            if spans[micro]:
                yield MicroBatchRequest(step, micro, schedule.epoch_of(step), spans[micro])


def read(feed: Feed, **options: Any) -> list[Read]:
    return list(feed.read(requests(feed, **options)))


def values(reads: Iterable[Read]) -> list[list[float]]:
    """The first part of each sample, as numbers."""
    return [torch.as_tensor(first(read.sample)).reshape(-1).tolist() for read in reads]


def first(sample: Any) -> Any:
    while isinstance(sample, (list, tuple, dict)):
        sample = next(iter(sample.values())) if isinstance(sample, dict) else sample[0]
    return sample


class Numbers(Dataset[tuple[float, int]]):
    """Sample i is (i, 2 i)."""

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> tuple[float, int]:
        return float(index), 2 * index


class Noisy(Numbers):
    """Augmented by all that people draw from."""

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return torch.tensor(
            [index + random.random(), np.random.rand(), torch.rand(()).item()]
        ), index


class Counting(IterableDataset[float]):
    """0, 1, 2, … with a length; `noise` is added by chance."""

    def __init__(self, *, noise: float = 0.0) -> None:
        self.noise = noise
        self.iterations = 0

    def __len__(self) -> int:
        return SIZE

    def __iter__(self) -> Iterator[float]:
        self.iterations += 1
        for number in range(SIZE):
            yield number + self.noise * random.random()


def orders(feed: Feed) -> list[list[int]]:
    """The order of the first two epochs."""
    flat = [number for part in values(read(feed)) for number in part]
    return [list(map(int, flat[: feed.samples])), list(map(int, flat[feed.samples :]))]


def shuffled(epoch: int, seed: int = 0) -> list[int]:
    found: list[int] = EpochOrder(seed=seed, epoch=epoch, size=SIZE).samples(0, SIZE).tolist()
    return found


@pytest.mark.parametrize(
    ("data", "options", "order", "expected"),
    [
        (Numbers(), {}, "shuffled", [shuffled(0), shuffled(1)]),
        (Numbers(), {"shuffle": False}, "sequential", [list(range(SIZE))] * 2),
        (Numbers(), {"sampler": SequentialSampler(Numbers())}, "sequential", [list(range(SIZE))] * 2),
        (Numbers(), {"sampler": range(4, 12)}, "sampler", [list(range(4, 12))] * 2),
        ([(float(i), 0) for i in range(SIZE)], {}, "shuffled", [shuffled(0), shuffled(1)]),
        (Subset(Numbers(), range(5, 20)), {"shuffle": False}, "sequential", [list(range(5, 20))] * 2),
        (TensorDataset(torch.arange(20.0)), {}, "shuffled", [shuffled(0), shuffled(1)]),
        (Tensors(torch.arange(20.0), torch.arange(20)), {}, "shuffled", [shuffled(0), shuffled(1)]),
        (DataLoader(Numbers(), batch_size=8), {}, "sequential", [list(range(SIZE))] * 2),
        (DataLoader(Numbers(), batch_size=8, shuffle=True), {}, "shuffled", [shuffled(0), shuffled(1)]),
        (
            DataLoader(Numbers(), batch_sampler=BatchSampler(RandomSampler(Numbers()), 8, False)),
            {},
            "shuffled",
            [shuffled(0), shuffled(1)],
        ),
        (DataLoader(Numbers(), 8, drop_last=True), {}, "sequential", [list(range(16))] * 2),
        (
            DataLoader(Numbers(), 8, shuffle=True, drop_last=True),
            {},
            "shuffled",
            [shuffled(0)[:16], shuffled(1)[:16]],
        ),
        (Counting(), {}, "stream", [list(range(SIZE))] * 2),
        (Counting(), {"samples": 11}, "stream", [list(range(11))] * 2),
        (DataLoader(Counting(), batch_size=8), {}, "stream", [list(range(SIZE))] * 2),
    ],
    ids=[
        "dataset", "unshuffled", "sequential sampler", "any sampler", "list", "subset", "tensors", "brim's tensors",
        "loader", "shuffling loader", "batch sampler", "dropping loader", "shuffling, dropping "
                                                                          "loader", "stream",
        "part of a stream", "loader of a stream",
    ],
)  # fmt: skip
def test_all_data_is_read_in_order(
    data: Any, options: dict[str, Any], order: str, expected: list[list[int]]
) -> None:
    batch: dict[str, Any] = {} if isinstance(data, DataLoader) else {"global_batch_size": BATCH}
    feed = Feed(data, seed=0, **batch, **options)
    assert feed.order == order
    assert feed.global_batch_size == BATCH
    assert orders(feed) == expected


def test_a_micro_batch_says_which_samples_it_has() -> None:
    feed = Feed(Numbers(), seed=3, global_batch_size=BATCH)
    for micro_batch in read(feed):
        span = micro_batch.request.span
        order = EpochOrder(seed=3, epoch=micro_batch.request.epoch, size=SIZE)
        assert micro_batch.crc32 == sample_checksum(order.samples(span.start, span.stop))


@pytest.mark.parametrize(
    "data",
    [
        Noisy(),
        DataLoader(Noisy(), BATCH, sampler=WeightedRandomSampler(list(range(20)), 20)),
        Counting(noise=0.5),
    ],
    ids=["augmented", "weighted", "stream"],
)
def test_samples_ignore_reader_and_history(
    data: Any,
) -> None:
    batch: dict[str, Any] = {} if isinstance(data, DataLoader) else {"global_batch_size": BATCH}
    whole = values(read(Feed(data, seed=1, **batch)))
    assert any(number % 1 for part in whole for number in part) or not isinstance(data, Counting)
    first, second = Feed(data, seed=1, **batch), Feed(data, seed=1, **batch)
    torch.rand(7), random.random(), np.random.rand(5)
    shares = [read(first, micros=[0]), read(second, micros=[1])]
    parts = {
        (micro_batch.request.step, micro_batch.request.micro): micro_batch
        for share in shares
        for micro_batch in share
    }
    assert values(parts[key] for key in sorted(parts)) == whole
    assert values(read(Feed(data, seed=1, **batch), after=4)) == whole[-len(read(first, after=4)) :]
    assert values(read(Feed(data, seed=2, **batch))) != whole


def test_streams_use_their_own_randomness() -> None:
    feed = Feed(Counting(noise=0.5), seed=1, global_batch_size=BATCH)
    undisturbed = values(read(feed))
    disturbed = []
    for micro_batch in feed.read(requests(feed)):
        disturbed += values([micro_batch])
        random.seed(0)
    assert disturbed == undisturbed


def test_repeated_steps_need_no_new_stream() -> None:
    stream = Counting(noise=0.5)
    feed = Feed(stream, seed=1, global_batch_size=BATCH)
    whole = read(feed, epochs=1)
    assert stream.iterations == 1
    reread = read(feed, epochs=1, after=1)
    assert stream.iterations == 1
    assert values(reread) == values(whole[2:])


def test_self_sharding_streams_are_read_whole() -> None:
    class Sharded(Counting):
        def __iter__(self) -> Iterator[float]:
            info = get_worker_info()
            number, count = (info.id, info.num_workers) if info else (0, 1)
            yield from map(float, range(number, SIZE, count))

    assert orders(Feed(Sharded(), seed=0, global_batch_size=BATCH))[0] == list(range(SIZE))


def test_a_stream_hears_which_epoch_it_is() -> None:
    class OfEpochs(Counting):
        epoch = -1

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __iter__(self) -> Iterator[float]:
            yield from (100.0 * self.epoch + number for number in range(SIZE))

    assert orders(Feed(OfEpochs(), seed=0, global_batch_size=BATCH))[1] == list(
        range(100, 100 + SIZE)
    )


def test_samplers_draw_each_epoch_anew() -> None:
    def fresh(seed: int = 0) -> Feed:
        sampler = WeightedRandomSampler([0.0] * 10 + [1.0] * 10, 14)
        return Feed(DataLoader(Numbers(), BATCH, sampler=sampler), seed=seed)

    feed = fresh()
    assert (feed.samples, feed.order) == (14, "sampler")
    drawn = orders(feed)
    assert min(map(min, drawn)) >= 10
    assert drawn[0] != drawn[1]
    assert orders(fresh()) == drawn
    assert orders(fresh(seed=1)) != drawn
    assert [micro_batch.crc32 for micro_batch in read(fresh())] == [
        micro_batch.crc32 for micro_batch in read(feed)
    ]


@pytest.mark.parametrize("epoch", [0, 1])
def test_sampler_generators_are_seeded_per_epoch(epoch: int) -> None:
    def fresh() -> Feed:
        generator = torch.Generator()
        generator.seed()
        sampler = SubsetRandomSampler(range(SIZE), generator=generator)
        return Feed(Numbers(), seed=0, global_batch_size=BATCH, sampler=sampler)

    assert orders(fresh())[epoch] == orders(fresh())[epoch]


def test_a_random_sampler_with_replacement_draws_for_itself() -> None:
    sampler = RandomSampler(Numbers(), replacement=True, num_samples=30)
    feed = Feed(Numbers(), seed=0, global_batch_size=BATCH, sampler=sampler)
    assert (feed.samples, feed.order) == (30, "sampler")


def test_a_sampler_hears_which_epoch_it_is() -> None:
    class OfEpochs(Sampler[int]):
        epoch = -1

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __iter__(self) -> Iterator[int]:
            yield from ((number + self.epoch) % SIZE for number in range(SIZE))

    feed = Feed(Numbers(), seed=0, global_batch_size=BATCH, sampler=OfEpochs())
    assert orders(feed)[1][:3] == [1, 2, 3]


def test_collate_functions_see_their_micro_batch() -> None:
    def collate(samples: list[tuple[float, int]]) -> dict[str, Tensor]:
        return {"noise": torch.rand(len(samples)), "last": torch.tensor(samples[-1])}

    loader = DataLoader(Numbers(), BATCH, collate_fn=collate)
    reads = [read(Feed(loader, seed=0)), read(Feed(loader, seed=0), micros=[1])]
    assert reads[0][1].sample["last"].tolist() == [7.0, 14.0]
    assert torch.equal(reads[0][1].sample["noise"], reads[1][0].sample["noise"])
    assert not torch.equal(reads[0][0].sample["noise"], reads[0][1].sample["noise"])
    feed = Feed(TensorDataset(torch.arange(20.0)), seed=0, global_batch_size=BATCH, collate_fn=len)
    assert [micro_batch.sample for micro_batch in read(feed)] == [4, 4, 4, 4, 2, 2] * 2


def test_samples_are_collated_like_torch() -> None:
    samples = [
        {"a": float(i), "b": {"c": (i, "word"), "d": torch.full((2,), i)}} for i in range(SIZE)
    ]
    feed = Feed(samples, seed=0, global_batch_size=BATCH, shuffle=False)
    sample = read(feed)[0].sample
    assert sample["a"].tolist() == [0.0, 1.0, 2.0, 3.0]
    numbers, words = sample["b"]["c"]
    assert (numbers.tolist(), words) == ([0, 1, 2, 3], ("word",) * 4)
    assert sample["b"]["d"].shape == (4, 2)


def test_the_first_samples_can_be_looked_at() -> None:
    stream = Feed(Counting(), seed=0, global_batch_size=BATCH)
    for feed in (Feed(Numbers(), seed=0, global_batch_size=BATCH), stream):
        assert torch.as_tensor(first(feed.first(3))).tolist() == [0.0, 1.0, 2.0]
        assert len(first(feed.first(100))) == SIZE
    assert orders(stream)[0] == list(range(SIZE))


class Keeping(Numbers):
    """Augmented from generators that it keeps, here and there."""

    def __init__(self) -> None:
        self.numpy, self.state = np.random.default_rng(), np.random.RandomState()
        generator = torch.Generator()
        generator.seed()
        own_random = random.Random()
        self.transforms: list[Callable[[Any], Any]] = [
            lambda x: x + torch.rand((), generator=generator).item(),
            Jitter(),
        ]
        self.draw = own_random.random

    def __getitem__(self, index: int) -> tuple[Any, int]:
        value = index + self.numpy.random() + self.state.rand() + self.draw()
        for transform in self.transforms:
            value = transform(value)
        return value, index


class Jitter:
    def __init__(self) -> None:
        self.rng = np.random.Generator(np.random.Philox())

    def __call__(self, value: float) -> float:
        return value + self.rng.random()


class Drawing(Counting):
    def __init__(self) -> None:
        super().__init__()
        self.rng = random.Random()

    def __iter__(self) -> Iterator[float]:
        yield from (number + self.rng.random() for number in range(SIZE))


@pytest.mark.parametrize("kind", [Keeping, Drawing])
def test_generators_that_data_keeps_are_seeded_too(kind: type[Any]) -> None:
    reads = [read(Feed(kind(), seed=0, global_batch_size=BATCH), after=step) for step in (0, 0, 3)]
    assert values(reads[0]) == values(reads[1])
    assert values(reads[0])[-len(reads[2]) :] == values(reads[2])
    drawn = [number % 1 for part in values(reads[0]) for number in part]
    assert len(set(drawn)) > SIZE


def test_a_samplers_own_numpy_generator_is_seeded_too() -> None:
    class NumpySampler(Sampler[int]):
        def __init__(self) -> None:
            self.rng = np.random.default_rng()

        def __iter__(self) -> Iterator[int]:
            yield from self.rng.permutation(SIZE).tolist()

    drawn = [
        orders(Feed(Numbers(), seed=0, global_batch_size=BATCH, sampler=NumpySampler()))
        for _ in range(2)
    ]
    assert drawn[0] == drawn[1]
    assert drawn[0][0] != drawn[0][1]


class Remembering(Numbers):
    """Its samples depend on how many were read before."""

    reads = 0

    def __getitem__(self, index: int) -> tuple[float, int]:
        self.reads += 1
        return float(self.reads), index


class FromTheSystem(Numbers):
    def __getitem__(self, index: int) -> tuple[float, int]:
        return random.SystemRandom().random(), index


@pytest.mark.parametrize("kind", [Remembering, FromTheSystem])
def test_changing_data_is_refused(kind: type[Any]) -> None:
    with pytest.raises(SpecError) as refusal:
        Feed(kind(), seed=0, global_batch_size=BATCH).check()
    assert str(refusal.value) == (
        f"{kind.__name__}: got different data when the same samples are read again with the same "
        "seed, need samples "
        "that depend only on their index and on seeded random numbers\n"
        "  hint: draw from torch's, numpy's or Python's global generator, or from one kept in the "
        "dataset"
    )


@pytest.mark.parametrize("kind", [Numbers, Noisy, Keeping, Counting])
def test_repeatable_data_passes(kind: type[Any]) -> None:
    Feed(kind(), seed=0, global_batch_size=BATCH).check()


# Refusals -----------------------------------------------------------------------------------------


class Own(DataLoader[Any]):
    def __iter__(self) -> Any:
        return super().__iter__()


class Pairs(Sampler[list[int]]):
    def __iter__(self) -> Iterator[list[int]]:
        yield from ([number, number + 1] for number in range(0, SIZE, 2))


class Unforeseen(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        yield from np.random.default_rng().permutation(SIZE).tolist()


class Endless(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        number = 0
        while True:
            yield number
            number += 1


class OnePlace(IterableDataset[int]):
    """Samples by index, and an iterator over them that is the data set itself, as litdata has it."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return index

    def __iter__(self) -> OnePlace:
        return self

    def __next__(self) -> int:
        raise StopIteration


class ByRows(dict[str, Any]):
    """A mapping that does not iterate over its keys, as a TensorDict."""

    def __iter__(self) -> Iterator[str]:
        raise TypeError("iteration over a single row")


def test_mappings_are_read_by_their_keys() -> None:
    sample = ByRows(inputs=torch.ones(2))
    assert digest_of(sample) == digest_of({"inputs": torch.ones(2)})
    assert is_same(sample, ByRows(inputs=torch.ones(2)))
    assert not is_same(sample, ByRows(inputs=torch.zeros(2)))
    with pytest.raises(SpecError, match="got a ByRows of 'inputs', need one dataset") as refused:
        Feed(sample, seed=0)
    assert refused.value.hint == "data['inputs']"


class Table(ByRows):
    """A mapping of columns whose items are rows, as a TensorDict with a batch dimension."""

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return super().__getitem__(key)
        return Table({name: column[key] for name, column in self.items()})

    __getitems__ = __getitem__


@pytest.mark.parametrize("collate", [None, lambda rows: rows])
def test_tables_are_read_by_rows(collate: Callable[[Any], Any] | None) -> None:
    table = Table(number=torch.arange(SIZE))
    feed = Feed(table, seed=0, global_batch_size=BATCH, shuffle=False, collate_fn=collate)
    feed.check()
    assert [part.sample["number"].tolist() for part in read(feed, epochs=1)] == [
        *([4 * start, 4 * start + 1, 4 * start + 2, 4 * start + 3] for start in range(4)),
        [16, 17],
        [18, 19],
    ]


class Graphs:
    """A batch that is neither a tensor nor a mapping, as one of graphs."""

    def to(self, device: torch.device) -> torch.device:
        return device


def test_batches_of_other_kinds_are_moved() -> None:
    device = torch.device("meta")
    assert to_device([Graphs()], device) == [device]


class Sizeless(Dataset[int]):
    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize(
    ("data", "options", "words"),
    [
        (
            DataLoader(Numbers(), 8),
            {"global_batch_size": 16},
            "global_batch_size: got 16, and a DataLoader with batch_size=8, need one number of "
            "samples per step\n"
            "  hint: DataLoader(…, batch_size=16), or leave global_batch_size out",
        ),
        (
            DataLoader(Numbers(), 8),
            {"shuffle": True},
            "shuffle: got shuffle= beside a DataLoader, need it in one place\n"
            "  hint: DataLoader(dataset, shuffle=…), or the dataset itself without a DataLoader",
        ),
        (
            DataLoader(Numbers(), 8, sampler=DistributedSampler(Numbers(), num_replicas=2, rank=0)),
            {},
            "DistributedSampler: got a sampler that cuts the data by rank, need none: brim gives "
            "each worker its "
            "part of every batch\n  hint: DataLoader(dataset, shuffle=True)",
        ),
        (
            DataLoader(Numbers(), batch_sampler=Pairs()),
            {},
            "batch_sampler Pairs: got a sampler that makes batches of its own, need one that draws "
            "single samples: "
            "brim cuts each batch into micro-batches\n  hint: DataLoader(dataset, batch_size=512, "
            "sampler=…)",
        ),
        (
            DataLoader(Numbers(), batch_size=None),
            {},
            "DataLoader(batch_size=None): got a DataLoader whose dataset makes the batches, need "
            "one whose dataset "
            "gives single samples: brim cuts each batch into micro-batches\n"
            "  hint: DataLoader(dataset, batch_size=512), where dataset[i] is sample i without a "
            "dimension of the batch",
        ),
        (
            DataLoader(Numbers(), 21, drop_last=True),
            {},
            "DataLoader(drop_last=True): got 20 samples, fewer than a batch of 21, need at least one "
            "whole batch\n  hint: batch_size=20",
        ),
        (
            DataLoader(Numbers(), 8, num_workers=1, multiprocessing_context="spawn"),
            {},
            "DataLoader(multiprocessing_context=): got 'spawn', need 'fork' or none: brim forks "
            "the processes that "
            "read\n  hint: num_workers=0 reads in the step",
        ),
        (
            Own(Numbers(), 8),
            {},
            "Own: got a DataLoader with its own __iter__, need torch's DataLoader, or a dataset: "
            "brim reads the "
            "samples of each micro-batch itself\n  hint: pass its dataset: loader.dataset",
        ),
        (
            Own(Numbers(), 8, collate_fn=len),
            {},
            "Own: got a DataLoader with its own __iter__, need torch's DataLoader, or a dataset: "
            "brim reads the "
            "samples of each micro-batch itself\n  hint: DataLoader(loader.dataset, "
            "collate_fn=loader.collate_fn)",
        ),
        (
            Numbers(),
            {"sampler": Pairs()},
            "sampler Pairs: got [0, 1] as a sample, need an index of the dataset",
        ),
        (
            Numbers(),
            {"sampler": BatchSampler(range(SIZE), 8, False)},
            "sampler: got a BatchSampler, which draws batches, need one that draws single samples: "
            "brim cuts each "
            "batch into micro-batches\n  hint: sampler=sampler.sampler, "
            "global_batch_size=sampler.batch_size",
        ),
        (
            Numbers(),
            {"sampler": range(15, 25)},
            "sampler range: got sample 20, need an index of the dataset: 0 to 19",
        ),
        (Numbers(), {"sampler": []}, "sampler list: got no samples, need at least one"),
        (
            Numbers(),
            {"sampler": Unforeseen()},
            "sampler Unforeseen: got another order each time it is asked under the same seed, need "
            "one that draws "
            "from torch's, numpy's or Python's global generator, or from one of its own\n"
            "  hint: a generator kept in the sampler, which brim seeds for each epoch",
        ),
        (
            Numbers(),
            {"sampler": range(3), "shuffle": False},
            "shuffle: got shuffle= beside sampler=, need one of them",
        ),
        (
            Numbers(),
            {"samples": 10},
            "samples: got 10 for a dataset that has 20, need samples= only with a stream\n"
            "  hint: torch.utils.data.Subset(dataset, range(10))",
        ),
        (
            Endless(),
            {},
            "Endless: got a stream that does not say how many samples an epoch has, need samples=, "
            "or __len__\n"
            "  hint: job.batches(stream, samples=100_000, global_batch_size=512), or in a training "
            "file return "
            "brim.data.stream(stream, samples=100_000)",
        ),
        (
            Counting(),
            {"shuffle": True},
            "shuffle: got a stream, whose samples come in a fixed order, need a map-style dataset "
            "(__len__ and "
            "__getitem__), or a stream that shuffles itself",
        ),
        (
            (number for number in range(3)),
            {},
            "data: got a generator, which can be read only once, need something that can be "
            "iterated again for each "
            "epoch\n  hint: a torch.utils.data.IterableDataset with __iter__",
        ),
        (
            OnePlace(),
            {},
            "data: got a OnePlace, which can be read only once, need something that can be iterated "
            "again for each epoch\n  hint: read it by index: torch.utils.data.Subset(dataset, "
            "range(len(dataset)))",
        ),
        (
            {"train": Numbers(), "test": Numbers()},
            {},
            "data: got a dict of 'train', 'test', need one dataset\n  hint: data['train']",
        ),
        (
            None,
            {},
            "data: got a NoneType, need a DataLoader, a stream, or a dataset with __len__ and "
            "__getitem__\n"
            "  hint: torch.utils.data.TensorDataset(inputs, targets)",
        ),
        (
            Sizeless(),
            {},
            "data: got a Sizeless, need a DataLoader, a stream, or a dataset with __len__ and "
            "__getitem__\n"
            "  hint: torch.utils.data.TensorDataset(inputs, targets)",
        ),
    ],
)
def test_inexact_data_is_refused_with_the_reason(
    data: Any, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(SpecError) as refusal:
        Feed(data, seed=0, **options)
    assert str(refusal.value) == words


def of_package(module: str, name: str, base: type = object, **fields: Any) -> Any:
    """An object as one of another package's classes gives it."""
    return type(name, (base,), {"__module__": module, "__iter__": lambda self: iter(()), **fields})


@pytest.mark.parametrize(
    ("data", "hint"),
    [
        (of_package("webdataset.compat", "WebLoader")(), "without .batched"),
        (of_package("fastai.data.load", "DataLoader")(), "a TensorDataset"),
        (of_package("fastai.data.core", "TfmdDL", of_package("fastai.data.load", "DataLoader"))(),
         "a TensorDataset"),
        (of_package("torchdata.nodes.loader", "Loader",
                    root=of_package("torchdata.nodes.batch", "Batcher")())(), "before the Batcher"),
        (of_package("webdataset.compat", "WebDataset", pipeline=[
            of_package("webdataset.filters", "FilterFunction",
                       f=of_package("webdataset.filters", "_batched"))()])(), "without .batched"),
    ],
)  # fmt: skip
def test_whole_batches_are_named_as_such(data: Any, hint: str) -> None:
    with pytest.raises(SpecError, match="something that yields whole batches") as refused:
        Feed(data, seed=0, global_batch_size=BATCH, samples=SIZE)
    assert hint in str(refused.value)


class Bar:
    """What it iterates over is an attribute, as that of a progress bar is."""

    def __init__(self, iterable: DataLoader[Any]) -> None:
        self.iterable = iterable

    def __iter__(self) -> Iterator[Any]:
        return iter(self.iterable)

    def __len__(self) -> int:
        return len(self.iterable)


def test_wrapped_loaders_are_named() -> None:
    with pytest.raises(SpecError, match="yields the batches of a DataLoader") as refused:
        Feed(Bar(DataLoader(Numbers(), batch_size=BATCH)), seed=0, global_batch_size=BATCH)
    assert "its attribute 'iterable'" in refused.value.hint


class Rows(Bar):
    """Samples by their places, beside a DataLoader for something else."""

    def __getitem__(self, index: int) -> Any:
        return Numbers()[index]

    def __len__(self) -> int:
        return SIZE


def test_loaders_beside_samples_are_left_alone() -> None:
    loader = DataLoader(Numbers(), batch_size=BATCH)
    assert orders(Feed(Rows(loader), seed=0, global_batch_size=BATCH)) != []
    samples = Bar(DataLoader(Numbers(), batch_size=None))
    assert Feed(samples, seed=0, global_batch_size=BATCH, samples=SIZE).samples == SIZE


@pytest.mark.parametrize(
    "module",
    [
        "torchdata.stateful_dataloader.stateful_dataloader",
        "streaming.base.dataloader",
        "speechbrain.dataio.dataloader",
    ],
)
def test_loaders_that_only_count_are_read(module: str) -> None:
    kind = of_package(module, "CountingLoader", DataLoader)
    assert orders(Feed(kind(Numbers(), batch_size=BATCH), seed=0)) == [list(range(SIZE))] * 2
    with pytest.raises(SpecError, match="its own __iter__"):
        Feed(of_package("mine", "Loader", DataLoader)(Numbers(), batch_size=BATCH), seed=0)


def test_node_of_torchdata_hints_at_its_loader() -> None:
    node = of_package("torchdata.nodes.map", "Mapper", __next__=lambda self: 0)()
    with pytest.raises(SpecError, match=r"hint: torchdata.nodes.Loader\(node\)"):
        Feed(node, seed=0, global_batch_size=BATCH, samples=SIZE)


def test_early_ending_streams_are_errors() -> None:
    feed = Feed(Counting(), seed=0, global_batch_size=BATCH, samples=25)
    with pytest.raises(SpecError) as refusal:
        read(feed)
    assert str(refusal.value) == (
        "Counting: got a stream that ended after 20 samples of epoch 1, need the 25 that len() or "
        "samples= "
        "promised\n  hint: samples=20"
    )


def test_a_sampler_draws_as_many_in_every_epoch() -> None:
    class Growing(Sampler[int]):
        epoch = 0

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __iter__(self) -> Iterator[int]:
            yield from range(10 + self.epoch)

    with pytest.raises(
        SpecError, match="11 samples in epoch 2 and 10 in the first, need the same number"
    ):
        read(Feed(Numbers(), seed=0, global_batch_size=BATCH, sampler=Growing()))


NOTHING: Any = []


@pytest.mark.parametrize(
    "data", [NOTHING, DataLoader(NOTHING, batch_size=BATCH)], ids=["list", "loader"]
)
def test_a_split_may_have_no_samples(data: Any) -> None:
    feed = Feed(data, seed=0)
    assert feed.samples == 0
    assert list(feed.read(iter(()))) == []


def test_a_dataset_by_itself_needs_a_batch_size() -> None:
    with pytest.raises(SpecError, match=r"hint: job\.batches"):
        Feed(Numbers(), seed=0).global_batch_size


def test_prefetched_errors_come_in_order() -> None:
    indices_read: list[int] = []

    def read() -> Generator[Read]:
        for number in range(4):
            indices_read.append(number)
            if number == 3:
                raise ZeroDivisionError
            yield Read(MicroBatchRequest(number, 0, 0, Span(0, 1)), number, 0)

    reads = Reads(read(), is_quick=True)
    assert next(reads).sample == 0
    reads.look_ahead()
    reads.look_ahead()
    assert indices_read == [0, 1]
    assert [next(reads).sample, next(reads).sample] == [1, 2]
    reads.look_ahead()
    with pytest.raises(ZeroDivisionError):
        next(reads)
    slow = Reads(read(), is_quick=False)
    slow.look_ahead()
    assert indices_read == [0, 1, 2, 3]
