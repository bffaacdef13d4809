"""Sightings of nodes and of the processes of jobs. Pure values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

import msgspec

from brim.domain.cluster import MOST_DEVICES, Cluster, Node
from brim.domain.host_kind import HostKind, differences
from brim.domain.measuring import Measured
from brim.domain.quantities import counted
from brim.domain.services import ServiceReplica


class Reached(NamedTuple):
    """The first step on a number of workers, and when it was made."""

    workers: int
    at: float
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One job's processes at a look.

    Args:
        alive: it has some.
        workers: worker processes among them, by node.
        agents: the nodes on which it has agents, or is about to have.
        step, steps: committed, and planned in all (None: it has not said so yet).
        saved: when its last checkpoint was written.
        last_step: when it was made.
        out_of_memory: the first workers that were lost for it, in words, since the job began.
        failed: the failures of processes that can still be seen, by an id that no other has. One
            that is restarted in its place has several.
        reached: the first step on the workers that it has.
        outcome: `done`, `failed`, something else that says that it can go on, or empty.
        who: must act, where it failed.
        replicas: of a service, that are ready or leave.
    """

    alive: bool
    workers: Mapping[str, int] = field(default_factory=dict)
    agents: frozenset[str] = frozenset()
    step: int = 0
    steps: int | None = None
    saved: float = 0.0
    first_step: float | None = None
    last_step: float | None = None
    out_of_memory: tuple[str, ...] = ()
    failed: Mapping[str, int] = field(default_factory=dict)
    reached: Reached | None = None
    outcome: str = ""
    who: str = ""
    problem: str = ""
    summary: dict[str, Any] = field(default_factory=dict)
    measured: Measured = field(default_factory=Measured)
    replicas: tuple[ServiceReplica, ...] = ()


class AgentSeen(msgspec.Struct, frozen=True):
    """The agent of a job on a node of another host; what such a node says of it is bounded.

    Args:
        launch: the start of the job that it is of.
        workers: worker processes that it has.
    """

    job: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    launch: Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]
    workers: Annotated[int, msgspec.Meta(ge=0, le=MOST_DEVICES)] = 0


class NodeSeen(NamedTuple):
    """One node at a look.

    Attributes:
        up: jobs can be started on it.
        gone: it was up, or was started in vain, and is not up now: what ran on it has ended.
        lost: it is gone, and nobody should count on it for now.
        pid: of its agent; 0 where it is not up, or on another host.
        again: seconds until its agent is started again.
        problem: why it is not up.
        brings: the node itself, with its devices, where it has joined from another host; None: it
            is one of the scheduler's host, and described.
        address: of its host, where it has joined.
        leaving: it gives way, and nothing is to be on it any more.
        agents: agents of jobs on it, where it has joined.
        kind: of its host, where that is known.
        refuses: the jobs whose workers cannot be on it.
    """

    up: bool
    gone: bool = False
    lost: bool = False
    pid: int = 0
    again: float = 0.0
    problem: str = ""
    brings: Node | None = None
    address: str = ""
    leaving: bool = False
    agents: tuple[AgentSeen, ...] = ()
    kind: HostKind | None = None
    refuses: frozenset[str] = frozenset()


