"""The kinds of objects that an API server has, and how one of brim's sees them. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar
from urllib.parse import quote

T = TypeVar("T")

PlainObject = dict[str, Any]
"""An object with all its fields, as JSON has it."""

_PLURALS = {
    "NetworkPolicy": "networkpolicies",
    "PriorityClass": "priorityclasses",
}  # those that are no kind with an s


class ObjectKey(NamedTuple):
    """The name of an object among those of its kind; `namespace` is empty where it has none."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


@dataclass(frozen=True, slots=True)
class Resource(Generic[T]):
    """A kind of objects as the API server serves it, and the type that they are decoded to.

    Args:
        api: group and version, such as `apps/v1`; `v1` is the core group.
        plural: the kind's name in paths, such as `pods`.
        decode: a struct of only the fields that are used, which must pass over the rest, or
            `PlainObject`.
        namespaced: its objects lie in namespaces.

    >>> pods = Resource("v1", "pods", PlainObject)
    >>> pods.path("default", "a")
    '/api/v1/namespaces/default/pods/a'
    >>> pods.path()
    '/api/v1/pods'
    >>> Resource("brim.dev/v1alpha1", "cohorts", PlainObject, namespaced=False).path("", "c", "status")
    '/apis/brim.dev/v1alpha1/cohorts/c/status'
    """

    api: str
    plural: str
    decode: type[T]
    namespaced: bool = True

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Return the path of an object, or of all in a namespace, or in all namespaces.

        Args:
            namespace: empty: all, or the kind has none.
            name: of one object; empty: all.
            subresource: such as `status`; empty: the object itself.
        """
        parts = ["apis" if "/" in self.api else "api", *self.api.split("/")]
        if namespace and self.namespaced:
            parts += ["namespaces", namespace]
        elif name and self.namespaced:
            raise ValueError(f"{self.plural} {name}: objects of this kind are in a namespace")
        parts += [part for part in (self.plural, name, subresource) if part]
        return "/" + "/".join(quote(part, safe="") for part in parts)


def resource_of(thing: PlainObject) -> Resource[PlainObject]:
    """Return the kind of an object as addresses name it.

    >>> resource_of({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {}}).path()
    '/apis/apps/v1/deployments'
    """
    kind = thing["kind"]
    plural = _PLURALS.get(kind, f"{kind.lower()}s")
    namespaced = "namespace" in thing["metadata"]
    return Resource(thing["apiVersion"], plural, PlainObject, namespaced=namespaced)
