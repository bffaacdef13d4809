"""Templates of a job's pods, as its owner gives them in the object.

Checked is what brim builds on; the rest is for the API server to check, when pods are made. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from brim.errors import SpecError
from brim.kubernetes.client.reading import (
    choice_of,
    object_of,
    pairs_of,
    quoted,
    switch_of,
    text_of,
)
from brim.kubernetes.objects.identities import MASTER, WORKER

MOST_CONTAINERS = 64  # of a pod
MOST_PARTS = 1_000  # volumes of a pod, variables of a container
# The fields to which brim adds something, with the types by which it can.
POD_LISTS, POD_OBJECTS = ("tolerations", "volumes"), ("affinity", "securityContext")
CONTAINER_LISTS = ("env", "volumeMounts")
# An amount of storage, as API servers read it.
QUANTITY = r"[0-9]{1,18}(\.[0-9]{1,18})?([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,2})?"
_LABEL, _NAME = 63, 253  # characters
MODES = PLANNED, OPPORTUNISTIC = "planned", "opportunistic"
PROCESSES, MOST_PROCESSES = "processesPerWorker", 32
_MAKES_ITS_OWN = "kai-scheduler"  # PodGroups, whatever others there are


class PodTemplates(NamedTuple):
    """The parts of a job's pods that its owner has chosen; none of them has a null.

    Attributes:
        worker, master: templates; empty where there is none.
        priority_class: of all its pods; empty: the cluster's usual.
        claim: the `storageClassName` and `size` of the master's volume; None: it has none.
        gang: the fewest workers are bound together, or none.
        anywhere: no worker's pod is pinned to a node.
    """

    worker: Mapping[str, Any] = {}
    master: Mapping[str, Any] = {}
    priority_class: str = ""
    claim: Mapping[str, Any] | None = None
    gang: bool = False
    anywhere: bool = False

    @property
    def image(self) -> str:
        """The image of the workers; empty where the template names none."""
        containers = self.worker.get("spec", {}).get("containers", [])
        return next((each.get("image", "") for each in containers if each["name"] == WORKER), "")


def read_templates(spec: Mapping[str, Any]) -> PodTemplates:
    """Return what the spec of an ElasticJob says of its pods.

    Raises:
        SpecError: something of it cannot be.
    """
    chosen = spec.get("priorityClassName")
    path = "spec.priorityClassName"
    worker = _template(spec.get("template"), WORKER, path="spec.template")
    return PodTemplates(
        worker=worker,
        master=_template(spec.get("masterTemplate"), MASTER, path="spec.masterTemplate"),
        priority_class="" if chosen is None else text_of(chosen, path=path, limit=_NAME),
        claim=_claim(spec.get("volumeClaim")),
        gang=_gang(spec.get("gang"), worker),
        anywhere=choice_of(spec.get("mode"), MODES, path="spec.mode") == OPPORTUNISTIC,
    )


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
    """Raises SpecError for what is no amount of storage."""
    if not re.fullmatch(QUANTITY, size):
        raise SpecError(field, got=repr(size), need="an amount of storage", hint=f"{field} 10Gi")


def _gang(value: object, worker: Mapping[str, Any]) -> bool:
    wanted = switch_of(value, path="spec.gang")
    scheduler = worker.get("spec", {}).get("schedulerName")
    if wanted and scheduler == _MAKES_ITS_OWN:
        need = f"none: {scheduler} groups pods by itself, and binds those of other kinds one by one"
        raise SpecError("spec.gang", got="true", need=need, hint="gang: false")
    return wanted


def _template(value: object, container: str, *, path: str) -> dict[str, Any]:
    """Return a template that has a container of this name."""
    if value is None:
        return {}
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
        got = quoted(spec["nodeName"])
        raise SpecError(f"{path}.spec.nodeName", got=got, need=need, hint=hint)
    spec["containers"] = _containers(spec.get("containers"), container, f"{path}.spec.containers")
    return {"metadata": pairs, "spec": spec}


def _containers(value: object, needed: str, path: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not 1 <= len(value) <= MOST_CONTAINERS:
        need = f"a list with a container {needed!r}, and at most {MOST_CONTAINERS}"
        raise SpecError(path, got=quoted(value), need=need, hint=f"- name: {needed}")
    found: dict[str, dict[str, Any]] = {}
    for index, each in enumerate(value):
        at = f"{path}[{index}]"
        container = _parts(each, path=at, lists=CONTAINER_LISTS)
        name = text_of(container.get("name"), path=f"{at}.name", limit=_LABEL)
        if name in found:
            raise SpecError(
                f"{at}.name", got=f"{quoted(name)} twice", need="one container of a name"
            )
        if "image" in container:
            text_of(container["image"], path=f"{at}.image")
        for number, variable in enumerate(container.get("env", [])):
            text_of(variable.get("name"), path=f"{at}.env[{number}].name")
        found[name] = container
    if needed not in found:
        got = ", ".join(map(quoted, found))
        raise SpecError(path, got=got, need=f"a container {needed!r}", hint=f"- name: {needed}")
    return list(found.values())


def _parts(
    value: object, *, path: str, lists: tuple[str, ...], objects: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Return an object without its nulls, in which these are lists of objects, and those objects."""
    found = {name: each for name, each in object_of(value, path=path).items() if each is not None}
    for name in objects:
        if name in found:
            found[name] = dict(object_of(found[name], path=f"{path}.{name}"))
    for name in lists:
        if name not in found:
            continue
        if not isinstance(found[name], list) or len(found[name]) > MOST_PARTS:
            need = f"a list of at most {MOST_PARTS:,}"
            raise SpecError(f"{path}.{name}", got=quoted(found[name]), need=need)
        for index, each in enumerate(found[name]):
            if not isinstance(each, Mapping):
                at = f"{path}.{name}[{index}]"
                raise SpecError(at, got=quoted(each), need="NAME: VALUE pairs")
    return found


def _claim(value: object) -> dict[str, Any] | None:
    if value is None:
        return None
    path = "spec.volumeClaim"
    claim = {name: each for name, each in object_of(value, path=path).items() if each is not None}
    if "storageClassName" in claim:
        text_of(claim["storageClassName"], path=f"{path}.storageClassName", limit=_NAME)
    size = claim.get("size")
    is_number = isinstance(size, int) and not isinstance(size, bool) and 0 < size < 1 << 60
    if not is_number and not (isinstance(size, str) and re.fullmatch(QUANTITY, size)):
        raise SpecError(
            f"{path}.size", got=quoted(size), need="an amount of storage", hint="size: 1Gi"
        )
    return claim
