"""The pods of Kubeflow's jobs: looked at in what is known, made and ended by requests.

Nobody inside is asked: a resize is a number of pods, and a pod that is deleted gets its own grace
period. How a job has ended is read from its pods.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from brim.backends.processes import Launch
from brim.coordination.cluster.reconcile import ByNode
from brim.coordination.cluster.sightings import NodeSeen, Seen
from brim.domain.scheduled_job import Starts
from brim.errors import EnvironmentFault
from brim.interfaces import Clock
from brim.kubernetes.client.kube_types import KubePod
from brim.kubernetes.client.refusals import Forbidden
from brim.kubernetes.client.resources import PlainObject
from brim.kubernetes.kubeflow.asked import (
    CLEAN_NOTHING,
    CLEAN_RUNNING,
    LAUNCHER,
    MPI,
    KubeflowSpec,
    Rank,
)
from brim.kubernetes.kubeflow.autoscalers import autoscaler_of, is_as_asked, is_of
from brim.kubernetes.kubeflow.gangs import pod_group_of
from brim.kubernetes.kubeflow.mpi import (
    HOSTS,
    hosts_config,
    hosts_of,
    hosts_to_be,
    launcher_rights,
)
from brim.kubernetes.kubeflow.objects import KubeflowStart, common_labels
from brim.kubernetes.kubeflow.pods import pod_of, service
from brim.kubernetes.kubeflow.ranks import (
    RankChanges,
    RankedPods,
    changes,
    failures_of,
    last_words,
    outcome_of,
    ranked,
    was_taken_away,
)
from brim.kubernetes.nodes.places import NodePlaces
from brim.kubernetes.objects.identities import KubeJob, identity_of
from brim.kubernetes.objects.status import Stall
from brim.kubernetes.pods.job_faults import JobFault, JobFaults
from brim.kubernetes.pods.known_pods import KnownPods
from brim.kubernetes.pods.manifests import Manifest
from brim.kubernetes.pods.placeholder_keeper import MakeWay, PlaceholderKeeper, nobody_there
from brim.kubernetes.pods.processes import KubeProcesses, Settled, at_once, persist, stall_of
from brim.kubernetes.pods.retries import Retries

_ANYWHERE = ""  # in place of a node: an autoscaler is on none
_FORCED = 1  # seconds that a pod has to end that was to end before
_log = logging.getLogger(__name__)


class KubeflowServer(Protocol):
    """Makes and ends objects; raises EnvironmentFault where that cannot be."""

    async def make(self, manifest: Manifest) -> bool: ...

    async def keep(self, manifest: Manifest) -> None:
        """Have an object be so, whatever it was."""
        ...

    async def remove(self, thing: PlainObject) -> None:
        """Delete an object; one that is gone needs nothing."""
        ...

    async def remove_each(self, kind: str, *, namespace: str, labels: Mapping[str, str]) -> None:
        """Delete the objects of a kind that have all these labels."""
        ...

    async def make_pod(self, manifest: Manifest) -> KubePod | None: ...

    async def read_pod(self, name: str, namespace: str) -> KubePod | None: ...

    async def annotate(self, pod: KubePod, notes: Mapping[str, str]) -> None:
        """Have a pod have annotations; one that is gone needs none."""
        ...

    async def end_pod(self, pod: KubePod, *, grace: int | None = None) -> None: ...

    async def end_job(self, job: KubeJob, uid: str) -> None:
        """Delete the object of a job, and what it owns."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeflowOrder:
    """The object of a job as far as its pods go.

    Args:
        began: when it got its first pods, seconds since 1970; None: it has had none.
        ended: when it ended; None: it has not.
        is_over: it has ended.
        starts: of the job, as far as they are written down: the failures of its pods.
    """

    uid: str
    asked: KubeflowSpec
    start: Callable[[int], KubeflowStart]
    began: float | None = None
    ended: float | None = None
    is_over: bool = False
    starts: Starts = field(default_factory=Starts)


