"""A host counts as one that has the tables of a step only where it has all of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from brim.coordination.job.membership import Member, World
from brim.coordination.job.participant import RoundChanged
from brim.domain.job import JobSpec, WorkerRange
from brim.embeddings.embedding import Embeddings
from brim.embeddings.keyed import Embedding
from brim.embeddings.rows import GradientRows, OwnedRows
from brim.errors import EnvironmentFault
from brim.host.anonymous import anonymous_file
from brim.train.round import settle_tables
from brim.train.state.job_state import TrainingState
from brim.train.state.optimization import Optimization

SPEC = JobSpec(command=("loop.py",), parameters={}, workers=WorkerRange.parse("1"))


@pytest.fixture
def memory() -> Iterator[int]:
    """The memory that the workers of a host share."""
    descriptor = anonymous_file("tables")
    yield descriptor
    os.close(descriptor)


@pytest.fixture(params=["numbers", "ids"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def born(kind: str, memory: int) -> Embeddings:
    """The embeddings of a worker of the host that has come anew."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(50, 4, sparse=True) if kind == "numbers" else Embedding(4))
    tables = Embeddings(model, [torch.optim.Adagrad(model.parameters(), lr=0.1)], SPEC)
    tables.open(memory)
    return tables


def changed(tables: Embeddings, *, step: int) -> None:
    """Change rows for a step, as its owner does before the commit."""
    rows = GradientRows(torch.tensor([1, 7]), torch.ones(2, 4))
    tables.committed = lambda: step - 1
    tables.update([OwnedRows(rows, owner=0, start=0)], step=step)


class Members:
    """A worker that is the first of its host, in a world of so many hosts with a worker each.

    Args:
        survivors: each other host's message on the tables.
    """

    is_newcomer = False
    rank = 0
    neighbours = range(1)

    def __init__(self, *survivors: bool) -> None:
        self.others, self.world_size = survivors, 1 + len(survivors)
        self.given: list[dict[int, int | None]] = []

    def arrive(self, step: int, phase: str, payload: bytes = b"") -> SimpleNamespace:
        return SimpleNamespace(
            payloads=[payload, *(b"1" if is_survivor else b"" for is_survivor in self.others)]
        )

    def hand_over(self, has_tables: list[bool], tables: Embeddings) -> bool:
        members = tuple(
            Member(worker=f"w{rank}", agent=f"a{rank}", address="")
            for rank in range(len(has_tables))
        )
        world = World(
            round=2, members=members, donors={}, restore=False, shares=(1,) * len(has_tables)
        )
        self.given.append(world.givers(has_tables))
        return bool(self.given[-1])


class Lost(Members):
    """The same in a round that ends before all members stand at a point."""

    def arrive(self, step: int, phase: str, payload: bytes = b"") -> SimpleNamespace:
        raise RoundChanged


def settle(tables: Embeddings, members: Members, *, step: int) -> None:
    parts: Any = SimpleNamespace(
        embeddings=tables,
        members=members,
        state=SimpleNamespace(committed=step),
        asynchrony=None,
    )
    settle_tables(parts)


@pytest.mark.parametrize("survivors", [(), (False,)])
def test_workers_without_step_tables_give_up(
    kind: str, memory: int, survivors: tuple[bool, ...]
) -> None:
    """It has the rest of the state of step 9 from one that died before its host had the tables."""
    born(kind, memory).start(5)
    tables = born(kind, memory)
    with pytest.raises(EnvironmentFault, match="embeddings of step 9"):
        settle(tables, Members(*survivors), step=9)
    assert tables.step is None


def test_tables_that_another_host_has_are_asked_for(kind: str, memory: int) -> None:
    born(kind, memory).start(5)
    members = Members(True)
    settle(born(kind, memory), members, step=9)
    assert members.given == [{0: 1}]


def test_workers_with_step_tables_continue(kind: str, memory: int) -> None:
    born(kind, memory).start(5)
    for members in (Members(), Members(False)):
        tables = born(kind, memory)
        settle(tables, members, step=5)
        assert tables.step == 5


def test_tables_of_no_step_are_rejected(kind: str, memory: int) -> None:
    """A host's workers die amid the change for step 6. Newcomers, at step 9, forget the values to
    take back, and die before they have the tables of step 9. Then all go back to step 5.
    """
    born_before = born(kind, memory)
    born_before.start(5)
    changed(born_before, step=6)
    with pytest.raises(RoundChanged):
        settle(born(kind, memory), Lost(True), step=9)
    members = Members(True)
    settle(born(kind, memory), members, step=5)
    assert members.given == [{0: 1}]


def test_dying_survivors_report_their_tables_step(kind: str, memory: int) -> None:
    """The first of its host dies behind the commit of step 6, before it has noted it, and the one
    that takes its place dies as well. Then all go back to step 5.
    """
    born_before = born(kind, memory)
    born_before.start(5)
    changed(born_before, step=6)
    born_before.show()
    with pytest.raises(RoundChanged):
        settle(born_before, Lost(True), step=6)
    assert born_before.step == 6


def test_half_filled_tables_have_no_step(
    kind: str, memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = born(kind, memory)
    tables.start(5)
    state_given = tables.get()

    def die(*_: object) -> None:
        raise RoundChanged

    monkeypatch.setattr(type(tables._all[0]), "put", die)
    with pytest.raises(RoundChanged):
        tables.put(state_given)
    assert tables.step is None


def test_unheard_newcomers_ignore_their_given_step(
    memory: int,
) -> None:
    """Its donor of the state of step 9 died at once, and the master has it start afresh."""
    model = nn.Sequential(nn.Embedding(50, 4, sparse=True))
    optimizers = [torch.optim.Adagrad(model.parameters(), lr=0.1)]
    tables = Embeddings(model, optimizers, SPEC)
    tables.open(memory)
    state = TrainingState(model, Optimization(model, optimizers), tables, spec=SPEC)
    state_given = {**state.get(), "committed": 9}
    state.start()
    state.put(state_given)
    with pytest.raises(EnvironmentFault, match="embeddings of step 9"):
        state.start()
