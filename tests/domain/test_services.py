"""How many replicas a service is to have, and what a service can be."""

from __future__ import annotations

from typing import Any

import pytest

from brim.domain.services import ReplicaScale, Service, ServiceRules, address_in, rescaled
from brim.errors import SpecError

SERVICE = Service(port=8000, minimum=1, maximum=4, per_replica=10.0)

# by name: (foreseen at each second, replicas wanted at each), with fewer after three seconds
COURSES: dict[str, tuple[list[float], list[int]]] = {
    "more at once": ([5, 35, 35], [1, 4, 4]),
    "no more than the most": ([500], [4]),
    "no fewer than the fewest": ([0, 0, 0, 0, 0], [1, 1, 1, 1, 1]),
    "a full replica is enough": ([10.0, 20.0], [1, 2]),
    "fewer after a while": ([40, 5, 5, 5, 5], [4, 4, 4, 4, 1]),
    "a moment of need begins it anew": ([40, 5, 5, 40, 5, 5, 5, 5], [4, 4, 4, 4, 4, 4, 4, 1]),
    "as many as were needed meanwhile": ([40, 5, 25, 5, 5], [4, 4, 4, 4, 3]),
    "and then fewer": ([40, 5, 25, 5, 5, 5, 5, 5], [4, 4, 4, 4, 3, 3, 3, 1]),
    "nonsense is no load": ([40, float("nan"), float("inf")], [4, 4, 4]),
}


@pytest.mark.parametrize("name", COURSES)
def test_replicas_follow_the_load(name: str) -> None:
    loads, expected = COURSES[name]
    scale, found = ReplicaScale(1), []
    for second, load in enumerate(loads):
        scale = rescaled(scale, SERVICE, foreseen=load, stay=3.0, now=float(second))
        found.append(scale.target)
    assert found == expected


def test_another_range_counts_at_once() -> None:
    scale = rescaled(ReplicaScale(4), SERVICE, foreseen=35.0, stay=3.0, now=0.0)
    smaller = Service(port=8000, minimum=1, maximum=2, per_replica=10.0)
    assert rescaled(scale, smaller, foreseen=35.0, stay=3.0, now=1.0).target == 2


WRONG: dict[str, dict[str, Any]] = {
    "a port of root": {"port": 80},
    "no port": {"port": 70_000},
    "no replica": {"minimum": 0},
    "an empty range": {"minimum": 3, "maximum": 2},
    "another load": {"load": "request"},
    "a load of a file": {"load": "file:///etc/passwd"},
    "a load with a space": {"load": "http://a/b c"},
    "nothing for each": {"per_replica": 0.0},
    "endless for each": {"per_replica": float("inf")},
    "a path without a slash": {"health": "healthz"},
    "another line": {"health": "/a\n    server evil 10.0.0.1:80"},
    "another word": {"health": "/a ver HTTP/1.0"},
    "a quote": {"health": '/a"'},
    "a variable": {"health": "/${HOME}"},
    "a comment": {"health": "/a#b"},
    "a backslash": {"health": "/a\\ b"},
    "a long path": {"health": "/" + "a" * 200},
    "a long notice": {"notice": 4000.0},
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_service_is_refused(name: str) -> None:
    fields = {"port": 8000, "minimum": 1, "maximum": 4, "per_replica": 10.0, **WRONG[name]}
    with pytest.raises(SpecError):
        Service(**fields)


def test_misspelt_load_is_suggested() -> None:
    with pytest.raises(SpecError, match="requests") as caught:
        Service(port=8000, per_replica=1.0, load="request")
    assert "did you mean" in caught.value.hint


def test_tiny_replicas_are_as_many_as_allowed() -> None:
    service = Service(port=8000, minimum=1, maximum=4, per_replica=1e-320)
    assert rescaled(ReplicaScale(1), service, foreseen=1.0, stay=5.0, now=0.0).target == 4


@pytest.mark.parametrize(
    "rules",
    [
        {"urls": ("http://metrics",)},
        {"urls": ("metrics/",)},
        {"first_port": 80},
        {"first_port": 9000, "last_port": 8000},
        {"address": "host"},
        {"address": "fe80::1%1"},
    ],
)
def test_wrong_rules_are_refused(rules: dict[str, Any]) -> None:
    with pytest.raises(SpecError):
        ServiceRules(**rules)


@pytest.mark.parametrize(
    "text",
    ["", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:99999", "host:80", "1.2.3:80", "999.1.1.1:80",
     "127.0.0.1:80; shutdown sessions server replicas/replica1", "127.0.0.1:80\nx", "[::1%eth0]:80"],
)  # fmt: skip
def test_no_address_is_no_replica(text: str) -> None:
    assert address_in(text) is None
