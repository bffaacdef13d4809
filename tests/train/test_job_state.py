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


def test_what_stands_in_front_of_a_loop_that_is_under_way_is_not_done_twice() -> None:
    _, optimizer = newcomer(committed=2)
    assert optimizer.param_groups[0]["lr"] == 0.1


def test_at_the_start_of_an_epoch_it_is_done() -> None:
    _, optimizer = newcomer(committed=0)
    assert optimizer.param_groups[0]["lr"] == 0.05


def test_a_checkpoint_that_was_seen_to_is_not_due_again() -> None:
    made, _ = newcomer(committed=2)
    assert not made.due


DATA = Schedule(samples=40, global_batch_size=10, epochs=2)


def test_a_newcomer_with_other_data_of_the_same_length_is_refused() -> None:
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


def test_until_it_has_looked_at_its_data_a_newcomer_agrees_with_the_others() -> None:
    donor, made = state()[0], state()[0]
    donor.plan(DATA, mark="0 abc")
    made.put(donor.get())
    assert made.digests()["first samples"] == donor.digests()["first samples"]


def test_digests_of_a_state_that_stood_still_are_not_computed_again_unless_another_was_put() -> (
    None
):
    made, _ = state()
    digests = made.digests()
    assert made.digests(unless_put=True) is digests
    other, _ = state()
    other.committed = 3
    made.put(other.get())
    assert made.digests(unless_put=True) == other.digests()
    assert made.digests(unless_put=True) != digests
