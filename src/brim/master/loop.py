"""The master: journals messages of agents and people, asks for decisions, performs them."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from brim.coordination.job.liveness import Liveness
from brim.coordination.job.membership import RunOutcome
from brim.errors import EnvironmentFault, ProtocolError
from brim.interfaces import Clock
from brim.master.copying import CopyFeed
from brim.master.decisions import Decisions
from brim.master.entries import (
    Asked,
    Began,
    Entry,
    GraceOver,
    Heard,
    Joined,
    Lost,
    OthersLate,
    Overstayed,
    Replaced,
)
from brim.master.records import Records
from brim.master.stacks import StackTaking
from brim.master.state import AgentSession
from brim.wire import messages as wire
from brim.wire.control import Reply

_ASTRAY = "it knows of what is in no copy of the journal that was found"
_ABSENT_TOO_LONG = "it was away for too long, and is counted as lost"
_TICK = 0.2  # seconds between two looks at the time
_MIN_TICK = 0.001  # and at least
_HELD_UP = 1.0  # seconds between two looks after which this process did not run itself
_AGENT_SILENCE = (
    15.0  # seconds, long: a closed connection tells sooner, and a busy host may starve an agent
)
_TO_RETURN = 2.0  # seconds that an agent has to come back once its connection is closed
# and that it has to call where others go on without it: one that lives calls again at once
_TO_CALL_AGAIN = 0.1
# and one of the master's host, in whose place the command starts another
_TO_BE_REPLACED = 0.3
# seconds without a word, of which there is one each second, before a connection was closed: then
# its host did not answer, and is not about to call
_CUT_OFF = 2.5
# seconds that dismissed workers may take before they are killed, and agents to say goodbye
_TO_END = 15.0
# seconds for which one that is to hand over leads on: agents that were asked to leave at the same
# time say so by then, and those have so long to leave (a pod has 30 to end)
_TO_SAY_SO, _TO_LEAVE = 2.0, 20.0
# seconds for which stacks are shown again, in place of interrupting the workers once more
_BETWEEN_STACKS = 1.0


@dataclass(slots=True)
class _Connection:
    """The stream of an agent; its news are set where there is something to be said on it.

    Attributes:
        feed: sends the agent the parts of its copy; None where it keeps none.
        sent: the number of the last message that it carries.
        told: the number of the last message of the agent of which it says that it was heard.
        asks_stacks: the agent is to be asked for the stacks of its workers.
    """

    feed: CopyFeed | None
    sent: int
    told: int = 0
    asks_stacks: bool = False
    news: asyncio.Event = field(default_factory=asyncio.Event)


class Master:
    """One job's master.

    Args:
        decisions: where its journal has brought it.
        records: its journal, and the records of the run.
        clock: orders heartbeats, stamps entries.
        returning: seconds that the agents of `decisions` have to come back.
        bundle: the sha256 of the bundle with the code, which other hosts fetch; empty: none.

    Attributes:
        called_at: tells when another host called for the last time, also where it has not said yet
            who it is; by the same clock.
    """

    def __init__(
        self,
        decisions: Decisions,
        records: Records,
        *,
        clock: Clock,
        returning: float = _AGENT_SILENCE,
        bundle: str = "",
    ) -> None:
        self._decisions = decisions
        self._records = records
        self._clock = clock
        self._bundle = bundle
        self._connections: dict[str, _Connection] = {}
        self._listening: set[asyncio.Task[None]] = set()
        self._silence = max(_AGENT_SILENCE, 2 * decisions.spec.heartbeat_timeout)
        self._liveness = Liveness(timeout=self._silence)
        self._returning = Liveness(timeout=_TO_RETURN)
        for agent in decisions.agents:
            self._returning.beat(agent, now=clock.now() + returning - _TO_RETURN)
        self._turned_away: set[str] = set()
        self._closed: dict[str, float] = {}  # when the last connection of an agent was
        self.called_at: Callable[[], float] = lambda: -math.inf
        self._ending_since: float | None = None
        self._unrecorded = False
        self._has_left = False
        self._taking: StackTaking | None = None
        self.ended = asyncio.Event()
        if decisions.outcome is not None:
            self.ended.set()

    @property
    def outcome(self) -> RunOutcome:
        """The way the job ended; a job that has not, or that cannot be recorded, has failed."""
        return (
            RunOutcome.FAILED if self._unrecorded else self._decisions.outcome or RunOutcome.FAILED
        )

    # Entries --------------------------------------------------------------------------------------

    def _take(self, entry: Entry) -> None:
        """Write an entry down, then let it have its effects."""
        if self._unrecorded:
            return
        message_numbers = {
            agent: session.outbox.last for agent, session in self._decisions.agents.items()
        }
        try:
            self._records.take(self._decisions, entry)
        except (OSError, EnvironmentFault) as error:
            self._give_up(error, message_numbers)
        if self._decisions.outcome is not None:
            self.ended.set()
        for agent in self._connections.keys() - self._decisions.agents.keys():
            self._forget(agent)  # what it said made no sense: nothing more is heard from it
        agents = self._decisions.agents
        self._wake(
            agent
            for agent, connection in self._connections.items()
            if agents[agent].outbox.last > connection.sent
        )

    def _wake(self, agents: Iterable[str]) -> None:
        """Wake these agents' connections; keepers of a copy get its next part then.

        So no agent is long ahead of all copies.
        """
        woken = [self._connections[agent] for agent in agents]
        if woken:
            connections = self._connections.values()
            woken += [
                connection
                for connection in connections
                if connection.feed and not connection.feed.is_current
            ]
        for connection in woken:
            connection.news.set()

    def _give_up(self, error: Exception, message_numbers: dict[str, int]) -> None:
        """End a run that cannot be recorded any more, at once.

        Unrecorded events did not happen.

        Args:
            error: what is in the way.
            message_numbers: the number of the last message to each agent before the entry that is not on
                record.
        """
        self._unrecorded = True
        message = (
            f"cannot write the records of this run: {error}; brim resume goes on once they can be"
        )
        self._records.lament(message, self._clock)
        for agent, session in self._decisions.agents.items():
            session.outbox.take_back(message_numbers.get(agent, 0))
            session.outbox.put(wire.EndRun(well=False))
        self.ended.set()

    def _stamp(self) -> dict[str, float]:
        return {"at": self._clock.wall(), "now": self._clock.now()}

    # Agents ---------------------------------------------------------------------------------------

    async def converse(self, requests: AsyncIterator[wire.FromAgent], reply: Reply) -> None:
        """Serve one stream of an agent until it breaks, or the agent is gone."""
        first = await anext(aiter(requests), None)
        if first is None or self._has_left:  # an agent calls again at once, and here is nobody
            return
        if not isinstance(first.message, wire.JoinJob):
            raise ProtocolError("an agent's first message is JoinJob")
        join = first.message
        refused = self._admit(join)
        if refused is not None:
            line = tuple(self._decisions.state.line)
            await reply(wire.FromMaster(0, 0, msgspec.structs.replace(refused, line=line)))
            return
        name, session = join.agent, self._decisions.agents[join.agent]
        # A stream that was there before is of no effect from here on.
        connection = _Connection(self._feed(join), sent=join.heard)
        self._connections[name] = connection
        session.outbox.acknowledge(join.heard)
        self._returning.forget(name)
        self._liveness.beat(name, now=self._clock.now())
        sending = asyncio.create_task(self._send(session, connection, reply))
        listening = asyncio.create_task(self._listen(name, connection, requests))
        self._listening.add(listening)
        try:
            await asyncio.wait([listening])
            if not listening.cancelled():
                listening.result()
        finally:
            sending.cancel()
            listening.cancel()
            self._listening.discard(listening)
            if self._connections.get(name) is connection:
                self._expect_again(name)

    def _expect_again(self, name: str) -> None:
        """Give an agent whose connection has closed the time to come back that is worth it.

        Where others go on they stand still meanwhile. Where nobody does, all is lost that the agent
        has and no checkpoint, so that a cable that is cut is waited for as long as a silent agent.
        """
        now = self._clock.now()
        silence = self._liveness.silence(name, now=now)
        del self._connections[name]
        self._liveness.forget(name)
        if self._decisions.goes_on_without(name):
            is_elsewhere = self._decisions.agents[name].keeps
            seconds = _TO_CALL_AGAIN if is_elsewhere else _TO_BE_REPLACED
        else:
            seconds = self._silence - silence if silence > _CUT_OFF else _TO_RETURN
        self._closed[name] = now
        self._returning.beat(name, now=now + seconds - _TO_RETURN)

    def _is_at_the_door(self, agent: str) -> bool:
        """Return whether a host called since this agent's connection closed: it may be the agent.

        Wait once more while the agent is still connecting.
        """
        closed = self._closed.pop(agent, math.inf)
        if self.called_at() <= closed:
            return False
        self._returning.beat(agent, now=closed)
        return agent not in self._returning.lost(now=self._clock.now())

    async def _listen(
        self, name: str, connection: _Connection, requests: AsyncIterator[wire.FromAgent]
    ) -> None:
        session = self._decisions.agents[name]
        async for parcel in requests:
            if self._connections.get(name) is not connection:
                return  # declared lost, or on another stream: whatever comes here is of no effect
            self._liveness.beat(name, now=self._clock.now())
            self._on_parcel(name, session, parcel)

    def _feed(self, join: wire.JoinJob) -> CopyFeed | None:
        """Return the feed that sends an agent the parts of its copy, where it keeps one."""
        if not join.keeps:
            return None
        goes_on = join.copy is not None and self._decisions.state.is_behind(join.copy.place)
        entry_number = join.copy.place.number if join.copy is not None and goes_on else None
        return CopyFeed(self._records, self._decisions, entry_number)

    def _admit(self, join: wire.JoinJob) -> wire.Refused | None:
        """Let an agent join, or go on; why not, where it may not."""
        session = self._decisions.agents.get(join.agent)
        if join.told is not None and not self._decisions.state.is_behind(join.told):
            # It was told what this journal does not lead to, by a master that is gone; or that master
            # is there, and leads this run elsewhere: then the agent is not moved by this answer.
            self._lose(join.agent, _ASTRAY)
            if join.agent not in self._turned_away:  # it calls again for as long as it may wait
                self._turned_away.add(join.agent)
                self._take(Lost(agent=join.agent, reason=_ASTRAY, **self._stamp()))
            return wire.Refused(reason=_ABSENT_TOO_LONG, lost=True)
        if session is not None and session.session == join.session:
            return None
        if session is not None and join.agent in self._connections:
            return wire.Refused(reason=f"there is an agent named {join.agent} already")
        if session is not None and self._decisions.was_let_go(join.agent):
            self._take(Lost(agent=join.agent, reason="it was let go", **self._stamp()))
            session = None
        if join.life:
            return wire.Refused(reason=_ABSENT_TOO_LONG, lost=True)
        if session is not None:
            self._hear_unheard(join.agent, session, join.unheard)
        if join.agent in self._decisions.agents:
            self._take(
                Replaced(
                    agent=join.agent,
                    session=join.session,
                    host=join.host,
                    kind=join.kind,
                    **self._stamp(),
                )
            )
            return None
        if self.ended.is_set():
            return wire.Refused(reason="the job has ended")
        self._take(
            Joined(
                agent=join.agent,
                session=join.session,
                host=join.host,
                room=join.room,
                keeps=join.keeps,
                kind=join.kind,
                machine=join.machine,
                **self._stamp(),
            )
        )
        return None

    def _hear_unheard(
        self, agent: str, session: AgentSession, unheard: Iterable[wire.Unheard]
    ) -> None:
        """Hear the last messages of a killed agent, before it counts as replaced."""
        for note in unheard:
            if self._decisions.agents.get(agent) is not session:
                return  # what it said made no sense
            number = note.number or session.heard + 1
            if note.session not in ("", session.session) or number <= session.heard:
                continue
            # Both the agent and its worker may have left the last commit; all else that workers
            # leave may come twice.
            last_message = note.message if not note.number else None
            if (
                isinstance(last_message, wire.Commits)
                and last_message.records[0].step != self._decisions.progress.step + 1
            ):
                continue
            self._take(Heard(agent=agent, number=number, message=note.message, **self._stamp()))

    def _on_parcel(self, agent: str, session: AgentSession, parcel: wire.FromAgent) -> None:
        session.outbox.acknowledge(parcel.heard)
        if not parcel.number:
            # a heartbeat: answer it, if only with what was heard
            self._wake([agent])
            if isinstance(parcel.message, wire.Printed) and self._decisions.has_started(
                parcel.message.worker
            ):
                self._records.keep_prints(parcel.message)
            if isinstance(parcel.message, wire.StacksShown) and self._taking is not None:
                self._taking.take(agent, parcel.message.stacks)
        elif parcel.number > session.heard:
            entry = Heard(
                agent=agent, number=parcel.number, message=parcel.message, **self._stamp()
            )
            self._take(entry)

    async def _send(self, session: AgentSession, connection: _Connection, reply: Reply) -> None:
        """Say everything that is new, with acknowledgements; ends when the stream does.

        Where nothing is new, an acknowledgement is due.
        """
        decisions = self._decisions
        other_agents = [
            agent for agent in decisions.agents.values() if agent is not session and agent.kind
        ]
        hello = wire.Configure(
            spec=decisions.spec,
            run_dir=decisions.progress.run,
            life=decisions.state.life,
            heard=session.heard,
            bundle=self._bundle,
            line=tuple(decisions.state.line),
            host=other_agents[0].host if other_agents else "",
            kind=other_agents[0].kind if other_agents else None,
        )

        def parcel(number: int, message: wire.MasterMessage) -> wire.FromMaster:
            copy = connection.feed.part() if connection.feed is not None else None
            entry_count = decisions.state.entries
            return wire.FromMaster(number, session.heard, message, entry_count, copy)

        with contextlib.suppress(Exception):  # the other direction of the stream says why
            await reply(parcel(0, hello))
            while True:
                connection.news.clear()
                fresh = list(session.outbox.messages_after(connection.sent))
                if connection.asks_stacks:
                    connection.asks_stacks = False
                    fresh.append((0, wire.ShowStacks()))
                for number, message in fresh or [(0, wire.Beat())]:
                    connection.sent = max(connection.sent, number)
                    connection.told = session.heard
                    await reply(parcel(number, message))
                if connection.feed is None or not connection.feed.is_behind:
                    await connection.news.wait()

    async def tick(self) -> None:
        """Notice agents that are gone, and workers that stay though they are told to go.

        The call runs until it is cancelled.
        """
        now = self._clock.now()
        while True:
            await asyncio.sleep(min(_TICK, max(_MIN_TICK, self._returning.time_left(now=now))))
            previous, now = now, self._clock.now()
            if (unobserved := now - previous - _HELD_UP) > 0:
                self._liveness.pause(unobserved, now=now)
                self._returning.pause(unobserved, now=now)
            self.look()

    def look(self) -> None:
        """Take in the passing of time, and acknowledge messages of agents."""
        now = self._clock.now()
        agents = self._decisions.agents
        self._wake(
            a for a, connection in self._connections.items() if agents[a].heard > connection.told
        )
        for agent in self._liveness.lost(now=now):
            silence = self._liveness.silence(agent, now=now)
            if silence > self._patience_with(agent):
                self._lose(agent, f"it was silent for {silence:.0f} s")
        for agent in self._returning.lost(now=now):
            if not self._is_at_the_door(agent):
                self._lose(agent, "its connection closed, and it did not come back")
        grace_ends = self._decisions.state.grace_ends
        if grace_ends is not None and now >= grace_ends:
            self._take(GraceOver(**self._stamp()))
        others_due = self._decisions.state.others_due
        if others_due is not None and now >= others_due[1]:
            self._take(OthersLate(round=others_due[0], **self._stamp()))
        if not self._decisions.is_ending:
            self._ending_since = None
        elif self._ending_since is None:
            self._ending_since = now
        elif now - self._ending_since > _TO_END + self._decisions.to_leave:
            self._ending_since = now
            self._take(Overstayed(**self._stamp()))

    def _patience_with(self, agent: str) -> float:
        """Return after how many seconds of silence an agent is given up.

        The agent that this master is a child of is not dead while this master lives: where it is
        the only one, it was stopped, nobody could go on without it, and it goes on when it is let.
        """
        decisions = self._decisions
        if decisions.state.rendezvous.stands_alone or list(decisions.agents) != [agent]:
            return self._silence
        return decisions.spec.hang_timeout or math.inf

    def _forget(self, agent: str) -> None:
        self._liveness.forget(agent)
        self._returning.forget(agent)
        self._closed.pop(agent, None)
        self._connections.pop(agent, None)

    def _lose(self, agent: str, reason: str) -> None:
        self._forget(agent)
        if agent in self._decisions.agents:
            self._take(Lost(agent=agent, reason=reason, **self._stamp()))

    @property
    def began(self) -> Began:
        """The first entry of its journal."""
        return self._decisions.state.began

    @property
    def summary(self) -> dict[str, Any]:
        """The summary of the run, which has ended."""
        decisions = self._decisions
        return decisions.progress.summary(self.outcome, decisions.state.at)

    @property
    def has_agents(self) -> bool:
        """Some agent is connected, or may still come back."""
        return bool(self._connections or self._decisions.agents)

    async def see_off_who_leaves(self) -> None:
        """Lead on until the agents that are to leave as well have left.

        Where a whole job is ended, or a host is drained, all get SIGTERM together. With no master,
        agents could not reach a boundary, and would wait for another until they are killed.
        """
        started = self._clock.now()
        while not self.ended.is_set():
            waited = self._clock.now() - started
            if waited >= (_TO_LEAVE if self._decisions.somebody_leaves else _TO_SAY_SO):
                return
            await asyncio.sleep(0.05)

    def leave(self) -> None:
        """Hand the job over: agents wait for another master, which goes on from their copies."""
        self._has_left = True
        for listening in self._listening:
            listening.cancel()

    async def see_agents_off(self) -> None:
        """Wait, not for ever, until the agents have cleaned up and said that they know the end."""
        deadline = self._clock.now() + _TO_END
        while self._clock.now() < deadline and any(
            session.outbox.unacknowledged for session in self._decisions.agents.values()
        ):
            self.look()
            await asyncio.sleep(0.02)
        self.leave()  # so that streams end here, and are not cut off with the server

    # People ---------------------------------------------------------------------------------------

    def stop(self, reason: str) -> None:
        """End the job at its next step boundary, with a checkpoint."""
        self._take(Asked(question=wire.Ask(verb="suspend", reason=reason), **self._stamp()))

    async def answer(self, question: wire.Ask) -> wire.Answer:
        """Answer people, and the scheduler, which may know first that a node is lost."""
        if question.verb == "stacks":
            return await self._show_stacks()
        if question.verb == "lose":
            self._lose(question.agent, question.reason)
        elif question.verb != "status":
            refusal = self._decisions.refusal(question)
            if refusal:
                return wire.Answer(ok=False, detail=refusal)
            self._take(Asked(question=question, **self._stamp()))
        return wire.Answer(ok=True, status=self._decisions.status())

    async def _show_stacks(self) -> wire.Answer:
        """Ask all agents where the Python code of their workers is; nothing of it is recorded."""
        if self._decisions.spec.restart:
            detail = "its workers run a command whose Python code brim does not see"
            return wire.Answer(ok=False, detail=detail)
        now = self._clock.now()
        if self._taking is None or now - self._taking.begin > _BETWEEN_STACKS:
            self._taking = StackTaking(self._connections, begin=now)
            for connection in self._connections.values():
                connection.asks_stacks = True
                connection.news.set()
        stacks = await self._taking.stacks_of(self._decisions.state.rendezvous.workers)
        names = {self._decisions.name_of(worker): stack for worker, stack in stacks.items()}
        return wire.Answer(ok=True, status=names)
