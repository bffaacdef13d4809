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

_ANYWHERE = ""  # in place of a node
# Seconds that a job waits before it has placeholders: whoever was before it has its workers by then,
# and they need the places in which its placeholders would be.
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
        pods, places: what is known.
        most: jobs that have placeholders at once.
        watched: the namespace whose jobs are scheduled; empty: all.
        short: the jobs that wait for places alone, in the order of their right; None: nobody knows yet.
        wanted: the placeholders of a job.
        faults: of the operator's own, at one job.
        clock: of seen time: see `brim.kubernetes.client.outages.SeenClock`.
    """

    def __init__(
        self,
        server: PlaceholderServer,
        pods: KnownPods,
        places: NodePlaces,
        *,
        most: int,
        watched: str,
        short: Callable[[], Sequence[ScheduledJob] | None],
        wanted: Callable[[ScheduledJob], Sequence[Manifest]],
        faults: JobFaults,
        clock: Clock,
    ) -> None:
        self._server, self._pods, self._places = server, pods, places
        self._most, self._watched = most, watched
        self._short, self._wanted = short, wanted
        self._faults, self._clock = faults, clock
        self._retries: dict[str, Retries] = {}  # by job
        self._asked: dict[str, float] = {}  # when pods in the way were asked to end, by uid
        self._since: dict[str, float] = {}  # since when jobs are to have some, in their order
        self._tended = 0.0  # when that was done last
        self._beside: asyncio.Task[None] | None = None

    def is_calm(self) -> bool:
        """Return whether the last look found nothing to do, now or later, and the same jobs wait."""
        short = self._short()
        if self._beside is not None or any(
            each.waits(self._tended) for each in self._retries.values()
        ):
            return False
        if short is not None and [job.id for job in short[: self._most]] != list(self._since):
            return False
        return all(self._tended - since >= _PATIENCE for since in self._since.values())

    def tend(self) -> None:
        """Have the placeholders be as they should be, beside whatever else is done."""
        short = self._short()
        if short is None or self._beside is not None:
            return
        wanted = {job.id: self._wanted_of(job) for job in short[: self._most]}
        todo = placeholder_changes(
            [each for made in wanted.values() for each in made],
            self._mine(),
            in_the_way=self._places.awaits_worker,
        )
        now = self._clock.now()
        self._since = {job: self._since.get(job, now) for job in wanted}
        self._tended = now
        self._retries = {job: self._retries.get(job, Retries()) for job in wanted}
        for pod in todo.end:
            whose = stands_for(pod)
            # Another one would end as well, or be in the way of the same worker.
            if whose is not None and (pod.has_ended or whose.job in wanted):
                self._failed(whose.job, now)
        missing = {
            job: [each for each in made if each in todo.make]
            for job, made in wanted.items()
            if now - self._since[job] >= _PATIENCE and not self._retries[job].waits(now)
        }
        if todo.end or any(missing.values()):
            self._beside = asyncio.create_task(self._carry_out(todo.end, missing))

    async def make_way(self, nodes: Collection[str]) -> Collection[str]:
        """End the placeholders on nodes; return those nodes on which one still is.

        Raises:
            EnvironmentFault: the server does not take that.
        """
        mine, now = self._mine(), self._clock.now()
        there = bound_on(nodes, mine)
        known = {pod.metadata.uid for pod in mine}
        self._asked = {uid: since for uid, since in self._asked.items() if uid in known}
        for pod in there:
            self._asked.setdefault(pod.metadata.uid, now)
        await self._end_each(there)
        return {pod.spec.node_name for pod in there if now - self._asked[pod.metadata.uid] < _TO_GO}

    async def close(self) -> None:
        """Begin nothing any more."""
        if self._beside is not None:
            self._beside.cancel()
            await asyncio.gather(self._beside, return_exceptions=True)

    def _mine(self) -> list[KubePod]:
        """Return the placeholders of the jobs that this operator schedules."""
        found = self._pods.placeholders()
        return [pod for pod in found if self._watched in ("", pod.metadata.namespace)]

    def _wanted_of(self, job: ScheduledJob) -> Sequence[Manifest]:
        with contextlib.suppress(JobFault), self._faults.at(job.id, "make its placeholders"):
            return self._wanted(job)
        return ()

    def _failed(self, job: str, now: float, *, mine: bool = True) -> None:
        self._retries.setdefault(job, Retries()).failed(_ANYWHERE, now, mine=mine)

    async def _carry_out(
        self, end: Iterable[KubePod], make: Mapping[str, Iterable[Manifest]]
    ) -> None:
        try:
            with contextlib.suppress(EnvironmentFault):
                await self._end_each(end)
            for job, missing in make.items():
                await self._make(job, missing)
        finally:
            self._beside = None

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
                made = await self._server.make_pod(manifest)
            except EnvironmentFault as fault:
                _log.warning("the placeholders of %s are made later: %s", job, fault)
                self._failed(job, now, mine=not fault.retryable)
                return
            if made is None:  # it is told of soon, or somebody else has its name
                self._failed(job, now)
                return
            self._pods.made(made, now)
