"""The heart of the pods: for each job an automaton that events enter and commands leave. Pure.

What a job's pods are due lies here and nowhere else. A shape of job, an ElasticJob's or another
kind's, says which pods it has and what their ends mean; how pods are brought about, retried and
ended is the same for all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from typing import ClassVar, Generic, NamedTuple

from brim.backends.processes import Launch
from brim.coordination.cluster.reconcile import ByNode
from brim.coordination.cluster.sightings import Seen
from brim.errors import EnvironmentFault
from brim.kubernetes.client.kube_types import KubePod
from brim.kubernetes.objects.identities import KubeJob
from brim.kubernetes.objects.status import Stall
from brim.kubernetes.pods.gangs import POD_GROUP
from brim.kubernetes.pods.manifests import Manifest
from brim.kubernetes.pods.pod_commands import (
    Begun,
    ClearWay,
    CommandEnded,
    EndPod,
    Event,
    Forced,
    JobSight,
    KeepObjects,
    Left,
    MakeObject,
    MakePod,
    Order,
    PodsSeen,
    Stage,
    Suspended,
    Swept,
    WorkersAsked,
)
from brim.kubernetes.pods.pod_faults import stall_of
from brim.kubernetes.pods.retries import MASTERS, Retries

_FORCED = 1  # seconds that a pod has to end that was to end before


class PodChanges(NamedTuple):
    """The changes that are left to make: pods to end, before any is made, and pods to make."""

    end: tuple[EndPod, ...] = ()
    make: tuple[MakePod, ...] = ()


class JobPods(ABC, Generic[Order]):
    """The pods of one job.

    Attributes:
        seen: the job's processes at the last look.
        retries: of pods that have failed, or could not be made.
        follows_run: the end of the job is read from its run, over the port of its master.
    """

    follows_run: ClassVar[bool]

    def __init__(self, job: KubeJob) -> None:
        self.job = job
        self.seen = Seen(alive=False)
        self.retries = Retries()
        self._launch = 0  # the start of which all that follows is
        self._target: dict[str, int] | None = None  # workers by node, as it was asked last
        self._gang: Manifest | None = None  # its PodGroup, as it was kept last

    def handle(self, event: Event, sight: JobSight[Order]) -> list[Stage]:
        """Take in an event; return the commands that follow from it, by stages.

        Raises:
            EnvironmentFault: the request needs an object that is gone.
        """
        match event:
            case PodsSeen(launch):
                stages = self._look(self._of_start(launch), sight)
            case Swept(running):
                stages = self._sweep(running, sight)
            case WorkersAsked(launch, workers, begins):
                stages = self._ask(self._of_start(launch), workers, sight, begins=begins)
            case Begun(launch):
                self.retries.complete()
                stages = self._completed(launch, sight)
            case Left(launch, node):
                stages = self._leave(self._of_start(launch), node, sight)
            case Suspended(launch):
                stages = self._suspend(self._of_start(launch), sight)
            case Forced(launch, workers):
                stages = self._force(self._of_start(launch), workers, sight)
            case CommandEnded():
                self._take(event, sight)
                stages = []
        return [stage for stage in stages if stage]

    @property
    def stall(self) -> Stall | None:
        """The reason why the pods of the job are not made, or do nothing; None where they are and do."""
        return self.retries.stall

    def is_calm(self, now: float) -> bool:
        """Return whether nothing waits until a time."""
        return self.retries.is_calm(now)

    def is_idle(self, now: float) -> bool:
        """Return whether a new automaton would do for a job without processes."""
        return self.stall is None and self.is_calm(now)

    def forgive(self) -> None:
        """Know of no failures: the job is another one now, or gone."""
        self.retries.forget()

    # What a shape says ----------------------------------------------------------------------------

    @abstractmethod
    def _look(self, launch: Launch, sight: JobSight[Order]) -> list[Stage]:
        """Say in `seen` how the job is; return the events that follow."""

    @abstractmethod
    def _sweep(self, running: int | None, sight: JobSight[Order]) -> list[Stage]:
        """Return the ends of pods that are of no use."""

    @abstractmethod
    def _changes(
        self, launch: Launch, workers: ByNode, sight: JobSight[Order], waits: Collection[str]
    ) -> PodChanges:
        """Return the remaining changes for so many workers, where nothing is made on some nodes."""

    @abstractmethod
    def _needs(
        self, launch: Launch, make: Collection[MakePod], sight: JobSight[Order], *, begins: bool
    ) -> list[Stage]:
        """Return the needs of pods that are about to be made."""

    @abstractmethod
    def _suspend(self, launch: Launch, sight: JobSight[Order]) -> list[Stage]:
        """Return how the job is ended for now."""

    @abstractmethod
    def _force(self, launch: Launch, workers: ByNode, sight: JobSight[Order]) -> list[Stage]:
        """Return how pods beyond so many are ended at once; with none, all."""

    @abstractmethod
    def _fields(self, sight: JobSight[Order]) -> str:
        """Return the fields of the job's object that say how its pods are."""

    def _completed(self, launch: Launch, sight: JobSight[Order]) -> list[Stage]:
        return []

    def _leave(self, launch: Launch, node: str, sight: JobSight[Order]) -> list[Stage]:
        return []

    def _reset(self) -> None:
        """Know nothing of a start that is over."""
        self._target, self._gang = None, None

    # What is the same for all ---------------------------------------------------------------------

    def _order_in(self, sight: JobSight[Order]) -> Order:
        if sight.order is None:
            raise EnvironmentFault(f"the object of {self.job.id} is gone")
        return sight.order

    def _of_start(self, launch: Launch) -> Launch:
        if launch.number != self._launch:
            self._reset()
            self._launch = launch.number
        return launch

    def _ask(
        self, launch: Launch, workers: ByNode, sight: JobSight[Order], *, begins: bool
    ) -> list[Stage]:
        """Return how to make the pods that are missing, and end those that are too many."""
        if begins:
            self.retries.begin()  # nothing waits, or it would seem to have no pods
        elif self.retries.stall is not None:
            missing = self._changes(launch, workers, sight, ()).make
            self.retries.want([new.name for new in missing])
        self._target = dict(workers)
        changes = self._changes(launch, workers, sight, self.retries.waits(sight.now))
        nodes = frozenset(new.node for new in changes.make if new.node)
        way: Stage = (ClearWay(nodes),) if nodes else ()
        needs = self._needs(launch, changes.make, sight, begins=begins)
        return [changes.end, way, *needs, changes.make]

    def _take(self, answer: CommandEnded, sight: JobSight[Order]) -> None:
        """Take in how a command has ended."""
        command, fault, now = answer
        if isinstance(command, KeepObjects) and fault is None:
            for manifest in command.manifests:
                if manifest["kind"] == POD_GROUP:
                    self._gang = manifest
        if not isinstance(command, MakePod | MakeObject | KeepObjects):
            return
        # What all pods of a job need is missing where its master would be.
        slot, pod = MASTERS, ""
        if isinstance(command, MakePod):
            slot, pod = command.slot, command.name
        if fault is not None:
            stall = stall_of(fault, to_change=self._fields(sight))
            self.retries.failed(slot, now, stall, pod=pod, is_own=not fault.retryable)
        elif not isinstance(command, MakeObject):  # others may be missing still
            self.retries.succeeded(slot, pod)


def is_lost(pod: KubePod, sight: JobSight[Order]) -> bool:
    """Return whether the end of a pod will never be known."""
    node = sight.nodes.get(pod.spec.node_name)
    return bool(pod.spec.node_name) and (node is None or node.lost)


def ends(pods: Iterable[KubePod], sight: JobSight[Order]) -> tuple[EndPod, ...]:
    """Ask pods to end that were not asked before.

    The word of a lost node is not waited for: its processes end where it comes back.
    """
    return tuple(
        EndPod(pod, 0 if is_lost(pod, sight) else None) for pod in pods if not pod.is_leaving
    )


def ends_at_once(
    pods: Iterable[KubePod], sight: JobSight[Order], *, repeated: bool = False
) -> tuple[EndPod, ...]:
    """End pods by force.

    Args:
        repeated: only those that were asked before; the others are asked.
    """

    def grace(pod: KubePod) -> int | None:
        if pod.has_ended or is_lost(pod, sight):
            return 0
        return _FORCED if pod.is_leaving or not repeated else None

    return tuple(EndPod(pod, grace(pod)) for pod in pods)
