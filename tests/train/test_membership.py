"""A worker alone in its round goes on behind a commit: it tells of short steps together, and has
one answer due.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from brim.coordination.job.membership import Member, World
from brim.coordination.job.participant import RoundChanged
from brim.domain.job import JobSpec, WorkerRange
from brim.errors import EnvironmentFault, ProtocolError
from brim.storage import heir
from brim.storage.journal import Journal
from brim.train import failures, membership
from brim.train.context import WorkerContext
from brim.train.exchange.layout import Layout
from brim.train.membership import Membership
from brim.wire.frames import FrameBuffer, frame
from brim.wire.messages import (
    Arrive,
    Beat,
    Codec,
    CommitRecord,
    Commits,
    Evaluated,
    FromWorker,
    InstallRound,
    JobFailed,
    Logged,
    Released,
    Unheard,
    Warn,
    WorkerBound,
    WorkerMessage,
    WriteNow,
)

SAID = Unheard(session="s", number=1, message=Warn(message="of the agent"))


class Calm:
    """No signal ever comes."""

    is_requested, wakeup = False, None


class Nothing:
    """A job's state that is nowhere."""

    committed = 0
    state: Nothing

    def __init__(self) -> None:
        self.state = self
        self.left = False

    def catch_up(self, recorded: int) -> None: ...

    def restore(self, recorded: int | None = None) -> tuple[str, list[str]]:
        return "", []

    def permit(self, answer: object) -> None: ...

    def now(self, *, ahead: bool = False) -> None: ...

    def leave(self) -> None:
        self.left = True

    def get(self) -> None: ...

    def put(self, tree: object) -> None: ...

    def frozen(self) -> dict[str, torch.Tensor]:
        return {}


