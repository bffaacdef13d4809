"""What a master decides, as a function of its journal: the same entries always give the same
effects. Pure.

Entries come in, effects go out; messages to agents are kept in their sessions' outboxes until they
are acknowledged. Nothing in here reads a clock, draws a number or touches a file, so a master that
takes over from a dead one comes to stand exactly where that one stood.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any, assert_never

import msgspec

from brim.coordination.membership import (
    AgentJoined,
    AgentLost,
    AgentReplaced,
    CheckpointWritten,
    Command,
    Committed,
    Completed,
    Dismiss,
    End,
    Event,
    GiveUpOn,
    Held,
    Hold,
    Hurry,
    Install,
    Kill,
    Outcome,
    Phase,
    Resize,
    StartWorker,
    Stop,
    Straggling,
    UserFailed,
    WorkerAsksToLeave,
    WorkerGone,
    WorkerIdle,
    WorkerInstalled,
    WorkerReady,
    WorkerState,
    World,
    WriteCheckpoint,
)
from brim.coordination.roster import at_work
from brim.coordination.session import is_new
from brim.coordination.stragglers import Bottleneck, Uneven
from brim.decoding import UNDECODABLE
from brim.errors import InternalError, ProtocolError
from brim.master.asking import refusal
from brim.master.effects import AgentSession, Effect, Effects
from brim.master.entries import (
    Asked,
    Began,
    Entry,
    GraceOver,
    Heard,
    Joined,
    Lost,
    Overstayed,
    Replaced,
    Restated,
    TookOver,
)
from brim.master.pace import loads_of
from brim.master.progress import step_fields
from brim.master.root import Root
from brim.master.state import State
from brim.master.strikes import Strikes
from brim.master.telling import MORE_MEMORY, Telling
from brim.wire import messages as wire

# seconds that a run which is to end waits for its next boundary, before it does without who is late
_GRACE = 10.0
_AGAIN = 1.0  # and until it looks again

_reports = msgspec.msgpack.Decoder(wire.StepReport)


class Decisions:
    """The state of one job.

    Args:
        began: the first entry of its journal.
        state: where the entries since then have led, as `state` said; None: there were none.
    """

    def __init__(self, began: Began, state: State | None = None) -> None:
        state = State.after(began) if state is None else state
        self.began, self.spec, self.attempt = began, began.spec, began.attempt
        self.life, self.progress, self.outcome = state.life, state.progress, state.outcome
        self._rendezvous = state.rendezvous
        self._stragglers = state.stragglers
        self._out = Effects(
            sizes=state.sizes,
            commits=state.commits,
            at=state.at,
            now=state.now,
            agents=state.agents,
        )
        self._rounds = state.rounds
        self._root = Root(out=self._out, hosts=state.hosts, barrier=state.barrier)
        self._telling = Telling(
            out=self._out,
            rendezvous=self._rendezvous,
            note=began.note,
            pids=state.pids,
            ranks=state.ranks,
        )
        self._strikes = Strikes(
            spec=self.spec, rounds=self._rounds, telling=self._telling, faults=state.faults
        )
        self._hangs = state.hangs
        self._late = state.late
        self._ended_by_itself = state.ended_by_itself
        self._too_large = state.too_large
        self._patience_told = state.patience_told
        self._failure_told = state.failure_told
        self.grace_ends = state.grace_ends

    @property
    def state(self) -> State:
        """Where they stand between two entries."""
        return State(
            life=self.life,
            at=self._out.at,
            now=self._out.now,
            progress=self.progress,
            rendezvous=self._rendezvous,
            faults=self._strikes.faults,
            sizes=self._out.sizes,
            commits=self._out.commits,
            agents=self._out.agents,
            stragglers=self._stragglers,
            rounds=self._rounds,
            hosts=self._root.hosts,
            barrier=self._root.barrier,
            pids=self._telling.pids,
            ranks=self._telling.ranks,
            hangs=self._hangs,
            late=self._late,
            ended_by_itself=self._ended_by_itself,
            too_large=self._too_large,
            patience_told=self._patience_told,
            failure_told=self._failure_told,
            outcome=self.outcome,
            grace_ends=self.grace_ends,
        )

    @property
    def agents(self) -> dict[str, AgentSession]:
        """The agents in the job, by name."""
        return self._out.agents

    @property
    def is_ending(self) -> bool:
        """Whether workers were dismissed and are still to go."""
        return self._rendezvous.phase is Phase.ENDING

    def goes_on_without(self, agent: str) -> bool:
        """Whether a round is under way that has workers of other agents: these have all that is
        committed.
        """
        workers = at_work(self._rendezvous.roster.members)
        return self._rendezvous.phase is Phase.RUNNING and any(
            each.agent != agent for each in workers
        )

    def has_started(self, worker: str) -> bool:
        """Whether a worker of this name ever had a process."""
        return worker in self._telling.pids

    def status(self) -> dict[str, Any]:
        """What people are told of it."""
        rendezvous = self._rendezvous
        return {
            "phase": rendezvous.phase.value,
            "round": rendezvous.round,
            "target": rendezvous.target,
            "servers": rendezvous.servers,
        }

    def refusal(self, question: wire.Ask) -> str:
        """Why people cannot have what they ask for; empty where they can."""
        return refusal(question, self.spec, is_stopping=self._rendezvous.is_stopping)

    def take(self, entry: Entry) -> list[Effect]:
        """Take the next entry of the journal; the effects are to be performed in order."""
        self._out.begin(at=entry.at, now=entry.now)
        match entry:
            case Began() | Restated():
                raise InternalError("a journal begins once")
            case TookOver(life=life):
                self.life = life
                if self.outcome is None:
                    self._out.event(
                        "warning", message=f"the master died; another, life {life}, has taken over"
                    )
            case Joined(agent=agent, session=session, host=host):
                self.agents[agent] = AgentSession(session, host)
                self._handle(AgentJoined(agent))
            case Heard(agent=agent, number=number, message=message):
                self._hear(agent, number, message)
            case Lost(agent=agent, reason=reason):
                self._lose_agent(agent, reason)
            case Replaced(agent=agent, session=session, host=host):
                self._replace_agent(agent, AgentSession(session, host))
            case Asked(question=question):
                self._on_asked(question)
            case Overstayed():
                self._end_who_overstays(hurried=False)
            case GraceOver():
                self._on_grace_over()
            case _:
                assert_never(entry)
        return self._out.end()

    # Agents ---------------------------------------------------------------------------------------

    def _hear(self, agent: str, number: int, message: wire.AgentMessage) -> None:
        session = self.agents[agent]
        try:
            if is_new(number, heard=session.heard):
                session.heard = number
                self._on_agent(agent, message)
        except (ProtocolError, *UNDECODABLE) as error:
            self._lose_agent(agent, str(error))
        except InternalError as error:  # it would be the same in every life
            self._on_failed(agent, wire.failure_of(error))

    def _lose_agent(self, name: str, reason: str) -> None:
        if self.agents.pop(name, None) is None:
            return
        self._lose_workers_of(name)
        self._rounds.notice(now=self._out.now)
        self._handle(AgentLost(name, reason))

    def _lose_workers_of(self, agent: str) -> None:
        for worker in [w.id for w in self._rendezvous.workers.values() if w.agent == agent]:
            self._late.pop(worker, None)
            self._out.event(
                "worker", worker=worker, state="lost", agent=agent, reason="its agent is gone"
            )

    def _replace_agent(self, name: str, session: AgentSession) -> None:
        """Nobody hears any more what was said to the process that was killed."""
        self.agents[name] = session
        if self.outcome is not None:
            self._out.tell(name, wire.EndRun(well=self.outcome is not Outcome.FAILED))
            return
        self._out.event(
            "warning", message=f"the agent of {session.host} was killed; another one goes on"
        )
        self._lose_workers_of(name)
        self._rounds.notice(now=self._out.now)
        self._handle(AgentReplaced(name))

    def _on_declined(self, agent: str, failure: wire.Failed) -> None:
        """A host cannot take part: a job that is under way does without it, one that has not begun
        was asked for it.
        """
        if not self._rendezvous.round:
            self._on_failed(agent, failure)
            return
        self._telling.declined(agent, wire.words_of(failure))
        self._lose_agent(agent, f"it cannot take part: {failure.message}")

    def _on_agent(self, agent: str, message: wire.AgentMessage) -> None:
        match message:
            case wire.Beat() | wire.JoinJob() | wire.Printed():
                raise ProtocolError(f"{type(message).__name__} has no place in a session")
            case wire.WorkerStarted(worker=worker, pid=pid):
                self._telling.pids[worker] = pid
                self._telling.state_of(worker, "started")
            case wire.FromWorker(worker=worker, message=inner):
                self._on_worker(worker, inner)
            case wire.LoseWorker():
                self._on_lost(message)
            case wire.Silence(worker=worker, silent=silent):
                self._on_silence(worker, silent)
            case wire.Late(worker=worker, doing=doing):
                if worker:
                    self._late[worker] = doing
                self._telling.late(agent, message)
            case wire.OnTime(worker=worker):
                self._late.pop(worker, None)
            case wire.Decline(failure=failure):
                self._on_declined(agent, failure)
            case wire.Commits(records=records):
                for record in records:
                    self._on_commit(record)
            case wire.ArriveTogether():
                self._on_arrival(agent, message)
            case wire.AskToStop(reason=reason):
                self._stop(reason)
            case wire.Failed():
                self._on_failed(agent, message)
            case wire.Warn(message=text):
                self._out.event("warning", message=text)
            case _:
                assert_never(message)

    # Workers --------------------------------------------------------------------------------------

    def _on_worker(self, worker: str, message: wire.WorkerMessage) -> None:
        match message:
            case wire.Hello(address=address, facts=facts):
                if facts is not None:
                    self._learn(facts)
                self._telling.state_of(worker, "ready")
                self._handle(WorkerReady(worker, address))
            case wire.Introduce(facts=facts):
                self._learn(facts)
            case wire.Installed(round=round, step=step, restored_from=path):
                self._on_installed(worker, round, step, path)
            case wire.Leave():
                self._telling.state_of(worker, "leaving", reason="SIGTERM")
                self._handle(WorkerAsksToLeave(worker))
            case wire.Idle(round=round):
                self._handle(WorkerIdle(worker, round))
            case wire.CheckpointDrafted(step=step):
                # Its agent sent every commit before these words: what becomes official is on
                # record, and on disk.
                self._out.secure()
                writers = sorted(self._rendezvous.workers)
                self._telling.worker(worker, wire.Publish(step=step, writers=writers))
            case wire.CheckpointMade(
                step=step, path=path, size_bytes=size, seconds=seconds, pause=pause
            ):
                self._out.event(
                    "checkpoint", step=step, path=path, bytes=size, seconds=seconds, pause=pause
                )
            case wire.NowWritten():
                self._handle(CheckpointWritten(worker))
            case wire.Evaluated(epoch=epoch, step=step, metrics=metrics):
                if self.progress.ended(epoch, metrics):
                    self._out.event("epoch", epoch=epoch, step=step, metrics=metrics)
            case wire.Logged(epoch=epoch, step=step, values=values):
                fresh = self.progress.logged(step, values)
                if fresh:
                    self._out.event("logged", epoch=epoch, step=step, values=fresh)
            case wire.Completed(weights_sha256=digest, metrics=metrics):
                self.progress.weights_sha256, self.progress.metrics = digest, metrics
                self._handle(Completed(worker))
            case wire.Failed():
                self._on_failed(worker, message)
            case wire.Warn(message=text):
                self._out.event("warning", message=text)
            case wire.Beat() | wire.Arrive():
                raise ProtocolError(f"{type(message).__name__} is between a worker and its agent")
            case _:
                assert_never(message)

    def _learn(self, facts: wire.Facts) -> None:
        if self.progress.facts is None and not self._failure_told:  # else it would hide the failure
            self.progress.facts = facts
            self._telling.beginning(self.progress.run, self.spec, facts)

    def _on_silence(self, worker: str, silent: bool) -> None:
        known = self._rendezvous.workers.get(worker)
        if known is None:
            return
        usual = "started" if known.state is WorkerState.STARTING else known.state.value
        self._telling.state_of(worker, "suspect" if silent else usual)

    def _on_lost(self, lost: wire.LoseWorker) -> None:
        """A worker's process has ended; whatever it did that another would do again is the user's
        to mend.
        """
        reason = f"ended by itself with {lost.reason}" if lost.by_itself else lost.reason
        if lost.by_itself:
            self._ended_by_itself += 1
            reason += f" at step {self.progress.step}, before the job was done"
        if lost.hang is not None and self._hangs.again(step=lost.hang.step, round=lost.hang.round):
            self._on_failed(lost.worker, self._telling.hung_again(lost))
        if self._ended_by_itself > 1:
            self._on_failed(lost.worker, self._telling.ended_again(lost.worker, reason))
        if lost.memory and lost.worker in self._rendezvous.workers:
            self._note_memory(lost)
        self._on_gone(lost.worker, reason)

    def _note_memory(self, lost: wire.LoseWorker) -> None:
        self.progress.out_of_memory += 1
        self._too_large = lost.reason if lost.memory == "limit" else self._too_large
        if self.progress.out_of_memory == 1:
            self._telling.out_of_memory(lost)

    def _on_gone(self, worker: str, reason: str) -> None:
        self._late.pop(worker, None)
        known = self._rendezvous.workers.get(worker)
        if known is None:
            return
        ending = self._rendezvous.phase in (Phase.ENDING, Phase.ENDED)
        left = ending or (known.state is WorkerState.LEAVING and not known.in_round)
        self._telling.state_of(worker, "left" if left else "lost", reason=reason)
        self._rounds.notice(now=self._out.now)
        self._handle(WorkerGone(worker, reason))

    def _on_failed(self, source: str, failure: wire.Failed) -> None:
        if self._rendezvous.phase in (Phase.ENDING, Phase.ENDED) and not self._spoils_the_end(
            failure
        ):
            return
        self._failure_told = True
        self._out.event("failed", who=failure.who, message=failure.message, trace=failure.trace)
        self._handle(UserFailed(source))

    def _spoils_the_end(self, failure: wire.Failed) -> bool:
        """Whether a script that has trained to the end of its loop fails behind it: then it is not
        done.
        """
        return self._goes_on_behind_loop and self.is_ending and failure.who in ("user", "spec")

    # Steps ----------------------------------------------------------------------------------------

    def _on_arrival(self, agent: str, arrival: wire.ArriveTogether) -> None:
        record = self._root.arrive(agent, arrival)
        if record is not None:
            self._on_commit(record)

    def _on_commit(self, record: wire.CommitRecord) -> None:
        reports = [_reports.decode(payload) for payload in record.payloads]
        fields = step_fields(record, reports)
        self._out.step(fields)
        self.progress.committed(fields)
        self._handle(Committed(record.round, record.step))
        self._mind_stragglers(record, reports)
        for fault in self._strikes.due(record.step):
            workers = self._strikes.perform(fault, step=record.step)
            if workers is not None:
                self._resize(workers)
        if record.held:
            self._on_held(record.round, record.step)

    def _mind_stragglers(self, record: wire.CommitRecord, reports: list[wire.StepReport]) -> None:
        """Without canonical reduction every rank has one part: there is nothing to move."""
        if (
            self._rounds.world is None
            or record.round != self._rounds.world.round
            or not self.spec.exact
        ):
            return
        loads, other = loads_of(self._rounds.world, reports)
        for advice in self._stragglers.committed(record.round, loads, other=other):
            match advice:
                case Uneven(paces=paces, cause=cause):
                    self._handle(Straggling(paces, cause))
                case Bottleneck():
                    self._telling.bottleneck(advice, self.spec)
                case _:
                    assert_never(advice)

    def _on_held(self, round: int, step: int) -> None:
        self._rounds.hold(now=self._out.now)
        self._handle(Held(round, step))

    def _on_installed(self, worker: str, round: int, step: int, restored_from: str) -> None:
        self._handle(WorkerInstalled(worker, round, step))
        # Who restored may speak later than who had it from there, and this directory may know
        # nothing of the job.
        if self._rounds.is_first_restored(round) and (restored_from or step or self.progress.step):
            # Its time is that of the naming: the round's first commit may be older than this
            # message.
            self._out.restored(step, at=self._rounds.named_at, path=restored_from)
        re_formed = self._rounds.install(worker, round, step, now=self._out.now)
        if re_formed is None:
            return
        redone = re_formed.in_flight + max(0, self.progress.step - step)
        self.progress.steps_redone += re_formed.in_flight
        self.progress.installed(step, self._out.at)
        if round > 1:
            self.progress.re_forming += re_formed.seconds
            self._out.event("re_formed", round=round, seconds=re_formed.seconds, redone=redone)

    # Commands -------------------------------------------------------------------------------------

    def _handle(self, event: Event) -> None:
        if self.outcome is not None:
            return
        for command in self._rendezvous.handle(event):
            self._perform(command)

    def _perform(self, command: Command) -> None:
        match command:
            case StartWorker(agent, worker, delay):
                self._out.tell(agent, wire.StartWorkers(workers=[worker], delay=delay))
            case Install(world, cause, still):
                self._install(world, cause, still=still)
            case Hold(round):
                self._root.hold(round)
            case WriteCheckpoint(worker):
                self._root.barrier.close()
                self._telling.worker(worker, wire.WriteNow(recorded=self.progress.step))
            case Dismiss(worker):
                self._telling.worker(worker, wire.Dismissed())
            case Kill(worker, reason):
                self._telling.signal(worker, signal.SIGKILL, reason=reason)
            case GiveUpOn():
                self._telling.given_up(command, self.progress.run, self.spec)
            case End(outcome, reason):
                self._end(outcome, reason)
            case _:
                assert_never(command)

    def _install(self, world: World, cause: str, *, still: bool) -> None:
        if still:
            self._rounds.notice(now=self._out.now)
        self._rounds.name(world, at=self._out.at)
        self._root.begin(world)
        self.progress.world_sizes.add(len(world.workers))
        self.progress.servers.add(len(world.servers))
        self._telling.world(world, step=self.progress.step, cause=cause, still=still)

    def _end(self, outcome: Outcome, reason: str) -> None:
        self.outcome = outcome
        if outcome is Outcome.FAILED and not self._failure_told:
            # Another start would end as this one, wherever a worker has too little by its user's
            # own words.
            theirs = bool(self._too_large) and reason.endswith(self._too_large)
            who, hint = ("user", f"; {MORE_MEMORY}") if theirs else ("environment", "")
            self._out.event("failed", who=who, message=f"{reason}{hint}", trace="")
        self._out.event("run_ended", summary=self.progress.summary(outcome, self._out.at))
        self._out.secure()
        for agent in self.agents:
            self._out.tell(agent, wire.EndRun(well=outcome is not Outcome.FAILED))

    # People ---------------------------------------------------------------------------------------

    def _on_asked(self, question: wire.Ask) -> None:
        match question.verb:
            case "resize":
                self._resize(question.workers, question.places, servers=question.servers)
            case "suspend":
                self._stop(question.reason or "brim suspend")

    def _stop(self, reason: str) -> None:
        """End at the next step boundary, with a checkpoint; where all steps are done, end the
        scripts as well.
        """
        if self.is_ending and self._goes_on_behind_loop:
            self._end_who_overstays(hurried=True)
        self._handle(Stop(reason))
        if self.grace_ends is None and self._waits_for_boundary:
            self.grace_ends = self._out.now + _GRACE

    @property
    def _waits_for_boundary(self) -> bool:
        """Whether the run is to end, and some member has to do something first."""
        stops, phase = self._rendezvous.is_stopping, self._rendezvous.phase
        return stops and phase in (Phase.RUNNING, Phase.WRITING)

    def _on_grace_over(self) -> None:
        """A run that is to end has waited: it goes on without those who are late."""
        self.grace_ends = self._out.now + _AGAIN if self._waits_for_boundary else None
        late = {
            worker: doing
            for worker, doing in self._late.items()
            if worker in self._rendezvous.workers
        }
        if late and self.grace_ends is not None:
            self._late.clear()
            self._handle(Hurry(late))

    def _resize(
        self, workers: int, places: Mapping[str, int] | None = None, *, servers: int | None = None
    ) -> None:
        """Change the number of workers, or of servers alone: then workers stay where they are."""
        self._rounds.notice(now=self._out.now)
        if not workers:
            workers, places = self._rendezvous.target, self._rendezvous.roster.places.wanted
        self._handle(Resize(workers, places or {}, servers))

    @property
    def _goes_on_behind_loop(self) -> bool:
        return bool(self.spec.command) and self.progress.weights_sha256 is not None

    def _end_who_overstays(self, *, hurried: bool) -> None:
        """Kill who was dismissed and stays; but a user's own script may have work to do behind its
        loop.
        """
        if not self.is_ending:
            return
        workers = list(self._rendezvous.workers)
        if self._goes_on_behind_loop and not hurried:
            if not self._patience_told:
                self._patience_told = True
                text = f"waiting for what the scripts of {', '.join(workers)} do behind their loops"
                self._out.event(
                    "warning", message=f"{text}; brim suspend {self.progress.run} ends them"
                )
            return
        for worker in workers:
            self._telling.signal(worker, signal.SIGKILL)
