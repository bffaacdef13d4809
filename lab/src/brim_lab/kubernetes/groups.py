"""Control groups of version 1 for a cluster and its nodes.

Each kubelet makes the groups of its pods below its node's, which it takes for the root of them all.
`brim.host.control_groups` has those of version 2, without limits; here the limits of pods must hold.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from brim.errors import EnvironmentFault
from brim.host.clock import monotonic, sleep

_MOUNTS = Path("/proc/mounts")
_MEMBERS = "cgroup.procs"
_GONE_WITHIN = 20.0  # seconds
_CPUSET = ("cpuset.cpus", "cpuset.mems")  # empty in a new group, which nobody can enter then


def hierarchies() -> list[Path]:
    """The places where the controllers of version 1 are mounted."""
    lines = (line.split() for line in _MOUNTS.read_text().splitlines())
    return sorted({Path(mount_point) for _, mount_point, kind, *_ in lines if kind == "cgroup"})


def need_version_1() -> None:
    """Raise EnvironmentFault where this machine has not the control groups that nodes need."""
    found = {path.name for path in hierarchies()}
    if lacks := {"cpu", "memory", "pids", "cpuset", "freezer", "devices"} - found:
        raise EnvironmentFault(
            "nodes are made with control groups of version 1, and this machine has none for "
            f"{', '.join(sorted(lacks))}\n"
            "  hint: make a cluster with kind or k3s, and set BRIM_TEST_KUBECONFIG to its kubeconfig"
        )


def enter(name: str) -> None:
    """Put this process, and so what it starts, into the group of a name; make it if need be."""
    for hierarchy in hierarchies():
        group = hierarchy / name
        group.mkdir(parents=True, exist_ok=True)
        for file in _CPUSET:
            if (hierarchy / file).exists():
                (group / file).write_text((hierarchy / file).read_text())
                (group / "cgroup.clone_children").write_text("1")
        (group / _MEMBERS).write_text(str(os.getpid()))


def members(name: str) -> set[int]:
    """The processes in the group of a name, and in those within."""
    return {pid for hierarchy in hierarchies() for pid in _members(hierarchy / name)}


def _members(group: Path) -> Iterator[int]:
    for folder, _, _ in os.walk(group):
        with contextlib.suppress(OSError):  # it was removed meanwhile
            yield from map(int, Path(folder, _MEMBERS).read_text().split())


def end(name: str) -> None:
    """Kill all that is in the group of a name, and remove it.

    Raises:
        EnvironmentFault: something is left of it.
    """
    deadline = monotonic() + _GONE_WITHIN
    while remaining := [path / name for path in hierarchies() if not _remove(path / name)]:
        if monotonic() > deadline:
            raise EnvironmentFault(
                f"control groups cannot be removed: {', '.join(map(str, remaining))}"
            )
        for pid in members(name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        sleep(0.02)


def _remove(group: Path) -> bool:
    for folder, _, _ in os.walk(group, topdown=False):
        try:
            os.rmdir(folder)
        except FileNotFoundError:
            continue
        except OSError:
            return False
    return True
