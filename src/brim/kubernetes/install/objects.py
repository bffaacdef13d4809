"""Puts the objects of an installation on a server, and reports their previous state.

Whether the caller may write each of them is asked first: one that is refused half way leaves an
installation that does not work.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from brim.domain.quantities import counted
from brim.errors import EnvironmentFault
from brim.kubernetes.client.api_server import ApiServer
from brim.kubernetes.client.refusals import NotFound
from brim.kubernetes.client.resources import PlainObject, Resource, resource_of
from brim.kubernetes.objects.identities import MANAGED_BY

CREATED, CHANGED, UNCHANGED = "created", "changed", "unchanged"
FOREIGN = "kept"  # as somebody else has made it
_REVIEWS = Resource(
    "authorization.k8s.io/v1", "selfsubjectaccessreviews", PlainObject, namespaced=False
)
_VERBS = ("get", "patch")  # what applying takes of an object that is there; create where it is not


class AppliedObject(NamedTuple):
    """An object that was applied, and the effect of that.

    Attributes:
        name: with its namespace, where it has one.
        outcome: created, changed, unchanged or kept.
    """

    kind: str
    name: str
    outcome: str


async def check_rights(server: ApiServer, things: Sequence[PlainObject]) -> None:
    """Ask whether the caller may write all of these objects.

    Raises:
        EnvironmentFault: it may not; the error lists the missing rights.
    """
    refused: list[str] = []
    for resource, namespace in dict.fromkeys(
        (resource_of(thing), thing["metadata"].get("namespace", "")) for thing in things
    ):
        group = resource.api.rpartition("/")[0]
        for verb in (*_VERBS, "create"):
            attributes = {"group": group, "resource": resource.plural, "verb": verb}
            attributes |= {"namespace": namespace} if namespace else {}
            body = {
                "apiVersion": _REVIEWS.api,
                "kind": "SelfSubjectAccessReview",
                "spec": {"resourceAttributes": attributes},
            }
            answer = await server.create(_REVIEWS, body)
            if not answer.get("status", {}).get("allowed"):
                place = f" in namespace {namespace}" if namespace else " of the whole cluster"
                refused.append(f"{verb} {resource.plural}{place}")
    if refused:
        raise EnvironmentFault(
            f"nothing was applied: {server.access.source} lacks these rights at {server.access.url}:\n"
            + "\n".join(f"  {line}" for line in refused)
            + "\n  hint: as an administrator, brim install --dry-run … | kubectl apply --server-side -f -"
        )


class ForeignObject(NamedTuple):
    """An object that somebody else has made.

    Attributes:
        ours: as brim would make it.
        theirs: as it is.
    """

    ours: PlainObject
    theirs: PlainObject

    @property
    def warning(self) -> str:
        """Return a warning about a definition without a version that brim runs; empty: it has one."""
        served, known = _served(self.theirs), _served(self.ours)
        if not served or set(known) & set(served):
            return ""
        versions, lacks = ", ".join(served), " or ".join(known)
        return (
            f"{self.ours['metadata']['name']} serves {versions} and not {lacks}: brim runs none of "
            "these jobs, and without another operator they wait for ever"
        )


def _served(definition: PlainObject) -> list[str]:
    """Return the versions in which a server has a kind."""
    versions = (definition.get("spec") or {}).get("versions") or []
    return [version["name"] for version in versions if version.get("served")]


async def made_by_others(server: ApiServer, things: Sequence[PlainObject]) -> list[ForeignObject]:
    """Return those of these objects that are there and that no installation of brim has made.

    Raises:
        EnvironmentFault: the server does not say.
    """
    found: list[ForeignObject] = []
    for thing in things:
        with contextlib.suppress(NotFound):
            existing = await server.get(resource_of(thing), thing["metadata"]["name"])
            labels = existing["metadata"].get("labels") or {}
            if labels.get(MANAGED_BY) != thing["metadata"]["labels"][MANAGED_BY]:
                found.append(ForeignObject(thing, existing))
    return found


async def apply_all(server: ApiServer, things: Sequence[PlainObject]) -> list[AppliedObject]:
    """Have all these objects be as they are given, in this order.

    Fields that others have changed are taken back; unnamed ones stay.

    Raises:
        EnvironmentFault: the server said no to one; the error says how many it has taken before.
    """
    done: list[AppliedObject] = []
    for thing in things:
        meta = thing["metadata"]
        namespace, name = meta.get("namespace", ""), meta["name"]
        resource = resource_of(thing)
        previous: dict[str, Any] | None = None
        try:
            with contextlib.suppress(NotFound):
                previous = await server.get(resource, name, namespace=namespace)
            applied = await server.apply(resource, name, thing, namespace=namespace)
        except EnvironmentFault as fault:
            had = f"{counted(len(done), 'object')} of {len(things)} applied before this one"
            raise EnvironmentFault(f"{fault}\n  {had}", retryable=fault.retryable) from fault
        outcome = CREATED if previous is None else CHANGED
        if previous is not None and _version(previous) == _version(applied):
            outcome = UNCHANGED
        done.append(
            AppliedObject(thing["kind"], f"{namespace}/{name}" if namespace else name, outcome)
        )
    return done


def _version(thing: PlainObject) -> str:
    return str(thing["metadata"].get("resourceVersion"))
