"""A table in storage is whole or absent, whichever process is killed over it, and is read as it was at
its step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save
from torch import Tensor

from brim.domain.table_parts import Lineage, TablePart, outweighs
from brim.embeddings import table_file
from brim.embeddings.table_file import Chunk, NumberedRows, from_bytes, to_bytes
from brim.embeddings.table_parts import given_up, new_files, put_table, store_taken, take
from brim.errors import EnvironmentFault
from brim.storage.checkpoints import Checkpoint, Draft, Store
from brim.storage.file_stores import Data

Rows = dict[int, tuple[float, int]]  # by key: its value, and the step that wrote it last


EXPIRE_AFTER = 6


class Keyed:
    """A table of ids, whose rows come with an update and go when there was none for some steps."""

    name = "ids"
    row_bytes = 2 * 8 + 2 * 4

    def __init__(self) -> None:
        self.rows: Rows = {}
        self.step = 0

    @property
    def count(self) -> int:
        return len(self.rows)

    @property
    def oldest(self) -> tuple[int, ...]:
        return (self.step + 1 - EXPIRE_AFTER,)

    def chunk(self, keys: list[int]) -> Chunk:
        values = torch.tensor([[self.rows[key][0]] for key in keys]).reshape(-1, 1)
        changed = torch.tensor([self.rows[key][1] for key in keys], dtype=torch.int64)
        return Chunk(
            torch.tensor(keys, dtype=torch.int64),
            {"weight": values, "sum": -values},
            changed,
        )

    def chunks(self, rows: int, *, since: int | None = None) -> Iterator[Chunk]:
        keys = sorted(
            key for key, (_, changed) in self.rows.items() if since is None or changed > since
        )
        for start in range(0, len(keys), rows):
            yield self.chunk(keys[start : start + rows])

    def follow(self, step: int) -> None:
        pass

    def follows(self, step: int) -> bool:
        return True

    def changed_since(self, step: int) -> Chunk:
        return self.chunk(sorted(key for key, (_, changed) in self.rows.items() if changed > step))

    def count_since(self, step: int) -> int:
        return sum(changed > step for _, changed in self.rows.values())

    def clear(self, step: int) -> None:
        self.rows, self.step = {}, step

    def put(self, chunk: Chunk) -> None:
        assert torch.equal(chunk.fields["sum"], -chunk.fields["weight"])
        keys, values = chunk.keys.tolist(), chunk.fields["weight"].flatten().tolist()
        self.rows |= dict(zip(keys, zip(values, chunk.changed.tolist(), strict=True), strict=True))

    def train(self, step: int, keys: Iterable[int], *, history: int) -> None:
        """Write to the rows of these keys, and have those go whose time is over."""
        self.step = step
        self.rows |= {key: (step + key / 16 + 1000 * history, step) for key in keys}
        self.rows = {key: row for key, row in self.rows.items() if row[1] >= self.oldest[0]}


class KilledError(Exception):
    """The process is gone: nothing of it runs any more."""


class Memory:
    """A place that outlives a writer which is killed over some operation of it."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.lives = -1  # operations until the writer is killed; -1: it is not

    def _may_kill(self) -> bool:
        self.lives -= self.lives > 0
        return self.lives == 0

    def location(self, name: str) -> str:
        return name

    def names(self) -> dict[str, int]:
        return {name: len(data) for name, data in self.files.items()}

    def read(self, name: str) -> bytes:
        if name not in self.files:
            raise EnvironmentFault(f"cannot read {name}")
        return self.files[name]

    def write(self, name: str, data: Data) -> None:
        if self._may_kill():
            self.files[name] = bytes(data[: len(data) // 2])
            raise KilledError
        self.files[name] = bytes(data)

    def replace(self, name: str, data: Data) -> None:
        raise AssertionError("a checkpoint's file is written once")

    def publish(self, draft: str, name: str, data: Data) -> None:
        if self._may_kill():
            raise KilledError
        self.files[name] = bytes(data)
        self.files.pop(draft)

    def remove(self, name: str) -> None:
        if self._may_kill():
            raise KilledError
        self.files.pop(name, None)


@dataclass
class Worker:
    """One that has the state, and writes checkpoints while it is the first."""

    name: str
    store: Store
    draft: Draft | None = None
    new: list[Any] = field(default_factory=list)


class World:
    """A job whose workers die and follow each other, and the right content of its checkpoints."""

    def __init__(self, keep: int) -> None:
        self.place, self.keep = Memory(), keep
        self.table, self.lineage, self.step = Keyed(), Lineage(id="0"), 0
        self.histories, self.workers = 0, 0
        self.held: dict[tuple[str, int], Rows] = {}  # by lineage and step
        self.once: set[str] = set()  # files that official checkpoints named
        self.first, self.other = self._worker(), self._worker()

    def _worker(self) -> Worker:
        self.workers += 1
        return Worker(f"w{self.workers}", Store(self.place))

    def train(self, keys: Iterable[int]) -> None:
        self.step += 1
        self.table.train(self.step, keys, history=self.histories)

    def chain(self) -> tuple[TablePart, ...]:
        """The base that the first worker finds."""
        tables_known = self.first.store.tables_of(self.lineage, at_most=self.step)
        return tables_known[0].parts if tables_known else ()

    def write(self, *, base: bool = False, chain: tuple[TablePart, ...] | None = None) -> None:
        """The first worker stores a draft."""
        worker, store = self.first, self.first.store
        if worker.draft is not None:
            return
        chain = () if base else self.chain() if chain is None else chain
        if chain and outweighs(chain):
            chain = ()
        copied = take(self.table, chain, step=self.step)
        with given_up(store) as new:
            stored = store_taken(store, [copied], writer=worker.name)
            new += new_files(stored[0], chain)
            checkpoint = Checkpoint(
                step=self.step,
                tree={},
                versions={},
                data=b"",
                lineage=self.lineage.id,
                tables=stored,
            )
            self.held[self.lineage.id, self.step] = dict(self.table.rows)
            worker.draft, worker.new = store.draft(checkpoint, writer=worker.name), new

    def publish(self, worker: Worker) -> None:
        """A worker makes its draft official, and removes old checkpoints."""
        draft, worker.draft = worker.draft, None
        if draft is None:
            return
        try:
            worker.store.publish(draft)
        except EnvironmentFault:  # another has removed what it builds upon
            worker.store.give_up(worker.new, remove=False)
            return
        second_worker = self.other if worker is self.first else self.first
        self.once |= self.official_parts()
        worker.store.prune(
            keep=self.keep, best=None, writers={second_worker.name}, newest=self.step
        )
        needed = worker.store._named_parts(self.place.names()) or set()
        assert not self.once & set(self.place.files) - needed, (
            "what old checkpoints had goes with them"
        )

    def official_parts(self) -> set[str]:
        store = Store(self.place)
        return set().union(*(store._manifest(step).parts for step in store.steps()))

    def follow(self) -> None:
        """Another worker is the first now."""
        self.first, self.other = self.other, self.first

    def die(self) -> None:
        """The first worker is killed; the other has the state, and is the first."""
        self.first, self.other = self.other, self._worker()

    def restore(self, forgotten: int = 0) -> None:
        """All are killed, and others go on from the storage.

        Args:
            forgotten: the last steps, which were made by a worker that was cut off and are not on
                record.
        """
        self.first, self.other = self._worker(), self._worker()
        found, problems = self.first.store.newest_sound(
            at_most=self.step - forgotten, take=self.read
        )
        assert problems == []
        self.histories += 1
        self.lineage = Lineage(id=str(self.histories))
        if found is None:
            self.table.clear(0)
            self.step = 0
        else:
            self.lineage = Lineage(
                id=str(self.histories), parent=found.lineage, parent_step=found.step
            )
            self.step = found.step
        self.first.store.tidy()
        named = set()
        for step in self.first.store.steps():
            folder = f"step-{step:08d}"
            named |= {
                f"{folder}/manifest.json",
                f"{folder}/{self.first.store._manifest(step).file.name}",
            }
            named |= self.first.store._manifest(step).parts
        assert set(self.place.files) == named, (
            "a killed writer leaves nothing that tidying does not remove"
        )

    def read(self, checkpoint: Checkpoint) -> None:
        (stored,) = checkpoint.tables
        self.table.clear(checkpoint.step)
        put_table(Store(self.place), stored, self.table)
        assert self.table.count == stored.rows

    def check(self) -> None:
        """Every official checkpoint is complete, and holds the table of its step."""
        store, aside = Store(self.place), World.__new__(World)
        aside.place, aside.table = self.place, Keyed()
        for step in store.steps():
            found = store.load(step)
            store.check(found)
            aside.read(found)
            assert aside.table.rows == self.held[found.lineage, step]


KEYS = st.sets(st.integers(0, 15), min_size=1, max_size=6)
TRAIN = st.tuples(st.just("train"), KEYS)
LIVES = st.one_of(
    st.just(-1), st.just(-1), st.integers(1, 8)
)  # operations until a writer is killed
DEEDS = st.one_of(
    TRAIN,
    TRAIN,
    st.tuples(st.just("whole"), LIVES),
    st.tuples(st.just("whole"), LIVES),
    st.tuples(st.just("write"), LIVES),
    st.tuples(st.just("publish"), LIVES),
    st.tuples(st.just("late"), LIVES),
    st.tuples(st.sampled_from(["base", "follow", "follow", "die"])),
    st.tuples(st.just("restore"), st.integers(0, 3)),
)


@settings(max_examples=400, deadline=None)
@given(keep=st.integers(1, 3), deeds=st.lists(DEEDS, max_size=60))
def test_kills_leave_official_checkpoints_whole(keep: int, deeds: list[Any]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_file, "LARGEST", 4 * Keyed.row_bytes)
        patch.setattr("brim.embeddings.table_parts.LARGEST", 4 * Keyed.row_bytes)
        world = World(keep)
        for kind, *details in deeds:
            try:
                match kind:
                    case "train":
                        world.train(details[0])
                    case "base":
                        world.write(base=True)
                    case "write":
                        world.place.lives = details[0]
                        world.write()
                    case "whole":
                        world.write()
                        world.place.lives = details[0]
                        world.publish(world.first)
                    case "publish" | "late":
                        world.place.lives = details[0]
                        world.publish(world.first if kind == "publish" else world.other)
                    case _:
                        getattr(world, kind)(*details)
            except KilledError:
                world.place.lives = -1
                if kind == "late":
                    world.other = world._worker()
                else:
                    world.die()
            world.place.lives = -1
            world.check()
        world.restore()
        world.check()


def test_a_draft_keeps_what_it_builds_upon(world: World) -> None:
    """Another worker writes now, and prunes the checkpoint whose base the draft names."""
    world.train({1, 2, 3, 4})
    world.write()
    world.publish(world.first)
    world.train({2})
    world.write()
    late = world.first
    world.follow()
    world.train({3})
    world.write(base=True)
    world.publish(world.first)
    assert world.first.store.steps() == [3]
    world.keep = 2
    world.publish(late)
    assert world.first.store.steps() == [2, 3]
    world.check()


def test_drafts_without_bases_stay_unofficial(world: World) -> None:
    """It was pruned after the writer had looked, and before there was a draft that names it."""
    world.train({1, 2, 3, 4})
    world.write()
    world.publish(world.first)
    late, chain = world.first, world.chain()
    world.follow()
    world.train({3})
    world.write(base=True)
    world.publish(world.first)
    world.follow()
    world.train({4})
    world.write(chain=chain)
    assert late.draft is not None
    with pytest.raises(EnvironmentFault, match=r"step 3 builds on tables/w1-.*, which is gone"):
        late.store.publish(late.draft)
    assert late.store.steps() == [2]


def test_abandoned_histories_are_not_extended(
    world: World,
) -> None:
    world.keep = 3
    for _ in range(2):
        world.train(range(8))
        world.write()
        world.publish(world.first)
    world.restore(forgotten=1)
    world.train({9})
    world.train({10})
    world.write()
    world.publish(world.first)
    assert world.first.store.steps() == [1, 2, 3]
    assert [part.step for part in world.first.store.load(3).tables[0].parts] == [1, 3]
    world.check()


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr("brim.embeddings.table_parts.LARGEST", 4 * Keyed.row_bytes)
    return World(keep=1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_rows_are_written_and_read_as_they_are(dtype: torch.dtype) -> None:
    weight = torch.randn(5, 3).to(dtype)
    table = NumberedRows("t", {"weight": weight, "sum": weight * 2}, torch.arange(5))
    changed = table.changed_since(2)
    assert table.count_since(2) == len(changed.keys) == 2
    (delta_chunk,) = table.chunks(10, since=2)
    assert all(
        torch.equal(delta_field, field_changed)
        for delta_field, field_changed in zip(
            delta_chunk.fields.values(), changed.fields.values(), strict=True
        )
    )
    for chunk in (
        *table.chunks(2),
        *table.chunks(1, since=2),
        changed,
        table.changed_since(9),
    ):
        found = from_bytes(bytes(to_bytes(chunk)), path="there")
        assert torch.equal(found.keys, chunk.keys)
        assert torch.equal(found.changed, chunk.changed)
        assert found.fields.keys() == chunk.fields.keys()
        assert all(
            torch.equal(found.fields[name], field_stored)
            for name, field_stored in chunk.fields.items()
        )


@pytest.mark.parametrize(
    "content",
    [
        {
            "keys": torch.tensor([1]),
            "changed": torch.tensor([1.0]),
            "field.weight": torch.zeros(1, 1),
        },
        {"keys": torch.tensor([1, 2]), "field.weight": torch.zeros(2, 1)},
        {
            "keys": torch.tensor([1, 1]),
            "changed": torch.zeros(2).long(),
            "field.weight": torch.zeros(2, 1),
        },
        {
            "keys": torch.tensor([1, 2]),
            "changed": torch.zeros(2).long(),
            "field.weight": torch.zeros(3, 1),
        },
        {"keys": torch.tensor([1, 2]), "changed": torch.zeros(2).long()},
        {
            "keys": torch.tensor(1),
            "changed": torch.tensor(1),
            "field.weight": torch.tensor(1),
        },
    ],
)
def test_what_is_no_table_is_refused(content: dict[str, Tensor]) -> None:
    with pytest.raises(EnvironmentFault, match="there holds no rows of a table"):
        from_bytes(save(content), path="there")


@pytest.mark.parametrize("keys", [[-1], [4], [0, 4]])
def test_rows_of_another_table_are_refused(keys: list[int]) -> None:
    table = NumberedRows("t", {"weight": torch.zeros(4, 2)}, torch.zeros(4, dtype=torch.int64))
    chunk = Chunk(torch.tensor(keys), {"weight": torch.ones(len(keys), 2)}, torch.tensor(keys))
    with pytest.raises(EnvironmentFault, match="t has 4 rows"):
        table.put(chunk)
    assert not table.fields["weight"].any()
