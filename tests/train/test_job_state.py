"""What a newcomer takes of a job's state, and when."""

from __future__ import annotations

import pytest
import torch

from brim.domain.batch import Schedule
from brim.embeddings.embedding import Embeddings
from brim.errors import SpecError
from brim.train.context import spec_of_a_loner
from brim.train.state.job_state import TrainingState
from brim.train.state.optimization import Optimization


def state() -> tuple[TrainingState, torch.optim.Optimizer]:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    made = TrainingState(
        model,
        Optimization(model, [optimizer]),
        Embeddings(model, [optimizer], spec_of_a_loner()),
        spec=spec_of_a_loner(),
    )
    made.plan(Schedule(samples=40, global_batch_size=10, epochs=2))
    return made, optimizer


def newcomer(*, committed: int) -> tuple[TrainingState, torch.optim.Optimizer]:
    """One that took a state with a checkpoint due, saw to that, and then ran what stands in front
    of the batches.
    """
    donor, _ = state()
    donor.committed, donor.due = committed, True
    made, optimizer = state()
    made.put(donor.get())
    made.due = False
    optimizer.param_groups[0]["lr"] *= 0.5
    made.put_again()
    return made, optimizer


def test_preambles_are_not_repeated_amid_epochs() -> None:
    _, optimizer = newcomer(committed=2)
    assert optimizer.param_groups[0]["lr"] == 0.1


def test_preambles_run_at_epoch_start() -> None:
    _, optimizer = newcomer(committed=0)
    assert optimizer.param_groups[0]["lr"] == 0.05


def test_handled_checkpoints_are_not_due() -> None:
    made, _ = newcomer(committed=2)
    assert not made.due


DATA = Schedule(samples=40, global_batch_size=10, epochs=2)


def test_newcomers_with_other_data_are_refused() -> None:
    donor, made = state()[0], state()[0]
    donor.plan(DATA, mark="0 abc")
    made.put(donor.get())
    with pytest.raises(SpecError, match="other samples, of the same number"):
        made.plan(DATA, mark="0 xyz")


def test_data_may_be_another_in_each_epoch() -> None:
    donor, made = state()[0], state()[0]
    donor.plan(DATA, mark="0 abc")
    made.put(donor.get())
    made.plan(DATA, mark="1 xyz")
    assert made.mark == "1 xyz"


def test_newcomers_agree_before_reading_data() -> None:
    donor, made = state()[0], state()[0]
    donor.plan(DATA, mark="0 abc")
    made.put(donor.get())
    assert made.digests()["first samples"] == donor.digests()["first samples"]


def test_unchanged_states_reuse_their_digests() -> None:
    made, _ = state()
    digests = made.digests()
    assert made.digests(unless_put=True) is digests
    other, _ = state()
    other.committed = 3
    made.put(other.get())
    assert made.digests(unless_put=True) == other.digests()
    assert made.digests(unless_put=True) != digests
