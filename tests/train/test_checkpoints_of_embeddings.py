"""Jobs whose embeddings are tables: checkpoints of them are resumed from, used, and used without
tables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import brim
from brim.domain.checkpointing import Interval
from brim.domain.inference import Inference
from brim.domain.job import JobSpec
from brim.domain.table_parts import TablePart
from brim.embeddings import table_parts
from brim.embeddings.table_file import RowTable
from brim.errors import SpecError
from brim.storage.checkpoints import Store
from brim.storage.file_stores import Directory
from brim.train import checkpoints
from brim.train.context import spec_of_a_loner
from brim.train.inference.weights import trained_model
from brim.train.job import Job
from brim.train.membership import Loner
from brim.wire.messages import CheckpointDrafted, Publish, WorkerMessage

ROWS = 50
PATIENCE = 30.0


class Net(nn.Module):
    def __init__(self, *, sparse: bool = True, rows: int = ROWS) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(rows, 4, mode="sum", sparse=sparse)
        self.wide = nn.EmbeddingBag(rows, 1, mode="sum", sparse=sparse)
        self.out = nn.Linear(4, 1)

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = (self.out(self.table(ids)) + self.wide(ids)).squeeze(1)
        return found


class Ids(nn.Module):
    """The same, of ids that come and go."""

    def __init__(self) -> None:
        super().__init__()
        self.table = brim.Embedding(4, limit=100, admit_after=2, expire_after=4)
        self.wide = brim.Embedding(1, limit=100, expire_after=1)
        self.out = nn.Linear(4, 1)

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = (self.out(self.table(ids).sum(1)) + self.wide(ids).sum(1)).squeeze(1)
        return found


def a_job(
    place: Path,
    *,
    sparse: bool = True,
    interval: int = 1,
    make: Callable[[], nn.Module] | None = None,
) -> Job:
    torch.manual_seed(1)
    net = Net(sparse=sparse) if make is None else make()
    spec = replace(spec_of_a_loner(0), checkpoint_every=Interval(steps=interval), keep=20)
    job = Job(net, torch.optim.Adagrad(net.parameters(), lr=0.1), spec=spec, context=None)

    class Permitting(Loner):
        def tell(self, message: WorkerMessage) -> None:
            if isinstance(message, CheckpointDrafted):
                job.parts.checkpoints.permit(Publish(step=message.step, writers=[]))

    job.parts.members = Permitting()
    job.parts.checkpoints.keep_in(str(place), writer="w1")
    return job


def train(job: Job, *, epochs: int = 2) -> dict[int, dict[str, Tensor]]:
    """The weights behind each step; of ids, the state dict."""
    ids = torch.arange(80).reshape(40, 2) % ROWS
    data = TensorDataset(ids, (ids[:, 0] % 2).float())
    states_after: dict[int, dict[str, Tensor]] = {}
    for batch in job.batches(data, global_batch_size=16, epochs=epochs):
        await_storage(job)  # so that none is left out
        if job.step((job.model(batch.inputs) - batch.target).square().mean()) is not None:
            state = (
                job.model.state_dict()
                if isinstance(job.model, Ids)
                else dict(job.model.named_parameters())
            )
            states_after[job.committed] = {
                n: parameter.detach().clone() for n, parameter in state.items()
            }
    return states_after


def await_storage(job: Job) -> None:
    assert job.parts.checkpoints._settle(PATIENCE)
    bases = job.parts.checkpoints._bases
    assert bases is not None
    if bases._coming is not None:
        bases._coming.exception(PATIENCE)


def model_at(place: Path, step: int, *, net: nn.Module | None = None) -> nn.Module:
    module = ModuleType("job")
    module.model = lambda: net or Net()  # type: ignore[attr-defined]
    inference = Inference(
        kind="evaluate", run=str(place), checkpoints=str(place), step=step, checkpoint="it"
    )
    spec: JobSpec = replace(spec_of_a_loner(0), inference=inference)
    return trained_model(module, spec)


def weights_of(place: Path, step: int, *, net: Net | None = None) -> dict[str, Tensor]:
    return dict(model_at(place, step, net=net).named_parameters())


@pytest.fixture(params=["small", "large"])
def size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "large":
        monkeypatch.setattr(checkpoints, "_SMALL", 0)
    return cast(str, request.param)


def is_same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(
        torch.equal(first[name], tensor_of_second) for name, tensor_of_second in second.items()
    )


def kinds_of_parts(store: Store) -> set[bool]:
    """Whether parts of tables are bases, in any checkpoint: one may have new bases alone."""
    tables = (table for step in store.steps() for table in store.load(step).tables)
    return {part.since is None for table in tables for part in table.parts}


def test_each_checkpoint_has_the_weights_of_its_step(size: str, tmp_path: Path) -> None:
    states_after = train(a_job(tmp_path), epochs=4)
    store = Store(Directory(tmp_path))
    steps = store.steps()
    assert steps[-1] == 12
    assert len(steps) >= 4  # bases are written in between
    assert all(is_same(weights_of(tmp_path, step), states_after[step]) for step in steps)
    assert store.drafts() == []
    for step in steps:
        assert [table.name for table in store.load(step).tables] == ["table.weight", "wide.weight"]
    assert kinds_of_parts(store) == ({True} if size == "small" else {True, False})


@pytest.mark.parametrize("ways", [(True, True), (True, False), (False, True)])
def test_resuming_gives_equal_bits_with_tables(
    ways: tuple[bool, bool], size: str, tmp_path: Path
) -> None:
    first, second = ways
    whole = train(a_job(tmp_path / "whole"), epochs=4)[12]
    train(a_job(tmp_path / "run", sparse=first), epochs=2)
    assert is_same(train(a_job(tmp_path / "run", sparse=second), epochs=4)[12], whole)


def test_a_model_of_another_shape_is_refused(size: str, tmp_path: Path) -> None:
    train(a_job(tmp_path))
    with pytest.raises(SpecError, match=r"table.weight.*shape \[49, 4\]"):
        weights_of(tmp_path, 6, net=Net(rows=49))


def test_checkpoints_have_the_rows_of_their_step(size: str, tmp_path: Path) -> None:
    states_after = train(a_job(tmp_path, make=lambda: Ids()), epochs=5)
    store = Store(Directory(tmp_path))
    steps = store.steps()
    assert len(steps) >= 4
    assert all(
        is_same(model_at(tmp_path, step, net=Ids()).state_dict(), states_after[step])
        for step in steps
    )
    assert all(0 < len(states_after[step]["wide.ids"]) < ROWS for step in steps), "rows go"
    assert store.drafts() == []
    stored = store.load(steps[-1]).tables
    assert [stored_table.name for stored_table in stored] == [
        "table.weight",
        "table.weight, candidates",
        "wide.weight",
    ]
    assert kinds_of_parts(store) == ({True} if size == "small" else {True, False})


def test_jobs_with_ids_resume_exactly(size: str, tmp_path: Path) -> None:
    whole = train(a_job(tmp_path / "whole", make=lambda: Ids()), epochs=6)[18]
    for epochs in (2, 3, 5):
        train(a_job(tmp_path / "run", make=lambda: Ids()), epochs=epochs)
    assert is_same(train(a_job(tmp_path / "run", make=lambda: Ids()), epochs=6)[18], whole)


class Both(nn.Module):
    """An ordinary embedding that may be a table, beside ids."""

    def __init__(self, *, sparse: bool) -> None:
        super().__init__()
        self.net, self.ids = Net(sparse=sparse), Ids()

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.net(ids) + self.ids(ids)
        return found


@pytest.mark.parametrize("ways", [(True, False), (False, True)])
def test_ordinary_embeddings_beside_ids_resume(
    ways: tuple[bool, bool], size: str, tmp_path: Path
) -> None:
    first, second = ways
    whole = train(a_job(tmp_path / "whole", make=lambda: Both(sparse=True)), epochs=4)[12]
    train(a_job(tmp_path / "run", make=lambda: Both(sparse=first)), epochs=2)
    assert is_same(
        train(a_job(tmp_path / "run", make=lambda: Both(sparse=second)), epochs=4)[12], whole
    )


def test_a_checkpoint_without_embedding_rows_is_refused(size: str, tmp_path: Path) -> None:
    def renamed() -> Ids:
        net = Ids()
        net.users = net.table
        del net.table
        return net

    train(a_job(tmp_path, make=lambda: Ids()))
    with pytest.raises(SpecError, match="embedding 'users': got no rows in"):
        train(a_job(tmp_path, make=renamed))


def test_a_brim_embedding_of_another_size_is_refused(size: str, tmp_path: Path) -> None:
    train(a_job(tmp_path, make=lambda: Ids()))
    other_size = Ids()
    other_size.table = brim.Embedding(5)
    with pytest.raises(SpecError, match=r"table.weight.*rows of 5 numbers.*rows of 4 numbers"):
        model_at(tmp_path, 6, net=other_size)


def test_training_does_not_wait_for_row_scans(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "_SMALL", 0)
    take = table_parts.take
    followed: list[bool] = []

    def watched(table: RowTable, chain: tuple[TablePart, ...], **options: Any) -> Any:
        followed.append(table.follows(chain[-1].step))
        return take(table, chain, **options)

    monkeypatch.setattr(checkpoints, "take", watched)
    for epochs in (3, 8):  # of the second life nobody has seen the steps before
        train(a_job(tmp_path, make=lambda: Both(sparse=True), interval=2), epochs=epochs)
    assert len(followed) > 4 * 5
    assert all(followed)