class NodesSeen:
    """The nodes as they were seen last.

    The devices of a lost node are not used until it is back.

    Args:
        seen: by name; empty before the first look.

    Attributes:
        gone: the nodes of which all processes have ended.
        leaving: the nodes that give way.
    """

    __slots__ = ("_lost_nodes", "gone", "leaving", "seen")

    def __init__(self, seen: Mapping[str, NodeSeen]) -> None:
        self.seen = seen
        self._lost_nodes = frozenset(name for name, node in seen.items() if node.lost)
        # Asked for each job.
        self.gone = frozenset(name for name, node in seen.items() if node.gone)
        self.leaving = frozenset(name for name, node in seen.items() if node.leaving)

    def cluster(self, described: Cluster) -> Cluster:
        """Return the cluster: the nodes that were described, and those that have joined.

        Neighbours are below the same switch.
        """
        joined = [node.brings for node in self.seen.values() if node.brings is not None]
        if not joined:
            return described
        all_nodes = [*described.nodes, *sorted(joined, key=lambda node: node.id)]
        return Cluster(nodes=tuple(sorted(all_nodes, key=lambda node: node.switch)))

    @property
    def lost(self) -> frozenset[str]:
        """The nodes that have no devices for plans.

        Where all are lost nothing can be done anyway, and no promise is to be given up for it: then
        they count as if they were there.
        """
        return self._lost_nodes if len(self._lost_nodes) < len(self.seen) else frozenset()

    def news(self, previous: NodesSeen) -> list[tuple[str, str]]:
        """An event and a sentence for each node that was lost or came back since."""
        lost = sorted(self._lost_nodes - previous._lost_nodes)
        back = sorted((previous._lost_nodes - self._lost_nodes) & self.seen.keys())
        own_joined, earlier_joined = self._joined, previous._joined
        return [
            *(
                ("node joined", self._as_joined(name))
                for name in sorted(own_joined - earlier_joined)
            ),
            *(("node left", name) for name in sorted(earlier_joined - own_joined)),
            *(("node lost", f"{name}: {self.seen[name].problem}") for name in lost),
            *(("node back", name) for name in back),
        ]

    @property
    def _joined(self) -> frozenset[str]:
        return frozenset(name for name, node in self.seen.items() if node.brings is not None)

    def _as_joined(self, name: str) -> str:
        node = self.seen[name]
        assert node.brings is not None, "it has joined"
        return f"{name}: {counted(node.brings.devices, 'device')}, from {node.address or '?'}"

    def kinds(self, cluster: Cluster) -> dict[str, HostKind]:
        """The kinds of nodes by the label that these have, as far as they are known."""
        found: dict[str, HostKind] = {}
        for node in cluster.nodes:
            seen = self.seen.get(node.id)
            if seen is not None and seen.kind is not None:
                found.setdefault(node.kind, seen.kind)
        return found

    def refuse_as(self, previous: NodesSeen) -> bool:
        """Return whether nodes refuse the same jobs as before; new ones and lost ones aside."""
        earlier_seen = previous.seen
        return all(
            node.refuses == earlier_seen[name].refuses
            for name, node in self.seen.items()
            if name in earlier_seen
        )

    def chosen(self) -> dict[str, tuple[str, ...]]:
        """The nodes that each job can be on, for those that cannot be on all."""
        refusing: dict[frozenset[str], list[str]] = {}
        for name, node in self.seen.items():
            refusing.setdefault(node.refuses, []).append(name)
        alike: dict[tuple[bool, ...], tuple[str, ...]] = {}  # jobs that can be on the same nodes
        found: dict[str, tuple[str, ...]] = {}
        for job in sorted(frozenset[str]().union(*refusing)):
            takes = tuple(job not in jobs for jobs in refusing)
            if takes not in alike:
                allowed_nodes = {
                    name for jobs, names in refusing.items() if job not in jobs for name in names
                }
                alike[takes] = tuple(sorted(allowed_nodes))
            found[job] = alike[takes]
        return found

    def devices(self, cluster: Cluster) -> dict[str, int]:
        """The devices on which something can be started now, by node."""
        up = {name for name, node in self.seen.items() if node.up}
        return {node.id: node.devices if node.id in up else 0 for node in cluster.nodes}

    def left_over(self, running: Mapping[str, int]) -> dict[str, int]:
        """The workers by node, of nodes that have joined, that are of no job's present start.

        They are being ended, and have their devices until then.

        Args:
            running: the number of its present start by job.
        """
        return {
            name: count
            for name, node in self.seen.items()
            if (count := sum(a.workers for a in node.agents if running.get(a.job) != a.launch))
        }

    def unlike(self, cluster: Cluster) -> dict[str, str]:
        """Say of each node that is not like most devices how it differs from a node that is."""
        devices = Counter[str]()
        for node in cluster.nodes:
            devices[node.kind] += node.devices
        commonest = min(devices, key=lambda kind: (-devices[kind], kind))
        kinds = {
            node.id: kind
            for node in cluster.nodes
            if node.devices and (kind := self.seen[node.id].kind if node.id in self.seen else None)
        }
        usual = next(
            (node.id for node in cluster.nodes if node.kind == commonest and node.id in kinds), ""
        )
        found: dict[str, str] = {}
        for node in cluster.nodes:
            if usual and node.kind != commonest and node.id in kinds:
                sides = kinds[node.id], kinds[usual]
                phrases = differences(sides, (node.id, usual), device="cuda")
                found[node.id] = (
                    f"not like {usual}, so no exact job is on both: {'; '.join(phrases)}"
                )
        return found

    @property
    def silent(self) -> frozenset[str]:
        """The nodes of other hosts of which all processes have ended: their lease is over."""
        return frozenset(name for name in self.gone if self.seen[name].brings is not None)

    @property
    def problem(self) -> str:
        """The nodes that are gone, and when they may be back, in words; empty where none is."""
        return "; ".join(
            f"node {name}: {node.problem}"
            + ("" if node.brings else f"; it is started again in {node.again:.0f} s")
            for name, node in self.seen.items()
            if node.gone
        )
