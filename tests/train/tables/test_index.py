"""The index of a table against a dict: random schedules, crowded buckets, full partitions, writers
that die.
"""

from __future__ import annotations

import contextlib
import random
from typing import Any

import pytest
import torch
from torch import Tensor

from brim.embeddings.tables.index import Index, Shape
from brim.embeddings.tables.keys import mix
from brim.errors import InternalError

TINY = Shape(places=21, partitions=2)  # five buckets in each partition


class Died(Exception):
    pass


class Mortal(Index):
    """An index whose writer dies after so many single writes."""

    writes_left: int | None = None

    def _write(self, words: Any, values: Any) -> None:
        for number, word in enumerate(words):
            if self.writes_left == 0:
                raise Died
            if self.writes_left is not None:
                self.writes_left -= 1
            super()._write(word, values if isinstance(values, int) else values[number])


def empty(shape: Shape = TINY, kind: type[Index] = Index) -> Index:
    return kind(torch.zeros(shape.bytes, dtype=torch.uint8), shape)


def tensor(keys: Any) -> Tensor:
    return torch.tensor(sorted(keys), dtype=torch.int64)


def add(index: Index, keys: Any) -> dict[int, int]:
    """Insert the keys that have room."""
    keys_wanted = tensor(keys)
    places = index.reserve(keys_wanted)
    keys_wanted, places = keys_wanted[places >= 0], places[places >= 0]
    index.insert(keys_wanted, places)
    return dict(zip(keys_wanted.tolist(), places.tolist(), strict=True))


def crowd(chance: random.Random, buckets: int = 3, count: int = 60) -> list[int]:
    """Keys of a few buckets of both partitions, the last one of a partition among them."""
    homes = [chance.choice([0, 1, 61, 62, 63]) for _ in range(buckets)]
    return sorted({(chance.choice(homes) << 57) | chance.getrandbits(50) for _ in range(count)})


def assert_is(index: Index, model: dict[int, int], universe: list[int]) -> None:
    shape = index.shape
    assert index.find(tensor(universe)).tolist() == [model.get(key, -1) for key in sorted(universe)]
    assert index.used() == len(model)
    keys, places = index.items()
    assert dict(zip(keys.tolist(), places.tolist(), strict=True)) == model
    assert keys.tolist() == sorted(model)
    assert len(set(model.values())) == len(model)
    for key, place in model.items():
        assert place // shape.places == key >> (64 - shape.partitions.bit_length())


