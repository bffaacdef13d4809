"""Evictions that others ask for, and the operator's answers and deeds. Pure.

The Eviction API of Kubernetes (`lifecycle.k8s.io`) has those who want a pod gone ask for it, and the
pod's responders answer: they end it in their own way, say how far they are, and say when they are
done. A pod of a job ends as it always does: its worker leaves at the next step boundary.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from brim.errors import SpecError
from brim.kubernetes.client.kube_types import KubePod, Metadata, ObjectFields
from brim.kubernetes.client.times import read_time, write_time
from brim.kubernetes.objects.identities import GROUP
from brim.kubernetes.pods.manifests import TO_END, Manifest

LIFECYCLE = "lifecycle.k8s.io"
API = f"{LIFECYCLE}/v1alpha1"
RESPONDER = f"{GROUP}/operator"
_PRIORITY = 10_000  # of the controller that manages a pod, as its field says
_ACTIVE = "Active"
_HEARTBEAT = 60.0  # seconds between two signs of life: it is 20 minutes that nobody may be silent


class _PodTarget(ObjectFields, frozen=True, kw_only=True):
    name: str = ""
    uid: str = ""


class _Target(ObjectFields, frozen=True, kw_only=True):
    pod: _PodTarget | None = None


class _EvictionDescription(ObjectFields, frozen=True, kw_only=True):
    target: _Target = _Target()


class _TargetResponder(ObjectFields, frozen=True, kw_only=True):
    name: str = ""
    state: str = ""


class _Response(ObjectFields, frozen=True, kw_only=True):
    name: str = ""
    start_time: str | None = None
    heartbeat_time: str | None = None
    completion_time: str | None = None


class _EvictionReport(ObjectFields, frozen=True, kw_only=True):
    target_responders: tuple[_TargetResponder, ...] = ()
    responders: tuple[_Response, ...] = ()


class Eviction(ObjectFields, frozen=True, kw_only=True):
    """An eviction as the API server has it."""

    metadata: Metadata
    spec: _EvictionDescription = _EvictionDescription()
    status: _EvictionReport = _EvictionReport()


class EvictionAnswer(NamedTuple):
    """The answer to an eviction.

    Attributes:
        end: its pod is to be asked to end.
        report: this responder's entry in `status.responders`.
    """

    end: bool
    report: dict[str, Any]


def answer_to(eviction: Eviction, pod: KubePod | None, now: float) -> EvictionAnswer | None:
    """Return the deed and the answer that an eviction needs; None: nothing now.

    Args:
        pod: that it names, as far as it is known; None: it is gone.
        now: seconds since 1970.
    """
    target, times = eviction.spec.target.pod, _times(eviction)
    if target is None or times is None:
        return None
    began_at, heard_at = times
    moment = max(now, began_at)  # the server's clock may be ahead, and it takes no time before that
    if pod is None or pod.metadata.uid != target.uid or pod.has_ended:
        done = {"completionTime": write_time(moment)}
        return EvictionAnswer(False, _entry(moment, "its process has left", **done))
    if pod.is_leaving and heard_at is not None and moment - heard_at < _HEARTBEAT:
        return None
    completion = {"expectedCompletionTime": write_time(moment + TO_END)}
    words = "its process leaves at the next step boundary"
    return EvictionAnswer(not pod.is_leaving, _entry(moment, words, **completion))


def with_responder(pod: Manifest) -> Manifest:
    """Return a pod of a job as one for whose evictions the operator is asked."""
    responder = {"name": RESPONDER, "priority": _PRIORITY}
    return pod | {"spec": {**pod["spec"], "evictionResponders": [responder]}}


def _times(eviction: Eviction) -> tuple[float, float | None] | None:
    """Return since when this responder is asked, and when it was heard last; None: it is not asked."""
    status = eviction.status
    if (RESPONDER, _ACTIVE) not in [
        (responder.name, responder.state) for responder in status.target_responders
    ]:
        return None
    responder_entry = next(
        (responder for responder in status.responders if responder.name == RESPONDER), None
    )
    start = _time(responder_entry.start_time) if responder_entry is not None else None
    if responder_entry is None or start is None or responder_entry.completion_time is not None:
        return None
    return start, _time(responder_entry.heartbeat_time)


def _entry(moment: float, message: str, **fields: Any) -> dict[str, Any]:
    return {"name": RESPONDER, "heartbeatTime": write_time(moment), "message": message, **fields}


def _time(text: str | None) -> float | None:
    try:
        return None if text is None else read_time(text, field="status.responders")
    except SpecError:  # it cannot be understood, so nothing was said
        return None
