"""Deeds are read as they are written, and random deeds can be done."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.domain.job import WorkerRange
from brim.errors import SpecError
from brim_lab.chaos.deeds import (
    ON_JOB,
    ON_PROCESSES,
    ON_SERVICE,
    SUBMITS,
    Deed,
    DeedKind,
    describe_deed,
    parse_deeds,
)
from brim_lab.chaos.random_deeds import beside_service, random_deeds, random_nodes

WITHIN = WorkerRange.parse("1:4")
seeds = st.integers(0, 2**63)
kinds = st.lists(st.sampled_from([kind for kind in DeedKind if kind not in SUBMITS]), unique=True)


@given(seeds, kinds, st.integers(1, 3))
def test_drawn_deeds_are_possible_and_readable(
    seed: int, kinds: list[DeedKind], nodes: int
) -> None:
    deeds = random_deeds(seed, kinds=kinds, epochs=4, workers=WITHIN, nodes=nodes)
    jobs = [deed for deed in deeds if deed.kind in SUBMITS]
    assert 2 <= len(jobs) <= 4
    assert {deed.tenant for deed in jobs} == {"ads", "web"}
    assert [deed.at for deed in deeds] == sorted(deed.at for deed in deeds)
    for deed in deeds:
        assert deed.kind in SUBMITS or deed.kind in kinds
        assert (deed.job in range(1, len(jobs) + 1)) == (deed.kind in ON_JOB)
        assert (deed.node in range(1, nodes + 1)) == (deed.kind is DeedKind.KILL_NODE)
        assert deed.workers is None or 1 <= deed.workers.minimum <= deed.workers.maximum <= 4
        assert deed.ads + deed.web == (4 if deed.kind is DeedKind.APPLY else 0)
    ending = {DeedKind.KILL_NODE, DeedKind.KILL_AGENT, DeedKind.KILL_EVERYTHING}
    assert (
        sum(deed.kind in ending for deed in deeds) < 5
    )  # five starts in a row without a step are a failure, as they should be
    assert parse_deeds("; ".join(map(describe_deed, deeds))) == deeds


def test_single_sizes_are_drawn_from_single_ranges() -> None:
    fixed = WorkerRange.parse("4")
    for seed in range(50):
        jobs = random_deeds(seed, kinds=[DeedKind.KILL_SCHEDULER], epochs=4, workers=fixed)
        sizes = {deed.workers for deed in jobs if deed.kind in SUBMITS}
        assert sizes == {fixed}


def test_seeds_give_every_kind_and_different_deeds() -> None:
    possible_kinds = [kind for kind in DeedKind if kind not in SUBMITS]
    drawn = [
        random_deeds(seed, kinds=possible_kinds, epochs=4, workers=WITHIN) for seed in range(200)
    ]
    of_services = {DeedKind.SERVE, *ON_SERVICE}
    assert {deed.kind for deeds in drawn for deed in deeds} == set(DeedKind) - of_services
    assert len(set(drawn)) == 200
    assert drawn[7] == random_deeds(7, kinds=possible_kinds, epochs=4, workers=WITHIN)
    assert all(any(deed.kind in ON_PROCESSES for deed in deeds) for deeds in drawn)


@given(seeds, kinds)
def test_service_comes_first_and_bears_deeds(seed: int, kinds: list[DeedKind]) -> None:
    training = random_deeds(seed, kinds=kinds, epochs=4, workers=WITHIN)
    service, *deeds = beside_service(training, seed, kinds=kinds, workers=WITHIN)
    assert (service.kind, service.at) == (DeedKind.SERVE, 0.0)
    submits = [deed for deed in (service, *deeds) if deed.kind in SUBMITS]
    assert [deed.kind is DeedKind.SERVE for deed in submits] == [True] + [False] * (
        len(submits) - 1
    )
    loads = [deed for deed in deeds if deed.kind is DeedKind.ASK]
    assert 2 <= len(loads) <= 3
    for deed in deeds:
        assert deed.kind in SUBMITS or deed.kind in (DeedKind.ASK, *kinds)
        assert (deed.job in range(1, len(submits) + 1)) == (deed.kind in ON_JOB)
        assert deed.kind not in ON_SERVICE or deed.job == 1
        assert deed.job != 1 or deed.kind is not DeedKind.CANCEL, "it is cancelled at the end"
    ending = {DeedKind.KILL_NODE, DeedKind.KILL_AGENT, DeedKind.KILL_EVERYTHING}
    assert sum(deed.kind in ending for deed in deeds) < 5
    assert parse_deeds("; ".join(map(describe_deed, (service, *deeds)))) == (service, *deeds)


def test_seeds_give_a_service_every_kind() -> None:
    possible_kinds = [kind for kind in DeedKind if kind not in SUBMITS]
    drawn = [beside_service([], seed, kinds=possible_kinds, workers=WITHIN) for seed in range(50)]
    assert {deed.kind for deeds in drawn for deed in deeds} > ON_SERVICE
    assert {str(deeds[0].workers) for deeds in drawn} == {"1:2", "1:3"}
    assert {deeds[0].tenant for deeds in drawn} == {"ads", "web"}


def test_clusters_have_one_to_three_nodes() -> None:
    assert {random_nodes(seed, devices=4) for seed in range(50)} == {1, 2, 3}
    assert {random_nodes(seed, devices=2) for seed in range(50)} == {1, 2}


def test_a_clause_is_one_deed() -> None:
    text = "submit 1:2 of web for 4 epochs by 30s at 0s; kill master of job 1 at 2500ms"
    assert parse_deeds(text) == (
        Deed(
            kind=DeedKind.SUBMIT_BY,
            at=0.0,
            workers=WorkerRange.parse("1:2"),
            tenant="web",
            epochs=4,
            due=30.0,
        ),
        Deed(kind=DeedKind.KILL_MASTER, at=2.5, job=1),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kill scheduler at 3s", "kill scheduler for 1s at 5s"),
        ("cancel job 2 at 3s", "a job that is submitted: 1 to 0"),
        ("kill node 0 at 3s", "a node: they are counted from 1"),
        ("burn job 2 at 3s", "a clause that begins with submit, suspend"),
        ("kill everything for x at 3s", "a duration"),
        (
            "submit 1 of ads for 4 epochs at 0s; kill front of job 1 at 3s",
            "a job that is a service",
        ),
        ("serve 1:2 of ads at 0s; ask job 1 0 times a second at 3s", "at least one request"),
    ],
)
def test_what_cannot_be_read_is_told(text: str, message: str) -> None:
    with pytest.raises(SpecError, match="--faults") as raised:
        parse_deeds(text)
    assert message in str(raised.value)
