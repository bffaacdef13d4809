"""Iterations over a stream that differ are found before they spoil a result."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

import brim
from brim.data.feed import Feed, Read
from brim.data.repeatable import hash_of
from brim.data.streams import StreamMark
from brim.domain.accounting import audit
from brim.domain.step_records import StepRecord
from brim.errors import SpecError
from brim.train.witness import Marks, Witness
from train.test_feed import BATCH, PARTS, SIZE, Counting, read, values


class Shuffled(IterableDataset[float]):
    """A stream of which the part behind `first` comes in an order that `draw` gives."""

    def __init__(
        self, draw: Callable[[], random.Random], *, first: int = 0, size: int = SIZE
    ) -> None:
        self.draw, self.first, self.size = draw, first, size

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[float]:
        rest = [float(number) for number in range(self.first, self.size)]
        self.draw().shuffle(rest)
        yield from [*map(float, range(self.first)), *rest]


class Named(Counting):
    """A stream that is told its epoch."""

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[float]:
        numbers = [float(number) for number in range(SIZE)]
        random.Random(self.epoch).shuffle(numbers)
        yield from numbers


def by_process() -> random.Random:
    """As WebDataset's shuffle() does by the process and the time."""
    return random.Random(random.SystemRandom().getrandbits(64))


def by_count(counter: Iterator[int]) -> Callable[[], random.Random]:
    """As WebDataset's detshuffle() does."""
    return lambda: random.Random(next(counter))


def new_feed(data: Any, **options: Any) -> Feed:
    feed = Feed(data, seed=0, global_batch_size=BATCH, **options)
    feed.marks_of = lambda epoch: {}
    return feed


LARGE = 2000  # its first two samples, which are compared, are the same once in four million orders


@pytest.mark.parametrize(
    "data",
    [
        Shuffled(by_process, size=LARGE),
        Shuffled(by_count(itertools.count())),
        DataLoader(Shuffled(by_process, size=LARGE), batch_size=BATCH),
        brim.data.stream(Shuffled(by_process, size=LARGE), samples=LARGE),
        brim.data.stream(lambda epoch: Shuffled(by_process, size=LARGE), samples=LARGE),
    ],
    ids=["by process", "by count", "in a loader", "sized", "by a function"],
)
def test_stream_that_shuffles_itself_is_refused(data: Any) -> None:
    with pytest.raises(SpecError, match="other samples when it is begun again") as refused:
        new_feed(data).check()
    assert "brim.data.stream(lambda epoch" in str(refused.value)


@pytest.mark.parametrize(
    "data",
    [
        Counting(noise=0.5),
        Named(),
        brim.data.stream(Named(), samples=SIZE),
        brim.data.stream(lambda epoch: Shuffled(lambda: random.Random(epoch)), samples=SIZE),
    ],
    ids=["seeded by brim", "set_epoch", "sized", "by a function"],
)
def test_order_that_follows_the_epoch_is_read(data: Any) -> None:
    feed = new_feed(data)
    feed.check()
    numbers = values(read(feed))
    assert numbers == values(read(new_feed(data)))
    assert numbers[: len(numbers) // 2] != numbers[len(numbers) // 2 :]


def test_check_goes_on_from_the_iteration_it_began() -> None:
    stream = Counting()
    feed = new_feed(stream)
    feed.check()
    read(feed, epochs=1)
    assert stream.iterations == 2


def test_advice_names_the_package() -> None:
    stream = Shuffled(by_process, size=LARGE)
    stream.__class__ = type("WebDataset", (Shuffled,), {"__module__": "webdataset.compat"})
    with pytest.raises(SpecError, match=r"\.shuffle\(1000, seed=epoch\)"):
        new_feed(stream).check()


# Digests ------------------------------------------------------------------------------------------


def marks_of(reads: list[Read]) -> dict[tuple[int, int], StreamMark]:
    """The mark of each shard at the end of each step."""
    return {
        (micro_batch.request.step, shard): mark
        for micro_batch in reads
        for shard, mark in micro_batch.marks.items()
    }


@pytest.mark.parametrize("loaders", [0, 1])
@pytest.mark.parametrize("micros", [[0], [1], [0, 1]])
def test_all_readers_have_the_same_marks(micros: list[int], loaders: int) -> None:
    whole = marks_of(read(new_feed(Counting(noise=0.5))))
    feed = new_feed(Counting(noise=0.5), loaders=loaders)
    assert marks_of(read(feed, micros=micros)) == whole
    assert [whole[step, 0].position for step in range(6)] == [8, 16, 20] * 2
    feed.close()


def test_parts_of_steps_sum_to_marks() -> None:
    reads = read(new_feed(Counting(noise=0.5)), epochs=1)
    for step, mark in enumerate(marks_of(reads).values()):
        total = sum(micro_batch.crc32 for micro_batch in reads if micro_batch.request.step <= step)
        assert total % (1 << 32) == mark.digest % (1 << 32)


def test_reread_steps_have_equal_marks() -> None:
    feed = new_feed(Counting())
    once, reread = read(feed, epochs=1), read(feed, epochs=1, after=1)
    assert marks_of(reread) == {
        place: mark for place, mark in marks_of(once).items() if place[0] >= 1
    }


def test_evaluation_reads_no_further_than_its_part() -> None:
    feed = Feed(Counting(), seed=0, global_batch_size=BATCH)
    assert marks_of(read(feed, micros=[0], epochs=1))[0, 0].position == BATCH // PARTS


def test_newcomer_finds_what_others_have_read() -> None:
    agreed = marks_of(read(new_feed(Counting())))[0, 0]
    feed = new_feed(Counting())
    feed.marks_of = lambda epoch: {0: agreed}
    read(feed, after=1, epochs=1)
    other_feed = new_feed(Shuffled(by_process, first=2))
    other_feed.marks_of = lambda epoch: {0: agreed}
    with pytest.raises(SpecError, match="other samples among the first 8 of epoch 1 than this job"):
        read(other_feed, after=1, epochs=1)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (1.0, 2.0),
        ("a", "b"),
        ((1, 2), (2, 1)),
        (torch.zeros(2), torch.zeros(3)),
        (np.float32(1), np.float32(2)),
        (np.array(["a"]), np.array(["b"])),
        ({"text": "a"}, {"text": "b"}),
    ],
)
def test_hash_tells_samples_apart(first: Any, second: Any) -> None:
    assert hash_of(first) == hash_of(first) != hash_of(second)
    assert hash_of(first, seed=1) != hash_of(first, seed=2)


