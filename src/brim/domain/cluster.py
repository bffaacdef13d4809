"""Nodes, their devices and the switches above them. Pure values."""

from __future__ import annotations

from dataclasses import dataclass

from brim.errors import SpecError

__all__ = ["Cluster", "Node"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A host with `devices` accelerators below switch `switch`."""

    id: str
    devices: int
    switch: int = 0


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
            raise SpecError("--cluster", got=repr(text), need="NODESxDEVICES", hint="--cluster 16x8")
        switches, nodes, devices = numbers if len(numbers) == 3 else [1, *numbers]
        return cls.uniform(nodes=switches * nodes, devices=devices, nodes_per_switch=nodes)

    @classmethod
    def uniform(cls, *, nodes: int, devices: int, nodes_per_switch: int | None = None) -> Cluster:
        """`nodes` alike hosts of `devices` devices, `nodes_per_switch` below each switch (None: all)."""
        width = len(str(nodes - 1))
        below = nodes_per_switch or nodes
        return cls(
            nodes=tuple(
                Node(id=f"node{index:0{width}}", devices=devices, switch=index // below)
                for index in range(nodes)
            )
        )

    @property
    def devices(self) -> int:
        """Accelerators in all."""
        return sum(node.devices for node in self.nodes)

    @property
    def node_size(self) -> int:
        """Devices of the largest node."""
        return max(node.devices for node in self.nodes)
