"""The host of this process as a cluster of one node: its GPUs, else its CPUs."""

from __future__ import annotations

import platform
from pathlib import Path

from brim.domain.cluster import Cluster, ClusterSpec, Node
from brim.host.control_groups import processors

_GPUS = Path("/proc/driver/nvidia/gpus")


def this_host() -> ClusterSpec:
    """Return a cluster of this host, for a user without a description of one."""
    return ClusterSpec(
        cluster=Cluster(nodes=(Node(id=platform.node() or "node", devices=devices_here()),))
    )


def devices_here() -> int:
    """Count the devices of this host: its GPUs, else the CPU cores that this process may use."""
    gpus = len(list(_GPUS.iterdir())) if _GPUS.is_dir() else 0
    return gpus or processors()
