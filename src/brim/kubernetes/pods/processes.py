"""The processes of scheduled jobs as pods: looked at in what is known, made and ended by requests.

A worker is a pod, so a number of workers is a number of pods, and a job's master is told nothing of
it. Whatever ends a pod, another one is missing, and is made at the next look.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import msgspec

from brim.backends.processes import Launch
from brim.backends.watching import recordable
from brim.coordination.cluster.reconcile import ByNode, as_placed, staying
from brim.coordination.cluster.sightings import NodeSeen, Seen
from brim.decoding import UNDECODABLE
from brim.domain.job import WorkerRange
from brim.domain.kept_run import kept_spec
from brim.errors import EnvironmentFault
from brim.interfaces import Clock
from brim.kubernetes.client.kube_types import KubePod
from brim.kubernetes.client.refusals import Forbidden, Invalid, NotFound
from brim.kubernetes.nodes.freed_slots import FreedSlots
from brim.kubernetes.nodes.places import NodePlaces
from brim.kubernetes.objects.identities import MASTER, KubeJob, identity_of
from brim.kubernetes.objects.status import NAME_TAKEN, PODS_REFUSED, Stall
from brim.kubernetes.pods.difference import (
    JobPods,
    PodChanges,
    beyond,
    beyond_anywhere,
    differences,
    differences_anywhere,
    pods_of,
)
from brim.kubernetes.pods.evictions import with_responder
from brim.kubernetes.pods.gangs import POD_GROUP, gang_of
from brim.kubernetes.pods.job_faults import JobFault, JobFaults
from brim.kubernetes.pods.known_pods import KnownPods
from brim.kubernetes.pods.manifests import (
    MASTER_PORT,
    KubeStart,
    Manifest,
    PodWishes,
    master_pod,
    masters_service,
    network_policy,
    owned,
    secret,
    volume_claim,
    with_preferred_node,
    worker_pod,
)
from brim.kubernetes.pods.placeholder_keeper import MakeWay, nobody_there
from brim.kubernetes.pods.retries import ANY_NODE, MASTERS, Retries
from brim.kubernetes.pods.runs_seen import RunsSeen
from brim.kubernetes.pods.unplaced_masters import UnplacedMasters
from brim.wire.listening import joined_address

_PATIENCE = 60.0  # seen seconds for which a start is tried that the server does not answer
_AGAIN, _LONGEST_PAUSE = 0.2, 5.0  # seconds before that is tried again
_SHARED = 60.0  # seconds for which the Service of a namespace is believed to be there
_FORCED = 1  # seconds that a pod has to end that was to end before
# Requests of starts that are sent at once: what jobs that run need finds a connection, and its turn.
_OF_STARTS = 12
_TO_CHANGE = (
    "spec.template, spec.masterTemplate, spec.priorityClassName, spec.volumeClaim or spec.gang"
)
_log = logging.getLogger(__name__)


AskToSuspend = Callable[[str, str], Awaitable[None]]
"""Asks a master to suspend its run, by `HOST:PORT` and the run's token.

