"""Tenants as objects: which there are, and which namespaces may use each. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from brim.domain.cluster import ClusterSpec
from brim.domain.options import LARGEST_COUNT
from brim.domain.submission import NO_TENANT
from brim.domain.tenancy import Tenant
from brim.errors import SpecError, did_you_mean
from brim.kubernetes.client.reading import (
    NAME,
    Problems,
    Reading,
    name_of,
    object_of,
    part_of,
    quoted,
    whole_of,
)

TENANT_KIND = "Tenant"
TENANTS = "tenants"  # as addresses name them
EVERY_NAMESPACE = "*"  # may use a tenant
MOST_NAMESPACES = 1_000  # of a tenant
NAMESPACE = r"\*|[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"  # of a tenant


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTenants:
    """The tenants of a cluster, and who may use each.

    Args:
        namespaces: by tenant.
        problems: of Tenants that cannot be understood, and are none therefore, by name.
    """

    tenants: tuple[Tenant, ...] = ()
    namespaces: Mapping[str, frozenset[str]] = field(default_factory=dict)
    problems: Mapping[str, Problems] = field(default_factory=dict)

    def chosen(self, wanted: str | None, namespace: str) -> str:
        """Return the tenant of a job.

        Args:
            wanted: that it names; None: the one that its namespace may use, if it is one alone.

        Raises:
            SpecError: it is none of the namespace's, or there are several.
        """
        theirs = sorted(
            tenant
            for tenant, namespaces in self.namespaces.items()
            if namespaces & {namespace, EVERY_NAMESPACE}
        )
        if not self.namespaces and not self.problems:
            return wanted or NO_TENANT
        if wanted in theirs:
            return wanted
        if wanted is None and len(theirs) == 1:
            return theirs[0]
        need = f"a tenant that namespace {quoted(namespace)} may use"
        hint = did_you_mean(wanted or "", theirs) if theirs else "a Tenant lists its namespaces"
        raise SpecError(
            "spec.tenant", got=quoted(wanted) if wanted else "none", need=need, hint=hint
        )


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
        found = reading.read_or_none(_read_tenant, name, thing)
        users = reading.read_or_none(_namespaces, thing)
        if found is not None and users is not None:
            tenants[name], namespaces[name] = found, users
        else:
            problems[name] = tuple(reading.problems)
    ordered = tuple(tenants[name] for name in sorted(tenants))
    return KnownTenants(tenants=ordered, namespaces=namespaces, problems=problems)


def _read_tenant(name: str, thing: object) -> Tenant:
    spec = object_of(part_of(thing, "spec"), path="spec")
    cohort = spec.get("cohort", "default")
    name_of(cohort, NAME, path="spec.cohort")
    counts = {
        each: whole_of(spec[each], path=f"spec.{each}", minimum=0, maximum=LARGEST_COUNT)
        for each in ("guaranteed", "exclusive", "limit")
        if spec.get(each) is not None
    }
    weight = spec.get("weight", 1)
    is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
    if not is_number or not 0 < weight <= LARGEST_COUNT:
        need = f"a number above 0, and at most {LARGEST_COUNT:,}"
        raise SpecError("spec.weight", got=quoted(weight), need=need, hint="weight: 1")
    try:
        return Tenant(
            id=name,
            cohort=cohort,
            guaranteed=counts.get("guaranteed", 0),
            exclusive=counts.get("exclusive", 0),
            limit=counts.get("limit"),
            weight=float(weight),
        )
    except SpecError as wrong:
        raise SpecError("spec", got=wrong.got, need=wrong.need, hint=wrong.hint) from None


def _namespaces(thing: object) -> frozenset[str]:
    path = "spec.namespaces"
    value = object_of(part_of(thing, "spec"), path="spec").get("namespaces")
    if not isinstance(value, list) or not len(value) <= MOST_NAMESPACES:
        need = f"a list of at most {MOST_NAMESPACES:,} namespaces"
        raise SpecError(path, got=quoted(value), need=need, hint='namespaces: ["*"]')
    return frozenset(
        name_of(each, NAMESPACE, path=f"{path}[{index}]") for index, each in enumerate(value)
    )


def with_tenants(base: ClusterSpec, known: KnownTenants) -> ClusterSpec:
    """Return the description of a cluster with these tenants.

    Args:
        base: the settings of the operator, with a node that has no devices: all that have some are
            brought.
    """
    return replace(base, tenants=known.tenants)
