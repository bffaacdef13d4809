"""Nodes, their devices and the switches above them. Pure values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, replace

from brim.domain.channels import Channel
from brim.domain.names import check_name
from brim.domain.promising import PromiseAt
from brim.domain.services import NO_RULES, ServiceRules
from brim.domain.tenancy import Tenant
from brim.domain.usage import check_half_life
from brim.errors import SpecError, did_you_mean

MOST_DEVICES = 1 << 16  # of one node that joins


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A named set of devices on one host, which is below switch `switch`.

    Args:
        devices: how many: accelerators, or CPU cores where there are none. All are alike.
        kind: nodes that differ in it compute different bits; empty: that of the scheduler's host.
    """

    id: str
    devices: int
    switch: int = 0
    kind: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """All nodes, ordered so that neighbours share a switch.

    >>> Cluster.parse("16x8").devices
    128
    """

    nodes: tuple[Node, ...]

    @classmethod
    def parse(cls, text: str) -> Cluster:
        """Read `16x8` (nodes x devices) or `2x32x8` (switches x nodes each x devices).

        Raises:
            SpecError: anything else.
        """
        try:
            numbers = [int(part) for part in text.lower().split("x")]
        except ValueError:
            numbers = []
        if len(numbers) not in (2, 3) or min(numbers) < 1:
            raise SpecError(
                "--cluster", got=repr(text), need="NODESxDEVICES", hint="--cluster 16x8"
            )
        switches, nodes, devices = numbers if len(numbers) == 3 else [1, *numbers]
        return cls.uniform(nodes=switches * nodes, devices=devices, nodes_per_switch=nodes)

    @classmethod
    def uniform(cls, *, nodes: int, devices: int, nodes_per_switch: int | None = None) -> Cluster:
        """Make a cluster of `nodes` equal nodes with `devices` devices each.

        `nodes_per_switch` nodes are below each switch (None: all).
        """
        width = len(str(nodes - 1))
        nodes_below = nodes_per_switch or nodes
        return cls(
            nodes=tuple(
                Node(id=f"node{index:0{width}}", devices=devices, switch=index // nodes_below)
                for index in range(nodes)
            )
        )

    def with_lost(self, lost: Collection[str]) -> Cluster:
        """The same nodes in the same order, but these have no devices now."""
        return Cluster(
            nodes=tuple(
                replace(node, devices=0) if node.id in lost else node for node in self.nodes
            )
        )

    @property
    def devices(self) -> int:
        """The devices of all nodes."""
        return sum(node.devices for node in self.nodes)

    @property
    def node_size(self) -> int:
        """Devices of the largest node."""
        return max(node.devices for node in self.nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """The administrator's description of a cluster.

    Args:
        cluster: the nodes of the scheduler's own host. One may have no devices: it keeps the records
            of jobs whose workers are on nodes that join from other hosts.
        policy: its name.
        promise: when deadlines are promised, by a policy that can wait with that.
        headroom: devices that training leaves free.
        grace: seconds that a job has to give up devices before they are taken by force.
        keep_ended: seconds after which jobs that have ended are forgotten; None: never.
        usage_half_life: seconds after which what a tenant has borrowed counts half, where devices
            are lent; None: only the present counts.
        drained: names of nodes on which nothing is to run.
        channels: on which people are notified of jobs.
        services: what online services may have.

    Raises:
        SpecError: a node twice, or none, a name that no directory can have, or nothing left for
            training.
    """

    cluster: Cluster
    tenants: tuple[Tenant, ...] = ()
    policy: str = "brim"
    promise: PromiseAt = PromiseAt.ARRIVAL
    headroom: int = 0
    grace: float = 30.0
    keep_ended: float | None = None
    usage_half_life: float | None = None
    drained: frozenset[str] = frozenset()
    channels: tuple[Channel, ...] = ()
    services: ServiceRules = NO_RULES

    def __post_init__(self) -> None:
        names = [node.id for node in self.cluster.nodes]
        for name in names:
            check_name(name, field="nodes")
        for tenant in self.tenants:
            check_name(tenant.id, field="tenants")
            check_name(tenant.cohort, field=f"tenant {tenant.id}: cohort")
        self._check_channels()
        twice = sorted(name for name, count in Counter(names).items() if count > 1)
        if twice:
            raise SpecError("nodes", got=f"{twice[0]!r} twice", need="one entry per node")
        negative = [node.id for node in self.cluster.nodes if node.devices < 0]
        if negative or not names:
            actual = f"{negative[0]!r} with fewer than 0 devices" if negative else "none"
            raise SpecError("nodes", got=actual, need="at least one, each with 0 devices or more")
        if self.headroom < 0 or (not self.is_open and self.headroom >= self.cluster.devices):
            need = f"from 0 to {self.cluster.devices - 1}, so that one device is left for training"
            need = "0 devices or more" if self.is_open else need
            raise SpecError("headroom", got=str(self.headroom), need=need)
        if self.keep_ended is not None and not self.keep_ended > 0:
            need = "more than 0 seconds, or nothing: jobs that have ended are kept then"
            raise SpecError("keep_ended", got=str(self.keep_ended), need=need)

        if self.usage_half_life is not None:
            check_half_life(self.usage_half_life, self.tenants, field="usage_half_life")

    def _check_channels(self) -> None:
        names = Counter(channel.name for channel in self.channels)
        twice = sorted(name for name, count in names.items() if count > 1)
        if twice:
            raise SpecError("notify", got=f"{twice[0]!r} twice", need="one entry per name")
        tenants = {tenant.id for tenant in self.tenants}
        for channel in self.channels:
            unknown = sorted(set(channel.tenants) - tenants)
            if unknown:
                hint = did_you_mean(unknown[0], tenants)
                need = "tenants of this cluster"
                field = f"notify {channel.name}: tenants"
                raise SpecError(field, got=repr(unknown[0]), need=need, hint=hint)

    @property
    def is_open(self) -> bool:
        """True where a node has no devices: most come with nodes that join, so no sum is known."""
        return any(node.devices == 0 for node in self.cluster.nodes)

    @property
    def capacity(self) -> int:
        """Devices for training."""
        return max(0, self.cluster.devices - self.headroom)
