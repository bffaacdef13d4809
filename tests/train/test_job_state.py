"""The parts of a job's state that a newcomer takes, and when."""

from __future__ import annotations

import pytest
import torch
from torch.nn.utils import prune

from brim.domain.batch import Schedule
from brim.embeddings.embedding import Embeddings
from brim.errors import SpecError
from brim.train.context import spec_of_a_loner
from brim.train.state.job_state import TrainingState
from brim.train.state.optimization import Optimization


def state(model: torch.nn.Module | None = None) -> tuple[TrainingState, torch.optim.Optimizer]:
    model = model or torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    training_state = TrainingState(
        model,
        Optimization(model, [optimizer]),
        Embeddings(model, [optimizer], spec_of_a_loner()),
        spec=spec_of_a_loner(),
    )
    training_state.plan(Schedule(samples=40, global_batch_size=10, epochs=2))
    return training_state, optimizer


def newcomer(*, committed: int) -> tuple[TrainingState, torch.optim.Optimizer]:
    """One that took a state with a checkpoint due, saw to that, and then ran the code in front of
    the batches.
    """
    donor, _ = state()
    donor.committed, donor.due = committed, True
    training_state, optimizer = state()
    training_state.put(donor.get())
    training_state.due = False
    optimizer.param_groups[0]["lr"] *= 0.5
    training_state.put_again()
    return training_state, optimizer


def test_preambles_are_not_repeated_amid_epochs() -> None:
    _, optimizer = newcomer(committed=2)
    assert optimizer.param_groups[0]["lr"] == 0.1


def test_preambles_run_at_epoch_start() -> None:
    _, optimizer = newcomer(committed=0)
    assert optimizer.param_groups[0]["lr"] == 0.05


def test_handled_checkpoints_are_not_due() -> None:
    training_state, _ = newcomer(committed=2)
    assert not training_state.due


class Patience:
    """Early stopping as many scripts write it, without a state_dict."""

    def __init__(self) -> None:
        self.best, self.bad = 0.0, 0


def test_attributes_of_an_object_are_registered() -> None:
    (donor, _), (taker, _) = state(), state()
    patience, heir = Patience(), Patience()
    with pytest.raises(
        SpecError, match=r"got a Patience as 'early'(.|\n)*\('early', vars\("
    ) as error:
        donor.register("early", patience)  # type: ignore[arg-type]
    assert error.value.hint
    donor.register("early", vars(patience))
    taker.register("early", vars(heir))
    patience.best, patience.bad = 0.5, 2
    taker.put(donor.get())
    assert (heir.best, heir.bad) == (0.5, 2)
    heir.bad = 3
    assert taker.get()["registered"]["early"]["bad"] == 3


@pytest.mark.parametrize("thing", [torch.zeros(2), [1], len], ids=["tensor", "list", "function"])
def test_other_things_get_no_hint(thing: object) -> None:
    with pytest.raises(SpecError, match=r"an object with state_dict\(\)") as error:
        state()[0].register("thing", thing)  # type: ignore[arg-type]
    assert not error.value.hint


DATA = Schedule(samples=40, global_batch_size=10, epochs=2)


def test_newcomers_with_other_data_are_refused() -> None:
    donor, training_state = state()[0], state()[0]
    donor.plan(DATA, mark="0 abc")
    training_state.put(donor.get())
    with pytest.raises(SpecError, match="other samples, of the same number"):
        training_state.plan(DATA, mark="0 xyz")


def test_data_may_be_another_in_each_epoch() -> None:
    donor, training_state = state()[0], state()[0]
    donor.plan(DATA, mark="0 abc")
    training_state.put(donor.get())
    training_state.plan(DATA, mark="1 xyz")
    assert training_state.mark == "1 xyz"


def test_newcomers_agree_before_reading_data() -> None:
    donor, training_state = state()[0], state()[0]
    donor.plan(DATA, mark="0 abc")
    training_state.put(donor.get())
    assert training_state.digests()["first samples"] == donor.digests()["first samples"]


def test_unchanged_states_reuse_their_digests() -> None:
    training_state, _ = state()
    digests = training_state.digests()
    assert training_state.digests(unless_put=True) is digests
    other_state, _ = state()
    other_state.committed = 3
    training_state.put(other_state.get())
    assert training_state.digests(unless_put=True) == other_state.digests()
    assert training_state.digests(unless_put=True) != digests


@pytest.mark.parametrize("has_mask", [True, False])
def test_late_masks_are_refused(has_mask: bool) -> None:
    model = torch.nn.Linear(2, 1)
    if has_mask:
        prune.identity(model, "weight")
    training_state, _ = state(model)
    prune.random_unstructured(model, "weight", amount=1)
    if has_mask:
        assert training_state.get()["model"]["weight_mask"].sum() == 1
        return
    with pytest.raises(SpecError, match="a model that no longer has 'weight'") as raised:
        training_state.get()
    assert "prune.identity" in raised.value.hint