@dataclass(slots=True)
class _Pods:
    """The knowledge of this operator about a start, beyond its pods.

    Args:
        wanted: pods by node, as they were asked last; None: nobody has asked yet.
        last: the last words of the last pod that has failed.
        seen: uids of those that have.
        rights: of its launcher, as they were made.
        told: the mark of the hosts of which the launcher was told; empty: this operator has not.
        group: its PodGroup, as it was made; None: this operator has made none.
    """

    launch: int
    wanted: ByNode | None = None
    last: str = ""
    seen: set[str] = field(default_factory=set)
    rights: list[Manifest] = field(default_factory=list)
    told: str = ""
    group: Manifest | None = None


class KubeflowProcesses:
    """The pods of Kubeflow's jobs, as `Processes` asks for them.

    Args:
        order: the object of a job by its id; None where it is gone.
        autoscaler: of a job, as the server tells of it; None: there is none.
        clock: of seen time: see `brim.kubernetes.client.outages.SeenClock`.
        tell: called with a job of which there is news in `stall`.
        untouched: jobs whose records cannot be read: nobody knows which pods they should have.
        faults: of the operator's own, at one job.
        settled, make_way: see `KubeProcesses`.
    """

    def __init__(
        self,
        server: KubeflowServer,
        pods: KnownPods,
        places: NodePlaces,
        *,
        order: Callable[[str], KubeflowOrder | None],
        autoscaler: Callable[[str], PlainObject | None],
        clock: Clock,
        tell: Callable[[str], None] = lambda job: None,
        untouched: Collection[str] = (),
        faults: JobFaults | None = None,
        settled: Settled = at_once,
        make_way: MakeWay = nobody_there,
    ) -> None:
        self._settled, self._make_way = settled, make_way
        self._server, self._pods, self._places = server, pods, places
        self._order, self._autoscaler = order, autoscaler
        self._clock, self._tell = clock, tell
        self._faults = faults or JobFaults(lambda job: None)
        self._untouched = frozenset(untouched)
        self._jobs: dict[str, _Pods] = {}
        self._retries, self._scaling = Retries(), Retries()  # of pods, and of autoscalers
        self._beside: dict[str, asyncio.Task[None]] = {}

    def stall(self, job: str) -> Stall | None:
        """Return why something of a job is not made; None where all is."""
        return self._retries.stall(job) or self._scaling.stall(job)

    def forgive(self, job: str) -> None:
        """Know of no failures of a job: it is another one now, or gone."""
        self._retries.forget(job)
        self._scaling.forget(job)

    # What is seen ---------------------------------------------------------------------------------

    def tidy(self, running: Mapping[str, int], jobs: Iterable[str]) -> None:
        """End the pods that nobody needs: of jobs that wait or have ended, and of other starts.

        Args:
            running: the number of its present start by job that has processes.
            jobs: those of which there may be something to end.
        """
        self._jobs = {
            job: kept for job, kept in self._jobs.items() if job in running or self._order(job)
        }
        for job in {*jobs, *self._pods.jobs()} - self._untouched:
            if KubeJob.parse(job).kind:
                with contextlib.suppress(JobFault), self._faults.at(job, "end what is left of it"):
                    self._tidy_one(job, running.get(job))

    def _tidy_one(self, job: str, launch: int | None) -> None:
        order, pods = self._order(job), self._pods.of(job)
        if order is not None:
            self._tidy_autoscaler(job, order)
        if order is None or not order.is_over:
            uid = order.uid if order is not None else ""
            over = [pod for pod in pods if not _is_of(pod, launch, uid) and not pod.is_leaving]
            waits = order is not None and launch is None  # else they are those of the next start
            work = self._end_job_pods(order, over) if order and waits else self._end_each(over)
            self._later(job, work, over, settled=True)
            return
        clean = order.asked.run.clean
        if clean != CLEAN_NOTHING:
            ended = clean == CLEAN_RUNNING
            over = [pod for pod in pods if not (pod.is_leaving or (ended and pod.has_ended))]
            self._later(job, self._end_job_pods(order, over), over, settled=True)
        to_live = order.asked.run.to_live
        now = self._clock.wall()
        if to_live is not None and order.ended is not None and now > order.ended + to_live:
            self._later(job, self._server.end_job(KubeJob.parse(job), order.uid), [job])

    def _tidy_autoscaler(self, job: str, order: KubeflowOrder) -> None:
        """Have a job have the autoscaler that it asks for, and no other, until it ends."""
        wanted = None if order.is_over else autoscaler_of(order.asked, order.uid)
        there = self._autoscaler(job)
        if wanted is None:
            if there is not None and is_of(there, order.uid):
                over = {**there, "kind": "HorizontalPodAutoscaler"}  # which those of a list lack
                self._later(job, self._server.remove(over), [over])
        elif (there is None or not is_as_asked(there, wanted)) and not self._scaling.waits(
            job, self._clock.now()
        ):
            self._later(job, self._keep_autoscaler(job, wanted), [wanted])

    async def _keep_autoscaler(self, job: str, wanted: Manifest) -> None:
        stall: Stall | None = None
        try:
            await self._server.keep(wanted)
        except EnvironmentFault as fault:
            stall = stall_of(fault, to_change="spec.elasticPolicy.metrics")
        # It counts once the server tells of it: where it does not, this is done again later.
        self._scaling.failed(job, _ANYWHERE, self._clock.now(), stall)
        self._tell(job)

    def look(self, launch: Launch) -> Seen:
        order, there = self._order(launch.job), self._there(launch)
        if order is None:
            return Seen(alive=there.alive, workers=there.held, agents=frozenset({launch.home}))
        known = self._of(launch)
        self._hear_of_failures(launch, known, there)
        now = self._clock.wall()
        age = 0.0 if order.began is None else now - order.began
        failed = _failed(there)
        failures = order.starts.with_failures(failed).failures
        start = order.start(launch.number)
        if known.wanted and pod_group_of(start) != known.group:
            self._later(launch.job, self._keep_gang(start, known), [start])
        if order.asked.kind.word == MPI:
            self._tell_launcher(launch, order, known, there)
        outcome = outcome_of(order.asked, there, failures=failures, age=age, last=known.last)
        if outcome.outcome:
            return Seen(
                alive=False,
                workers=there.held,
                failed=failed,
                outcome=outcome.outcome,
                who="user" if outcome.outcome == "failed" else "",
                problem=outcome.why,
                summary={"exit": outcome.outcome, "reason": outcome.reason},
            )
        return Seen(
            alive=bool(known.wanted) or there.alive,
            workers=there.held,
            agents=frozenset({launch.home, *self._agents(launch, order, known, there)}),
            failed=failed,
            problem=known.last,
        )

    def _agents(
        self, launch: Launch, order: KubeflowOrder, known: _Pods, there: RankedPods
    ) -> set[str]:
        """Return the nodes on which nothing is missing; see `KubeProcesses`."""
        if known.wanted is None:
            return set(there.held)
        waits = self._retries.waits(launch.job, self._clock.now())
        todo = changes(order.asked, there, known.wanted, waits=waits)
        if todo.end:
            return set()
        missing = {
            node for node, count in known.wanted.items() if there.filled.get(node, 0) < count
        }
        return (set(there.held) - missing) | waits | (set(known.wanted) - missing)

    def _hear_of_failures(self, launch: Launch, known: _Pods, there: RankedPods) -> None:
        """Note why pods have failed, and make none in their places for a while."""
        for pod in there.pods.values():
            uid = pod.metadata.uid
            if pod.status.phase != "Failed" or uid in known.seen or was_taken_away(pod):
                continue
            known.seen.add(uid)
            known.last = last_words(pod)
            identity = identity_of(pod)
            node = identity.node if identity is not None else ""
            self._retries.failed(launch.job, node, self._clock.now())

    def _of(self, launch: Launch) -> _Pods:
        known = self._jobs.get(launch.job)
        if known is None or known.launch != launch.number:
            known = self._jobs[launch.job] = _Pods(launch.number)
        return known

    def _there(self, launch: Launch) -> RankedPods:
        order = self._order(launch.job)
        pods = self._pods.of(launch.job)
        uids = {identity.uid for pod in pods if (identity := identity_of(pod)) is not None}
        uid = order.uid if order is not None else next(iter(sorted(uids)), "")
        return ranked(pods, launch.number, uid)

    # What is asked --------------------------------------------------------------------------------

    async def start(self, launch: Launch, workers: ByNode) -> None:
        async def make() -> None:
            self._retries.begin(launch.job)
            await self._bring_about(launch, workers)

        await persist(make, self._clock)
        if self._retries.begun(launch.job):
            self._tell(launch.job)

    async def resize(self, launch: Launch, workers: ByNode) -> None:
        await self._bring_about(launch, workers)

    async def leave(self, launch: Launch, node: str) -> None:
        """Do nothing: without pods there is nothing on a node."""

    async def lose(self, launch: Launch, node: str) -> None:
        """Do nothing: nobody inside is told."""

    async def suspend(self, launch: Launch) -> None:
        self._of(launch).wanted = {}
        pods = [pod for pod in self._there(launch).pods.values() if not pod.is_leaving]
        order = self._order(launch.job)
        await (self._end_job_pods(order, pods) if order else self._end_each(pods))

    async def force(self, launch: Launch, workers: ByNode) -> None:
        """End what is too much: first as anybody is asked to end, and at once who was asked before."""
        order, there = self._order(launch.job), self._there(launch)
        if workers and order is not None:
            await self._end_each(changes(order.asked, there, workers).end)
            return
        self._of(launch).wanted = {}
        if order is not None:
            await self._end_services(order.asked)
        await self._end_each(there.pods.values(), forced=True)

    async def close(self) -> None:
        """Begin nothing any more."""
        for task in list(self._beside.values()):
            task.cancel()
        await asyncio.gather(*self._beside.values(), return_exceptions=True)

    # Requests -------------------------------------------------------------------------------------

    async def _bring_about(self, launch: Launch, workers: ByNode) -> None:
        while (beside := self._beside.get(launch.job)) is not None:
            await asyncio.wait([beside])  # it may delete Services, which are to be there now
        order = self._order(launch.job)
        if order is None:
            raise EnvironmentFault(f"the object of {launch.job} is gone")
        known, there = self._of(launch), self._there(launch)
        known.wanted = dict(workers)
        waits = self._retries.waits(launch.job, self._clock.now())
        todo = changes(order.asked, there, workers, waits=waits)
        # A failure that is not written down yet would be forgotten with its pod: a look comes first.
        written = order.starts.failed
        over = [pod for pod in todo.end if failures_of(pod) <= written.get(pod.metadata.uid, 0)]
        await self._end_each(pod for pod in over if not pod.is_leaving)
        taken = await self._make_way({new.node for new in todo.make})
        todo = todo._replace(make=tuple(new for new in todo.make if new.node not in taken))
        start = order.start(launch.number)
        await self._make_beside(start, known, there, todo)
        results = await asyncio.gather(
            *(self._make(pod_of(start, new)) for new in todo.make), return_exceptions=True
        )
        before = self._retries.stall(launch.job)
        for new, result in zip(todo.make, results, strict=True):
            if isinstance(result, EnvironmentFault):
                stall = stall_of(result, to_change=f"spec.{order.asked.kind.specs}")
                now, mine = self._clock.now(), not result.retryable
                self._retries.failed(launch.job, new.node, now, stall, mine=mine)
            else:
                self._retries.made(launch.job, new.node)
        if self._retries.stall(launch.job) != before:
            self._tell(launch.job)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _make_beside(
        self, start: KubeflowStart, known: _Pods, there: RankedPods, todo: RankChanges
    ) -> None:
        """Make what pods need that are about to be made: a PodGroup, Services, or what a launcher has."""
        if todo.make:
            await self._keep_gang(start, known)
        if start.asked.kind.word != MPI:
            services = (service(start, new.rank) for new in todo.make)
            await asyncio.gather(*map(self._server.make, services))
        elif todo.make and known.rights != (rights := launcher_rights(start)):
            hosts = hosts_to_be(start.asked, there, (new.rank for new in todo.make))
            for each in [
                *rights,
                hosts_config(start, hosts),
            ]:  # in turn: a Role is there to be bound
                await self._server.keep(each)
            known.rights = rights

    async def _keep_gang(self, start: KubeflowStart, known: _Pods) -> None:
        """Have the PodGroup of a job that is a gang be as it should be now."""
        group = pod_group_of(start)
        if group is not None and group != known.group:
            await self._server.keep(group)
            known.group = group

    def _tell_launcher(
        self, launch: Launch, order: KubeflowOrder, known: _Pods, there: RankedPods
    ) -> None:
        """Have the launcher of a job know its hosts as they are now."""
        launcher = there.pods.get(Rank(LAUNCHER.lower(), 0))
        if launcher is None or launcher.has_ended:
            return
        hosts = hosts_of(order.asked, there)
        if hosts.mark == (known.told or launcher.metadata.annotations.get(HOSTS)):
            return

        async def tell() -> None:
            await self._server.keep(hosts_config(order.start(launch.number), hosts))
            # Its kubelet looks at a pod that has changed at once, and at its volumes with it; else
            # only once a minute or so.
            await self._server.annotate(launcher, {HOSTS: hosts.mark})
            known.told = hosts.mark

        self._later(launch.job, tell(), [launcher])

    async def _make(self, manifest: Manifest) -> None:
        meta = manifest["metadata"]
        made = await self._server.make_pod(manifest)
        if made is None and self._pods.named(f"{meta['namespace']}/{meta['name']}") is None:
            # A request has made it whose answer was not heard.
            made = await self._server.read_pod(meta["name"], meta["namespace"])
        if made is not None:
            self._pods.made(made, self._clock.now())

    async def _end_job_pods(self, order: KubeflowOrder, pods: Collection[KubePod]) -> None:
        """End the pods of a job that has none for now, and before them the Services that found them.

        An operator that comes up after one that has not come so far finds the pods, and does both.
        """
        await self._end_services(order.asked)
        await self._end_each(pods)

    async def _end_services(self, asked: KubeflowSpec) -> None:
        if not asked.kind.port:
            return
        try:
            await self._server.remove_each(
                "Service", namespace=asked.job.namespace, labels=common_labels(asked)
            )
        except Forbidden as refusal:  # by rights of an older installation: pods have to end anyway
            _log.warning("the Services of %s stay: %s", asked.job.id, refusal)

    async def _end_each(self, pods: Iterable[KubePod], *, forced: bool = False) -> None:
        async def end(pod: KubePod) -> None:
            gone = pod.has_ended or self._is_lost(pod)
            grace = 0 if gone else _FORCED if forced and pod.is_leaving else None
            await self._server.end_pod(pod, grace=grace)
            self._pods.ending(pod, self._clock.now())

        await asyncio.gather(*map(end, list(pods)))

    def _is_lost(self, pod: KubePod) -> bool:
        """Return whether nobody will ever hear how a pod has ended."""
        node: NodeSeen | None = self._places.seen(self._clock.now()).get(pod.spec.node_name)
        return bool(pod.spec.node_name) and (node is None or node.lost)

    def _later(
        self, job: str, work: Coroutine[Any, Any, None], over: list[Any], *, settled: bool = False
    ) -> None:
        """Do what nobody waits for, one thing at a time for a job.

        Args:
            settled: once its record is on the server.
        """
        if not over or job in self._beside:
            work.close()
            return

        async def quietly() -> None:
            if settled:
                await self._settled([job])
            with contextlib.suppress(EnvironmentFault):
                await work

        task = self._beside[job] = asyncio.create_task(quietly())

        def forget(_: asyncio.Task[None]) -> None:
            del self._beside[job]
            work.close()

        task.add_done_callback(forget)


