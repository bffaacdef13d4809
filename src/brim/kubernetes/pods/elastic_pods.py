"""The pods of an ElasticJob: a master, and workers that it is told nothing of. Pure.

A worker is a pod, so a number of workers is a number of pods. Whatever ends a pod, another one is
missing, and is made at the next look.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from brim.backends.processes import Launch
from brim.backends.watching import recordable
from brim.coordination.cluster.reconcile import ByNode, as_placed, staying
from brim.coordination.cluster.sightings import Seen
from brim.decoding import UNDECODABLE
from brim.domain.job import WorkerRange
from brim.domain.kept_run import kept_spec
from brim.kubernetes.client.kube_types import KubePod
from brim.kubernetes.objects.identities import MASTER, KubeJob, identity_of
from brim.kubernetes.objects.status import Stall
from brim.kubernetes.pods.evictions import with_responder
from brim.kubernetes.pods.gangs import POD_GROUP, gang_of
from brim.kubernetes.pods.job_pods import JobPods, PodChanges, ends, ends_at_once, is_lost
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
    worker_pod,
)
from brim.kubernetes.pods.pod_commands import (
    AskMaster,
    AwaitRecord,
    CommandEnded,
    FollowRun,
    HoldBack,
    JobSight,
    KeepObjects,
    MakeObject,
    MakePod,
    MakeRoom,
    Refuse,
    RemoveObject,
    Stage,
)
from brim.kubernetes.pods.retries import ANY_NODE, MASTERS, ended_by_itself
from brim.kubernetes.pods.start_pods import (
    StartPods,
    beyond,
    beyond_anywhere,
    differences,
    differences_anywhere,
    pods_of,
)
from brim.kubernetes.pods.unplaced_master import UnplacedMaster
from brim.wire.listening import joined_address

_FIELDS = (
    "spec.template, spec.masterTemplate, spec.priorityClassName, spec.volumeClaim or spec.gang"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodOrder:
    """The object of a job, as far as its pods go.

    Args:
        uid: of the object.
        token: of a start of the job, by its number.
    """

    uid: str
    wishes: PodWishes
    token: Callable[[int], str]


class _SortedStart:
    """The pods of a start, sorted, with facts that follow from them alone: true until one changes.

    Args:
        of: the pods.
        uid: of the job's object; empty: it is gone.
    """

    def __init__(self, job_pods: tuple[KubePod, ...], job: KubeJob, launch: int, uid: str) -> None:
        self.of, self.launch, self.uid = job_pods, launch, uid
        self.pods = pods_of(job_pods, job, launch, uid=uid)
        self.alive, self.bound = self.pods.alive, self.pods.bound
        self.failed = _failed(self.pods)
        self.last_words = _last_words(self.pods.master)
        self.address = _address_of(self.pods.master)
        self.token = ""  # of the start, once it was asked for


class ElasticPods(JobPods[PodOrder]):
    """The pods of one ElasticJob."""

    follows_run = True

    def __init__(self, job: KubeJob) -> None:
        super().__init__(job)
        self._unplaced = UnplacedMaster()
        self._sorted: _SortedStart | None = None

    @property
    def stall(self) -> Stall | None:
        return self.retries.stall or self._unplaced.stall

    def is_calm(self, now: float) -> bool:
        return self.retries.is_calm(now) and self._unplaced.is_calm()

    def forgive(self) -> None:
        super().forgive()
        self._unplaced.forget()

    # A look ---------------------------------------------------------------------------------------

    def _look(self, launch: Launch, sight: JobSight[PodOrder]) -> list[Stage]:
        start, now = self._start_pods(launch.number, sight), sight.now
        pods = start.pods
        self.retries.note(start.failed, now)
        self._unplaced.look(launch.number, pods.master, now)
        slots = pods.held
        if launch.anywhere:
            slots = start.bound
            if self._target is not None:
                leaving_nodes = [node for node in slots if _is_left(node, sight)]
                stay = staying(slots, self._target, leaving_nodes=leaving_nodes)
                self._target = as_placed(self._target, stay)
        run = sight.run
        assert run is not None
        has_ended = bool(run.summary or run.failed)
        last_words = {} if has_ended else start.last_words
        is_over = has_ended or bool(last_words)
        seen = run.seen(
            alive=start.alive or run.has_more,
            workers=slots,
            agents=frozenset({launch.home, *self._agents(launch, start, sight, is_over=is_over)}),
            processes=launch.processes,
        )
        self.seen = _with_last_words(seen, last_words) if last_words and not seen.alive else seen
        return [self._notes(launch, start, sight), self._gang_to_keep(launch, sight)] + (
            [self._useless(pods, sight)] if is_over else []
        )

    def _notes(self, launch: Launch, start: _SortedStart, sight: JobSight[PodOrder]) -> Stage:
        """Return the words of a look for followers of runs and choosers of nodes."""
        notes: list[FollowRun | HoldBack | MakeRoom] = []
        now, pods = sight.now, start.pods
        if (pause := self._unplaced.pause(launch.number, now)) is not None:
            notes.append(HoldBack(now + pause))
        can_give = sum(pods.held.values()) > launch.spec.workers.minimum
        # Plans give a worker's slot to a master that lacks room, where the job can do without.
        if self._unplaced.asks_for_room(now) and can_give and pods.master is not None:
            notes.append(MakeRoom(pods.master, pods.held))
        if sight.order is not None and pods.master is not None and start.address:
            start.token = start.token or sight.order.token(launch.number)
            version = pods.master.metadata.resource_version
            notes.append(FollowRun(start.address, start.token, version))
        return tuple(notes)

    def _useless(self, pods: StartPods, sight: JobSight[PodOrder]) -> Stage:
        """Return the ends of workers of a run that is over: a node would come for nothing."""
        if pods.master is not None and not pods.master.has_ended:
            return ()
        return ends((pod for pod in pods.workers.values() if not pod.has_ended), sight)

    def _agents(
        self, launch: Launch, start: _SortedStart, sight: JobSight[PodOrder], *, is_over: bool
    ) -> Collection[str]:
        """Return the nodes on which nothing is missing.

        Where something is, the job is asked again for what it was asked.
        """
        pods, target = start.pods, self._target
        slots = start.bound if launch.anywhere else pods.held
        if target is None:
            return slots.keys()
        if is_over:
            return {*slots, *target}
        waits = self.retries.waits(sight.now)
        if not _has_master(pods, sight) and MASTERS not in waits:
            return ()
        if launch.anywhere:
            is_full = sum(pods.held.values()) >= sum(target.values())
            return {*slots, *target} if is_full or waits - {MASTERS} else ()
        full = {node for node, count in target.items() if pods.held.get(node, 0) >= count}
        return {*pods.held, *waits} - (target.keys() - full - waits)

    def _pods(self, launch: int, sight: JobSight[PodOrder]) -> StartPods:
        return self._start_pods(launch, sight).pods

    def _start_pods(self, launch: int, sight: JobSight[PodOrder]) -> _SortedStart:
        """Return the pods of a start, sorted again where one of the job's has changed since."""
        uid = sight.order.uid if sight.order is not None else ""
        start = self._sorted
        if (
            start is None
            or start.of is not sight.pods
            or (start.launch, start.uid) != (launch, uid)
        ):
            start = self._sorted = _SortedStart(sight.pods, self.job, launch, uid)
        return start

    # What is asked --------------------------------------------------------------------------------

    def _ask(
        self, launch: Launch, workers: ByNode, sight: JobSight[PodOrder], *, begins: bool
    ) -> list[Stage]:
        if not begins and _is_over(self._start_pods(launch.number, sight), sight):
            # To one who takes over, a run that begins again is over until its master says so.
            self._target = dict(workers)
            return []
        return super()._ask(launch, workers, sight, begins=begins)

    def _changes(
        self, launch: Launch, workers: ByNode, sight: JobSight[PodOrder], waits: Collection[str]
    ) -> PodChanges:
        order = self._order_in(sight)
        start, pods = self._start(launch.number, order), self._pods(launch.number, sight)
        if launch.anywhere:
            leaving_nodes = [n for n in pods.bound if n not in workers and _is_left(n, sight)]
            pauses = any(node != MASTERS for node in waits)
            differences_left = differences_anywhere(
                pods, self.job, launch.number, workers, leaving_nodes=leaving_nodes, waits=pauses
            )
        else:
            differences_left = differences(pods, self.job, launch.number, workers, waits=waits)
        by_name = {pod.metadata.name: pod for pod in [*pods.others, *pods.workers.values()]}
        surplus = [by_name[name] for name in differences_left.end]
        # Who makes room for a master has nobody to hand over to: it could only wait to be killed.
        at_once = self._unplaced.asks_for_room(sight.now)
        end = ends_at_once(surplus, sight) if at_once else ends(surplus, sight)
        master = self._master(launch, order, sight, waits)
        service = masters_service(self.job.namespace)
        new = [
            MakePod(
                _worker(start, order.wishes, name, node, launch.processes),
                slot=ANY_NODE if launch.anywhere else node,
                node=node,
                service=service,
            )
            for name, node in differences_left.make
        ]
        return PodChanges((*end, *master.end), (*master.make, *new))

    def _master(
        self, launch: Launch, order: PodOrder, sight: JobSight[PodOrder], waits: Collection[str]
    ) -> PodChanges:
        """Return how to get a master's pod; one that has ended has its name until it is gone."""
        pods, wishes = self._pods(launch.number, sight), order.wishes
        if pods.master is not None:
            if _has_master(pods, sight):
                return PodChanges()
            return PodChanges(end=ends_at_once([pods.master], sight))
        if MASTERS in waits:
            return PodChanges()
        rejoins = any(not pod.has_ended for pod in pods.workers.values())
        pod = master_pod(self._start(launch.number, order), wishes, rejoins=rejoins)
        pod = with_responder(pod) if wishes.evictions else pod
        service = masters_service(self.job.namespace)
        new = MakePod(pod, slot=MASTERS, service=service, beside_slots=wishes.master)
        return PodChanges(make=(new,))

    def _needs(
        self,
        launch: Launch,
        make: Collection[MakePod],
        sight: JobSight[PodOrder],
        *,
        begins: bool,
    ) -> list[Stage]:
        if not begins:
            return []
        order = self._order_in(sight)
        start, wishes = self._start(launch.number, order), order.wishes
        manifests = [
            secret(start, _spec_of(launch)),
            network_policy(start, wishes.operator_namespace),
            *([volume_claim(start, wishes.claim)] if wishes.claim else []),
        ]
        group = self._group(launch, order)
        gang: Stage = (KeepObjects((group,)),) if group is not None else ()
        return [gang, tuple(map(MakeObject, manifests))]

    def _gang_to_keep(self, launch: Launch, sight: JobSight[PodOrder]) -> Stage:
        """Have the PodGroup of a job say how many workers are its fewest now."""
        group = self._group(launch, sight.order) if sight.order is not None else None
        if group is None or group == self._gang or MASTERS in self.retries.waits(sight.now):
            return ()
        return (KeepObjects((group,)),)

    def _group(self, launch: Launch, order: PodOrder) -> Manifest | None:
        gang = gang_of(order.wishes)
        if gang is None:
            return None
        start = self._start(launch.number, order)
        group = owned(gang.version, POD_GROUP, self.job.name, start)
        return gang.pod_group(group, launch.spec.workers.minimum)

    def _completed(self, launch: Launch, sight: JobSight[PodOrder]) -> list[Stage]:
        if launch.number < 2 or sight.order is None:
            return []
        name = self._start(launch.number - 1, sight.order).files
        meta = {"name": name, "namespace": self.job.namespace}
        return [(RemoveObject({"apiVersion": "v1", "kind": "Secret", "metadata": meta}),)]

    def _leave(self, launch: Launch, node: str, sight: JobSight[PodOrder]) -> list[Stage]:
        if launch.anywhere:
            return []
        pods = self._pods(launch.number, sight)
        return [ends((pods.workers[number] for number in pods.by_node.get(node, [])), sight)]

    def _suspend(self, launch: Launch, sight: JobSight[PodOrder]) -> list[Stage]:
        if sight.order is None:  # its pods go with its object, and none comes again
            self._target = {}
            return []
        if address := self._start_pods(launch.number, sight).address:
            return [(AskMaster(address, sight.order.token(launch.number)),)]
        # It is asked again, and one that is gone is there by then.
        waits = self.retries.waits(sight.now)
        master = self._master(launch, sight.order, sight, waits)
        refusal = Refuse(f"the master of {launch.job} has no address now")
        return [master.end, master.make, (refusal,)]

    def _force(self, launch: Launch, workers: ByNode, sight: JobSight[PodOrder]) -> list[Stage]:
        pods, target = self._pods(launch.number, sight), workers or self._target or {}
        # A pod ends by itself: while one is slow to end, those that are to stay train on.
        surplus_of = beyond_anywhere if launch.anywhere else beyond
        names = set(surplus_of(pods, target)) if target else set()
        if workers or names:
            surplus = [pod for pod in pods.workers.values() if pod.metadata.name in names]
        else:
            self._target = {}
            surplus = [*pods.workers.values(), *filter(None, [pods.master])]
        return [ends_at_once(surplus, sight)]

    def _take(self, answer: CommandEnded, sight: JobSight[PodOrder]) -> None:
        super()._take(answer, sight)
        if isinstance(answer.command, AskMaster) and answer.fault is None:
            self._target = {}

    # What is over ---------------------------------------------------------------------------------

    def _sweep(self, running: int | None, sight: JobSight[PodOrder]) -> list[Stage]:
        """End the pods that are of no start that is under way, once the record does without them."""
        if running is None:
            self._reset()
            self._unplaced.stop(is_there=sight.order is not None)
        pods = sight.pods if running is None else self._pods(running, sight).others
        useless = ends(pods, sight)
        return [(AwaitRecord(),), useless] if useless else []

    def _reset(self) -> None:
        super()._reset()
        self._sorted = None

    def _start(self, launch: int, order: PodOrder) -> KubeStart:
        return KubeStart(job=self.job, uid=order.uid, launch=launch, token=order.token(launch))

    def _fields(self, sight: JobSight[PodOrder]) -> str:
        return _FIELDS


