"""Audits: things on which a micro-batch depends beside the weights, the seed and the samples."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from brim.coordination.job.audits import AuditPlan
from brim.errors import SpecError, UserCodeError
from brim.train.context import spec_of_a_loner
from brim.train.job import Job
from brim.train.state.transfer import weights_sha256
from brim.train.step import MicroBatch

DATA = [(torch.tensor([float(i), 1.0]), torch.tensor([float(i % 3)])) for i in range(32)]
Loss = Callable[[Tensor, MicroBatch], Tensor]


def squared(prediction: Tensor, batch: MicroBatch) -> Tensor:
    return nn.functional.mse_loss(prediction, batch.target)


def train(loss: Loss, *, data: Any = DATA, steps: int = 4, **options: Any) -> Job:
    """Train a line with this loss, in this process, by steps of 8 samples in 4 micro-batches."""
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    spec = replace(spec_of_a_loner(0), micro_batches=4, **options)
    job = Job(model, torch.optim.SGD(model.parameters(), lr=0.001), spec=spec, context=None)
    for batch in job.batches(data, global_batch_size=8, epochs=-(-steps // 4)):
        job.step(loss(model(batch.inputs), batch))
    return job


def memory_bank() -> Loss:
    bank: list[Tensor] = []

    def loss(prediction: Tensor, batch: MicroBatch) -> Tensor:
        bank.append(prediction.detach().mean())
        return squared(prediction, batch) + (prediction.mean() - torch.stack(bank).mean()) ** 2

    return loss


def running_scale() -> Loss:
    scale = torch.ones(())

    def loss(prediction: Tensor, batch: MicroBatch) -> Tensor:
        scale.lerp_(prediction.detach().abs().mean(), 0.1)
        return squared(prediction / scale, batch)

    return loss


def running_scale_in_numpy() -> Loss:
    scale = np.ones(1)

    def loss(prediction: Tensor, batch: MicroBatch) -> Tensor:
        scale[0] = 0.9 * scale[0] + float(prediction.detach().abs().mean())
        return squared(prediction, batch) / float(scale[0])

    return loss


def warm_up_by_calls() -> Loss:
    calls = itertools.count(1)
    return lambda prediction, batch: squared(prediction, batch) * min(1.0, next(calls) / 100)


def private_generator() -> Loss:
    generator = torch.Generator().manual_seed(0)
    return lambda prediction, batch: squared(
        prediction + torch.randn(prediction.shape, generator=generator), batch
    )


def private_numpy_generator() -> Loss:
    generator = np.random.default_rng(0)
    return lambda prediction, batch: squared(prediction * float(generator.normal()), batch)


def private_random() -> Loss:
    generator = random.Random(0)
    return lambda prediction, batch: squared(prediction * generator.random(), batch)


def hidden_state() -> Loss:
    hidden = [torch.zeros(1)]

    def loss(prediction: Tensor, batch: MicroBatch) -> Tensor:
        joined = prediction + hidden[0]
        hidden[0] = joined.detach().mean(dim=0)
        return squared(joined, batch)

    return loss


def network_that_learns_beside() -> Loss:
    critic = nn.Linear(2, 1)

    def loss(prediction: Tensor, batch: MicroBatch) -> Tensor:
        score = critic(batch.inputs).detach()
        with torch.no_grad():
            critic.weight.add_(0.01)
        return squared(prediction - score, batch)

    return loss


def normalization_beside() -> Loss:
    norm = nn.BatchNorm1d(1, affine=False, momentum=0.5)
    assert norm.running_mean is not None
    mean = norm.running_mean

    def loss(prediction: Tensor, batch: MicroBatch) -> Tensor:
        norm(prediction.detach())
        return squared(prediction - mean, batch)

    return loss


def previous_batch() -> Loss:
    previous: dict[str, Tensor] = {}

    def loss(prediction: Tensor, batch: MicroBatch) -> Tensor:
        mixed = previous.get("target", batch.target)
        previous["target"] = batch.target
        return squared(prediction, batch) + 0.1 * nn.functional.mse_loss(prediction, mixed)

    return loss


def gradient_noise() -> Loss:
    generator = torch.Generator().manual_seed(0)

    def loss(prediction: Tensor, batch: MicroBatch) -> Tensor:
        prediction.register_hook(lambda g: g + torch.randn(g.shape, generator=generator))
        return squared(prediction, batch)

    return loss


HIDDEN = (
    memory_bank, running_scale, running_scale_in_numpy, warm_up_by_calls, private_generator,
    private_numpy_generator, private_random, hidden_state, network_that_learns_beside,
    normalization_beside, previous_batch, gradient_noise,
)  # fmt: skip


@pytest.mark.parametrize("hidden", HIDDEN, ids=lambda case: case.__name__)
def test_hidden_state_ends_the_first_step(hidden: Callable[[], Loss]) -> None:
    with pytest.raises(
        UserCodeError, match=r"micro-batch 0 of step 1 was computed twice"
    ) as caught:
        train(hidden())
    named = "different gradient" if hidden is gradient_noise else "different loss"
    assert named in str(caught.value)
    assert "hint: give networks to brim.join" in str(caught.value)


def test_an_honest_loss_passes() -> None:
    audited, plain = train(squared, steps=20), train(squared, steps=20, audit=False)
    assert weights_sha256(audited.model) == weights_sha256(plain.model)


def test_no_audit_trains_on_hidden_state() -> None:
    assert train(warm_up_by_calls(), audit=False).committed == 4


class ReadCounter(torch.utils.data.Dataset[Any]):
    """Samples that count how often they were read, from the fifth reading on."""

    def __init__(self) -> None:
        self.reads = 0

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.reads += 1
        return torch.tensor([float(max(4, self.reads)), 1.0]), torch.zeros(1)


def test_samples_that_change_are_named() -> None:
    with pytest.raises(
        UserCodeError, match=r"twice by this process, from other samples\n  The workers"
    ):
        train(squared, data=ReadCounter())


def test_an_optimizer_beside_the_job_is_refused() -> None:
    second_optimizer = torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.1)

    def loss(prediction: Tensor, batch: MicroBatch) -> Tensor:
        second_optimizer.step()
        return squared(prediction, batch)

    with pytest.raises(SpecError, match=r"a step of an optimizer \(SGD\) that brim.join was not"):
        train(loss)
    second_optimizer.step()  # outside of batches it may


def test_networks_beside_the_job_are_warned_of(capfd: pytest.CaptureFixture[str]) -> None:
    second_network = nn.Linear(2, 1)
    train(lambda prediction, batch: squared(prediction + second_network(batch.inputs), batch))
    assert "the loss depends on 2 parameters that brim.join was not given" in capfd.readouterr().err
    train(lambda _, batch: squared(second_network(batch.inputs), batch))
    assert "nothing of it is trained" in capfd.readouterr().err


def test_old_members_audit_newcomers() -> None:
    plan = AuditPlan(tuple(range(2 * rank, 2 * rank + 2) for rank in range(4)), first=7)
    right, wrong = b"right", b"wrong"
    # Ranks 2 and 3 are new: they compute something else, for themselves and for the old ones.
    words = [(right, right), (right, right), (wrong, wrong), (wrong, wrong)]
    found = [(finding.owner, finding.auditor) for finding in plan.findings(words, 7)]
    assert found == [(2, 1), (0, 3)]


def test_the_first_step_audits_newcomers_alone() -> None:
    shares = tuple(range(2 * rank, 2 * rank + 2) for rank in range(4))
    plan = AuditPlan(shares, first=7, newcomers=frozenset({2, 3}))
    assert [plan.owner_for(rank, 7) for rank in range(4)] == [None, 2, 3, None]
    assert [plan.micro_of(rank, 7) for rank in range(4)] == [None, None, 4, 6]
    assert [plan.owner_for(rank, 8) for rank in range(4)] == [1, 2, 3, 0]
    right, wrong = b"right", b"wrong"
    words = [(b"", b""), (b"", right), (wrong, wrong), (wrong, b"")]
    assert [(finding.owner, finding.auditor) for finding in plan.findings(words, 7)] == [(2, 1)]


def test_experienced_members_are_audited_from_the_second_step() -> None:
    plan = AuditPlan((range(2), range(2, 4)), first=7, newcomers=frozenset())
    assert [step for step in range(7, 75) if plan.covers(step)] == [8, 11, 23, 71]


def test_the_second_epoch_begins_with_an_audit() -> None:
    plan = AuditPlan((range(2), range(2, 4)), first=7, second_epoch=30)
    assert [step for step in range(7, 75) if plan.covers(step)] == [7, 8, 11, 23, 30, 71]
    assert plan.owner_for(0, 30) == 1


def test_ranks_without_samples_are_passed_over() -> None:
    plan = AuditPlan((range(1), range(1, 1), range(1, 2)), first=0)
    assert plan.findings([(b"a", b""), (b"", b""), (b"", b"a")], 0) == []


def test_data_of_own_loops_has_no_split() -> None:
    empty = TensorDataset(torch.zeros(0, 2), torch.zeros(0, 1))
    with pytest.raises(SpecError, match=r"job.batches\(data\): got no samples"):
        train(squared, data=empty)
