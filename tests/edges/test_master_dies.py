"""A master may die wherever it writes: the next one goes on as if nothing had happened."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

import recorded_run
from brim.agent.conversation import Conversation
from brim.coordination.job.barrier import COMMIT
from brim.coordination.job.membership import RunOutcome
from brim.domain.job import WorkerRange
from brim.host.clock import VirtualClock
from brim.interfaces import Clock
from brim.master.decisions import Decisions
from brim.master.entries import Asked, Before, Began, Entry, Joined
from brim.master.loop import Master
from brim.master.records import Records
from brim.master.state import State, freeze, thaw
from brim.telemetry.record_files import EVENTS, STEPS
from brim.wire import messages as wire
from brim.wire.control import AgentStream
from edges.test_master import FACTS, REPORT, commit

Line = tuple[str, wire.AgentMessage | None]


def hello(worker: str) -> wire.AgentMessage:
    return wire.FromWorker(worker=worker, message=wire.Hello(address="h:1", layout="", facts=FACTS))


def installed(worker: str, round: int, step: int) -> wire.AgentMessage:
    return wire.FromWorker(worker=worker, message=wire.Installed(round=round, step=step))


def arrival(round: int, step: int) -> wire.AgentMessage:
    return wire.ArriveTogether(round=round, step=step, phase=COMMIT, payloads=[REPORT])


def worker_gone(worker: str, reason: str = "exit status 0") -> wire.AgentMessage:
    return wire.LoseWorker(worker=worker, reason=reason)


def step_made(step: int) -> wire.AgentMessage:
    written = wire.CheckpointMade(
        step=step, path="checkpoints/x", size_bytes=1, seconds=0.1, pause=0.0
    )
    return wire.FromWorker(worker="w1", message=written)


# Two hosts, a step, a loss, a redone step, a stop with a checkpoint: what the agents say; None:
# they join.
STORY: list[Line] = [
    ("A", None),
    ("B", None),
    ("A", hello("w1")),
    ("B", hello("w2")),
    ("A", installed("w1", 1, 0)),
    ("B", installed("w2", 1, 0)),
    ("A", arrival(1, 0)),
    ("B", arrival(1, 0)),
    ("B", worker_gone("w2", "signal 9")),
    ("A", installed("w1", 2, 1)),
    ("A", wire.AskToStop(reason="enough")),
    ("A", commit(2, 2, at=7.0, is_held=True)),
    ("A", wire.FromWorker(worker="w1", message=wire.CheckpointDrafted(step=2))),
    ("A", step_made(2)),
    ("A", wire.FromWorker(worker="w1", message=wire.NowWritten())),
    ("A", worker_gone("w1")),
    ("B", worker_gone("w3")),
]


class Died(BaseException):
    """The master, in the middle of a write."""


class Writes:
    """Stands for `os.pwrite`: lets so many writes pass, does so many bytes of the next (or all but
    so many), and that is the end.
    """

    def __init__(self, *, last: int | None = None, bytes_of_last: int = 0) -> None:
        self._last, self._bytes = last, bytes_of_last
        self._write = os.pwrite
        self.count = 0

    def __call__(self, file: int, data: bytes, place: int) -> int:
        self.count += 1
        if self._last is not None and self.count == self._last + 1:
            self._write(file, data[: self._bytes], place)
            raise Died
        return self._write(file, data, place)


class MortalRecords(Records):
    """Those of a master that may die: its tasks that still run here then, such as one that listens to
    another agent, write nothing more.
    """

    _is_dead = False

    def take(self, decisions: Decisions, entry: Entry) -> None:
        with self._unless_dead():
            super().take(decisions, entry)

    def lament(self, message: str, clock: Clock) -> None:
        with self._unless_dead():
            super().lament(message, clock)

    @contextlib.contextmanager
    def _unless_dead(self) -> Iterator[None]:
        if self._is_dead:
            raise asyncio.CancelledError
        try:
            yield
        except Died:
            self._is_dead = True
            raise


class Stream:
    """A stream to whichever master there is, as an agent has it."""

    def __init__(self, house: House) -> None:
        self._up: asyncio.Queue[wire.FromAgent | None] = asyncio.Queue()
        self._down: asyncio.Queue[wire.FromMaster | None] = asyncio.Queue()
        self._serving = asyncio.create_task(self._serve(house))

    async def reach(self) -> None:
        pass

    async def _serve(self, house: House) -> None:
        try:
            await house.master.converse(self._requests(), self._down.put)
        except Died:
            house.restart()
        except Exception as error:  # noqa: BLE001 - told by the one that waits
            house.broken = error
        finally:
            self._down.put_nowait(None)

    async def _requests(self) -> AsyncIterator[wire.FromAgent]:
        while (parcel := await self._up.get()) is not None:
            yield parcel

    async def send(self, parcel: wire.FromAgent) -> None:
        self._up.put_nowait(parcel)

    async def messages(self) -> AsyncIterator[wire.FromMaster]:
        while (parcel := await self._down.get()) is not None:
            yield parcel

    async def finish(self) -> None:
        self._up.put_nowait(None)
        await self._serving

    async def close(self) -> None:
        self._serving.cancel()
        self._down.put_nowait(None)


class House:
    """A master that is started again when it dies,
    and the real ends of its agents' conversations.
    """

    def __init__(self, directory: Path) -> None:
        self.directory, self.clock = directory, VirtualClock(100.0)
        self.spec = recorded_run.spec(workers=WorkerRange.parse("2"), agents=2, spares=0, faults=())
        self.streams: list[Stream] = []
        self.agents: dict[str, Conversation] = {}
        self.heard: dict[str, list[wire.MasterMessage]] = {}
        self.tasks: list[asyncio.Task[None]] = []
        self.deaths = 0
        self.broken: Exception | None = None
        self.start()

    def start(self) -> None:
        self.records = MortalRecords(self.directory)
        decisions = self.records.open("one", self._begin, self.clock)
        self.decisions, self.master = decisions, Master(decisions, self.records, clock=self.clock)

    def _begin(self, life: int, earlier_life: Before) -> Began:
        return Began(
            at=0.0,
            now=0.0,
            attempt="one",
            life=life,
            spec=self.spec,
            run="run",
            started=0.0,
            before=earlier_life,
        )

    def restart(self) -> None:
        """The master is dead, and with it all streams; another one takes over."""
        self.deaths += 1
        self.records.close()
        streams, self.streams = self.streams, []
        try:
            self.start()
        except Exception as error:  # noqa: BLE001 - told by the one that waits
            self.broken = error
        for stream in streams:
            asyncio.get_running_loop().create_task(stream.close())

    def dial(self) -> AgentStream:
        stream = Stream(self)
        self.streams.append(stream)
        return cast(AgentStream, stream)

    async def tell(self, agent: str, message: wire.AgentMessage | None) -> None:
        """Have an agent say something, or join; returns once a master has taken it."""
        self.clock.advance(1.0)
        if message is None:
            conversation = Conversation(agent, dial=self.dial, keeper=None, clock=self.clock)
            self.agents[agent], self.heard[agent] = conversation, []
            self.tasks.append(asyncio.create_task(self._listen(agent)))
            await self._until(lambda: agent in self.decisions.agents)
            return
        number = 1 + self.decisions.agents[agent].heard
        self.agents[agent].post(message)
        await self._until(lambda: self.decisions.agents[agent].heard == number)

    async def _listen(self, agent: str) -> None:
        messages = self.agents[agent].messages()
        async for message in messages:
            if not isinstance(message, wire.Configure):
                self.heard[agent].append(message)
            if isinstance(message, wire.EndRun):
                await self.agents[agent].part(messages)
                return

    async def _until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                if self.broken is not None:
                    raise self.broken
                await asyncio.sleep(0.001)

    async def live(self) -> None:
        for agent, message in STORY:
            await self.tell(agent, message)
        async with asyncio.timeout(10):
            await self._until(lambda: all(task.done() for task in self.tasks))
            await self.master.see_agents_off()

    def remains(self) -> tuple[Any, ...]:
        """The traces of the run: its records, but for the deaths of masters, and the messages that the
        agents heard.
        """
        lines = (self.directory / EVENTS).read_bytes().splitlines()
        events = [msgspec.json.decode(line) for line in lines]
        events_of_run = [
            event for event in events if "the master died" not in event.get("message", "")
        ]
        return events_of_run, (self.directory / STEPS).read_bytes(), self.heard


def run_to_the_end(directory: Path, writes: Writes) -> House:
    async def live() -> House:
        house = House(directory)
        try:
            await house.live()
        finally:
            house.records.close()
        return house

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "pwrite", writes)
        return asyncio.run(live())


WRITES = 26  # of the story; checked below, so that every one of them is tried


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ...]:
    writes = Writes()
    house = run_to_the_end(tmp_path_factory.mktemp("calm"), writes)
    assert house.master.outcome is RunOutcome.SUSPENDED
    assert [event["step"] for event in house.remains()[0] if event["kind"] == "checkpoint"] == [2]
    assert house.remains()[1].count(b"\n") == 2
    assert writes.count == WRITES
    return house.remains()


@pytest.mark.parametrize("longest", [1 << 30, 1], ids=["journal", "snapshots"])
@pytest.mark.parametrize("bytes_of_last", [0, 7, -3, 10_000])  # -3: within the last line of several
@pytest.mark.parametrize("last", range(WRITES))
def test_a_master_may_die_around_every_write(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    calm: tuple[Any, ...],
    last: int,
    bytes_of_last: int,
    longest: int,
) -> None:
    monkeypatch.setattr("brim.master.records._MAX_JOURNAL_BYTES", longest)
    house = run_to_the_end(tmp_path, Writes(last=last, bytes_of_last=bytes_of_last))
    assert house.deaths == 1
    assert house.master.outcome is RunOutcome.SUSPENDED
    assert house.remains() == calm


def test_a_snapshot_taken_amid_a_kill_is_readable() -> None:
    """Found by chance: a `Signals` among unacknowledged messages was refused as something of another
    origin.
    """
    spec = recorded_run.spec()
    beginning = Began(
        at=0.0, now=0.0, attempt="1", life=1, spec=spec, run="run", started=0.0, before=Before()
    )
    decisions = Decisions(State.after(beginning))
    decisions.take(Joined(at=1.0, now=1.0, agent="a1", session="s", host="h"))
    decisions.take(
        Asked(at=2.0, now=2.0, question=wire.Ask(verb="suspend"))
    )  # its worker still starts
    read = Decisions(thaw(freeze(decisions.state)))
    messages = [message for _, message in read.agents["a1"].outbox.messages_after(0)]
    assert any(isinstance(message, wire.SignalWorker) for message in messages)
