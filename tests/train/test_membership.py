"""A worker that is alone in its round goes on behind a commit, and takes in its answer before it says anything else."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator

import pytest
import torch

from brim.coordination.membership import Member, World
from brim.domain.job import JobSpec, WorkerRange
from brim.errors import ProtocolError
from brim.train import membership
from brim.train.context import WorkerContext
from brim.train.layout import Layout
from brim.train.membership import Membership, RoundChanged
from brim.wire.frames import FrameBuffer, frame
from brim.wire.messages import Arrive, Codec, InstallRound, Released, WorkerBound, WorkerMessage, WriteNow


class Calm:
    """No signal ever comes."""

    asked, wakeup = False, None


class Nothing:
    """A job's state that is nowhere."""

    committed = 0
    state: Nothing

    def __init__(self) -> None:
        self.state = self

    def restore(self, recorded: int | None = None) -> tuple[str, list[str]]:
        return "", []

    def permit(self, answer: object) -> None: ...

    def now(self) -> None: ...

    def get(self) -> None: ...

    def put(self, tree: object) -> None: ...


class Agent:
    """The other end of a worker's socket."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        end.settimeout(5.0)
        self._frames = FrameBuffer()
        self._encode: Codec[WorkerBound] = Codec(WorkerBound)
        self._decode: Codec[WorkerMessage] = Codec(WorkerMessage)

    def say(self, message: WorkerBound) -> None:
        self._end.sendall(frame(self._encode.encode(message)))

    def answer(self, step: int, *, hold: bool = False) -> None:
        self.say(Released(round=1, step=step, phase="commit", hold=hold, payloads=[]))

    def arrivals(self) -> list[int]:
        """The steps whose commits have come by now."""
        self._end.setblocking(False)
        try:
            data = self._end.recv(1 << 20)
        except BlockingIOError:
            data = b""
        heard = [self._decode.decode(each) for each in self._frames.feed(data)]
        return [message.step for message in heard if isinstance(message, Arrive)]


def world(round: int) -> World:
    alone = (Member(worker="w1", agent="a1", address="127.0.0.1:1"),)
    return World(round=round, members=alone, donors={}, restore=True, shares=(8,))


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Membership, Agent]]:
    monkeypatch.setattr(membership, "LeaveRequest", Calm)
    monkeypatch.setattr(membership, "beat_forever", lambda *_, **__: None)
    monkeypatch.setattr(membership, "close_in_children", lambda _: None)
    ours, theirs = socket.socketpair()
    context = WorkerContext(
        worker="w1", spec=JobSpec(parameters={}, workers=WorkerRange(minimum=1, maximum=1)), run_dir="",
        host="127.0.0.1", secret=b"", link=ours, memory=os.open(os.devnull, os.O_RDONLY), start_method="alone",
    )  # fmt: skip
    worker, agent = Membership(context), Agent(theirs)
    worker.join(Layout([torch.zeros(1)]), None)
    agent.say(InstallRound(world=world(1)))
    worker.next_round(Nothing())
    assert agent.arrivals() == []
    with ours, theirs, contextlib.closing(worker._listener):
        yield worker, agent
    os.close(context.memory)


def test_a_worker_alone_goes_on_before_the_answer_and_has_one_commit_under_way(
    pair: tuple[Membership, Agent],
) -> None:
    worker, agent = pair
    worker.commit(0, b"")
    worker.settle(within=0.0)
    assert agent.arrivals() == [0]
    agent.answer(0)
    worker.commit(1, b"")
    assert agent.arrivals() == [1]


def test_the_answer_that_a_commit_was_the_last_ends_the_round_before_the_next_commit(
    pair: tuple[Membership, Agent],
) -> None:
    worker, agent = pair
    worker.commit(0, b"")
    agent.answer(0, hold=True)
    with pytest.raises(RoundChanged):
        worker.commit(1, b"")
    assert agent.arrivals() == [0]
    agent.say(InstallRound(world=world(2)))
    worker.next_round(Nothing())
    worker.commit(1, b"")
    assert agent.arrivals() == [1]


@pytest.mark.parametrize("look", ["settle", "poll"])
def test_the_answer_is_taken_in_wherever_a_worker_looks(pair: tuple[Membership, Agent], look: str) -> None:
    worker, agent = pair
    worker.commit(0, b"")
    agent.answer(0, hold=True)
    with pytest.raises(RoundChanged):
        getattr(worker, look)()


@pytest.mark.parametrize("message", [InstallRound(world=world(2)), WriteNow()])
def test_a_worker_whose_step_may_not_count_gives_its_state_to_nobody(
    pair: tuple[Membership, Agent], message: WorkerBound
) -> None:
    worker, agent = pair
    worker.commit(0, b"")
    agent.say(message)
    with pytest.raises(ProtocolError, match="before the answer to the commit of step 1"):
        worker.settle()
