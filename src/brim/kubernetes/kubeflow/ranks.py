"""Decides which pods of a Kubeflow job to make and to end, and how the job has ended. Pure.

Kubeflow numbers replicas from 0, and names and services have the number. A plan counts pods by node.
So the pods that stay are those with the lowest numbers, and a new one gets the lowest that is free.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from brim.domain.quantities import counted
from brim.kubernetes.client.kube_types import KubePod
from brim.kubernetes.kubeflow.objects import INDEX, TYPE
from brim.kubernetes.kubeflow.request import (
    CHIEF,
    EXIT_CODE,
    LAUNCHER,
    MASTER,
    NEVER,
    WORKER,
    KubeflowSpec,
    Rank,
)
from brim.kubernetes.objects.identities import LAUNCH, identity_of
from brim.kubernetes.pods.retries import TAKEN_AWAY

_LEADERS = (LAUNCHER, CHIEF, MASTER)  # whose success is the job's
_RETRYABLE = 128  # exit codes from here on are of signals
_LONGEST = 2_000  # characters of last words


class NewPod(NamedTuple):
    """A pod that is to be made, and the node that it has to be on."""

    rank: Rank
    node: str


class RankChanges(NamedTuple):
    """The changes that are left to make: pods to end, before any is made, and pods to make."""

    end: tuple[KubePod, ...] = ()
    make: tuple[NewPod, ...] = ()


@dataclass(frozen=True, slots=True)
class RankedPods:
    """The pods of one start of a job, by rank."""

    pods: Mapping[Rank, KubePod] = field(default_factory=dict)

    @property
    def alive(self) -> bool:
        """True while one has not ended."""
        return not all(pod.has_ended for pod in self.pods.values())

    @property
    def held(self) -> dict[str, int]:
        """The slots that are held, by node."""
        found: dict[str, int] = {}
        for pod in self.pods.values():
            if not pod.has_ended:
                found[_node_of(pod)] = found.get(_node_of(pod), 0) + 1
        return found

    @property
    def filled(self) -> dict[str, int]:
        """The slots that need no other pod, by node: those that are held, and of pods that are done."""
        found: dict[str, int] = {}
        for pod in self.pods.values():
            if not pod.has_ended or pod.status.phase == "Succeeded":
                found[_node_of(pod)] = found.get(_node_of(pod), 0) + 1
        return found


def ranked(pods: Iterable[KubePod], launch: int, uid: str) -> RankedPods:
    """Return the pods of a start of the object with this uid, by rank."""
    found: dict[Rank, KubePod] = {}
    for pod in pods:
        identity, rank = identity_of(pod), rank_of(pod)
        if rank is None or identity is None:
            continue
        if (identity.launch, identity.uid) == (launch, uid):
            found[rank] = pod
    return RankedPods(found)


def rank_of(pod: KubePod) -> Rank | None:
    """Return the rank of a pod; None where it has none."""
    type, index = pod.metadata.labels.get(TYPE, ""), pod.metadata.labels.get(INDEX, "")
    if not type or LAUNCH not in pod.metadata.labels:
        return None
    return (
        Rank(type, int(index)) if index.isascii() and index.isdecimal() and len(index) < 9 else None
    )


def _node_of(pod: KubePod) -> str:
    identity = identity_of(pod)
    return identity.node if identity is not None else pod.spec.node_name


def changes(
    request: KubeflowSpec,
    pods: RankedPods,
    workers: Mapping[str, int],
    *,
    waits: Collection[str] = (),
) -> RankChanges:
    """Decide which pods to make and to end, so that each node has so many.

    Args:
        pods: of this start.
        workers: pods by node.
        waits: nodes on which nothing is to be made now.
    """
    first = {rank: number for number, rank in enumerate(request.firsts)}

    def order(rank: Rank) -> tuple[int, int]:
        return first.get(rank, len(first)), rank.number

    room = dict(workers)
    about_to_be_free = 0
    staying: list[Rank] = []
    end: list[KubePod] = []
    for rank in sorted(pods.pods, key=order):
        pod = pods.pods[rank]
        if pod.has_ended and pod.status.phase != "Succeeded":
            end.append(pod)
        elif room.get(_node_of(pod), 0) > 0:
            room[_node_of(pod)] -= 1
            if pod.is_leaving:  # it holds its slot, and its name, until it is gone
                about_to_be_free += 1
            else:
                staying.append(rank)
        elif not pod.is_leaving:
            end.append(pod)
    missing = [rank for rank in first if rank not in staying]
    spare = [rank for rank in reversed(staying) if rank not in first]
    gives = spare[: max(0, len(missing) - sum(room.values()) - about_to_be_free)]
    end += [pods.pods[rank] for rank in gives]
    nodes = [node for node in sorted(room) for _ in range(room[node]) if node not in waits]
    new = itertools.islice(_free(missing, staying), len(nodes))
    make = [
        NewPod(rank, node)
        for rank, node in zip(new, nodes, strict=True)
        if rank not in pods.pods  # whose name is taken until it is gone
    ]
    return RankChanges(tuple(end), tuple(make))


def _free(missing: Sequence[Rank], staying: Collection[Rank]) -> Iterator[Rank]:
    """Return the free ranks: first those that have to be there."""
    yield from missing
    for index in itertools.count():
        rank = Rank(WORKER.lower(), index)
        if rank not in staying and rank not in missing:
            yield rank


# What has become of it ----------------------------------------------------------------------------


class JobOutcome(NamedTuple):
    """The end of a job, `done` or `failed`, and why."""

    outcome: str = ""
    reason: str = ""
    explanation: str = ""


def outcome_of(
    request: KubeflowSpec, pods: RankedPods, *, failures: int, age: float, last: str = ""
) -> JobOutcome:
    """Return how a job has ended; an empty outcome: it has not.

    A pod that was taken away is no failure of its job's, under any restart policy.

    Args:
        failures: of its pods, restarts in their places among them.
        age: seconds since the job began.
        last: the last words of the last of those pods.
    """
    run = request.run
    if run.deadline is not None and age > run.deadline:
        explanation = f"it has been active for longer than {run.deadline:g} s"
        return JobOutcome("failed", "DeadlineExceeded", explanation)
    # One that was asked to end and says 0 has not done its work: it was suspended, or is one too many.
    done = {
        rank
        for rank, pod in pods.pods.items()
        if pod.status.phase == "Succeeded" and not pod.is_leaving
    }
    if _has_succeeded(request, pods, done):
        return JobOutcome("done")
    for rank, pod in pods.pods.items():
        if _ended_badly(pod) and not _is_to_replace(request, rank, pod):
            return JobOutcome("failed", "", last_words(pod))
    if run.most_failures is not None and failures > run.most_failures:
        explanation = (
            f"its pods have failed {counted(failures, 'time')}, of {run.most_failures} at most"
        )
        explanation += f"; {last}" if last else ""
        return JobOutcome("failed", "BackoffLimitExceeded", explanation)
    return JobOutcome()


def _has_succeeded(request: KubeflowSpec, pods: RankedPods, done: Collection[Rank]) -> bool:
    leader = next((type for type in _LEADERS if request.of(type) is not None), "")
    if leader:
        return Rank(leader.lower(), 0) in done
    workers = {rank for rank in done if rank.type == WORKER.lower()}
    if request.kind.name == "TFJob":
        needs_all = request.spec.get("successPolicy") == "AllWorkers"
        first = Rank(WORKER.lower(), 0) in done
        return first if not needs_all else bool(workers) and len(workers) >= _workers_of(pods)
    is_enough = bool(workers) if request.elastic else len(workers) >= _workers_of(pods)
    return bool(workers) and is_enough


def _workers_of(pods: RankedPods) -> int:
    return sum(rank.type == WORKER.lower() for rank in pods.pods)


def failures_of(pod: KubePod) -> int:
    """Return how often a pod has failed: restarts in its place, and its end, if that was one."""
    restarts = sum(container.restart_count for container in pod.status.container_statuses)
    return restarts + _ended_badly(pod)


def _ended_badly(pod: KubePod) -> bool:
    return pod.status.phase == "Failed" and not was_taken_away(pod)


def was_taken_away(pod: KubePod) -> bool:
    """Return whether a pod has ended for others' sake."""
    return pod.is_leaving or pod.status.reason in TAKEN_AWAY


