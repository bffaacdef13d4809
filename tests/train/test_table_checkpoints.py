"""Checkpoints of large tables: bases that are written while training goes on, deltas upon them, and
successors.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn

from brim.cli.__main__ import cli
from brim.domain.checkpointing import Best, Interval
from brim.domain.job import JobSpec, WorkerRange
from brim.domain.table_parts import Lineage
from brim.embeddings import table_parts
from brim.embeddings.table_file import Chunk, NumberedRows
from brim.errors import SpecError
from brim.storage.checkpoints import Store
from brim.storage.file_stores import Directory
from brim.storage.heir import SUCCESSION
from brim.train import checkpoints
from brim.train.checkpoints import Checkpoints
from brim.train.state.job_state import TrainingState
from brim.wire.messages import (
    CheckpointDrafted,
    CheckpointMade,
    Publish,
    Warn,
    WorkerMessage,
)

SPEC = JobSpec(
    parameters={},
    workers=WorkerRange(minimum=1, maximum=1),
    checkpoint_every=Interval(steps=10),
)
ROWS, DIM = 1000, 4
PATIENCE = 30.0


@pytest.fixture(autouse=True)
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every table counts as large, and a file has a few rows."""
    monkeypatch.setattr(checkpoints, "_SMALL", 0)
    monkeypatch.setattr(table_parts, "LARGEST", 100 * (16 + 8 * DIM))


class Table(NumberedRows):
    """One that can be held back while all of it is read."""

    def __init__(self) -> None:
        weight = torch.arange(ROWS * DIM, dtype=torch.float32).reshape(ROWS, DIM)
        super().__init__(
            "t.weight",
            {"weight": weight, "sum": -weight},
            torch.zeros(ROWS, dtype=torch.int64),
        )
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.is_held = threading.Event()

    def chunks(self, rows: int, *, since: int | None = None) -> Iterator[Chunk]:
        for number, chunk in enumerate(super().chunks(rows, since=since)):
            if number == 3 and not self.may_go_on.is_set():
                self.is_held.set()
                assert self.may_go_on.wait(PATIENCE)
            yield chunk

    def write(self, keys: list[int], value: float, *, step: int) -> None:
        places = torch.tensor(keys)
        self.fields["weight"][places] = value
        self.fields["sum"][places] = -value
        self.changed[places] = step


class State:
    """A state that is as many steps old as its weight says, with a table beside it."""

    def __init__(self) -> None:
        self.metrics: dict[str, float] = {}
        self.measured = self.unsound_since = None
        self.lineage = Lineage()
        self.step = nn.Parameter(torch.zeros(1))
        self.table = Table()
        self.keyed: set[str] = set()
        self.undone: dict[str, Tensor] | None = (
            None  # what the table was before a step that does not count
        )

    @property
    def committed(self) -> int:
        return int(self.step)

    def train(self, *keys: int, steps: int = 1) -> None:
        self.step.data += steps
        self.table.write(list(keys), 10_000.0 + self.committed, step=self.committed)

    @property
    def tables(self) -> list[Table]:
        return [self.table]

    def start(self) -> None:
        pass

    def be_alone(self, patience: float) -> None:
        pass

    def take_back(self) -> None:
        if self.undone is not None:
            for name, field in self.table.fields.items():
                field.copy_(self.undone[name])
            self.table.changed.copy_(self.undone[""])

    def clear_tables(self) -> None:
        self.table.fields["weight"].fill_(-7.0)

    def keep_tables(self) -> None:
        pass

    def get(self) -> dict[str, Any]:
        return {"model": {"step": self.step}, "optimizer": {"state": {}}}

    def put(self, tree: dict[str, Any]) -> None:
        self.step.data.copy_(tree["model"]["step"])
        self.lineage = Lineage(**tree["lineage"])

    def rows(self) -> dict[str, Tensor]:
        return {
            **{name: tensor.clone() for name, tensor in self.table.fields.items()},
            "": self.table.changed.clone(),
        }


