"""Services: their fronts, the loads of these, and the replicas that follow from the loads.

It runs beside the cycles: it keeps a front for each service, measures its load, asks what load is to be
expected by the time at which another replica could be ready, and changes the range of workers of the
service's job. All else is done by the scheduler, as for any job.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from brim.coordination.cluster.scheduled_jobs import RangeChanged
from brim.coordination.cluster.sightings import NodeSeen
from brim.domain.autoscaling import BETWEEN_LOADS, Autoscaler
from brim.domain.demand import Past
from brim.domain.job import WorkerRange
from brim.domain.quantities import counted
from brim.domain.scheduled_job import ScheduledJob
from brim.domain.services import (
    CPU,
    REQUESTS,
    Service,
    ServiceReplica,
    ServiceRules,
    is_allowed,
)
from brim.domain.submission import Submission
from brim.errors import EnvironmentFault, SpecError, StorageFault
from brim.interfaces import Clock
from brim.scheduler.front_certificate import FrontCertificate
from brim.scheduler.front_text import Counts, slots_of
from brim.scheduler.fronts import TO_RETURN, Front, check_free, end_front, haproxy_path
from brim.storage.loads import add_load, keep_loads, read_loads
from brim.wire.cluster import ReplicaView, ServiceView
from brim.wire.listening import is_loopback, joined_address
from brim.wire.measure import measure

_INTERVAL = 0.2  # seconds between two looks at replicas
_STRETCH = 5.0  # seconds of the past that are one line of its file
_LOADS = "loads"
_UNITS = {REQUESTS: "/s", CPU: " processors"}  # of loads
_log = logging.getLogger(__name__)


class Jobs(Protocol):
    """The jobs of a cluster, as far as services need them."""

    jobs: dict[str, ScheduledJob]

    def replicas_of(self, job: ScheduledJob) -> Sequence[ServiceReplica]:
        """Return the replicas of a service, as they were seen last."""
        ...

    def seen_nodes(self) -> Mapping[str, NodeSeen]:
        """Return all nodes, as they were seen last."""
        ...


@dataclass(slots=True)
class _Served:
    """Knowledge of one service, in this life of the scheduler."""

    front: Front
    folder: Path
    autoscaler: Autoscaler
    counts: Counts | None = None
    looked: float = -math.inf  # when its load was measured last
    replicas: list[ServiceReplica] = field(default_factory=list)  # that its front knows
    stretch: tuple[float, float, int] = (
        0.0,
        0.0,
        0,
    )  # its beginning, the sum of its loads, and their count
    measuring: asyncio.Task[float] | None = None
    problem: str = ""


class Services:
    """The services of one cluster.

    Args:
        jobs: of the cluster.
        handle: takes in that a job's range of workers has changed.
        rules: what an administrator lets services have now.
        folder: a folder in it is each service's own.
        address: of this host, where the rules name none.
        clock: of the scheduler.
    """

    def __init__(
        self,
        jobs: Jobs,
        *,
        handle: Callable[[RangeChanged], object],
        rules: Callable[[], ServiceRules],
        folder: Path,
        address: str,
        clock: Clock,
    ) -> None:
        self._jobs, self._handle, self._rules = jobs, handle, rules
        self._folder, self._own_address, self._clock = folder, address, clock
        self._certificate = FrontCertificate(rules)
        self._served: dict[str, _Served] = {}
        self._is_over = False

    @property
    def _address(self) -> str:
        return self._rules().address or self._own_address

    def check(self, submission: Submission, *, has_tenants: bool) -> None:
        """Check that a service can have its front.

        Raises:
            SpecError: its port is not allowed, or in use, or haproxy is not installed.
        """
        service, rules = submission.spec.service, self._rules()
        if service is None:
            return
        if submission.deadline is not None:
            raise SpecError("--deadline", got="one", need="none: a service has no end")
        if not rules.allows(service.port):
            allowed = f"{rules.first_port} to {rules.last_port}"
            need = f"a port from {allowed}, as this cluster lets services have"
            hint = f"port: {rules.first_port}"
            raise SpecError("port", got=str(service.port), need=need, hint=hint)
        is_measured_here = service.load in (REQUESTS, CPU)
        if has_tenants and not is_measured_here and not is_allowed(service.load, rules.urls):
            need = "requests or cpu, or a URL that begins as services: urls: in cluster.yaml allow"
            raise SpecError("load", got=repr(service.load), need=need, hint="load: requests")
        for job in self._all():
            assert job.submission.spec.service is not None
            if job.submission.spec.service.port == service.port:
                need = "a port that no other service has"
                owned = job.submission.tenant == submission.tenant
                owner_note = f" of {job.id}" if owned else ""
                raise SpecError("port", got=f"{service.port}, the port{owner_note}", need=need)
        haproxy_path()
        # A tenant learns nothing of processes that are not its own.
        check_free(self._address, service.port, names_holder=not has_tenants)

    def check_range(self, job: ScheduledJob, workers: WorkerRange) -> None:
        """Raises SpecError where the front of a service has no room for so many replicas."""
        service = job.submission.spec.service
        if service is not None and workers.maximum > slots_of(service) // 2:
            room = counted(slots_of(service) // 2, "replica")
            need = f"at most {room}, for which its front has room"
            hint = "submit it again with more"
            raise SpecError("WORKERS", got=str(workers), need=need, hint=hint)

    def view(self, job: ScheduledJob) -> ServiceView | None:
        """Return a service as people see it; None: the job is none."""
        service = job.submission.spec.service
        if service is None:
            return None
        served = self._served.get(job.id)
        replicas = self._jobs.replicas_of(job) if job.running else ()
        counts = served.counts if served is not None else None
        autoscaler = served.autoscaler if served is not None else None
        # A scheduler that holds, or has only just begun, has looked at no replica.
        is_known = not job.running or (served is not None and served.looked > -math.inf)
        return ServiceView(
            address=joined_address(
                served.front.address if served is not None else self._address, service.port
            ),
            load=service.load,
            per_replica=service.per_replica,
            tls=bool(self._rules().certificate),
            minimum=service.minimum,
            maximum=service.maximum,
            current=autoscaler.load if autoscaler is not None else None,
            foreseen=autoscaler.foreseen if autoscaler is not None else None,
            notice=autoscaler.notice(service) if autoscaler is not None else service.notice,
            wanted=job.submission.spec.workers.maximum,
            ready=sum(replica.is_ready for replica in replicas) if is_known else None,
            replicas=[
                ReplicaView(
                    replica=replica.id,
                    address=joined_address(replica.host, replica.port),
                    state=replica.state,
                )
                for replica in replicas
            ],
            requests=counts.requests if counts is not None else 0,
            retries=counts.retries if counts is not None else 0,
            errors=counts.errors if counts is not None else 0,
            problem=_problem(served) if served is not None else "",
        )

    def begin(self, job: ScheduledJob) -> None:
        """Listen at the port of a service that was taken in: from here on, requests wait."""
        if job.submission.spec.service is not None:
            with contextlib.suppress(OSError):  # then it is tried again, and its view says why
                self._state_of(job).front.listen()

    # Running --------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Tend all services until cancelled; their fronts go on.

        Each has a task of its own, so that a front that hangs delays no other.
        """
        tending: dict[str, asyncio.Task[None]] = {}
        try:
            await self._go_on("what an earlier scheduler left", self._end_left_over())
            while not self._is_over:
                await self._go_on("what is left of a service", self._forget_ended())
                for id in [id for id, task in tending.items() if task.done()]:
                    tending.pop(id).result()
                for job in self._all():
                    if job.id not in tending:
                        step = self._go_on(job.id, self._tend(job))
                        tending[job.id] = asyncio.create_task(step)
                await asyncio.sleep(_INTERVAL)
        finally:
            for task in tending.values():
                task.cancel()
            for served in self._served.values():
                served.front.close()
                if served.measuring is not None:
                    served.measuring.cancel()

    async def _go_on(self, name: str, step: Awaitable[None]) -> None:
        """Take a step with one service; whatever comes of it, others go on."""
        try:
            await step
        except StorageFault:
            raise
        except Exception:  # noqa: BLE001 - whatever it is
            _log.exception("%s cannot be tended", name)

    async def end(self) -> None:
        """End all fronts: the scheduler goes down."""
        self._is_over = True
        await self._forget_ended()
        for job in self._all():
            await self._state_of(job).front.end()

    def _all(self) -> list[ScheduledJob]:
        jobs = self._jobs.jobs.values()
        return [job for job in jobs if job.submission.spec.service is not None]

    async def _forget_ended(self) -> None:
        for id in self._served.keys() - {job.id for job in self._all()}:
            if served := self._served.pop(id, None):  # else it is being forgotten
                await served.front.end()
                await end_front(self._folder / id, forget=True)

    async def _end_left_over(self) -> None:
        """End the fronts of services that have ended, where an earlier scheduler did not."""
        current = {job.id for job in self._all()}
        if self._folder.is_dir():
            for folder in self._folder.iterdir():
                if folder.name not in current:
                    await end_front(folder, forget=True)

    def _state_of(self, job: ScheduledJob) -> _Served:
        service = job.submission.spec.service
        assert service is not None
        served = self._served.get(job.id)
        if served is None:
            folder = self._folder / job.id
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            past, loads = Past(season=service.day), read_loads(folder / _LOADS)
            for time, load in loads:
                past.add(time, load)
            keep_loads(folder / _LOADS, past.buckets())
            # Other accounts of the host may listen where a replica has died.
            to_return = 0.0 if job.user else TO_RETURN
            front = Front(
                folder,
                service,
                address=self._address,
                to_return=to_return,
                pem=self._certificate.pem,
                grace=job.submission.spec.grace,
            )
            autoscaler = Autoscaler(past, replicas=job.submission.spec.workers.maximum)
            served = self._served[job.id] = _Served(front, folder, autoscaler)
        return served

    async def _tend(self, job: ScheduledJob) -> None:
        service, served, now = job.submission.spec.service, self._state_of(job), self._clock.now()
        assert service is not None
        replicas = self.on_hosts(self._jobs.replicas_of(job) if job.running else ())
        is_due = now - served.looked >= BETWEEN_LOADS
        if not (is_due or replicas != served.replicas or served.front.has_died):
            return
        counts = await served.front.keep(replicas)
        if counts is not None:
            served.replicas = replicas
            served.autoscaler.ready(sum(replica.is_ready for replica in replicas), now)
        if not is_due:
            return
        load = self._load(service, served, counts, now - served.looked)
        served.looked, served.counts = now, counts or served.counts
        if load is not None:
            wall = self._clock.wall()
            served.autoscaler.measured(load, wall=wall)
            self._keep_load(served, wall, load)
            self._rescale(job, service, served)

    def on_hosts(self, replicas: Iterable[ServiceReplica]) -> list[ServiceReplica]:
        """Return the replicas on hosts of this cluster: a job's records say what its owner likes."""
        addresses = {node.address for node in self._jobs.seen_nodes().values()}
        own = {self._own_address, self._address}
        fronts = {service.port for job in self._all() if (service := job.submission.spec.service)}

        def is_believed(replica: ServiceReplica) -> bool:
            if is_loopback(replica.host) or replica.host in own:  # a front is no replica of another
                return "" in addresses and replica.port not in fronts
            return replica.host in addresses

        return list(filter(is_believed, replicas))

    def _load(
        self, service: Service, served: _Served, counts: Counts | None, seconds: float
    ) -> float | None:
        """Return the load of a service; None where it is not known now.

        Args:
            counts: of its front, now.
            seconds: since it was counted before.
        """
        if service.load == REQUESTS:
            if served.counts is None or counts is None:
                return None
            # A front that was started again counts from 0.
            new = counts.requests - served.counts.requests
            return (new if new >= 0 else counts.requests) / seconds
        if service.load == CPU:
            return sum(replica.cpu for replica in served.replicas)
        return self._measured(service, served)

    def _measured(self, service: Service, served: _Served) -> float | None:
        """Return the number that a URL has answered, once it has; ask it again."""
        task, load = served.measuring, None
        if task is not None:
            if not task.done():
                return None
            try:
                load, served.problem = task.result(), ""
            except EnvironmentFault as fault:
                served.problem = str(fault)
        served.measuring = asyncio.create_task(asyncio.to_thread(measure, service.load))
        return load

    def _keep_load(self, served: _Served, time: float, load: float) -> None:
        """Write down the past, a stretch of it once that is over."""
        start, total, count = served.stretch
        now = time - time % _STRETCH
        if not count or start == now:
            served.stretch = (now, total + load, count + 1)
            return
        served.stretch = (now, load, 1)
        with contextlib.suppress(OSError):  # the disk is full: the present is known all the same
            add_load(served.folder / _LOADS, start, total / count)

    def _rescale(self, job: ScheduledJob, service: Service, served: _Served) -> None:
        now, autoscaler = self._clock.now(), served.autoscaler
        target = autoscaler.decide(service, now=now, wall=self._clock.wall())
        current = job.submission.spec.workers.maximum
        if target == current or not job.life.may_run:
            return
        autoscaler.resized(current, target, now)
        workers = WorkerRange(minimum=service.minimum, maximum=target)
        words = autoscaler.words(service, unit=_UNITS.get(service.load, ""))
        self._handle(RangeChanged(job.id, workers, words, scaled=True))


def _problem(served: _Served) -> str:
    """Return what is in the way of a service's front, or of its load; empty: nothing is."""
    found = [f"its front does not answer: {served.front.problem}"] if served.front.problem else []
    return "; ".join([*found, served.problem] if served.problem else found)
