"""What a master decides, as a function of its journal: the same entries always give the same effects. Pure.

Entries come in, effects go out; messages to agents are kept in their sessions' outboxes until they are acknowledged.
Nothing in here reads a clock, draws a number or touches a file, so a master that takes over from a dead one comes to
stand exactly where that one stood.
"""

from __future__ import annotations

import signal
from typing import Any, assert_never

import msgspec

from brim.coordination.barrier import COMMIT, Barrier, Point, Release
from brim.coordination.membership import (
    AgentJoined,
    AgentLost,
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
    WorkerInstalled,
    WorkerReady,
    WorkerState,
    World,
    WriteCheckpoint,
)
from brim.coordination.rendezvous import Rendezvous
from brim.coordination.session import is_new
from brim.coordination.stragglers import Bottleneck, Stragglers, Uneven
from brim.decoding import UNDECODABLE
from brim.domain.faults import Fault, FaultKind, describe
from brim.errors import InternalError, ProtocolError
from brim.master.effects import AgentSession, Effect, Effects
from brim.master.entries import Asked, Began, Entry, Heard, Joined, Lost, Overstayed, Restated, TookOver
from brim.master.pace import bottleneck_warning, given_up_warning, loads_of
from brim.master.progress import Progress, step_fields
from brim.master.rounds import RoundAccount
from brim.wire import messages as wire

__all__ = ["Decisions"]

_reports = msgspec.msgpack.Decoder(wire.StepReport)


