"""A job in one process: the training loop's input from the user, and its messages on it."""

from __future__ import annotations

import copy
import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from brim.coordination.job.barrier import COMMIT
from brim.embeddings.rows import GradientRows, OwnedRows
from brim.errors import EnvironmentFault, SpecError
from brim.storage.checkpoints import Store
from brim.storage.file_stores import Directory
from brim.train.context import spec_of_a_loner
from brim.train.entry.join import join
from brim.train.exchange.folding import Exchange, LocalExchange
from brim.train.job import Job
from brim.train.membership import Loner, StateKeeper
from brim.train.state.job_state import TrainingState
from brim.wire.messages import (
    CheckpointDrafted,
    Evaluated,
    JobFailed,
    Publish,
    Released,
    StepReport,
    Warn,
    WorkerMessage,
)


class Listener(Loner):
    """Alone, and listening to the entries of each step's commit."""

    def __init__(self) -> None:
        self.reports: list[StepReport] = []
        self.told: list[WorkerMessage] = []
        self.permit: Callable[[Publish], None] | None = None

    def arrive(self, step: int, phase: str, payload: bytes = b"") -> Released:
        if phase == COMMIT:
            self.reports.append(msgspec.msgpack.decode(payload, type=StepReport))
        return super().arrive(step, phase, payload)

    def tell(self, message: WorkerMessage) -> None:
        self.told.append(message)
        if isinstance(message, CheckpointDrafted) and self.permit is not None:
            self.permit(Publish(step=message.step, writers=[]))


DATA = [(torch.zeros(2), torch.zeros(1))] * 20


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def new_job(
    optimizer: Callable[[torch.nn.Linear], torch.optim.Optimizer] = sgd,
    *,
    halving: bool = False,
    audit: bool = True,
) -> tuple[Job, Listener]:
    """A job of one process; `halving` halves its learning rate with every step."""
    model = torch.nn.Linear(2, 1)
    optimizer_made = optimizer(model)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer_made, 0.5) if halving else None
    job = Job(
        model,
        optimizer_made,
        spec=replace(spec_of_a_loner(0), audit=audit),
        context=None,
        scheduler=scheduler,
        scheduler_interval="step",
    )
    job.parts.members = listener = Listener()
    listener.permit = job.parts.checkpoints.permit
    return job, listener


def train(job: Job, *, shape: tuple[int, ...] = ()) -> None:
    for batch in job.batches(DATA, global_batch_size=16, epochs=2):
        job.step((job.model(batch.inputs) - batch.target).square().mean().reshape(shape))


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_scalar_losses_may_have_any_shape(shape: tuple[int, ...]) -> None:
    job, listener = new_job()
    train(job, shape=shape)
    assert [len(report.parts) for report in listener.reports] == [8, 4, 8, 4]


def test_reports_have_the_applied_learning_rate() -> None:
    job, listener = new_job(lambda model: torch.optim.SGD(model.parameters(), lr=0.5), halving=True)
    train(job)
    assert [report.lr for report in listener.reports] == [0.5, 0.25, 0.125, 0.0625]


def test_group_rates_are_reported_singly() -> None:
    def of_two_groups(model: torch.nn.Linear) -> torch.optim.Optimizer:
        groups: list[dict[str, Any]] = [
            {"params": [model.weight], "lr": torch.tensor(0.5)},
            {"params": [model.bias]},
        ]
        return torch.optim.SGD(groups, lr=0.25)

    job, listener = new_job(of_two_groups)
    train(job)
    assert [report.lr for report in listener.reports] == [[0.5, 0.25]] * 4


