"""Quantities are exact, and a pod counts as kube-scheduler counts it."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.errors import SpecError
from brim.kubernetes.client.amounts import asked_by, parse_amount
from brim.kubernetes.client.kube_types import KubePod


@pytest.mark.parametrize(
    ("written", "amount"),
    [
        ("0", 0),
        ("100m", Fraction(1, 10)),
        ("1n", Fraction(1, 10**9)),
        ("0.1n", Fraction(1, 10**9)),  # a server rounds up
        ("1u", Fraction(1, 10**6)),
        (".5", Fraction(1, 2)),
        ("1.", 1),
        ("+2", 2),
        ("-1", -1),
        ("1k", 1000),
        ("1Ki", 1024),
        ("1.5Gi", 3 << 29),
        ("1E", 10**18),
        ("1E3", 1000),
        ("12e-3", Fraction(12, 1000)),
        ("1Ei", 1 << 60),
        ("999Ei", 2**63 - 1),
        ("1e999", 2**63 - 1),
        (4, 4),
        (0.5, Fraction(1, 2)),
    ],
)
def test_a_quantity_is_read_exactly(written: Any, amount: Fraction | int) -> None:
    assert parse_amount(written) == amount


@pytest.mark.parametrize(
    "written", ["", "1 Gi", "Gi", "1K", "1gi", "0x10", "1e", "1e1.5", "١", "--1"]
)
def test_what_is_no_quantity_is_refused(written: str) -> None:
    with pytest.raises(SpecError, match="a quantity"):
        parse_amount(written)


@given(st.integers(0, 10**6), st.sampled_from(["", "m", "k", "Ki", "Mi", "M", "G"]))
def test_sums_of_quantities_are_exact(number: int, unit: str) -> None:
    amount = parse_amount(f"{number}{unit}")
    assert sum([amount] * 10) == 10 * amount
    assert parse_amount(f"{number}{unit}") * 1000 == parse_amount(f"{number * 1000}{unit}")
    assert math.ceil(amount * 10**9) == amount * 10**9


def pod_of(**spec: Any) -> KubePod:
    status = spec.pop("status", {})
    return msgspec.convert({"metadata": {"name": "p"}, "spec": spec, "status": status}, KubePod)


def asks(cpu: str, **fields: Any) -> dict[str, Any]:
    return {"name": f"c{cpu}", "resources": {"requests": {"cpu": cpu}}, **fields}


@pytest.mark.parametrize(
    ("spec", "cpu"),
    [
        ({"containers": [asks("1"), asks("500m")]}, Fraction(3, 2)),
        # Those that come first run one after the other.
        ({"containers": [asks("1")], "initContainers": [asks("3"), asks("2")]}, 3),
        ({"containers": [asks("4")], "initContainers": [asks("3")]}, 4),
        # A sidecar is there with all that come after it, and not with those before.
        (
            {
                "containers": [asks("1")],
                "initContainers": [asks("3"), asks("2", restartPolicy="Always")],
            },
            3,
        ),
        (
            {
                "containers": [asks("1")],
                "initContainers": [asks("2", restartPolicy="Always"), asks("3")],
            },
            5,
        ),
        ({"containers": [asks("2")], "overhead": {"cpu": "250m"}}, Fraction(9, 4)),
        ({"containers": [asks("2")], "resources": {"requests": {"cpu": "3"}}}, 3),
        # It is about to have less, and has more until then.
        (
            {
                "containers": [asks("2")],
                "status": {
                    "containerStatuses": [{"name": "c2", "allocatedResources": {"cpu": "4"}}]
                },
            },
            4,
        ),
    ],
)
def test_a_pod_counts_as_kube_scheduler_counts_it(spec: dict[str, Any], cpu: Fraction) -> None:
    assert asked_by(pod_of(**spec)) == {"cpu": cpu, "pods": 1}
