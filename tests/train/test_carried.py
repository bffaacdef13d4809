"""State that samples leave for those in their places in the next step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from brim.domain.batch import Span
from brim.errors import SpecError
from brim.train.context import spec_of_a_loner
from brim.train.exchange.carried import Carried
from brim.train.job import Job

COLUMNS, CHUNKS, SIZE, EPOCHS = 6, 4, 5, 2
INPUTS = torch.randn(CHUNKS * COLUMNS, 3, SIZE, generator=torch.Generator().manual_seed(1))
TARGETS = INPUTS.sum(-1).roll(COLUMNS, 0)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(SIZE, SIZE, 2, batch_first=True)
        self.last = nn.Linear(SIZE, 1)

    def forward(self, inputs: Tensor, hidden: Any) -> tuple[Tensor, Any]:
        output, hidden = self.rnn(inputs, hidden)
        return self.last(output).squeeze(-1), hidden

    def start(self) -> tuple[Tensor, Tensor]:
        return torch.zeros(2, COLUMNS, SIZE), torch.zeros(2, COLUMNS, SIZE)


def new_model() -> tuple[Recurrent, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = Recurrent()
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def plain() -> Recurrent:
    """The loop that everybody knows."""
    model, optimizer = new_model()
    for _ in range(EPOCHS):
        hidden = model.start()
        for start in range(0, len(INPUTS), COLUMNS):
            hidden = (hidden[0].detach(), hidden[1].detach())
            output, hidden = model(INPUTS[start : start + COLUMNS], hidden)
            optimizer.zero_grad()
            functional.mse_loss(output, TARGETS[start : start + COLUMNS]).backward()
            optimizer.step()
    return model


def new_job(micro_batches: int) -> Job:
    model, optimizer = new_model()
    spec = spec_of_a_loner(0)
    return Job(model, optimizer, spec=replace(spec, micro_batches=micro_batches), context=None)


def train(job: Job, *, epochs: int = EPOCHS, shuffle: bool = False) -> nn.Module:
    data = TensorDataset(INPUTS, TARGETS)
    for batch in job.batches(data, global_batch_size=COLUMNS, epochs=epochs, shuffle=shuffle):
        output, batch.carried["hidden"] = job.model(batch.inputs, batch.carried["hidden"])
        job.step(functional.mse_loss(output, batch.target))
    return job.model


@pytest.mark.parametrize("micro_batches", [1, 4])
def test_columns_continue_their_own_hidden_state(micro_batches: int) -> None:
    job = new_job(micro_batches)
    job.carry("hidden", Recurrent().start(), dim=1)
    trained, expected = train(job), plain()
    for parameter, expected_parameter in zip(
        trained.parameters(), expected.parameters(), strict=True
    ):
        torch.testing.assert_close(parameter, expected_parameter, rtol=1e-5, atol=1e-6)


def test_what_is_carried_is_part_of_the_state() -> None:
    job, second_job = new_job(2), new_job(2)
    for carrying_job in (job, second_job):
        carrying_job.carry("hidden", Recurrent().start(), dim=1)
    reads = job.batches(TensorDataset(INPUTS, TARGETS), global_batch_size=COLUMNS, shuffle=False)
    while not job.committed:
        batch = next(reads)
        output, batch.carried["hidden"] = job.model(batch.inputs, batch.carried["hidden"])
        job.step(functional.mse_loss(output, batch.target))
    second_job.parts.state.put(job.parts.state.get())
    all_columns = Span(0, COLUMNS)
    for column, second_column in zip(
        job.parts.carried["hidden"].copy_at(all_columns),
        second_job.parts.carried["hidden"].copy_at(all_columns),
        strict=True,
    ):
        assert column.abs().sum() > 0
        assert torch.equal(column, second_column)


def carried(start: Any, dim: int = 0) -> Carried:
    return Carried("hidden", start, dim=dim, device=torch.device("cpu"))


def test_short_steps_leave_later_places_unchanged() -> None:
    hidden = carried(torch.arange(4.0))
    hidden.put(hidden.left_by(Span(0, 2), torch.tensor([7.0, 8.0])), samples=2)
    assert hidden.copy_at(Span(0, 4)).tolist() == [7.0, 8.0, 2.0, 3.0]  # type: ignore[union-attr]
    hidden.begin_epoch()
    assert hidden.copy_at(Span(0, 4)).tolist() == [0.0, 1.0, 2.0, 3.0]  # type: ignore[union-attr]


def test_what_is_found_can_be_changed_in_place() -> None:
    hidden = carried(torch.zeros(2))
    hidden.copy_at(Span(0, 2)).add_(1)  # type: ignore[union-attr]
    assert hidden.copy_at(Span(0, 2)).tolist() == [0.0, 0.0]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("start", "dim", "message"),
    [
        (
            torch.zeros(2),
            1,
            "got torch.float32 of shape [2], need tensors of floating point with a dimension 1",
        ),
        (torch.zeros(2, dtype=torch.int64), 0, "got torch.int64"),
        (None, 0, "got a NoneType"),
        ((), 0, "got no tensor"),
        ((torch.zeros(2), torch.zeros(3)), 0, "alike in dimension 0"),
    ],
)
def test_a_start_that_will_not_do_is_refused(start: Any, dim: int, message: str) -> None:
    with pytest.raises(SpecError) as refusal:
        carried(start, dim)
    assert message in str(refusal.value)


@pytest.mark.parametrize("value", [None, torch.zeros(3), (torch.zeros(2),), [1.0, 2.0]])
def test_a_value_of_another_kind_is_refused(value: Any) -> None:
    with pytest.raises(SpecError, match=r"need \[2\], as it was found there"):
        carried(torch.zeros(4)).left_by(Span(1, 3), value)


def test_nothing_is_carried_over_shuffled_data() -> None:
    job = new_job(2)
    job.carry("hidden", Recurrent().start(), dim=1)
    with pytest.raises(SpecError, match="shuffled") as refusal:
        train(job, shuffle=True)
    assert refusal.value.hint == "job.batches(data, shuffle=False)"


def test_each_sample_of_a_step_has_a_place() -> None:
    job = new_job(2)
    job.carry("hidden", Recurrent().start())
    with pytest.raises(SpecError, match=f"got 2 places, need {COLUMNS}"):
        train(job)


def test_a_name_that_is_not_carried_is_refused() -> None:
    job = new_job(2)
    batch = next(job.batches(TensorDataset(INPUTS, TARGETS), global_batch_size=COLUMNS))
    batch.carried["memory"] = torch.zeros(3)
    with pytest.raises(
        SpecError, match=r"batch.carried\['memory'\]: got a name that job.carry was not given"
    ):
        job.step(job.model(batch.inputs, None)[0].mean())