class Decisions:
    """The state of one job.

    Args:
        began: the first entry of its journal.
    """

    def __init__(self, began: Began) -> None:
        spec = began.spec
        self.spec, self.attempt, self.life = spec, began.attempt, began.life
        self.progress = Progress(run=began.run, started=began.started, step=began.step)
        self.outcome: Outcome | None = None
        self._rendezvous = Rendezvous(
            minimum=spec.workers.minimum,
            target=spec.workers.maximum,
            spares=spec.spares,
            expected_agents=spec.agents,
            parts=spec.micro_batches if spec.exact else 0,
        )
        self._stragglers = Stragglers()
        self._out = Effects(sizes=dict(began.sizes), at=began.at, now=began.now)
        self._rounds = RoundAccount()
        self._barrier = Barrier()
        self._pids: dict[str, int] = {}
        self._ranks: dict[str, int] = {}
        self._faults = sorted(spec.faults, key=lambda fault: fault.step)
        self._patience_told = False
        self._failure_told = False

    @property
    def agents(self) -> dict[str, AgentSession]:
        """The agents in the job, by name."""
        return self._out.agents

    @property
    def is_ending(self) -> bool:
        """Whether workers were dismissed and are still to go."""
        return self._rendezvous.phase is Phase.ENDING

    def status(self) -> dict[str, Any]:
        """What people are told of it."""
        rendezvous = self._rendezvous
        return {"phase": rendezvous.phase.value, "round": rendezvous.round, "target": rendezvous.target}

    def refusal(self, question: wire.Ask) -> str:
        """Why people cannot have what they ask for; empty where they can."""
        most = self.spec.micro_batches
        if question.verb not in ("resize", "suspend"):
            return f"unknown question {question.verb!r}"
        if question.verb == "resize":
            if not question.workers >= 1 or (self.spec.exact and question.workers > most):
                return f"workers: got {question.workers}, need 1 to {most}, the micro-batches of a step"
            if self._rendezvous.is_stopping:
                return "it is stopping: nothing is resized any more"
        return ""

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
            case Asked(question=question):
                self._on_asked(question)
            case Overstayed():
                self._end_who_overstays(hurried=False)
            case _:
                assert_never(entry)
        return self._out.end()

    def _tell_worker(self, worker: str, message: wire.WorkerBound) -> None:
        if worker in self._rendezvous.workers:
            agent = self._rendezvous.workers[worker].agent
            self._out.tell(agent, wire.ToWorker(worker=worker, message=message))

    # Agents ------------------------------------------------------------------------------------------------

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
        for worker in [w.id for w in self._rendezvous.workers.values() if w.agent == name]:
            self._out.event("worker", worker=worker, state="lost", agent=name, reason="its agent is gone")
        self._handle(AgentLost(name, reason))

    def _on_agent(self, agent: str, message: wire.AgentMessage) -> None:
        match message:
            case wire.Beat() | wire.JoinJob():
                raise ProtocolError(f"{type(message).__name__} has no place in a session")
            case wire.WorkerStarted(worker=worker, pid=pid):
                self._pids[worker] = pid
                self._worker_event(worker, "started")
            case wire.FromWorker(worker=worker, message=inner):
                self._on_worker(worker, inner)
            case wire.LoseWorker(worker=worker, reason=reason):
                self._on_gone(worker, reason)
            case wire.Silence(worker=worker, silent=silent):
                self._on_silence(worker, silent)
            case wire.Commits(records=records):
                for record in records:
                    self._on_commit(record)
            case wire.HeldAt(round=round, step=step):
                self._on_held(round, step)
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

    # Workers -----------------------------------------------------------------------------------------------

    def _on_worker(self, worker: str, message: wire.WorkerMessage) -> None:
        match message:
            case wire.Hello(address=address, facts=facts):
                if not self._failure_told:  # a run that begins behind its own failure would hide it
                    self._learn(facts)
                self._worker_event(worker, "ready")
                self._handle(WorkerReady(worker, address))
            case wire.Installed(round=round, step=step, restored_from=path):
                self._on_installed(worker, round, step, path)
            case wire.Leave():
                self._worker_event(worker, "leaving", reason="SIGTERM")
                self._handle(WorkerAsksToLeave(worker))
            case wire.CheckpointDrafted(step=step):
                # Its agent sent every commit before these words: what becomes official is on record, and on disk.
                self._out.secure()
                writers = sorted(self._rendezvous.workers)
                self._tell_worker(worker, wire.Publish(step=step, writers=writers))
            case wire.CheckpointMade(step=step, path=path, size_bytes=size, seconds=seconds, pause=pause):
                self._out.event("checkpoint", step=step, path=path, bytes=size, seconds=seconds, pause=pause)
            case wire.NowWritten():
                self._handle(CheckpointWritten(worker))
            case wire.Evaluated(epoch=epoch, step=step, metrics=metrics):
                self.progress.metrics = metrics
                self._out.event("epoch", epoch=epoch, step=step, metrics=metrics)
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
        if self.progress.facts is not None:
            return
        self.progress.facts = facts
        self._out.event(
            "run_started",
            run=self.progress.run,
            file=self.spec.file,
            command=list(self.spec.command),
            spec=msgspec.to_builtins(self.spec),
            steps=facts.steps,
            steps_per_epoch=facts.steps_per_epoch,
            versions=facts.versions,
            host=next((agent.host for agent in self.agents.values()), ""),
            start_method=facts.start_method,
        )
        self._out.event(
            "dataset",
            samples=facts.samples,
            test_samples=facts.test_samples,
            quarantined=facts.quarantined,
            quarantine_path=facts.quarantine_path,
            block_size=facts.block_size,
        )

    def _worker_event(self, worker: str, state: str, *, rank: int | None = None, reason: str = "") -> None:
        known = self._rendezvous.workers.get(worker)
        self._out.event(
            "worker",
            worker=worker,
            state=state,
            pid=self._pids.get(worker, 0),
            agent=known.agent if known else "",
            rank=rank,
            reason=reason,
        )

    def _on_silence(self, worker: str, silent: bool) -> None:
        known = self._rendezvous.workers.get(worker)
        if known is None:
            return
        usual = "started" if known.state is WorkerState.STARTING else known.state.value
        self._worker_event(worker, "suspect" if silent else usual)

    def _on_gone(self, worker: str, reason: str) -> None:
        known = self._rendezvous.workers.get(worker)
        if known is None:
            return
        ending = self._rendezvous.phase in (Phase.ENDING, Phase.ENDED)
        left = ending or (known.state is WorkerState.LEAVING and not known.in_round)
        self._worker_event(worker, "left" if left else "lost", reason=reason)
        self._rounds.notice(now=self._out.now)
        self._handle(WorkerGone(worker, reason))

    def _on_failed(self, source: str, failure: wire.Failed) -> None:
        if self._rendezvous.phase in (Phase.ENDING, Phase.ENDED):
            return
        self._failure_told = True
        self._out.event("failed", who=failure.who, message=failure.message, trace=failure.trace)
        self._handle(UserFailed(source))

    # Steps -------------------------------------------------------------------------------------------------

    def _on_arrival(self, agent: str, arrival: wire.ArriveTogether) -> None:
        """All workers of an agent stand at a point; where all agents do, this is the root and releases them."""
        point = Point(arrival.step, arrival.phase)
        payload = msgspec.msgpack.encode(arrival.payloads)
        release = self._barrier.arrive(agent, arrival.round, point, payload)
        if release is None:
            return
        payloads = [
            each for part in release.payloads for each in msgspec.msgpack.decode(part, type=list[bytes])
        ]
        if point.phase == COMMIT:
            record = wire.CommitRecord(
                round=release.round, step=point.step + 1, at=self._out.at, payloads=payloads
            )
            self._release(release, [])
            self._on_commit(record)
            if release.hold:
                self._on_held(release.round, point.step + 1)
        else:
            self._release(release, payloads)

    def _release(self, release: Release, payloads: list[bytes]) -> None:
        assert self._rounds.world is not None
        for agent in self._rounds.world.hosts:
            self._out.tell(
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
        self._out.step(fields)
        self.progress.committed(fields)
        self._handle(Committed(record.round, record.step))
        self._mind_stragglers(record, reports)
        while self._faults and self._faults[0].step <= record.step:
            self._perform_fault(self._faults.pop(0))

    def _mind_stragglers(self, record: wire.CommitRecord, reports: list[wire.StepReport]) -> None:
        """Without canonical reduction every rank has one part: there is nothing to move."""
        if self._rounds.world is None or record.round != self._rounds.world.round or not self.spec.exact:
            return
        loads, other = loads_of(self._rounds.world, reports)
        for advice in self._stragglers.committed(record.round, loads, other=other):
            match advice:
                case Uneven(paces=paces, cause=cause):
                    self._handle(Straggling(paces, cause))
                case Bottleneck(worker=worker):
                    host = self._host_of(self._rendezvous.workers[worker].agent)
                    text = bottleneck_warning(advice, host=host, parts=self.spec.micro_batches)
                    self._out.event("warning", message=text)
                case _:
                    assert_never(advice)

    def _host_of(self, agent: str) -> str:
        """As people know it."""
        return f"{self.agents[agent].host} (agent {agent})" if agent in self.agents else f"agent {agent}"

    def _on_held(self, round: int, step: int) -> None:
        self._rounds.hold(now=self._out.now)
        self._handle(Held(round, step))

    def _on_installed(self, worker: str, round: int, step: int, restored_from: str) -> None:
        self._handle(WorkerInstalled(worker, round, step))
        # Who restored may speak later than who had it from there, and this directory may know nothing of the job.
        if self._rounds.is_first_restored(round) and (restored_from or step or self.progress.step):
            # Its time is that of the naming: the round's first commit may be older than this message.
            self._out.past_event("restored", at=self._rounds.named_at, step=step, path=restored_from)
        re_formed = self._rounds.install(worker, round, step, now=self._out.now)
        if re_formed is None:
            return
        redone = re_formed.in_flight + max(0, self.progress.step - step)
        self.progress.steps_redone += re_formed.in_flight
        self.progress.installed(step, self._out.at)
        if round > 1:
            self.progress.re_forming += re_formed.seconds
            self._out.event("re_formed", round=round, seconds=re_formed.seconds, redone=redone)

    # Faults ------------------------------------------------------------------------------------------------

    def _perform_fault(self, fault: Fault) -> None:
        if fault.kind in (FaultKind.ADD, FaultKind.REMOVE):
            self._note_fault(fault)
            self._add_or_remove(fault)
        else:
            self._signal_rank(fault)

    def _note_fault(self, fault: Fault, worker: str | None = None) -> None:
        self._out.event("fault", text=describe(fault), step=self.progress.step, worker=worker)

    def _add_or_remove(self, fault: Fault) -> None:
        change = fault.count if fault.kind is FaultKind.ADD else -fault.count
        wanted, most = self._rendezvous.target + change, self.spec.micro_batches
        detail = "" if wanted > 0 else "no worker would be left"
        if self.spec.exact and wanted > most:
            detail = f"{wanted} workers are more than the {most} micro-batches of a step"
        if detail:
            self._out.event("warning", message=f"{describe(fault)}: {detail}")
        else:
            self._resize(wanted)

    def _signal_rank(self, fault: Fault) -> None:
        worker = None
        if self._rounds.world is not None and fault.rank < self._rounds.world.world_size:
            worker = self._rounds.world.members[fault.rank].worker
        self._note_fault(fault, worker)
        if worker is None:
            self._out.event("warning", message=f"{describe(fault)}: there is no rank {fault.rank}")
            return
        number = {
            FaultKind.KILL: signal.SIGKILL,
            FaultKind.TERM: signal.SIGTERM,
            FaultKind.STOP: signal.SIGSTOP,
        }
        self._signal(worker, number[fault.kind], resume_after=fault.seconds)

    def _signal(self, worker: str, number: int, *, resume_after: float = 0.0) -> None:
        known = self._rendezvous.workers.get(worker)
        if known is not None:
            self._out.tell(
                known.agent, wire.SignalWorker(worker=worker, signal=number, resume_after=resume_after)
            )

    # Commands ----------------------------------------------------------------------------------------------

    def _handle(self, event: Event) -> None:
        if self.outcome is not None:
            return
        for command in self._rendezvous.handle(event):
            self._perform(command)

    def _perform(self, command: Command) -> None:
        match command:
            case StartWorker(agent, worker, delay):
                self._out.tell(agent, wire.StartWorkers(workers=[worker], delay=delay))
            case Install(world, cause):
                self._install(world, cause)
            case Hold(round):
                self._hold(round)
            case WriteCheckpoint(worker):
                self._tell_worker(worker, wire.WriteNow())
            case Dismiss(worker):
                self._tell_worker(worker, wire.Dismissed())
            case Kill(worker):
                self._signal(worker, signal.SIGKILL)
            case GiveUpOn(agent=agent):
                text = given_up_warning(
                    command, host=self._host_of(agent), run=self.progress.run, spec=self.spec
                )
                self._out.event("warning", message=text)
            case End(outcome, reason):
                self._end(outcome, reason)
            case _:
                assert_never(command)

    def _install(self, world: World, cause: str) -> None:
        self._rounds.name(world, at=self._out.at)
        self.progress.world_sizes.add(world.world_size)
        self._out.event(
            "round",
            round=world.round,
            world_size=world.world_size,
            workers=[member.worker for member in world.members],
            shares=list(world.shares),
            step=self.progress.step,
            cause=cause,
        )
        # Also where this is not the root: a late arrival must not complete, and commit, the round before.
        self._barrier.begin(world.round, world.hosts)
        for agent in world.hosts:
            self._out.tell(agent, wire.InstallRound(world=world))
        for rank, member in enumerate(world.members):
            if self._ranks.get(member.worker) != rank:
                self._ranks[member.worker] = rank
                self._worker_event(member.worker, "active", rank=rank)

    def _hold(self, round: int) -> None:
        assert self._rounds.world is not None
        hosts = list(self._rounds.world.hosts)
        if len(hosts) > 1:
            self._barrier.hold(round)
        else:
            self._out.tell(hosts[0], wire.HoldRound(round=round))

    def _end(self, outcome: Outcome, reason: str) -> None:
        self.outcome = outcome
        if outcome is Outcome.FAILED and not self._failure_told:
            self._out.event("failed", who="environment", message=reason, trace="")
        self._out.event("run_ended", summary=self.progress.summary(outcome, self._out.at))
        self._out.secure()
        for agent in self.agents:
            self._out.tell(agent, wire.EndRun(well=outcome is not Outcome.FAILED))

    # People ------------------------------------------------------------------------------------------------

    def _on_asked(self, question: wire.Ask) -> None:
        match question.verb:
            case "resize":
                self._resize(question.workers)
            case "suspend":
                self._stop(question.reason or "brim suspend")

    def _stop(self, reason: str) -> None:
        """End at the next step boundary, with a checkpoint; where all steps are done, end the scripts as well."""
        if self.is_ending and self._goes_on_behind_loop:
            self._end_who_overstays(hurried=True)
        self._handle(Stop(reason))

    def _resize(self, workers: int) -> None:
        self._rounds.notice(now=self._out.now)
        self._handle(Resize(workers))

    @property
    def _goes_on_behind_loop(self) -> bool:
        return bool(self.spec.command) and self.progress.weights_sha256 is not None

    def _end_who_overstays(self, *, hurried: bool) -> None:
        """Kill who was dismissed and stays; but a user's own script may have work to do behind its loop."""
        if not self.is_ending:
            return
        workers = list(self._rendezvous.workers)
        if self._goes_on_behind_loop and not hurried:
            if not self._patience_told:
                self._patience_told = True
                text = f"waiting for what the scripts of {', '.join(workers)} do behind their loops"
                self._out.event("warning", message=f"{text}; brim suspend {self.progress.run} ends them")
            return
        for worker in workers:
            self._signal(worker, signal.SIGKILL)
