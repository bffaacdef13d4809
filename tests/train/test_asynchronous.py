"""The state that asynchronous workers share stays whole, whichever worker dies, and goes from
one to the other as it was.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch import nn

from brim.coordination.job.participant import Interrupted
from brim.domain.job import JobSpec, WorkerRange
from brim.embeddings.embedding import Embeddings
from brim.errors import InternalError, SpecError
from brim.train.asynchronous.applied import AppliedBatches
from brim.train.asynchronous.home import Home
from brim.train.asynchronous.turn import Asynchrony
from brim.train.state.job_state import TrainingState
from brim.train.state.optimization import Optimization


@pytest.fixture
def memory() -> Any:
    descriptor = os.memfd_create("test")
    yield descriptor
    os.close(descriptor)


def tree(value: float, *, size: int = 3) -> dict[str, Any]:
    tensors = {
        "a": torch.full((size, 2), value),
        "b": torch.tensor(int(value)),
        "none": torch.zeros(0),
    }
    return {"tensors": tensors, "plain": {"rate": value, 3: (None, "text")}}


def is_same(left: Any, right: Any) -> bool:
    named = left["tensors"].items()
    alike = all(torch.equal(tensor_named, right["tensors"][name]) for name, tensor_named in named)
    return bool(alike) and left["plain"] == right["plain"]


def test_what_one_process_stores_another_loads(memory: int) -> None:
    first_home, second_home = Home(memory), Home(memory)
    first_home.begin(tree(1.5), 7)
    first_home.store(tree(2.5), 8)
    assert second_home.newest == 8
    assert is_same(second_home.load(7), tree(1.5))
    assert is_same(second_home.load(8), tree(2.5))
    with pytest.raises(InternalError):
        second_home.load(9)


def test_the_last_commit_survives_repeated_writes(memory: int) -> None:
    first_home, second_home = Home(memory), Home(memory)
    first_home.begin(tree(1.0), 0)
    first_home.store(tree(2.0), 1)
    for size in (3, 3000, 3):  # a step that does not count, and one that needs more room
        first_home.store(tree(9.0, size=size), 2)
        assert is_same(second_home.load(1), tree(2.0))
    second_home.store(tree(3.0), 2)
    assert is_same(first_home.load(2), tree(3.0))
    assert is_same(first_home.load(1), tree(2.0))


def test_an_image_that_was_not_finished_is_none(
    memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    first_home, second_home = Home(memory), Home(memory)
    first_home.begin(tree(1.0), 0)
    first_home.store(tree(2.0), 1)

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "_foreach_copy_", die)
    with pytest.raises(KeyboardInterrupt):
        first_home.store(tree(3.0), 2)
    monkeypatch.undo()
    assert second_home.newest == 1
    assert is_same(second_home.load(1), tree(2.0))


def test_the_rest_of_a_stopped_epoch_is_contiguous() -> None:
    applied = AppliedBatches()
    assert applied.unapplied(stopped=True) == []
    applied.begin(5)
    assert applied.unapplied(stopped=True) == []
    applied.mark(0)
    applied.mark(3)
    applied.begin(5)
    assert applied.unapplied(stopped=False) == [1, 2, 4]
    assert applied.unapplied(stopped=True) == [1, 2]
    second_batches = AppliedBatches()
    second_batches.load_state_dict(applied.state_dict())
    second_batches.mark(1)
    assert second_batches.unapplied(stopped=False) == [2, 4]
    assert applied.unapplied(stopped=False) == [1, 2, 4]


def worker(memory: int) -> tuple[TrainingState, Asynchrony, torch.optim.Optimizer]:
    spec = JobSpec(
        file="file.py", parameters={}, workers=WorkerRange(minimum=1, maximum=2), asynchronous=1
    )
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters())
    optimization = Optimization(model, [optimizer])
    state = TrainingState(model, optimization, Embeddings(model, [optimizer], spec), spec=spec)
    asynchrony = Asynchrony(state, Embeddings(model, [optimizer], spec), memory)
    asynchrony.begin_epoch(4)
    return state, asynchrony, optimizer


def step(state: TrainingState, asynchrony: Asynchrony, *, previous: int, batch: int) -> None:
    with asynchrony.turn(1):
        asynchrony.refresh(previous)
        with torch.no_grad():
            state.get()["model"]["weight"].add_(1.0)
        state.committed += 1
        asynchrony.mark(batch)
        asynchrony.store()


def test_uncounted_turns_are_forgotten(memory: int) -> None:
    (first, a, _), (second, b, _) = worker(memory), worker(memory)
    start = first.get()["model"]["weight"].clone()
    a.settle(1)
    a.begin()
    b.begin()
    step(first, a, previous=0, batch=0)
    step(second, b, previous=1, batch=1)
    assert torch.equal(second.get()["model"]["weight"], start + 2.0)
    assert b.allotment(2).free == [2, 3]
    b.catch_up(1)
    assert torch.equal(second.get()["model"]["weight"], start + 1.0)
    assert b.allotment(2).free == [1, 2, 3]
    with pytest.raises(Interrupted), a.turn(1):
        raise AssertionError("a turn of a round that is over")


def test_manual_changes_within_an_epoch_are_refused(memory: int) -> None:
    state, asynchrony, optimizer = worker(memory)
    asynchrony.settle(1)
    asynchrony.begin()
    step(state, asynchrony, previous=0, batch=0)
    optimizer.param_groups[0]["lr"] = 0.5
    with pytest.raises(SpecError, match="lr' changed by hand"):
        step(state, asynchrony, previous=1, batch=1)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [({"transport": "distributed"}, "distributed"), ({"agents": 2}, "--agents")],
)
def test_what_cannot_be_asynchronous_is_refused(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        JobSpec(
            file="f.py",
            parameters={},
            workers=WorkerRange(minimum=1, maximum=2),
            asynchronous=1,
            **fields,
        )


def test_the_result_of_asynchronous_training_is_not_exact() -> None:
    workers = WorkerRange(minimum=1, maximum=9)
    assert not JobSpec(file="f.py", parameters={}, workers=workers, asynchronous=0).exact