Raises EnvironmentFault where it does not say yes.
"""


Settled = Callable[[Collection[str]], Awaitable[None]]
"""Waits until the records of jobs are where they cannot be lost."""


Line = contextlib.AbstractAsyncContextManager[None]
"""Is entered by each request before it is sent."""

_NO_LINE: Line = contextlib.nullcontext()


async def at_once(_: Collection[str]) -> None:
    """Return: the records of these jobs cannot be lost."""


class NameTaken(EnvironmentFault):
    """A name that a job needs is that of an object which is not of the job.

    Args:
        kind, key: of that object.
        job: the name of the job.
    """

    def __init__(self, kind: str, key: str, job: str) -> None:
        super().__init__(
            f"the {kind} {key} is not of {job}; the job needs that name\n"
            "  hint: delete it, or give the job another name"
        )


async def persist(work: Callable[[], Awaitable[None]], clock: Clock) -> None:
    """Do what may be done twice, and again where nobody knows whether it was done.

    Args:
        clock: of seen time: a server that is away is waited for.

    Raises:
        EnvironmentFault: the server says no, or has had no time for too long.
    """
    end = clock.now() + _PATIENCE
    pause = _AGAIN
    while True:
        try:
            return await work()
        except EnvironmentFault as fault:
            if not fault.retryable or clock.now() >= end:
                raise
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


class PodServer(Protocol):
    """Makes and ends objects; raises EnvironmentFault where that cannot be."""

    async def make(self, manifest: Manifest) -> bool:
        """Make an object; False where there is one of its name."""
        ...

    async def keep(self, manifest: Manifest) -> None:
        """Have an object be so, whether it is there or not."""
        ...

    async def share(self, manifest: Manifest, *, job: str) -> None:
        """Have a Service that all jobs of a namespace share.

        Args:
            job: the name of one that needs it, for the message.

        Raises:
            NameTaken: one of its name finds other pods.
        """
        ...

    async def unshare(self, namespace: str) -> None:
        """Delete that Service; one that is gone needs nothing."""
        ...

    async def make_pod(self, manifest: Manifest) -> KubePod | None:
        """Make a pod; None where there is one of its name."""
        ...

    async def read_pod(self, name: str, namespace: str) -> KubePod | None:
        """Return a pod; None where there is none of that name."""
        ...

    async def end_pod(self, pod: KubePod, *, grace: int | None = None) -> None:
        """Ask a pod to end; one that is gone has ended."""
        ...

    async def forget_start(self, start: KubeStart) -> None:
        """Delete what a start that is over had beside its pods."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PodOrder:
    """The object of a job, as far as its pods go.

    Args:
        uid: of the object.
    """

    uid: str
    wishes: PodWishes


class _SortedPods(NamedTuple):
    """The pods of a start of a job, sorted, and of which pods that is true."""

    of: tuple[KubePod, ...]
    launch: int
    uid: str
    there: JobPods