class ProcessesOfEachKind:
    """The pods of all jobs, each by its kind.

    Args:
        placeholders: of jobs of any kind.
        faults: of the operator's own, at one job.
    """

    def __init__(
        self,
        elastic: KubeProcesses,
        kubeflow: KubeflowProcesses,
        placeholders: PlaceholderKeeper,
        jobs: Callable[[], Iterable[str]],
        faults: JobFaults,
    ) -> None:
        self._elastic, self._kubeflow, self._jobs = elastic, kubeflow, jobs
        self._placeholders, self._faults = placeholders, faults

    def stall(self, job: str) -> Stall | None:
        """Return why the pods of a job are not made; None where they are."""
        return self._faults.stall(job) or self._of(job).stall(job)

    def forgive(self, job: str) -> None:
        """Know of no failures of a job: it is another one now, or gone."""
        self._faults.forget(job)
        self._of(job).forgive(job)

    async def leave_namespace(self, namespace: str) -> None:
        """See `KubeProcesses`: jobs of Kubeflow share nothing."""
        await self._elastic.leave_namespace(namespace)

    def is_calm(self) -> bool:
        """See `KubeProcesses`; of Kubeflow's jobs much goes by the clock."""
        here = self._elastic.is_calm() and self._placeholders.is_calm()
        return here and not (self._faults.jobs or any(self._jobs()))

    def nodes(self, names: Iterable[str], running: Mapping[str, int]) -> Mapping[str, NodeSeen]:
        seen = self._elastic.nodes(names, running)
        self._placeholders.tend()
        self._kubeflow.tidy(running, self._jobs())
        return seen

    def look(self, launch: Launch) -> Seen:
        with self._faults.at(launch.job, "look at it"):
            return self._of(launch.job).look(launch)

    async def start(self, launch: Launch, workers: ByNode) -> None:
        with self._faults.at(launch.job, "start it"):
            await self._of(launch.job).start(launch, workers)

    async def resize(self, launch: Launch, workers: ByNode) -> None:
        with contextlib.suppress(JobFault), self._faults.at(launch.job, "resize it"):
            # Who is not resized by our fault has not kept anybody waiting, and is not forced.
            await self._of(launch.job).resize(launch, workers)

    async def leave(self, launch: Launch, node: str) -> None:
        with self._faults.at(launch.job, "take its pods from a node"):
            await self._of(launch.job).leave(launch, node)

    async def lose(self, launch: Launch, node: str) -> None:
        await self._of(launch.job).lose(launch, node)

    async def suspend(self, launch: Launch) -> None:
        with self._faults.at(launch.job, "suspend it"):
            await self._of(launch.job).suspend(launch)

    async def force(self, launch: Launch, workers: ByNode) -> None:
        with self._faults.at(launch.job, "end its pods"):
            await self._of(launch.job).force(launch, workers)

    async def close(self) -> None:
        """Follow nobody, and begin nothing any more."""
        await self._placeholders.close()
        await self._elastic.close()
        await self._kubeflow.close()

    def _of(self, job: str) -> KubeProcesses | KubeflowProcesses:
        return self._kubeflow if KubeJob.parse(job).kind else self._elastic


def _failed(there: RankedPods) -> dict[str, int]:
    """Return the failures of pods by their uids."""
    counts = {pod.metadata.uid: failures_of(pod) for pod in there.pods.values()}
    return {uid: count for uid, count in counts.items() if count}


def _is_of(pod: KubePod, launch: int | None, uid: str) -> bool:
    identity = identity_of(pod)
    return identity is not None and identity.launch == launch and uid in ("", identity.uid)
