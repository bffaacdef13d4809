"""The seam between a live cluster and the processes of its jobs: to look at them, and ask them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from brim.coordination.cluster.reconcile import ByNode
from brim.coordination.cluster.sightings import NodeSeen, Seen
from brim.domain.job import JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A job, and the start of its processes that is meant.

    Args:
        job: its id, after which its run directory is named.
        user: the account that its processes are of, and its directory; empty: the scheduler's.
        home: the node of the agent that keeps its master.
        number: of this start, from 1.
        step: that it had committed when it was last seen.
        computes: workers may be at its home, too.
        anywhere, processes: see `Submission`.
    """

    job: str
    spec: JobSpec
    user: str = ""
    home: str = ""
    number: int = 0
    step: int = 0
    computes: bool = True
    anywhere: bool = False
    processes: int = 1


class Processes(Protocol):
    """Starts, asks and ends the processes of jobs.

    Its orders may come to nothing: it is looked at again.
    """

    def nodes(self, names: Iterable[str], running: Mapping[str, int]) -> Mapping[str, NodeSeen]:
        """Keep these nodes of the scheduler's host up, and no others; returns at once.

        Args:
            running: the number of its present start by job that has processes. What nodes of other
                hosts have of any other start is ended.

        Returns:
            These nodes, and those that have joined from other hosts.
        """
        ...

    def look(self, launch: Launch) -> Seen:
        """Look at the processes of a job.

        Raises EnvironmentFault or OSError where that is unknown now.
        """
        ...

    async def start(self, launch: Launch, workers: ByNode) -> None:
        """Start processes, with the master at the job's home.

        Raises EnvironmentFault where it cannot; returns before they are up.
        """
        ...

    async def resize(self, launch: Launch, workers: ByNode) -> None:
        """Ask for so many, and for an agent where there is none.

        Raises EnvironmentFault where they do not say yes.
        """
        ...

    async def leave(self, launch: Launch, node: str) -> None:
        """End the agent of a job on a node that is not its home."""
        ...

    async def lose(self, launch: Launch, node: str) -> None:
        """Have a job go on without its agent on a node that is lost, with its workers.

        Raises EnvironmentFault where its master does not say yes.
        """
        ...

    async def suspend(self, launch: Launch) -> None:
        """Raises EnvironmentFault where they do not say yes."""
        ...

    async def force(self, launch: Launch, workers: ByNode) -> None:
        """End the processes beyond so many workers, at once; with none, all processes."""
        ...
