"""The agent's end of a session: the masters it obeys, and when it gives up."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import subprocess
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest

import recorded_run
from brim.agent.conversation import Conversation, Displaced
from brim.agent.keeper import Keeper
from brim.errors import EnvironmentFault
from brim.host.clock import VirtualClock, monotonic
from brim.wire import messages as wire
from brim.wire.control import AgentStream

HOLDS = [wire.HoldRound(round=number) for number in range(1, 6)]


class Script:
    """A stream on which a master says these words, and then the stream breaks,
    or hangs.

    Args:
        is_there: a master listens at all.
        late: seconds before each word.
    """

    def __init__(
        self,
        *parcels: wire.FromMaster,
        hangs: bool = False,
        is_there: bool = True,
        late: float = 0.001,
    ) -> None:
        self._parcels, self._hangs = parcels, hangs
        self._is_there, self._late = is_there, late
        self.heard: list[wire.FromAgent] = []

    async def reach(self) -> None:
        if not self._is_there:
            await asyncio.sleep(3600)

    async def send(self, parcel: wire.FromAgent) -> None:
        self.heard.append(parcel)

    async def messages(self) -> AsyncIterator[wire.FromMaster]:
        for parcel in self._parcels:
            await asyncio.sleep(self._late)
            yield parcel
        if self._hangs:
            await asyncio.sleep(3600)

    async def finish(self) -> None:
        pass

    async def close(self) -> None:
        pass


class Kept:
    """Stands for a keeper."""

    def __init__(self) -> None:
        self.killed = 0
        self.ended = asyncio.Event()

    def on_first_word(self) -> None:
        pass

    def mind_silence(self) -> None:
        self.killed += 1


class Master:
    """Stands for the process of a master, which lives until it is killed."""

    pid = 1

    def __init__(self) -> None:
        self.returncode: int | None = None
        self._dead = threading.Event()

    def wait(self, timeout: float | None = None) -> int:
        if not self._dead.wait(timeout):
            raise subprocess.TimeoutExpired("a master", timeout or 0.0)
        return -9

    def kill(self) -> None:
        self.returncode = -9
        self._dead.set()


def life(number: int, *, received: int = 0) -> wire.FromMaster:
    spec = recorded_run.spec()
    return wire.FromMaster(
        0, received, wire.Configure(spec=spec, run_dir="r", life=number, heard=received)
    )


def says(number: int, message: wire.MasterMessage) -> wire.FromMaster:
    return wire.FromMaster(number, 0, message)


def converse(
    *scripts: Script,
    keeper: Kept | None = None,
    clock: VirtualClock | None = None,
    limit: int = 99,
    calls: int = 1,
) -> list[wire.MasterMessage]:
    """The commands of these streams that an agent obeys, one after the other."""
    scripts_left = list(scripts)
    obeyed: list[wire.MasterMessage] = []

    async def listen() -> None:
        conversation = Conversation(
            "a",
            dial=lambda: cast(AgentStream, scripts_left.pop(0)),
            keeper=cast(Keeper, keeper),
            clock=clock or VirtualClock(1.0),
            calls=calls,
        )
        conversation.post(wire.Warn(message="first"))
        conversation.post(wire.Warn(message="second"))
        async for message in conversation.messages():
            if not isinstance(message, wire.Configure):
                obeyed.append(message)
            if len(obeyed) == limit:
                return

    with pytest.raises(IndexError) if limit == 99 else contextlib.nullcontext():
        asyncio.run(listen())
    return obeyed


def test_a_message_that_comes_again_is_obeyed_once() -> None:
    first = Script(life(1), says(1, HOLDS[0]), says(2, HOLDS[1]))
    second = Script(life(2), says(2, HOLDS[1]), says(3, HOLDS[2]))
    assert converse(first, second) == HOLDS[:3]
    join = second.heard[0].message
    assert isinstance(join, wire.JoinJob)
    assert (join.life, join.heard) == (1, 2)


def test_what_the_master_has_is_not_said_again() -> None:
    first = Script(life(1), says(1, HOLDS[0]))
    second = Script(life(2, received=1), says(2, HOLDS[1]), says(3, HOLDS[2]), hangs=True)
    converse(first, second, limit=3)
    assert [parcel.number for parcel in first.heard] == [0, 1, 2]
    assert [parcel.number for parcel in second.heard] == [0, 2]


def test_a_replaced_master_is_not_obeyed() -> None:
    """Two masters can never both be obeyed: an agent that has heard a later life hears no earlier."""
    later_master = Script(life(3), says(1, HOLDS[0]))
    earlier_master = Script(life(2), says(2, HOLDS[1]), says(3, HOLDS[2]))
    same_life = Script(life(3), says(2, HOLDS[3]))
    assert converse(later_master, earlier_master, same_life) == [HOLDS[0], HOLDS[3]]


def test_a_lost_agent_says_so() -> None:
    refused = wire.FromMaster(0, 0, wire.Refused(reason="it was away for too long", lost=True))
    with pytest.raises(Displaced, match="away for too long"):
        converse(Script(life(1)), Script(refused), limit=1)
    with pytest.raises(EnvironmentFault, match="the master refused this agent: no"):
        converse(Script(wire.FromMaster(0, 0, wire.Refused(reason="no"))), limit=1)


def test_a_silent_master_is_killed_by_its_keeper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brim.agent.conversation._SILENCE", 0.5)
    keeper = Kept()
    silent = Script(life(1), says(1, HOLDS[0]), hangs=True)
    assert converse(silent, Script(life(2), says(2, HOLDS[1])), keeper=keeper) == HOLDS[:2]
    assert keeper.killed == 1


def test_an_agent_that_stood_still_kills_no_master(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brim.agent.conversation._SILENCE", 0.1)
    keeper, clock = Kept(), VirtualClock(1.0)

    class Paused(Script):
        async def messages(self) -> AsyncIterator[wire.FromMaster]:
            async for parcel in super().messages():
                yield parcel
                clock.advance(60.0)

    scripts = [Paused(life(1), hangs=True), Script(life(1), says(1, HOLDS[0]))]
    found = converse(*scripts, keeper=keeper, clock=clock, limit=1)
    assert (found, keeper.killed) == ([HOLDS[0]], 0)


@pytest.fixture
def slow_master(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Master, Keeper]:
    """A master that is alive and says nothing yet, and its keeper."""
    monkeypatch.setattr("brim.agent.conversation._SILENCE", 0.01)
    (tmp_path / "logs").mkdir()
    master = Master()
    return master, Keeper([], tmp_path, lambda *_, **__: master)


def test_a_kept_master_may_start_slowly(
    slow_master: tuple[Master, Keeper],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    master, keeper = slow_master
    clock, calls = VirtualClock(1.0), itertools.count()

    def dial() -> AgentStream:
        clock.advance(10.0)
        if next(calls) < 10:
            return cast(AgentStream, Script(hangs=True))
        # Its words are no silence, however long this process is held up between them.
        monkeypatch.setattr("brim.agent.conversation._SILENCE", 60.0)
        return cast(AgentStream, Script(life(1), says(1, HOLDS[0])))

    async def listen() -> None:
        conversation = Conversation("a", dial=dial, keeper=keeper, clock=clock)
        async for message in conversation.messages():
            if message == HOLDS[0]:
                return

    asyncio.run(listen())
    assert master.returncode is None
    assert "the master has been starting for" in capfd.readouterr().err


def test_a_kept_master_that_falls_silent_is_killed(slow_master: tuple[Master, Keeper]) -> None:
    master, keeper = slow_master
    keeper.mind_silence()
    assert master.returncode is None
    keeper.on_first_word()
    keeper.mind_silence()
    assert master.returncode == -9


def test_kept_master_that_does_nothing_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it takes, one that computes is starting."""
    clock, work = VirtualClock(1.0), itertools.count()
    monkeypatch.setattr("brim.agent.keeper.monotonic", clock.now)
    monkeypatch.setattr("brim.agent.keeper.work_of", lambda _: str(next(work)))
    (tmp_path / "logs").mkdir()
    master = Master()
    keeper = Keeper([], tmp_path, lambda *_, **__: master)
    for _ in range(10):
        clock.advance(200.0)
        keeper.mind_silence()
        assert master.returncode is None
    monkeypatch.setattr("brim.agent.keeper.work_of", lambda _: "9")
    for seconds, status in ((10.0, None), (290.0, None), (20.0, -9)):
        clock.advance(seconds)
        keeper.mind_silence()
        assert master.returncode == status


