"""The pods of one of Kubeflow's jobs. Pure.

Nobody inside is asked: a resize is a number of pods, and a pod that is deleted gets its own grace
period. How a job has ended is read from its pods.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from brim.backends.processes import Launch
from brim.coordination.cluster.reconcile import ByNode
from brim.coordination.cluster.sightings import Seen
from brim.domain.scheduled_job import Starts
from brim.kubernetes.client.kube_types import KubePod
from brim.kubernetes.client.resources import PlainObject
from brim.kubernetes.kubeflow.autoscalers import (
    AUTOSCALER,
    AUTOSCALERS,
    autoscaler_of,
    is_as_asked,
    is_of,
)
from brim.kubernetes.kubeflow.gangs import pod_group_of
from brim.kubernetes.kubeflow.mpi import (
    HOSTS,
    RIGHTS,
    MpiHosts,
    fewest_workers,
    hosts_config,
    hosts_of,
    hosts_to_be,
    launcher_rights,
)
from brim.kubernetes.kubeflow.mpi_ssh import ssh_hosts_config, ssh_secret, ssh_service
from brim.kubernetes.kubeflow.objects import INDEX, TYPE, KubeflowStart, common_labels
from brim.kubernetes.kubeflow.pods import pod_of, service
from brim.kubernetes.kubeflow.ranks import (
    RankedPods,
    changes,
    failures_of,
    last_words,
    outcome_of,
    rank_of,
    ranked,
    was_taken_away,
)
from brim.kubernetes.kubeflow.request import (
    CLEAN_NOTHING,
    CLEAN_RUNNING,
    KUBEFLOW,
    LAUNCHER,
    MPI,
    ONCE_READY,
    WORKER,
    KubeflowSpec,
    Rank,
)
from brim.kubernetes.objects.identities import KubeJob, identity_of
from brim.kubernetes.objects.status import Stall
from brim.kubernetes.pods.job_pods import JobPods, PodChanges, ends, ends_at_once
from brim.kubernetes.pods.manifests import Manifest
from brim.kubernetes.pods.pod_commands import (
    Annotate,
    AwaitRecord,
    CommandEnded,
    JobSight,
    KeepObjects,
    MakeObject,
    MakePod,
    RemoveObject,
    RemoveServices,
    Stage,
)
from brim.kubernetes.pods.pod_faults import stall_of
from brim.kubernetes.pods.retries import MASTERS, Retries

_NO_NODE = ""  # in place of a node: an autoscaler is on none


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeflowOrder:
    """The object of a job as far as its pods go.

    Args:
        started: when it got its first pods, seconds since 1970; None: it has had none.
        ended: when it ended; None: it has not.
        is_over: it has ended.
        starts: of the job, as far as they are written down: the failures of its pods.
        autoscaler: of the job, as the server tells of it; None: there is none.
    """

    uid: str
    request: KubeflowSpec
    start: Callable[[int], KubeflowStart]
    started: float | None = None
    ended: float | None = None
    is_over: bool = False
    starts: Starts = field(default_factory=Starts)
    autoscaler: PlainObject | None = None


class KubeflowPods(JobPods[KubeflowOrder]):
    """The pods of one of Kubeflow's jobs."""

    follows_run = False

    def __init__(self, job: KubeJob) -> None:
        super().__init__(job)
        self._scaling = Retries()  # of its autoscaler
        self._last_words = ""  # of the last pod that has failed
        self._rights: list[Manifest] = []  # of its launcher, as they were made
        self._is_reachable = False  # the pods of this start have names, keys and hosts for ssh
        self._mark = ""  # the mark of the hosts of which the launcher was told; empty: it was not

    @property
    def stall(self) -> Stall | None:
        return super().stall or self._scaling.stall

    def is_calm(self, now: float) -> bool:
        return super().is_calm(now) and not self._scaling.waits(now)

    def forgive(self) -> None:
        super().forgive()
        self._scaling.forget()

    # A look ---------------------------------------------------------------------------------------

    def _look(self, launch: Launch, sight: JobSight[KubeflowOrder]) -> list[Stage]:
        order, pods = sight.order, self._pods(launch.number, sight)
        home = frozenset({launch.home})
        if order is None:
            self.seen = Seen(alive=pods.alive, workers=pods.held, agents=home)
            return []
        self._hear_of_failures(pods, sight.now)
        failed = _failed(pods)
        outcome = outcome_of(
            order.request,
            pods,
            failures=order.starts.with_failures(failed).failures,
            age=0.0 if order.started is None else sight.wall - order.started,
            last=self._last_words,
        )
        if outcome.outcome:
            self.seen = Seen(
                alive=False,
                workers=pods.held,
                failed=failed,
                outcome=outcome.outcome,
                who="user" if outcome.outcome == "failed" else "",
                problem=outcome.explanation,
                summary={"exit": outcome.outcome, "reason": outcome.reason},
            )
        else:
            self.seen = Seen(
                alive=bool(self._target) or pods.alive,
                workers=pods.held,
                agents=home | self._agents(order, pods, sight),
                failed=failed,
                problem=self._last_words,
            )
        start = order.start(launch.number)
        return [self._gang_to_keep(start), *self._hosts_to_tell(start, pods)]

    def _agents(
        self, order: KubeflowOrder, pods: RankedPods, sight: JobSight[KubeflowOrder]
    ) -> frozenset[str]:
        """Return the nodes on which nothing is missing: see `ElasticPods`."""
        if self._target is None:
            return frozenset(pods.held)
        target, waits = self._target, self.retries.waits(sight.now)
        if changes(order.request, pods, target, waits=waits).end:
            return frozenset()
        missing = {node for node, count in target.items() if pods.filled.get(node, 0) < count}
        return frozenset((pods.held.keys() - missing) | waits | (target.keys() - missing))

    def _hear_of_failures(self, pods: RankedPods, now: float) -> None:
        """Note why pods have failed, and make none in their places for a while."""
        failed = {
            pod.metadata.uid: pod
            for pod in pods.pods.values()
            if pod.status.phase == "Failed" and not was_taken_away(pod)
        }
        nodes = {
            uid: identity.node if (identity := identity_of(pod)) is not None else ""
            for uid, pod in failed.items()
        }
        for uid in sorted(self.retries.note(nodes, now)):
            self._last_words = last_words(failed[uid])

    def _gang_to_keep(self, start: KubeflowStart) -> Stage:
        """Have the PodGroup of a job that is a gang be as it should be now."""
        group = pod_group_of(start) if self._target else None
        return (KeepObjects((group,)),) if group is not None and group != self._gang else ()

    def _hosts_to_tell(self, start: KubeflowStart, pods: RankedPods) -> list[Stage]:
        """Have the launcher of a job know its hosts as they are now."""
        launcher = pods.pods.get(Rank(LAUNCHER.lower(), 0))
        if start.request.kind.word != MPI or launcher is None or launcher.has_ended:
            return []
        hosts = hosts_of(start.request, pods)
        if hosts.mark == (self._mark or launcher.metadata.annotations.get(HOSTS)):
            return []
        # Its kubelet looks at a pod that has changed at once, and at its volumes with it; else only
        # once a minute or so.
        note = Annotate(launcher, {HOSTS: hosts.mark})
        return [(KeepObjects((_config_of(start, hosts),)),), (note,)]

    def _pods(self, launch: int, sight: JobSight[KubeflowOrder]) -> RankedPods:
        uids = {identity.uid for pod in sight.pods if (identity := identity_of(pod)) is not None}
        uid = sight.order.uid if sight.order is not None else min(uids, default="")
        return ranked(sight.pods, launch, uid)

    # What is asked --------------------------------------------------------------------------------

    def _changes(
        self,
        launch: Launch,
        workers: ByNode,
        sight: JobSight[KubeflowOrder],
        waits: Collection[str],
    ) -> PodChanges:
        order = self._order_in(sight)
        differences = changes(order.request, self._pods(launch.number, sight), workers, waits=waits)
        # A failure that is not written down yet would be forgotten with its pod: a look comes first.
        written = order.starts.failed
        surplus = [
            pod for pod in differences.end if failures_of(pod) <= written.get(pod.metadata.uid, 0)
        ]
        start = order.start(launch.number)
        make = [
            MakePod(pod_of(start, new), slot=new.node, node=new.node)
            for new in differences.make
            if not _waits_for_workers(order.request, new.rank, sight.pods)
        ]
        return PodChanges(ends(surplus, sight), tuple(make))

    def _needs(
        self,
        launch: Launch,
        make: Collection[MakePod],
        sight: JobSight[KubeflowOrder],
        *,
        begins: bool,
    ) -> list[Stage]:
        """Return the needs of new pods: a PodGroup, Services, or those of a launcher."""
        if not make:
            return []
        start = self._order_in(sight).start(launch.number)
        gang, ranks = self._gang_to_keep(start), [_rank_in(new.manifest) for new in make]
        if start.request.kind.word != MPI:
            return [gang, tuple(MakeObject(service(start, rank)) for rank in ranks)]
        hosts = hosts_to_be(start.request, self._pods(launch.number, sight), ranks)
        if start.request.mpi is not None:
            if self._is_reachable:
                return [gang]
            objects = (MakeObject(ssh_service(start)), MakeObject(ssh_secret(start)))
            return [gang, objects, (KeepObjects((ssh_hosts_config(start, hosts),)),)]
        rights = launcher_rights(start)
        if rights == self._rights:
            return [gang]
        return [gang, (KeepObjects((*rights, hosts_config(start, hosts))),)]

    def _suspend(self, launch: Launch, sight: JobSight[KubeflowOrder]) -> list[Stage]:
        self._target = {}
        pods = self._pods(launch.number, sight).pods.values()
        return [*self._services(sight.order), ends(pods, sight)]

    def _force(
        self, launch: Launch, workers: ByNode, sight: JobSight[KubeflowOrder]
    ) -> list[Stage]:
        """End the surplus: with notice at first, and at once on the second request."""
        order, pods = sight.order, self._pods(launch.number, sight)
        if workers and order is not None:
            return [ends(changes(order.request, pods, workers).end, sight)]
        self._target = {}
        return [*self._services(order), ends_at_once(pods.pods.values(), sight, repeated=True)]

    def _services(self, order: KubeflowOrder | None) -> list[Stage]:
        """Return the end of the Services of a job that has no pods for now, which comes before theirs.

        An operator that comes up after one that has not come so far finds the pods, and does both.
        """
        if order is None or not order.request.kind.port:
            return []
        return [(RemoveServices(common_labels(order.request)),)]

    def _take(self, answer: CommandEnded, sight: JobSight[KubeflowOrder]) -> None:
        match answer.command:
            case KeepObjects((manifest,)) if manifest["kind"] == AUTOSCALER:
                fault, fields = answer.fault, "spec.elasticPolicy.metrics"
                stall = stall_of(fault, to_change=fields) if fault is not None else None
                # It counts once the server tells of it: where it does not, this is done again later.
                self._scaling.failed(_NO_NODE, answer.now, stall)
                return
            case KeepObjects(manifests) if answer.fault is None:
                rights = [right for right in manifests if right["kind"] in RIGHTS]
                self._rights = rights or self._rights
                self._is_reachable = self._is_reachable or _has_hosts(manifests)
            case Annotate(_, notes) if answer.fault is None:
                self._mark = notes[HOSTS]
            case MakePod() if answer.fault is None:
                self.retries.succeeded(MASTERS)  # all that it needs was made before
        super()._take(answer, sight)

    # What is over ---------------------------------------------------------------------------------

    def _sweep(self, running: int | None, sight: JobSight[KubeflowOrder]) -> list[Stage]:
        """End the pods of a job that waits or has ended, and those of other starts."""
        order = sight.order
        if order is not None and order.is_over:
            return [*self._sweep_ended(order, sight), self._autoscaler(order, sight)]
        uid = order.uid if order is not None else ""
        useless = ends((pod for pod in sight.pods if not _is_of(pod, running, uid)), sight)
        # Those of a job that runs are the next start's.
        services = self._services(order) if running is None else []
        stages: list[Stage] = [(AwaitRecord(),), *services, useless] if useless else []
        return [*stages, self._autoscaler(order, sight)] if order is not None else stages

    def _sweep_ended(self, order: KubeflowOrder, sight: JobSight[KubeflowOrder]) -> list[Stage]:
        run, stages = order.request.run, list[Stage]()
        if run.clean != CLEAN_NOTHING:
            running_only = run.clean == CLEAN_RUNNING
            useless = [pod for pod in sight.pods if not (running_only and pod.has_ended)]
            if end := ends(useless, sight):
                stages += [(AwaitRecord(),), *self._services(order), end]
        to_live, ended = run.to_live, order.ended
        if to_live is not None and ended is not None and sight.wall > ended + to_live:
            stages.append((RemoveObject(_object_of(order)),))
        return stages

    def _autoscaler(self, order: KubeflowOrder, sight: JobSight[KubeflowOrder]) -> Stage:
        """Have a job have the autoscaler that it asks for, and no other, until it ends."""
        desired = None if order.is_over else autoscaler_of(order.request, order.uid)
        present = order.autoscaler
        if desired is None:
            if present is None or not is_of(present, order.uid):
                return ()
            named = {
                "apiVersion": AUTOSCALERS.api,
                "kind": AUTOSCALER,
            }  # which those of a list lack
            return (RemoveObject({**present, **named}),)
        if (present is not None and is_as_asked(present, desired)) or self._scaling.waits(
            sight.now
        ):
            return ()
        return (KeepObjects((desired,)),)

    def _reset(self) -> None:
        super()._reset()
        self._last_words, self._rights, self._mark = "", [], ""
        self._is_reachable = False

    def _fields(self, sight: JobSight[KubeflowOrder]) -> str:
        return f"spec.{sight.order.request.kind.specs}" if sight.order is not None else "spec"


