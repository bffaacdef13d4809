"""The facts of one cluster that its processes share: its settings, its addresses, its files."""

from __future__ import annotations

from pathlib import Path

import msgspec

from brim_lab.kubernetes.binaries import home

CONTROL = "10.231.0.1"  # of the control plane: nodes are on the same network
PORT = 6443
SERVICES, FIRST_SERVICE = "10.231.200.0/24", "10.231.200.1"
PODS = "10.231.0.0/16"
MOST_NODES = 3


class ClusterSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The facts that were asked for.

    Args:
        name: of the cluster; several can be up at once.
        nodes: how many.
        resources: what each node has beside CPUs and memory, such as `example.com/gpu`: the number.
        gates, apis: see `control_plane.Features`.
        shares: further folders that each container sees, read-only.
    """

    name: str
    nodes: int
    resources: dict[str, str]
    gates: list[str]
    apis: list[str]
    shares: list[str]

    @property
    def folder(self) -> Path:
        """All files of the cluster."""
        return folder_of(self.name)

    @property
    def group(self) -> str:
        """The control group of all its processes."""
        return group_of(self.name)

    @classmethod
    def read(cls, folder: Path) -> ClusterSettings:
        """The settings of the cluster in a folder."""
        return msgspec.json.decode((folder / "settings.json").read_bytes(), type=cls)


def folder_of(name: str) -> Path:
    """The folder of the cluster of a name."""
    return home() / "clusters" / name


def group_of(name: str) -> str:
    """The control group of the cluster of a name."""
    return f"brim-cluster-{name}"


def node_name(number: int) -> str:
    """The name of a node; they count from 1."""
    return f"node-{number}"


def address_of_node(number: int) -> str:
    """The address of a node."""
    return f"10.231.0.{10 + number}"


def pods_of_node(number: int) -> str:
    """The first three bytes of the addresses of a node's pods."""
    return f"10.231.{100 + number}"
