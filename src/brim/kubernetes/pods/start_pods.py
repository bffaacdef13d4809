"""Differences between the pods of a job and those that it should have: the ones to make and to end.

Pure, and the same for the same pods: an operator that asks twice, or begins after another, makes
nothing twice.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from brim.kubernetes.client.kube_types import KubePod
from brim.kubernetes.objects.identities import MASTER, KubeJob, identity_of, number_of


class NewWorker(NamedTuple):
    """A worker's pod that is to be made, and the node that the plan has for it."""

    name: str
    node: str


class WorkerChanges(NamedTuple):
    """The changes that are left to make.

    Attributes:
        end: names of pods to delete, before any is made.
        make: workers.
    """

    end: tuple[str, ...] = ()
    make: tuple[NewWorker, ...] = ()


@dataclass(slots=True)
class StartPods:
    """The pods of one start of a job, and those of its other starts.

    Args:
        master: of this start; it may have ended.
        workers: of this start, by their numbers; some may have ended.
        others: of starts that are over, and of objects that are gone and had the same name.
        by_node: the numbers of the workers that have not ended, by their nodes.
        held: the slots that these hold, by node: one that is to end holds its slot until then.
    """

    master: KubePod | None = None
    workers: dict[int, KubePod] = field(default_factory=dict)
    others: list[KubePod] = field(default_factory=list)
    by_node: dict[str, list[int]] = field(default_factory=dict)
    held: dict[str, int] = field(default_factory=dict)

    @property
    def alive(self) -> bool:
        """True while one that is there has not ended."""
        masters = [self.master] if self.master else []
        return not all(pod.has_ended for pod in [*masters, *self.workers.values()])

    @property
    def bound(self) -> dict[str, int]:
        """The slots that its workers hold on the nodes that they have been bound to."""
        numbers = [number for numbers in self.by_node.values() for number in numbers]
        pods = [self.workers[number] for number in numbers]
        return dict(Counter(pod.spec.node_name for pod in pods if pod.is_bound))


def pods_of(pods: Iterable[KubePod], job: KubeJob, launch: int, *, uid: str = "") -> StartPods:
    """Sort the pods of a job; those of anybody else are left out.

    Args:
        uid: of the job's object; empty: it is gone, and the pods' owner is unknown.
    """
    found, id = StartPods(), job.id
    for pod in pods:
        identity = identity_of(pod)
        if identity is None or identity.job != id:
            continue
        number = number_of(pod, job, launch)
        if identity.launch != launch or (uid and identity.uid != uid):
            found.others.append(pod)
        elif identity.role == MASTER:
            found.master = pod
        elif number is not None:
            found.workers[number] = pod
            if not pod.has_ended:
                found.by_node.setdefault(identity.node, []).append(number)
    found.held = {node: len(numbers) for node, numbers in found.by_node.items()}
    return found


def differences(
    pods: StartPods,
    job: KubeJob,
    launch: int,
    workers: Mapping[str, int],
    *,
    waits: Collection[str] = (),
) -> WorkerChanges:
    """Return how to get from the pods that are there to so many workers on each node.

    A pod that was asked to end holds its slot until it is gone: none is made in its place before.
    Pods that do not train yet go first, and the youngest of the others.

    Args:
        waits: nodes on which none is made for now.
    """
    surplus: list[KubePod] = []
    new: list[str] = []
    by_node = pods.by_node
    for node, numbers in by_node.items():
        staying = [number for number in numbers if not pods.workers[number].is_leaving]
        surplus += _surplus(pods, staying, len(staying) - workers.get(node, 0))
    for node in sorted(workers):
        missing = 0 if node in waits else workers[node] - len(by_node.get(node, ()))
        new += [node] * missing
    return _changes(pods, job, launch, surplus, new)