def _failed(pods: StartPods) -> dict[str, str]:
    """Return the nodes of the pods that have failed, by uid."""
    found = {
        pod.metadata.uid: identity.node
        for pod in pods.workers.values()
        if ended_by_itself(pod) and (identity := identity_of(pod)) is not None
    }
    if pods.master is not None and ended_by_itself(pods.master):
        found[pods.master.metadata.uid] = MASTERS
    return found


def _is_over(start: _SortedStart, sight: JobSight[PodOrder]) -> bool:
    """Return whether a run has said how it has ended: nothing is made for it any more."""
    run = sight.run
    return run is not None and bool(run.summary or run.failed or start.last_words)


def _is_left(name: str, sight: JobSight[PodOrder]) -> bool:
    """Return whether all pods are to leave a node that is there."""
    node = sight.nodes.get(name)
    return node is not None and (node.lost or node.leaving)


def _has_master(pods: StartPods, sight: JobSight[PodOrder]) -> bool:
    """Return whether a pod of the master runs, or will."""
    master = pods.master
    return master is not None and not (master.has_ended or is_lost(master, sight))


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
    """Return the summary of a run without a follower at its end; empty where there is none."""
    for container in master.status.container_statuses if master is not None else ():
        ended = container.state.terminated
        if container.name == MASTER and ended is not None:
            with contextlib.suppress(*UNDECODABLE):
                summary = msgspec.json.decode(ended.message, type=dict[str, Any])
                return recordable(summary) if isinstance(summary.get("exit"), str) else {}
    return {}


def _with_last_words(seen: Seen, summary: dict[str, Any]) -> Seen:
    """Return a look at a run with its master's words about its end."""
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
    maximum = max(launch.processes * spec.workers.maximum, spec.micro_batches)
    workers = WorkerRange(minimum=1, maximum=maximum)
    faults = spec.faults if launch.number <= 1 else ()
    own_spec = replace(spec, workers=workers, spares=0, agents=1, faults=faults)
    return msgspec.json.encode(own_spec)
