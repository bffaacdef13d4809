"""A stream that is cut into shards is read once over all workers, and the same for any number of
them.
"""

from __future__ import annotations

import itertools
import os
import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, get_worker_info

from brim.data.feed import Feed, Read, requests
from brim.data.sized_stream import stream
from brim.domain.batch import Schedule, Span, shard_spans
from brim.errors import SpecError

SIZE, BATCH, SHARDS, PARTS = 40, 16, 4, 8
read_by_shard: dict[int, int] = {}


class Files(IterableDataset[tuple[float, int]]):
    """0, 1, 2, …, dealt out by `get_worker_info`, with noise from a generator of its own and from
    the global one.
    """

    def __init__(self) -> None:
        self.generator = random.Random(5)

    def __len__(self) -> int:
        return SIZE

    def __iter__(self) -> Iterator[tuple[float, int]]:
        info = get_worker_info()
        shard, count = (info.id, info.num_workers) if info else (0, 1)
        for number in range(shard, SIZE, count):
            read_by_shard[shard] = read_by_shard.get(shard, 0) + 1
            yield number + self.generator.random() / 4 + random.random() / 4, os.getpid()


def ask(
    feed: Feed, *, ranks: range | None = None, after: int = 0, parts: int = PARTS
) -> Iterator[Any]:
    schedule = Schedule(samples=feed.samples, global_batch_size=feed.global_batch_size, epochs=2)
    return requests(schedule, parts=parts, micro_batches=ranks or range(parts), after=after)


def new_feed(**options: Any) -> Feed:
    return Feed(Files(), seed=0, global_batch_size=BATCH, **{"shards": SHARDS, **options})


def read_all(feed: Feed, **options: Any) -> list[Read]:
    return list(feed.read(ask(feed, **options)))


def numbers(read: Read) -> list[float]:
    return torch.as_tensor(read.sample[0]).tolist()


def by_place(reads: list[Read]) -> dict[tuple[int, int], list[float]]:
    return {(read.request.step, read.request.micro): numbers(read) for read in reads}


@pytest.mark.parametrize(
    "cuts", [(0, 8), (0, 3, 8), (0, 2, 5, 8), range(9)], ids=["1", "2", "3", "8"]
)
def test_any_world_reads_each_sample_once(cuts: Any) -> None:
    read_alone = by_place(read_all(new_feed()))
    read_together: dict[tuple[int, int], list[float]] = {}
    for start, stop in itertools.pairwise(cuts):
        feed = new_feed()
        read_together |= by_place(list(feed.read(ask(feed, ranks=range(start, stop)))))
    assert read_together == read_alone
    for epoch in (0, 1):
        seen = [
            int(number)
            for (step, _), part in read_alone.items()
            if step // 3 == epoch
            for number in part
        ]
        assert sorted(seen) == list(range(SIZE))


def test_workers_read_only_their_shards() -> None:
    read_by_shard.clear()
    feed = new_feed()
    list(feed.read(ask(feed, ranks=range(2, 4))))
    assert read_by_shard == {1: 2 * SIZE // SHARDS}


def test_shard_takeovers_skip_to_the_others() -> None:
    whole = by_place(read_all(new_feed()))
    feed = new_feed()
    first_reads = list(itertools.islice(feed.read(ask(feed, ranks=range(4))), 6))
    rest = by_place(list(feed.read(ask(feed, after=1))))
    assert by_place(first_reads) == {place: whole[place] for place in by_place(first_reads)}
    assert rest == {place: part for place, part in whole.items() if place[0] >= 1}


def test_micro_batches_cross_shards_in_order() -> None:
    whole, crossing = read_all(new_feed()), read_all(new_feed(), parts=3)
    assert [n for micro_batch in crossing for n in numbers(micro_batch)] == [
        n for micro_batch in whole for n in numbers(micro_batch)
    ]


@pytest.mark.parametrize("loaders", [1, 2, 9])
def test_each_shard_may_have_a_process(loaders: int) -> None:
    whole = by_place(read_all(new_feed()))
    feed = new_feed(loaders=loaders)
    try:
        reads = list(feed.read(ask(feed)))
    finally:
        feed.close()
    assert feed.loaders == min(loaders, SHARDS)
    assert by_place(reads) == whole
    assert len({pid for read in reads for pid in read.sample[1].tolist()}) == feed.loaders


def test_a_loader_of_a_stream_is_cut_too() -> None:
    feed = Feed(DataLoader(Files(), BATCH, drop_last=True), seed=0, shards=SHARDS)
    assert feed.samples == 32
    assert sum(len(numbers(micro_batch)) for micro_batch in feed.read(ask(feed))) == 64


def test_resumed_jobs_keep_shard_counts() -> None:
    feeds = [new_feed(shards=shards) for shards in (None, 1, 2, 4)]
    for feed in feeds:
        feed.check()
    assert [feeds[0].mark == feed.mark for feed in feeds] == [True, True, False, False]


class Deaf(Files):
    def __iter__(self) -> Iterator[tuple[float, int]]:
        return ((float(number), 0) for number in range(SIZE))


def test_streams_ignoring_their_shard_are_refused() -> None:
    feed = Feed(Deaf(), seed=0, global_batch_size=BATCH, shards=SHARDS)
    with pytest.raises(SpecError, match="each sample would come 4 times") as refusal:
        next(feed.read(ask(feed)))
    assert "Deaf: got a stream that gave a sample without asking which shard" in str(refusal.value)
    assert get_worker_info() is None


class Uneven(Files):
    def __iter__(self) -> Iterator[tuple[float, int]]:
        info = get_worker_info()
        assert info is not None
        return iter([(0.0, 0)] * (9 if info.id == 2 else 11))


def test_short_shards_are_reported() -> None:
    feed = Feed(Uneven(), seed=0, global_batch_size=BATCH, shards=SHARDS)
    with pytest.raises(SpecError) as refusal:
        list(feed.read(ask(feed)))
    assert str(refusal.value) == (
        "Uneven: got a stream that ended after 9 samples of shard 2 of 4 of epoch 1, need the 10 "
        "that len() or "
        "samples= promised of each shard\n  hint: samples=36"
    )


class Locked(Files):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


def test_a_stream_that_cannot_be_copied_is_refused() -> None:
    feed = Feed(Locked(), seed=0, global_batch_size=BATCH, shards=SHARDS)
    with pytest.raises(SpecError, match="a stream that cannot be copied") as refusal:
        next(feed.read(ask(feed)))
    assert refusal.value.hint == "open files and connections in __iter__"


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (Files(), {"shards": 0}, "shards: got 0, need a whole number from 1"),
        (Files(), {"shards": 3}, "global_batch_size: got 16 and shards=3, need a multiple of 3"),
        (Files(), {"shards": 16}, "samples: got 40 and shards=16, need a multiple of 16"),
        (TensorDataset(torch.zeros(SIZE)), {"shards": 4}, "for a dataset that is read by index"),
    ],
)
def test_shards_that_will_not_do_are_refused(
    data: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecError) as refusal:
        Feed(data, seed=0, global_batch_size=BATCH, **options)
    assert message in str(refusal.value)