def differences_anywhere(
    pods: StartPods,
    job: KubeJob,
    launch: int,
    workers: Mapping[str, int],
    *,
    leaving_nodes: Collection[str] = (),
    waits: bool = False,
) -> WorkerChanges:
    """Return how to get to so many workers in all, of a job whose pods others place.

    Pods that are bound to no node go first, then those that do not train yet, those that are more
    than the plan has for their nodes, and the youngest.

    Args:
        leaving_nodes: nodes that the job is to leave: workers go, and others are made at once.
        waits: none is made for now.
    """
    by_node = pods.by_node
    leavers = [
        number
        for node in leaving_nodes
        for number in by_node.get(node, ())
        if _is_bound(pods, number)
    ]
    holding = sorted({number for numbers in by_node.values() for number in numbers} - {*leavers})
    staying = [number for number in holding if not pods.workers[number].is_leaving]
    count = sum(workers.values())
    surplus = [pods.workers[number] for number in leavers]
    surplus += _surplus_anywhere(pods, staying, len(staying) - count, workers)
    missing = 0 if waits else max(0, count - len(holding))
    counts = Counter(
        node for node, numbers in by_node.items() for number in numbers if number in holding
    )
    new = [node for node in sorted(workers) for _ in range(workers[node] - counts[node])]
    return _changes(pods, job, launch, surplus, new[:missing])


def _changes(
    pods: StartPods, job: KubeJob, launch: int, surplus: Iterable[KubePod], new: Iterable[str]
) -> WorkerChanges:
    """Return the changes that end these pods, and all that are of no use, and make one on each node."""
    surplus = [*surplus, *pods.others, *(pod for pod in pods.workers.values() if pod.has_ended)]
    names = {pod.metadata.name for pod in [*pods.others, *pods.workers.values()]}
    free = (name for k in itertools.count() if (name := job.worker(launch, k)) not in names)
    end = {pod.metadata.name for pod in surplus if not pod.is_leaving}
    return WorkerChanges(tuple(sorted(end)), tuple(NewWorker(next(free), node) for node in new))


def beyond(pods: StartPods, workers: Mapping[str, int]) -> tuple[str, ...]:
    """Return the pods without which no more than so many workers are left on any node.

    Those that were asked to end are among them before any other.
    """
    found: list[KubePod] = []
    for node, numbers in pods.by_node.items():
        found += _surplus(pods, numbers, len(numbers) - workers.get(node, 0))
    return tuple(sorted(pod.metadata.name for pod in found))


def beyond_anywhere(pods: StartPods, workers: Mapping[str, int]) -> tuple[str, ...]:
    """Return the pods without which no more than so many workers are left in all.

    Those that were asked to end are among them before any other.
    """
    numbers = [number for numbers in pods.by_node.values() for number in numbers]
    found = _surplus_anywhere(pods, numbers, len(numbers) - sum(workers.values()), workers)
    return tuple(sorted(pod.metadata.name for pod in found))


def _surplus(pods: StartPods, numbers: Iterable[int], count: int) -> list[KubePod]:
    """Return the workers of a node that are missed least."""

    def worth(number: int) -> tuple[bool, bool, bool, int]:
        pod = pods.workers[number]
        return not pod.is_leaving, not pod.is_refused, _runs(pod), -number

    return [pods.workers[number] for number in sorted(numbers, key=worth)[: max(0, count)]]


def _surplus_anywhere(
    pods: StartPods, numbers: Iterable[int], count: int, workers: Mapping[str, int]
) -> list[KubePod]:
    """Return the workers that are missed least, on any nodes.

    Args:
        workers: that the plan has by node: it would rather have others go.
    """
    planned: set[int] = set()
    for node, numbers_on in pods.by_node.items():
        bound = sorted(number for number in numbers_on if pods.workers[number].is_bound)
        planned.update(bound[: workers.get(node, 0)])

    def worth(number: int) -> tuple[bool, bool, bool, bool, bool, int]:
        pod = pods.workers[number]
        is_here = pod.is_bound, not pod.is_refused, _runs(pod)
        return not pod.is_leaving, *is_here, number in planned, -number

    return [pods.workers[number] for number in sorted(numbers, key=worth)[: max(0, count)]]


def _is_bound(pods: StartPods, number: int) -> bool:
    return pods.workers[number].is_bound


def _runs(pod: KubePod) -> bool:
    return pod.status.phase == "Running"
