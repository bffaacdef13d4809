"""Tenants as objects: which there are, and which namespaces may use each. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated

import msgspec
from msgspec import Meta

from brim.domain.cluster import ClusterSpec
from brim.domain.options import LARGEST_COUNT
from brim.domain.submission import NO_TENANT
from brim.domain.tenancy import Quota, Tenant
from brim.errors import SpecError, did_you_mean
from brim.kubernetes.client.declared import Name, keywords, read_by, read_fields
from brim.kubernetes.client.reading import (
    NAME,
    Problems,
    Reading,
    name_of,
    object_of,
    part_of,
    quoted,
)

TENANT_KIND = "Tenant"
TENANTS = "tenants"  # as addresses name them
EVERY_NAMESPACE = "*"  # may use a tenant
MOST_NAMESPACES = 1_000  # of a tenant
NAMESPACE = r"\*|[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"  # of a tenant


def _namespaces(value: object, *, path: str) -> frozenset[str]:
    if not isinstance(value, list) or not len(value) <= MOST_NAMESPACES:
        need = f"a list of at most {MOST_NAMESPACES:,} namespaces"
        raise SpecError(path, got=quoted(value), need=need, hint='namespaces: ["*"]')
    return frozenset(
        name_of(namespace, NAMESPACE, path=f"{path}[{index}]")
        for index, namespace in enumerate(value)
    )


_Devices = Annotated[int, Meta(ge=0, le=LARGEST_COUNT)]


class TenantSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The rights of the tenant, in devices: a device is the slot of one worker.

    Args:
        cohort: tenants of one cohort lend each other their unused devices.
        guaranteed: its own devices: lent while they are idle, taken back on demand.
        exclusive: the part of these that is never lent.
        limit: the most that it may have, borrowed ones included. [default: no limit]
        weight: its part of unclaimed devices, against the weights of others.
        namespaces: the namespaces whose jobs may use it; *: all.
    """

    cohort: Annotated[Name, Meta(pattern=f"^{NAME}$")] = "default"
    guaranteed: _Devices = 0
    exclusive: _Devices = 0
    limit: _Devices | None = None
    weight: Annotated[float, Meta(gt=0, le=LARGEST_COUNT), keywords(default=1)] = 1.0
    namespaces: Annotated[
        frozenset[Annotated[str, Meta(max_length=63, pattern=f"^({NAMESPACE})$")]],
        Meta(max_length=MOST_NAMESPACES),
        read_by(_namespaces),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTenants:
    """The tenants of a cluster, and the namespaces that may use each.

    Args:
        namespaces: by tenant.
        problems: of Tenants that cannot be understood, and are none therefore, by name.
    """

    tenants: tuple[Tenant, ...] = ()
    namespaces: Mapping[str, frozenset[str]] = field(default_factory=dict)
    problems: Mapping[str, Problems] = field(default_factory=dict)

    def chosen(self, name: str | None, namespace: str) -> str:
        """Return the tenant of a job.

        Args:
            name: that it names; None: the one that its namespace may use, if it is one alone.

        Raises:
            SpecError: it is none of the namespace's, or there are several.
        """
        candidates = sorted(
            tenant
            for tenant, namespaces in self.namespaces.items()
            if namespaces & {namespace, EVERY_NAMESPACE}
        )
        if not self.namespaces and not self.problems:
            return name or NO_TENANT
        if name in candidates:
            return name
        if name is None and len(candidates) == 1:
            return candidates[0]
        need = f"a tenant that namespace {quoted(namespace)} may use"
        hint = (
            did_you_mean(name or "", candidates) if candidates else "a Tenant lists its namespaces"
        )
        raise SpecError("spec.tenant", got=quoted(name) if name else "none", need=need, hint=hint)


def read_tenants(things: Iterable[object]) -> KnownTenants:
    """Return the tenants that Tenants describe, in the order of their names."""
    tenants: dict[str, Tenant] = {}
    namespaces: dict[str, frozenset[str]] = {}
    problems: dict[str, Problems] = {}
    for thing in things:
        name = part_of(part_of(thing, "metadata"), "name")
        if not isinstance(name, str) or not re.fullmatch(NAME, name):
            continue  # no server has such an object
        reading = Reading()
        fields = reading.read_or_none(object_of, part_of(thing, "spec"), path="spec") or {}
        spec = read_fields(TenantSpec, fields, reading, path="spec")
        found = None if reading.problems else reading.read_or_none(_tenant, name, spec)
        if found is not None:
            tenants[name], namespaces[name] = found, spec.namespaces
        else:
            problems[name] = tuple(reading.problems)
    ordered = tuple(tenants[name] for name in sorted(tenants))
    return KnownTenants(tenants=ordered, namespaces=namespaces, problems=problems)


def _tenant(name: str, spec: TenantSpec) -> Tenant:
    rights = {right: getattr(spec, right) for right in Quota.__struct_fields__}
    try:
        return Tenant(id=name, **rights)
    except SpecError as wrong:
        raise SpecError("spec", got=wrong.got, need=wrong.need, hint=wrong.hint) from None


def with_tenants(
    base: ClusterSpec, tenants: KnownTenants, *, usage_half_life: float | None = None
) -> ClusterSpec:
    """Return the description of a cluster with these tenants.

    Args:
        base: the settings of the operator, with a node that has no devices: all that have some are
            brought.
        usage_half_life: of the operator's settings; without tenants there is no use to count.
    """
    half_life = usage_half_life if tenants.tenants else None
    return replace(base, tenants=tenants.tenants, usage_half_life=half_life)
