"""A table of keys: what an owner writes and does not commit is taken back, wherever it died."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor

from brim.embeddings.tables.index import Index
from brim.embeddings.tables.key_roster import Rules
from brim.embeddings.tables.keyed_table import KEYS, KeyedTable, partitions_of
from brim.embeddings.tables.keys import mix
from brim.errors import SpecError

DIM = 3
PLAIN = Rules(300)
STRICT = Rules(300, admit_after=2, expire_after=5)


def table(rules: Rules, memory: Tensor | None = None) -> KeyedTable:
    made = KeyedTable("rows", DIM, torch.float32, ("sum",), rules)
    memory = torch.zeros(made.size_bytes, dtype=torch.uint8) if memory is None else memory
    made.bind(memory, memory)
    return made


def keys(*ids: int) -> Tensor:
    return mix(torch.tensor(ids, dtype=torch.int64)).sort().values


def update(of: KeyedTable, some: Tensor, *, step: int, owners: int = 2) -> None:
    """What owners do in a step, one after the other."""
    for owner in range(owners):
        partitions = partitions_of(of.partitions, owner, owners)
        part = of.roster.index.partitions_of(some)
        own = some[(part >= partitions.start) & (part < partitions.stop)]
        of.roster.begin(step - 1, partitions)
        change = of.roster.look(own, step - 1)
        logged = of.log(own[change.number], change, partitions, step=step, owner=owner)
        rows = {name: each.clone() for name, each in logged.items()}
        for each in rows.values():
            each[change.is_fresh] = (
                (own[change.number][change.is_fresh] % 1000).float().unsqueeze(1)
            )
        of.write(change, {name: each + step for name, each in rows.items()}, step=step)


def content(of: KeyedTable, committed: int) -> list[Any]:
    found = of.get(committed)
    return [found[KEYS], *found["fields"].values(), found["changed"], *found["candidates"]]


def same(one: list[Any], two: list[Any]) -> bool:
    return len(one) == len(two) and all(map(torch.equal, one, two))


class _Killed(Exception):
    pass


def _die_at(moment: int, patch: pytest.MonkeyPatch) -> None:
    """Raise half-way through one of the writes that follow."""
    left, chance = moment, random.Random(moment)

    def is_last() -> bool:
        nonlocal left
        left -= 1
        return left < 0

    copy, write = torch.Tensor.index_copy_, Index._write

    def dying_copy(self: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
        if not is_last():
            return copy(self, dim, index, source)
        some = chance.randrange(len(index) + 1)
        copy(self, dim, index[:some], source[:some])
        raise _Killed

    def dying_write(self: Index, words: Any, values: Any) -> None:
        if not is_last():
            return write(self, words, values)
        some = chance.randrange(len(words) + 1)
        write(self, words[:some], values if isinstance(values, int) else values[:some])
        raise _Killed

    patch.setattr(torch.Tensor, "index_copy_", dying_copy)
    patch.setattr(Index, "_write", dying_write)


@pytest.mark.parametrize("rules", [PLAIN, STRICT], ids=["plain", "strict"])
def test_work_of_owners_is_undone_after_death(
    rules: Rules, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = torch.zeros(table(rules).size_bytes, dtype=torch.uint8)
    of = table(rules, memory)
    chance = random.Random(1)
    for step in range(1, 9):
        update(of, keys(*chance.sample(range(150), 60)), step=step)
    of.take_back(8)
    whole, before, coming = memory.clone(), content(of, 8), keys(*range(40, 200, 2))
    deaths = 0
    for moment in range(10_000):
        memory.copy_(whole)
        with monkeypatch.context() as patch:
            _die_at(moment, patch)
            try:
                update(of, coming, step=9, owners=3)
            except _Killed:
                deaths += 1
            else:
                break
        for again in range(3):  # who takes it back dies, too
            with monkeypatch.context() as patch:
                _die_at(again * 7, patch)
                try:
                    of.take_back(8)
                except _Killed:
                    continue
        of.take_back(8)
        assert same(content(of, 8), before), moment
    assert deaths > 12
    done = content(of, 9)
    assert not same(done, before)
    for owners in (1, 2, 64):  # and made again, by other owners
        memory.copy_(whole)
        with monkeypatch.context() as patch:
            _die_at(deaths // 2, patch)
            with pytest.raises(_Killed):
                update(of, coming, step=9, owners=3)
        of.take_back(8)
        update(of, coming, step=9, owners=owners)
        assert same(content(of, 9), done)
    of.take_back(9)
    assert same(content(of, 9), done), "what counted is never taken back"


@pytest.mark.parametrize("rules", [PLAIN, STRICT], ids=["plain", "strict"])
def test_another_host_goes_on_with_what_it_got(rules: Rules) -> None:
    one, other = table(rules), table(rules)
    chance = random.Random(2)
    update(other, keys(1, 2, 3), step=1)  # it had something else
    for step in range(1, 30):
        some = keys(*chance.sample(range(200), 50))
        update(one, some, step=step, owners=2)
        if step > 12:
            update(other, some, step=step, owners=5)
            assert same(content(one, step), content(other, step))
        if step == 12:
            other.fill(one.get(12), {"sum": 0.0})
            assert same(content(one, 12), content(other, 12))


def test_rows_without_optimizer_state_are_fresh() -> None:
    of = table(PLAIN)
    some = keys(5, 6)
    tree = {
        KEYS: some,
        "fields": {"weight": torch.ones(2, DIM)},
        "changed": torch.zeros(2, dtype=torch.int64),
    }
    of.fill({**tree, "candidates": []}, {"sum": 0.25})
    assert of.get(0)["fields"]["sum"].tolist() == [[0.25] * DIM] * 2


def test_an_oversized_state_is_refused() -> None:
    large, small = table(Rules(5000)), table(Rules(10))
    update(large, keys(*range(3000)), step=1)
    with pytest.raises(SpecError, match="limit=10 of embedding 'rows': got a state with 3000 rows"):
        small.fill(large.get(1), {"sum": 0.0})


def test_absent_rows_are_what_they_start_with() -> None:
    of = table(PLAIN)
    update(of, keys(1, 2), step=1)
    found = of.rows(keys(1, 2, 3), 1, lambda absent: torch.full((len(absent), DIM), 7.0))
    assert (found == 7).all(1).sum() == 1
    assert bool((found[(keys(1, 2, 3) == keys(3)).nonzero().flatten()] == 7).all())