class Worker:
    """A worker that writes the checkpoints of a job."""

    def __init__(
        self,
        place: Path,
        *,
        name: str = "w1",
        state: State | None = None,
        spec: JobSpec = SPEC,
    ) -> None:
        self.state = state or State()
        self.told: list[WorkerMessage] = []
        self.checkpoints = Checkpoints(
            cast(TrainingState, self.state),
            spec,
            context=None,
            tell=self.tell,
            listen=time.sleep,
        )
        self.checkpoints.keep_in(str(place), writer=name)
        self.store = Store(Directory(place))

    def tell(self, message: WorkerMessage) -> None:
        self.told.append(message)
        if isinstance(message, CheckpointDrafted):
            self.checkpoints.permit(Publish(step=message.step, writers=[]))

    def warnings(self) -> list[str]:
        return [message.message for message in self.told if isinstance(message, Warn)]

    def written(self) -> list[int]:
        return [message.size_bytes for message in self.told if isinstance(message, CheckpointMade)]

    def checkpoint(self, *, ends_epoch: bool = False) -> dict[str, Tensor]:
        """Write one as soon as that can be; return the table of that time."""
        self.checkpoints.begin(ends_epoch=ends_epoch)
        self.await_bases()
        if self.checkpoints.is_due(1):
            self.checkpoints.begin(ends_epoch=ends_epoch)
        rows = self.state.rows()
        self.await_writer()
        return rows

    def await_bases(self) -> None:
        bases = self.checkpoints._bases
        assert bases is not None
        wait(lambda: bases._coming is None or bases._coming.done())

    def await_writer(self) -> None:
        self.checkpoints.await_copy()
        assert self.checkpoints._settle(PATIENCE)

    def parts(self, step: int) -> list[tuple[int | None, int, int]]:
        return [
            (part.since, part.step, part.rows) for part in self.store.load(step).tables[0].parts
        ]


def wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def restored(place: Path, *, name: str = "w9") -> Worker:
    worker = Worker(place, name=name)
    worker.state.table.write(list(range(ROWS)), -1.0, step=77)
    place_restored, problems = worker.checkpoints.restore()
    assert place_restored
    assert problems == []
    return worker


def is_same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return all(
        torch.equal(first[name], tensor_of_second) for name, tensor_of_second in second.items()
    )


def files(place: Path) -> int:
    return len(list((place / "tables").iterdir())) if (place / "tables").exists() else 0


def test_bases_and_deltas_form_whole_tables(
    tmp_path: Path,
) -> None:
    worker = Worker(tmp_path)
    worker.state.train(1, 999, steps=10)
    worker.state.table.may_go_on.clear()
    worker.checkpoints.begin(ends_epoch=False)
    assert worker.state.table.is_held.wait(PATIENCE)
    worker.state.train(
        1, 500, 998
    )  # read already, about to be read, and one that is read as it is now
    assert not worker.checkpoints.is_due(20), "its base is being written"
    assert worker.store.steps() == []
    worker.state.table.may_go_on.set()
    worker.await_bases()
    worker.state.train(2)
    assert worker.checkpoints.is_due(13), "it has waited for nothing but that"
    worker.checkpoints.begin(ends_epoch=False)
    rows = worker.state.rows()
    worker.await_writer()
    assert worker.store.steps() == [12]
    assert worker.parts(12) == [(None, 10, ROWS), (10, 12, 4)]
    assert is_same(restored(tmp_path).state.rows(), rows)
    assert not worker.checkpoints.is_due(14)


def test_deltas_grow_until_a_new_base(
    tmp_path: Path,
) -> None:
    worker = Worker(tmp_path)
    worker.state.train(5)
    rows = [worker.checkpoint()]
    for first in range(0, 600, 200):
        worker.state.train(*range(first, first + 200))
        rows.append(worker.checkpoint())
    assert worker.store.steps() == [3, 4]
    assert worker.parts(4) == [(None, 1, ROWS), (1, 2, 200), (2, 3, 200), (3, 4, 200)]
    assert 4 * worker.written()[1] < worker.written()[0]
    assert is_same(restored(tmp_path).state.rows(), rows[-1])
    worker.state.train(7)
    worker.checkpoint()
    assert worker.parts(5) == [(None, 5, ROWS)]
    worker.state.train(7)
    worker.checkpoint()
    assert worker.store.steps() == [5, 6]
    assert files(tmp_path) == 10 + 1, "the old base went with the last checkpoint that named it"
    worker.checkpoints.drain()
    assert worker.store.drafts() == []


