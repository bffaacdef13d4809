"""Free devices: the node that is found is the one that a look at each of them finds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from brim.domain.cluster import Cluster, Node
from brim.policies.free_devices import FreeDevices, Nodes

NAMES = ("n3", "n1", "n4", "n2", "n5", "n6")
KINDS = ("", "", "other", "", "other", "")
CLUSTER = Cluster(
    nodes=tuple(
        Node(id=name, devices=8, kind=kind) for name, kind in zip(NAMES, KINDS, strict=True)
    )
)
CHOICES: tuple[Nodes, ...] = (
    ("", None),
    ("other", None),
    (None, None),
    ("", ("n1", "n2", "n5")),
    ("", ("n6", "gone", "n3")),
    ("other", ()),
)


def naive(free: dict[str, int], nodes: Nodes, lacks: int, own_nodes: list[str]) -> str | None:
    kind, chosen = nodes
    open_ = [
        node.id
        for node in CLUSTER.nodes
        if node.kind == kind and (chosen is None or node.id in chosen) and free[node.id] > 0
    ]
    sufficient = [node for node in open_ if free[node] >= lacks]
    if sufficient:
        return min(sufficient, key=lambda node: (node not in own_nodes, free[node]))
    return max(open_, key=lambda node: (node in own_nodes, free[node]), default=None)


@given(
    free=st.lists(st.integers(-2, 8), min_size=len(NAMES), max_size=len(NAMES)),
    steps=st.lists(
        st.tuples(
            st.sampled_from(CHOICES),
            st.integers(1, 10),
            st.sets(st.sampled_from(NAMES)),
            st.sampled_from(NAMES),
            st.integers(-3, 3),
        ),
        max_size=30,
    ),
)
def test_the_best_node_matches_a_full_scan(
    free: list[int], steps: list[tuple[Nodes, int, set[str], str, int]]
) -> None:
    free_by_name = dict(zip(NAMES, free, strict=True))
    devices = FreeDevices(CLUSTER, free_by_name)
    for nodes, lacks, allowed, node_taken, count in steps:
        own_nodes = devices.members_of(allowed, nodes)
        kind, chosen = nodes
        assert own_nodes == [
            node.id
            for node in CLUSTER.nodes
            if node.id in allowed and node.kind == kind and (chosen is None or node.id in chosen)
        ]
        assert devices.best(nodes, lacks, own_nodes=own_nodes) == naive(
            free_by_name, nodes, lacks, own_nodes
        )
        devices.take(node_taken, count)
        free_by_name[node_taken] -= count
        assert devices.on == free_by_name
