"""The board on which workers of one host meet without their agent: what its notes come to. Pure.

A board is a list of notes in one order that all see: the members' arrivals, and the agent's words
between them. A note is there or not, even if its writer dies. So all who read as far come to the same:
a point is passed with the note of the last member that stands there, and a step counts with that
note. Nothing counts behind a seal.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

import msgspec

from brim.coordination.job.barrier import COMMIT, Point
from brim.errors import ProtocolError

PHASES = ("blocks", "summed", COMMIT)  # points of every step, at which nothing is handed round


class NoteKind(enum.IntEnum):
    """The kinds of notes."""

    ARRIVE = 1  # a member stands at a point
    HOLD = 2  # the next commit is the round's last
    SEAL = 3  # nothing counts behind it: the agent keeps the barriers of the round from here on
    RECORDED = 4  # the agent has on record all that counts up to this step


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """One note.

    Args:
        generation: of the board: one of another is void.
        member: the rank of the member that wrote it; 0 for the agent.
        step: committed steps before the point; of RECORDED the number of the step.
        phase: of the point.
        time: when, in seconds by the host's monotonic clock.
        report: of a commit; empty where the reader did not ask for it.
    """

    kind: NoteKind
    generation: int
    member: int = 0
    step: int = 0
    phase: str = ""
    time: float = 0.0
    report: bytes = b""


class CountedStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step that counts.

    Args:
        step: its number, from 1.
        time: when, by the host's monotonic clock.
        reports: of the members, in rank order.
        is_last: it is the round's last.
    """

    step: int
    time: float
    reports: tuple[bytes, ...]
    is_last: bool


@dataclass(slots=True, kw_only=True)
class Board:
    """The notes of one generation, as far as they were read.

    Args:
        generation: its number; of those of one agent the later is the higher.
        members: ranks that meet here.

    Attributes:
        arrived: the notes of members that stand at `point`, by rank.
        point: where members stand, or None where none does.
        passed: the last point that all have passed.
        last: the rank whose note let them.
        is_sealed: nothing counts any more.
        is_replaced: another board is there: the reader has no part in the round any more.
        counted: steps that count, and are not known to be on record.

    >>> board = Board(generation=1, members=2)
    >>> for rank in range(2):
    ...     board.take(Note(kind=NoteKind.ARRIVE, generation=1, member=rank, phase="commit"))
    >>> board.has_passed(Point(0, "commit")), board.last, len(board.counted)
    (True, 1, 1)
    """

    generation: int
    members: int
    arrived: dict[int, Note] = field(default_factory=dict)
    point: Point | None = None
    passed: Point | None = None
    last: int = -1
    is_sealed: bool = False
    is_replaced: bool = False
    is_over: bool = False  # the last step that counts is the round's last
    counted: list[CountedStep] = field(default_factory=list)
    _hold: bool = False

    def take(self, note: Note) -> None:
        """Read the next note.

        Raises:
            ProtocolError: nobody can have written it.
        """
        self.is_replaced |= note.generation > self.generation
        if self.is_sealed or note.generation != self.generation:
            return  # one that left the round may write late
        match note.kind:
            case NoteKind.ARRIVE:
                self._arrive(note)
            case NoteKind.HOLD:
                self._hold = True
            case NoteKind.SEAL:
                self.is_sealed = True
            case NoteKind.RECORDED:
                self.counted = [step for step in self.counted if step.step > note.step]

    def _arrive(self, note: Note) -> None:
        if note.member >= self.members or note.member in self.arrived or self.is_over:
            raise ProtocolError(
                f"rank {note.member} cannot stand at {note.phase}, step {note.step}"
            )
        point = Point(note.step, note.phase)
        self.arrived[note.member] = note
        if self.point is None:
            self.point = point
        if point != self.point:  # the hub of the agent says what is wrong
            self.is_sealed = True
            return
        if len(self.arrived) == self.members:
            self._pass(point, note)

    def _pass(self, point: Point, note: Note) -> None:
        if point.phase == COMMIT:
            self.is_over = self._hold
            reports = tuple(self.arrived[rank].report for rank in range(self.members))
            step = CountedStep(
                step=point.step + 1, time=note.time, reports=reports, is_last=self.is_over
            )
            self.counted.append(step)
        self.passed, self.last = point, note.member
        self.arrived, self.point = {}, None

    def has_passed(self, point: Point) -> bool:
        """Return whether all stood at a point, at which the reader stands."""
        return self.passed == point

    def is_handed_over(self, rank: int) -> bool:
        """Return whether an arrival came before the seal, and is the agent's now."""
        return self.is_sealed and rank in self.arrived