def test_large_changes_are_written_before_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "_MAX_DELTA_BYTES", 20 * (16 + 8 * DIM))
    worker = Worker(tmp_path)
    worker.state.train(5)
    worker.checkpoint()
    worker.state.train(*range(400))
    worker.state.table.may_go_on.clear()
    worker.checkpoints.begin(ends_epoch=False)
    assert worker.state.table.is_held.wait(PATIENCE)
    worker.state.train(3, 399, 700)
    assert not worker.checkpoints.is_due(20)
    worker.state.table.may_go_on.set()
    worker.await_bases()
    worker.state.train(2)
    assert worker.checkpoints.is_due(21)
    worker.checkpoints.begin(ends_epoch=False)
    rows = worker.state.rows()
    worker.await_writer()
    assert worker.parts(4) == [(None, 1, ROWS), (1, 2, 400), (2, 4, 4)]
    assert is_same(restored(tmp_path).state.rows(), rows)
    for _ in range(3):  # each time as much: there is no end to be waited for
        worker.state.train(*range(21))
        worker.checkpoints.begin(ends_epoch=False)
        worker.await_bases()
    worker.state.train(*range(21))
    worker.checkpoints.begin(ends_epoch=False)
    rows = worker.state.rows()
    worker.await_writer()
    assert worker.store.steps() == [4, 8]
    assert worker.parts(8)[3:] == [(4, 5, 21), (5, 6, 21), (6, 7, 21), (7, 8, 21)]
    assert is_same(restored(tmp_path).state.rows(), rows)
    worker.checkpoints.drain()
    assert worker.store.drafts() == []


def test_mostly_changed_tables_get_new_bases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "_MAX_DELTA_BYTES", 20 * (16 + 8 * DIM))
    worker = Worker(tmp_path)
    worker.state.train(5)
    worker.checkpoint()
    for _ in range(4):
        worker.state.train(*range(800))
        worker.checkpoints.begin(ends_epoch=False)
        worker.await_bases()
    rows = worker.state.rows()
    worker.await_writer()
    assert worker.parts(5) == [(None, 2, ROWS), (2, 3, 800), (3, 4, 800), (4, 5, 800)]
    assert is_same(restored(tmp_path).state.rows(), rows)


def test_the_last_checkpoint_waits_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "_MAX_DELTA_BYTES", 0)
    worker = Worker(tmp_path)
    worker.state.train(5)
    worker.checkpoints.now()
    worker.state.train(6)
    worker.checkpoints.now()
    assert worker.parts(2) == [(None, 1, ROWS), (1, 2, 1)]
    worker.state.train(7)
    worker.checkpoints.begin(ends_epoch=False)
    worker.await_bases()
    worker.state.train(8)
    worker.checkpoints.now()
    assert worker.store.steps() == [2, 4]
    assert is_same(restored(tmp_path).state.rows(), worker.state.rows())


def test_bases_are_abandoned_with_their_round(
    tmp_path: Path,
) -> None:
    worker = Worker(tmp_path)
    table = worker.state.table
    worker.state.train(5, steps=10)
    table.may_go_on.clear()
    worker.checkpoints.begin(ends_epoch=False)
    assert table.is_held.wait(PATIENCE)
    rows_before = worker.state.rows()
    table.write([600], 3.0, step=11)  # by a step that does not count: another worker dies over it
    table.may_go_on.set()
    worker.await_bases()
    worker.checkpoints.end_round()
    for name, field in table.fields.items():
        field.copy_(rows_before[name])
    table.changed.copy_(rows_before[""])
    worker.state.train(6)
    assert worker.checkpoints.is_due(12), "it is still to be written"
    rows = worker.checkpoint()
    assert worker.store.steps() == [11]
    assert is_same(restored(tmp_path).state.rows(), rows)
    worker.checkpoints.drain()
    assert files(tmp_path) == 10
    assert worker.store.drafts() == []


