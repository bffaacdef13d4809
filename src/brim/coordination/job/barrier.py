"""A barrier that a hub keeps for its members: it releases all or none. Pure.

One round has one set of members. Members arrive at a point `(step, phase)`; once all stand there
the hub releases them, and that release is the one moment at which a step becomes committed. A
member's death never releases anything: the round is replaced instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from brim.errors import ProtocolError

COMMIT = "commit"  # the phase whose release makes a step official


class Point(msgspec.Struct, frozen=True, order=True):
    """A place in a round where a member can stand.

    Args:
        step: committed steps before this point.
        phase: the members' reason to wait (`blocks`, `commit`, `gather` …).
    """

    step: int
    phase: str


class Release(msgspec.Struct, frozen=True):
    """All members may go on.

    Args:
        hold: stop after this point and wait for the next round (only ever set at `commit`).
        payloads: the members' payloads, in the order of the members.
    """

    round: int
    point: Point
    hold: bool
    payloads: tuple[bytes, ...]


@dataclass(slots=True, kw_only=True)
class Barrier:
    """The barrier of one hub over all rounds.

    >>> barrier = Barrier()
    >>> barrier.begin(1, ["a", "b"])
    >>> barrier.arrive("a", 1, Point(0, "commit"), b"x")
    >>> barrier.arrive("b", 1, Point(0, "commit"), b"y").payloads
    (b'x', b'y')
    """

    round: int = 0
    _members: tuple[str, ...] = ()
    _arrived: dict[str, bytes] = field(default_factory=dict)
    _point: Point | None = None
    _hold: bool = False
    _closed: bool = False

    @property
    def late(self) -> tuple[str, ...]:
        """Members that others wait for; empty where none waits."""
        if not self._arrived:
            return ()
        return tuple(member for member in self._members if member not in self._arrived)

    @property
    def is_holding(self) -> bool:
        """Return whether the next commit of the round is to be its last."""
        return self._hold

    @property
    def is_closed(self) -> bool:
        """Return whether no member is released any more in this round."""
        return self._closed

    def begin(self, round: int, members: Iterable[str]) -> None:
        """Replace the round; those that waited in the old one wait no more."""
        if round <= self.round:
            raise ProtocolError(f"round {round} cannot follow round {self.round}")
        self.round, self._members = round, tuple(members)
        self._arrived, self._point, self._hold, self._closed = {}, None, False, False

    def close(self) -> None:
        """Release no member any more in this round: the members' own state counts."""
        self._closed = True

    def hold(self, round: int) -> None:
        """Ask that the next commit of this round be its last; for a past round nothing happens."""
        if round == self.round:
            self._hold = True

    def arrive(self, member: str, round: int, point: Point, payload: bytes = b"") -> Release | None:
        """A member stands at a point. Arrivals of past rounds are of no effect.

        Raises:
            ProtocolError: a stranger, a second arrival, or a point where the others do not stand.
        """
        if round != self.round or self._closed:
            return None
        if member not in self._members or member in self._arrived:
            raise ProtocolError(f"{member} cannot arrive at {point} of round {round}")
        if self._point is None:
            self._point = point
        if point != self._point:
            raise ProtocolError(_disagreement(member, point, tuple(self._arrived), self._point))
        self._arrived[member] = payload
        if len(self._arrived) < len(self._members):
            return None
        payloads = tuple(map(self._arrived.__getitem__, self._members))
        hold = self._hold and point.phase == COMMIT
        self._arrived, self._point = {}, None
        return Release(round, point, hold, payloads)


def _disagreement(member: str, point: Point, other_members: tuple[str, ...], common: Point) -> str:
    """Say that members do different things.

    >>> print(_disagreement("w1", Point(15, "gather"), ("w2",), Point(15, "agree")))
    w1 called job.evaluate after step 15, and w2 went on to the next step
      hint: call job.evaluate on all workers, not under `if job.rank == 0`
    """
    doing = {
        "gather": "called job.evaluate",
        "end": "came to the end of its loop",
    }
    first, rest = (
        doing.get(point_of.phase, "went on to the next step") for point_of in (point, common)
    )
    if first == rest:
        return f"{member} stands at {point}, and {', '.join(other_members)} at {common}"
    say = f"{member} {first} after step {point.step}, and {', '.join(other_members)} {rest}"
    if "gather" not in (point.phase, common.phase):
        return say
    return f"{say}\n  hint: call job.evaluate on all workers, not under `if job.rank == 0`"