class Agent:
    """The other end of a worker's socket."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        end.settimeout(5.0)
        self._frames = FrameBuffer()
        self._encode: Codec[WorkerBound] = Codec(WorkerBound)
        self._decode: Codec[WorkerMessage] = Codec(WorkerMessage)
        self._unheard: Codec[Unheard] = Codec(Unheard)

    def say(self, message: WorkerBound) -> None:
        self._end.sendall(frame(self._encode.encode(message)))

    def answer(self, step: int, *, hold: bool = False) -> None:
        self.say(Released(round=1, step=step, phase="commit", hold=hold, payloads=[]))

    def die(self, run_dir: Path, *, is_left: bool = True) -> None:
        """Its file stays, with its messages."""
        journal = Journal(run_dir / heir.UNHEARD)
        if is_left:
            journal.append(self._unheard.encode(SAID))
        journal.close()
        self._end.close()

    def heard(self) -> list[WorkerMessage]:
        """The messages that have come by now."""
        self._end.setblocking(False)
        try:
            data = self._end.recv(1 << 20)
        except BlockingIOError:
            data = b""
        return [self._decode.decode(frame_bytes) for frame_bytes in self._frames.feed(data)]

    def arrivals(self) -> list[list[int]]:
        """The steps of the commits that have come by now."""
        arrivals = [message for message in self.heard() if isinstance(message, Arrive)]
        assert all(arrival.step == arrival.made[-1].step for arrival in arrivals)
        return [[step_made.step for step_made in arrival.made] for arrival in arrivals]


def world(round: int) -> World:
    lone_members = (Member(worker="w1", agent="a1", address="127.0.0.1:1"),)
    return World(round=round, members=lone_members, donors={}, restore=True, shares=(8,))


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[tuple[Membership, Agent]]:
    monkeypatch.setenv(heir.SUCCESSION, "one-start")
    monkeypatch.setattr("brim.train.state.heir.outlive_parent", lambda: None)
    monkeypatch.setattr("brim.train.state.heir.die_with_parent", lambda _: None)
    monkeypatch.setattr(membership, "LeaveRequest", Calm)
    monkeypatch.setattr(membership, "beat_forever", lambda *_, **__: None)
    monkeypatch.setattr(membership, "give_notice", os.close)
    monkeypatch.setattr(membership, "close_in_children", lambda _: None)
    worker_end, agent_end = socket.socketpair()
    context = WorkerContext(
        place=0,
        worker="w1", spec=JobSpec(parameters={}, workers=WorkerRange(minimum=1, maximum=1)), run_dir=str(tmp_path),
        host="127.0.0.1", secret=b"", link=worker_end, start_method="alone",
        memory=os.open(os.devnull, os.O_RDONLY), tables=os.open(os.devnull, os.O_RDONLY),
        notice=os.open(os.devnull, os.O_WRONLY),
    )  # fmt: skip
    worker, agent = Membership(context), Agent(agent_end)
    worker.join(Layout([torch.zeros(1)]), None)
    agent.say(InstallRound(world=world(1)))
    worker.next_round(Nothing())
    assert agent.arrivals() == []
    with worker_end, agent_end, contextlib.closing(worker._listener):
        yield worker, agent
    os.close(context.memory)
    os.close(context.tables)


def test_lone_workers_pipeline_one_commit(
    pair: tuple[Membership, Agent],
) -> None:
    worker, agent = pair
    worker.commit(0, b"")
    worker.settle(timeout=0.0)
    assert agent.arrivals() == [[0]]
    agent.answer(0)
    long_ago(worker)
    worker.commit(1, b"")
    assert agent.arrivals() == [[1]]


def test_overlapped_work_follows_the_arrival(
    pair: tuple[Membership, Agent],
) -> None:
    worker, agent = pair
    members = tuple(Member(worker=w, agent="a1", address="127.0.0.1:1") for w in ("w1", "w2"))
    worker._participant.world = World(
        round=1, members=members, donors={}, restore=True, shares=(4, 4)
    )
    seen: list[list[int]] = []

    def look_ahead() -> None:
        seen.append([message.step for message in agent.heard() if isinstance(message, Arrive)])
        agent.say(Released(round=1, step=0, phase="commit", hold=True, payloads=[]))

    assert worker.commit(0, b"", overlap=look_ahead)
    assert seen == [[0]]


def long_ago(worker: Membership) -> None:
    """Let it be long since the last telling, as it is where steps are."""
    worker._participant._told_at = 0.0


def fails(worker: Membership) -> None:
    failures.report(worker._context, ZeroDivisionError("of the user"))


@pytest.mark.parametrize(
    ("say", "next_type"),
    [
        (lambda worker: worker.tell(Evaluated(epoch=1, step=3, metrics={})), Evaluated),
        (lambda worker: worker._beat(), Beat),
        (fails, JobFailed),
    ],
    ids=["a message", "a heartbeat", "a failure"],
)
def test_short_steps_are_reported_together(
    pair: tuple[Membership, Agent], say: Callable[[Membership], None], next_type: type
) -> None:
    worker, agent = pair
    worker.commit(0, b"")
    agent.answer(0)
    worker._participant.company = (
        3600.0  # seconds: none of these steps is long, however slow the host
    )
    for step in (1, 2):
        worker.commit(step, b"")
    assert agent.arrivals() == [[0]]
    say(worker)
    arrival, next_to_it = agent.heard()
    assert isinstance(arrival, Arrive)
    assert [step_made.step for step_made in arrival.made] == [1, 2]
    assert isinstance(next_to_it, next_type)


def test_grouped_steps_are_answered_before_more(
    pair: tuple[Membership, Agent],
) -> None:
    worker, agent = pair
    worker.commit(0, b"")
    agent.answer(0)
    worker._participant.company = 3600.0
    for step in (1, 2):
        worker.commit(step, b"")
    worker._beat()
    agent.answer(2, hold=True)
    with pytest.raises(RoundChanged):
        worker.commit(3, b"")
    assert [step_made for step_made in worker._participant._steps_made if step_made.step == 3] == []


def test_a_last_commits_answer_ends_the_round(
    pair: tuple[Membership, Agent],
) -> None:
    worker, agent = pair
    worker.commit(0, b"")
    agent.answer(0, hold=True)
    with pytest.raises(RoundChanged):
        worker.commit(1, b"")
    assert agent.arrivals() == [[0]]
    agent.say(InstallRound(world=world(2)))
    worker.next_round(Nothing())
    long_ago(worker)
    worker.commit(1, b"")
    assert agent.arrivals() == [[1]]


@pytest.mark.parametrize("look", ["settle", "poll"])
def test_answers_are_taken_at_any_look(pair: tuple[Membership, Agent], look: str) -> None:
    worker, agent = pair
    worker.commit(0, b"")
    agent.answer(0, hold=True)
    with pytest.raises(RoundChanged):
        getattr(worker, look)()


def test_unclaimed_streams_end_with_their_round(
    pair: tuple[Membership, Agent],
) -> None:
    worker, agent = pair
    old, old_end = socket.socketpair()
    new, new_end = socket.socketpair()
    worker._listener._waiting |= {"round 1 state for w9": old, "round 2 state for w9": new}
    agent.say(InstallRound(world=world(2)))
    worker.next_round(Nothing())
    with old_end, new_end:
        assert old_end.recv(1) == b""
        assert list(worker._listener._waiting) == ["round 2 state for w9"]


@pytest.mark.parametrize("message", [InstallRound(world=world(2)), WriteNow()])
@pytest.mark.parametrize("is_told", [True, False])
def test_uncertain_steps_are_not_given(
    pair: tuple[Membership, Agent], message: WorkerBound, is_told: bool
) -> None:
    worker, agent = pair
    worker._participant.company = 0.0 if is_told else float("inf")
    worker.commit(0, b"")
    agent.say(message)
    with pytest.raises(ProtocolError, match="before the answer to the commit of step 1"):
        worker.poll()


def left_in(run_dir: Path, worker: Membership) -> list[Unheard]:
    """The content of the agent's file, once the worker has ended."""
    assert worker._inheritance._journal is not None
    worker._inheritance._journal.close()
    codec: Codec[Unheard] = Codec(Unheard)
    return [codec.decode(entry) for entry in Journal(run_dir / heir.UNHEARD).written]


