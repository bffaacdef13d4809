"""Control groups of the kernel.

No process leaves a group by forking, and all processes of a group can be killed at once.

A group is made below our own, which takes a cgroup of version 2 that we may write to (of root, or
delegated to us) and Linux 5.14. Elsewhere there are none, and parents that adopt orphans must do:
see `brim.host.process`. No controller is switched on: a group then may have processes and groups beside
each other, and nobody's limits change.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from brim.host.clock import monotonic, sleep
from brim.host.procfs import read_proc

_CPU_MAX, _CFS = "cpu.max", ("cpu.cfs_quota_us", "cpu.cfs_period_us")  # of versions 2 and 1
_MEMBERS, _KILL = "cgroup.procs", "cgroup.kill"
_POLL_INTERVAL = 0.005
_FOREIGN_NAMESPACE = (
    0  # how the kernel tells of a process that cannot be seen from here, as in another container
)
_V2 = "cgroup2"


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """One group, by its directory."""

    path: Path

    def enter(self) -> bool:
        """Put this process in, and so all its later child processes.

        False where that cannot be had.
        """
        try:
            with (self.path / _MEMBERS).open("r+") as members:
                members.write("0")
        except OSError:
            return False
        return True

    def leave(self) -> None:
        """Go back to the group above, and remove this one where nothing is left in it."""
        if ControlGroup(self.path.parent).enter():
            self.remove()

    def subgroup(self, name: str) -> ControlGroup | None:
        """Return the group of this name in this one, and make it if it is missing.

        None where it cannot be made.
        """
        inner = ControlGroup(self.path / name)
        try:
            inner.path.mkdir(exist_ok=True)
        except OSError:
            return None
        return inner

    def members(self) -> list[int]:
        """The processes in it, and in the groups within."""
        found: list[int] = []
        for folder, _, _ in os.walk(self.path):
            with contextlib.suppress(OSError):  # it was removed meanwhile
                found += map(int, Path(folder, _MEMBERS).read_text().split())
        return found

    def end(self, *, patience: float = 0.0) -> bool:
        """Kill all that is in it, and remove it.

        Args:
            patience: seconds that its processes may take to end.

        Returns:
            Whether nothing is left.
        """
        deadline = monotonic() + patience
        while not self.remove():
            with contextlib.suppress(OSError):
                (self.path / _KILL).write_text("1")
            if monotonic() > deadline:
                return self.remove()
            sleep(_POLL_INTERVAL)
        return True

    def remove(self) -> bool:
        """Remove it, if nothing is in it; whether it is gone."""
        for folder, _, _ in os.walk(self.path, topdown=False):
            with contextlib.suppress(FileNotFoundError):
                try:
                    os.rmdir(folder)
                except OSError:
                    return False
        return True


def make_group(folder: Path) -> ControlGroup | None:
    """Make the group of the processes that work in a folder, below our own.

    None where none can be had.
    """
    for mount in _mounts():
        own_group = mount.place_of_ours()
        if mount.version == _V2 and own_group is not None:
            group = ControlGroup(own_group).subgroup(_name_for(folder))
            if group is not None and (group.path / _KILL).exists():
                return group
            if group is not None:
                group.remove()
    return None


def groups_of(folder: Path) -> list[ControlGroup]:
    """Return the groups that any process of this account made for work in a folder.

    The caller need not be in the group below which they were made.
    """
    found, name = [], _name_for(folder)
    for mount in _mounts():
        if mount.version != _V2:
            continue
        for parent, inner, _ in os.walk(mount.mount_point):
            path = Path(parent, name)
            if (
                name in inner
                and _is_ours(path)
                and _FOREIGN_NAMESPACE not in ControlGroup(path).members()
            ):
                found.append(ControlGroup(path))
    return found


def files_about_us(name: str) -> list[Path]:
    """Return the files of this name in the groups of this process, the nearest of each kind.

    A group without the controller has none; its processes then count in the group above.
    """
    found = []
    for mount in _mounts():
        own_group = mount.place_of_ours()
        while own_group is not None and own_group.is_relative_to(mount.mount_point):
            if (own_group / name).exists():
                found.append(own_group / name)
                break
            own_group = own_group.parent
    return found


def processors() -> int:
    """Return how many processors this process may use at once, at least 1.

    That is as many as it may run on, or as its groups give it time of: a container on a large host
    has a share of them.
    """
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    count = float(available or 1)
    for mount in _mounts():
        own_group = mount.place_of_ours()
        while own_group is not None and own_group.is_relative_to(mount.mount_point):
            count = min(count, _share_of(own_group))
            own_group = own_group.parent
    return max(1, math.ceil(count))


def _share_of(group: Path) -> float:
    """Return how many processors a group has the time of; infinite where it has no limit."""
    for limits in ((_CPU_MAX,), _CFS):
        with contextlib.suppress(
            OSError, ValueError
        ):  # it has none of this version, or none at all
            quota, period = " ".join((group / limit).read_text() for limit in limits).split()
            if int(quota) > 0:
                return int(quota) / int(period)
    return math.inf


class _Mount(NamedTuple):
    """A mount point under which control groups can be seen.

    Args:
        version: `cgroup2`, or `cgroup` for the first.
        root: the group that lies there.
        options: the names of the controllers, of the first version.
    """

    version: str
    root: str
    mount_point: Path
    options: frozenset[str]

    def place_of_ours(self) -> Path | None:
        """Return the directory of this process's group.

        None where it cannot be seen from here.
        """
        try:
            lines = read_proc("/proc/self/cgroup").split("\n")
        except OSError:
            return None
        for line in filter(None, lines):
            _, controllers, path = line.split(":", 2)
            if (
                self.version == _V2
                if not controllers
                else set(controllers.split(",")) <= self.options
            ):
                inner = os.path.relpath(path, self.root)
                return None if inner.startswith("..") else self.mount_point / inner
        return None


def _mounts() -> Iterator[_Mount]:
    try:
        lines = read_proc("/proc/self/mountinfo").split("\n")
    except OSError:  # no Linux
        return
    for line in filter(None, lines):
        mount_fields, _, system_fields = line.partition(" - ")
        version, _, options = system_fields.split(" ", 2)
        if version in ("cgroup", _V2):
            root, mount_point = mount_fields.split(" ")[3:5]
            yield _Mount(
                version, _plain(root), Path(_plain(mount_point)), frozenset(options.split(","))
            )


def _plain(path: str) -> str:
    r"""A path as it is, where the kernel writes white space in numbers.

    >>> _plain(r"/my\040groups")
    '/my groups'
    """
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), path)


def _name_for(folder: Path) -> str:
    """Return the name of a folder's group.

    Other containers may have another folder, and other processes, by the same path.
    """
    folder = folder.resolve()
    parts = [os.fsencode(folder)]
    with contextlib.suppress(OSError):  # it is not there, or the kernel has no such namespaces
        for path in (folder, Path("/proc/self/ns/pid")):
            found = path.stat()
            parts.append(f"{found.st_dev}:{found.st_ino}".encode())
    return "brim-" + hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def _is_ours(path: Path) -> bool:
    """Return whether this account made a group.

    A group of another account says nothing of our jobs.
    """
    try:
        return path.stat().st_uid == os.geteuid()
    except OSError:
        return False
