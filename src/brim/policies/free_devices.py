"""Free devices by node, and the best node for a job's shortfall, found without a full scan. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from heapq import heappop, heappush

from brim.domain.cluster import Cluster

Nodes = tuple[str | None, tuple[str, ...] | None]
"""The nodes of one kind (None: of no kind at all), and of them those that an owner has chosen (None: all)."""


class FreeDevices:
    """The devices that are free on each node.

    Args:
        cluster: where several nodes are as good, the first one in its order is taken.
        free: by node; less than none where more is held than there is.
    """

    def __init__(self, cluster: Cluster, free: Mapping[str, int]) -> None:
        self.on = dict(free)
        self._cluster = cluster
        self._rank = {node.id: rank for rank, node in enumerate(cluster.nodes)}
        self._open: dict[Nodes, _OpenNodes] = {}

    def take(self, node: str, count: int) -> None:
        """Take devices of a node; fewer than none are given back."""
        self.on[node] -= count
        for open_nodes in self._open.values():
            open_nodes.changed(node)

    def members_of(self, names: Collection[str], nodes: Nodes) -> list[str]:
        """Return which of some nodes are among others, in order."""
        return self._in_order(names & self._open_nodes(nodes).rank.keys())

    def best(self, nodes: Nodes, lacks: int, *, own_nodes: Collection[str] = ()) -> str | None:
        """Return the node with the fewest free devices that are enough; else the one with the most.

        Args:
            lacks: devices that are enough.
            own_nodes: of these nodes, those that come before the others where they are enough, or where
                none is.

        Returns:
            None: none of them has a free device.
        """
        candidates = self._in_order(node for node in own_nodes if self.on[node] > 0)
        if sufficient := [node for node in candidates if self.on[node] >= lacks]:
            return min(sufficient, key=self.on.__getitem__)
        open_nodes = self._open_nodes(nodes)
        return open_nodes.smallest_with(lacks) or max(
            candidates, key=self.on.__getitem__, default=open_nodes.largest()
        )

    def _in_order(self, nodes: Iterable[str]) -> list[str]:
        return sorted(nodes, key=self._rank.__getitem__)

    def _open_nodes(self, nodes: Nodes) -> _OpenNodes:
        if nodes not in self._open:
            kind, chosen = nodes
            names = None if chosen is None else frozenset(chosen)
            rank = {
                node.id: self._rank[node.id]
                for node in self._cluster.nodes
                if node.kind == kind and (names is None or node.id in names)
            }
            self._open[nodes] = _OpenNodes(rank, self.on)
        return self._open[nodes]


class _OpenNodes:
    """Nodes by their free devices.

    Args:
        rank: of each node; of those with as many devices the one with the lowest is found.
        free: devices by node; `changed` hears where they change.
    """

    def __init__(self, rank: Mapping[str, int], free: Mapping[str, int]) -> None:
        self.rank, self._free = rank, free
        self._by_count: dict[int, list[tuple[int, str]]] = {}  # heaps; some have changed since
        for node in rank:
            self.changed(node)

    def changed(self, node: str) -> None:
        if node in self.rank and (count := self._free[node]) > 0:
            heappush(self._by_count.setdefault(count, []), (self.rank[node], node))

    def smallest_with(self, count: int) -> str | None:
        """Return a node with the fewest devices that are this many or more."""
        return self._first(size for size in sorted(self._by_count) if size >= count)

    def largest(self) -> str | None:
        """Return a node with the most devices."""
        return self._first(sorted(self._by_count, reverse=True))

    def _first(self, counts: Iterable[int]) -> str | None:
        for count in counts:
            heap = self._by_count[count]
            while heap and self._free[heap[0][1]] != count:
                heappop(heap)
            if heap:
                return heap[0][1]
        return None
