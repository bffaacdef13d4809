"""Quantities of Kubernetes as exact numbers, and the total requests of a pod. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from fractions import Fraction

from brim.errors import SpecError
from brim.kubernetes.client.kube_types import Amounts, Container, KubePod

_WRITTEN = re.compile(
    r"([+-]?)(\d{1,40}\.?\d{0,40}|\.\d{1,40})(?:([KMGTPE]i|[numkMGTPE])|[eE]([+-]?\d{1,3}))?",
    re.ASCII,
)
_DECIMAL = {name: 10 ** (3 * power) for power, name in enumerate("kMGTPE", start=1)}
_BINARY = {f"{name}i": 2 ** (10 * power) for power, name in enumerate("KMGTPE", start=1)}
_SMALL = {name: Fraction(1, 10 ** (3 * power)) for power, name in enumerate("mun", start=1)}
_FACTORS: dict[str, int | Fraction] = {**_DECIMAL, **_BINARY, **_SMALL}
_FINEST = 10**9  # a server rounds up to whole parts of one
_MAX_AMOUNT = 2**63 - 1
PODS = "pods"  # the resource of which every pod takes one

Totals = Mapping[str, Fraction]
"""Exact amounts by resource."""


def parse_amount(written: str | int | float, *, field: str = "a quantity") -> Fraction:
    """Read a quantity as an API server does: rounded up to billionths, and within 64 bits.

    Args:
        field: that has it, for messages.

    Raises:
        SpecError: it is none.

    >>> [str(parse_amount(each)) for each in ("1500m", "2Gi", "1e3", "1E", "0.5Ki", 3)]
    ['3/2', '2147483648', '1000', '1000000000000000000', '512', '3']
    """
    found = _WRITTEN.fullmatch(str(written))
    if found is None:
        raise SpecError(
            field, got=repr(str(written)[:40]), need="a number with a unit", hint="16Gi"
        )
    sign, digits, unit, exponent = found.groups()
    amount = Fraction(digits)
    amount *= Fraction(10) ** int(exponent) if exponent else _FACTORS.get(unit or "", 1)
    finest = Fraction(math.ceil(amount * _FINEST), _FINEST)
    return min(finest, Fraction(_MAX_AMOUNT)) * (-1 if sign == "-" else 1)


def parse_amounts(written: Amounts) -> dict[str, Fraction]:
    """Read quantities by resource; one that cannot be read counts as nothing.

    A server has checked them, so that can only be one of a later version.
    """
    found: dict[str, Fraction] = {}
    for name, amount in written.items():
        try:
            found[name] = parse_amount(amount)
        except SpecError:
            continue
    return found


def write_amount(amount: Fraction) -> str:
    """Return an exact amount as text: thousandths, where it is no whole number.

    >>> write_amount(Fraction(2)), write_amount(Fraction(1, 3))
    ('2', '334m')
    """
    return str(int(amount)) if amount == int(amount) else f"{-(-amount * 1000 // 1)}m"


def total(parts: Iterable[Totals]) -> dict[str, Fraction]:
    """Return the sum of amounts."""
    found: dict[str, Fraction] = {}
    for part in parts:
        for name, amount in part.items():
            found[name] = found.get(name, Fraction(0)) + amount
    return found


def largest(parts: Iterable[Totals]) -> dict[str, Fraction]:
    """Return the largest amount of each resource."""
    found: dict[str, Fraction] = {}
    for part in parts:
        for name, amount in part.items():
            found[name] = max(found.get(name, amount), amount)
    return found


def asked_by(pod: KubePod) -> dict[str, Fraction]:
    """Return a pod's use of its node, as kube-scheduler counts it.

    Containers that start before the others run one after the other, so of these the largest counts;
    those that keep running (`restartPolicy: Always`) are there together with all that come later.
    """
    sizes = {
        container_status.name: parse_amounts(container_status.allocated_resources)
        for container_status in pod.status.container_statuses
    }
    sidecars: dict[str, Fraction] = {}  # containers that keep running, of those so far
    stages: list[Totals] = []
    for first in pod.spec.init_containers:
        amounts_so_far = total([sidecars, _amounts_of(first, sizes)])
        stages.append(amounts_so_far)
        if first.restart_policy == "Always":
            sidecars = amounts_so_far
    stages.append(
        total([sidecars, *(_amounts_of(container, sizes) for container in pod.spec.containers)])
    )
    found = largest(stages)
    if pod.spec.resources is not None:  # what is said of the whole pod stands for its parts
        found |= parse_amounts(pod.spec.resources.requests)
    return {PODS: Fraction(1), **total([found, parse_amounts(pod.spec.overhead)])}


def _amounts_of(container: Container, sizes: Mapping[str, Totals]) -> Totals:
    """Return a container's requests, or its present amounts where it is about to get less."""
    return largest([parse_amounts(container.resources.requests), sizes.get(container.name, {})])
