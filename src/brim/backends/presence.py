"""Which nodes of a cluster are there: the devices of a node that is lost are nobody's until it is back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from brim.backends.processes import NodeSeen, Processes
from brim.domain.cluster import Cluster

__all__ = ["Presence"]


class Presence:
    """The nodes as they were seen last.

    Attributes:
        lost: those that have no devices now. Where all are lost nothing can be done anyway, and no promise is to be
            given up for it: then they count as if they were there.
    """

    def __init__(self) -> None:
        self.lost = frozenset[str]()
        self._seen: Mapping[str, NodeSeen] = {}

    def look(self, cluster: Cluster, processes: Processes) -> bool:
        """Keep the nodes of the cluster up; whether others are lost than before."""
        self._seen = processes.nodes([node.id for node in cluster.nodes])
        before, lost = self.lost, frozenset(name for name, node in self._seen.items() if node.lost)
        self.lost = lost if len(lost) < len(self._seen) else frozenset()
        return self.lost != before

    def are_up(self, names: Iterable[str]) -> bool:
        """Whether jobs can be started on all of these now."""
        return all(name in self._seen and self._seen[name].up for name in names)

    @property
    def problem(self) -> str:
        """Which nodes are lost, and when they may be back; empty where none is."""
        return "; ".join(
            f"node {name}: {node.problem}; it is started again in {node.again:.0f} s"
            for name, node in self._seen.items()
            if node.lost
        )
