"""The agent's end of its conversation with the master.

The conversation goes over as many streams, and masters, as it takes.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import uuid
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from pathlib import Path

from brim.agent.copy import JournalCopy
from brim.agent.keeper import Keeper
from brim.agent.unheard import open_unheard
from brim.coordination.job.session import Outbox, is_new
from brim.domain.addresses import is_address
from brim.errors import EnvironmentFault
from brim.host.own_kind import kind_of_this_host
from brim.interfaces import Clock
from brim.wire.control import AgentStream, NotTheMaster
from brim.wire.listening import split_address
from brim.wire.messages import (
    AgentMessage,
    Beat,
    CommitRecord,
    Commits,
    Configure,
    CopyOffer,
    FromAgent,
    FromMaster,
    JoinJob,
    JournalPlace,
    MasterMessage,
    Printed,
    Refused,
    SendCopy,
    ShowStacks,
    StacksShown,
    Warn,
)

TO_ANSWER = 20.0  # seconds until a master must have said its first word
TO_START = 300.0  # and one that was started just now, on a host that may be busy
_TO_LIVE_ALONE = 60.0  # seconds that the workers go on, or wait, without a master
# seconds without a word after which a stream is given up, and with it the master that is kept
_SILENCE = 10.0
_STANDSTILL = 1.0  # seconds more, after which it was this process that did not run
# and where several are called in turn: to reach each at first, and in the end
_TO_REACH, _TO_REACH_AT_LAST = 0.25, 2.0
_TO_RETRY = 0.05
_TO_PART = 1.0
_ASIDE = 64  # messages that are kept while there is no stream, where losing them does no harm
# seconds until a master, or the one behind it, must have ended: it waits 15 s for other hosts
_TO_SEE_OFF = 45.0


class Displaced(Exception):
    """The master counts this agent as lost: it may join again once its workers are gone."""


def places_of(master: str) -> int:
    """Return at how many places a master is called: a name may lead to another one the next time.

    >>> [places_of(each) for each in ("", "10.0.0.7:4000", "train-master:4000", "a:1,b:1,c:1")]
    [1, 1, 2, 3]
    """
    addresses = master.split(",")
    if len(addresses) == 1 and master and not is_address(split_address(master)[0]):
        return 2
    return len(addresses)


class Conversation:
    """One session with the master of a job.

    Args:
        agent: its name in the job.
        dial: opens a stream to whichever master there is.
        keeper: of the master, where it lives on this host.
        clock: for patience.
        patience: seconds that it waits for a master, for the first word as well as for another;
            None: the usual.
        starts: the master was started together with this agent, by who gave it the address.
        room: workers that the agent takes at most; None: as many as are wanted.
        machine: see `JoinJob`.
        unheard: the file in which the agent that follows this one finds what it has to say; None:
            none follows.
        copy: of what the master writes; None where this agent keeps none.
        calls: so many addresses are called in turn, so that none is waited for for long.
    """

    def __init__(
        self,
        agent: str,
        *,
        dial: Callable[[], AgentStream],
        keeper: Keeper | None,
        clock: Clock,
        patience: float | None = None,
        starts: bool = False,
        room: int | None = None,
        machine: str = "",
        unheard: Path | None = None,
        copy: JournalCopy | None = None,
        calls: int = 1,
    ) -> None:
        self._copy, self._calls, self._in_vain = copy, calls, -1
        self._reported: JournalPlace | None = None
        self._displaced_by: Displaced | None = None
        self._patience, self._room, self._kind = patience, room, kind_of_this_host()
        self._starts = starts
        self._machine = machine
        self._agent, self._dial, self._keeper, self._clock = agent, dial, keeper, clock
        self._session = uuid.uuid4().hex
        self._outbox: Outbox[AgentMessage] = Outbox()
        self._unheard = open_unheard(unheard, self._session) if unheard else None
        self._received = 0
        self._life = 0
        self._news = asyncio.Event()
        self._beat_due = False
        self._aside: deque[Printed | StacksShown] = deque(maxlen=_ASIDE)
        self._last_word = clock.now()
        self._stream: AgentStream | None = None

    @property
    def has_begun(self) -> bool:
        """Return whether a master has let this agent in."""
        return self._life > 0

    def post(self, message: AgentMessage) -> None:
        """Say something: the master will hear it, once, as long as there is one."""
        number = self._outbox.put(message)
        if self._unheard is not None and not isinstance(message, Commits):
            self._unheard.note(number, message)
        self._news.set()

    def print(self, worker: str, text: str) -> None:
        """Pass on the prints of a worker: in order, and once, but a broken stream loses them."""
        self._aside.append(Printed(worker=worker, text=text))
        self._news.set()

    def show_stacks(self, stacks: Mapping[str, str]) -> None:
        """Answer a question for the stacks of workers; a broken stream loses the answer."""
        self._aside.append(StacksShown(stacks=dict(stacks)))
        self._news.set()

    def foretell(self, records: list[CommitRecord]) -> None:
        """Make sure that commits will be heard, even if this process dies.

        They are a part of the next message.
        """
        if self._unheard is not None:
            self._unheard.note(self._outbox.last + 1, Commits(records=records))

    def close(self) -> None:
        """End the conversation: the agent has nothing more to say."""
        if self._unheard is not None:
            self._unheard.remove()

    def beat(self) -> None:
        """Be heard, and have the master answer."""
        self._beat_due = True
        self._news.set()

    async def messages(self) -> AsyncGenerator[MasterMessage, None]:
        """Yield the masters' messages, each once and in order; the end never comes by itself.

        Raises:
            EnvironmentFault: there is no master any more, or it does not let this agent in.
            Displaced: the master counts this agent as lost.
        """
        self._last_word = self._clock.now()
        while True:
            stream = self._stream = self._dial()
            self._in_vain += 1
            admitted: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            saying = asyncio.create_task(self._say(stream, admitted))
            received = stream.messages()
            try:
                while (parcel := await self._next(stream, received, admitted.done())) is not None:
                    if not admitted.done():
                        if await self._waits(stream, parcel):
                            continue
                        if not self._obeys(parcel):
                            break
                        admitted.set_result(parcel.heard)
                    self._keep(parcel)
                    self._outbox.acknowledge(parcel.heard)
                    if self._unheard is not None:
                        self._unheard.acknowledge(parcel.heard)
                    if isinstance(parcel.message, Configure):
                        yield parcel.message
                    elif parcel.number and is_new(parcel.number, last_number=self._received):
                        self._received = parcel.number
                        yield parcel.message
                    elif isinstance(parcel.message, ShowStacks):
                        yield parcel.message
            finally:
                saying.cancel()
                if self._stream is stream:
                    await stream.close()
            if not admitted.done():  # else at once: the master may be counting on it
                await asyncio.sleep(_TO_RETRY)

    def _keep(self, parcel: FromMaster) -> None:
        """Store the history behind a master's words on this host, before they are obeyed."""
        if parcel.copy is not None and self._copy is not None:
            was_whole = not self._copy.problem
            self._copy.take(parcel.copy)
            if was_whole and self._copy.problem:
                text = f"agent {self._agent} keeps no copy of the journal: {self._copy.problem}"
                self.post(Warn(message=text))
        if self._reported is not None:
            self._reported = JournalPlace(self._reported.origin, parcel.told)

    @property
    def _offer(self) -> CopyOffer | None:
        return self._copy.offer(self._reported.origin) if self._copy and self._reported else None

    async def _waits(self, stream: AgentStream, parcel: FromMaster) -> bool:
        """Return whether a master has not begun yet; it is given the copy that it asks for."""
        if isinstance(parcel.message, SendCopy) and self._copy is not None:
            with contextlib.suppress(EnvironmentFault, OSError):
                for data in self._copy.content():
                    await stream.send(FromAgent(0, self._received, data))
        return isinstance(parcel.message, Beat | SendCopy)

    async def _next(
        self, stream: AgentStream, received: AsyncIterator[FromMaster], admitted: bool
    ) -> FromMaster | None:
        """The next parcel; None where the stream has ended, or nothing came of it for too long.

        Raises:
            EnvironmentFault: the patience of this agent is at an end.
        """
        remaining = self._patience_left()
        if remaining <= 0 and self._displaced_by is not None:
            raise self._displaced_by
        if remaining <= 0:
            waited = self._clock.now() - self._last_word
            raise EnvironmentFault(self._no_answer(waited))
        began, limit = self._clock.now(), min(remaining, _SILENCE)
        try:
            async with asyncio.timeout(limit):
                if not admitted:
                    async with asyncio.timeout(self._to_reach):
                        await stream.reach()
                parcel = await anext(received, None)
        except NotTheMaster:
            if not self._life:
                raise
            return None  # another process listens where the master was: it may come back
        except TimeoutError:
            # Where this process stood still itself, the master's words may be unread.
            stood_still = self._clock.now() - began > limit + _STANDSTILL
            if self._keeper is not None and not stood_still:
                self._keeper.mind_silence()
            return None
        if parcel is not None and not self._is_of_another(parcel.message):
            self._last_word, self._in_vain = self._clock.now(), 0
            if self._keeper is not None and not admitted:
                self._keeper.on_first_word()
        return parcel

    def _patience_left(self) -> float:
        """Seconds for which a master is waited for yet.

        Who keeps it knows better than a clock whether there will be one.
        """
        if self._keeper is not None and not self._keeper.ended.is_set():
            return math.inf
        first = TO_START if self._starts else TO_ANSWER
        usual = _TO_LIVE_ALONE if self._life else first
        patience = usual if self._patience is None else self._patience
        return patience - (self._clock.now() - self._last_word)

    def _no_answer(self, waited: float) -> str:
        if self._starts and not self._life:
            return f"the host of the master is too busy: it did not start within {waited:.0f} s"
        question = "" if self._keeper is not None or self._life else ": is the address right?"
        return f"no master answered in {waited:.0f} s{question}"

    @property
    def _to_reach(self) -> float:
        """Seconds until a master must be reached: the longer, the longer none answered."""
        if self._calls == 1:
            return _SILENCE
        rounds = min(self._in_vain // self._calls, 8)
        return float(min(_TO_REACH * 2**rounds, _TO_REACH_AT_LAST))

    def _obeys(self, parcel: FromMaster) -> bool:
        """Return whether the first word on a stream is that of a master to be obeyed."""
        match parcel.message:
            case Refused(reason=reason, lost=True) as refused if self._is_of_another(refused):
                self._displaced_by = Displaced(reason)  # unless its own master comes back in time
                return False
            case message if self._is_of_another(message):
                return False
            case Configure(life=life, line=line) if life >= self._life:
                self._life = life
                self._reported = JournalPlace(line[-1].origin, 0) if line else None
                return True
            case Refused(reason=reason, lost=True):
                raise Displaced(reason)
            case Refused(reason=reason):
                raise EnvironmentFault(f"the master refused this agent: {reason}")
        return False  # another master has taken its place

    def _is_of_another(self, message: MasterMessage) -> bool:
        """Return whether these are words of a master whose journal this agent has not followed."""
        if self._reported is None or not isinstance(message, Configure | Refused):
            return False
        return bool(message.line) and all(
            part.origin != self._reported.origin for part in message.line
        )

    async def _say(self, stream: AgentStream, admitted: asyncio.Future[int]) -> None:
        join = JoinJob(
            agent=self._agent,
            session=self._session,
            host=socket.gethostname(),
            life=self._life,
            heard=self._received,
            unheard=tuple(self._unheard.pending) if self._unheard else (),
            room=self._room,
            keeps=self._copy is not None,
            told=self._reported,
            copy=self._offer,
            kind=None if self._room == 0 else self._kind,
            machine=self._machine,
        )
        with contextlib.suppress(EnvironmentFault):  # the listener sees the end of the stream
            await stream.send(FromAgent(0, self._received, join))
            sent = await admitted
            while True:
                self._news.clear()
                for number, message in self._outbox.messages_after(sent):
                    await stream.send(FromAgent(number, self._received, message))
                    sent = number
                while self._aside:
                    await stream.send(FromAgent(0, 0, self._aside.popleft()))
                if self._beat_due:
                    self._beat_due = False
                    await stream.send(FromAgent(0, self._received, Beat()))
                await self._news.wait()

    async def part(self, messages: AsyncIterator[MasterMessage]) -> None:
        """Let the master know that everything was heard, if it still listens.

        Who keeps it stays until it has ended: where it dies before all hosts have heard the end,
        another tells them, and needs this word as well.

        Args:
            messages: of this conversation.
        """
        if self._keeper is not None:
            self.beat()
            listening = asyncio.create_task(_drain(messages))
            ending = asyncio.create_task(self._keeper.ended.wait())
            await asyncio.wait(
                [listening, ending], timeout=_TO_SEE_OFF, return_when=asyncio.FIRST_COMPLETED
            )
            ending.cancel()
            while not listening.done():  # a wait that is just over swallows a cancellation
                listening.cancel()
                await asyncio.wait([listening], timeout=_TO_RETRY)
            return
        stream, self._stream = self._stream, None
        if stream is None:
            return
        with contextlib.suppress(EnvironmentFault, TimeoutError):
            async with asyncio.timeout(_TO_PART):
                while (
                    self._aside
                ):  # which acknowledges nothing: the master listens until all was heard
                    await stream.send(FromAgent(0, 0, self._aside.popleft()))
                await stream.send(FromAgent(0, self._received, Beat()))
                await stream.finish()
        await stream.close()


async def _drain(messages: AsyncIterator[MasterMessage]) -> None:
    async for _ in messages:
        pass
