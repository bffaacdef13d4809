"""Who of a cluster is alive, by where its processes print to: what a count of them at one moment shows."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from brim.chaos.processes import Marked

__all__ = ["Census", "Recount", "take_census"]

# What a process prints goes to a file of its own; a fork has its parent's name and arguments.
_ROLE = re.compile(
    r"/(?:(scheduler)\.log|nodes/[^/]+/(node)\.log|jobs/([^/]+)/logs/(?:(agent|master)\.log)?.*)$"
)
_WORKER = re.compile(r"brim-w\d+")


@dataclass(slots=True)
class Census:
    """Process ids at one moment.

    Args:
        schedulers, nodes: of the cluster, and the agents of its nodes.
        agents, masters, workers: by job.
    """

    schedulers: list[int] = field(default_factory=list)
    nodes: list[int] = field(default_factory=list)
    agents: dict[str, list[int]] = field(default_factory=dict)
    masters: dict[str, list[int]] = field(default_factory=dict)
    workers: dict[str, list[int]] = field(default_factory=dict)


def take_census(marked: Marked, state: Path) -> Census:
    """Count the marked processes.

    Args:
        state: the scheduler's directory.
    """
    census = Census()
    for pid in marked.alive():
        found = _ROLE.match(_output(pid).removeprefix(str(state)))
        if found is None:
            continue
        scheduler, node, job, of_job = found.groups()
        if scheduler or node:
            (census.schedulers if scheduler else census.nodes).append(pid)
        elif _WORKER.fullmatch(_name(pid)):
            census.workers.setdefault(job, []).append(pid)
        elif of_job:
            (census.agents if of_job == "agent" else census.masters).setdefault(job, []).append(pid)
    for pids in (census.schedulers, census.nodes, *census.agents.values(), *census.masters.values()):
        # Who has only just been forked still prints where its parent does.
        pids[:] = [pid for pid in pids if _parent(pid) not in pids]
    return census


def _output(pid: int) -> str:
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{pid}/fd/1")
    return ""


def _parent(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def _name(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


class Recount:
    """What no moment may show: one too many of something. A process that is just about to go counts once."""

    def __init__(self, devices: int) -> None:
        self._devices = devices
        self._suspected: set[str] = set()
        self.broken: list[str] = []

    def add(self, census: Census) -> None:
        """Compare a census with the one before: who was there in both, one too many, is told once."""
        found = set()
        # Not masters: one that has given its journal away may still be about to end.
        agents = {f"agents of {job}": pids for job, pids in census.agents.items()}
        for name, pids in {
            "schedulers": census.schedulers,
            "agents of the node": census.nodes,
            **agents,
        }.items():
            if len(pids) > 1:
                found.add(f"{len(pids)} {name} at once")
        workers = sum(map(len, census.workers.values()))
        if workers > self._devices:
            found.add(f"{workers} workers at once on {self._devices} devices")
        self.broken += sorted((found & self._suspected) - set(self.broken))
        self._suspected = found
