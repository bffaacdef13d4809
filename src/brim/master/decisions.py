"""The decisions of a master, as a pure function of its journal.

The same entries always give the same effects. Entries come in, effects go out; messages to agents
are kept in their sessions' outboxes until they are acknowledged. Nothing in here reads a clock,
draws a number or touches a file, so a master that takes over from a dead one comes to stand exactly
where that one stood.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, assert_never

import msgspec

from brim.coordination.job.attempts import EXIT_STATUS
from brim.coordination.job.barrier import COMMIT, Point, Release
from brim.coordination.job.membership import (
    AgentDeparts,
    AgentJoined,
    AgentLost,
    AgentReplaced,
    AllHeld,
    AwaitOthers,
    CheckpointCompleted,
    Command,
    CommandAdvanced,
    Committed,
    Dismiss,
    End,
    Event,
    GiveUpOn,
    Hold,
    Hurry,
    Install,
    JobCompleted,
    Kill,
    LetGo,
    PatienceOver,
    RendezvousPhase,
    ResizeRequested,
    RunOutcome,
    StartWorker,
    Stop,
    Straggling,
    UserFailed,
    WorkerAsksToLeave,
    WorkerCutOff,
    WorkerDisagrees,
    WorkerGone,
    WorkerIdle,
    WorkerInstalled,
    WorkerReady,
    WorkerState,
    World,
    WriteCheckpoint,
)
from brim.coordination.job.roster import at_work
from brim.coordination.job.session import is_new
from brim.coordination.job.stragglers import Bottleneck, Uneven
from brim.decoding import UNDECODABLE
from brim.domain.faults import Fault, FaultKind, describe
from brim.domain.job import JobSpec, fewest_micro_batches
from brim.domain.options import LARGEST_COUNT
from brim.domain.quantities import counted
from brim.domain.step_records import DatasetFacts
from brim.errors import InternalError, ProtocolError
from brim.master import words
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
    Restated,
    TookOver,
)
from brim.master.progress import loads_of, progress_fields, replica_fields, step_fields
from brim.master.state import AgentSession, State
from brim.telemetry import events as told
from brim.telemetry.events import Restored, event_of
from brim.telemetry.record_files import EVENTS, STEPS, RecordName
from brim.wire import messages as wire
from brim.wire.messages import JournalPlace

# seconds that a run which is to end waits for its next boundary, before it does without who is late
_GRACE = 10.0
_GRACE_EXTENSION = 1.0  # and until it looks again
# seconds that a newcomer waits for others that were started with it: a fork is warm in .15 to .3
_FOR_OTHERS = 0.5
_FOR_ALL = 15.0  # and where each change starts all of them again
_BEFORE_ADVICE = 20.0  # seconds of a run that is worth making quicker
_SHORT_PASS = 0.003  # a micro-batch of fewer seconds is mostly not arithmetic

_SIGNALS = {
    FaultKind.KILL: signal.SIGKILL,
    FaultKind.TERM: signal.SIGTERM,
    FaultKind.STOP: signal.SIGSTOP,
}

_reports = msgspec.msgpack.Decoder(wire.StepReport)


@dataclass(frozen=True, slots=True)
class Record:
    """A line that belongs at this place of a record file, whether or not it is there already."""

    file: RecordName
    place: int
    line: bytes


@dataclass(frozen=True, slots=True)
class Secure:
    """Bring the journal down to the disk before anything else is said."""


Effect = Record | Secure


class Decisions:
    """The decisions on one job.

    Args:
        state: where they stand; `State.after(began)` where nothing has followed its beginning.
    """

    def __init__(self, state: State) -> None:
        self.state = state
        self.spec = state.began.spec
        self.progress = state.progress
        self._rendezvous = state.rendezvous
        self._effects: list[Effect] = []

    @property
    def agents(self) -> dict[str, AgentSession]:
        """The agents in the job, by name."""
        return self.state.agents

    @property
    def outcome(self) -> RunOutcome | None:
        """The way the job ended; None where it goes on."""
        return self.state.outcome

    @property
    def is_ending(self) -> bool:
        """Workers were dismissed and are still to go."""
        return self._rendezvous.phase is RendezvousPhase.ENDING

    @property
    def to_leave(self) -> float:
        """Seconds that dismissed workers may take beside the usual: requests are under way."""
        return 2.0 * self.spec.grace if self.spec.service is not None else 0.0

    def goes_on_without(self, agent: str) -> bool:
        """Return whether a round runs that has workers of other agents: these have all commits."""
        workers = at_work(self._rendezvous.roster.members)
        return self._rendezvous.phase is RendezvousPhase.RUNNING and any(
            worker.agent != agent for worker in workers
        )

    def was_let_go(self, agent: str) -> bool:
        """An agent has departed, and its stream has not been seen to end."""
        return agent in self.agents and agent not in self._rendezvous.roster.agents

    def has_started(self, worker: str) -> bool:
        """A worker of this name had a process at some time."""
        return worker in self.state.pids

    def status(self) -> dict[str, Any]:
        """The answer to questions about the job's state."""
        rendezvous = self._rendezvous
        return {
            "phase": rendezvous.phase.value,
            "round": rendezvous.round,
            "target": rendezvous.target,
            "renewing": self.state.rollout.remaining,
            "servers": rendezvous.servers,
        }

    def refusal(self, question: wire.Ask) -> str:
        """The reason why a request is refused; empty where it is not."""
        maximum = (
            self._rendezvous.parts or self.spec.micro_batches
        )  # a script may have chosen others
        return refusal(
            question, self.spec, maximum=maximum, is_stopping=self._rendezvous.is_stopping
        )

    def take(self, entry: Entry) -> list[Effect]:
        """Take the next entry of the journal; the effects are to be performed in order."""
        self.state.at = entry.at
        self.state.now = entry.now
        self.state.entries += 1
        match entry:
            case Began() | Restated():
                raise InternalError("a journal begins once")
            case TookOver():
                self._take_over(entry)
            case Joined(agent=agent, session=session, host=host, room=room):
                self.agents[agent] = AgentSession(session, host, keeps=entry.keeps, kind=entry.kind)
                self._handle(AgentJoined(agent, room, entry.machine))
                if lacking := self._rendezvous.lacks_room:
                    self._event("warning", message=words.waiting_for_a_host(lacking))
            case Heard(agent=agent, number=number, message=message):
                self._hear(agent, number, message)
            case Lost(agent=agent, reason=reason):
                self._lose_agent(agent, reason)
            case Replaced(agent=agent, session=session, host=host, kind=kind):
                self._replace_agent(agent, AgentSession(session, host, kind=kind))
            case Asked(question=question):
                self._on_asked(question)
            case Overstayed():
                self._end_who_overstays(hurried=False)
            case GraceOver():
                self._on_grace_over()
            case OthersLate(round=round):
                self.state.others_due = None
                self._handle(PatienceOver(round))
            case _:
                assert_never(entry)
        effects = self._effects
        self._effects = []
        return effects

    def _take_over(self, entry: TookOver) -> None:
        self.state.life = entry.life
        if self.state.outcome is None:
            text = words.taken_over(entry.life, run=entry.run, note=entry.note)
            self._event("warning", message=text)
        if entry.origin:
            self._move(entry.origin, entry.run)

    def _move(self, origin: str, run: str) -> None:
        """Go on in another directory: companions of the last master are gone with it."""
        self.state.line.append(JournalPlace(origin, self.state.entries - 1))
        self.progress.run = run
        self._rendezvous.stands_alone = True
        for agent in [name for name, session in self.agents.items() if not session.keeps]:
            self._lose_agent(agent, "it was on the host of a master that is gone")

    # Agents ---------------------------------------------------------------------------------------

    @property
    def somebody_leaves(self) -> bool:
        """Return whether an agent is on its way out, or does not know yet that it may go."""
        roster = self._rendezvous.roster
        return bool(roster.departing) or any(
            session.outbox.unacknowledged
            for name, session in self.agents.items()
            if name not in roster.agents
        )

    def _hear(self, agent: str, number: int, message: wire.AgentMessage) -> None:
        session = self.agents[agent]
        try:
            if is_new(number, last_number=session.heard):
                session.heard = number
                self._on_agent(agent, message)
        except (ProtocolError, *UNDECODABLE) as error:
            self._lose_agent(agent, str(error))
        except InternalError as error:  # it would be the same in every life
            self._on_failed(agent, wire.failure_of(error))

    def _lose_agent(self, name: str, reason: str) -> None:
        if self.agents.pop(name, None) is None:
            if self.state.outcome is None:
                self._event("warning", message=words.turned_away(name, reason))
            return
        if name not in self._rendezvous.roster.agents:
            return  # it was let go
        self._lose_workers_of(name)
        self.state.rounds.notice(now=self.state.now)
        self._handle(AgentLost(name, reason))
        self._note_that_none_is_left()

    def _note_that_none_is_left(self) -> None:
        rendezvous = self._rendezvous
        if rendezvous.stands_alone and not rendezvous.roster.agents and self.state.outcome is None:
            self._event("warning", message=words.waiting_for_any_host(self.progress.step))

    def _lose_workers_of(self, agent: str) -> None:
        for worker in [w.id for w in self._rendezvous.workers.values() if w.agent == agent]:
            self.state.late.pop(worker, None)
            self._event(
                "worker", worker=worker, state="lost", agent=agent, reason="its agent is gone"
            )
            self._renew(self.state.rollout.gone(worker))

    def _replace_agent(self, name: str, session: AgentSession) -> None:
        """Put a new process in the place of an agent: the killed one hears nothing any more."""
        self.agents[name] = session
        if self.state.outcome is not None:
            self._tell(name, wire.EndRun(well=self.state.outcome is not RunOutcome.FAILED))
            return
        self._event(
            "warning", message=f"the agent of {session.host} was killed; a new one has replaced it"
        )
        self._lose_workers_of(name)
        self.state.rounds.notice(now=self.state.now)
        self._handle(AgentReplaced(name))

    def _on_declined(self, agent: str, failure: wire.JobFailed) -> None:
        """Take note that a host cannot take part.

        A job that is under way does without the host. A job that has not begun was asked for it.
        """
        if not self._rendezvous.round:
            self._on_failed(agent, failure)
            return
        reason = wire.words_of(failure)
        self._event("warning", message=words.host_left_out(self._host_of(agent), reason))
        self._lose_agent(agent, f"it cannot take part: {failure.message}")

    def _on_agent(self, agent: str, message: wire.AgentMessage) -> None:
        match message:
            case (
                wire.Beat() | wire.JoinJob() | wire.Printed() | wire.CopyData() | wire.StacksShown()
            ):
                raise ProtocolError(f"{type(message).__name__} has no place in a session")
            case wire.WorkerStarted(worker=worker, pid=pid):
                self.state.pids[worker] = pid
                self._note_state(worker, "started")
            case wire.FromWorker(worker=worker, message=inner):
                self._on_worker(worker, inner)
            case wire.LoseWorker():
                self._on_lost(message)
            case wire.Silence(worker=worker, silent=silent):
                self._on_silence(worker, silent)
            case wire.Late(worker=worker, doing=doing):
                if worker:
                    self.state.late[worker] = doing
                self._tell_of_wait(message, host=self._host_of(agent))
            case wire.OnTime(worker=worker):
                self.state.late.pop(worker, None)
            case wire.Decline(failure=failure):
                self._on_declined(agent, failure)
            case wire.Commits(records=records):
                for record in records:
                    self._on_commit(record)
            case wire.ArriveTogether():
                self._on_arrival(agent, message)
            case wire.AskToStop(reason=reason):
                self._stop(reason)
            case wire.Depart():
                self._event("warning", message=words.host_departs(self._host_of(agent)))
                self.state.rounds.notice(now=self.state.now)
                self._handle(AgentDeparts(agent))
            case wire.JobFailed():
                self._on_failed(agent, message)
            case wire.Warn(message=text):
                self._event("warning", message=text)
            case _:
                assert_never(message)

    # Workers --------------------------------------------------------------------------------------

    def _on_worker(self, worker: str, message: wire.WorkerMessage) -> None:
        match message:
            case wire.Hello(address=address, facts=facts, micro_batches=parts):
                if parts and not self._rendezvous.round:
                    self._rendezvous.parts = parts
                if facts is not None:
                    self._learn(facts)
                self._note_state(worker, "ready")
                self._handle(WorkerReady(worker, address))
            case wire.Introduce(facts=facts):
                self._learn(facts)
            case wire.Installed(round=round, step=step, restored_from=path):
                self._on_installed(worker, round, step, path)
            case wire.LeaveAsked():
                self._note_state(worker, "leaving", reason="SIGTERM")
                self._handle(WorkerAsksToLeave(worker))
            case wire.Idle(round=round):
                self._handle(WorkerIdle(worker, round))
            case wire.CommandProgress():
                self._on_progress(message)
            case wire.ReplicaNews():
                self._on_replica(worker, message)
            case wire.CutOff(round=round):
                self.state.rounds.notice(now=self.state.now)
                self._handle(WorkerCutOff(worker, round))
            case wire.Disagree(message=text):
                self._on_disagreement(worker, text)
            case wire.CheckpointDrafted(step=step):
                # Its agent sent every commit before these words: what becomes official is on
                # record, and on disk.
                self._effects.append(Secure())
                writers = sorted(self._rendezvous.workers)
                self._tell_worker(worker, wire.Publish(step=step, writers=writers))
            case wire.CheckpointMade(
                step=step, path=path, size_bytes=size, seconds=seconds, pause=pause
            ):
                self._event(
                    "checkpoint", step=step, path=path, bytes=size, seconds=seconds, pause=pause
                )
            case wire.NowWritten():
                self._handle(CheckpointCompleted(worker))
            case wire.Evaluated(epoch=epoch, step=step, metrics=metrics):
                if self.progress.ended(epoch, metrics):
                    self._event("epoch", epoch=epoch, step=step, metrics=metrics)
            case wire.Logged(epoch=epoch, step=step, values=values):
                fresh = self.progress.logged(step, values)
                if fresh:
                    self._event("logged", epoch=epoch, step=step, values=fresh)
            case wire.Completed(weights_sha256=digest, metrics=metrics):
                self.progress.weights_sha256, self.progress.metrics = digest, metrics
                self._handle(JobCompleted(worker))
            case wire.JobFailed():
                self._on_failed(worker, message)
            case wire.Warn(message=text):
                self._event("warning", message=text)
            case wire.Beat() | wire.Arrive():
                raise ProtocolError(f"{type(message).__name__} is between a worker and its agent")
            case _:
                assert_never(message)

    def _learn(self, facts: wire.Facts) -> None:
        if (
            self.progress.facts is None and not self.state.failure_told
        ):  # else it would hide the failure
            self.progress.facts = facts
            self._note_beginning(facts)

    def _on_progress(self, message: wire.CommandProgress) -> None:
        if message.round != self._rendezvous.round:
            return  # of processes that were ended since
        self._event("progress", **progress_fields(message))
        if self.progress.command_told(message):
            self._handle(CommandAdvanced(message.round))

    def _on_replica(self, worker: str, news: wire.ReplicaNews) -> None:
        self._event("replica", worker=worker, **replica_fields(news))
        if news.state == "ready":
            self.state.has_served = True
            self._handle(CommandAdvanced(self._rendezvous.round))
            self._renew(self.state.rollout.ready(worker, news.replica))
        elif news.state == "failed" and not self.state.has_served:
            failure = wire.JobFailed(who="user", message=words.never_ready(news.reason))
            self._on_failed(worker, failure)

    def _renew(self, worker: str) -> None:
        """Have the next replica of a service replaced; none where the name is empty."""
        if worker:
            self._tell_worker(worker, wire.RenewReplica())

    def _on_silence(self, worker: str, silent: bool) -> None:
        record = self._rendezvous.workers.get(worker)
        if record is None:
            return
        usual = "started" if record.state is WorkerState.STARTING else record.state.value
        self._note_state(worker, "suspect" if silent else usual)

    def _on_lost(self, lost: wire.LoseWorker) -> None:
        """Take note that a worker's process has ended.

        A fault that another worker would repeat is the user's to mend.
        """
        reason = f"ended by itself with {lost.reason}" if lost.by_itself else lost.reason
        if lost.by_itself:
            self.state.ended_by_itself += 1
            reason += f" at step {self.progress.step}, before the job was done"
        if lost.hang is not None and self.state.hangs.is_second(
            step=lost.hang.step, round=lost.hang.round
        ):
            self._on_failed(lost.worker, words.hung_again(lost, worker=self.name_of(lost.worker)))
        if self.state.ended_by_itself > 1:
            self._on_failed(
                lost.worker, words.ended_again(reason, worker=self.name_of(lost.worker))
            )
        if lost.memory and lost.worker in self._rendezvous.workers:
            self._note_memory(lost)
        self._on_gone(lost.worker, reason)

    def _note_memory(self, lost: wire.LoseWorker) -> None:
        self.progress.out_of_memory += 1
        self.state.too_large = lost.reason if lost.memory == "limit" else self.state.too_large
        if self.progress.out_of_memory == 1:
            host = self._host_of(self._rendezvous.workers[lost.worker].agent)
            text = words.out_of_memory(lost, worker=self.name_of(lost.worker), host=host)
            self._event("warning", message=text)

    def _on_gone(self, worker: str, reason: str) -> None:
        self.state.late.pop(worker, None)
        record = self._rendezvous.workers.get(worker)
        if record is None:
            return
        ending = self._rendezvous.phase in (RendezvousPhase.ENDING, RendezvousPhase.ENDED)
        is_expected = ending or (record.state is WorkerState.LEAVING and not record.in_round)
        self._note_state(worker, "left" if is_expected else "lost", reason=reason)
        self._renew(self.state.rollout.gone(worker))
        self.state.rounds.notice(now=self.state.now)
        self._handle(WorkerGone(worker, reason))

    def _on_failed(self, source: str, failure: wire.JobFailed) -> None:
        if self._rendezvous.phase in (
            RendezvousPhase.ENDING,
            RendezvousPhase.ENDED,
        ) and not self._spoils_the_end(failure):
            return
        self.state.failure_told = True
        self._event("failed", who=failure.who, message=failure.message, trace=failure.trace)
        self._handle(UserFailed(source))

    def _on_disagreement(self, worker: str, text: str) -> None:
        if not self._rendezvous.can_do_without(worker):
            self._on_failed(worker, wire.JobFailed(who="user", message=text))
            return
        name = self.name_of(worker)
        self._handle(WorkerDisagrees(worker))
        worker_count = self._rendezvous.target
        self._event(
            "warning", message=words.newcomer_turned_away(name, text, remaining=worker_count)
        )

    def _spoils_the_end(self, failure: wire.JobFailed) -> bool:
        """Return whether a script that has trained to the end of its loop fails behind it.

        Such a script is not done.
        """
        return self._goes_on_behind_loop and self.is_ending and failure.who in ("user", "spec")

    # Steps ----------------------------------------------------------------------------------------

    def _on_arrival(self, agent: str, arrival: wire.ArriveTogether) -> None:
        """All workers of an agent stand at a point; where all agents do, they are released.

        The master is the root of a round that spans agents: its release is the commit.

        Raises:
            ProtocolError: they cannot stand there.
        """
        point = Point(arrival.step, arrival.phase)
        payload = msgspec.msgpack.encode(arrival.payloads)
        release = self.state.barrier.arrive(agent, arrival.round, point, payload)
        if release is None:
            return
        payloads = [
            payload
            for part in release.payloads
            for payload in msgspec.msgpack.decode(part, type=list[bytes])
        ]
        if point.phase != COMMIT:
            self._release(release, payloads)
            return
        self._release(release, [])
        self._on_commit(
            wire.CommitRecord(
                round=release.round,
                step=point.step + 1,
                at=self.state.at,
                payloads=payloads,
                held=release.hold,
            )
        )

    def _release(self, release: Release, payloads: list[bytes]) -> None:
        for agent in self.state.hosts:
            self._tell(
                agent,
                wire.ReleaseTogether(
                    round=release.round,
                    step=release.point.step,
                    phase=release.point.phase,
                    hold=release.hold,
                    payloads=payloads,
                ),
            )

    def _on_commit(self, record: wire.CommitRecord) -> None:
        reports = [_reports.decode(payload) for payload in record.payloads]
        fields = step_fields(record, reports)
        self._record(STEPS, fields)
        self.state.commits += 1
        self._compare_with_before(fields)
        self.progress.committed(fields)
        self._handle(Committed(record.round, record.step))
        self._mind_stragglers(record, reports)
        self._advise(reports)
        while self.state.faults and self.state.faults[0].step <= record.step:
            self._perform_fault(self.state.faults.pop(0), step=record.step)
        if record.held:
            self._on_held(record.round, record.step)

    def _advise(self, reports: Sequence[wire.StepReport]) -> None:
        """Say once what makes steps slow without need, where a run goes on for a while."""
        since_first = self.progress.last_commit - self.progress.first_commit
        if self.state.is_advised or since_first < _BEFORE_ADVICE:
            return
        self.state.is_advised = True
        passes = sum(len(report.parts) for report in reports)
        seconds = sum(report.seconds.get("compute", 0.0) for report in reports) / max(1, passes)
        is_cut_further = self.spec.micro_batches > fewest_micro_batches(self.spec.workers)
        if self.spec.exact and is_cut_further and seconds < _SHORT_PASS:
            self._event("warning", message=words.short_micro_batches(seconds, spec=self.spec))

    def _compare_with_before(self, fields: dict[str, Any]) -> None:
        """Warn where a step that is made again comes to another loss. Its weights are other ones."""
        previous_loss = self.progress.loss_before(fields)
        is_audited = self.spec.exact and self.spec.audit and self.spec.asynchronous is None
        if previous_loss is None or self.state.has_differed or not is_audited:
            return
        self.state.has_differed = True
        text = words.made_again(fields["step"], previous_loss=previous_loss, now=fields["loss"])
        self._event("warning", message=text)

    def _mind_stragglers(self, record: wire.CommitRecord, reports: list[wire.StepReport]) -> None:
        """Look for stragglers, where reduction is canonical: else every rank has one part.

        With one part a rank there is nothing to move.
        """
        if (
            self.state.rounds.world is None
            or record.round != self.state.rounds.world.round
            or not self.spec.exact
        ):
            return
        loads, other_seconds = loads_of(self.state.rounds.world, reports)
        for advice in self.state.stragglers.committed(
            record.round, loads, other_seconds=other_seconds
        ):
            match advice:
                case Uneven(paces=paces, cause=cause):
                    self._handle(Straggling(paces, cause))
                case Bottleneck():
                    host = self._host_of(self._rendezvous.workers[advice.worker].agent)
                    text = words.slow_worker(advice, host=host, parts=self._rendezvous.parts)
                    self._event("warning", message=text)
                case _:
                    assert_never(advice)

    def _on_held(self, round: int, step: int) -> None:
        self.state.rounds.hold(now=self.state.now)
        self._handle(AllHeld(round, step))

    def _on_installed(self, worker: str, round: int, step: int, restored_from: str) -> None:
        self._handle(WorkerInstalled(worker, round, step))
        # Who restored may speak later than who had it from there, and this directory may know
        # nothing of the job.
        if self.state.rounds.is_first_restored(round) and (
            restored_from or step or self.progress.step
        ):
            # Its time is that of the naming: the round's first commit may be older than this
            # message.
            restored = Restored(
                at=self.state.rounds.named_at,
                step=step,
                path=restored_from,
                commits=self.state.commits,
            )
            self._record(EVENTS, restored)
        re_formed = self.state.rounds.install(worker, round, step, now=self.state.now)
        if re_formed is None:
            return
        in_flight = 0 if self.spec.restart else re_formed.in_flight
        redone = in_flight + max(0, self.progress.step - step)
        self.progress.steps_redone += in_flight
        self.progress.installed(step, self.state.at)
        if round > 1:
            self.progress.re_forming += re_formed.seconds
            self._event("re_formed", round=round, seconds=re_formed.seconds, redone=redone)

    # Faults ---------------------------------------------------------------------------------------

    def _perform_fault(self, fault: Fault, *, step: int) -> None:
        """Perform a fault of the job's spec, now that its step is committed."""
        if fault.kind in (FaultKind.ADD, FaultKind.REMOVE):
            self._note_fault(fault, step)
            self._change_workers(fault)
            return
        world = self.state.rounds.world
        members = world.members if world is not None else ()
        worker = members[fault.rank].worker if fault.rank < len(members) else None
        self._note_fault(fault, step, worker)
        if worker is None:
            self._warn_of_fault(fault, f"there is no rank {fault.rank}")
        else:
            self._signal(worker, _SIGNALS[fault.kind], resume_after=fault.seconds)

    def _change_workers(self, fault: Fault) -> None:
        change = fault.count if fault.kind is FaultKind.ADD else -fault.count
        target = self._rendezvous.target + change
        maximum = self._rendezvous.parts
        if self.spec.exact and target > maximum:
            detail = (
                f"{counted(target, 'worker')} are more than the {counted(maximum, 'micro-batch')} of "
                "a step"
            )
            self._warn_of_fault(fault, detail)
        elif target <= 0:
            self._warn_of_fault(fault, "no worker would be left")
        else:
            self._resize(target)

    def _note_fault(self, fault: Fault, step: int, worker: str | None = None) -> None:
        self._event("fault", text=describe(fault), step=step, worker=worker)

    def _warn_of_fault(self, fault: Fault, detail: str) -> None:
        self._event("warning", message=f"{describe(fault)}: {detail}")

    # Commands -------------------------------------------------------------------------------------

    def _handle(self, event: Event) -> None:
        if self.state.outcome is not None:
            return
        for command in self._rendezvous.handle(event):
            self._perform(command)

    def _perform(self, command: Command) -> None:
        match command:
            case StartWorker(agent, worker, delay):
                self._tell(agent, wire.StartWorkers(workers=[worker], delay=delay))
            case Install(world, cause, is_still):
                self._install(world, cause, is_still=is_still)
            case Hold(round):
                self._hold(round)
            case AwaitOthers(round):
                patience = _FOR_ALL if self.spec.is_restarted else _FOR_OTHERS
                self.state.others_due = (round, self.state.now + patience)
            case WriteCheckpoint(worker):
                self.state.barrier.close()
                self._tell_worker(worker, wire.WriteNow(recorded=self.progress.step))
            case Dismiss(worker):
                self._tell_worker(worker, wire.Dismissed())
            case Kill(worker, reason):
                self._signal(worker, signal.SIGKILL, reason=reason)
            case GiveUpOn():
                host = self._host_of(command.agent)
                run = self.progress.run
                text = words.host_given_up(command, host=host, run=run, spec=self.spec)
                self._event("warning", message=text)
            case LetGo(agent, well):
                self._tell(agent, wire.EndRun(well=well))
                self._note_that_none_is_left()
            case End(outcome, reason):
                self._end(outcome, reason)
            case _:
                assert_never(command)

    def _hold(self, round: int) -> None:
        """Have all members stop at the next step boundary, by the root of the round's barrier."""
        if len(self.state.hosts) > 1:
            self.state.barrier.hold(round)
        else:
            self._tell(self.state.hosts[0], wire.HoldRound(round=round))

    def _install(self, world: World, cause: str, *, is_still: bool) -> None:
        if is_still:
            self.state.rounds.notice(now=self.state.now)
        self.state.rounds.name(world, timestamp=self.state.at)
        # Also where an agent's hub is the root: a late arrival must not complete, and commit, the
        # round before.
        self.state.hosts = list(world.hosts)
        self.state.barrier.begin(world.round, self.state.hosts)
        self.progress.world_sizes.add(len(world.workers))
        self.progress.servers.add(len(world.servers))
        self._announce(world, cause, is_still=is_still)

    def _announce(self, world: World, cause: str, *, is_still: bool) -> None:
        """Let everybody know the round that begins, and record new ranks."""
        step = self.progress.step
        self._event(
            "round",
            round=world.round,
            world_size=len(world.workers),
            workers=[member.worker for member in world.members],
            shares=list(world.shares),
            step=step,
            cause=cause,
        )
        # A worker that was cut off may publish, by an old permission, a checkpoint that is ahead of the
        # records by now.
        recorded = step if step or self.state.commits else None
        for agent in world.hosts:
            self._tell(agent, wire.InstallRound(world=world, recorded=recorded, still=is_still))
        for rank, member in enumerate(world.members):
            if self.state.ranks.get(member.worker) != rank:
                self.state.ranks[member.worker] = rank
                self._note_state(member.worker, "active", rank=rank)

    def _end(self, outcome: RunOutcome, reason: str) -> None:
        self.state.outcome = outcome
        if outcome is RunOutcome.FAILED and not self.state.failure_told:
            # Another start would end as this one, wherever a worker has too little by its user's
            # own words, or a command ends itself.
            lacks_memory = bool(self.state.too_large) and reason.endswith(self.state.too_large)
            ends_itself = self.spec.restart and EXIT_STATUS in reason
            culprit = "user" if lacks_memory or ends_itself else "environment"
            hint = f"; {words.MORE_MEMORY}" if lacks_memory else ""
            self._event("failed", who=culprit, message=f"{reason}{hint}", trace="")
        self._event("run_ended", summary=self.progress.summary(outcome, self.state.at))
        self._effects.append(Secure())
        for agent in self._rendezvous.roster.agents:  # who was let go has heard it
            self._tell(agent, wire.EndRun(well=outcome is not RunOutcome.FAILED))

    # People ---------------------------------------------------------------------------------------

    def _on_asked(self, question: wire.Ask) -> None:
        match question.verb:
            case "resize":
                self._resize(question.workers, question.places, servers=question.servers)
            case "suspend":
                self._stop(question.reason or "brim suspend")
            case "renew":
                self._renew(self.state.rollout.begin(self._rendezvous.workers))

    def _stop(self, reason: str) -> None:
        """End at the next step boundary, with a checkpoint.

        Where all steps are done, end the scripts as well.
        """
        if self.is_ending and self._goes_on_behind_loop:
            self._end_who_overstays(hurried=True)
        self._handle(Stop(reason))
        if self.state.grace_ends is None and self._waits_for_boundary:
            self.state.grace_ends = self.state.now + _GRACE

    @property
    def _waits_for_boundary(self) -> bool:
        """Return whether the run is to end, and some member has to do something first."""
        stops, phase = self._rendezvous.is_stopping, self._rendezvous.phase
        return stops and phase in (RendezvousPhase.RUNNING, RendezvousPhase.WRITING)

    def _on_grace_over(self) -> None:
        """A run that should end has waited: it goes on without late members."""
        self.state.grace_ends = (
            self.state.now + _GRACE_EXTENSION if self._waits_for_boundary else None
        )
        late = {
            worker: doing
            for worker, doing in self.state.late.items()
            if worker in self._rendezvous.workers
        }
        if late and self.state.grace_ends is not None:
            self.state.late.clear()
            self._handle(Hurry(late))

    def _resize(
        self, workers: int, places: Mapping[str, int] | None = None, *, servers: int | None = None
    ) -> None:
        """Change the number of workers, or of servers alone: then workers stay where they are."""
        self.state.rounds.notice(now=self.state.now)
        if not workers:
            workers, places = self._rendezvous.target, self._rendezvous.roster.places.wanted
        self._handle(ResizeRequested(workers, places or {}, servers))

    @property
    def _goes_on_behind_loop(self) -> bool:
        return bool(self.spec.command) and self.progress.weights_sha256 is not None

    def _end_who_overstays(self, *, hurried: bool) -> None:
        """Kill workers that were dismissed and stay.

        A user's own script may have work to do behind its loop.
        """
        if not self.is_ending:
            return
        workers = list(self._rendezvous.workers)
        if self._goes_on_behind_loop and not hurried:
            if not self.state.patience_told:
                self.state.patience_told = True
                text = f"waiting for what the scripts of {', '.join(workers)} do behind their loops"
                self._event(
                    "warning", message=f"{text}; brim suspend {self.progress.run} ends them"
                )
            return
        for worker in workers:
            self._signal(worker, signal.SIGKILL)

    # Effects --------------------------------------------------------------------------------------

    def _tell_of_wait(self, late: wire.Late, *, host: str) -> None:
        if late.start:
            subject = late.worker or (host if len(self.agents) > 1 else "")
            self._event("starting", message=words.starting(late, subject=subject))
            return
        waiting_for = (
            self.name_of(late.worker) if late.worker else f"the template process on {host}"
        )
        self._event("warning", message=words.waiting_for(late, worker=waiting_for))

    def _event(self, kind: str, /, **fields: object) -> None:
        """A line of events.jsonl, of this moment."""
        self._record(EVENTS, event_of(kind, at=self.state.at, **fields))

    def _record(self, file: RecordName, record: told.Event | dict[str, Any]) -> None:
        line = msgspec.json.encode(record) + b"\n"
        place = self.state.sizes.get(file, 0)
        self.state.sizes[file] = place + len(line)
        self._effects.append(Record(file, place, line))

    def _tell(self, agent: str, message: wire.MasterMessage) -> None:
        """Say something to an agent, if it is in the job."""
        if agent in self.agents:
            self.agents[agent].outbox.put(message)

    def _tell_worker(self, worker: str, message: wire.WorkerBound) -> None:
        """Say something to a worker, if it is in the job."""
        record = self._rendezvous.workers.get(worker)
        if record is not None:
            self._tell(record.agent, wire.ToWorker(worker=worker, message=message))

    def _signal(
        self, worker: str, number: int, *, resume_after: float = 0.0, reason: str = ""
    ) -> None:
        """Have a worker sent a signal, if it is in the job."""
        record = self._rendezvous.workers.get(worker)
        if record is not None:
            message = wire.SignalWorker(
                worker=worker, signal=number, resume_after=resume_after, reason=reason
            )
            self._tell(record.agent, message)

    def _note_state(
        self, worker: str, state: str, *, rank: int | None = None, reason: str = ""
    ) -> None:
        """Record the state of a worker."""
        record = self._rendezvous.workers.get(worker)
        self._event(
            "worker",
            worker=worker,
            state=state,
            pid=self.state.pids.get(worker, 0),
            agent=record.agent if record else "",
            rank=rank,
            reason=reason,
            serves=record is not None and record.serves,
        )

    def _note_beginning(self, facts: wire.Facts) -> None:
        """Record the facts of the run from its first worker."""
        said_by_loop = {
            name: getattr(facts, name)
            for name in ("epochs", "global_batch_size", "seed", "clip_norm", "on_nan")
        }
        if self._rendezvous.parts:  # a resumed run is checked by these
            said_by_loop["micro_batches"] = self._rendezvous.parts
        self._event(
            "run_started",
            run=self.progress.run,
            file=self.spec.file,
            command=list(self.spec.command),
            spec={**msgspec.to_builtins(self.spec), **said_by_loop},
            steps=facts.steps,
            steps_per_epoch=facts.steps_per_epoch,
            versions=facts.versions,
            host=next((agent.host for agent in self.agents.values()), ""),
            start_method=facts.start_method,
            tables=[asdict(table) for table in facts.tables],
        )
        if not self.spec.restart:
            said_of_data = {name: getattr(facts, name) for name in DatasetFacts.__struct_fields__}
            self._event("dataset", **said_of_data)
        if self.state.began.note:
            self._event("warning", message=self.state.began.note)
        if self.spec.servers and self.spec.workers.maximum == 1:
            self._event("warning", message=words.servers_without_need())

    def name_of(self, worker: str) -> str:
        """A worker as people know it."""
        record = self._rendezvous.workers.get(worker)
        rank = self.state.ranks.get(worker) if record is not None and record.in_round else None
        return worker if rank is None else f"{worker} (rank {rank})"

    def _host_of(self, agent: str) -> str:
        """The host of an agent as people know it."""
        session = self.agents.get(agent)
        return f"agent {agent}" if session is None else f"{session.host} (agent {agent})"


def refusal(question: wire.Ask, spec: JobSpec, *, maximum: int, is_stopping: bool) -> str:
    """Return why a user's request to a living job is refused; empty where it is not.

    Args:
        question: that the user asks.
        spec: of the job.
        maximum: workers that an exact job can have: the micro-batches of a step.
        is_stopping: the job is.
    """
    if question.verb == "suspend":
        return ""
    if question.verb == "renew":
        return "" if spec.service is not None else "it is no service"
    if question.verb != "resize":
        return f"unknown question {question.verb!r}"
    workers = question.workers
    servers = question.servers
    places = question.places
    if servers is not None and not spec.servers:
        return (
            "servers: this run began without any, and its model may not be one for them; "
            "start it with --ps"
        )
    if servers is not None and not 0 <= servers <= LARGEST_COUNT:
        return f"servers: got {servers}, need a whole number from 0"
    if workers or servers is None:
        if not workers >= 1 or (spec.exact and workers > maximum):
            return f"workers: got {workers}, need 1 to {maximum}, the micro-batches of a step"
        if places and (sum(places.values()) != workers or min(places.values()) < 1):
            return f"places: got {places}, need {workers} in all, at least 1 on each"
    return "it is stopping: nothing is resized any more" if is_stopping else ""
