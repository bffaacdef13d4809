"""Any world and any arrangement on hosts adds up the same tree."""

from itertools import pairwise, product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.coordination.job.reduction import Block, ReductionPlan, blocks_of, fold, share

EVERY_PARTS, EVERY_WORLD = range(1, 18), range(1, 21)


def sums_of(block: Block, parts: int) -> Any:
    """The sum that a worker makes by itself for one block."""
    leaves = {m: m for m in range(block.start, min(block.start + block.size, parts))}
    return folded(leaves, [Block(m, 1) for m in leaves], block, parts)


def folded(sums: dict[int, Any], blocks: list[Block], want: Block, parts: int) -> Any:
    sums = dict(sums)
    for left, right in fold(blocks, want, parts):
        sums[left.start] = (sums[left.start], sums[right.start])
    return sums[want.start]


def tree(plan: ReductionPlan) -> Any:
    """The additions of one step, as they nest: rank, then host, then machine, then root."""
    of_hosts: dict[int, Any] = {}
    hosts: list[Block] = []
    for host in range(len(plan.hosts)):
        local = plan.local_blocks(host)
        sums = {block.start: sums_of(block, plan.parts) for block in local}
        for want in plan.host_blocks(host):
            of_hosts[want.start] = folded(sums, list(local), want, plan.parts)
            hosts.append(want)
    machines = [b for machine in range(len(plan.machines)) for b in plan.machine_blocks(machine)]
    at_root = {want.start: folded(of_hosts, hosts, want, plan.parts) for want in machines}
    return folded(at_root, machines, plan.root, plan.parts)


def arrangements(world: int) -> list[tuple[int, ...]]:
    """One host, a host each, and every cut in two."""
    cuts = [(first, world - first) for first in range(1, world)]
    return list(dict.fromkeys([(world,), (1,) * world, *cuts]))


@pytest.mark.parametrize("parts", EVERY_PARTS)
def test_blocks_of_all_ranks_partition_the_micro_batches(parts: int) -> None:
    for world in EVERY_WORLD:
        plan = ReductionPlan(parts, (world,))
        covered = [
            micro
            for rank in range(world)
            for start, size in plan.rank_blocks(rank)
            for micro in range(start, min(start + size, parts))
        ]
        assert covered == list(range(parts))


@pytest.mark.parametrize("parts", EVERY_PARTS)
def test_every_arrangement_adds_the_same_tree(parts: int) -> None:
    calm = tree(ReductionPlan(parts, (1,)))
    for world in EVERY_WORLD:
        for hosts in arrangements(world):
            assert tree(ReductionPlan(parts, hosts)) == calm, hosts


@given(
    parts=st.sampled_from(EVERY_PARTS), hosts=st.lists(st.integers(1, 6), min_size=1, max_size=5)
)
def test_any_arrangement_adds_up_the_same_tree(parts: int, hosts: list[int]) -> None:
    assert tree(ReductionPlan(parts, tuple(hosts))) == tree(ReductionPlan(parts, (1,)))


@given(
    shares=st.lists(st.integers(0, 9), min_size=1, max_size=8).filter(any),
    cuts=st.lists(st.integers(1, 8)),
)
def test_any_shares_add_up_the_same_tree(shares: list[int], cuts: list[int]) -> None:
    edges = sorted({0, len(shares), *(cut for cut in cuts if cut < len(shares))})
    hosts = tuple(end - start for start, end in pairwise(edges))
    plan = ReductionPlan(sum(shares), hosts, tuple(shares))
    assert [len(plan.micro_batches(rank)) for rank in range(len(shares))] == shares
    assert tree(plan) == tree(ReductionPlan(sum(shares), (1,)))


@st.composite
def plans_with_machines(draw: st.DrawFn) -> ReductionPlan:
    """Any shares, on hosts that any machines have."""
    machines = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    hosts = draw(st.lists(st.integers(1, 3), min_size=sum(machines), max_size=sum(machines)))
    lists = st.lists(st.integers(0, 4), min_size=sum(hosts), max_size=sum(hosts)).filter(any)
    shares = draw(lists)
    return ReductionPlan(sum(shares), tuple(hosts), tuple(shares), tuple(machines))


@given(plan=plans_with_machines())
def test_any_machines_add_up_the_same_tree(plan: ReductionPlan) -> None:
    assert tree(plan) == tree(ReductionPlan(plan.parts, (1,)))


@given(plan=plans_with_machines())
def test_one_host_per_machine_talks_to_others(plan: ReductionPlan) -> None:
    routes = list(map(plan.route, range(len(plan.hosts))))
    hosts_across = [host for host, route in enumerate(routes) if route.across]
    machines = range(len(plan.machines)) if len(plan.machines) > 1 else ()
    assert [routes[host].machine for host in hosts_across] == list(machines)
    for host, route in enumerate(routes):
        assert plan.machine_of(host) == route.machine
        assert set(route.across) <= {
            host_across for host_across in hosts_across if host_across != host
        }
        for peer in route.peers:
            back = routes[peer]
            assert host in back.peers, "one would wait for the other in vain"
            assert (route.machine == back.machine) == (peer not in route.across)
            assert (route.above == peer) == (host in back.below)


@given(plan=plans_with_machines(), dead=st.integers(0, 11))
def test_a_death_reaches_all_hosts(plan: ReductionPlan, dead: int) -> None:
    # Each that loses a stream leaves the step, and closes its own.
    reached = {dead % len(plan.hosts)}
    for _ in plan.hosts:
        reached |= {peer for host in reached for peer in plan.route(host).peers}
    assert reached == set(range(len(plan.hosts)))


def test_machines_must_have_the_hosts() -> None:
    with pytest.raises(ValueError, match="machines"):
        ReductionPlan(8, (2, 1), machines=(1,))


@pytest.mark.parametrize("shares", [(4, 3), (4, 4, 1), (8,)])
def test_shares_must_be_those_of_the_world(shares: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="shares"):
        ReductionPlan(8, (2,), shares)


def test_the_tree_is_balanced_and_clipped() -> None:
    assert tree(ReductionPlan(4, (1,))) == ((0, 1), (2, 3))
    assert tree(ReductionPlan(5, (3,))) == (((0, 1), (2, 3)), 4)


@pytest.mark.parametrize("parts", EVERY_PARTS)
def test_blocks_are_as_few_as_the_tree_allows(parts: int) -> None:
    for start, stop in product(range(parts + 1), repeat=2):
        blocks = blocks_of(range(start, stop), parts)
        assert len(blocks) <= 2 * max(1, (parts - 1).bit_length())
        assert (not blocks) == (start >= stop)


def test_more_ranks_than_parts_leave_some_without_work() -> None:
    assert [len(share(2, 4, rank)) for rank in range(4)] == [0, 1, 0, 1]


def test_ranks_know_their_hosts() -> None:
    plan = ReductionPlan(8, (2, 1, 3))
    assert [plan.host_of(rank) for rank in range(6)] == [0, 0, 1, 2, 2, 2]
    assert [plan.ranks_on(host) for host in range(3)] == [range(2), range(2, 3), range(3, 6)]
    with pytest.raises(ValueError, match="no rank 6"):
        plan.host_of(6)


def test_a_missing_block_is_an_error() -> None:
    with pytest.raises(ValueError, match="no block covers micro-batch 1"):
        fold([Block(0, 1)], Block(0, 2), 2)
