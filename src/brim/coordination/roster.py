"""Lists the agents of a job and their workers, in the orders that decisions follow. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from brim.coordination.membership import Worker, WorkerState
from brim.coordination.places import Places

__all__ = ["Roster"]


@dataclass(slots=True, kw_only=True)
class Roster:
    """The workers of one job, by name, and its agents in the order in which they joined.

    Args:
        places: on which agents workers are to be.
    """

    places: Places = field(default_factory=Places)
    workers: dict[str, Worker] = field(default_factory=dict)
    agents: list[str] = field(default_factory=list)
    hired: int = 0

    @property
    def members(self) -> list[Worker]:
        """The members of the current round, in rank order."""
        return self.ranked(worker for worker in self.workers.values() if worker.in_round)

    @property
    def staying(self) -> list[Worker]:
        """The members that are not on their way out."""
        return [worker for worker in self.members if worker.state is WorkerState.ACTIVE]

    @property
    def ready(self) -> list[Worker]:
        """Those who could come into a round, the oldest first."""
        ready = (worker for worker in self.workers.values() if worker.state is WorkerState.READY)
        return sorted(ready, key=lambda worker: worker.number)

    @property
    def alive(self) -> list[Worker]:
        """All but those that are on their way out."""
        return [worker for worker in self.workers.values() if worker.state is not WorkerState.LEAVING]

    def ranked(self, workers: Iterable[Worker]) -> list[Worker]:
        """These in rank order: those of an agent are neighbours."""
        order = {agent: index for index, agent in enumerate(self.agents)}
        return sorted(workers, key=lambda worker: (order[worker.agent], worker.number))

    def newcomers(self, target: int) -> list[Worker]:
        """Those who are ready and for whom there is room, where `target` workers are wanted in all."""
        return self.places.seated(self.ready, target, beside=self.staying)

    def call_back(self, target: int) -> None:
        """Keep workers that were to leave but are still in the round and have a place after all; start no others."""
        leaving = [worker for worker in self.members if worker.state is WorkerState.LEAVING]
        willing = [worker for worker in leaving if not worker.wants_out]
        for worker in self.places.seated(willing, target, beside=self.alive):
            worker.state = WorkerState.ACTIVE

    def hire(self, agent: str) -> Worker:
        """A new worker, which is about to be started."""
        self.hired += 1
        worker = Worker(id=f"w{self.hired}", number=self.hired, agent=agent)
        self.workers[worker.id] = worker
        return worker

    def join(self, agent: str) -> None:
        self.agents.append(agent)
        self.places.gone.discard(agent)

    def lose(self, agent: str) -> bool:
        """An agent is gone, and all who were on it; whether a member was."""
        self.agents.remove(agent)
        self.places.gone.add(agent)
        return self.clear(agent)

    def clear(self, agent: str) -> bool:
        """All who were on an agent are gone; whether a member was."""
        gone = [worker for worker in self.workers.values() if worker.agent == agent]
        for worker in gone:
            del self.workers[worker.id]
        return any(worker.in_round for worker in gone)
