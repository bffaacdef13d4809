"""A table of keys: uncommitted writes of an owner are taken back, wherever it died."""

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
    keyed_table = KeyedTable("rows", DIM, torch.float32, ("sum",), rules)
    memory = torch.zeros(keyed_table.size_bytes, dtype=torch.uint8) if memory is None else memory
    keyed_table.bind(memory, memory)
    return keyed_table


def keys(*ids: int) -> Tensor:
    return mix(torch.tensor(ids, dtype=torch.int64)).sort().values


def update(target: KeyedTable, ids: Tensor, *, step: int, owners: int = 2) -> None:
    """The work of owners in a step, one after the other."""
    for owner in range(owners):
        partitions = partitions_of(target.partitions, owner, owners)
        part = target.roster.index.partitions_of(ids)
        own_keys = ids[(part >= partitions.start) & (part < partitions.stop)]
        target.roster.begin(step - 1, partitions)
        change = target.roster.look(own_keys, step - 1)
        logged = target.log(own_keys[change.number], change, partitions, step=step, owner=owner)
        rows = {name: tensor_logged.clone() for name, tensor_logged in logged.items()}
        for row in rows.values():
            row[change.is_fresh] = (
                (own_keys[change.number][change.is_fresh] % 1000).float().unsqueeze(1)
            )
        target.write(
            change, {name: tensor_row + step for name, tensor_row in rows.items()}, step=step
        )


def content(target: KeyedTable, committed: int) -> list[Any]:
    found = target.get(committed)
    return [found[KEYS], *found["fields"].values(), found["changed"], *found["candidates"]]


def is_same(first: list[Any], two: list[Any]) -> bool:
    return len(first) == len(two) and all(map(torch.equal, first, two))


class _Killed(Exception):
    pass


def _die_at(moment: int, patch: pytest.MonkeyPatch) -> None:
    """Raise half-way through one of the writes that follow."""
    writes_left, chance = moment, random.Random(moment)

    def is_last() -> bool:
        nonlocal writes_left
        writes_left -= 1
        return writes_left < 0

    copy, write = torch.Tensor.index_copy_, Index._write

    def dying_copy(self: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
        if not is_last():
            return copy(self, dim, index, source)
        count = chance.randrange(len(index) + 1)
        copy(self, dim, index[:count], source[:count])
        raise _Killed

    def dying_write(self: Index, words: Any, values: Any) -> None:
        if not is_last():
            return write(self, words, values)
        count = chance.randrange(len(words) + 1)
        write(self, words[:count], values if isinstance(values, int) else values[:count])
        raise _Killed

    patch.setattr(torch.Tensor, "index_copy_", dying_copy)
    patch.setattr(Index, "_write", dying_write)


@pytest.mark.parametrize("rules", [PLAIN, STRICT], ids=["plain", "strict"])
def test_work_of_owners_is_undone_after_death(
    rules: Rules, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = torch.zeros(table(rules).size_bytes, dtype=torch.uint8)
    target = table(rules, memory)
    chance = random.Random(1)
    for step in range(1, 9):
        update(target, keys(*chance.sample(range(150), 60)), step=step)
    target.take_back(8)
    whole, content_before, coming = memory.clone(), content(target, 8), keys(*range(40, 200, 2))
    deaths = 0
    for moment in range(10_000):
        memory.copy_(whole)
        with monkeypatch.context() as patch:
            _die_at(moment, patch)
            try:
                update(target, coming, step=9, owners=3)
            except _Killed:
                deaths += 1
            else:
                break
        for attempt in range(3):  # who takes it back dies, too
            with monkeypatch.context() as patch:
                _die_at(attempt * 7, patch)
                try:
                    target.take_back(8)
                except _Killed:
                    continue
        target.take_back(8)
        assert is_same(content(target, 8), content_before), moment
    assert deaths > 12
    done = content(target, 9)
    assert not is_same(done, content_before)
    for owners in (1, 2, 64):  # and made again, by other owners
        memory.copy_(whole)
        with monkeypatch.context() as patch:
            _die_at(deaths // 2, patch)
            with pytest.raises(_Killed):
                update(target, coming, step=9, owners=3)
        target.take_back(8)
        update(target, coming, step=9, owners=owners)
        assert is_same(content(target, 9), done)
    target.take_back(9)
    assert is_same(content(target, 9), done), "what counted is never taken back"


@pytest.mark.parametrize("rules", [PLAIN, STRICT], ids=["plain", "strict"])
def test_another_host_goes_on_with_what_it_got(rules: Rules) -> None:
    first, second = table(rules), table(rules)
    chance = random.Random(2)
    update(second, keys(1, 2, 3), step=1)  # it had something else
    for step in range(1, 30):
        ids = keys(*chance.sample(range(200), 50))
        update(first, ids, step=step, owners=2)
        if step > 12:
            update(second, ids, step=step, owners=5)
            assert is_same(content(first, step), content(second, step))
        if step == 12:
            second.fill(first.get(12), {"sum": 0.0})
            assert is_same(content(first, 12), content(second, 12))


def test_rows_without_optimizer_state_are_fresh() -> None:
    target = table(PLAIN)
    ids = keys(5, 6)
    tree = {
        KEYS: ids,
        "fields": {"weight": torch.ones(2, DIM)},
        "changed": torch.zeros(2, dtype=torch.int64),
    }
    target.fill({**tree, "candidates": []}, {"sum": 0.25})
    assert target.get(0)["fields"]["sum"].tolist() == [[0.25] * DIM] * 2


def test_an_oversized_state_is_refused() -> None:
    large, small = table(Rules(5000)), table(Rules(10))
    update(large, keys(*range(3000)), step=1)
    with pytest.raises(
        SpecError, match="limit=10 of embedding 'rows': got a state with 3,000 rows"
    ):
        small.fill(large.get(1), {"sum": 0.0})


def test_absent_rows_are_what_they_start_with() -> None:
    target = table(PLAIN)
    update(target, keys(1, 2), step=1)
    found = target.rows(keys(1, 2, 3), 1, lambda absent: torch.full((len(absent), DIM), 7.0))
    assert (found == 7).all(1).sum() == 1
    assert bool((found[(keys(1, 2, 3) == keys(3)).nonzero().flatten()] == 7).all())
