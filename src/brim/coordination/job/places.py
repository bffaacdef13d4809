"""Places of a job's workers on its agents: so many on each, or wherever the fewest are.

Pure.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from brim.coordination.job.membership import Worker, WorkerState


@dataclass(slots=True)
class Places:
    """The places of one job's workers.

    Servers need no device: they have no places, and are beside workers.

    Args:
        wanted: workers by agent; empty where it does not matter on which they are.
        gone: agents that were lost and have not come back.
        room: workers that an agent takes at most; one that is not named takes as many as are wanted.
    """

    wanted: dict[str, int] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    room: dict[str, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.wanted)

    @property
    def waited_for(self) -> int:
        """Workers that are to come on agents that were not lost."""
        return sum(count for agent, count in self.wanted.items() if agent not in self.gone)

    def seated(
        self, workers: Iterable[Worker], target: int, *, seated_before: Sequence[Worker] = ()
    ) -> list[Worker]:
        """Return those of `workers` that have room, the first of each agent first.

        Args:
            target: workers wanted in all.
            seated_before: who has a place already.
        """
        seats = Counter(worker.agent for worker in seated_before)
        found: list[Worker] = []
        for worker in workers:
            room = not self.wanted or seats[worker.agent] < self.wanted.get(worker.agent, 0)
            if room and len(seated_before) + len(found) < target:
                seats[worker.agent] += 1
                found.append(worker)
        return found

    def attended(
        self, servers: Iterable[Worker], count: int, *, attending_before: Sequence[Worker] = ()
    ) -> list[Worker]:
        """Return those of `servers` that are to stay or come, the first first.

        Args:
            count: servers in all.
            attending_before: who is one already.
        """
        placed = [server for server in servers if not self.wanted or self.wanted.get(server.agent)]
        return placed[: max(0, count - len(attending_before))]

    def vacancies(
        self, workers: Iterable[Worker], agents: Sequence[str], missing: int
    ) -> list[str]:
        """The agent of each worker that is to be started.

        Args:
            workers: that are there, and compute; a leaver has its place until it is gone.
            agents: that may have more.
            missing: workers in all, where it does not matter on which they are.
        """
        count = Counter(worker.agent for worker in workers)
        if self.wanted:
            return [
                agent
                for agent in agents
                for _ in range(self._seats(agent, self.wanted.get(agent, 0)) - count[agent])
            ]
        return _spread(count, agents, missing, room=self.room)

    def takes_workers(self, agent: str) -> bool:
        """Return whether an agent has room for any worker."""
        return self._seats(agent, 1) > 0

    def _seats(self, agent: str, count: int) -> int:
        return min(count, self.room.get(agent, count))

    def to_attend(
        self, servers: Iterable[Worker], agents: Sequence[str], missing: int
    ) -> list[str]:
        """The agent of each server that is to be started: where the fewest are, beside workers.

        None where none may be.

        Args:
            servers: that are there.
            agents: that may have more.
            missing: servers in all.
        """
        attended = [
            agent
            for agent in agents
            if self.takes_workers(agent) and (not self.wanted or self.wanted.get(agent))
        ]
        return _spread(
            Counter(server.agent for server in servers), attended, missing if attended else 0
        )

    def refill(self, agents: Sequence[str]) -> int:
        """Give back one place that a leaver emptied, where none of these agents has another.

        Returns:
            How many places that are: 0 or 1.
        """
        empty = [agent for agent in agents if self.wanted.get(agent) == 0]
        if not empty or any(self.wanted.get(agent) for agent in agents):
            return 0
        self.wanted[empty[0]] = 1
        return 1

    def give_up(self, agent: str, workers: Iterable[Worker]) -> int:
        """An agent gets no more workers, and its places are removed.

        Other devices are other jobs'.

        Returns:
            The workers that are wanted in all from now on; at least 1.
        """
        workers_here = [
            worker
            for worker in workers
            if worker.agent == agent and worker.state is not WorkerState.LEAVING
        ]
        self.wanted[agent] = len(workers_here)
        return max(1, sum(self.wanted.values()))


def _spread(
    count: Counter[str],
    agents: Sequence[str],
    missing: int,
    *,
    room: Mapping[str, int] = MappingProxyType({}),
) -> list[str]:
    """Choose an agent for each of so many more, always one with the fewest, as long as there is room."""
    found: list[str] = []
    for _ in range(missing):
        free = [agent for agent in agents if count[agent] < room.get(agent, math.inf)]
        if not free:
            break
        found.append(min(free, key=lambda agent: (count[agent], agents.index(agent))))
        count[found[-1]] += 1
    return found