@pytest.mark.parametrize("way", ["now", "leave"])
def test_ending_within_steps_abandons_reads(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SUCCESSION, "a")
    worker = restored_or_new(tmp_path)
    table = worker.state.table
    worker.state.train(5, steps=10)
    table.may_go_on.clear()
    worker.checkpoints.begin(ends_epoch=False)
    assert table.is_held.wait(PATIENCE)
    worker.state.undone = worker.state.rows()
    table.write([600], 3.0, step=11)
    table.may_go_on.set()
    worker.await_bases()
    getattr(worker.checkpoints, way)()
    follower = Worker(tmp_path, name="w2")
    assert follower.checkpoints.restore(10)[0]
    assert is_same(follower.state.rows(), worker.state.undone)
    assert follower.store.drafts() == []


def test_another_worker_goes_on_from_the_last_checkpoint(tmp_path: Path) -> None:
    dead = restored_or_new(tmp_path)
    dead.state.train(5)
    dead.checkpoint()
    worker = Worker(tmp_path, name="w2", state=dead.state)
    worker.state.train(6, 7)
    rows = worker.checkpoint()
    assert worker.parts(2) == [(None, 1, ROWS), (1, 2, 2)]
    assert is_same(restored(tmp_path).state.rows(), rows)


def restored_or_new(place: Path) -> Worker:
    worker = Worker(place)
    worker.checkpoints.restore()
    return worker


def test_the_next_life_continues_from_it(tmp_path: Path) -> None:
    first = restored_or_new(tmp_path)
    first.state.train(5)
    first.checkpoint()
    worker = restored(tmp_path, name="w2")
    worker.state.train(6)
    worker.checkpoint()
    follower = Worker(tmp_path, name="w3", state=worker.state)
    follower.checkpoints.end_round()
    follower.state.train(7)
    rows = follower.checkpoint()
    assert follower.parts(3) == [(None, 1, ROWS), (1, 2, 1), (2, 3, 1)]
    assert is_same(restored(tmp_path, name="w4").state.rows(), rows)


def test_incomplete_bases_are_not_used(tmp_path: Path) -> None:
    first = restored_or_new(tmp_path)
    first.state.train(5)
    first.checkpoint()
    next((tmp_path / "tables").iterdir()).unlink()
    worker = Worker(tmp_path, name="w2", state=first.state)
    worker.state.train(6)
    rows = worker.checkpoint()
    assert worker.parts(2) == [(None, 2, ROWS)]
    assert is_same(restored(tmp_path).state.rows(), rows)


def test_removed_bases_are_followed_by_new(
    tmp_path: Path,
) -> None:
    """Another worker has written meanwhile, and has pruned checkpoints known to this one."""
    worker = Worker(tmp_path)
    worker.state.train(5)
    worker.checkpoint()
    next((tmp_path / "tables").iterdir()).unlink()
    worker.state.train(6)
    worker.checkpoint()
    assert ["builds on" in warning for warning in worker.warnings()] == [True]
    worker.state.train(7)
    rows = worker.checkpoint()
    assert worker.parts(3) == [(None, 3, ROWS)]
    assert is_same(restored(tmp_path).state.rows(), rows)


def test_the_last_checkpoint_is_ready_when_needed(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    worker.state.train(5, steps=3)
    worker.checkpoints.now()
    assert worker.store.steps() == [3]
    assert is_same(restored(tmp_path).state.rows(), worker.state.rows())


def test_an_heir_leaves_its_tables_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SUCCESSION, "a")
    heir = restored_or_new(tmp_path)
    heir.state.train(5)
    heir.checkpoint()
    heir.state.train(6)
    heir.checkpoints.leave()
    assert heir.store.steps() == [1]
    worker = Worker(tmp_path, name="w2")
    place_restored, _ = worker.checkpoints.restore(2)
    assert place_restored == heir.store.location(2)
    assert is_same(worker.state.rows(), heir.state.rows())
    assert worker.store.drafts() == []


