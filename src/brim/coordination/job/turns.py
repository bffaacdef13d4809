"""Turns of asynchronous training: the order in which workers apply batches, and their waits. Pure.

Where training is asynchronous, each worker computes whole batches by itself. It asks for a turn
once it has a batch's gradients; turns are granted one at a time, in the order in which they are
asked for. The commit ends a turn and makes the batch count as the next step. Its answer is held
back while the worker is too far ahead of the slowest that still has batches. A member's death
grants nothing any more: the round is replaced instead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from brim.errors import ProtocolError

TURN = "turn"  # the phase in which a worker waits for its turn


@dataclass(frozen=True, slots=True)
class Granted:
    """A member may apply its batch, to the state after `step` committed steps."""

    member: str
    step: int


@dataclass(frozen=True, slots=True)
class Applied:
    """A batch counts: `step` were committed before it.

    Args:
        hold: everybody waits behind it for the next round.
    """

    member: str
    step: int
    payload: bytes
    hold: bool


@dataclass(frozen=True, slots=True)
class Proceed:
    """A member may go on behind its commit: with its next batch, or, on hold, to the next round."""

    member: str
    step: int
    hold: bool


Answer = Granted | Applied | Proceed


@dataclass(slots=True, kw_only=True)
class Turns:
    """The turns of one hub over all rounds.

    Args:
        ahead: batches that a member may have committed beyond the slowest and still go on.

    >>> turns = Turns(ahead=0)
    >>> turns.begin(1, ["a", "b"])
    >>> turns.ask("b", 1, 7), turns.ask("a", 1, 7)
    ([Granted(member='b', step=7)], [])
    >>> turns.commit("b", 1, 7, b"x")
    [Applied(member='b', step=7, payload=b'x', hold=False), Granted(member='a', step=8)]
    """

    ahead: int
    round: int = 0
    _members: tuple[str, ...] = ()
    _committed: int | None = None  # steps, once the first who asks has said it
    _queue: deque[str] = field(default_factory=deque)
    _holder: str | None = None
    _counts: dict[str, int] = field(default_factory=dict)  # batches of each since all were level
    _resting: set[str] = field(default_factory=set)
    _held_back: dict[str, int] = field(default_factory=dict)  # whose answer waits, and its step
    _hold: bool = False
    _closed: bool = False

    def begin(self, round: int, members: Iterable[str]) -> None:
        """Replace the round; those that waited in the old one wait no more."""
        self.round, self._members, self._committed = round, tuple(members), None
        self._queue.clear()
        self._holder, self._hold, self._closed = None, False, False
        self.level()

    def level(self) -> None:
        """Restart the count: all members stand at one point, behind the last batch of each."""
        self._counts = dict.fromkeys(self._members, 0)
        self._resting.clear()
        self._held_back.clear()

    def hold(self, round: int) -> None:
        """Ask that the next commit of this round be its last; for a past round nothing happens."""
        if round == self.round:
            self._hold = True

    def close(self) -> None:
        """Grant nothing, and commit nothing, any more in this round."""
        self._closed = True

    def lose(self, member: str) -> None:
        """A member is dead.

        Its followers must find the state of the last commit: there are no more of this round.
        """
        if member in self._members:
            self.close()

    def ask(self, member: str, round: int, step: int) -> list[Answer]:
        """A member has a batch's gradients, computed on the state after `step` steps.

        Raises:
            ProtocolError: a stranger, or one that waits for another answer.
        """
        if round != self.round or self._closed:
            return []
        waits = member == self._holder or member in self._queue or member in self._held_back
        if member not in self._members or waits:
            raise ProtocolError(f"{member} cannot ask for a turn in round {round}")
        if self._committed is None:
            self._committed = step
        if step > self._committed:
            raise ProtocolError(f"{member} is at step {step}, the others are at {self._committed}")
        self._queue.append(member)
        return self._grant()

    def commit(self, member: str, round: int, step: int, payload: bytes) -> list[Answer]:
        """A member has applied its batch to the state after `step` steps.

        Raises:
            ProtocolError: it is not its turn, or another state.
        """
        if round != self.round or self._closed:
            return []
        if member != self._holder or step != self._committed:
            raise ProtocolError(f"{member} cannot commit step {step + 1} of round {round}")
        self._holder, self._committed = None, step + 1
        self._counts[member] += 1
        self._closed = self._hold
        applied = Applied(member, step, payload, self._hold)
        if self._hold:
            return [applied, Proceed(member, step, True)]
        self._held_back[member] = step
        return [applied, *self._proceed(), *self._grant()]

    def rest(self, member: str, round: int) -> list[Answer]:
        """A member has no batch any more, until all are level: others do not wait for it."""
        if round != self.round or self._closed:
            return []
        self._resting.add(member)
        return self._proceed()

    def _grant(self) -> list[Answer]:
        if self._holder is not None or not self._queue or self._committed is None:
            return []
        self._holder = self._queue.popleft()
        return [Granted(self._holder, self._committed)]

    def _proceed(self) -> list[Answer]:
        slowest = min(
            (count for member, count in self._counts.items() if member not in self._resting),
            default=None,
        )
        free = [
            member
            for member in self._held_back
            if slowest is None or self._counts[member] - slowest <= self.ahead
        ]
        return [Proceed(member, self._held_back.pop(member), False) for member in free]


@dataclass(frozen=True, slots=True, kw_only=True)
class Allotment:
    """The batches that each member of a round computes.

    Each begins with one, and takes the next in its turn.

    The committer knows how many were taken before: so nothing is kept of it.

    Args:
        free: batches that nobody has applied, ascending.
        members: how many there are.
        base: steps that are committed.

    >>> allotment = Allotment(free=[2, 4, 5], members=2, base=10)
    >>> allotment.first(0), allotment.first(1), allotment.next(10), allotment.next(11)
    (2, 4, 5, None)
    """

    free: Sequence[int]
    members: int
    base: int

    def first(self, rank: int) -> int | None:
        """Return the batch that a rank begins with; None where there is none for it."""
        return self._owner_at(rank)

    def next(self, step: int) -> int | None:
        """Return the next batch of the member that applies one to the state after `step` steps.

        None where none is left.
        """
        return self._owner_at(self.members + step - self.base)

    def _owner_at(self, index: int) -> int | None:
        return self.free[index] if index < len(self.free) else None
