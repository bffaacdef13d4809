"""What notes on a board come to, for members, their agent and its heir."""

from __future__ import annotations

import pytest

from brim.coordination.job.barrier import Point
from brim.coordination.job.board import Board, Note, NoteKind
from brim.coordination.job.hub import Count, Expect, Hub, Open, Stands, Write
from brim.coordination.job.membership import Member, World
from brim.coordination.job.participant import LeaveState, Look, Participant
from brim.errors import InternalError, ProtocolError
from brim.wire.messages import Arrive, Commits, InstallRound, Released, ToWorker

MEMBERS = tuple(Member(worker=name, agent="A", address="") for name in ("w1", "w2"))
WORLD = World(round=1, members=MEMBERS, donors={}, restore=True, shares=(2, 2))
HOLD = Note(kind=NoteKind.HOLD, generation=1)
SEAL = Note(kind=NoteKind.SEAL, generation=1)


def stands(member: int, step: int = 1, phase: str = "commit", generation: int = 1) -> Note:
    report = b"r%d" % member
    return Note(
        kind=NoteKind.ARRIVE,
        generation=generation,
        member=member,
        step=step,
        phase=phase,
        time=5.0 + member,
        report=report,
    )


def read(*notes: Note) -> Board:
    board = Board(generation=1, members=2)
    for note in notes:
        board.take(note)
    return board


def test_the_last_arrival_lets_a_step_count() -> None:
    assert read(stands(0)).counted == []
    board = read(stands(1), stands(0))
    assert (board.last, board.counted[0].step, board.counted[0].reports) == (0, 2, (b"r0", b"r1"))
    assert board.counted[0].time == 5.0
    assert board.has_passed(Point(1, "commit"))


def test_nothing_counts_behind_a_seal() -> None:
    board = read(stands(0), SEAL, stands(1))
    assert board.counted == []
    assert board.is_handed_over(0)
    assert not board.is_handed_over(1)


def test_a_hold_ends_the_next_commit() -> None:
    board = read(stands(0), HOLD, stands(1))
    assert board.counted[0].is_last
    with pytest.raises(ProtocolError, match="cannot stand"):
        board.take(stands(0, 2))


def test_recorded_steps_are_not_left_twice() -> None:
    recorded = Note(kind=NoteKind.RECORDED, generation=1, step=2)
    board = read(stands(0), stands(1), recorded, stands(0, 2), stands(1, 2))
    assert [step.step for step in board.counted] == [3]


@pytest.mark.parametrize("note", [stands(2), stands(0)], ids=["stranger", "twice"])
def test_impossible_notes_are_errors(note: Note) -> None:
    with pytest.raises(ProtocolError):
        read(stands(0), note)


def test_notes_of_other_boards_count_for_nobody() -> None:
    board = read(stands(0), stands(1, generation=0))
    assert (board.counted, board.is_replaced) == ([], False)
    board.take(stands(1, generation=2))
    assert (board.counted, board.is_replaced) == ([], True)


def hub() -> Hub:
    """Return one whose board is open behind the first step."""
    opened = Hub("A")
    opened.waker = {"w1": 3, "w2": 5}.get
    opened.begin(InstallRound(world=WORLD))
    opened.arrived("w1", Arrive(round=1, step=0, phase="commit"), now=1.0, wall=101.0)
    commands = opened.arrived("w2", Arrive(round=1, step=0, phase="commit"), now=1.0, wall=101.0)
    assert commands[1] == Open(1)
    released = Released(round=1, step=0, phase="commit", hold=False, board=1, wakers=[3, 5])
    assert [c.message for c in commands if isinstance(c, ToWorker)] == [released, released]
    return opened


def test_a_hub_counts_steps_of_its_board() -> None:
    commands = hub().noted([stands(0), stands(1)], now=6.0, wall=106.0)
    (record,) = (command.record for command in commands if isinstance(command, Count))
    assert (record.step, record.at, record.payloads) == (2, 106.0, [b"r0", b"r1"])
    recorded = Write(Note(kind=NoteKind.RECORDED, generation=1, step=2))
    assert commands[1] == recorded
    assert [command.worker for command in commands if isinstance(command, Expect)] == ["w1", "w2"]


def test_a_hub_waits_for_who_does_not_come() -> None:
    opened = hub()
    opened.noted([stands(0), stands(1)], now=6.0, wall=106.0)
    assert opened.noted([stands(1, 2, "blocks")], now=7.0, wall=107.0) == [Stands("w2")]


def test_a_seal_hands_arrivals_to_the_hub() -> None:
    opened = hub()
    with pytest.raises(InternalError, match="not sealed"):
        opened.begin(InstallRound(world=WORLD))
    opened.noted([stands(0), SEAL], now=6.0, wall=106.0)
    arrival = Arrive(round=1, step=1, phase="commit", payload=b"late")
    commands = opened.arrived("w2", arrival, now=7.0, wall=107.0)
    assert isinstance(commands[0], Count)
    assert commands[0].record.payloads == [b"r0", b"late"]
    assert not any(isinstance(command, Open) for command in commands)


def test_different_points_are_the_hubs_to_explain() -> None:
    with pytest.raises(ProtocolError, match="stands at"):
        hub().noted([stands(0), stands(1, phase="blocks")], now=6.0, wall=106.0)


def test_an_heir_leaves_unread_steps_of_the_board() -> None:
    worker = Participant("w1")
    worker.world, worker.is_orphan = WORLD, True
    worker._board = Board(generation=1, members=2)
    flow = worker.next_round()
    assert flow.send(None) == Look(1, whole=True)
    assert flow.send([stands(0), stands(1)]) == LeaveState()
    (words,) = worker.last_words(wall_offset=100.0)
    assert isinstance(words, Commits)
    assert (words.records[0].step, words.records[0].at) == (2, 106.0)
