"""Performs the faults of a job's spec, each at the commit of its step. Pure."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from brim.domain.faults import Fault, FaultKind, describe
from brim.domain.job import JobSpec
from brim.master.rounds import RoundAccount
from brim.master.telling import Telling

_SIGNALS = {
    FaultKind.KILL: signal.SIGKILL,
    FaultKind.TERM: signal.SIGTERM,
    FaultKind.STOP: signal.SIGSTOP,
}


@dataclass(slots=True, kw_only=True)
class Strikes:
    """Performs faults.

    Args:
        faults: those that are still to come, in the order of their steps.
    """

    spec: JobSpec
    rounds: RoundAccount
    telling: Telling
    faults: list[Fault]

    def due(self, step: int) -> list[Fault]:
        """Those that strike now that `step` is committed; each is given once."""
        due = [fault for fault in self.faults if fault.step <= step]
        del self.faults[: len(due)]
        return due

    def perform(self, fault: Fault, *, step: int) -> int | None:
        """Strike; the number of workers that the job is to go to, where the fault is a change of
        it.
        """
        if fault.kind not in (FaultKind.ADD, FaultKind.REMOVE):
            self._signal_rank(fault, step)
            return None
        self._note(fault, step)
        wanted = self.telling.rendezvous.target + (
            fault.count if fault.kind is FaultKind.ADD else -fault.count
        )
        most = self.spec.micro_batches
        if self.spec.exact and wanted > most:
            self._warn(fault, f"{wanted} workers are more than the {most} micro-batches of a step")
        elif wanted <= 0:
            self._warn(fault, "no worker would be left")
        else:
            return wanted
        return None

    def _signal_rank(self, fault: Fault, step: int) -> None:
        members = self.rounds.world.members if self.rounds.world is not None else ()
        worker = members[fault.rank].worker if fault.rank < len(members) else None
        self._note(fault, step, worker)
        if worker is None:
            self._warn(fault, f"there is no rank {fault.rank}")
        else:
            self.telling.signal(worker, _SIGNALS[fault.kind], resume_after=fault.seconds)

    def _note(self, fault: Fault, step: int, worker: str | None = None) -> None:
        self.telling.out.event("fault", text=describe(fault), step=step, worker=worker)

    def _warn(self, fault: Fault, detail: str) -> None:
        self.telling.out.event("warning", message=f"{describe(fault)}: {detail}")
