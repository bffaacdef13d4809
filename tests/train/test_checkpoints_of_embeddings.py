"""Jobs whose embeddings are tables: what a checkpoint has of them is gone on from, used, and used without tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import cast

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from brim.domain.checkpointing import Interval
from brim.domain.inference import Inference
from brim.domain.job import JobSpec
from brim.errors import SpecError
from brim.storage.checkpoints import Store
from brim.storage.places import Directory
from brim.train import checkpoints
from brim.train.context import spec_of_a_loner
from brim.train.job import Job
from brim.train.membership import Loner
from brim.train.weights import trained_model
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


def a_job(place: Path, *, sparse: bool = True, every: int = 1) -> Job:
    torch.manual_seed(1)
    net = Net(sparse=sparse)
    spec = replace(spec_of_a_loner(0), checkpoint_every=Interval(steps=every), keep=20)
    job = Job(net, torch.optim.Adagrad(net.parameters(), lr=0.1), spec=spec, context=None)

    class Permitting(Loner):
        def tell(self, message: WorkerMessage) -> None:
            if isinstance(message, CheckpointDrafted):
                job._checkpoints.permit(Publish(step=message.step, writers=[]))

    job.members = Permitting()
    job._checkpoints.keep_in(str(place), writer="w1")
    return job


def train(job: Job, *, epochs: int = 2) -> dict[int, dict[str, Tensor]]:
    """The weights behind each step."""
    ids = torch.arange(80).reshape(40, 2) % ROWS
    data = TensorDataset(ids, (ids[:, 0] % 2).float())
    after: dict[int, dict[str, Tensor]] = {}
    for batch in job.batches(data, global_batch_size=16, epochs=epochs):
        await_storage(job)  # so that none is left out
        if job.step((job.model(batch.inputs) - batch.target).square().mean()) is not None:
            after[job.committed] = {n: each.detach().clone() for n, each in job.model.named_parameters()}
    return after


def await_storage(job: Job) -> None:
    assert job._checkpoints._settle(PATIENCE)
    bases = job._checkpoints._bases
    assert bases is not None
    if bases._coming is not None:
        bases._coming.exception(PATIENCE)


def weights_of(place: Path, step: int, *, net: Net | None = None) -> dict[str, Tensor]:
    module = ModuleType("job")
    module.model = lambda: net or Net()  # type: ignore[attr-defined]
    wanted = Inference(kind="evaluate", run=str(place), checkpoints=str(place), step=step, checkpoint="it")
    spec: JobSpec = replace(spec_of_a_loner(0), inference=wanted)
    return dict(trained_model(module, spec).named_parameters())


@pytest.fixture(params=["small", "large"])
def size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "large":
        monkeypatch.setattr(checkpoints, "_SMALL", 0)
    return cast(str, request.param)


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], each) for name, each in other.items())


def test_each_checkpoint_has_the_weights_of_its_step(size: str, tmp_path: Path) -> None:
    after = train(a_job(tmp_path), epochs=4)
    store = Store(Directory(tmp_path))
    steps = store.steps()
    assert steps[-1] == 12
    assert len(steps) >= 4  # bases are written in between
    assert all(same(weights_of(tmp_path, step), after[step]) for step in steps)
    assert store.drafts() == []
    for step in steps:
        assert [each.name for each in store.load(step).tables] == ["table.weight", "wide.weight"]
    kinds = {part.since is None for table in store.load(12).tables for part in table.parts}
    assert kinds == ({True} if size == "small" else {True, False})


@pytest.mark.parametrize("ways", [(True, True), (True, False), (False, True)])
def test_who_goes_on_ends_with_the_same_bits_with_tables_or_without(
    ways: tuple[bool, bool], size: str, tmp_path: Path
) -> None:
    first, second = ways
    whole = train(a_job(tmp_path / "whole"), epochs=4)[12]
    train(a_job(tmp_path / "run", sparse=first), epochs=2)
    assert same(train(a_job(tmp_path / "run", sparse=second), epochs=4)[12], whole)


def test_a_model_of_another_shape_is_refused(size: str, tmp_path: Path) -> None:
    train(a_job(tmp_path))
    with pytest.raises(SpecError, match=r"table.weight.*shape \[49, 4\]"):
        weights_of(tmp_path, 6, net=Net(rows=49))