def test_metric_epochs_are_written_at_their_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Worker(tmp_path, spec=replace(SPEC, keep_best=Best(metric="auc")))
    worker.state.train(5)
    worker.checkpoint()
    worker.state.train(*range(600))
    worker.checkpoint()
    worker.state.train(5)
    worker.state.table.may_go_on.clear()
    monkeypatch.setattr(checkpoints, "_SHORT", 0.0)  # that is how long it would wait for the base
    worker.checkpoints.begin(ends_epoch=True)
    worker.await_writer()
    assert worker.parts(3) == [(None, 1, ROWS), (1, 2, 600), (2, 3, 1)]
    worker.state.table.may_go_on.set()
    worker.await_bases()
    worker.state.train(6)
    rows = worker.checkpoint()
    assert worker.parts(4) == [(None, 3, ROWS), (3, 4, 1)]
    assert is_same(restored(tmp_path).state.rows(), rows)


def test_small_tables_are_written_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "_SMALL", 1 << 20)
    worker = Worker(tmp_path)
    for _ in range(2):
        worker.state.train(5)
        worker.checkpoints.begin(ends_epoch=False)
        rows = worker.state.rows()
        worker.state.train(5)
        worker.await_writer()
    assert [worker.parts(step) for step in worker.store.steps()] == [
        [(None, 1, ROWS)],
        [(None, 3, ROWS)],
    ]
    assert is_same(restored(tmp_path).state.rows(), rows)


def test_failing_bases_are_reported_and_retried(
    tmp_path: Path,
) -> None:
    (tmp_path / "tables").write_text("not a directory")
    worker = Worker(tmp_path)
    worker.state.train(5)
    worker.checkpoint()
    assert ["cannot write" in warning for warning in worker.warnings()] == [True]
    assert not worker.checkpoints.is_due(11)
    (tmp_path / "tables").unlink()
    assert worker.checkpoints.is_due(20)
    rows = worker.checkpoint()
    assert is_same(restored(tmp_path).state.rows(), rows)


def test_the_verb_lists_tables_and_parts(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").touch()  # what makes a directory a run
    worker = Worker(tmp_path / "checkpoints")
    for _ in range(3):
        worker.state.train(5, 6)
        worker.checkpoint()
    result = CliRunner().invoke(cli, ["checkpoints", str(tmp_path)])
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert len(lines) == 4
    assert "t.weight, 1,000 rows: base of step 1, 1 delta of 0.0 MB" in lines[1]
    assert "t.weight, 1,000 rows: base of step 1, 2 deltas of 0.0 MB" in lines[3]
    result = CliRunner().invoke(cli, ["checkpoints", str(tmp_path), "--json"])
    rows = json.loads(result.stdout)["checkpoints"]
    (table,) = rows[1]["tables"]
    assert [part["rows"] for part in (table["base"], *table["deltas"])] == [ROWS, 2, 2]
    sizes = [path.stat().st_size for path in (tmp_path / "checkpoints" / "tables").iterdir()]
    assert table["bytes"] == sum(sizes)
    assert rows[1]["bytes"] > sum(sizes)
    delta = worker.store.load(3).tables[0].parts[-1].files[0].name
    content = (tmp_path / "checkpoints" / delta).read_bytes()
    (tmp_path / "checkpoints" / delta).write_bytes(content[:-1] + b"?")
    result = CliRunner().invoke(cli, ["checkpoints", str(tmp_path), "--json"])
    rows = json.loads(result.stdout)["checkpoints"]
    assert result.exit_code == 1
    assert [row["whole"] for row in rows] == [True, False]
    assert delta in rows[1]["problem"]


def test_damaged_parts_fall_back_to_older_bases(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    worker.state.train(*range(501))
    worker.checkpoint()
    worker.state.train(*range(501))
    worker.checkpoint()
    worker.state.train(5)
    newest = worker.checkpoint()
    assert worker.parts(3) == [(None, 3, ROWS)]
    assert is_same(restored(tmp_path).state.rows(), newest)
    damaged = worker.store.load(3).tables[0].files[-1].name
    content = bytearray((tmp_path / damaged).read_bytes())
    content[-1] ^= 1
    (tmp_path / damaged).write_bytes(content)
    second_worker = Worker(tmp_path, name="w2")
    place_restored, problems = second_worker.checkpoints.restore()
    assert place_restored == worker.store.location(2)
    assert [damaged in problem for problem in problems] == [True]
    for file in (tmp_path / "tables").iterdir():
        file.write_bytes(b"")
    with pytest.raises(SpecError, match="only damaged checkpoints"):
        Worker(tmp_path, name="w3").checkpoints.restore()
