"""Takes calls of agents while a master has no journal yet, and the longest copy from them.

An agent is told nothing that its own copy does not lead to (`master/copying.py`). So the longest
copy of those that agents offer leads to all that any of them was told: they can go on with a master
that goes on from there. An agent that comes later, and was told more, counts as lost, and its
workers with it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from brim.errors import EnvironmentFault, ProtocolError
from brim.interfaces import Clock
from brim.master.loop import Master
from brim.master.state import State
from brim.storage.copies import ReceivedCopy
from brim.storage.received import ReceivedFile, ReceivedFiles
from brim.wire import messages as wire
from brim.wire.control import Reply

# seconds that those agents have to call who keep copies too, from the first that offers one on
_TO_GATHER = 3.0
_POLL_INTERVAL = 0.02  # seconds between two looks at the calls
_BEAT = 0.3  # seconds between two words to an agent that waits
_TO_SEND = 20.0  # seconds without a part of a copy after which its agent is given up


@dataclass(eq=False)
class _Caller:
    """An agent that waits for the master to begin."""

    join: wire.JoinJob
    requests: AsyncIterator[wire.FromAgent]
    reply: Reply
    line: asyncio.Lock = field(default_factory=asyncio.Lock)  # one word at a time


@dataclass(frozen=True, slots=True)
class FoundJournal:
    """The journal that a master goes on from.

    Args:
        agent: whose copy it was; empty where the master's directory had it.
        missing: agents that keep copies and did not call in time.
    """

    agent: str
    missing: int


class FilesLater:
    """The folder of a run's checkpoints, once it is known where that is; see `KeptFolder`."""

    def __init__(self) -> None:
        self.folder: ReceivedFiles | None = None

    @property
    def _received_files(self) -> ReceivedFiles:
        if self.folder is None:
            raise OSError("the master keeps no files, or has not begun yet")
        return self.folder

    def names(self) -> dict[str, int]:
        return self._received_files.names()

    def open(self, name: str) -> tuple[int, Iterator[bytes]]:
        return self._received_files.open(name)

    def draft(self, name: str) -> ReceivedFile:
        return self._received_files.draft(name)

    def remove(self, name: str) -> None:
        self._received_files.remove(name)