class KubeProcesses:
    """The pods of jobs.

    Args:
        server: makes and ends them.
        pods, places: what is known; who watches the server keeps them up to date.
        runs: of the jobs.
        order: the object of a job by its id; None where it is gone.
        token: for a start of the job with this uid.
        ask_to_suspend: asks a run's master.
        clock: of seen time: see `brim.kubernetes.client.outages.SeenClock`.
        untouched: jobs whose records cannot be read: nobody knows which pods they should have.
        tell: called with a job of which there is news in `stall`.
        faults: of the operator's own, at one job.
        settled: waits until the records of these jobs are on the server. How a job has ended may be
            known by its pods alone: they stay until then.
        doubts: whether nodes of which nobody hears may be there, see `Outages.doubts`.
        shared: the namespaces in which an earlier operator has left the Service of their masters.
        make_way: for workers that are about to be made.
    """

    def __init__(
        self,
        server: PodServer,
        pods: KnownPods,
        places: NodePlaces,
        runs: RunsSeen,
        *,
        order: Callable[[str], PodOrder | None],
        token: Callable[[str, int], str],
        ask_to_suspend: AskToSuspend,
        clock: Clock,
        untouched: Collection[str] = (),
        tell: Callable[[str], None] = lambda job: None,
        faults: JobFaults | None = None,
        settled: Settled = at_once,
        doubts: Callable[[], bool] = lambda: False,
        shared: Collection[str] = (),
        make_way: MakeWay = nobody_there,
    ) -> None:
        self._doubts, self._make_way = doubts, make_way
        self._faults, self._settled = faults or JobFaults(tell), settled
        self._clearing: set[str] = set()  # jobs whose left-over pods are being ended
        self._server, self._pods, self._places, self._runs = server, pods, places, runs
        self._freed = FreedSlots()
        self._order, self._token, self._ask = order, token, ask_to_suspend
        self._clock, self._untouched = clock, frozenset(untouched)
        self._wanted: dict[str, dict[str, int]] = {}  # workers by job, as it was asked last
        self._gangs: dict[str, int] = {}  # the fewest workers by job, as its PodGroup was told last
        self._sorted: dict[str, _SortedPods] = {}  # by job
        self._retries, self._tell = Retries(), tell
        self._unplaced = UnplacedMasters()
        # When the Service of a namespace was seen to be there: those of an earlier life may be gone.
        self._shared = dict.fromkeys(shared, -math.inf)
        self._sharing: dict[str, asyncio.Lock] = {}  # by namespace
        self._beside: set[asyncio.Task[None]] = set()
        self._line = asyncio.Semaphore(_OF_STARTS)  # in which requests of starts wait

    def stall(self, job: str) -> Stall | None:
        """Return why the pods of a job are not made, or do nothing; None where they are and do."""
        return self._retries.stall(job) or self._unplaced.stall(job)

    def forgive(self, job: str) -> None:
        """Know of no failures of a job: it is another one now, or gone."""
        self._retries.forget(job)
        self._unplaced.forget(job)
        self._places.choices.release(job)

    # What is seen ---------------------------------------------------------------------------------

    def is_calm(self) -> bool:
        """Return whether another look would see what the last one saw, until there is news."""
        beside = self._beside or self._clearing
        here = self._pods.is_calm and self._places.is_calm() and self._runs.is_calm()
        here = here and self._freed.is_calm
        waits = not (self._retries.is_calm(self._clock.now()) and self._unplaced.is_calm())
        return here and not (beside or waits)

    def nodes(self, names: Iterable[str], running: Mapping[str, int]) -> Mapping[str, NodeSeen]:
        """Return all nodes; those that are named have no devices, and are always up."""
        self._pods.expire(self._clock.now())
        self._places.doubts = self._doubts()
        self._runs.keep(running)
        self._wanted = {job: kept for job, kept in self._wanted.items() if job in running}
        self._gangs = {job: kept for job, kept in self._gangs.items() if job in running}
        self._sorted = {job: kept for job, kept in self._sorted.items() if job in running}
        self._end_left_over(running)
        self._unplaced.keep(running, lambda job: self._order(job) is not None)
        here = {name: NodeSeen(up=True) for name in names}
        now = self._clock.now()
        return {**self._freed.counted(self._places.seen(now), now), **here}

    def look(self, launch: Launch) -> Seen:
        there = self._there(launch)
        now, master = self._clock.now(), there.master
        self._retries.note(launch.job, there, now)
        if self._unplaced.look(launch.job, launch.number, master, now):
            self._tell(launch.job)
        if (pause := self._unplaced.pause(launch.job, launch.number, now)) is not None:
            self._places.choices.hold_back(launch.job, now + pause)
        self._make_room(launch, there, now)
        order = self._order(launch.job)
        if order is not None and master is not None and (address := _address_of(master)):
            token, version = self._token(order.uid, launch.number), master.metadata.resource_version
            self._runs.call(launch.job, address, token, version=version)
        if order is not None:
            self._follow_gang(launch, order)
        held = there.held
        if launch.anywhere:
            held = there.bound
            if launch.job in self._wanted:
                wanted = self._wanted[launch.job]
                left = [node for node in held if self._is_left(node)]
                self._wanted[launch.job] = as_placed(
                    wanted, staying(held, wanted, leaving_nodes=left)
                )
        watch = self._runs.watch(launch.job)
        words = self._words(launch, there)
        is_over = self._is_over(launch, there)
        if is_over and (master is None or master.has_ended):
            self._end_all(there)  # one that waits for a node would wait for nothing
        agents = self._agents(launch, there, is_over=is_over)
        seen = watch.seen(
            alive=there.alive or watch.has_more,
            workers=held,
            agents=frozenset({launch.home, *agents}),
            processes=launch.processes,
        )
        return _with_last_words(seen, words) if words and not seen.alive else seen

    def _make_room(self, launch: Launch, there: JobPods, now: float) -> None:
        """Have plans give a worker's slot to a master that lacks room, where the job can do without."""
        if not self._unplaced.asks_for_room(launch.job, now) or there.master is None:
            return
        if sum(there.held.values()) > launch.spec.workers.minimum:
            self._places.make_room(there.master, there.held)

    def _words(self, launch: Launch, there: JobPods) -> dict[str, Any]:
        """Return the summary that a run has left with its master alone; empty where it has not."""
        watch = self._runs.watch(launch.job)
        return {} if watch.summary or watch.failed else _last_words(there.master)

    def _is_over(self, launch: Launch, there: JobPods) -> bool:
        """Return whether a run has said how it has ended: nothing is made for it any more."""
        watch = self._runs.watch(launch.job)
        return bool(watch.summary or watch.failed or self._words(launch, there))

    def _there(self, launch: Launch) -> JobPods:
        return self._sorted_pods(launch.job, launch.number)

    def _sorted_pods(self, job: str, launch: int) -> JobPods:
        """Return the pods of a job, sorted again where one has changed since."""
        order, pods = self._order(job), self._pods.of(job)
        uid = order.uid if order is not None else ""
        known = self._sorted.get(job)
        if known is None or known.of is not pods or (known.launch, known.uid) != (launch, uid):
            there = pods_of(pods, KubeJob.parse(job), launch, uid=uid)
            known = self._sorted[job] = _SortedPods(pods, launch, uid, there)
        return known.there

    def _agents(self, launch: Launch, there: JobPods, *, is_over: bool) -> Collection[str]:
        """Return the nodes on which nothing is missing.

        Where something is, the job is asked again for what it was asked.
        """
        wanted = self._wanted.get(launch.job)
        held = there.bound if launch.anywhere else there.held
        if wanted is None:
            return held.keys()
        if is_over:
            return {*held, *wanted}
        waits = self._retries.waits(launch.job, self._clock.now())
        if not self._has_master(there) and MASTERS not in waits:
            return ()
        if launch.anywhere:
            is_full = sum(there.held.values()) >= sum(wanted.values())
            return {*held, *wanted} if is_full or waits - {MASTERS} else ()
        full = {node for node, count in wanted.items() if there.held.get(node, 0) >= count}
        return {*there.held, *waits} - (wanted.keys() - full - set(waits))

    # What is asked --------------------------------------------------------------------------------

    async def start(self, launch: Launch, workers: ByNode) -> None:
        order = self._order_of(launch)
        start = self._start_of(launch, order)
        self._runs.begin(launch.job, self._clock.wall())

        async def make() -> None:
            self._retries.begin(launch.job)  # nothing waits, or it would seem to have no pods
            try:
                await self._make_beside(start, order.wishes, launch)
            except EnvironmentFault as fault:
                self._failed(launch.job, MASTERS, fault)
                raise
            await self._bring_about(launch, start, order.wishes, workers, line=self._line)

        await persist(make, self._clock)
        if self._retries.begun(launch.job):
            self._tell(launch.job)
        if launch.number > 1:
            before = self._start_of(replace(launch, number=launch.number - 1), order)
            self._later(self._server.forget_start(before))

    async def resize(self, launch: Launch, workers: ByNode) -> None:
        if self._is_over(launch, self._there(launch)):
            # To one who takes over, a run that begins again is over until its master says so.
            self._wanted[launch.job] = dict(workers)
            return
        order = self._order_of(launch)
        await self._bring_about(launch, self._start_of(launch, order), order.wishes, workers)

    async def leave(self, launch: Launch, node: str) -> None:
        if launch.anywhere:
            return
        there = self._there(launch)
        numbers = there.by_node.get(node, [])
        await self._end_each([there.workers[number] for number in numbers])

    async def lose(self, launch: Launch, node: str) -> None:
        """Do nothing: its master misses agents by itself."""

    async def suspend(self, launch: Launch) -> None:
        if self._order(launch.job) is None:  # its pods go with its object, and none comes again
            self._wanted[launch.job] = {}
            return
        order, there = self._order_of(launch), self._there(launch)
        address = _address_of(there.master)
        if not address:  # it is asked again, and one that is gone is there by then
            waits = self._retries.waits(launch.job, self._clock.now())
            await self._bring_master(
                self._start_of(launch, order), order.wishes, there, waits=waits
            )
            raise EnvironmentFault(f"the master of {launch.job} has no address now")
        await self._ask(address, self._token(order.uid, launch.number))
        self._wanted[launch.job] = {}

    async def force(self, launch: Launch, workers: ByNode) -> None:
        there, wanted = self._there(launch), workers or self._wanted.get(launch.job, {})
        # A pod ends by itself: while one is slow to end, those that are to stay train on.
        surplus_of = beyond_anywhere if launch.anywhere else beyond
        names = set(surplus_of(there, wanted)) if wanted else set()
        if workers or names:
            surplus = [pod for pod in there.workers.values() if pod.metadata.name in names]
        else:
            self._wanted[launch.job] = {}
            surplus = [*there.workers.values(), *filter(None, [there.master])]
        await self._end_each(surplus, forced=True)

    async def close(self) -> None:
        """Follow nobody, and begin nothing any more."""
        self._runs.close()
        for task in list(self._beside):
            task.cancel()
        await asyncio.gather(*self._beside, return_exceptions=True)

    # Requests -------------------------------------------------------------------------------------

    def _order_of(self, launch: Launch) -> PodOrder:
        order = self._order(launch.job)
        if order is None:
            raise EnvironmentFault(f"the object of {launch.job} is gone")
        return order

    def _start_of(self, launch: Launch, order: PodOrder) -> KubeStart:
        token = self._token(order.uid, launch.number)
        job = KubeJob.parse(launch.job)
        return KubeStart(job=job, uid=order.uid, launch=launch.number, token=token)

    async def _make_beside(self, start: KubeStart, wishes: PodWishes, launch: Launch) -> None:
        """Make what the pods of a start need; what is there already was made for it."""
        manifests = [
            secret(start, _spec_of(launch)),
            network_policy(start, wishes.operator_namespace),
            *([volume_claim(start, wishes.claim)] if wishes.claim else []),
        ]

        async def make(manifest: Manifest) -> None:
            async with self._line:
                await self._server.make(manifest)

        await asyncio.gather(self._keep_gang(start, wishes, launch), *map(make, manifests))

    async def _keep_gang(self, start: KubeStart, wishes: PodWishes, launch: Launch) -> None:
        """Have the PodGroup of a job be there, if it is to have one, before pods that are of it."""
        if gang := gang_of(wishes):
            fewest = launch.spec.workers.minimum
            group = owned(gang.version, POD_GROUP, start.job.name, start)
            await self._server.keep(gang.pod_group(group, fewest))
            self._gangs[launch.job] = fewest

    def _follow_gang(self, launch: Launch, order: PodOrder) -> None:
        """Have the PodGroup of a job say how many workers are its fewest now."""
        fewest = launch.spec.workers.minimum
        if gang_of(order.wishes) is None or self._gangs.get(launch.job) == fewest:
            return
        self._gangs[launch.job] = fewest  # not again at the next look

        async def keep() -> None:
            try:
                await self._keep_gang(self._start_of(launch, order), order.wishes, launch)
            except EnvironmentFault:
                self._gangs.pop(launch.job, None)
                raise

        self._later(keep())

    async def _bring_about(
        self,
        launch: Launch,
        start: KubeStart,
        wishes: PodWishes,
        workers: ByNode,
        *,
        line: Line = _NO_LINE,
    ) -> None:
        """Make the pods that are missing, and end those that are too many.

        Args:
            line: in which the requests for pods wait.
        """
        self._wanted[launch.job] = dict(workers)
        there, now = self._there(launch), self._clock.now()
        waits = self._retries.waits(launch.job, now)
        todo = self._differences(launch, start, there, workers, waits)
        by_name = {pod.metadata.name: pod for pod in [*there.others, *there.workers.values()]}
        # Who makes room for a master has nobody to hand over to: it could only wait to be killed.
        alone = self._unplaced.asks_for_room(launch.job, now)
        await self._end_each([by_name[name] for name in todo.end], forced=alone)
        taken = await self._make_way({node for _, node in todo.make})  # asked again at a later look
        results = await asyncio.gather(
            self._bring_master(start, wishes, there, waits=waits, line=line),
            *(
                self._make(
                    start,
                    _worker(start, wishes, name, node, launch.processes),
                    ANY_NODE if launch.anywhere else node,
                    line=line,
                )
                for name, node in todo.make
                if node not in taken
            ),
            return_exceptions=True,
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result

    def _differences(
        self,
        launch: Launch,
        start: KubeStart,
        there: JobPods,
        workers: ByNode,
        waits: Collection[str],
    ) -> PodChanges:
        job, number = start.job, start.launch
        if not launch.anywhere:
            return differences(there, job, number, workers, waits=waits)
        left = [node for node in there.bound if node not in workers and self._is_left(node)]
        later = any(node != MASTERS for node in waits)
        return differences_anywhere(there, job, number, workers, left=left, waits=later)

    def _is_left(self, name: str) -> bool:
        """Return whether all pods are to leave a node that is there."""
        node = self._places.last_seen(name)
        return node is not None and (node.lost or node.leaving)

    async def _bring_master(
        self,
        start: KubeStart,
        wishes: PodWishes,
        there: JobPods,
        *,
        waits: Collection[str],
        line: Line = _NO_LINE,
    ) -> None:
        """Make the master's pod where there is none; one that has ended has its name until then."""
        master = there.master
        if master is not None and not self._has_master(there):
            await self._end_each([master], forced=True)
        elif master is None and MASTERS not in waits:
            rejoins = any(not pod.has_ended for pod in there.workers.values())
            pod = master_pod(start, wishes, rejoins=rejoins)
            pod = with_responder(pod) if wishes.evictions else pod
            # Elsewhere it may cost a slot.
            if node := self._places.node_beside_slots(wishes.master):
                pod = with_preferred_node(pod, node)
            await self._make(start, pod, MASTERS, line=line)

    def _has_master(self, there: JobPods) -> bool:
        """Return whether a pod of the master runs, or will."""
        master = there.master
        return master is not None and not (master.has_ended or self._is_lost(master))

    def _is_lost(self, pod: KubePod) -> bool:
        """Return whether nobody will ever hear how a pod has ended."""
        node = self._places.last_seen(pod.spec.node_name)
        return bool(pod.spec.node_name) and (node is None or node.lost)

    async def _make(
        self, start: KubeStart, manifest: Manifest, node: str, *, line: Line = _NO_LINE
    ) -> None:
        """Make a pod, and note where that came to nothing."""
        job = start.job.id
        try:
            await self._share_service(start.job)
            async with line:
                made = await self._server.make_pod(manifest)
            if made is None:
                made = await self._made_before(start, manifest["metadata"]["name"])
            if made is not None:
                self._pods.made(made, self._clock.now())
        except EnvironmentFault as fault:
            self._failed(job, node, fault)
            raise
        if self._retries.stall(job):
            self._retries.made(job, node)
            self._tell(job)

    async def _share_service(self, job: KubeJob) -> None:
        """Have the Service by which masters are found; somebody may have deleted it since."""
        async with self._sharing.setdefault(job.namespace, asyncio.Lock()):
            now = self._clock.now()
            if now - self._shared.get(job.namespace, -math.inf) > _SHARED:
                await self._server.share(masters_service(job.namespace), job=job.name)
                self._shared[job.namespace] = now

    async def leave_namespace(self, namespace: str) -> None:
        """Delete the Service of a namespace, which has no jobs any more.

        Raises:
            EnvironmentFault: the server does not take that.
        """
        async with self._sharing.setdefault(namespace, asyncio.Lock()):
            if namespace in self._shared:
                await self._server.unshare(namespace)
                del self._shared[namespace]

    def _failed(self, job: str, node: str, fault: EnvironmentFault) -> None:
        stall, now = stall_of(fault), self._clock.now()
        if self._retries.failed(job, node, now, stall, mine=not fault.retryable):
            _log.warning("the pods of %s are not made: %s", job, fault)
            self._tell(job)

    async def _made_before(self, start: KubeStart, name: str) -> KubePod | None:
        """Return the pod of that name: a request has made it whose answer was not heard.

        Returns:
            None: it is known, or gone again.

        Raises:
            NameTaken: it is not of the job.
        """
        key = f"{start.job.namespace}/{name}"
        known = self._pods.named(key)
        there = known or await self._server.read_pod(name, start.job.namespace)
        identity = identity_of(there) if there is not None else None
        if there is not None and (identity is None or identity.job != start.job.id):
            raise NameTaken("Pod", key, start.job.name)
        return None if known else there

    async def _end_each(self, pods: Iterable[KubePod], *, forced: bool = False) -> None:
        """Ask pods to end.

        Args:
            forced: at once, also those that were asked before. Nobody waits for the word of a node
                that is lost: what ran there ends where that node comes back.
        """
        ending = [pod for pod in pods if forced or not pod.is_leaving]

        async def end(pod: KubePod) -> None:
            gone = pod.has_ended or self._is_lost(pod)
            await self._server.end_pod(pod, grace=(0 if gone else _FORCED) if forced else None)
            self._pods.ending(pod, self._clock.now())

        await asyncio.gather(*map(end, ending))

    # Beside what is asked -------------------------------------------------------------------------

    def _end_left_over(self, running: Mapping[str, int]) -> None:
        """End the pods that are of no job's present start."""
        for job in self._pods.jobs():
            if job in self._untouched or job in self._clearing or KubeJob.parse(job).kind:
                continue
            with contextlib.suppress(JobFault), self._faults.at(job, "end what is left of it"):
                launch = running.get(job)
                if launch is None:
                    pods: Iterable[KubePod] = self._pods.of(job)
                else:
                    pods = self._sorted_pods(job, launch).others
                if over := [pod for pod in pods if not pod.is_leaving]:
                    self._clearing.add(job)
                    self._later(self._clear(job, over))

    async def _clear(self, job: str, pods: Iterable[KubePod]) -> None:
        """End pods of a job that are of no use to it, once its record does without them."""
        try:
            await self._settled([job])
            await self._end_each(pods)
        finally:
            self._clearing.discard(job)

    def _end_all(self, there: JobPods) -> None:
        over = [pod for pod in there.workers.values() if not (pod.has_ended or pod.is_leaving)]
        if over:
            self._later(self._end_each(over))

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        """Do what nobody waits for; where it comes to nothing, a later look sees that."""

        async def quietly() -> None:
            with contextlib.suppress(EnvironmentFault):
                await work

        task = asyncio.create_task(quietly())
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)
        task.add_done_callback(lambda _: work.close())  # which it is not, where that never began


