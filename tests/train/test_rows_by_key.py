"""A table of keys in checkpoints: read while steps change it, it comes back as it was at the
checkpoint's step.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from brim.domain.table_parts import StoredTable, oldest_of_both
from brim.embeddings.keyed import Embedding
from brim.embeddings.keyed_rows import KeyedRows
from brim.embeddings.rows_by_key import RowsByKey
from brim.embeddings.table_file import Chunk
from brim.embeddings.table_parts import put_table, store_taken, take, write_part
from brim.embeddings.tables.by_rows import ParameterPlace
from brim.embeddings.tables.keyed_table import KEYS, KeyedTable, partitions_of
from brim.embeddings.tables.keys import mix
from brim.errors import EnvironmentFault, SpecError
from brim.storage.checkpoints import Store
from brim.storage.file_stores import Directory

DIM = 3


class Job:
    """The rows of an embedding, and steps upon them."""

    def __init__(self, *, seed: int = 0, **rules: Any) -> None:
        self.module = Embedding(DIM, **{"limit": 200, **rules})
        self.step = 0
        place = ParameterPlace(torch.optim.Adagrad(self.module.parameters(), lr=0.1), 0)
        self.rows = KeyedRows(
            "e.weight",
            self.module,
            place,
            number=0,
            distinct=_no_lookups,
            committed=lambda: self.step,
        )
        self.table: KeyedTable = self.rows.table
        memory = torch.zeros(self.table.size_bytes, dtype=torch.uint8)
        self.table.bind(memory, memory)
        self.chance = random.Random(seed)

    def write(self, keys: Tensor) -> None:
        """The work of owners in the next step."""
        owners = self.chance.choice([1, 2, 5])
        for owner in range(owners):
            partitions = partitions_of(self.table.partitions, owner, owners)
            part = self.table.roster.index.partitions_of(keys)
            own_keys = keys[(part >= partitions.start) & (part < partitions.stop)]
            self.table.roster.begin(self.step, partitions)
            change = self.table.roster.look(own_keys, self.step)
            chosen = own_keys[change.number]
            logged = self.table.log(chosen, change, partitions, step=self.step + 1, owner=owner)
            value = (chosen % 997).float().unsqueeze(1) + self.step
            self.table.write(
                change, {name: value.expand(-1, DIM) for name in logged}, step=self.step + 1
            )

    def train(self, *, ids: int = 60, universe: int = 400) -> None:
        """A step that counts; now and then one that does not goes before it."""
        self.write(self._some(ids, universe))
        self.table.settle(self.step + 1)
        self.step += 1

    def _some(self, count: int, universe: int) -> Tensor:
        # Half are new ids in each step, so that places are given to others.
        ids = self.chance.sample(range(universe), count // 2)
        ids += [1000 + 50 * self.step + number for number in range(count // 2)]
        return mix(torch.tensor(ids)).sort().values

    def content(self) -> list[Tensor]:
        found = self.table.get(self.step)
        return [found[KEYS], *found["fields"].values(), found["changed"], *found["candidates"][:3]]


def _no_lookups(ids: Tensor, *, as_keys: bool) -> tuple[Tensor, Tensor]:
    raise AssertionError("nobody looks up here")


def is_same(first: list[Tensor], second: list[Tensor]) -> bool:
    return len(first) == len(second) and all(map(torch.equal, first, second))


def restored(store: Store, stored: list[StoredTable], step: int, **rules: int) -> Job:
    job = Job(**rules)
    job.step = step
    job.table.clear()
    for stored_table, table in zip(stored, job.rows.stored(), strict=True):
        assert stored_table.name == table.name
        put_table(store, stored_table, table)
    return job


def between(job: Job, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
    """The chunks of a table, with steps in between."""
    for chunk in chunks:
        yield chunk
        job.train()


RULES = [
    {},
    {"expire_after": 7},
    {"admit_after": 2},
    {"admit_after": 2, "expire_after": 7},
    {"admit_after": 2, "expire_after": 1, "limit": 20},
]


@pytest.mark.parametrize("rules", RULES, ids=str)
@pytest.mark.parametrize("seed", range(2))
def test_concurrent_reads_and_deltas_are_consistent(
    rules: dict[str, int], seed: int, tmp_path: Path
) -> None:
    job, store = Job(seed=seed, **rules), Store(Directory(tmp_path))
    for _ in range(10):
        job.train()
    chains = []
    for number in range(len(job.rows.stored())):
        parts = []
        for base_step in (None, job.step):
            view, read_step = job.rows.stored()[number], job.step
            rows = between(job, view.chunks(9, since=base_step))
            parts.append(write_part(store, rows, base_step=base_step, step=read_step, writer="w"))
        chains.append(tuple(parts))
    for _ in range(3):
        views = job.rows.stored()
        copies = [
            take(view, chain, step=job.step) for view, chain in zip(views, chains, strict=True)
        ]
        expected = job.content()
        for view in views:
            view.follow(job.step)
        step = job.step
        job.train()
        stored = list(store_taken(store, copies, writer="w"))
        assert is_same(restored(store, stored, step, **rules).content(), expected)
        chains = [stored_table.parts for stored_table in stored]
        for _ in range(9):
            job.train()
        assert all(view.follows(step) for view in job.rows.stored())
        assert any(view.count_since(step) for view in job.rows.stored())


@pytest.mark.parametrize("rules", RULES, ids=str)
def test_written_rows_are_known_without_scans(rules: dict[str, int]) -> None:
    job = Job(**rules)
    for _ in range(10):
        job.train()
    start = job.step
    for view in job.rows.stored():
        view.follow(start)
    for _ in range(12):
        job.write(job._some(80, 400))  # another member dies over this one
        job.table.take_back(job.step)
        job.train()
    for view in job.rows.stored():
        assert view.follows(start)
        assert not view.follows(start - 1)
        changed_rows = view.changed_since(start)
        view._changes.forget()
        looked = view.changed_since(start)
        assert torch.equal(changed_rows.keys, looked.keys)
        assert torch.equal(changed_rows.changed, looked.changed)
        assert all(
            torch.equal(changed_rows.fields[name], tensor_looked)
            for name, tensor_looked in looked.fields.items()
        )


def test_steps_that_others_made_are_not_known() -> None:
    job = Job()
    job.train()
    (view,) = job.rows.stored()
    view.follow(job.step)
    job.write(job._some(10, 50))
    job.step += 1
    (view,) = job.rows.stored()
    assert not view.follows(job.step - 1)
    assert view.count_since(job.step - 1) == 10


def test_expired_rows_stay_gone(tmp_path: Path) -> None:
    job, store = Job(expire_after=7), Store(Directory(tmp_path))
    for _ in range(20):
        job.train()
    (view,) = job.rows.stored()
    (base,) = store_taken(store, [take(view, (), step=job.step)], writer="w")
    for _ in range(3):
        job.train()
    (view,) = job.rows.stored()
    (stored,) = store_taken(store, [take(view, base.parts, step=job.step)], writer="w")
    resumed = restored(store, [stored], job.step, expire_after=1000)
    expected = resumed.content()
    assert is_same(expected, job.content())
    (view,) = resumed.rows.stored()
    copied = take(view, stored.parts, step=resumed.step, oldest=stored.oldest)
    assert is_same(
        restored(store, list(store_taken(store, [copied], writer="w")), resumed.step).content(),
        expected,
    )
    assert oldest_of_both(stored.oldest, (0,)) == stored.oldest


def test_unsuitable_tables_are_refused(tmp_path: Path) -> None:
    job, store = Job(limit=5000), Store(Directory(tmp_path))
    job.write(mix(torch.arange(3000)).sort().values)
    job.step += 1
    (view,) = job.rows.stored()
    stored = list(store_taken(store, [take(view, (), step=1)], writer="w"))
    with pytest.raises(
        SpecError, match=r"the limit of embedding 'e.weight': got a checkpoint with more rows"
    ):
        restored(store, stored, 1, limit=10)
    (small,) = Job().rows.stored()
    with pytest.raises(EnvironmentFault, match=r"e\.weight has other columns"):
        small.put(Chunk(torch.tensor([1]), {"weight": torch.zeros(1, 2)}, torch.tensor([1])))
    rows = {name: torch.zeros(1, DIM) for name in ("weight", "sum")}
    with pytest.raises(EnvironmentFault, match="keys that none can have"):
        small.put(Chunk(torch.tensor([-1]), rows, torch.tensor([1])))


def test_an_empty_table_has_a_file(tmp_path: Path) -> None:
    store = Store(Directory(tmp_path))
    (view,) = Job().rows.stored()
    assert isinstance(view, RowsByKey)
    (stored,) = store_taken(store, [take(view, (), step=0)], writer="w")
    assert [file.rows for file in stored.files] == [0]
    assert len(restored(store, [stored], 0).content()[0]) == 0
