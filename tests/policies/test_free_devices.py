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


def naive(free: dict[str, int], nodes: Nodes, lacks: int, own: list[str]) -> str | None:
    kind, chosen = nodes
    open_ = [
        node.id
        for node in CLUSTER.nodes
        if node.kind == kind and (chosen is None or node.id in chosen) and free[node.id] > 0
    ]
    enough = [node for node in open_ if free[node] >= lacks]
    if enough:
        return min(enough, key=lambda node: (node not in own, free[node]))
    return max(open_, key=lambda node: (node in own, free[node]), default=None)


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
def test_the_best_node_is_that_of_a_look_at_each(
    free: list[int], steps: list[tuple[Nodes, int, set[str], str, int]]
) -> None:
    known = dict(zip(NAMES, free, strict=True))
    devices = FreeDevices(CLUSTER, known)
    for nodes, lacks, some, taken, count in steps:
        own = devices.among(some, nodes)
        kind, chosen = nodes
        assert own == [
            node.id
            for node in CLUSTER.nodes
            if node.id in some and node.kind == kind and (chosen is None or node.id in chosen)
        ]
        assert devices.best(nodes, lacks, own_nodes=own) == naive(known, nodes, lacks, own)
        devices.take(taken, count)
        known[taken] -= count
        assert devices.on == known
