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
        entry: what the status says of it.
    """

    identity: PodIdentity
    entry: Mapping[str, Any]


def failed_pod(before: KubePod | None, after: KubePod | None) -> FailedPod | None:
    """Return what a change of a pod tells of its failure; None where it has not failed by that.

    One that was asked to end has not failed, however it ended.
    """
    if after is None or after.status.phase != _FAILED or after.is_leaving:
        return None
    identity = identity_of(after)
    if identity is None or (before is not None and before.has_ended):
        return None
    ended = _how(after, identity.role)
    said = ended.message if ended else after.status.message
    entry = FailedPodEntry(
        pod=after.metadata.name or None,
        node=identity.node or None,
        reason=after.status.reason or (ended.reason if ended else "") or None,
        exit_code=ended.exit_code if ended else None,
        finish_time=(ended.finished_at or None) if ended else None,
        last_lines=last_lines(said) or None,
    )
    return FailedPod(identity, msgspec.to_builtins(entry))


def failed_pods(before: object, failed: Iterable[Mapping[str, Any]]) -> list[Any]:
    """Return the failed pods that a status has, with those that have come, the last of them.

    Args:
        before: the status that is there.
    """
    kept = before.get("failedPods") if isinstance(before, Mapping) else None
    there = [dict(each) for each in (kept if isinstance(kept, list) else []) if _is_one(each)]
    known = {_name_of(each) for each in there}
    return [*there, *(dict(each) for each in failed if _name_of(each) not in known)][-MOST_FAILED:]


def last_lines(text: str) -> str:
    r"""Return the last lines of a text, as a terminal may have them.

    >>> last_lines("one\n" + "two\n" * 10).split() == ["two"] * 10
    True
    """
    lines = text[-2 * LONGEST_LINES :].encode(errors="replace").decode().splitlines()
    return printable("\n".join(lines[-MOST_LINES:]))[-LONGEST_LINES:].strip()


def _how(pod: KubePod, role: str) -> Terminated | None:
    """Return how the container of brim has ended, else another that has failed."""
    ended = {
        each.name: each.state.terminated
        for each in pod.status.container_statuses
        if each.state.terminated is not None
    }
    failed = (each for each in ended.values() if each is not None and each.exit_code)
    return ended.get(role) or next(failed, None)


def _is_one(entry: object) -> bool:
    return isinstance(entry, Mapping) and isinstance(entry.get("pod"), str)


def _name_of(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(entry.get(name) for name in _NAMED)