def stall_of(fault: EnvironmentFault, *, to_change: str = _TO_CHANGE) -> Stall | None:
    """Return what somebody has to do something about; None where the next attempt may go well.

    Args:
        to_change: the fields of the job's object by which the server may be content.
    """
    if isinstance(fault, NameTaken):
        return Stall(NAME_TAKEN, str(fault))
    if isinstance(fault, Invalid | Forbidden | NotFound):
        said = f"change {to_change}: the API server refuses what they ask for: {fault}"
        return Stall(PODS_REFUSED, said)
    return None


def _worker(start: KubeStart, wishes: PodWishes, name: str, node: str, processes: int) -> Manifest:
    """Return the pod of a worker. One of a gang can have no responder to evictions."""
    pod = worker_pod(start, wishes, name=name, node=node, processes=processes)
    if gang := gang_of(wishes):
        return gang.with_member(start.job.name, pod)
    return with_responder(pod) if wishes.evictions else pod


def _address_of(master: KubePod | None) -> str:
    """Return where a master is called; empty where it cannot be."""
    if master is None or master.has_ended or not master.status.pod_ip:
        return ""
    return joined_address(master.status.pod_ip, MASTER_PORT)


def _last_words(master: KubePod | None) -> dict[str, Any]:
    """Return the summary of a run that nobody followed to its end; empty where there is none."""
    for container in master.status.container_statuses if master is not None else ():
        ended = container.state.terminated
        if container.name == MASTER and ended is not None:
            with contextlib.suppress(*UNDECODABLE):
                summary = msgspec.json.decode(ended.message, type=dict[str, Any])
                return recordable(summary) if isinstance(summary.get("exit"), str) else {}
    return {}


def _with_last_words(seen: Seen, summary: dict[str, Any]) -> Seen:
    """Return a look at a run with what its master said of its end."""
    failed = summary["exit"] == "failed"
    steps = summary.get("steps")
    return replace(
        seen,
        step=steps if isinstance(steps, int) else seen.step,
        outcome=summary["exit"],
        who="user" if failed else "",
        problem="its run has failed: the logs of its pods say why" if failed else "",
        summary=summary,
    )


def _spec_of(launch: Launch) -> bytes:
    """Return the spec as the job's master reads it.

    The run takes processes as they come, from the first on and as many as it can have: how many
    that are is the scheduler's business, and its owner may change it.
    """
    spec = kept_spec(launch.spec, launch.job)
    most = max(launch.processes * spec.workers.maximum, spec.micro_batches)
    workers = WorkerRange(minimum=1, maximum=most)
    faults = spec.faults if launch.number <= 1 else ()
    alone = replace(spec, workers=workers, spares=0, agents=1, faults=faults)
    return msgspec.json.encode(alone)
