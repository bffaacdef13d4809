"""Who of a cluster is alive, by what its processes are called: what a count of them at one moment shows."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, field
from pathlib import Path

from brim.chaos.processes import Marked

__all__ = ["Census", "Recount", "take_census"]

_ROLE = re.compile(r"-m brim\.(scheduler|agent|master)\b")
_WORKER = re.compile(r"brim-w\d+")


@dataclass(slots=True)
class Census:
    """Process ids at one moment.

    Args:
        schedulers: of the cluster.
        agents, masters, workers: by job; a worker whose job is not known is of job "".
    """

    schedulers: list[int] = field(default_factory=list)
    agents: dict[str, list[int]] = field(default_factory=dict)
    masters: dict[str, list[int]] = field(default_factory=dict)
    workers: dict[str, list[int]] = field(default_factory=dict)


def take_census(marked: Marked, jobs: Path) -> Census:
    """Count the marked processes.

    Args:
        jobs: has the run directories; a process that has one on its command line is of that job.
    """
    census = Census()
    of_job = re.compile(re.escape(str(jobs)) + r"/(\S+)")
    for pid, command in marked.alive().items():
        role, found = _ROLE.search(command), of_job.search(command)
        job = found[1] if found else ""
        if _WORKER.fullmatch(_name(pid)):
            census.workers.setdefault(job, []).append(pid)
        elif role is not None and role[1] == "scheduler":
            census.schedulers.append(pid)
        elif role is not None:
            of_role = census.agents if role[1] == "agent" else census.masters
            of_role.setdefault(job, []).append(pid)
    for pids in (census.schedulers, *census.agents.values(), *census.masters.values()):
        # Who has been forked and has not become another program yet is still called as its parent is.
        pids[:] = [pid for pid in pids if _parent(pid) not in pids]
    return census


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
        found = {f"{len(census.schedulers)} schedulers at once"} if len(census.schedulers) > 1 else set()
        for name, of_jobs in (("agents", census.agents), ("masters", census.masters)):
            found |= {
                f"{len(pids)} {name} of {job} at once" for job, pids in of_jobs.items() if len(pids) > 1
            }
        workers = sum(map(len, census.workers.values()))
        if workers > self._devices:
            found.add(f"{workers} workers at once on {self._devices} devices")
        self.broken += sorted((found & self._suspected) - set(self.broken))
        self._suspected = found
