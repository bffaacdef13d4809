"""The master: takes what agents, workers and people say, asks the rendezvous, and performs what it answers."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, assert_never

import msgspec

from brim.coordination.barrier import COMMIT, Barrier, Point, Release
from brim.coordination.liveness import Liveness
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
    Held,
    Hold,
    Install,
    Kill,
    Outcome,
    Resize,
    StartWorker,
    Stop,
    UserFailed,
    WorkerAsksToLeave,
    WorkerGone,
    WorkerInstalled,
    WorkerReady,
    WorkerState,
    World,
    WriteCheckpoint,
)
from brim.coordination.rendezvous import Phase, Rendezvous
from brim.domain.faults import Fault, FaultKind, describe
from brim.domain.job import JobSpec
from brim.errors import InternalError, ProtocolError
from brim.interfaces import Clock
from brim.master.progress import Progress, step_fields
from brim.master.records import Records
from brim.telemetry.events import EventLog
from brim.wire import messages as wire
from brim.wire.control import Reply

__all__ = ["Master"]

_TICK = 0.2
_AGENT_SILENCE = 15.0  # long: a closed connection tells sooner, and a busy host may starve an agent
_TO_END = 15.0  # seconds that dismissed workers may take before they are killed
_reports = msgspec.msgpack.Decoder(wire.StepReport)


@dataclass(slots=True)
class _Agent:
    name: str
    host: str
    outbox: asyncio.Queue[wire.MasterMessage] = field(default_factory=asyncio.Queue)


class Master:
    """One job's master.

    Args:
        spec: what the job was asked to do.
        progress: how far it is; its `run` is the run's directory.
        events: the run's events.jsonl.
        steps: the run's steps.jsonl.
        clock: orders heartbeats, stamps records.
    """

    def __init__(
        self, spec: JobSpec, progress: Progress, *, events: EventLog, steps: EventLog, clock: Clock
    ) -> None:
        self._spec, self._progress, self._clock = spec, progress, clock
        self._events = Records(events, self._cannot_record)
        self._steps = Records(steps, self._cannot_record)
        self._rendezvous = Rendezvous(
            minimum=spec.workers.minimum,
            target=spec.workers.maximum,
            spares=spec.spares,
            expected_agents=spec.agents,
            most_losses=max(8, 2 * spec.workers.maximum),
        )
        self._agents: dict[str, _Agent] = {}
        self._liveness = Liveness(timeout=max(_AGENT_SILENCE, 2 * spec.heartbeat_timeout))
        self._barrier = Barrier()
        self._world: World | None = None
        self._installed: dict[str, int] = {}
        self._round_noticed = 0.0
        self._round_named = 0.0
        self._step_in_flight = False
        self._pids: dict[str, int] = {}
        self._ranks: dict[str, int] = {}
        self._faults = sorted(spec.faults, key=lambda fault: fault.step)
        self._kill_at: float | None = None
        self._patience_told = False
        self._hurried = False
        self._failure_told = False
        self.ended = asyncio.Event()
        self.outcome = Outcome.FAILED

    # Agents ------------------------------------------------------------------------------------------------

    async def converse(self, requests: AsyncIterator[wire.AgentMessage], reply: Reply) -> None:
        """Serve one agent until it is gone."""
        first = await anext(aiter(requests), None)
        if not isinstance(first, wire.JoinJob):
            raise ProtocolError("an agent's first message is JoinJob")
        if first.agent in self._agents:
            await reply(wire.Refused(reason=f"there is an agent named {first.agent} already"))
            return
        agent = self._agents[first.agent] = _Agent(first.agent, first.host)
        sending = asyncio.create_task(_send(agent, reply))
        self._tell(agent.name, wire.Configure(spec=self._spec, run_dir=self._progress.run))
        self._liveness.beat(agent.name, now=self._clock.now())
        self._handle(AgentJoined(agent.name))
        reason = "its connection closed"
        try:
            async for message in requests:
                if agent.name not in self._agents:
                    return  # declared lost: whatever it still says is of no effect
                self._liveness.beat(agent.name, now=self._clock.now())
                self._on_agent(agent.name, message)
        except ProtocolError as error:
            reason = str(error)
        finally:
            self._lose_agent(agent.name, reason)
            await asyncio.sleep(0)
            sending.cancel()

    def _lose_agent(self, name: str, reason: str) -> None:
        if self._agents.pop(name, None) is None:
            return
        self._liveness.forget(name)
        for worker in [w.id for w in self._rendezvous.workers.values() if w.agent == name]:
            self._events.append("worker", worker=worker, state="lost", agent=name, reason="its agent is gone")
        self._handle(AgentLost(name, reason))

    def _tell(self, agent: str, message: wire.MasterMessage) -> None:
        if agent in self._agents:
            self._agents[agent].outbox.put_nowait(message)

    def _tell_worker(self, worker: str, message: wire.WorkerBound) -> None:
        if worker in self._rendezvous.workers:
            agent = self._rendezvous.workers[worker].agent
            self._tell(agent, wire.ToWorker(worker=worker, message=message))

    async def tick(self) -> None:
        """Notice silent agents, and workers that do not go when they are told to; runs until cancelled."""
        while True:
            await asyncio.sleep(_TICK)
            now = self._clock.now()
            for agent in self._liveness.lost(now=now):
                self._lose_agent(agent, "it fell silent")
            self.end_who_overstays()

    def end_who_overstays(self) -> None:
        """Kill who was dismissed and stays; but a user's own script may have work to do behind its loop."""
        now = self._clock.now()
        if self._rendezvous.phase is not Phase.ENDING:
            return
        self._kill_at = self._kill_at or now + _TO_END
        if now <= self._kill_at:
            return
        self._kill_at = now + _TO_END
        workers = list(self._rendezvous.workers)
        if self._goes_on_behind_loop and not self._hurried:
            if not self._patience_told:
                self._patience_told = True
                text = f"waiting for what the scripts of {', '.join(workers)} do behind their loops"
                self._events.append("warning", message=f"{text}; brim stop {self._progress.run} ends them")
            return
        for worker in workers:
            self._signal(worker, signal.SIGKILL)

    @property
    def _goes_on_behind_loop(self) -> bool:
        return bool(self._spec.command) and self._progress.weights_sha256 is not None

    def _on_agent(self, agent: str, message: wire.AgentMessage) -> None:
        match message:
            case wire.Beat() | wire.JoinJob():
                return
            case wire.WorkerStarted(worker=worker, pid=pid):
                self._pids[worker] = pid
                self._worker_event(worker, "started")
            case wire.FromWorker(worker=worker, message=inner):
                self._on_worker(worker, inner)
            case wire.LoseWorker(worker=worker, reason=reason):
                self._on_gone(worker, reason)
            case wire.Commits(records=records):
                for record in records:
                    self._on_commit(record)
            case wire.HeldAt(round=round, step=step):
                self._on_held(round, step)
            case wire.ArriveTogether():
                self._on_arrival(agent, message)
            case wire.Failed():
                self._on_failed(agent, message)
            case wire.Warn(message=text):
                self._events.append("warning", message=text)
            case _:
                assert_never(message)

    async def see_agents_off(self) -> None:
        """Wait, not for ever, until the agents have cleaned up and closed their streams."""
        deadline = self._clock.now() + _TO_END
        while self._agents and self._clock.now() < deadline:
            await asyncio.sleep(0.02)

    # Workers -----------------------------------------------------------------------------------------------

    def _on_worker(self, worker: str, message: wire.WorkerMessage) -> None:
        match message:
            case wire.Hello(address=address, facts=facts):
                self._learn(facts)
                self._worker_event(worker, "ready")
                self._handle(WorkerReady(worker, address))
            case wire.Installed(round=round, step=step, restored_from=path):
                self._on_installed(worker, round, step, path)
            case wire.Leave():
                self._worker_event(worker, "leaving", reason="SIGTERM")
                self._handle(WorkerAsksToLeave(worker))
            case wire.CheckpointMade(step=step, path=path, size_bytes=size, seconds=seconds):
                self._events.append("checkpoint", step=step, path=path, bytes=size, seconds=seconds)
                self._handle(CheckpointWritten(worker))
            case wire.Evaluated(epoch=epoch, step=step, metrics=metrics):
                self._progress.metrics = metrics
                self._events.append("epoch", epoch=epoch, step=step, metrics=metrics)
            case wire.Completed(weights_sha256=digest, metrics=metrics):
                self._progress.weights_sha256, self._progress.metrics = digest, metrics
                self._handle(Completed(worker))
            case wire.Failed():
                self._on_failed(worker, message)
            case wire.Warn(message=text):
                self._events.append("warning", message=text)
            case wire.Beat() | wire.Arrive():
                raise ProtocolError(f"{type(message).__name__} is between a worker and its agent")
            case _:
                assert_never(message)

    def _learn(self, facts: wire.Facts) -> None:
        if self._progress.facts is not None:
            return
        self._progress.facts = facts
        self._events.append(
            "run_started",
            run=self._progress.run,
            file=self._spec.file,
            command=list(self._spec.command),
            spec=msgspec.to_builtins(self._spec),
            steps=facts.steps,
            steps_per_epoch=facts.steps_per_epoch,
            versions=facts.versions,
            host=next((agent.host for agent in self._agents.values()), ""),
            start_method=facts.start_method,
        )
        self._events.append(
            "dataset",
            samples=facts.samples,
            test_samples=facts.test_samples,
            quarantined=facts.quarantined,
            quarantine_path=facts.quarantine_path,
            block_size=facts.block_size,
        )

    def _worker_event(self, worker: str, state: str, *, rank: int | None = None, reason: str = "") -> None:
        known = self._rendezvous.workers.get(worker)
        self._events.append(
            "worker",
            worker=worker,
            state=state,
            pid=self._pids.get(worker, 0),
            agent=known.agent if known else "",
            rank=rank,
            reason=reason,
        )

    def _on_gone(self, worker: str, reason: str) -> None:
        known = self._rendezvous.workers.get(worker)
        if known is None:
            return
        ending = self._rendezvous.phase in (Phase.ENDING, Phase.ENDED)
        left = ending or (known.state is WorkerState.LEAVING and not known.in_round)
        self._worker_event(worker, "left" if left else "lost", reason=reason)
        self._round_noticed = self._clock.wall()
        self._handle(WorkerGone(worker, reason))

    def _on_failed(self, source: str, failure: wire.Failed) -> None:
        if self._rendezvous.phase in (Phase.ENDING, Phase.ENDED):
            return
        self._failure_told = True
        self._events.append("failed", who=failure.who, message=failure.message, trace=failure.trace)
        self._handle(UserFailed(source))

    # Steps -------------------------------------------------------------------------------------------------

    def _on_arrival(self, agent: str, arrival: wire.ArriveTogether) -> None:
        """All workers of an agent stand at a point; where all agents do, this is the root and releases them."""
        point = Point(arrival.step, arrival.phase)
        payload = msgspec.msgpack.encode(arrival.payloads)
        release = self._barrier.arrive(agent, arrival.round, point, payload)
        if release is None:
            return
        assert self._world is not None
        payloads = [
            each for part in release.payloads for each in msgspec.msgpack.decode(part, type=list[bytes])
        ]
        if point.phase == COMMIT:
            record = wire.CommitRecord(
                round=release.round, step=point.step + 1, at=self._clock.wall(), payloads=payloads
            )
            self._release(release, [])
            self._on_commit(record)
            if release.hold:
                self._on_held(release.round, point.step + 1)
        else:
            self._release(release, payloads)

    def _release(self, release: Release, payloads: list[bytes]) -> None:
        assert self._world is not None
        for agent in self._world.hosts:
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
        fields = step_fields(record, [_reports.decode(payload) for payload in record.payloads])
        self._steps.write(fields)
        self._progress.committed(fields)
        self._handle(Committed(record.round, record.step))
        while self._faults and self._faults[0].step <= record.step:
            self._perform_fault(self._faults.pop(0))

    def _on_held(self, round: int, step: int) -> None:
        self._step_in_flight = False
        self._round_noticed = self._clock.wall()
        self._handle(Held(round, step))

    def _on_installed(self, worker: str, round: int, step: int, restored_from: str) -> None:
        self._handle(WorkerInstalled(worker, round, step))
        if self._world is None or round != self._world.round:
            return
        if (
            self._world.restore
            and not self._installed  # the first to say so: who restored may die before its own words are heard
            and (restored_from or self._progress.step)
        ):
            # Its time is that of the naming: the round's first commit may be older than this message.
            record = {"at": self._round_named, "kind": "restored", "step": step, "path": restored_from}
            self._events.write(record)
        self._installed[worker] = step
        if len(self._installed) < self._world.world_size:
            return
        steps = sorted(set(self._installed.values()))
        if len(steps) > 1:
            raise InternalError(f"members of round {round} stand at different steps: {self._installed}")
        now = self._clock.wall()
        redone = int(self._step_in_flight) + max(0, self._progress.step - step)
        self._progress.steps_redone += int(self._step_in_flight)
        self._progress.installed(step, now)
        if round > 1:
            self._progress.re_forming += now - self._round_noticed
            self._events.append("re_formed", round=round, seconds=now - self._round_noticed, redone=redone)
        self._step_in_flight = True

    def _perform_fault(self, fault: Fault) -> None:
        worker = None
        if fault.kind in (FaultKind.ADD, FaultKind.REMOVE):
            self._events.append("fault", text=describe(fault), step=self._progress.step, worker=None)
            change = fault.count if fault.kind is FaultKind.ADD else -fault.count
            wanted, most = self._rendezvous.target + change, self._spec.micro_batches
            if wanted < 1 or (self._spec.exact and wanted > most):
                few = "no worker would be left"
                many = f"{wanted} workers are more than the {most} micro-batches of a step"
                detail = few if wanted < 1 else many
                self._events.append("warning", message=f"{describe(fault)}: {detail}")
                return
            self._resize(wanted)
            return
        if self._world is not None and fault.rank < self._world.world_size:
            worker = self._world.members[fault.rank].worker
        self._events.append("fault", text=describe(fault), step=self._progress.step, worker=worker)
        if worker is None:
            self._events.append("warning", message=f"{describe(fault)}: there is no rank {fault.rank}")
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
            self._tell(
                known.agent, wire.SignalWorker(worker=worker, signal=number, resume_after=resume_after)
            )

    # Commands ----------------------------------------------------------------------------------------------

    def _handle(self, event: Event) -> None:
        if self.ended.is_set():
            return
        for command in self._rendezvous.handle(event):
            self._perform(command)

    def _perform(self, command: Command) -> None:
        match command:
            case StartWorker(agent, worker):
                self._tell(agent, wire.StartWorkers(workers=[worker]))
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
            case End(outcome, reason):
                self._end(outcome, reason)
            case _:
                assert_never(command)

    def _install(self, world: World, cause: str) -> None:
        self._world, self._installed = world, {}
        self._round_named = self._clock.wall()
        self._progress.world_sizes.add(world.world_size)
        self._events.append(
            "round",
            round=world.round,
            world_size=world.world_size,
            workers=[member.worker for member in world.members],
            step=self._progress.step,
            cause=cause,
        )
        # Also where this is not the root: a late arrival must not complete, and commit, the round before.
        self._barrier.begin(world.round, world.hosts)
        for agent in world.hosts:
            self._tell(agent, wire.InstallRound(world=world))
        for rank, member in enumerate(world.members):
            if self._ranks.get(member.worker) != rank:
                self._ranks[member.worker] = rank
                self._worker_event(member.worker, "active", rank=rank)

    def _hold(self, round: int) -> None:
        assert self._world is not None
        hosts = list(self._world.hosts)
        if len(hosts) > 1:
            self._barrier.hold(round)
        else:
            self._tell(hosts[0], wire.HoldRound(round=round))

    def _cannot_record(self, error: OSError) -> None:
        """What is not on record did not happen: a run that cannot be recorded any more ends, at once."""
        if self.ended.is_set():
            return
        self.ended.set()  # first: the words below may not fit either
        self._failure_told = True
        message = f"cannot write the records of this run: {error}; free some space, then --resume"
        self._events.append("failed", who="environment", message=message, trace="")
        self._end(Outcome.FAILED, message)

    def _end(self, outcome: Outcome, reason: str) -> None:
        self.outcome = outcome
        if outcome is Outcome.FAILED and not self._failure_told:
            self._events.append("failed", who="environment", message=reason, trace="")
        self._events.append("run_ended", summary=self._progress.summary(outcome, self._clock.wall()))
        for agent in list(self._agents):
            self._tell(agent, wire.EndRun())
        self.ended.set()

    # People ------------------------------------------------------------------------------------------------

    def stop(self, reason: str) -> None:
        """End at the next step boundary, with a checkpoint; where all steps are done, end the scripts as well."""
        if self._rendezvous.phase is Phase.ENDING and self._goes_on_behind_loop:
            self._hurried, self._kill_at = True, self._clock.now()
        self._handle(Stop(reason))

    def _resize(self, workers: int) -> None:
        self._round_noticed = self._clock.wall()
        self._handle(Resize(workers))

    async def answer(self, question: wire.Ask) -> wire.Answer:
        """Answer people."""
        match question.verb:
            case "status":
                return wire.Answer(ok=True, status=self._status())
            case "resize":
                most = self._spec.micro_batches
                if not question.workers >= 1 or (self._spec.exact and question.workers > most):
                    detail = f"workers: got {question.workers}, need 1 to {most}, the micro-batches of a step"
                    return wire.Answer(ok=False, detail=detail)
                if self._rendezvous.is_stopping:
                    return wire.Answer(ok=False, detail="it is stopping: nothing is resized any more")
                self._resize(question.workers)
                return wire.Answer(ok=True, status=self._status())
            case "stop":
                self.stop("brim stop")
                return wire.Answer(ok=True, status=self._status())
        return wire.Answer(ok=False, detail=f"unknown question {question.verb!r}")

    def _status(self) -> dict[str, Any]:
        rendezvous = self._rendezvous
        return {"phase": rendezvous.phase.value, "round": rendezvous.round, "target": rendezvous.target}


async def _send(agent: _Agent, reply: Reply) -> None:
    with contextlib.suppress(Exception):  # the other direction of the stream says why
        while True:
            await reply(await agent.outbox.get())
