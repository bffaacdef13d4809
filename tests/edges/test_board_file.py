"""The board in memory: what one process writes there another reads, and nothing else is believed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from brim.agent.conversation import Conversation
from brim.agent.loop import Agent, AgentSettings
from brim.agent.workers import Workers
from brim.coordination.job.board import Board, Note, NoteKind
from brim.coordination.job.membership import Member, World
from brim.errors import ProtocolError
from brim.host.clock import VirtualClock
from brim.wire import board_file
from brim.wire.board_file import BoardFile, open_board, open_wakers
from brim.wire.messages import InstallRound

pytestmark = pytest.mark.skipif(not hasattr(os, "eventfd"), reason="this system has no boards")


@pytest.fixture
def descriptors() -> Iterator[list[int]]:
    opened = open_board()
    yield opened
    for descriptor in opened:
        os.close(descriptor)


def arrival(member: int, report: bytes = b"", *, generation: int = 1) -> Note:
    return Note(
        kind=NoteKind.ARRIVE,
        generation=generation,
        member=member,
        step=7,
        phase="commit",
        time=1.5,
        report=report,
    )


def test_notes_are_read_once_in_order(descriptors: list[int]) -> None:
    writer, other, reader = (BoardFile(*descriptors) for _ in range(3))
    assert writer.pin(arrival(0, b"first"))
    assert other.pin(arrival(1, b"second"))
    assert reader.look(1, with_reports=True) == [arrival(0, b"first"), arrival(1, b"second")]
    assert reader.look(1) == []
    assert reader.look(1, whole=True) == [arrival(0), arrival(1)]


def test_a_cleared_board_has_room_again(
    descriptors: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(board_file, "_ROOM", 8)
    agent, writer = BoardFile(*descriptors), BoardFile(*descriptors)
    assert writer.pin(arrival(0, b"12345"))
    assert not writer.pin(arrival(0, b"12345"))
    agent.clear(2)
    assert writer.pin(arrival(0, b"12345", generation=2))
    assert agent.look(2, with_reports=True) == [arrival(0, b"12345", generation=2)]


@pytest.mark.parametrize(
    "content",
    [b"\xff" * 32, b"\x01\x09" + bytes(30), b"\x01\x02" + bytes(26) + b"\xff\xff\xff\x7f"],
    ids=["kind", "phase", "report"],
)
def test_foreign_notes_raise_an_error(descriptors: list[int], content: bytes) -> None:
    os.write(descriptors[0], content)
    with pytest.raises(ProtocolError, match="on the board"):
        BoardFile(*descriptors).look(1, with_reports=True)


def test_a_note_without_its_report_raises(descriptors: list[int]) -> None:
    BoardFile(*descriptors).pin(arrival(0, b"report"))
    os.ftruncate(descriptors[1], 2)
    with pytest.raises(ProtocolError, match="a report is missing"):
        BoardFile(*descriptors).look(1, with_reports=True)


def test_unfinished_notes_are_not_read(descriptors: list[int]) -> None:
    os.write(descriptors[0], bytes(32) + b"\x01")
    assert BoardFile(*descriptors).look(1) == []


def test_systems_without_eventfd_have_no_board(monkeypatch: pytest.MonkeyPatch) -> None:
    assert open_wakers(1) == []
    monkeypatch.delattr(os, "eventfd")
    assert open_wakers(4) == []


class Ending:
    """Workers that are being ended, of which the agent hears meanwhile."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.ended = False

    async def end(self) -> None:
        self.agent._on_end("w1", -9, "signal 9")
        self.ended = True


class Listener:
    """A conversation in which nothing is answered."""

    def post(self, message: object) -> None:
        """Take what an agent says."""


def test_an_open_board_disturbs_no_end(tmp_path: Path) -> None:
    settings = AgentSettings(name="a1", host="", run_dir=tmp_path)
    agent = Agent(settings, cast(Conversation, Listener()), VirtualClock(0.0))
    members = tuple(Member(worker=name, agent="a1", address="") for name in ("w1", "w2"))
    world = World(round=1, members=members, donors={}, restore=True, shares=(1, 1))
    agent._hub.begin(InstallRound(world=world))
    agent._hub.board = Board(generation=1, members=2)
    ending = Ending(agent)
    agent._workers = cast(Workers, ending)
    asyncio.run(agent._clean_up())
    assert ending.ended
