"""Templates of a job's pods, as its owner gives them in the object.

Checked is what brim builds on; the rest is for the API server to check, when pods are made. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from brim.errors import SpecError
from brim.kubernetes.client.declared import (
    LIST_KEYS,
    LIST_TYPE,
    OPEN,
    Label,
    Name,
    Pairs,
    Words,
    keywords,
    read_by,
    read_struct,
    schema_of,
)
from brim.kubernetes.client.reading import object_of, pairs_of, quoted, text_of
from brim.kubernetes.objects.identities import MASTER, WORKER

MOST_CONTAINERS = 64  # of a pod
MOST_PARTS = 1_000  # volumes of a pod, variables of a container
# The fields to which brim adds something, with the types by which it can.
POD_LISTS, POD_OBJECTS = ("tolerations", "volumes"), ("affinity", "securityContext")
CONTAINER_LISTS = ("env", "volumeMounts")
# An amount of storage, as API servers read it.
QUANTITY = r"[0-9]{1,18}(\.[0-9]{1,18})?([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,2})?"
_LABEL, _NAME = 63, 253  # characters
_NAMES = {
    "worker": "template", "master": "masterTemplate",
    "priority_class": "priorityClassName", "claim": "volumeClaim",
}  # fmt: skip
MODES = PLANNED, OPPORTUNISTIC = "planned", "opportunistic"
PROCESSES, MOST_PROCESSES = "processesPerWorker", 32
_MAKES_ITS_OWN = "kai-scheduler"  # PodGroups, whatever others there are


class Variable(msgspec.Struct, frozen=True, kw_only=True):
    name: Words


_Open = Annotated[dict[str, Any], keywords(**OPEN)]
_Object = Annotated[_Open, keywords(nullable=True)]
_BOUNDED = Meta(max_length=MOST_PARTS, extra_json_schema={"nullable": True})
_Parts = Annotated[list[_Open], _BOUNDED]
_Variables = Annotated[list[Annotated[Variable, keywords(**OPEN)]], _BOUNDED]


class PodContainer(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A container.

    Args:
        name: its name.
        image: its image.
        env: as in PodSpec: env.
        volume_mounts: as in PodSpec: volumeMounts.
    """

    name: Label
    image: Words | None = None
    env: _Variables | None = None
    volume_mounts: _Parts | None = None


class TemplateMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """Labels and annotations of the pods.

    Args:
        labels: labels.
        annotations: annotations.
    """

    labels: Pairs | None = None
    annotations: Pairs | None = None


class TemplateSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The PodSpec.

    Args:
        containers: the containers.
        tolerations: as in PodSpec: tolerations.
        volumes: as in PodSpec: volumes.
        affinity: as in PodSpec: affinity.
        security_context: as in PodSpec: securityContext.
    """

    containers: Annotated[
        list[Annotated[PodContainer, Meta(extra_json_schema=OPEN)]],
        Meta(min_length=1, max_length=MOST_CONTAINERS),
        keywords(**{LIST_TYPE: "map", LIST_KEYS: ["name"]}),
    ]
    tolerations: _Parts | None = None
    volumes: _Parts | None = None
    affinity: _Object | None = None
    security_context: _Object | None = None


class PodTemplate(msgspec.Struct, frozen=True, kw_only=True):
    """A PodTemplateSpec, as far as it is not the API server's own to check."""

    metadata: TemplateMetadata | None = None
    spec: Annotated[TemplateSpec, Meta(extra_json_schema=OPEN)]


