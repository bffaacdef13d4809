"""The processes of scheduled jobs as pods: events for each job's automaton, and its commands' requests."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from brim.backends.processes import Launch
from brim.coordination.cluster.reconcile import ByNode
from brim.coordination.cluster.sightings import NodeSeen, Seen
from brim.errors import EnvironmentFault
from brim.interfaces import Clock
from brim.kubernetes.client.kube_types import KubePod
from brim.kubernetes.client.refusals import Forbidden
from brim.kubernetes.client.resources import PlainObject
from brim.kubernetes.nodes.freed_slots import FreedSlots
from brim.kubernetes.nodes.places import NodePlaces
from brim.kubernetes.objects.identities import KubeJob, identity_of
from brim.kubernetes.objects.status import Stall
from brim.kubernetes.pods import pod_commands as commands
from brim.kubernetes.pods.job_faults import JobFault, JobFaults
from brim.kubernetes.pods.job_pods import JobPods
from brim.kubernetes.pods.known_pods import KnownPods
from brim.kubernetes.pods.manifests import Manifest, with_preferred_node
from brim.kubernetes.pods.pod_commands import Command, Event, JobSight, Stage
from brim.kubernetes.pods.pod_faults import NameTaken
from brim.kubernetes.pods.runs_seen import RunsSeen

_PATIENCE = 60.0  # seen seconds for which a start is tried that the server does not answer
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0  # seconds before that is tried again
_SHARED = 60.0  # seconds for which the Service of a namespace is believed to be there
# Requests of starts that are sent at once: what jobs that run need finds a connection, and its turn.
_OF_STARTS = 12
_OF_RUNS = (commands.PodsSeen, commands.WorkersAsked)  # events for which it counts how a run is
_IMMEDIATE = (commands.FollowRun, commands.HoldBack, commands.MakeRoom)  # they need no request
_log = logging.getLogger(__name__)

AskToSuspend = Callable[[str, str], Awaitable[None]]
"""Asks a master to suspend its run, by `HOST:PORT` and the run's token.

