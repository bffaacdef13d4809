"""Pods that have failed, as the status of their job keeps them: they are deleted, and their logs with them.

Pure. The last lines are those that a kubelet takes from the log of a container that fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from brim.domain.printable import printable
from brim.kubernetes.client.declared import Int32, Text, Time
from brim.kubernetes.client.kube_types import KubePod, Terminated
from brim.kubernetes.objects.identities import PodIdentity, identity_of

MOST_FAILED = 5  # of a job, the last
MOST_LINES, LONGEST_LINES = 10, 1_000  # of a pod; characters of all of them
_FAILED = "Failed"
_NAMED = ("pod", "finishTime")  # by which one is told from another


class FailedPodEntry(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A pod that has failed.

    Args:
        pod: its name.
        node: the node that it was on.
        reason: why, as Kubernetes says it: Error, OOMKilled, Evicted.
        exit_code: the exit code of its container.
        finish_time: when that ended.
        last_lines: the last lines of its log.
    """

    pod: Text | None = None
    node: Text | None = None
    reason: Text | None = None
    exit_code: Int32 | None = None
    finish_time: Time | None = None
    last_lines: Annotated[str, Meta(max_length=LONGEST_LINES)] | None = None


class FailedPod(NamedTuple):
    """A pod that has failed, with the job that it was of.

    Attributes:
        entry: its entry in the status.
    """

    identity: PodIdentity
    entry: Mapping[str, Any]


def failed_pod(last: KubePod | None, pod: KubePod | None) -> FailedPod | None:
    """Return the failure that a change of a pod tells; None where it has not failed by that.

    One that was asked to end has not failed, however it ended.
    """
    if pod is None or pod.status.phase != _FAILED or pod.is_leaving:
        return None
    identity = identity_of(pod)
    if identity is None or (last is not None and last.has_ended):
        return None
    ended = _end_of(pod, identity.role)
    message = ended.message if ended else pod.status.message
    entry = FailedPodEntry(
        pod=pod.metadata.name or None,
        node=identity.node or None,
        reason=pod.status.reason or (ended.reason if ended else "") or None,
        exit_code=ended.exit_code if ended else None,
        finish_time=(ended.finished_at or None) if ended else None,
        last_lines=last_lines(message) or None,
    )
    return FailedPod(identity, msgspec.to_builtins(entry))


def failed_pods(status: object, failed: Iterable[Mapping[str, Any]]) -> list[Any]:
    """Return the failed pods that a status has, with those that have come, the last of them.

    Args:
        status: the status that is there.
    """
    entries_before = status.get("failedPods") if isinstance(status, Mapping) else None
    present = [
        dict(entry)
        for entry in (entries_before if isinstance(entries_before, list) else [])
        if _is_one(entry)
    ]
    names = {_name_of(entry) for entry in present}
    return [*present, *(dict(entry) for entry in failed if _name_of(entry) not in names)][
        -MOST_FAILED:
    ]


def last_lines(text: str) -> str:
    r"""Return the last lines of a text, as a terminal may have them.

    >>> last_lines("one\n" + "two\n" * 10).split() == ["two"] * 10
    True
    """
    lines = text[-2 * LONGEST_LINES :].encode(errors="replace").decode().splitlines()
    return printable("\n".join(lines[-MOST_LINES:]))[-LONGEST_LINES:].strip()


def _end_of(pod: KubePod, role: str) -> Terminated | None:
    """Return how the container of brim has ended, else another that has failed."""
    ended = {
        container.name: container.state.terminated
        for container in pod.status.container_statuses
        if container.state.terminated is not None
    }
    failed = (
        container for container in ended.values() if container is not None and container.exit_code
    )
    return ended.get(role) or next(failed, None)


def _is_one(entry: object) -> bool:
    return isinstance(entry, Mapping) and isinstance(entry.get("pod"), str)


def _name_of(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(entry.get(name) for name in _NAMED)