def _is_to_replace(request: KubeflowSpec, rank: Rank, pod: KubePod) -> bool:
    """Return whether another pod is to take the place of one that has failed."""
    if pod.status.phase != "Failed":
        return False
    replicas = request.of(rank.type)
    policy = replicas.restart_policy if replicas is not None else NEVER
    # A worker that TensorFlow can do without fails alone.
    spared = request.elastic and request.kind.name != "PyTorchJob" and rank.type == WORKER.lower()
    if was_taken_away(pod) or spared or policy not in (NEVER, EXIT_CODE):
        return True
    code = max((end.exit_code for end in _ends(pod)), default=0)
    return policy == EXIT_CODE and code >= _RETRYABLE


class _ContainerEnd(NamedTuple):
    name: str
    exit_code: int
    reason: str
    message: str


def _ends(pod: KubePod) -> list[_ContainerEnd]:
    return [
        _ContainerEnd(container.name, ended.exit_code, ended.reason, ended.message)
        for container in pod.status.container_statuses
        if (ended := container.state.terminated) is not None
    ]


def last_words(pod: KubePod) -> str:
    """Say how a pod has ended: its exit codes, and the last words of its containers."""
    messages = [
        f"{end.name} exited with {end.exit_code}"
        + (f" ({end.reason})" if end.reason not in ("", "Error", "Completed") else "")
        + (f": {end.message.strip()[-_LONGEST:]}" if end.message.strip() else "")
        for end in _ends(pod)
        if end.exit_code or len(_ends(pod)) == 1
    ]
    words = (
        "; ".join(messages)
        or pod.status.message
        or pod.status.reason
        or "its status gives no exit code, message or reason"
    )
    return f"{pod.metadata.name}: {words}"