def test_hash_sees_images_and_passes_over_origins() -> None:
    def image(value: int) -> Any:
        array = np.full((2, 2), value)
        kind = type(
            "Image", (), {"__array_interface__": property(lambda _: array.__array_interface__)}
        )
        return kind()

    assert hash_of(image(1)) == hash_of(image(1)) != hash_of(image(2))
    assert hash_of({"__url__": "a.tar", "cls": 1}) == hash_of({"__url__": "b.tar", "cls": 1})


# Comparing ----------------------------------------------------------------------------------------


class Members:
    """Two members; the other one brings some marks."""

    world_size = 2
    names = ("w1", "w2")

    def __init__(self, other_marks: Marks) -> None:
        self.theirs = other_marks
        self.arrivals = 0

    def arrive(self, step: int, phase: str, payload: bytes) -> Any:
        self.arrivals += 1
        return SimpleNamespace(payloads=[payload, msgspec.msgpack.encode(self.theirs)])


def new_witness(other_marks: Marks) -> tuple[Witness, Any, Feed]:
    state = SimpleNamespace(streams={}, committed=0)
    parts: Any = SimpleNamespace(asynchrony=None, state=state, members=Members(other_marks))
    feed = new_feed(Counting())
    return Witness(parts, feed), parts, feed


@pytest.mark.parametrize(
    ("own_marks", "other_marks", "kept_marks"),
    [
        ({0: StreamMark(8, 5)}, {0: StreamMark(8, 5)}, {0: StreamMark(8, 5)}),
        ({0: StreamMark(8, 5)}, {}, {0: StreamMark(8, 5)}),
        ({0: StreamMark(2, 5)}, {1: StreamMark(2, 6)}, {0: StreamMark(2, 5), 1: StreamMark(2, 6)}),
    ],
    ids=["alike", "one read nothing", "shards"],
)
def test_marks_that_agree_are_kept_in_the_state(
    own_marks: Marks, other_marks: Marks, kept_marks: Marks
) -> None:
    witness, parts, feed = new_witness(other_marks)
    witness.compare(3, own_marks, commits=0, ends_epoch=False)
    assert feed.marks_of is not None
    assert feed.marks_of(3) == kept_marks
    assert feed.marks_of(4) == {}
    assert parts.state.streams["epoch"] == [3]


def test_marks_that_differ_name_both_workers() -> None:
    witness, _, _ = new_witness({0: StreamMark(8, 6)})
    with pytest.raises(SpecError, match="in w1 and w2 among the first 8 of epoch 2"):
        witness.compare(1, {0: StreamMark(8, 5)}, commits=0, ends_epoch=False)


def test_marks_are_compared_now_and_then() -> None:
    witness, parts, _ = new_witness({0: StreamMark(8, 5)})
    for commits in range(64):
        witness.compare(0, {0: StreamMark(8, 5)}, commits=commits, ends_epoch=commits == 40)
    assert parts.members.arrivals == 8


def test_worker_alone_keeps_its_marks() -> None:
    witness, parts, feed = new_witness({})
    parts.members = SimpleNamespace(world_size=1, names=("w1",))
    witness.compare(0, {0: StreamMark(8, 5)}, commits=0, ends_epoch=False)
    assert feed.marks_of is not None
    assert feed.marks_of(0) == {0: StreamMark(8, 5)}


# The ledger ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("contents", "exact", "mismatched"),
    [
        ([(10,), (30,)], True, 0),
        ([(10,), (30, 31)], False, 1),
        ([(11,), (31,)], False, 1),
        ([(11,), (30,)], False, 2),
    ],
    ids=["all", "two streams", "one step", "each step"],
)
def test_ledger_counts_contents(
    contents: list[tuple[int, ...]], exact: bool, mismatched: int
) -> None:
    steps = [
        StepRecord(
            at=0.0,
            round=1,
            step=number + 1,
            epoch=0,
            loss=0.0,
            samples=4,
            parts=((0, 0, 4 * number, 4 * number + 4, checksum),),  # type: ignore[arg-type]
            seconds={},
            contents=contents[number],
        )
        for number, checksum in enumerate((10, 20))
    ]
    steps = msgspec.convert(msgspec.to_builtins(steps), list[StepRecord])
    ledger = audit(steps, [], samples_per_epoch=8, epochs=1, order=None)
    assert (ledger.exact, ledger.counted) == (exact, "contents")
    assert ledger.epochs[0].mismatched == mismatched
