"""Learning rates that a loop changes: refused where other workers would not have them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from brim.errors import SpecError
from brim.train.context import spec_of_a_loner
from brim.train.job import Job
from train.test_job import DATA, sgd

SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "lambda": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5**epoch),
    "plateau": lambda optimizer: lr_scheduler.ReduceLROnPlateau(optimizer, patience=0),
    "one_cycle": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=20),
    "sequential": lambda optimizer: lr_scheduler.SequentialLR(
        optimizer,
        [lr_scheduler.ConstantLR(optimizer, 0.5), lr_scheduler.ExponentialLR(optimizer, 0.9)],
        milestones=[2],
    ),
    "chained": lambda optimizer: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(optimizer, 0.5), lr_scheduler.ExponentialLR(optimizer, 0.9)]
    ),
    "own": lambda optimizer: Halving(optimizer),
}


class Halving:
    """A scheduler of somebody's own, with nothing of torch's."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer, self.calls = optimizer, 0

    def step(self) -> None:
        self.calls += 1
        for group in self.optimizer.param_groups:
            group["lr"] *= 0.5

    def state_dict(self) -> dict[str, Any]:
        return {"calls": self.calls}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.calls = state["calls"]


def new_job(
    optimizer: torch.optim.Optimizer,
    model: nn.Module,
    scheduler: Any = None,
    *,
    interval: str | None = None,
) -> Job:
    return Job(
        model,
        optimizer,
        spec=spec_of_a_loner(0),
        context=None,
        scheduler=scheduler,
        scheduler_interval=interval,
    )


def train(
    job: Job,
    *,
    in_step: Callable[[], None] = lambda: None,
    in_epoch: Callable[[], None] = lambda: None,
) -> int:
    """Train two epochs of two steps; return how many steps counted."""
    for _ in job.epochs(2):
        for batch in job.batches(DATA, global_batch_size=10):
            in_step()
            job.step((job.model(batch.inputs) - batch.target).square().mean())
        in_epoch()
        job.log(loss=1.0)
    return job.committed


def step(scheduler: Any) -> None:
    scheduler.step(1.0) if isinstance(
        scheduler, lr_scheduler.ReduceLROnPlateau
    ) else scheduler.step()


def step_twice(scheduler: Any) -> None:
    """Step a scheduler so often that one with no patience changes the rate."""
    step(scheduler)
    step(scheduler)


@pytest.mark.parametrize("kind", SCHEDULERS)
@pytest.mark.parametrize("place", ["in_step", "in_epoch"])
@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
def test_leftover_scheduler_steps_are_refused(kind: str, place: str) -> None:
    model = nn.Linear(2, 1)
    optimizer = sgd(model)
    scheduler = SCHEDULERS[kind](optimizer)
    job = new_job(optimizer, model, scheduler)
    with pytest.raises(SpecError, match=r"scheduler.step\(\).*need none") as raised:
        train(job, **{place: lambda: step(scheduler)})
    assert raised.value.hint.startswith("remove scheduler.step() from the loop")


@pytest.mark.parametrize("kind", SCHEDULERS)
def test_a_forgotten_scheduler_is_asked_for(kind: str) -> None:
    model = nn.Linear(2, 1)
    optimizer = sgd(model)
    scheduler = SCHEDULERS[kind](optimizer)
    job = new_job(optimizer, model)
    if kind == "own":  # the same as a rate that is set by hand
        assert train(job, in_epoch=lambda: step(scheduler)) == 4
        return
    with pytest.raises(SpecError, match="a learning rate that a scheduler changes") as raised:
        train(job, in_epoch=lambda: step_twice(scheduler))
    assert raised.value.hint.startswith("brim.join(model, optimizer, scheduler=scheduler)")


@pytest.mark.parametrize("kind", SCHEDULERS)
def test_schedulers_that_brim_steps_pass(kind: str) -> None:
    model = nn.Linear(2, 1)
    optimizer = sgd(model)
    assert train(new_job(optimizer, model, SCHEDULERS[kind](optimizer))) == 4


@pytest.mark.parametrize("interval", [None, "epoch"])
def test_a_long_schedule_steps_with_epochs_if_told(interval: str | None) -> None:
    """A script that trains the first epochs of many says so, as the error asks for."""
    model = nn.Linear(2, 1)
    optimizer = sgd(model)
    cosine = lr_scheduler.CosineAnnealingLR(optimizer, T_max=40)
    job = new_job(optimizer, model, cosine, interval=interval)
    if interval is None:
        with pytest.raises(SpecError, match="a word on when") as raised:
            train(job)
        assert '"epoch"' in raised.value.hint
    else:
        assert (train(job), cosine.last_epoch) == (4, 2)


@pytest.mark.parametrize("kind", SCHEDULERS)
def test_registered_schedulers_may_be_stepped_by_hand(kind: str) -> None:
    model = nn.Linear(2, 1)
    optimizer = sgd(model)
    scheduler = SCHEDULERS[kind](optimizer)
    job = new_job(optimizer, model)
    job.register_state("scheduler", scheduler)
    assert train(job, in_epoch=lambda: step(scheduler)) == 4


def test_a_rate_set_from_the_step_passes() -> None:
    """As nanoGPT's loop has it."""
    model = nn.Linear(2, 1)
    optimizer = sgd(model)
    job = new_job(optimizer, model)

    def set_rate() -> None:
        for group in optimizer.param_groups:
            group["lr"] = 0.1 / (1 + job.committed)

    assert train(job, in_step=set_rate) == 4
    assert optimizer.param_groups[0]["lr"] == 0.1 / 4


def test_another_optimizers_scheduler_is_still_watched() -> None:
    first, second = nn.Linear(2, 1), nn.Linear(1, 1)
    optimizers = [sgd(first), sgd(second)]
    schedulers = [lr_scheduler.ExponentialLR(optimizer, 0.9) for optimizer in optimizers]
    job = Job(
        nn.Sequential(first, second),
        optimizers,
        spec=spec_of_a_loner(0),
        context=None,
        scheduler=schedulers[0],
    )
    with pytest.raises(SpecError, match="no scheduler="):
        train(job, in_epoch=schedulers[1].step)


def test_average_in_place_of_a_schedule_is_named() -> None:
    model = nn.Linear(2, 1)
    average = nn.Module()
    average.register_buffer("step", torch.tensor(0))  # as ema-pytorch counts
    with pytest.raises(SpecError, match="got a Module, need a scheduler") as raised:
        new_job(sgd(model), model, average)
    assert 'job.register_state("average", average)' in raised.value.hint
