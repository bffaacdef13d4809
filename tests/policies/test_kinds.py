"""Jobs that cannot be on all nodes, under the policy `brim` and under any."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from time import process_time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.domain.cluster import Cluster, Node
from brim.domain.resizing import BELIEVED
from brim.domain.scaling import ScalingCurve
from brim.domain.schedule import (
    Admitted,
    Decision,
    JobState,
    Reason,
    Rejected,
    Snapshot,
    Standing,
)
from brim.domain.workload import Job
from brim.policies.kinds import ask_within
from brim.policies.placement import on_nodes
from brim.policies.what_if import what_if
from brim.scheduler.loop import decide

# Kinds "" with 3 devices and "other" with 4.
MIXED = Cluster(
    nodes=(
        Node(id="n1", devices=2),
        Node(id="n2", devices=2, kind="other"),
        Node(id="n3", devices=2, kind="other"),
        Node(id="n4", devices=1),
    )
)
PAIR = Cluster(nodes=(Node(id="n1", devices=2), Node(id="n2", devices=2, kind="other")))
CURVE = ScalingCurve(points=((1, 1.0), (2, 1.9), (4, 3.6), (7, 6.0)))

Held = Mapping[str, Mapping[str, int]]


def job(name: str, minimum: int = 1, most: int = 7, **fields: Any) -> Job:
    return Job(
        **{
            "id": name,
            "submitted": 0.0,
            "work": 1000.0,
            "curve": CURVE,
            "minimum": minimum,
            "maximum": most,
            "requested": most,
            "exact": True,
            **fields,
        }
    )


def snapshot(
    *jobs: Job,
    placement: Held | None = None,
    cluster: Cluster = MIXED,
    arrived: tuple[str, ...] = (),
) -> Snapshot:
    states = []
    for job in jobs:
        nodes = (placement or {}).get(job.id, {})
        judged = Standing.BEST_EFFORT if job.deadline is None else Standing.ADMITTED
        if job.id in arrived:
            judged = Standing.WAITING
        states.append(JobState(job, job.work, sum(nodes.values()), nodes=nodes, standing=judged))
    return Snapshot(
        now=0.0,
        cluster=cluster,
        capacity=cluster.devices,
        jobs=tuple(states),
        arrived=arrived,
        overheads=BELIEVED,
    )


def brim(snapshot: Snapshot, *, ahead: bool = False) -> Decision:
    return decide(snapshot, "brim", left_by="brim", ahead=ahead)


def of_any_policy(snapshot: Snapshot, workers: Mapping[str, int]) -> Decision:
    """The decision where a policy gives so many workers, within the bounds of jobs."""

    def policy(seen: Snapshot) -> Decision:
        jobs_of_states = {state.job.id: state.job for state in seen.jobs}
        return Decision(
            workers={
                name: min(count, jobs_of_states[name].maximum or count)
                for name, count in workers.items()
                if name in jobs_of_states
            }
        )

    return ask_within(snapshot, policy, on_nodes)


def in_turn(seen: Snapshot) -> Decision:
    """A policy that gives each job as many as it may have, while there are some."""
    free, workers = seen.capacity, {}
    for state in seen.jobs:
        count = min(state.job.maximum or free, free)
        workers[state.job.id] = count if count >= state.job.minimum else 0
        free -= workers[state.job.id]
    return Decision(workers=workers)


ONE_KIND: list[tuple[str, Held, dict[str, int], dict[str, int], Held]] = [
    ("fits on one kind", {}, {"a": 1}, {"a": 4}, {"a": {"n2": 2, "n3": 2}}),
    ("stays where it is", {"a": {"n1": 2}}, {"a": 1}, {"a": 4}, {"a": {"n1": 2, "n4": 1}}),
    ("has less than its minimum", {}, {"a": 5}, {"a": 5}, {}),
    (
        "two of them",
        {},
        {"a": 1, "b": 1},
        {"a": 5, "b": 2},
        {"a": {"n2": 2, "n3": 2}, "b": {"n1": 2}},
    ),
    (
        "no surplus keeps another's minimum away",
        {"a": {"n1": 2, "n4": 1}, "b": {"n2": 2, "n3": 2}},
        {"a": 2, "b": 2, "c": 2},
        {"a": 2, "b": 3, "c": 2},
        {"a": {"n1": 2}, "b": {"n2": 2}, "c": {"n3": 2}},
    ),
    (
        "begins where it can grow",
        {},
        {"a": 2},
        {"a": 2},
        {"a": {"n2": 2}},
    ),
    (
        "who holds devices grows on them first",
        {"b": {"n1": 2}},
        {"a": 1, "b": 1},
        {"a": 4, "b": 3},
        {"a": {"n2": 2, "n3": 2}, "b": {"n1": 2, "n4": 1}},
    ),
]


@pytest.mark.parametrize(
    ("placement", "minima", "expected_workers", "found"),
    [row[1:] for row in ONE_KIND],
    ids=[r[0] for r in ONE_KIND],
)
def test_exact_jobs_use_one_node_kind(
    placement: Held, minima: dict[str, int], expected_workers: dict[str, int], found: Held
) -> None:
    seen = snapshot(*(job(name, minimum) for name, minimum in minima.items()), placement=placement)
    decision = of_any_policy(seen, expected_workers)
    assert decision.nodes == found
    assert {job: n for job, n in decision.workers.items() if n} == {
        job: sum(nodes_of_job.values()) for job, nodes_of_job in found.items()
    }
    for name, count in expected_workers.items():
        if sum(found.get(name, {}).values()) < count:
            reason, detail = decision.reasons[name]
            assert reason is Reason.ONE_KIND
            assert "alike" in detail


def test_inexact_jobs_use_any_nodes() -> None:
    decision = brim(snapshot(job("a", 5, exact=False)))
    assert sum(decision.nodes["a"].values()) == 7
    assert len(decision.nodes["a"]) == 4


def test_unplaceable_jobs_take_nothing() -> None:
    running = job("b", 1, 4)
    decision_alone = brim(snapshot(running, placement={"b": {"n2": 2, "n3": 2}}))
    crowded = brim(
        snapshot(job("a", 5), running, placement={"b": {"n2": 2, "n3": 2}}, arrived=("a",))
    )
    assert crowded.workers.get("a", 0) == 0
    assert crowded.nodes == decision_alone.nodes == {"b": {"n2": 2, "n3": 2}}
    reason, detail = crowded.reasons["a"]
    assert reason is Reason.ONE_KIND
    assert "it needs 5 devices there, and no more than 4 are" in detail


def test_unusable_devices_go_to_others() -> None:
    """Two exact jobs hold more than half of each kind, so a third fits on neither."""
    cluster = Cluster(nodes=(Node(id="n1", devices=3), Node(id="n2", devices=3, kind="other")))
    holding = {"a": {"n1": 2}, "b": {"n2": 2}}
    jobs = [job("a", 2, 2), job("b", 2, 2), job("c", 2, 2)]
    seen = snapshot(*jobs, job("d", 1, 2, exact=False), placement=holding, cluster=cluster)
    decision = ask_within(seen, in_turn, on_nodes)
    assert decision.workers.get("c", 0) == 0
    assert decision.nodes["d"] == {"n1": 1, "n2": 1}
    reason, detail = decision.reasons["c"]
    assert reason is Reason.ONE_KIND
    assert "other exact jobs leave fewer" in detail


@pytest.mark.parametrize("looks_ahead", [False, True])
def test_jobs_without_policy_are_judged(looks_ahead: bool) -> None:
    due = brim(snapshot(job("a", 5, deadline=1e6), arrived=("a",)), ahead=looks_ahead)
    (verdict,) = due.verdicts
    assert isinstance(verdict, Rejected)
    assert (verdict.reason, verdict.runs) == (Reason.ONE_KIND, True)
    (verdict,) = brim(snapshot(job("a", 5), arrived=("a",)), ahead=looks_ahead).verdicts
    assert isinstance(verdict, Admitted)
    assert not verdict.promises


def test_a_promise_counts_on_one_kind_alone() -> None:
    """Six workers would be in time, and no kind has more than four."""
    work = 6.0 * 100
    due = job("a", 1, 7, work=work, deadline=130.0, duration=100.0)
    snapshot_asked = snapshot(due, arrived=("a",))
    (verdict,) = brim(snapshot_asked).verdicts
    assert isinstance(verdict, Rejected)
    snapshot_asked = snapshot(replace(due, exact=False), arrived=("a",))
    (verdict,) = brim(snapshot_asked).verdicts
    assert isinstance(verdict, Admitted)
    forecast = what_if(snapshot(due, arrived=("a",)), "a", lambda seen: brim(seen, ahead=True))
    assert forecast.workers <= 4


FOURS = Cluster(nodes=(Node(id="n1", devices=4), Node(id="n2", devices=4, kind="other")))


@pytest.mark.parametrize(
    ("placement", "expected_workers", "workers"),
    [
        ({"b": {"n1": 1}, "c": {"n2": 1}}, {"a": 4, "b": 1, "c": 1}, {"a": 3, "b": 1, "c": 1}),
        ({"a": {"n1": 2}, "b": {"n1": 1}, "c": {"n2": 1}}, {"a": 6, "b": 1, "c": 1}, {"a": 3}),
        ({"a": {"n1": 1}, "b": {"n1": 1}}, {"a": 4, "b": 2, "c": 2}, {"a": 3, "b": 1, "c": 2}),
    ],
    ids=["that comes", "that runs", "beside others that run"],
)
def test_promised_jobs_fill_the_available_room(
    placement: Held, expected_workers: dict[str, int], workers: dict[str, int]
) -> None:
    """And not nothing, where no kind has room for all of it."""
    jobs = [job(name, deadline=1e6) for name in "abc"]
    kinds = {name: ("",) for name in placement if "n1" in placement[name]}
    jobs = [replace(job, kinds=kinds.get(job.id)) for job in jobs]
    placed = on_nodes(
        snapshot(*jobs, placement=placement, cluster=FOURS), Decision(workers=expected_workers)
    )
    assert {name: placed.workers[name] for name in workers} == workers


def test_unusable_promised_devices_stay_reserved() -> None:
    """It waits for two that end soon; its devices are free at the time when it needs them."""
    brief = {"work": 400.0, "deadline": 900.0}
    jobs = [job("b", 1, 1, **brief), job("c", 1, 1, **brief)]
    jobs.append(job("a", 4, 4, work=7000.0, deadline=3100.0))
    placement = {"b": {"n1": 1}, "c": {"n2": 1}}
    due = job("d", 1, 7, work=9500.0, deadline=2200.0, exact=False)

    def decide_for(*jobs: Job, arrived: tuple[str, ...] = ("d",)) -> Decision:
        return brim(snapshot(*jobs, placement=placement, cluster=FOURS, arrived=arrived))

    (verdict,) = decide_for(*jobs[:2], due).verdicts
    assert isinstance(verdict, Admitted)
    decision = decide_for(*jobs, due)
    (verdict,) = decision.verdicts
    assert isinstance(verdict, Rejected)
    assert "a" not in decision.nodes
    assert decision.workers["d"] == 6, "it has them until then"
    seen = snapshot(*jobs, due, placement=placement, cluster=FOURS)
    hoping = seen.jobs[-1]._replace(standing=Standing.BEST_EFFORT)
    seen = replace(seen, jobs=(*seen.jobs[:-1], hoping), memory=decision.memory)
    assert not brim(seen).verdicts


def test_jobs_that_may_be_anywhere_make_room() -> None:
    """Single workers on each kind leave none with four devices free."""
    jobs = [*(job(name, 1, 1, exact=False) for name in "abc"), job("d", 4, 4)]
    placement = {"a": {"n1": 1}, "b": {"n2": 1}, "c": {"n3": 1}}
    decision = brim(snapshot(*jobs, placement=placement))
    assert decision.nodes["d"] == {"n2": 2, "n3": 2}
    assert decision.nodes["a"] == placement["a"]
    assert decision.moved == {"b", "c"}
    next_decision = brim(snapshot(*jobs, placement=decision.nodes))
    assert next_decision.nodes == decision.nodes
    assert not next_decision.moved


def test_who_is_pinned_makes_no_room() -> None:
    free_jobs = [job(name, 1, 1, exact=False) for name in "ab"]
    placement = {"a": {"n1": 1}, "b": {"n2": 1}}
    seen = snapshot(*free_jobs, job("c", 2, 2), placement=placement, cluster=PAIR)
    decision_of_policy = Decision(workers={"a": 1, "b": 1, "c": 2}, pinned=frozenset("ab"))
    assert on_nodes(seen, decision_of_policy).nodes == placement
    decision_of_policy = replace(decision_of_policy, pinned=frozenset("a"))
    assert on_nodes(seen, decision_of_policy).nodes == {
        "a": {"n1": 1},
        "b": {"n1": 1},
        "c": {"n2": 2},
    }


@pytest.mark.parametrize(
    ("kinds", "nodes", "reason"),
    [
        (None, {"n2": 2, "n3": 2}, "4 workers: no more fit on nodes that are alike"),
        (("",), {"n1": 2, "n4": 1}, "3 workers: no more fit on nodes that are alike"),
        (("other",), {"n2": 2, "n3": 2}, "4 workers: no more fit on nodes that are alike"),
        ((), None, "brim resume a --any-kind"),
        (("third",), None, "is of the kind on which it began"),
    ],
)
def test_jobs_continue_on_their_first_kind(
    kinds: tuple[str, ...] | None, nodes: dict[str, int] | None, reason: str
) -> None:
    decision = brim(snapshot(job("a", kinds=kinds)))
    assert decision.nodes.get("a") == nodes
    assert reason in decision.reasons["a"][1]


def test_jobs_wait_for_their_node_kind() -> None:
    alike = Cluster(nodes=(Node(id="n1", devices=2), Node(id="n2", devices=2)))
    waiting, other_job = job("a", kinds=("gone",)), job("b", exact=False)
    decision = brim(snapshot(waiting, other_job, cluster=alike))
    assert decision.nodes.get("a") is None
    assert decision.workers["b"] == 4
    assert "is of the kind on which it began" in decision.reasons["a"][1]
    no_nodes = MIXED.with_lost({node.id for node in MIXED.nodes})
    assert brim(snapshot(waiting, cluster=no_nodes)).workers.get("a", 0) == 0


# Nodes that owners have chosen -------------------------------------------------------------------

ALIKE = Cluster(nodes=tuple(Node(id=f"n{k}", devices=2) for k in (1, 2, 3)))


def test_jobs_use_their_owners_chosen_nodes() -> None:
    for exact in (False, True):
        chosen = job("a", 3, 4, exact=exact, nodes=("n2", "n3"))
        free = brim(snapshot(chosen, cluster=ALIKE))
        assert free.nodes["a"] == {"n2": 2, "n3": 2}
        other_job = job("b", 2, 2, exact=exact)
        full = brim(snapshot(chosen, other_job, placement={"b": {"n2": 2}}, cluster=ALIKE))
        assert full.nodes == {"a": {"n2": 2, "n3": 2}, "b": {"n1": 2}}


def test_jobs_with_chosen_nodes_share_them() -> None:
    """In either order: the job with fewer possible nodes comes first."""
    narrow, wide = job("b", 2, 2, nodes=("n3",)), job("a", 4, 4, nodes=("n1", "n2", "n3"))
    for jobs in ((narrow, wide), (wide, narrow)):
        decision = brim(snapshot(*jobs, cluster=ALIKE))
        assert decision.nodes == {"a": {"n1": 2, "n2": 2}, "b": {"n3": 2}}


def test_jobs_are_limited_to_their_nodes() -> None:
    decision = brim(snapshot(job("a", nodes=("n2",)), job("b"), cluster=ALIKE))
    assert decision.nodes == {"a": {"n2": 2}, "b": {"n1": 2, "n3": 2}}
    assert decision.reasons["a"] == (
        Reason.ITS_NODES,
        "2 workers: no more fit on the nodes that its template allows",
    )


@pytest.mark.parametrize(
    ("chosen", "reason"),
    [
        (
            ("n1",),
            "it needs 3 devices on nodes that its template allows, which have 2; these are n1",
        ),
        ((), "it needs 3 devices on nodes that its template allows, which have 0"),
        (
            ("n1", "n2"),
            "it needs 3 devices on nodes that its template allows, and other jobs leave",
        ),
    ],
)
def test_blocked_node_choices_take_nothing(chosen: tuple[str, ...], reason: str) -> None:
    waiting, other_job = job("a", 3, nodes=chosen), job("b", 2, 2, nodes=("n1",))
    seen = snapshot(waiting, other_job, placement={"b": {"n1": 2}}, cluster=ALIKE, arrived=("a",))
    decision = brim(seen)
    assert decision.nodes == {"b": {"n1": 2}}
    assert decision.reasons["a"][0] is Reason.ITS_NODES
    assert decision.reasons["a"][1].startswith(reason)
    (verdict,) = decision.verdicts
    assert isinstance(verdict, Admitted)
    assert (verdict.reason, verdict.promises) == (Reason.ITS_NODES, False)


# Any jobs on any nodes ----------------------------------------------------------------------------


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    sizes = draw(st.lists(st.tuples(st.integers(0, 4), st.sampled_from("xyz")), min_size=1))
    nodes = [Node(id=f"n{k}", devices=n, kind=kind) for k, (n, kind) in enumerate(sizes)]
    return Cluster(nodes=(Node(id="n", devices=2), *nodes))


@st.composite
def many_jobs(draw: st.DrawFn, names: list[str] | None = None) -> list[Job]:
    """Some jobs, whose owners choose among the nodes of these names."""
    chosen = st.none() | st.lists(st.sampled_from(names or ["n"]), unique=True).map(tuple)

    def make_job(name: str) -> Job:
        minimum = draw(st.integers(1, 4))
        maximum = draw(st.integers(minimum, 7))
        kinds = draw(st.sampled_from([None, None, ("",), ("x",), ("y", "z")]))
        exact = draw(st.booleans())
        deadline = draw(st.sampled_from([None, 1e6]))  # which is promised
        kinds = kinds if exact else None
        nodes = draw(chosen) if names else None
        return job(name, minimum, maximum, exact=exact, kinds=kinds, deadline=deadline, nodes=nodes)

    return [make_job(name) for name in draw(st.lists(st.sampled_from("abcdefgh"), unique=True))]


def _given(draw: st.DrawFn, jobs: list[Job], devices: int) -> dict[str, int]:
    demand, free = {}, devices
    for job in jobs:
        count = min(draw(st.integers(0, job.maximum or 0)), free)
        demand[job.id] = count if count >= job.minimum else 0
        free -= demand[job.id]
    return demand


@st.composite
def cycles(draw: st.DrawFn, choosy: bool = False) -> list[tuple[Snapshot, Decision, Decision]]:
    """Some cycles of the same jobs on nodes that come and go: seen, given and placed.

    Args:
        choosy: owners of some jobs have chosen nodes.
    """
    cluster = draw(clusters())
    names = [node.id for node in cluster.nodes]
    jobs = draw(many_jobs(names if choosy else None))
    placement: dict[str, dict[str, int]] = {}
    found = []
    for _ in range(3):
        lost = draw(st.sets(st.sampled_from(names), max_size=1)) if len(names) > 1 else set()
        available = cluster.with_lost(lost)
        if not available.devices:
            continue
        demand = _given(draw, jobs, available.devices)
        pinned = (
            frozenset(draw(st.sets(st.sampled_from(sorted(placement)))))
            if placement
            else frozenset()
        )
        seen = snapshot(*jobs, placement=placement, cluster=available)
        decision = Decision(workers=demand, pinned=pinned)
        placed = on_nodes(seen, decision)
        found.append((seen, decision, placed))
        placement = {name: dict(nodes_of_job) for name, nodes_of_job in placed.nodes.items()}
    return found


@given(cycles() | cycles(choosy=True))
def test_plans_never_mix_kinds_or_overcommit(
    life: list[tuple[Snapshot, Decision, Decision]],
) -> None:
    for seen, decision, placed in life:
        kinds = {node.id: node.kind for node in seen.cluster.nodes}
        used = Counter[str]()
        for state in seen.jobs:
            job_of_state, nodes_of_job = state.job, placed.nodes.get(state.job.id, {})
            used.update(nodes_of_job)
            assert placed.workers[job_of_state.id] == sum(nodes_of_job.values())
            if job_of_state.exact or job_of_state.nodes is not None:
                assert len({kinds[node] for node in nodes_of_job}) <= 1
                assert job_of_state.kinds is None or all(
                    kinds[node] in job_of_state.kinds for node in nodes_of_job
                )
                assert job_of_state.nodes is None or set(nodes_of_job) <= set(job_of_state.nodes)
                assert (
                    not nodes_of_job
                    or job_of_state.minimum
                    <= sum(nodes_of_job.values())
                    <= decision.workers[job_of_state.id]
                )
            else:
                assert sum(nodes_of_job.values()) == decision.workers[job_of_state.id], (
                    "nobody else has less for it"
                )
        assert all(used[node.id] <= node.devices for node in seen.cluster.nodes)


@given(cycles())
def test_only_fixed_jobs_block_exact_jobs(
    life: list[tuple[Snapshot, Decision, Decision]],
) -> None:
    for seen, decision, placed in life:
        fixed = Counter[str]()  # by kind: minima of exact jobs there, and whoever is pinned
        kinds = {node.id: node.kind for node in seen.cluster.nodes}
        devices = Counter[str]()
        for node in seen.cluster.nodes:
            devices[node.kind] += node.devices
        if len(+devices) < 2:
            continue
        for state in seen.jobs:
            for node_id, count in placed.nodes.get(state.job.id, {}).items():
                if not state.job.exact and state.job.id in decision.pinned:
                    fixed[kinds[node_id]] += count
            if state.job.exact and placed.nodes.get(state.job.id):
                nodes_of_job = placed.nodes[state.job.id]
                promised = state.job.deadline is not None
                fixed[kinds[next(iter(nodes_of_job))]] += (
                    sum(nodes_of_job.values()) if promised else state.job.minimum
                )
        for state in seen.jobs:
            job_of_state = state.job
            if (
                job_of_state.exact
                and decision.workers[job_of_state.id]
                and not placed.nodes.get(job_of_state.id)
            ):
                for kind, count in devices.items():
                    if job_of_state.kinds is None or kind in job_of_state.kinds:
                        pinned_ = any(name in decision.pinned for name in decision.workers)
                        assert count - fixed[kind] < job_of_state.minimum or pinned_


@given(cycles() | cycles(choosy=True))
def test_unchanged_jobs_stay_in_place(
    life: list[tuple[Snapshot, Decision, Decision]],
) -> None:
    for seen, decision, placed in life:
        for state in seen.jobs:
            remaining_nodes = {
                n.id: min(n.devices, state.nodes.get(n.id, 0)) for n in seen.cluster.nodes
            }
            whole = all(remaining_nodes[node] == count for node, count in state.nodes.items())
            claims = state.job.exact or state.job.nodes is not None
            if claims and state.nodes and whole and decision.workers[state.job.id]:
                assert placed.nodes.get(state.job.id), "nobody who comes puts it off its nodes"
        placement = {name: dict(nodes_of_job) for name, nodes_of_job in placed.nodes.items()}
        next_snapshot = snapshot(
            *(state.job for state in seen.jobs), placement=placement, cluster=seen.cluster
        )
        assert (
            on_nodes(next_snapshot, replace(decision, workers=placed.workers)).nodes == placed.nodes
        )


def test_choosing_among_a_thousand_nodes_is_quick() -> None:
    """Not in the time of a product: looking at each node for each job takes twelve."""
    cluster = Cluster(nodes=tuple(Node(id=f"n{number:03}", devices=8) for number in range(1000)))
    chosen = tuple(node.id for node in cluster.nodes[::2])
    jobs = [job(f"job-{number}", exact=False, nodes=chosen) for number in range(1000)]
    started = process_time()
    decision = decide(snapshot(*jobs, cluster=cluster), "brim", left_by="brim")
    assert process_time() - started < 3.0  # 0.1 on an idle machine
    assert sum(decision.workers.values()) == 4000
    assert {node for nodes in decision.nodes.values() for node in nodes} <= set(chosen)
