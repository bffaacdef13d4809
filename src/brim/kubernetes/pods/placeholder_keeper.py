"""Keeps the placeholders of jobs that wait for places: makes and ends them as they should be."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

from brim.domain.scheduled_job import ScheduledJob
from brim.errors import EnvironmentFault
from brim.interfaces import Clock
from brim.kubernetes.client.kube_types import KubePod
from brim.kubernetes.nodes.places import NodePlaces
from brim.kubernetes.objects.identities import stands_for
from brim.kubernetes.pods.job_faults import JobFault, JobFaults
from brim.kubernetes.pods.known_pods import KnownPods
from brim.kubernetes.pods.manifests import Manifest
from brim.kubernetes.pods.placeholders import bound_on, placeholder_changes
from brim.kubernetes.pods.retries import Retries

_NO_NODE = ""  # in place of a node
# Seconds that a job waits before it has placeholders: jobs before it have their workers by then, and
# need the places in which its placeholders would be.
_PATIENCE = 5.0
_TO_GO = 10.0  # seconds that workers wait for a placeholder to be gone; then kube-scheduler decides
_log = logging.getLogger(__name__)


class PlaceholderServer(Protocol):
    """Makes and ends pods; raises EnvironmentFault where that cannot be."""

    async def make_pod(self, manifest: Manifest) -> KubePod | None:
        """Make a pod; None where there is one of its name."""
        ...

    async def end_pod(self, pod: KubePod, *, grace: int | None = None) -> None:
        """Ask a pod to end; one that is gone has ended."""
        ...


class PlaceholderKeeper:
    """The placeholders of jobs.

    Args:
        server: makes and ends them.
        pods, places: the present ones.
        maximum: jobs that have placeholders at once.
        watched: the namespace whose jobs are scheduled; empty: all.
        short: the jobs that wait for places alone, in the order of their right; None: unknown yet.
        placeholders: the placeholders of a job.
        faults: of the operator's own, at one job.
        clock: of seen time: see `brim.kubernetes.client.outages.SeenClock`.
    """

    def __init__(
        self,
        server: PlaceholderServer,
        pods: KnownPods,
        places: NodePlaces,
        *,
        maximum: int,
        watched: str,
        short: Callable[[], Sequence[ScheduledJob] | None],
        placeholders: Callable[[ScheduledJob], Sequence[Manifest]],
        faults: JobFaults,
        clock: Clock,
    ) -> None:
        self._server, self._pods, self._places = server, pods, places
        self._maximum, self._watched = maximum, watched
        self._short, self._manifests = short, placeholders
        self._faults, self._clock = faults, clock
        self._retries: dict[str, Retries] = {}  # by job
        self._asked_at: dict[str, float] = {}  # when pods in the way were asked to end, by uid
        self._waiting_since: dict[
            str, float
        ] = {}  # since when jobs are to have some, in their order
        self._tended = 0.0  # when that was done last
        self._task: asyncio.Task[None] | None = None

    def is_calm(self) -> bool:
        """Return whether the last look found nothing to do, now or later, and the same jobs wait."""
        short = self._short()
        if self._task is not None or any(
            retries.waits(self._tended) for retries in self._retries.values()
        ):
            return False
        if short is not None and [job.id for job in short[: self._maximum]] != list(
            self._waiting_since
        ):
            return False
        return all(
            self._tended - waiting_since >= _PATIENCE
            for waiting_since in self._waiting_since.values()
        )

    def tend(self) -> None:
        """Have the placeholders be as they should be, beside all other work."""
        short = self._short()
        if short is None or self._task is not None:
            return
        desired = {job.id: self._desired_of(job) for job in short[: self._maximum]}
        todo = placeholder_changes(
            [manifest for manifests in desired.values() for manifest in manifests],
            self._own_placeholders(),
            in_the_way=self._places.awaits_worker,
        )
        now = self._clock.now()
        self._waiting_since = {job: self._waiting_since.get(job, now) for job in desired}
        self._tended = now
        self._retries = {job: self._retries.get(job, Retries()) for job in desired}
        for pod in todo.end:
            owner = stands_for(pod)
            # Another one would end as well, or be in the way of the same worker.
            if owner is not None and (pod.has_ended or owner.job in desired):
                self._failed(owner.job, now)
        missing = {
            job: [manifest for manifest in manifests if manifest in todo.make]
            for job, manifests in desired.items()
            if now - self._waiting_since[job] >= _PATIENCE and not self._retries[job].waits(now)
        }
        if todo.end or any(missing.values()):
            self._task = asyncio.create_task(self._carry_out(todo.end, missing))

    async def make_way(self, nodes: Collection[str]) -> Collection[str]:
        """End the placeholders on nodes; return those nodes on which one still is.

        Raises:
            EnvironmentFault: the server does not take that.
        """
        placeholders, now = self._own_placeholders(), self._clock.now()
        in_way = bound_on(nodes, placeholders)
        uids = {pod.metadata.uid for pod in placeholders}
        self._asked_at = {uid: asked_at for uid, asked_at in self._asked_at.items() if uid in uids}
        for pod in in_way:
            self._asked_at.setdefault(pod.metadata.uid, now)
        await self._end_each(in_way)
        return {
            pod.spec.node_name for pod in in_way if now - self._asked_at[pod.metadata.uid] < _TO_GO
        }

    async def close(self) -> None:
        """Begin nothing any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _own_placeholders(self) -> list[KubePod]:
        """Return the placeholders of the jobs that this operator schedules."""
        found = self._pods.placeholders()
        return [pod for pod in found if self._watched in ("", pod.metadata.namespace)]

    def _desired_of(self, job: ScheduledJob) -> Sequence[Manifest]:
        with contextlib.suppress(JobFault), self._faults.at(job.id, "make its placeholders"):
            return self._manifests(job)
        return ()

    def _failed(self, job: str, now: float, *, is_own: bool = True) -> None:
        self._retries.setdefault(job, Retries()).failed(_NO_NODE, now, is_own=is_own)

    async def _carry_out(
        self, end: Iterable[KubePod], make: Mapping[str, Iterable[Manifest]]
    ) -> None:
        try:
            with contextlib.suppress(EnvironmentFault):
                await self._end_each(end)
            for job, missing in make.items():
                await self._make(job, missing)
        finally:
            self._task = None

    async def _end_each(self, pods: Iterable[KubePod]) -> None:
        async def end(pod: KubePod) -> None:
            await self._server.end_pod(pod)
            self._pods.ending(pod, self._clock.now())

        await asyncio.gather(*(end(pod) for pod in pods if not pod.is_leaving))

    async def _make(self, job: str, missing: Iterable[Manifest]) -> None:
        """Make placeholders of a job, up to the first that cannot be made now."""
        for manifest in missing:
            now = self._clock.now()
            try:
                pod = await self._server.make_pod(manifest)
            except EnvironmentFault as fault:
                _log.warning("the placeholders of %s are made later: %s", job, fault)
                self._failed(job, now, is_own=not fault.retryable)
                return
            if pod is None:  # it is told of soon, or somebody else has its name
                self._failed(job, now)
                return
            self._pods.add(pod, now)
