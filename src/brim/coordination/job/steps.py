"""The order in which a member makes a step, passes a boundary and comes to the end of its job.

Pure.

Each is a generator that yields what is next and is sent what came of it. The training loop does
these (`train/loop.py`), and so does the scheduler of schedules in the tests: so the orders that are
proved are those that train.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from brim.coordination.job.participant import RoundChanged

T = TypeVar("T")

_ANSWER = 50e-6  # seconds that the answer to a commit takes at least


@dataclass(frozen=True, slots=True)
class Stand:
    """Wait at a point until all members stand there."""

    phase: str


@dataclass(frozen=True, slots=True)
class Add:
    """Add up the available sums once all stand at this point."""

    phase: str


@dataclass(frozen=True, slots=True)
class Settle:
    """Wait for the answer to the last commit, for so many seconds.

    None waits for as long as it takes.
    """

    within: float | None


class Act(enum.Enum):
    """The parts that a member does by itself.

    COMMIT is answered with whether it is known to be the round's last.
    """

    AUDIT = enum.auto()  # compare what micro-batches came to that were computed twice
    SUM = enum.auto()  # have the sum over all micro-batches
    PREPARE = enum.auto()  # give the network the sum, which until the commit can be undone
    COMMIT = enum.auto()  # have the step count, together with all members
    APPLY = enum.auto()  # the update, which cannot be undone
    COMPARE = enum.auto()  # the state with those of the others
    CHECKPOINT = enum.auto()  # begin one
    WRITE = enum.auto()  # what the job ends with
    COMPLETE = enum.auto()  # say that the job is done
    AWAIT_DISMISSAL = enum.auto()


Action = Stand | Add | Settle | Act


def follow(actions: Generator[Action, Any, T], perform: Callable[[Action], object]) -> T:
    """Do one action after the other, and return their result."""
    answer: object = None
    while True:
        try:
            action = actions.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result
        answer = perform(action)


def step(
    stages: Sequence[str], *, changes_early: bool, audited: bool = False
) -> Generator[Action, Any, bool]:
    """Make a step, whose micro-batches this member has computed.

    Args:
        stages: points behind which contributions are added up.
        changes_early: the members share what the step changes (tables). It is changed before the
            commit, which all wait for, so that nobody reads what is half written; what does not
            count is taken back. Who is alone has nobody to wait for.
        audited: some of its micro-batches were computed twice.

    Returns:
        Whether it is known to be the round's last.
    """
    if audited:
        yield Act.AUDIT
    for stage in stages:
        yield Stand(stage)
        yield Add(stage)
    yield Act.SUM
    if changes_early:
        yield Stand("summed")
        yield Act.PREPARE
    is_held: bool = yield Act.COMMIT
    if not changes_early:  # before the commit, others may still have been adding up
        yield Act.PREPARE
    yield Act.APPLY
    return is_held


def boundary(
    *, held: bool, due: bool, is_first: bool, patience: float | None
) -> Generator[Action, Any, None]:
    """Follow the consequences of the last commit, before another step is begun.

    Args:
        held: it was the round's last.
        due: a checkpoint is.
        is_first: this member writes checkpoints.
        patience: seconds to wait for the answer of a commit that was not waited for; None waits
            for it.

    Raises:
        RoundChanged: the round is over.
    """
    if due:
        patience = None  # the checkpoint has this step, which must count
    if patience is None or patience > _ANSWER:
        yield Settle(patience)
    if held:
        yield Act.COMPARE  # the master may have this state written
        raise RoundChanged
    if due:
        yield Act.COMPARE
        if is_first:
            yield Act.CHECKPOINT


def end(*, is_first: bool) -> Generator[Action, Any, None]:
    """Agree on the end, have the first member write it, and wait until all of that is safe.

    Args:
        is_first: this member writes, and says that the job is done.
    """
    yield Act.COMPARE
    yield Stand("end")
    if is_first:
        # that of the last epoch's end, or another: who began it may have died
        yield Act.WRITE
        yield Act.COMPLETE
    yield Act.AWAIT_DISMISSAL
