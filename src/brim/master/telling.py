"""What a master tells: people in the records of the run, and workers through their agents. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import msgspec

from brim.coordination.membership import GiveUpOn, World
from brim.coordination.rendezvous import Rendezvous
from brim.coordination.stragglers import Bottleneck
from brim.domain.job import JobSpec
from brim.domain.quantities import format_duration
from brim.master.effects import Effects
from brim.master.pace import bottleneck_warning, given_up_warning
from brim.wire import messages as wire

MORE_MEMORY = "give workers more (--memory), or have them do less at a time (--micro-batches)"


@dataclass(slots=True, kw_only=True)
class Telling:
    """Knows by which process and rank people know a worker, and through which agent it hears.

    Args:
        note: a warning that belongs to the beginning of the run, or nothing.
    """

    out: Effects
    rendezvous: Rendezvous
    note: str
    pids: dict[str, int] = field(default_factory=dict)
    ranks: dict[str, int] = field(default_factory=dict)

    def worker(self, worker: str, message: wire.WorkerBound) -> None:
        """Say something to a worker, if it is in the job."""
        known = self.rendezvous.workers.get(worker)
        if known is not None:
            self.out.tell(known.agent, wire.ToWorker(worker=worker, message=message))

    def signal(
        self, worker: str, number: int, *, resume_after: float = 0.0, reason: str = ""
    ) -> None:
        """Have a worker sent a signal, if it is in the job."""
        known = self.rendezvous.workers.get(worker)
        if known is not None:
            message = wire.SignalWorker(
                worker=worker, signal=number, resume_after=resume_after, reason=reason
            )
            self.out.tell(known.agent, message)

    def state_of(
        self, worker: str, state: str, *, rank: int | None = None, reason: str = ""
    ) -> None:
        """Record what became of a worker."""
        known = self.rendezvous.workers.get(worker)
        self.out.event(
            "worker",
            worker=worker,
            state=state,
            pid=self.pids.get(worker, 0),
            agent=known.agent if known else "",
            rank=rank,
            reason=reason,
            serves=known is not None and known.serves,
        )

    def world(self, world: World, *, step: int, cause: str, still: bool) -> None:
        """Let everybody know the round that begins, and record whose rank is new."""
        self.out.event(
            "round",
            round=world.round,
            world_size=len(world.workers),
            workers=[member.worker for member in world.members],
            shares=list(world.shares),
            step=step,
            cause=cause,
        )
        # Whoever was cut off may publish, by an old permission, a checkpoint that is ahead of the
        # records by now.
        recorded = step if step or self.out.commits else None
        for agent in world.hosts:
            self.out.tell(agent, wire.InstallRound(world=world, recorded=recorded, still=still))
        for rank, member in enumerate(world.members):
            if self.ranks.get(member.worker) != rank:
                self.ranks[member.worker] = rank
                self.state_of(member.worker, "active", rank=rank)

    def bottleneck(self, slow: Bottleneck, spec: JobSpec) -> None:
        """Warn of a worker that holds everyone up."""
        host = self._host_of(self.rendezvous.workers[slow.worker].agent)
        self.out.event(
            "warning", message=bottleneck_warning(slow, host=host, parts=spec.micro_batches)
        )

    def given_up(self, given_up: GiveUpOn, run: str, spec: JobSpec) -> None:
        """Warn of a host that gets no more workers."""
        text = given_up_warning(given_up, host=self._host_of(given_up.agent), run=run, spec=spec)
        self.out.event("warning", message=text)

    def late(self, agent: str, late: wire.Late) -> None:
        """Warn of a wait: who is waited for, at what, for how long, when it ends, and what its
        stack is.
        """
        who = (
            self._name_of(late.worker)
            if late.worker
            else f"the template process on {self._host_of(agent)}"
        )
        given_up = (
            "never given up" if late.limit is None else f"given up at {format_duration(late.limit)}"
        )
        text = (
            f"waiting for {who}, which has been {late.doing} for {late.seconds:.0f} s and is "
            f"{given_up}"
        )
        stack = (
            f"its stack, the most recent call last:\n{late.stack}"
            if late.stack
            else "it shows no stack yet"
        )
        self.out.event("warning", message=f"{text} (--hang-timeout); {stack}")

    def hung_again(self, lost: wire.LoseWorker) -> wire.JobFailed:
        """What the run fails with where a second worker hangs in one step."""
        assert lost.hang is not None
        where = f"step {lost.hang.step}" if lost.hang.step else "the start of a worker"
        return wire.JobFailed(
            who="user",
            message=f"{self._name_of(lost.worker)} hangs: {lost.reason}, as another worker before "
            "it; mend what "
            f"{where} waits for, or give it longer: --hang-timeout",
            trace=f"Stack (most recent call last):\n{lost.hang.stack}" if lost.hang.stack else "",
        )

    def ended_again(self, worker: str, reason: str) -> wire.JobFailed:
        """What the run fails with where a second worker ends without an error,
        and before the job.
        """
        return wire.JobFailed(
            who="user",
            message=f"{self._name_of(worker)} {reason}, as another worker before it; let the loop "
            "over batches end "
            "by itself, and take exit() and os._exit() out of it",
        )

    def out_of_memory(self, lost: wire.LoseWorker) -> None:
        """Warn of the first worker that was lost since memory ran out, with what can be done."""
        host = self._host_of(self.rendezvous.workers[lost.worker].agent)
        if lost.memory == "limit":
            text = f"{self._name_of(lost.worker)} was ended, {lost.reason}; {MORE_MEMORY}"
        else:
            text = (
                f"{self._name_of(lost.worker)} on {host} is lost, {lost.reason}; run fewer workers "
                "there, have them "
                "do less at a time (--micro-batches), or end what else takes memory"
            )
        self.out.event("warning", message=text)

    def declined(self, agent: str, reason: str) -> None:
        """Warn that a host does not take part."""
        self.out.event(
            "warning", message=f"{self._host_of(agent)} cannot take part, and is left out: {reason}"
        )

    def _name_of(self, worker: str) -> str:
        """As people know it."""
        known = self.rendezvous.workers.get(worker)
        rank = self.ranks.get(worker) if known is not None and known.in_round else None
        return worker if rank is None else f"{worker} (rank {rank})"

    def _host_of(self, agent: str) -> str:
        """As people know it."""
        agents = self.out.agents
        return f"{agents[agent].host} (agent {agent})" if agent in agents else f"agent {agent}"

    def beginning(self, run: str, spec: JobSpec, facts: wire.Facts) -> None:
        """Record what the run is of: nobody knew before the first worker said so."""
        self.out.event(
            "run_started",
            run=run,
            file=spec.file,
            command=list(spec.command),
            spec=_as_it_is(spec, facts),
            steps=facts.steps,
            steps_per_epoch=facts.steps_per_epoch,
            versions=facts.versions,
            host=next((agent.host for agent in self.out.agents.values()), ""),
            start_method=facts.start_method,
            tables=[asdict(each) for each in facts.tables],
        )
        self.out.event(
            "dataset",
            samples=facts.samples,
            test_samples=facts.test_samples,
            quarantined=facts.quarantined,
            quarantine_path=facts.quarantine_path,
            block_size=facts.block_size,
            order=facts.order,
            order_size=facts.order_size,
        )
        if self.note:
            self.out.event("warning", message=self.note)


def _as_it_is(spec: JobSpec, facts: wire.Facts) -> dict[str, Any]:
    """The spec with what a loop of one's own says itself."""
    own = {
        name: getattr(facts, name)
        for name in ("epochs", "global_batch_size", "seed", "clip_norm", "on_nan")
    }
    return {**msgspec.to_builtins(spec), **own}