@pytest.mark.parametrize("batch_size", [4, 8, 12])
def test_shards_contribute_equally_to_steps(
    batch_size: int,
) -> None:
    places = []
    for position in range(SIZE):
        ((shard, span),) = shard_spans(
            Span(position, position + 1), samples=SIZE, batch_size=batch_size, shards=SHARDS
        )
        places.append((shard, span.start))
    assert sorted(places) == [(shard, n) for shard in range(SHARDS) for n in range(SIZE // SHARDS)]
    for start in range(0, SIZE, batch_size):
        step = [shard for shard, _ in places[start : start + batch_size]]
        assert step == sorted(step)
        assert {step.count(shard) for shard in range(SHARDS)} == {len(step) // SHARDS}


# Hugging Face -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def streamed() -> Any:
    datasets = pytest.importorskip("datasets")
    return datasets.Dataset.from_dict({"label": list(range(SIZE))}).to_iterable_dataset(
        num_shards=4
    )


def labels(feed: Feed, ranks: range) -> list[tuple[int, int, list[int]]]:
    return [
        (micro_batch.request.step, micro_batch.request.micro, micro_batch.sample["label"].tolist())
        for micro_batch in feed.read(ask(feed, ranks=ranks))
    ]


@pytest.mark.parametrize("form", [None, "torch"])
@pytest.mark.parametrize("loaders", [0, 2])
def test_hugging_face_streams_use_their_cut(streamed: Any, form: str | None, loaders: int) -> None:
    stream = streamed.shuffle(seed=3, buffer_size=5).with_format(form)
    kind: dict[str, Any] = {
        "seed": 0,
        "global_batch_size": BATCH,
        "samples": SIZE,
        "shards": SHARDS,
    }
    labels_alone = labels(Feed(stream, **kind), range(PARTS))
    labels_together: list[tuple[int, int, list[int]]] = []
    for ranks in (range(3), range(3, PARTS)):
        feed = Feed(stream, loaders=loaders, **kind)
        try:
            labels_together += labels(feed, ranks)
        finally:
            feed.close()
    assert sorted(labels_together) == sorted(labels_alone)
    epochs = [
        [n for step, _, part in labels_alone if step // 3 == epoch for n in part]
        for epoch in (0, 1)
    ]
    assert [sorted(epoch) for epoch in epochs] == [list(range(SIZE))] * 2
    assert epochs[0] != epochs[1]


def test_hugging_face_streams_report_shards(streamed: Any) -> None:
    with pytest.raises(SpecError, match="got shards=8 of a stream that has 4, need at most 4"):
        Feed(streamed, seed=0, global_batch_size=BATCH, samples=SIZE, shards=8)


@pytest.mark.parametrize("in_a_loader", [False, True])
def test_streams_may_declare_shards_and_samples(in_a_loader: bool) -> None:
    declared = stream(Files(), samples=SIZE - SHARDS, shards=SHARDS)
    data = DataLoader(declared, batch_size=BATCH) if in_a_loader else declared
    feed = Feed(data, seed=0, global_batch_size=BATCH)
    undeclared = new_feed(samples=SIZE - SHARDS)
    assert (feed.samples, feed.dataset) == (SIZE - SHARDS, declared.dataset)
    assert by_place(read_all(feed)) == by_place(read_all(undeclared))


def test_sharded_streams_need_no_batch_size() -> None:
    feed = Feed(stream(Files(), shards=SHARDS), seed=0)
    whole = feed.first(SIZE)[0].floor().int().tolist()
    assert sorted(whole) == list(range(SIZE))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: Feed(stream(Files(), shards=4), seed=0, global_batch_size=16, shards=2),
            "2, and shards=4",
        ),
        (lambda: stream(TensorDataset(torch.zeros(3))), "got a TensorDataset"),
    ],
)
def test_repeated_stream_declarations_are_refused(make: Any, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        make()
