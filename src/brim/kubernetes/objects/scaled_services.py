"""Deployments and StatefulSets whose annotations ask for replicas by foresight. Pure.

Their texts are foreign: each is bounded before it is read, and a wrong one is an error about that object.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from brim.domain.demand import DAY
from brim.domain.quantities import parse_duration
from brim.domain.services import NOTICE, ReplicaRule, is_allowed
from brim.errors import SpecError
from brim.kubernetes.client.kube_types import ObjectFields
from brim.kubernetes.client.reading import quoted
from brim.kubernetes.client.resources import ObjectKey, PlainObject, Resource
from brim.kubernetes.objects.identities import GROUP, OPERATOR

APPS, AUTOSCALING = "apps", "autoscaling"  # groups
SCALED_KINDS = {"deployments": "Deployment", "statefulsets": "StatefulSet"}  # plural -> kind
EVENTS = Resource("v1", "events", PlainObject)
_LONGEST = 512  # characters of an annotation
_LONGEST_MESSAGE = 1_000  # characters of an event: a server takes 1,024
_LONGEST_STEM = 200  # characters of an object's name that begin its events' names


class Annotations(ObjectFields, frozen=True, kw_only=True):
    """The annotations of a service; None: it is not there."""

    replicas: str | None = msgspec.field(default=None, name=f"{GROUP}/replicas")
    per_replica: str | None = msgspec.field(default=None, name=f"{GROUP}/per-replica")
    load: str | None = msgspec.field(default=None, name=f"{GROUP}/load")
    notice: str | None = msgspec.field(default=None, name=f"{GROUP}/notice")
    day: str | None = msgspec.field(default=None, name=f"{GROUP}/day")

    @property
    def is_service(self) -> bool:
        """True where any of them is there."""
        return self != _NO_ANNOTATIONS


_NO_ANNOTATIONS = Annotations()


class ScaledMeta(ObjectFields, frozen=True, kw_only=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    annotations: Annotations | None = None


class ReplicasAsked(ObjectFields, frozen=True, kw_only=True):
    replicas: int = 1


class ReplicasPresent(ObjectFields, frozen=True, kw_only=True):
    ready_replicas: int = 0


class ScaledObject(ObjectFields, frozen=True, kw_only=True):
    """A Deployment or StatefulSet, or the scale of one."""

    metadata: ScaledMeta
    spec: ReplicasAsked = ReplicasAsked()
    status: ReplicasPresent = ReplicasPresent()

    @property
    def annotations(self) -> Annotations:
        """The annotations that are brim's."""
        return self.metadata.annotations or _NO_ANNOTATIONS


class ScaleTarget(ObjectFields, frozen=True, kw_only=True):
    api_version: str = ""
    kind: str = ""
    name: str = ""


class AutoscalerFields(ObjectFields, frozen=True, kw_only=True):
    scale_target_ref: ScaleTarget = ScaleTarget()


class OtherAutoscaler(ObjectFields, frozen=True, kw_only=True):
    """A HorizontalPodAutoscaler."""

    spec: AutoscalerFields = AutoscalerFields()


class ServiceKey(NamedTuple):
    """The name of a service: `deployments`, its namespace and its name."""

    plural: str
    namespace: str
    name: str

    @property
    def kind(self) -> str:
        """The kind of its object."""
        return SCALED_KINDS[self.plural]


@dataclass(frozen=True, slots=True)
class ScaledService:
    """The wishes of a service.

    Args:
        rule: its replicas by its load.
        url: at which its load is read.
    """

    rule: ReplicaRule
    url: str