def logged(step: int) -> Logged:
    return Logged(epoch=0, step=step, values={"x": float(step)})


@pytest.mark.parametrize("is_answered", [True, False])
def test_heirs_leave_unheard_messages_then_state(
    pair: tuple[Membership, Agent], tmp_path: Path, is_answered: bool
) -> None:
    worker, agent = pair
    assert heir.heir_of(tmp_path, "one-start") == os.getpid()
    assert heir.heir_of(tmp_path, "another start") == 0
    worker._participant.company = float("inf")
    for step in range(4):
        worker.commit(step, b"report")
        worker.tell(logged(step + 1))
        agent.answer(step)
    worker.commit(4, b"told")
    worker._tell_made()
    if is_answered:
        agent.answer(4)
        worker.commit(5, b"made")
    agent.die(tmp_path)
    with pytest.raises(RoundChanged):
        worker.settle()
    state = Nothing()
    with pytest.raises(SystemExit):
        worker.next_round(state)
    assert state.left
    first_message, *words = left_in(tmp_path, worker)
    assert first_message == SAID
    assert [(word.session, word.number) for word in words] == [("", 0)] * 3
    *messages_before, commit = (word.message for word in words)
    assert messages_before == [FromWorker(worker="w1", message=logged(step)) for step in (3, 4)]
    assert isinstance(commit, Commits)
    (record,) = commit.records
    step, report = (6, b"made") if is_answered else (5, b"told")
    assert record == CommitRecord(round=1, step=step, at=record.at, payloads=[report])


def test_answered_commits_are_not_left_again(
    pair: tuple[Membership, Agent], tmp_path: Path
) -> None:
    worker, agent = pair
    worker.commit(0, b"")
    agent.answer(0)
    agent.die(tmp_path)
    with pytest.raises(RoundChanged):
        worker.poll()
    with pytest.raises(SystemExit):
        worker.next_round(Nothing())
    assert left_in(tmp_path, worker) == [SAID]


def test_permission_waits_end_with_the_agent(
    pair: tuple[Membership, Agent], tmp_path: Path
) -> None:
    worker, agent = pair
    agent.die(tmp_path)
    with pytest.raises(RoundChanged):
        worker.listen(0.01)


@pytest.mark.parametrize("reason", ["the agent lives", "its file is empty"])
def test_heirs_leave_no_unrecorded_state(
    pair: tuple[Membership, Agent], tmp_path: Path, reason: str
) -> None:
    worker, agent = pair
    agent.die(tmp_path, is_left=reason == "the agent lives")
    journal_held = Journal(tmp_path / heir.UNHEARD) if reason == "the agent lives" else None
    state = Nothing()
    with pytest.raises(RoundChanged):
        worker.poll()
    with pytest.raises(EnvironmentFault):
        worker.next_round(state)
    assert not state.left
    if journal_held:
        journal_held.close()


def test_non_heirs_end_with_their_agent(pair: tuple[Membership, Agent], tmp_path: Path) -> None:
    worker, agent = pair
    worker._inheritance.settle(on_me=False)
    worker._participant.is_heir = False
    agent.die(tmp_path)
    with pytest.raises(EnvironmentFault, match="the agent of this worker is gone"):
        worker.poll()
