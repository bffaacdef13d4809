"""Lists the agents of a job and their workers, in the orders that decisions follow. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from brim.coordination.job.membership import Worker, WorkerState
from brim.coordination.job.places import Places


def at_work(workers: Iterable[Worker]) -> list[Worker]:
    """Return the workers that compute, or are to."""
    return [worker for worker in workers if not worker.serves]


def serving(workers: Iterable[Worker]) -> list[Worker]:
    """Return the workers that are servers, or are to be."""
    return [worker for worker in workers if worker.serves]


class Newcomers(NamedTuple):
    """The workers that may come into a round, by the role that they are to have."""

    workers: list[Worker]
    servers: list[Worker]

    @property
    def all(self) -> list[Worker]:
        return [*self.workers, *self.servers]


@dataclass(slots=True, kw_only=True)
class Roster:
    """The workers of one job, by name, and its agents in the order in which they joined.

    Args:
        places: on which agents workers are to be.
        departing: agents whose hosts are to be free: they get no workers any more.
        machines: of the agents that said on which they are.
    """

    places: Places = field(default_factory=Places)
    workers: dict[str, Worker] = field(default_factory=dict)
    agents: list[str] = field(default_factory=list)
    hired: int = 0
    departing: set[str] = field(default_factory=set)
    machines: dict[str, str] = field(default_factory=dict)

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
        """Return the workers that could come into a round, the oldest first."""
        ready = (worker for worker in self.workers.values() if worker.state is WorkerState.READY)
        return sorted(ready, key=lambda worker: worker.number)

    @property
    def alive(self) -> list[Worker]:
        """All but those that are on their way out."""
        return [
            worker for worker in self.workers.values() if worker.state is not WorkerState.LEAVING
        ]

    def ranked(self, workers: Iterable[Worker]) -> list[Worker]:
        """Return workers in rank order.

        Those of an agent are neighbours, its workers first, and so are the agents of a machine.
        Agents without workers are last.
        """
        workers_given = list(workers)
        order = {agent: index for index, agent in enumerate(self.agents)}
        machines = {agent: self.machines.get(agent, agent) for agent in self.agents}
        first = {machine: order[agent] for agent, machine in reversed(machines.items())}
        computes = {worker.agent for worker in at_work(workers_given)}
        return sorted(
            workers_given,
            key=lambda worker: (
                worker.agent not in computes,
                first[machines[worker.agent]],
                order[worker.agent],
                worker.serves,
                worker.number,
            ),
        )

    def newcomers(self, target: int, servers: int) -> Newcomers:
        """Return the workers that are ready and have room.

        Each comes in for the purpose of its start. Where those do not suffice a spare one does,
        unless workers have places: a place is a device.

        Args:
            target: workers wanted in all.
            servers: wanted in all.
        """
        there_at_work, there_serving, ready = (
            at_work(self.staying),
            serving(self.staying),
            self.ready,
        )
        workers = self.places.seated(at_work(ready), target, seated_before=there_at_work)
        chosen = self.places.attended(serving(ready), servers, attending_before=there_serving)
        if self.places:
            return Newcomers(workers, chosen)
        spare = [worker for worker in ready if worker not in workers and worker not in chosen]
        workers += self.places.seated(spare, target, seated_before=[*there_at_work, *workers])
        spare = [worker for worker in spare if worker not in workers]
        chosen += self.places.attended(spare, servers, attending_before=[*there_serving, *chosen])
        return Newcomers(workers, chosen)

    def awaits_others(self, newcomers: Newcomers, target: int, servers: int) -> bool:
        """Return whether workers are being started that would come into a round beside these.

        Args:
            newcomers: that are ready.
            target, servers: see `newcomers`.
        """
        starting = [
            worker for worker in self.workers.values() if worker.state is WorkerState.STARTING
        ]
        computing = [*at_work(self.staying), *newcomers.workers]
        attending = [*serving(self.staying), *newcomers.servers]
        workers = self.places.seated(at_work(starting), target, seated_before=computing)
        attendants = self.places.attended(serving(starting), servers, attending_before=attending)
        return bool(workers or attendants)

    def call_back(self, target: int, servers: int) -> None:
        """Keep members that were to leave but are still in the round and have a place after all.

        Start no others.
        """
        leaving = [worker for worker in self.members if worker.state is WorkerState.LEAVING]
        willing = [worker for worker in leaving if not worker.wants_out]
        alive = self.alive
        seated = self.places.seated(at_work(willing), target, seated_before=at_work(alive))
        seated += self.places.attended(serving(willing), servers, attending_before=serving(alive))
        for worker in seated:
            worker.state = WorkerState.ACTIVE

    def hire(self, agent: str, *, serves: bool = False) -> Worker:
        """A new worker, or server, which is about to be started."""
        self.hired += 1
        worker = Worker(id=f"w{self.hired}", number=self.hired, agent=agent, serves=serves)
        self.workers[worker.id] = worker
        return worker

    def workers_of(self, agent: str) -> list[Worker]:
        """Return the workers on an agent."""
        return [worker for worker in self.workers.values() if worker.agent == agent]

    def join(self, agent: str, room: int | None = None, machine: str = "") -> None:
        self.agents.append(agent)
        if machine:
            self.machines[agent] = machine
        self.places.gone.discard(agent)
        if room is not None:
            self.places.room[agent] = room

    def lose(self, agent: str) -> bool:
        """An agent is gone, and all its workers; whether a member was."""
        self.agents.remove(agent)
        self.departing.discard(agent)
        self.machines.pop(agent, None)
        self.places.gone.add(agent)
        return self.clear(agent)

    def clear(self, agent: str) -> bool:
        """All workers of an agent are gone; whether a member was."""
        lost_workers = self.workers_of(agent)
        for worker in lost_workers:
            del self.workers[worker.id]
        return any(worker.in_round for worker in lost_workers)