def assert_sound(index: Index) -> None:
    """All places can be taken, and no mark of a removed key lies where nothing needs it."""
    whole = Index(torch.from_numpy(index._words.copy()).view(torch.uint8), index.shape)
    items_before = whole.items()[0]
    keys = tensor(set(range(1, 1 << 63, (1 << 63) // 97)) - set(items_before.tolist()))
    added = add(whole, keys.tolist())
    assert whole.used() == index.shape.all_places
    assert_is(
        whole,
        {**dict(zip(*(item.tolist() for item in index.items()), strict=True)), **added},
        keys.tolist(),
    )
    whole.remove(tensor({*items_before.tolist(), *added}))
    assert whole.used() == 0
    buckets = whole._parts[:, 8 : whole._order_word].reshape(-1, 2, 8)[:, 0]
    assert not buckets.any()


@pytest.mark.parametrize("seed", range(8))
def test_it_is_a_dict_over_random_schedules(seed: int) -> None:
    for schedule in range(150):
        chance = random.Random(seed * 1000 + schedule)
        universe = crowd(chance, buckets=chance.randint(1, 5))
        index = empty()
        model: dict[int, int] = {}
        for _ in range(12):
            if chance.random() < 0.6:
                new = chance.sample(universe, chance.randint(0, len(universe)))
                model |= add(index, set(new) - set(model))
            else:
                removed = chance.sample(universe, chance.randint(0, 20))
                index.remove(tensor(removed))
                for key in removed:
                    model.pop(key, None)
            assert_is(index, model, universe)
        assert_sound(index)


@pytest.mark.parametrize("seed", range(3))
def test_large_tables_hold_their_limit(seed: int) -> None:
    chance = torch.Generator().manual_seed(seed)
    shape = Shape.for_keys(20_000)
    index = empty(shape)
    model: dict[int, int] = {}
    ids = torch.randperm(60_000, generator=chance)
    for number, part in enumerate(ids[:20_000].chunk(17)):
        model |= add(index, mix(part).tolist())
        if number % 4 == 3:
            removed = [key for key in model if key % 5 == number % 5]
            index.remove(tensor(removed))
            for key in removed:
                del model[key]
    model |= add(index, set(mix(ids[:20_000]).tolist()) - set(model))
    assert len(model) == 20_000
    assert_is(index, model, mix(ids).tolist())


def test_only_the_full_partition_refuses() -> None:
    index = empty()
    low, high = list(range(100, 130)), [(1 << 62) + key for key in range(5)]
    model = add(index, low + high)
    assert sorted(model) == low[:21] + high
    assert index.reserve(tensor([1, 2])).tolist() == [-1, -1]
    index.remove(tensor([105, 110]))
    assert sorted(index.reserve(tensor([1, 2, 3])).tolist()) == sorted([-1, model[105], model[110]])


def test_reserving_writes_nothing() -> None:
    index = empty()
    words_before = index._words.copy()
    index.reserve(tensor(range(10)))
    index.find(tensor(range(10)))
    assert (index._words == words_before).all()


def test_two_owners_write_the_same_memory() -> None:
    memory = torch.zeros(TINY.bytes, dtype=torch.uint8)
    first, two = Index(memory, TINY), Index(memory, TINY)
    low = add(first, range(10))
    high = add(two, [(1 << 62) + key for key in range(10)])
    assert_is(first, {**low, **high}, [*low, *high])
    assert first.items(range(1, 2))[0].tolist() == sorted(high)


def test_places_that_were_not_reserved_are_refused() -> None:
    index = empty()
    for places in ([1, 0], [0, -1]):
        with pytest.raises(InternalError):
            index.insert(tensor([4, 9]), torch.tensor(places))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("verb", ["insert", "remove"])
def test_a_writer_may_die_after_any_write(seed: int, verb: str) -> None:
    chance = random.Random(seed)
    universe = crowd(chance, count=50)
    model: dict[int, int] = {}
    index_before = empty()
    for _ in range(4):  # so that there are marks, and moved places
        model |= add(index_before, set(chance.sample(universe, 12)) - set(model))
        removed = chance.sample(sorted(model), 5)
        index_before.remove(tensor(removed))
        model = {key: place for key, place in model.items() if key not in removed}
    touched = (
        sorted(set(universe) - set(model))[:8]
        if verb == "insert"
        else chance.sample(sorted(model), 8)
    )
    remaining = {key: place for key, place in model.items() if key not in touched}
    deaths = 0
    while True:
        index = Mortal(torch.from_numpy(index_before._words.copy()).view(torch.uint8), TINY)
        index.writes_left = deaths
        try:
            if verb == "insert":
                add(index, touched)
            else:
                index.remove(tensor(touched))
        except Died:
            index.writes_left = None
            assert all(int(index.find(tensor([key]))) == place for key, place in remaining.items())
            index.remove(tensor(touched))
            assert_is(index, remaining, universe)
            assert_sound(index)
            deaths += 1
            continue
        break
    assert deaths >= 10


def test_a_mending_writer_may_die_as_well() -> None:
    index = Mortal(torch.zeros(TINY.bytes, dtype=torch.uint8), TINY)
    inserted, touched = add(index, range(5, 12)), list(range(20, 30))
    index.writes_left = 9
    with pytest.raises(Died):
        add(index, touched)
    for deaths in range(30):
        index.writes_left = deaths
        with contextlib.suppress(Died):
            index.remove(tensor(touched))
    index.writes_left = None
    index.remove(tensor(touched))
    assert_is(index, inserted, touched)
    assert_sound(index)


@pytest.mark.parametrize("limit", [1, 10, 1000, 1_000_000, 100_000_000])
def test_a_shape_barely_exceeds_its_limit(limit: int) -> None:
    shape = Shape.for_keys(limit)
    assert shape.all_places >= limit
    assert shape.all_places <= 1.04 * limit + 64 * 40 + limit**0.5 * 40
    assert shape.bytes % 64 == 0
    assert shape.bytes < 35 * shape.all_places + 64 * 64 * 8
    assert shape.partitions == (512 if limit == 100_000_000 else 64)
