"""The replicas of a service by its measured loads, and the time that replicas take to come."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from brim.domain.autoscaling import Autoscaler
from brim.domain.demand import Past
from brim.domain.services import ReplicaRule, check_url_prefix, is_allowed
from brim.errors import SpecError

RULE = ReplicaRule(minimum=1, maximum=4, per_replica=10.0, notice=1.0, day=600.0)

# by name: (the load at each second, replicas wanted at each); fewer after five seconds
COURSES: dict[str, tuple[Sequence[float], list[int]]] = {
    "more at once": ([5, 25], [1, 2]),
    "the mean of three": ([5, 5, 35, 35], [1, 1, 2, 3]),
    "no more than the most": ([400], [4]),
    "fewer after the stay": ([35] + 12 * [5], 6 * [4] + 5 * [2] + 2 * [1]),
}


@pytest.mark.parametrize("name", COURSES)
def test_replicas_follow_from_loads(name: str) -> None:
    loads, expected = COURSES[name]
    autoscaler, found = Autoscaler(Past(season=RULE.day), replicas=1), []
    for second, load in enumerate(loads):
        autoscaler.measured(load, wall=float(second))
        found.append(autoscaler.decide(RULE, now=float(second), wall=float(second)))
    assert found == expected


def test_notice_is_the_longest_of_the_latest_five() -> None:
    autoscaler = Autoscaler(Past(), replicas=1, notices=[9.0])
    assert autoscaler.notice(RULE) == 9.0
    for number, seconds in enumerate([2.0, 4.0, 3.0, 2.0, 2.0]):
        start = 1000.0 * number
        autoscaler.resized(1, 3, start)
        autoscaler.ready(2, start + 1.0)  # not all are there
        autoscaler.ready(3, start + seconds)
        autoscaler.ready(3, start + 50.0)  # nothing is waited for
    assert autoscaler.notices == (2.0, 4.0, 3.0, 2.0, 2.0)
    assert autoscaler.horizon(RULE) == 5.0


def test_replicas_that_never_come_teach_nothing() -> None:
    autoscaler = Autoscaler(Past(), replicas=1)
    autoscaler.resized(1, 3, 0.0)
    autoscaler.ready(3, 1000.0)
    autoscaler.resized(3, 1, 1000.0)  # fewer are not waited for
    autoscaler.ready(3, 1001.0)
    assert autoscaler.notices == ()
    assert autoscaler.notice(RULE) == 1.0


def test_words_have_the_numbers() -> None:
    autoscaler = Autoscaler(Past(), replicas=1)
    autoscaler.measured(24.6, wall=0.0)
    autoscaler.decide(RULE, now=0.0, wall=0.0)
    words = "load 24.6/s now, 24.6/s foreseen in 2 s: 3 replicas"
    assert autoscaler.words(RULE, unit="/s") == words


@pytest.mark.parametrize(
    ("url", "allowed"),
    [
        ("http://m:9090/a/web", True),
        ("http://m:9090/a/..web/.x/query?path=../b", True),
        ("http://m:9090/b", False),
        ("https://m:9090/a/web", False),
        ("http://m:9090/a/../b", False),
        ("http://m:9090/a/x/..", False),
        ("http://m:9090/a/..;/b", False),
        ("http://m:9090/a/%2E%2e/b", False),
        ("http://m:9090/a/x%5c..%2Fb", False),
        ("http://m:9090/a/ b", False),
    ],
)
def test_only_urls_below_a_prefix_are_allowed(url: str, allowed: bool) -> None:
    assert is_allowed(url, ["http://m:9090/a/", "http://other/"]) is allowed
    assert not is_allowed(url, [])


@pytest.mark.parametrize(
    "prefix", ["http://", "http:///", "http://m", "ftp://m/", "http://m/a/../"]
)
def test_prefix_names_a_host(prefix: str) -> None:
    with pytest.raises(SpecError, match="all of its host"):
        check_url_prefix(prefix, field="urls", hint="")