def test_dead_addresses_are_left_and_far_masters_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("brim.agent.conversation._TO_REACH", 0.02)
    monkeypatch.setattr("brim.agent.conversation._TO_REACH_AT_LAST", 0.02)
    dead, far = Script(is_there=False), Script(life(1), says(1, HOLDS[0]), late=0.2)
    started = monotonic()
    assert converse(dead, far, limit=1, calls=2) == HOLDS[:1]
    assert monotonic() - started < 60.0


def test_the_masters_keeper_stays_until_all_heard() -> None:
    """The master dies with an end that another host has not heard: its heir has to know that this
    one has.
    """
    keeper = Kept()
    ending = Script(life(1), says(1, wire.EndRun(well=True)))
    heir = Script(life(2), hangs=True)
    streams_left = [ending, heir]

    async def listen() -> None:
        conversation = Conversation(
            "a",
            dial=lambda: cast(AgentStream, streams_left.pop(0)),
            keeper=cast(Keeper, keeper),
            clock=VirtualClock(1.0),
        )
        messages = conversation.messages()
        async for message in messages:
            if isinstance(message, wire.EndRun):
                break
        parting = asyncio.create_task(conversation.part(messages))
        while not heir.heard:
            await asyncio.sleep(0.001)
        assert not parting.done()
        keeper.ended.set()
        await parting

    async def in_time() -> None:
        await asyncio.wait_for(listen(), 10)

    asyncio.run(in_time())
    (join, *_) = heir.heard
    assert isinstance(join.message, wire.JoinJob)
    assert join.message.heard == 1
