"""What a live cluster needs of the processes of its jobs: to look at them, and to ask them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from brim.coordination.reconcile import ByNode
from brim.domain.measuring import Measured
from brim.storage.book import JobRecord


class Reached(NamedTuple):
    """The first step on a number of workers, and when it was made."""

    workers: int
    at: float
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What is so of one job's processes.

    Args:
        alive: it has some.
        workers: worker processes among them, by node.
        agents: the nodes on which it has agents, or is about to have.
        step, steps: committed, and planned in all (None: it has not said so yet).
        saved: when its last checkpoint was written.
        last_step: when it was made.
        out_of_memory: the first workers that were lost for it, in words, since the job began.
        reached: the first step on the workers that it has.
        outcome: `done`, `failed`, something else that says that it can go on, or empty.
        who: must act, where it failed.
    """

    alive: bool
    workers: Mapping[str, int] = field(default_factory=dict)
    agents: frozenset[str] = frozenset()
    step: int = 0
    steps: int | None = None
    saved: float = 0.0
    first_step: float | None = None
    last_step: float | None = None
    out_of_memory: tuple[str, ...] = ()
    reached: Reached | None = None
    outcome: str = ""
    who: str = ""
    problem: str = ""
    summary: dict[str, Any] = field(default_factory=dict)
    measured: Measured = field(default_factory=Measured)


class NodeSeen(NamedTuple):
    """What is so of one node.

    Attributes:
        up: jobs can be started on it.
        gone: it was up, or was started in vain, and is not up now: what ran on it has ended.
        lost: it is gone, and nobody should count on it for now.
        pid: of its agent; 0 where it is not up.
        again: seconds until its agent is started again.
        problem: why it is not up.
    """

    up: bool
    gone: bool = False
    lost: bool = False
    pid: int = 0
    again: float = 0.0
    problem: str = ""


class Processes(Protocol):
    """Starts, asks and ends the processes of jobs.

    What it is asked may come to nothing: it is looked at again.
    """

    def nodes(self, names: Iterable[str]) -> Mapping[str, NodeSeen]:
        """Keep these nodes up, and no others; returns at once."""
        ...

    def look(self, record: JobRecord) -> Seen: ...

    async def start(self, record: JobRecord, workers: ByNode) -> None:
        """With the master at the record's home.

        Raises EnvironmentFault where it cannot; returns before they are up.
        """
        ...

    async def resize(self, record: JobRecord, workers: ByNode) -> None:
        """Ask for so many, and for an agent where there is none.

        Raises EnvironmentFault where they do not say yes.
        """
        ...

    async def leave(self, record: JobRecord, node: str) -> None:
        """End the agent of a job on a node that is not its home."""
        ...

    async def suspend(self, record: JobRecord) -> None:
        """Raises EnvironmentFault where they do not say yes."""
        ...

    async def force(self, record: JobRecord, workers: ByNode) -> None:
        """End what is beyond so many workers, at once; with none, all processes."""
        ...
