"""A census of a cluster's processes that are alive at one moment.

A process is known by the file that it prints to.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from brim.host.process import name_of
from brim.host.procfs import read_proc
from brim_lab.driver import MarkedProcesses

# What a process prints goes to a file of its own; a fork has its parent's name and arguments.
_ROLE = re.compile(
    r"/(?:(scheduler)\.log|nodes/([^/]+)/node\.log|services/([^/]+)/front\.log"
    r"|jobs/([^/]+)/logs/(?:(agent|master)\.log)?.*)$"
)
_WORKER = re.compile(r"brim-w\d+")
_REPLICA = b"BRIM_REPLICA="
_TO_END = 2.0  # seconds that the kernel has for the end of a replica whose worker was killed


@dataclass(slots=True)
class Census:
    """Process ids at one moment.

    Args:
        schedulers: of the cluster.
        nodes: agents of its nodes, by node.
        agents, masters, workers: by job.
        replicas, fronts: of services, by job.
        orphans: replicas whose worker is gone, which end with it.
        where: the node of each agent and worker of a job whose node's agent is alive.
    """

    schedulers: list[int] = field(default_factory=list)
    nodes: dict[str, list[int]] = field(default_factory=dict)
    agents: dict[str, list[int]] = field(default_factory=dict)
    masters: dict[str, list[int]] = field(default_factory=dict)
    workers: dict[str, list[int]] = field(default_factory=dict)
    replicas: dict[str, list[int]] = field(default_factory=dict)
    fronts: dict[str, list[int]] = field(default_factory=dict)
    orphans: list[int] = field(default_factory=list)
    where: dict[int, str] = field(default_factory=dict)


def take_census(mark: MarkedProcesses, state: Path) -> Census:
    """Count the marked processes.

    Args:
        state: the scheduler's directory.
    """
    census = Census()
    for pid in mark.alive():
        found = _ROLE.match(_output(pid).removeprefix(str(state)))
        if found is None:
            continue
        scheduler, node, front, job, of_job = found.groups()
        if scheduler:
            census.schedulers.append(pid)
        elif node:
            census.nodes.setdefault(node, []).append(pid)
        elif front:
            census.fronts.setdefault(front, []).append(pid)
        elif _WORKER.fullmatch(name_of(pid)):
            census.workers.setdefault(job, []).append(pid)
        elif of_job:
            (census.agents if of_job == "agent" else census.masters).setdefault(job, []).append(pid)
        elif _is_replica(pid):
            census.replicas.setdefault(job, []).append(pid)
    for job, pids in census.replicas.items():
        workers = census.workers.get(job, [])
        census.orphans += [pid for pid in pids if _parent(pid) not in workers]
    of_jobs = (*census.agents.values(), *census.masters.values(), *census.fronts.values())
    for pids in (census.schedulers, *census.nodes.values(), *of_jobs):
        # Who has only just been forked still prints where its parent does.
        pids[:] = [pid for pid in pids if _parent(pid) not in pids]
    names = {pid: node for node, pids in census.nodes.items() for pid in pids}
    for pids in (*census.agents.values(), *census.workers.values()):
        census.where |= {pid: node for pid in pids if (node := _node_of(pid, names))}
    return census


def _node_of(pid: int, names: dict[int, str]) -> str:
    """The node that started a process; empty where that is gone, and so the process about to go."""
    while pid and pid not in names:
        pid = _parent(pid)
    return names.get(pid, "")


def _output(pid: int) -> str:
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{pid}/fd/1")
    return ""


def _is_replica(pid: int) -> bool:
    """Return whether a process was started as a replica of a service."""
    with contextlib.suppress(OSError):
        return any(
            variable.startswith(_REPLICA)
            for variable in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        )
    return False


def _parent(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(read_proc(f"/proc/{pid}/stat").rpartition(")")[2].split()[1])
    return 0


class Recount:
    """Counts of unique things, such as schedulers or agents of a node.

    A process that is just about to go counts once.

    Args:
        devices: by node.
    """

    def __init__(self, devices: Mapping[str, int]) -> None:
        self._devices = devices
        self._suspected: set[str] = set()
        self._orphaned: dict[int, float] = {}  # since when, by process
        self.broken: list[str] = []

    def add(self, census: Census, *, now: float) -> None:
        """Compare a census with the one before.

        A surplus that both have is added to `broken`, once; so is a replica whose worker has been
        gone for seconds.

        Args:
            now: seconds.
        """
        found = set()
        # Not masters: one that has given its journal away may still be about to end.
        counts = Counter({"schedulers": len(census.schedulers)})
        counts.update({f"agents of {node}": len(pids) for node, pids in census.nodes.items()})
        for job, pids in census.agents.items():
            counts.update(
                f"agents of {job} on {census.where[pid]}" for pid in pids if pid in census.where
            )
        counts.update({f"fronts of {job}": len(pids) for job, pids in census.fronts.items()})
        found |= {f"{count} {name} at once" for name, count in counts.items() if count > 1}
        self._orphaned = {pid: self._orphaned.get(pid, now) for pid in census.orphans}
        found |= {
            f"replica {pid} has outlived its worker"
            for pid, begin in self._orphaned.items()
            if now - begin > _TO_END
        }
        workers = [pid for pids in census.workers.values() for pid in pids]
        total = sum(self._devices.values())
        if len(workers) > total:
            found.add(f"{len(workers)} workers at once on {total} devices")
        for node, count in Counter(census.where.get(pid, "") for pid in workers).items():
            if node and count > self._devices.get(node, 0):
                found.add(
                    f"{count} workers at once on {self._devices.get(node, 0)} devices of {node}"
                )
        self.broken += sorted((found & self._suspected) - set(self.broken))
        self._suspected = found
