"""Which nodes of a cluster are there: the devices of a node that is lost are nobody's until it is
back.
"""

from __future__ import annotations

from collections.abc import Mapping

from brim.backends.processes import NodeSeen, Processes
from brim.domain.cluster import Cluster


class Presence:
    """The nodes as they were seen last.

    Attributes:
        lost: those that have no devices for plans. Where all are lost nothing can be done anyway,
            and no promise is to be given up for it: then they count as if they were there.
        news: (event, sentence) for each node that was lost or came back at the last look.
    """

    def __init__(self) -> None:
        self.lost = frozenset[str]()
        self.news: list[tuple[str, str]] = []
        self._away = frozenset[str]()
        self._seen: Mapping[str, NodeSeen] = {}

    def look(self, cluster: Cluster, processes: Processes) -> bool:
        """Keep the nodes of the cluster up; whether others are lost than before."""
        self._seen = processes.nodes([node.id for node in cluster.nodes])
        before, lost = self.lost, frozenset(name for name, node in self._seen.items() if node.lost)
        self.news = [
            ("node lost", f"{name}: {self._seen[name].problem}")
            for name in sorted(lost - self._away)
        ]
        self.news += [
            ("node back", name) for name in sorted((self._away - lost) & self._seen.keys())
        ]
        self._away = lost
        self.lost = lost if len(lost) < len(self._seen) else frozenset()
        return self.lost != before

    def devices(self, cluster: Cluster) -> dict[str, int]:
        """The devices on which something can be started now, by node."""
        up = {name for name, node in self._seen.items() if node.up}
        return {node.id: node.devices if node.id in up else 0 for node in cluster.nodes}

    @property
    def gone(self) -> frozenset[str]:
        """Those of which all processes have ended."""
        return frozenset(name for name, node in self._seen.items() if node.gone)

    @property
    def problem(self) -> str:
        """Which nodes are gone, and when they may be back; empty where none is."""
        return "; ".join(
            f"node {name}: {node.problem}; it is started again in {node.again:.0f} s"
            for name, node in self._seen.items()
            if node.gone
        )