class Entrance:
    """Takes calls for a master that has not begun.

    Args:
        run_dir: the directory that it will write.
        clock: for patience.
    """

    def __init__(self, run_dir: Path, clock: Clock) -> None:
        self._run_dir, self._clock = run_dir, clock
        self._callers: dict[str, _Caller] = {}
        self._master: asyncio.Future[Master] = asyncio.get_running_loop().create_future()
        self.files = FilesLater()

    def open(self, master: Master) -> None:
        """Let all waiting callers in, and later ones."""
        self._master.set_result(master)

    async def answer(self, question: wire.Ask) -> wire.Answer:
        """Answer people."""
        if not self._master.done():
            return wire.Answer(ok=False, detail="the master waits for the agents of this run")
        return await self._master.result().answer(question)

    async def converse(self, requests: AsyncIterator[wire.FromAgent], reply: Reply) -> None:
        """Serve one stream of an agent; see `Master.converse`."""
        if self._master.done():
            await self._master.result().converse(requests, reply)
            return
        first = await anext(aiter(requests), None)
        if first is None:
            return
        if not isinstance(first.message, wire.JoinJob):
            raise ProtocolError("an agent's first message is JoinJob")
        caller = _Caller(first.message, requests, reply)
        self._callers[first.message.agent] = caller
        try:
            await self._wait(caller)
        finally:
            if self._callers.get(first.message.agent) is caller:
                del self._callers[first.message.agent]
        await self._master.result().converse(_with_first(first, requests), reply)

    async def _wait(self, caller: _Caller) -> None:
        while not self._master.done():
            async with caller.line:
                await caller.reply(wire.FromMaster(0, 0, wire.Beat()))
            await asyncio.wait([self._master], timeout=_BEAT)

    async def is_rejoined(self, *, timeout: float) -> bool:
        """Wait for an agent that keeps a copy; return whether one called within so many seconds."""
        deadline = self._clock.now() + timeout
        while not self._offering and self._clock.now() < deadline:
            await asyncio.sleep(_POLL_INTERVAL)
        return bool(self._offering)

    async def find(self, own: State | None, *, patience: float) -> FoundJournal:
        """Wait for the longest copy, and have it in the directory, unless that has more.

        Args:
            own: where the journal of the directory leads to; None where it has none.
            patience: seconds until some agent must have offered a copy, where there is none.

        Raises:
            EnvironmentFault: none did.
            OSError: it cannot be written.
        """
        deadline, gathered = self._clock.now() + patience, 0.0
        while True:
            best = self._best(own)
            if best is None and own is None:
                if self._clock.now() >= deadline:
                    raise EnvironmentFault(self._nothing_found(patience))
                gathered = 0.0
            else:
                gathered = gathered or self._clock.now() + _TO_GATHER
                holders = best.join.copy.holders if best and best.join.copy else 0
                missing = max(holders, own.holders if own else 0) - len(self._offering)
                if missing <= 0 or self._clock.now() >= gathered:
                    if best is None:
                        return FoundJournal("", max(0, missing))
                    with contextlib.suppress(EnvironmentFault, TimeoutError):
                        await self._fetch(best)
                        return FoundJournal(best.join.agent, max(0, missing))
                    self._callers.pop(best.join.agent, None)
            await asyncio.sleep(_POLL_INTERVAL)

    def _nothing_found(self, patience: float) -> str:
        called = f"{len(self._callers)} called without one" if self._callers else "none called"
        return (
            f"no agent offered a copy of the run's journal in {patience:.0f} s, {called}: are the "
            "token and the addresses of brim agent right? brim master FILE --resume begins from "
            "the run's last checkpoint"
        )

    @property
    def _offering(self) -> list[_Caller]:
        return [caller for caller in self._callers.values() if caller.join.copy is not None]

    def _best(self, own_state: State | None) -> _Caller | None:
        """The agent with the longest copy; None where the directory has no less."""
        own_age = (own_state.life, own_state.entries) if own_state is not None else (0, 0)
        best = max(self._offering, key=lambda caller: age_of_copy(caller.join), default=None)
        return best if best is not None and age_of_copy(best.join) > own_age else None

    async def _fetch(self, caller: _Caller) -> None:
        """Have an agent's copy in the directory; present files are set aside.

        Raises:
            EnvironmentFault, TimeoutError: the agent is gone, or does not send it.
            OSError: it cannot be written.
        """
        agent = caller.join.agent
        with ReceivedCopy(self._run_dir) as copy:
            async with caller.line:
                await caller.reply(wire.FromMaster(0, 0, wire.SendCopy()))
                while True:
                    async with asyncio.timeout(_TO_SEND):
                        parcel = await anext(aiter(caller.requests), None)
                    if parcel is None:
                        raise EnvironmentFault(f"agent {agent} is gone")
                    if not isinstance(parcel.message, wire.CopyData):
                        continue
                    try:
                        copy.write(parcel.message.file, parcel.message.data)
                    except KeyError as error:
                        raise EnvironmentFault(f"agent {agent} sends other files") from error
                    if parcel.message.last:
                        break
            copy.keep()


def age_of_copy(join: wire.JoinJob) -> tuple[int, int]:
    """Return the order of the copies that agents offer: the largest is the longest."""
    return (join.life, join.copy.place.number) if join.copy is not None else (0, 0)


async def _with_first(
    first: wire.FromAgent, rest: AsyncIterator[wire.FromAgent]
) -> AsyncIterator[wire.FromAgent]:
    yield first
    async for message in rest:
        yield message
