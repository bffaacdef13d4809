"""Datasets of Hugging Face are read like any other: by index, with a format, and as streams."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from brim.data.feed import Feed, requests
from brim.domain.batch import Schedule
from brim.domain.order import EpochOrder
from brim.errors import SpecError

SIZE, BATCH = 20, 8


@pytest.fixture(scope="module")
def datasets() -> Any:
    return pytest.importorskip("datasets")  # imported here: it takes seconds


@pytest.fixture(scope="module")
def rows(datasets: Any) -> Any:
    return datasets.Dataset.from_dict(
        {"x": [[float(i), 1.0] for i in range(SIZE)], "label": list(range(SIZE))}
    )


def labels(feed: Feed) -> list[list[int]]:
    """The labels of two epochs."""
    schedule = Schedule(samples=feed.samples, global_batch_size=feed.global_batch_size, epochs=2)
    reads = list(feed.read(requests(schedule, parts=2, micro_batches=range(2), after=0)))
    epochs: list[list[int]] = [[], []]
    for read in reads:
        assert set(read.sample) == {"x", "label"}
        epochs[read.request.epoch] += read.sample["label"].tolist()
    return epochs


def shuffled(epoch: int) -> list[int]:
    found: list[int] = EpochOrder(seed=0, epoch=epoch, size=SIZE).samples(0, SIZE).tolist()
    return found


def test_a_dataset_is_shuffled_like_any_other(rows: Any) -> None:
    assert labels(Feed(rows, seed=0, global_batch_size=BATCH)) == [shuffled(0), shuffled(1)]


def test_a_torch_format_gives_tensors(rows: Any) -> None:
    feed = Feed(rows.with_format("torch"), seed=0, global_batch_size=BATCH)
    assert labels(feed) == [shuffled(0), shuffled(1)]
    sample = feed.first(3)
    assert torch.equal(sample["x"], torch.tensor([[0.0, 1.0], [1.0, 1.0], [2.0, 1.0]]))


def test_a_dataset_may_be_read_by_processes(rows: Any) -> None:
    feed = Feed(rows.with_format("torch"), seed=0, global_batch_size=BATCH, loaders=2)
    try:
        assert labels(feed) == [shuffled(0), shuffled(1)]
    finally:
        feed.close()


@pytest.mark.parametrize("loaders", [0, 2])
@pytest.mark.parametrize("form", [None, "torch"])
def test_a_stream_of_several_shards_is_read_whole(
    rows: Any, form: str | None, loaders: int
) -> None:
    stream = rows.to_iterable_dataset(num_shards=4).with_format(form)
    feed = Feed(stream, seed=0, global_batch_size=BATCH, samples=SIZE, loaders=loaders)
    try:
        assert feed.order == "stream"
        assert labels(feed) == [list(range(SIZE))] * 2
    finally:
        feed.close()


def test_streams_reshuffle_equally_for_all(rows: Any) -> None:
    def read() -> list[list[int]]:
        stream = rows.to_iterable_dataset(num_shards=4).shuffle(seed=3, buffer_size=10)
        return labels(Feed(stream, seed=0, global_batch_size=BATCH, samples=SIZE))

    first, second = read()
    assert sorted(first) == sorted(second) == list(range(SIZE))
    assert first != second
    assert read() == [first, second]


def test_a_stream_needs_its_number_of_samples(rows: Any) -> None:
    with pytest.raises(SpecError, match="need samples=, or __len__"):
        Feed(rows.to_iterable_dataset(), seed=0, global_batch_size=BATCH)


def test_one_of_several_splits_is_wanted(datasets: Any, rows: Any) -> None:
    both_splits = datasets.DatasetDict({"train": rows, "test": rows})
    with pytest.raises(SpecError) as refusal:
        Feed(both_splits, seed=0, global_batch_size=BATCH)
    assert str(refusal.value) == (
        "data: got a DatasetDict of 'train', 'test', need one dataset\n  hint: data['train']"
    )