class VolumeClaim(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A volume of the master's, for the records of the run.

    [default: none; the workers have copies]

    Args:
        storage_class_name: the StorageClass of the volume.
        size: the size of the volume: 1Gi.
    """

    storage_class_name: Name | None = None
    size: Annotated[
        Any,
        keywords(
            **{"x-kubernetes-int-or-string": True, "maxLength": 40, "pattern": f"^{QUANTITY}$"}
        ),
    ]


def _template(value: object, *, container: str, path: str) -> dict[str, Any]:
    """Return a template that has a container of this name."""
    template = object_of(value, path=path)
    meta = object_of(template.get("metadata"), path=f"{path}.metadata")
    pairs = {
        name: pairs_of(meta[name], path=f"{path}.metadata.{name}")
        for name in ("labels", "annotations")
        if meta.get(name) is not None
    }
    spec = _parts(template.get("spec"), path=f"{path}.spec", lists=POD_LISTS, objects=POD_OBJECTS)
    if "nodeName" in spec:  # a worker elsewhere than planned counts as missing: one more is made
        need = "none: the scheduler says where a pod runs"
        hint = "use nodeSelector or tolerations"
        actual = quoted(spec["nodeName"])
        raise SpecError(f"{path}.spec.nodeName", got=actual, need=need, hint=hint)
    spec["containers"] = _containers(spec.get("containers"), container, f"{path}.spec.containers")
    return {"metadata": pairs, "spec": spec}


def _containers(value: object, needed: str, path: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not 1 <= len(value) <= MOST_CONTAINERS:
        need = f"a list with a container {needed!r}, and at most {MOST_CONTAINERS}"
        raise SpecError(path, got=quoted(value), need=need, hint=f"- name: {needed}")
    found: dict[str, dict[str, Any]] = {}
    for index, entry in enumerate(value):
        place = f"{path}[{index}]"
        container = _parts(entry, path=place, lists=CONTAINER_LISTS)
        name = text_of(container.get("name"), path=f"{place}.name", limit=_LABEL)
        if name in found:
            raise SpecError(
                f"{place}.name", got=f"{quoted(name)} twice", need="one container of a name"
            )
        if "image" in container:
            text_of(container["image"], path=f"{place}.image")
        for number, variable in enumerate(container.get("env", [])):
            text_of(variable.get("name"), path=f"{place}.env[{number}].name")
        found[name] = container
    if needed not in found:
        actual = ", ".join(map(quoted, found))
        raise SpecError(path, got=actual, need=f"a container {needed!r}", hint=f"- name: {needed}")
    return list(found.values())


def _parts(
    value: object, *, path: str, lists: tuple[str, ...], objects: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Return an object without its nulls, in which these are lists of objects, and those objects."""
    found = {name: part for name, part in object_of(value, path=path).items() if part is not None}
    for name in objects:
        if name in found:
            found[name] = dict(object_of(found[name], path=f"{path}.{name}"))
    for name in lists:
        if name not in found:
            continue
        if not isinstance(found[name], list) or len(found[name]) > MOST_PARTS:
            need = f"a list of at most {MOST_PARTS:,}"
            raise SpecError(f"{path}.{name}", got=quoted(found[name]), need=need)
        for index, part in enumerate(found[name]):
            if not isinstance(part, Mapping):
                place = f"{path}.{name}[{index}]"
                raise SpecError(place, got=quoted(part), need="NAME: VALUE pairs")
    return found


def _claim(value: object, *, path: str) -> dict[str, Any]:
    claim = {name: part for name, part in object_of(value, path=path).items() if part is not None}
    if "storageClassName" in claim:
        text_of(claim["storageClassName"], path=f"{path}.storageClassName", limit=_NAME)
    size = claim.get("size")
    is_number = isinstance(size, int) and not isinstance(size, bool) and 0 < size < 1 << 60
    if not is_number and not (isinstance(size, str) and re.fullmatch(QUANTITY, size)):
        raise SpecError(
            f"{path}.size", got=quoted(size), need="an amount of storage", hint="size: 1Gi"
        )
    return claim


class PodTemplates(msgspec.Struct, frozen=True, kw_only=True, rename=_NAMES):
    """The parts of a job's pods that its owner has chosen; none of them has a null.

    Args:
        priority_class: the PriorityClass of the job's pods.
        gang: have the fewest workers bound together, or none, by a PodGroup: of the server,
            or of Volcano where schedulerName in the template is volcano. Workers beyond the
            fewest come and go one by one.
        mode: the chooser of a worker's node: the operator, whose plan pins each pod
            to a node, or the scheduler that binds pods: then the plan says how many workers
            there are.
    """

    worker: Annotated[dict[str, Any], read_by(partial(_template, container=WORKER))] = {}
    master: Annotated[dict[str, Any], read_by(partial(_template, container=MASTER))] = {}
    priority_class: Name = ""
    claim: Annotated[
        dict[str, Any] | None, Meta(extra_json_schema=schema_of(VolumeClaim)), read_by(_claim)
    ] = None
    gang: bool = False
    mode: Annotated[str, keywords(enum=list(MODES))] = PLANNED

    @property
    def anywhere(self) -> bool:
        """True where no worker's pod is pinned to a node."""
        return self.mode == OPPORTUNISTIC

    @property
    def image(self) -> str:
        """The image of the workers; empty where the template names none."""
        containers = self.worker.get("spec", {}).get("containers", [])
        return next(
            (container.get("image", "") for container in containers if container["name"] == WORKER),
            "",
        )


def read_templates(spec: Mapping[str, Any]) -> PodTemplates:
    """Return the templates of pods in the spec of an ElasticJob.

    Raises:
        SpecError: something of it cannot be.
    """
    chosen = read_struct(PodTemplates, spec, path="spec")
    scheduler = chosen.worker.get("spec", {}).get("schedulerName")
    if chosen.gang and scheduler == _MAKES_ITS_OWN:
        need = f"none: {scheduler} groups pods by itself, and binds those of other kinds one by one"
        raise SpecError("spec.gang", got="true", need=need, hint="gang: false")
    return chosen


def claim_for(
    chosen: PodTemplates, spec: Mapping[str, Any], *, usual: str
) -> Mapping[str, Any] | None:
    """Return the claim for the volume on which a job's master keeps the run; None: it has none.

    Args:
        chosen: of the job's pods.
        spec: of its object.
        usual: the size of the volume of a job that keeps its run nowhere else; empty: it has none.

    >>> claim_for(PodTemplates(), {}, usual="10Gi")
    {'size': '10Gi'}
    >>> claim_for(PodTemplates(), {"runs": "s3://bucket/runs"}, usual="10Gi")
    """
    is_elsewhere = spec.get("runs") or spec.get("checkpoints")
    return chosen.claim or (None if is_elsewhere or not usual else {"size": usual})


def check_size(size: str, *, field: str) -> None:
    """Raises SpecError where this is no amount of storage."""
    if not re.fullmatch(QUANTITY, size):
        raise SpecError(field, got=repr(size), need="an amount of storage", hint=f"{field} 10Gi")