def read_service(annotations: Annotations, *, prefixes: Collection[str]) -> ScaledService:
    """Return the wishes that annotations have.

    Args:
        prefixes: with one of which the URL of a load has to begin: the operator asks it, and may
            reach what the object's owner cannot.

    Raises:
        SpecError: one is missing, or wrong.

    >>> asked = Annotations(replicas="1:8", per_replica="50", load="http://metrics:9090/web")
    >>> read_service(asked, prefixes=["http://metrics:9090/"]).rule.maximum
    8
    """
    minimum, maximum = _range(_needed(annotations.replicas, "replicas", "1:8"))
    number = _needed(annotations.per_replica, "per-replica", "50")
    url = _needed(annotations.load, "load", "http://metrics.example/web")
    try:
        per_replica = float(number)
    except ValueError:
        raise _wrong("per-replica", number, "a number above 0", '"50"') from None
    if not is_allowed(url, prefixes):
        need = "a URL that begins as the operator's --service-url allows"
        raise _wrong("load", url, need, f"{min(prefixes, default='')}…")
    try:
        rule = ReplicaRule(
            minimum=minimum,
            maximum=maximum,
            per_replica=per_replica,
            notice=_seconds(annotations.notice, "notice", NOTICE),
            day=_seconds(annotations.day, "day", DAY),
        )
    except SpecError as wrong:
        field, hint = f"{GROUP}/{wrong.field}", f"{GROUP}/{wrong.hint}"
        raise SpecError(field, got=wrong.got, need=wrong.need, hint=hint) from None
    return ScaledService(rule, url)


def _needed(text: str | None, name: str, example: str) -> str:
    if not text or len(text) > _LONGEST:
        need = f"a text of 1 to {_LONGEST} characters"
        raise _wrong(name, text or None, need, f'"{example}"')
    return text


def _range(text: str) -> tuple[int, int]:
    low, _, high = text.partition(":")
    try:
        return int(low), int(high)
    except ValueError:
        raise _wrong("replicas", text, "MIN:MAX", '"1:8"') from None


def _seconds(text: str | None, name: str, default: float) -> float:
    if text is None:
        return default
    try:
        return parse_duration(_needed(text, name, "10s"), field=name)
    except SpecError as wrong:
        raise _wrong(name, text, wrong.need, '"10s"') from None


def _wrong(name: str, text: str | None, need: str, example: str) -> SpecError:
    field = f"{GROUP}/{name}"
    return SpecError(field, got=quoted(text), need=need, hint=f"{field}: {example}")


def autoscaled_by_others(
    autoscalers: Mapping[ObjectKey, OtherAutoscaler],
) -> dict[ServiceKey, str]:
    """Return the services at whose scale HorizontalPodAutoscalers point, with the name of one."""
    plurals = {kind: plural for plural, kind in SCALED_KINDS.items()}
    found: dict[ServiceKey, str] = {}
    for key, autoscaler in sorted(autoscalers.items()):
        target = autoscaler.spec.scale_target_ref
        if target.api_version.partition("/")[0] == APPS and target.kind in plurals:
            found[ServiceKey(plurals[target.kind], key.namespace, target.name)] = key.name
    return found


def event_of(
    key: ServiceKey, uid: str, *, reason: str, message: str, is_warning: bool, time: str
) -> dict[str, Any]:
    """Return an Event about a service; the same words about it make the same Event.

    Args:
        uid: of its object.
        time: now, as objects have it.
    """
    text = message if len(message) <= _LONGEST_MESSAGE else f"{message[: _LONGEST_MESSAGE - 1]}…"
    digest = hashlib.sha256("\n".join((*key, uid, reason, text)).encode()).hexdigest()[:16]
    reference = {"apiVersion": f"{APPS}/v1", "kind": key.kind, "namespace": key.namespace}
    return {
        "apiVersion": EVENTS.api,
        "kind": "Event",
        "metadata": {
            "name": f"{key.name[:_LONGEST_STEM].rstrip('-.')}.{digest}",
            "namespace": key.namespace,
        },
        "involvedObject": {**reference, "name": key.name, "uid": uid},
        "reason": reason,
        "message": text,
        "type": "Warning" if is_warning else "Normal",
        "source": {"component": OPERATOR},
        "firstTimestamp": time,
        "lastTimestamp": time,
        "count": 1,
    }


def oldest_first(things: Iterable[tuple[ServiceKey, ScaledObject]]) -> list[ServiceKey]:
    """Return the names of the services among objects, oldest first."""
    found = [
        (thing.metadata.creation_timestamp or "", key)
        for key, thing in things
        if thing.annotations.is_service and thing.metadata.deletion_timestamp is None
    ]
    return [key for _, key in sorted(found)]