Raises EnvironmentFault where it does not say yes.
"""

Settled = Callable[[Collection[str]], Awaitable[None]]
"""Waits until the records of jobs are where they cannot be lost."""

Line = contextlib.AbstractAsyncContextManager[Any]
"""Is entered by each request before it is sent."""

_NO_LINE: Line = contextlib.nullcontext()


async def at_once(_: Collection[str]) -> None:
    """Return: the records of these jobs cannot be lost."""


class PodServer(Protocol):
    """Makes and ends objects; raises EnvironmentFault where that cannot be."""

    async def make(self, manifest: Manifest) -> bool:
        """Make an object; False where there is one of its name."""
        ...

    async def keep(self, manifest: Manifest) -> None:
        """Have an object be so, whether it is there or not."""
        ...

    async def remove(self, thing: PlainObject) -> None:
        """Delete an object; one that is gone needs nothing."""
        ...

    async def remove_each(self, kind: str, *, namespace: str, labels: Mapping[str, str]) -> None:
        """Delete the objects of a kind that have all these labels."""
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

    async def annotate(self, pod: KubePod, notes: Mapping[str, str]) -> None:
        """Have a pod have annotations; one that is gone needs none."""
        ...

    async def end_pod(self, pod: KubePod, *, grace: int | None = None) -> None:
        """Ask a pod to end; one that is gone has ended."""
        ...


class Placeholders(Protocol):
    """Pods that stand for workers of jobs that wait for places."""

    def is_calm(self) -> bool:
        """Return whether there is nothing to do, now or later."""
        ...

    def tend(self) -> None:
        """Have them be as they should be, beside all other work."""
        ...

    async def make_way(self, nodes: Collection[str]) -> Collection[str]:
        """End those on nodes; return the nodes on which one still is."""
        ...

    async def close(self) -> None:
        """Begin nothing any more."""
        ...


class _SweptState(NamedTuple):
    """The state of a job that a sweep goes by."""

    running: int | None
    pods: tuple[KubePod, ...]
    order: Any

    def is_same(self, other: _SweptState | None) -> bool:
        """Return whether these are the very same values, which costs no comparison of pods."""
        return (
            other is not None
            and self.running == other.running
            and self.pods is other.pods
            and self.order is other.order
        )


class PodProcesses:
    """The pods of jobs, as `Processes` asks for them.

    Args:
        server: makes and ends them.
        pods, places: the present ones; a watcher of the server keeps them up to date.
        runs: of the jobs.
        shape: an automaton for a job, by its kind.
        order: the object of a job by its id; None where it is gone.
        objects: the jobs that may have something to end beside pods.
        ask_to_suspend: asks a run's master.
        placeholders: make way for workers that are about to be made.
        clock: of seen time: see `brim.kubernetes.client.outages.SeenClock`.
        untouched: jobs whose records cannot be read: the right number of their pods is unknown.
        tell: called with a job of which there is news in `stall`.
        faults: of the operator's own, at one job.
        settled: waits until the records of these jobs are on the server. How a job has ended may be
            known by its pods alone: they stay until then.
        doubts: whether silent nodes may be there, see `Outages.doubts`.
        shared: the namespaces in which an earlier operator has left the Service of their masters.
    """

    def __init__(
        self,
        server: PodServer,
        pods: KnownPods,
        places: NodePlaces,
        runs: RunsSeen,
        *,
        shape: Callable[[KubeJob], JobPods[Any]],
        order: Callable[[str], Any],
        objects: Callable[[], Iterable[str]] = tuple,
        ask_to_suspend: AskToSuspend,
        placeholders: Placeholders,
        clock: Clock,
        untouched: Collection[str] = (),
        tell: Callable[[str], None] = lambda job: None,
        faults: JobFaults | None = None,
        settled: Settled = at_once,
        doubts: Callable[[], bool] = lambda: False,
        shared: Collection[str] = (),
    ) -> None:
        self._server, self._pods, self._places, self._runs = server, pods, places, runs
        self._shape, self._order, self._objects = shape, order, objects
        self._ask_to_suspend, self._clock = ask_to_suspend, clock
        self._untouched, self._tell = frozenset(untouched), tell
        self._faults, self._settled, self._doubts = faults or JobFaults(tell), settled, doubts
        self._placeholders = placeholders
        self._freed = FreedSlots()
        self._jobs: dict[str, JobPods[Any]] = {}
        self._swept: dict[str, _SweptState] = {}  # of jobs of which nothing was left over
        # When the Service of a namespace was seen to be there: those of an earlier life may be gone.
        self._shared = dict.fromkeys(shared, -math.inf)
        self._sharing: dict[str, asyncio.Lock] = {}  # by namespace
        self._background: dict[str, asyncio.Task[None]] = {}  # what nobody waits for, by job
        self._removing: set[str] = set()  # the jobs whose Services that removes
        self._line = asyncio.Semaphore(_OF_STARTS)  # in which requests of starts wait

    def stall(self, job: str) -> Stall | None:
        """Return why the pods of a job are not made, or do nothing; None where they are and do."""
        automaton = self._jobs.get(job)
        return self._faults.stall(job) or (automaton.stall if automaton is not None else None)

    def forgive(self, job: str) -> None:
        """Know of no failures of a job: it is another one now, or gone."""
        self._faults.forget(job)
        self._places.choices.release(job)
        if job in self._jobs:
            self._jobs[job].forgive()

    # What is seen ---------------------------------------------------------------------------------

    def is_calm(self) -> bool:
        """Return whether another look would find the same as the last one, until there is news."""
        now = self._clock.now()
        settled = self._pods.is_calm and self._places.is_calm() and self._runs.is_calm()
        settled = settled and self._freed.is_calm and self._placeholders.is_calm()
        busy = self._background or self._faults.jobs or any(self._objects())
        return settled and not busy and all(job.is_calm(now) for job in self._jobs.values())

    def nodes(self, names: Iterable[str], running: Mapping[str, int]) -> Mapping[str, NodeSeen]:
        """Return all nodes; those that are named have no devices, and are always up."""
        now = self._clock.now()
        self._pods.expire(now)
        self._places.doubts = self._doubts()
        self._runs.keep(running)
        self._placeholders.tend()
        seen = self._places.seen(now)
        timed = frozenset(self._objects())
        for job in {*self._jobs, *self._pods.jobs(), *timed} - self._untouched:
            with contextlib.suppress(JobFault), self._faults.at(job, "end what is left of it"):
                self._sweep(job, running.get(job), timed=job in timed)
            if job not in running and job not in self._background and self._job(job).is_idle(now):
                del self._jobs[job]
                self._swept.pop(job, None)
        return {**self._freed.counted(seen, now), **{name: NodeSeen(up=True) for name in names}}

    def _sweep(self, job: str, running: int | None, *, timed: bool) -> None:
        """End the remains of a job; that there are none stays true until something of it changes.

        Args:
            running: the number of its present start; None: it has no processes.
            timed: something may be left once time has passed.
        """
        if not timed:
            state = _SweptState(running, self._pods.of_job(job), self._order(job))
            if state.is_same(self._swept.get(job)):
                return
        stages = self._handle(job, commands.Swept(running))
        self._in_background(job, stages)
        if not (timed or stages):
            self._swept[job] = state
        else:
            self._swept.pop(job, None)

    def look(self, launch: Launch) -> Seen:
        with self._faults.at(launch.job, "look at it"):
            if stages := self._handle(launch.job, commands.PodsSeen(launch)):
                requests = [self._do_now(launch.job, stage) for stage in stages]
                self._in_background(launch.job, requests)
            return self._jobs[launch.job].seen

    # What is asked --------------------------------------------------------------------------------

    async def start(self, launch: Launch, workers: ByNode) -> None:
        with self._faults.at(launch.job, "start it"):
            if self._job(launch.job).follows_run:
                self._runs.begin(launch.job, self._clock.wall())
            await self._persist(launch.job, commands.WorkersAsked(launch, workers, begins=True))
            with contextlib.suppress(EnvironmentFault):  # what is left of the last start waits
                await self._ask(launch.job, commands.Begun(launch))

    async def resize(self, launch: Launch, workers: ByNode) -> None:
        with contextlib.suppress(JobFault), self._faults.at(launch.job, "resize it"):
            # Who is not resized by our fault has not kept anybody waiting, and is not forced.
            await self._ask(launch.job, commands.WorkersAsked(launch, workers))

    async def leave(self, launch: Launch, node: str) -> None:
        with self._faults.at(launch.job, "take its pods from a node"):
            await self._ask(launch.job, commands.Left(launch, node))

    async def lose(self, launch: Launch, node: str) -> None:
        """Do nothing: a master misses agents by itself."""

    async def suspend(self, launch: Launch) -> None:
        with self._faults.at(launch.job, "suspend it"):
            await self._ask(launch.job, commands.Suspended(launch))

    async def force(self, launch: Launch, workers: ByNode) -> None:
        with self._faults.at(launch.job, "end its pods"):
            await self._ask(launch.job, commands.Forced(launch, workers))

    async def leave_namespace(self, namespace: str) -> None:
        """Delete the Service of a namespace, which has no jobs any more.

        Raises:
            EnvironmentFault: the server does not take that.
        """
        async with self._sharing.setdefault(namespace, asyncio.Lock()):
            if namespace in self._shared:
                await self._server.unshare(namespace)
                del self._shared[namespace]

    async def close(self) -> None:
        """Follow no run, and begin nothing any more."""
        await self._placeholders.close()
        self._runs.close()
        tasks = list(self._background.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # Events and commands --------------------------------------------------------------------------

    def _job(self, job: str) -> JobPods[Any]:
        automaton = self._jobs.get(job)
        if automaton is None:
            automaton = self._jobs[job] = self._shape(KubeJob.parse(job))
        return automaton

    def _handle(self, job: str, event: Event) -> list[Stage]:
        automaton = self._job(job)
        stall_before = automaton.stall
        sight = JobSight(
            now=self._clock.now(),
            wall=self._clock.wall(),
            order=self._order(job),
            pods=self._pods.of_job(job),
            nodes=self._places.last,
            run=self._runs.watch(job)
            if automaton.follows_run and isinstance(event, _OF_RUNS)
            else None,
        )
        try:
            return automaton.handle(event, sight)
        finally:
            if automaton.stall != stall_before:
                self._tell(job)

    async def _persist(self, job: str, event: Event) -> None:
        """Ask for deeds that may be asked twice, and again where their outcome is unknown.

        Raises:
            EnvironmentFault: the server says no, or has had no time for too long of seen time.
        """
        end = self._clock.now() + _PATIENCE
        pause = _FIRST_PAUSE
        while True:
            try:
                return await self._ask(job, event, line=self._line)
            except EnvironmentFault as fault:
                if not fault.retryable or self._clock.now() >= end:
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _ask(self, job: str, event: Event, *, line: Line = _NO_LINE) -> None:
        while job in self._removing:  # Services, which are to be there now
            await asyncio.wait([self._background[job]])
        await self._perform(job, self._handle(job, event), line=line)

    async def _perform(self, job: str, stages: Iterable[Stage], *, line: Line = _NO_LINE) -> None:
        """Carry out commands, stage by stage.

        Raises:
            EnvironmentFault: one has come to nothing; those of later stages were not begun.
        """
        blocked: Collection[str] = ()
        for stage in stages:
            todo = []
            for command in stage:
                if isinstance(command, commands.ClearWay):
                    blocked = await self._placeholders.make_way(command.nodes)
                elif not (isinstance(command, commands.MakePod) and command.node in blocked):
                    todo.append(command)  # else it is asked for again at a later look
            requests = (self._carry_out(job, command, line) for command in todo)
            for result in await asyncio.gather(*requests, return_exceptions=True):
                if isinstance(result, BaseException):
                    raise result

    def _in_background(self, job: str, stages: Iterable[Stage]) -> None:
        """Carry out commands that no caller waits for, one at a time for a job.

        Where it comes to nothing, or something is under way, a later look sees that.
        """
        stages = [stage for stage in stages if stage]
        if not stages or job in self._background:
            return

        async def quietly() -> None:
            with contextlib.suppress(EnvironmentFault):
                await self._perform(job, stages)

        def forget(_: asyncio.Task[None]) -> None:
            del self._background[job]
            self._removing.discard(job)

        if any(
            isinstance(command, commands.RemoveServices) for stage in stages for command in stage
        ):
            self._removing.add(job)
        task = self._background[job] = asyncio.create_task(quietly())
        task.add_done_callback(forget)

    def _do_now(self, job: str, stage: Stage) -> Stage:
        """Carry out the commands that need no request; return the others."""
        for command in stage:
            match command:
                case commands.FollowRun(address, token, version):
                    self._runs.call(job, address, token, version=version)
                case commands.HoldBack(end):
                    self._places.choices.hold_back(job, end)
                case commands.MakeRoom(pod, nodes):
                    self._places.make_room(pod, nodes)
        return tuple(command for command in stage if not isinstance(command, _IMMEDIATE))

    async def _carry_out(self, job: str, command: Command, line: Line) -> None:
        """Carry out a command, and tell the job's automaton how it has ended."""
        try:
            await self._request(job, command, line)
        except EnvironmentFault as fault:
            stall_before = self._job(job).stall
            self._handle(job, commands.CommandEnded(command, fault, self._clock.now()))
            if self._job(job).stall not in (None, stall_before):
                _log.warning("the pods of %s are not made: %s", job, fault)
            raise
        self._handle(job, commands.CommandEnded(command, None, self._clock.now()))

    async def _request(self, job: str, command: Command, line: Line) -> None:
        name, server = KubeJob.parse(job), self._server
        match command:
            case commands.MakePod():
                await self._make(name, command, line)
            case commands.EndPod(pod, grace):
                await server.end_pod(pod, grace=grace)
                self._pods.ending(pod, self._clock.now())
            case commands.MakeObject(manifest):
                async with line:
                    await server.make(manifest)
            case commands.KeepObjects(manifests):
                for manifest in manifests:
                    await server.keep(manifest)
            case commands.RemoveObject(thing):
                await server.remove(thing)
            case commands.RemoveServices(labels):
                try:
                    await server.remove_each("Service", namespace=name.namespace, labels=labels)
                except Forbidden as refusal:  # by older rights: pods have to end anyway
                    _log.warning("the Services of %s stay: %s", job, refusal)
            case commands.Annotate(pod, notes):
                await server.annotate(pod, notes)
            case commands.AwaitRecord():
                await self._settled([job])
            case commands.AskMaster(address, token):
                await self._ask_to_suspend(address, token)
            case commands.Refuse(problem):
                raise EnvironmentFault(problem)

    async def _make(self, job: KubeJob, command: commands.MakePod, line: Line) -> None:
        """Make a pod; one that is there may have been made by a request whose answer was not heard."""
        manifest = command.manifest
        if command.service is not None:
            await self._share(job, command.service)
        if command.beside_slots is not None and (
            node := self._places.node_beside_slots(command.beside_slots)
        ):
            manifest = with_preferred_node(manifest, node)  # elsewhere it may cost a slot
        async with line:
            pod = await self._server.make_pod(manifest)
        if pod is None:
            pod = await self._made_before(job, manifest["metadata"]["name"])
        if pod is not None:
            self._pods.add(pod, self._clock.now())

    async def _made_before(self, job: KubeJob, name: str) -> KubePod | None:
        """Return the pod of that name; None: it is known, or gone again.

        Raises:
            NameTaken: it is not of the job.
        """
        key = f"{job.namespace}/{name}"
        seen = self._pods.named(key)
        pod = seen or await self._server.read_pod(name, job.namespace)
        identity = identity_of(pod) if pod is not None else None
        if pod is not None and (identity is None or identity.job != job.id):
            raise NameTaken("Pod", key, job.name)
        return None if seen else pod

    async def _share(self, job: KubeJob, service: Manifest) -> None:
        """Have the Service of a namespace; somebody may have deleted it since."""
        async with self._sharing.setdefault(job.namespace, asyncio.Lock()):
            now = self._clock.now()
            if now - self._shared.get(job.namespace, -math.inf) > _SHARED:
                await self._server.share(service, job=job.name)
                self._shared[job.namespace] = now
