"""The board in memory: what one process writes there another reads, and nothing else is believed."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from brim.coordination.job.board import Note, NoteKind
from brim.errors import ProtocolError
from brim.wire import board_file
from brim.wire.board_file import BoardFile, open_board, open_wakers

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
