"""Pauses before a pod is made again where the last ones failed. Pure.

A pod that was taken away is made again at once. One that ends by itself would do so again: each time
it is longer until the next is made. So it is with one that the server refuses.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from brim.kubernetes.client.kube_types import KubePod
from brim.kubernetes.objects.identities import identity_of
from brim.kubernetes.objects.status import Stall
from brim.kubernetes.pods.difference import JobPods

# In place of a node: the pod of the job's master, and pods of workers that are pinned to none.
MASTERS, ANY_NODE = "", "(any)"
_FIRST, _LONGEST = 1.0, 60.0  # seconds; doubled each time
_WELL = 120.0  # seconds without a failure, after which those before are forgotten
TAKEN_AWAY = frozenset({"Evicted", "NodeShutdown", "Preempting", "Shutdown", "Terminated"})


@dataclass(slots=True)
class _Failures:
    count: int = 0
    last: float = 0.0
    stall: Stall | None = None

    @property
    def until(self) -> float:
        return self.last + min(_LONGEST, _FIRST * 2.0 ** (min(self.count, 10) - 1))


@dataclass(slots=True)
class _StartFailures:
    failures: dict[str, _Failures] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)  # uids of pods that have ended
    before: Stall | None = None  # of the last start, while this one is not made

    @property
    def stalls(self) -> list[Stall]:
        return [each.stall for each in self.failures.values() if each.stall]


class Retries:
    """The failures of the present starts of jobs. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._jobs: dict[str, _StartFailures] = {}

    def begin(self, job: str) -> None:
        """Let no node wait in a start that begins.

        Why the last start came to nothing stays true until this one is made: people are not to be
        told otherwise in between.
        """
        before = self.stall(job)
        self.forget(job)
        if before is not None:
            self._jobs[job] = _StartFailures(before=before)

    def begun(self, job: str) -> bool:
        """Note that all that a start needs is made.

        Returns:
            Whether the last start came to nothing.
        """
        known = self._jobs.get(job, _StartFailures())
        had_failed, known.before = known.before is not None, None
        return had_failed

    def note(self, job: str, pods: JobPods, now: float) -> None:
        """Note which pods have ended by themselves since the last call."""
        masters = [pods.master] if pods.master is not None else []
        failed = [pod for pod in [*masters, *pods.workers.values()] if _ended_by_itself(pod)]
        if not failed and job not in self._jobs:
            return
        known = self._jobs.setdefault(job, _StartFailures())
        for pod in failed:
            if pod.metadata.uid not in known.seen:
                self.failed(job, MASTERS if pod is pods.master else _node_of(pod), now)
        known.seen = {pod.metadata.uid for pod in failed}

    def failed(
        self, job: str, node: str, now: float, stall: Stall | None = None, *, mine: bool = True
    ) -> bool:
        """Note a failure on a node.

        Args:
            stall: why the next attempts may fail as well. Where the start has one of the same reason,
                of another pod, that one is as good.
            mine: it may be the job's; else the server did not answer, and no pause gets longer.

        Returns:
            Whether there is a stall that was not known.
        """
        known = self._jobs.setdefault(job, _StartFailures())
        alike = [each for each in known.stalls if stall is not None and each.reason == stall.reason]
        failures = known.failures.setdefault(node, _Failures())
        if mine or not failures.count:
            failures.count = 1 if now - failures.last > _WELL else failures.count + 1
        failures.last, failures.stall = now, alike[0] if alike else stall
        return stall is not None and not alike

    def made(self, job: str, node: str) -> None:
        """Note that a pod could be made on a node."""
        if job in self._jobs and node in self._jobs[job].failures:
            self._jobs[job].failures[node].stall = None

    def stall(self, job: str) -> Stall | None:
        """Return why the pods of a job are not made; None where they are."""
        known = self._jobs.get(job)
        return min(known.stalls, default=known.before) if known else None

    def waits(self, job: str, now: float) -> set[str]:
        """Return the nodes on which nothing is to be made now; `MASTERS` stands for the master."""
        known = self._jobs.get(job)
        if known is None:
            return set()
        return {node for node, failures in known.failures.items() if now < failures.until}

    def is_calm(self, now: float) -> bool:
        """Return whether nothing waits until a time."""
        return not any(self.waits(job, now) for job in self._jobs)

    def keep(self, jobs: Collection[str]) -> None:
        """Know nothing of any other jobs any more."""
        self._jobs = {job: known for job, known in self._jobs.items() if job in jobs}

    def forget(self, job: str) -> None:
        """Know nothing of the last start any more."""
        self._jobs.pop(job, None)


def _ended_by_itself(pod: KubePod) -> bool:
    return pod.has_ended and not (pod.is_leaving or pod.status.reason in TAKEN_AWAY)


def _node_of(pod: KubePod) -> str:
    identity = identity_of(pod)
    return identity.node if identity is not None else ""