def _failed(pods: RankedPods) -> dict[str, int]:
    """Return the failures of pods by their uids."""
    counts = {pod.metadata.uid: failures_of(pod) for pod in pods.pods.values()}
    return {uid: count for uid, count in counts.items() if count}


def _is_of(pod: KubePod, launch: int | None, uid: str) -> bool:
    identity = identity_of(pod)
    return identity is not None and identity.launch == launch and uid in ("", identity.uid)


def _object_of(order: KubeflowOrder) -> PlainObject:
    request = order.request
    meta = {"name": request.job.name, "namespace": request.job.namespace, "uid": order.uid}
    return {
        "apiVersion": f"{KUBEFLOW}/{request.kind.version}",
        "kind": request.kind.name,
        "metadata": meta,
    }


def _config_of(start: KubeflowStart, hosts: MpiHosts) -> Manifest:
    """Return the ConfigMap by which a launcher knows its hosts."""
    make = ssh_hosts_config if start.request.mpi is not None else hosts_config
    return make(start, hosts)


def _has_hosts(manifests: Collection[Manifest]) -> bool:
    return any(manifest["kind"] == "ConfigMap" for manifest in manifests)


def _waits_for_workers(request: KubeflowSpec, rank: Rank, pods: Collection[KubePod]) -> bool:
    """Return whether the pod of this rank is a launcher whose workers are not ready yet."""
    if request.mpi is None or request.mpi.creation != ONCE_READY or rank.type != LAUNCHER.lower():
        return False
    ready = sum(
        pod.is_ready and not pod.is_leaving
        for pod in pods
        if (of_pod := rank_of(pod)) is not None and of_pod.type != LAUNCHER.lower()
    )
    return ready < (fewest_workers(request) if request.of(WORKER) is not None else 0)


def _rank_in(manifest: Manifest) -> Rank:
    labels = manifest["metadata"]["labels"]
    return Rank(labels[TYPE], int(labels[INDEX]))