def test_optimizers_may_find_their_own_rate() -> None:
    """As Adafactor does, whose groups have None for a rate, and whose schedulers then stay away."""

    class OwnRate(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            for group in self.param_groups:
                group["lr"] = 0.25
            super().step(closure)
            for group in self.param_groups:
                group["lr"] = None

    def of_own_rate(model: torch.nn.Linear) -> torch.optim.Optimizer:
        optimizer = OwnRate(model.parameters())
        optimizer.param_groups[0]["lr"] = None
        return optimizer

    job, listener = new_job(of_own_rate)
    train(job)
    assert [report.lr for report in listener.reports] == [None] * 4


def keep_in(job: Job, location: Path) -> None:
    job.parts.checkpoints.keep_in(str(location), writer="w1")


def test_only_the_last_checkpoint_is_essential(tmp_path: Path) -> None:
    job, listener = new_job()
    no_directory = tmp_path / "file"
    no_directory.touch()
    keep_in(job, no_directory)
    with pytest.raises(EnvironmentFault, match="cannot write"):
        train(job)
    assert job.committed == 4
    kinds = Counter(type(message) for message in listener.told)
    assert kinds == {Evaluated: 2, Warn: 2, JobFailed: 1}


def test_nothing_is_official_before_the_master_permits_it(tmp_path: Path) -> None:
    job, listener = new_job()
    listener.permit = None
    keep_in(job, tmp_path)
    store = Store(Directory(tmp_path))
    for batch in job.batches(DATA, global_batch_size=16, epochs=2):
        if job.committed == 3 and listener.permit is None:
            deadline = time.monotonic() + 10.0
            while CheckpointDrafted(step=2) not in listener.told and time.monotonic() < deadline:
                time.sleep(0.01)
            assert store.steps() == []
            job.parts.checkpoints.permit(
                Publish(step=1, writers=[])
            )  # of a draft that was given up
            job.parts.checkpoints.permit(Publish(step=2, writers=[]))
            listener.permit = job.parts.checkpoints.permit
        job.step((job.model(batch.inputs) - batch.target).square().mean())
    assert store.steps() == [2, 4]


def test_mid_step_checkpoints_exclude_the_step(
    tmp_path: Path,
) -> None:
    """Where a job is to end and its boundary does not come, one worker writes the state of
    the last boundary.
    """
    model = torch.nn.Sequential(
        torch.nn.Embedding(4, 2, sparse=True), torch.nn.Flatten(), torch.nn.Linear(2, 1)
    )
    job = Job(model, sgd(model), spec=spec_of_a_loner(0), context=None)
    job.parts.members = listener = Listener()
    listener.permit = job.parts.checkpoints.permit
    keep_in(job, tmp_path)
    (table,) = job.parts.embeddings.tables
    for batch in job.batches(
        [(torch.tensor([1]), torch.zeros(1))] * 20, global_batch_size=16, epochs=2
    ):
        loss = job.step((job.model(batch.inputs) - batch.target).square().mean())
        if job.committed == 1 and loss is None:
            rows_before = table.fields["weight"].clone()
            torn = OwnedRows(GradientRows(torch.tensor([1]), torch.ones(1, 2)), owner=0, start=0)
            job.parts.embeddings.update([torn], step=job.committed + 1)
            assert not torch.equal(table.fields["weight"], rows_before)
            job.parts.checkpoints.now()
            assert torch.equal(table.fields["weight"], rows_before)
            break
    assert Store(Directory(tmp_path)).steps() == [1]


def test_thawing_is_refused_but_freezing_allowed() -> None:
    job, _ = new_job()
    weight, bias = job.model.parameters()

    def train_with_bias(job: Job, *, step_at: int) -> None:
        for batch in job.batches(DATA, global_batch_size=16, epochs=2):
            bias.requires_grad_(job.committed == step_at)
            job.step((job.model(batch.inputs) - batch.target).square().mean())

    train_with_bias(job, step_at=0)
    bias.requires_grad_(False)
    job = Job(job.model, torch.optim.SGD([weight], lr=0.1), spec=spec_of_a_loner(0), context=None)
    with pytest.raises(
        SpecError, match="parameter 'bias': got requires_grad turned on while training"
    ):
        train_with_bias(job, step_at=1)
    assert job.committed == 1


class Where(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """Says which process read it."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.zeros(2), os.getpid()


@pytest.mark.parametrize(
    ("place", "neighbours", "loaders", "expected"),
    [(0, 1, 4, 4), (0, 2, 4, 2), (1, 3, 4, 1), (2, 3, 4, 2), (1, 8, 4, 1), (1, 2, 0, 0)],
)
def test_workers_of_a_host_share_its_loaders(
    place: int, neighbours: int, loaders: int, expected: int
) -> None:
    job, listener = new_job(audit=False)  # these samples differ by reader
    listener.neighbours = range(-place, neighbours - place)  # its own rank is 0
    readers: set[int] = set()
    for batch in job.batches(Where(), global_batch_size=16, epochs=1, loaders=loaders):
        readers.update(batch.target.tolist())
        job.step(job.model(batch.inputs).square().mean())
    assert len(readers - {os.getpid()}) == expected


class Newcomer(Listener):
    """It comes in the middle of the first epoch, with the state of a worker that has made a step."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self._tree = {**job.parts.state.get(), "committed": 1}

    def next_round(self, keeper: StateKeeper) -> Exchange:
        keeper.state.put(self._tree)
        return LocalExchange()


@pytest.mark.parametrize(("is_between", "times"), [(False, 1), (True, 2)])
def test_states_are_put_after_user_code_only(
    monkeypatch: pytest.MonkeyPatch, is_between: bool, times: int
) -> None:
    job, _ = new_job()
    job.parts.members = Newcomer(job)
    put = TrainingState.put
    puts: list[int] = []

    def counted(state: TrainingState, tree: Any) -> Any:
        puts.append(1)
        return put(state, tree)

    monkeypatch.setattr(TrainingState, "put", counted)
    if is_between:
        for _ in job.epochs(1):
            for batch in job.batches(DATA, global_batch_size=10):
                job.step((job.model(batch.inputs) - batch.target).square().mean())
    else:
        for batch in job.batches(DATA, global_batch_size=10, epochs=1):
            job.step((job.model(batch.inputs) - batch.target).square().mean())
    assert (job.committed, len(puts)) == (2, times)
    assert job.parts.state._state_given is None


def test_scripts_do_not_know_world_size() -> None:
    model = torch.nn.Linear(2, 1)
    with pytest.raises(SpecError, match="brim run --workers 1:4 --micro-batches auto"):
        join(model, torch.optim.SGD(model.parameters(), lr=0.1), micro_batches="auto")  # type: ignore[arg-type]


class AverageWithModel(torch.nn.Module):
    """An average of a model's weights whose state has the model, too, as EMA of ema-pytorch."""

    count: torch.Tensor

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model, self.average = model, copy.deepcopy(model)
        self.register_buffer("count", torch.tensor(0))

    def update(self) -> None:
        self.count += 1
        with torch.no_grad():
            for mean, now in zip(self.average.parameters(), self.model.parameters(), strict=True):
                mean.lerp_(now, 0.5)


def test_state_with_the_model_in_it_is_registered() -> None:
    """An audited micro-batch puts registered state back, and so writes the weights themselves."""
    job, listener = new_job()
    average = AverageWithModel(job.model)
    job.register_state("average", average)
    for batch in job.batches(DATA, global_batch_size=16, epochs=2):
        loss = (job.model(batch.inputs) - batch.target).square().mean()
        if job.step(loss) is not None:
            average.update()
    assert (len(listener.reports), int(average.count)) == (4, 4)


class AverageInPlace:
    """An average that is put into the model for a while, as torch_ema's.

    What it keeps of the weights meanwhile still hangs on their graph.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self.means = [parameter.detach().clone() for parameter in model.parameters()]
        self.kept: list[torch.Tensor] | None = None

    def state_dict(self) -> dict[str, Any]:
        return {"means": self.means, "kept": self.kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.means, self.kept = state["means"], state["kept"]

    def store(self, model: torch.nn.Module) -> None:
        self.kept = [parameter.clone() for parameter in model.parameters()]


def test_registered_state_may_have_gradients() -> None:
    job, listener = new_job()
    average = AverageInPlace(job.model)
    average.store(job.model)
    job.register_state("average", average)
    for batch in job.batches(DATA, global_batch_size=16, epochs=2):
        loss = (job.model(batch.inputs) - batch.target).square().mean()
        if job.step(loss) is not None:
            average.store(job.model)
    assert len(listener.reports) == 4
    assert average.kept is not None
