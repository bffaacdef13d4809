"""Two clusters that know nothing of each other behind one Protocol: the simulated one, and that of
processes.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from brim.backends.live import LiveBackend
from brim.backends.processes import Launch
from brim.coordination.cluster.reconcile import ByNode
from brim.coordination.cluster.scheduled_jobs import Submitted, Wished
from brim.coordination.cluster.sightings import NodeSeen, Seen
from brim.domain.cluster import Cluster, ClusterSpec
from brim.domain.lifecycle import Happening
from brim.domain.measuring import Measured
from brim.domain.resizing import BELIEVED
from brim.domain.schedule import Decision, Judgement, Snapshot
from brim.domain.scheduled_job import ScheduledJob
from brim.domain.workload import Job
from brim.errors import EnvironmentFault
from brim.host.clock import VirtualClock
from brim.interfaces import Backend
from brim.simulator.engine import Settings, _World
from brim.storage.book import Book
from brim.storage.database import Database
from submissions import submission
from workloads import CONCAVE

T = TypeVar("T")
WORK = 1e6  # steps of a job: it does not end here


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


class World(Protocol):
    """A cluster and its backend.

    Attributes:
        origin: the time at which its jobs were submitted.
    """

    @property
    def backend(self) -> Backend: ...

    @property
    def origin(self) -> float: ...

    def settle(self) -> None:
        """Let everything happen that was asked."""
        ...

    def go_on(self, seconds: float) -> None:
        """Let time pass."""
        ...

    def judgement(self, job: str) -> Judgement: ...


@dataclass
class FakeJob:
    """Processes that obey at the next `settle`, or never."""

    alive: bool = False
    held: dict[str, int] = field(default_factory=dict)
    wanted: dict[str, int] = field(default_factory=dict)
    agents: set[str] = field(default_factory=set)
    seen: Seen = field(default_factory=lambda: Seen(alive=False))
    starts: int = 0
    asked: list[str] = field(default_factory=list)
    deaf: bool = False

    @property
    def workers(self) -> int:
        return sum(self.held.values())

    @workers.setter
    def workers(self, count: int) -> None:
        """For a job on one node."""
        self.held = {next(iter(self.wanted)): count} if count else {}


class FakeProcesses:
    """Processes of jobs, in memory; a test may change them while a scheduler's thread looks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.jobs: dict[str, FakeJob] = {}
        self.node = NodeSeen(up=True)
        self.others: dict[str, NodeSeen] = {}

    def nodes(self, names: Iterable[str], running: Mapping[str, int]) -> dict[str, NodeSeen]:
        return {name: self.others.get(name, self.node) for name in names}

    def of(self, job: str) -> FakeJob:
        return self.jobs.setdefault(job, FakeJob())

    def look(self, launch: Launch) -> Seen:
        job = self.of(launch.job)
        with self._lock:
            fields_given = {
                name: getattr(job.seen, name) for name in Seen.__slots__ if name not in _OURS
            }
            own_fields: dict[str, Any] = (
                {"workers": dict(job.held), "agents": frozenset(job.agents)} if job.alive else {}
            )
            return Seen(alive=job.alive, **own_fields, **fields_given)

    async def start(self, launch: Launch, workers: ByNode) -> None:
        job = self.of(launch.job)
        assert not job.alive, f"{launch.job} was started twice"
        job.alive, job.wanted, job.starts = True, dict(workers), job.starts + 1
        job.agents = set(workers)
        assert launch.home in workers
        job.seen = Seen(
            alive=True, step=job.seen.step, steps=job.seen.steps, measured=job.seen.measured
        )
        job.asked.append(f"start {_text(workers)}")

    async def resize(self, launch: Launch, workers: ByNode) -> None:
        job = self.of(launch.job)
        job.asked.append(f"resize {_text(workers)}")
        if not job.alive or job.deaf:
            raise EnvironmentFault("no answer")
        job.wanted = dict(workers)
        job.agents |= set(workers)

    async def leave(self, launch: Launch, node: str) -> None:
        job = self.of(launch.job)
        job.asked.append(f"leave {node}")
        job.agents.discard(node)

    async def lose(self, launch: Launch, node: str) -> None:
        self.of(launch.job).asked.append(f"lose {node}")

    async def suspend(self, launch: Launch) -> None:
        job = self.of(launch.job)
        job.asked.append("suspend")
        if not job.alive or job.deaf:
            raise EnvironmentFault("no answer")
        job.wanted = {}

    async def force(self, launch: Launch, workers: ByNode) -> None:
        job = self.of(launch.job)
        job.asked.append(f"force {_text(workers)}")
        job.held = {node: min(count, workers.get(node, 0)) for node, count in job.held.items()}
        job.alive = bool(workers)

    def settle(self) -> None:
        for job in list(self.jobs.values()):
            with self._lock:
                if job.alive:
                    job.held = dict(job.wanted)
                    job.alive = bool(job.wanted)
                    if not job.alive:
                        job.seen = _with(job.seen, outcome="suspended")

    def end(self, job: str, outcome: str, **fields: Any) -> None:
        """The processes of a job end."""
        training = self.of(job)
        with self._lock:
            training.alive, training.held = False, {}
            training.seen = _with(training.seen, outcome=outcome, **fields)

    def say(self, job: str, **fields: Any) -> None:
        """The processes of a job tell of themselves."""
        training = self.of(job)
        with self._lock:
            training.seen = _with(training.seen, **fields)


_OURS = ("alive", "workers", "agents")


def _text(workers: ByNode) -> str:
    """As tests write it: a number where there is one node alone."""
    if set(workers) <= {"node0"}:
        return str(sum(workers.values()))
    return ", ".join(f"{count} on {node}" for node, count in sorted(workers.items()))


def _with(seen: Seen, **fields: Any) -> Seen:
    return Seen(**{name: getattr(seen, name) for name in Seen.__slots__} | fields)


def measured(rates: dict[int, float], steps: int = 20) -> Measured:
    """As many steps at each number of workers, at this rate."""
    return Measured({n: (float(steps), steps / rate) for n, rate in rates.items()})


class SimulatedWorld:
    """Jobs that have all arrived, on a virtual clock.

    Args:
        deadlines: of the first ones, in seconds from their arrival; the others have none.
    """

    origin = 0.0

    def __init__(self, cluster: Cluster, jobs: int, deadlines: Sequence[float] = ()) -> None:
        due = [*deadlines, *[None] * (jobs - len(deadlines))]
        jobs_made = [
            Job(id=f"job-{k + 1}", submitted=0.0, work=WORK, curve=CONCAVE, deadline=due[k])
            for k in range(jobs)
        ]
        self.world = _World(jobs_made, cluster, Settings(overheads=BELIEVED))
        self.backend: Backend = self.world

    def settle(self) -> None:
        pass  # what is decided is so

    def go_on(self, seconds: float) -> None:
        assert run(self.backend.wait(self.world.now + seconds))

    def judgement(self, job: str) -> Judgement:
        return self.world.jobs[job].judgement


class LiveWorld:
    """The same jobs as processes, which are fakes."""

    origin = 1e9

    def __init__(
        self,
        cluster: Cluster,
        jobs: int,
        folder: Path,
        deadlines: Sequence[float] = (),
        **spec: Any,
    ) -> None:
        self.clock = VirtualClock(start=self.origin)
        self.folder = folder
        self.processes = FakeProcesses()
        self.spec = ClusterSpec(cluster=cluster, **spec)
        self.book = Book(Database(folder / "scheduler.db"))
        # A model that was profiled; another fingerprint is a new one.
        self.book.learn(submission(), measured({1: 1.0, 2: 1.9, 4: 3.4, 8: 5.6}), None)
        self.backend: LiveBackend = self.revive()
        if deadlines:  # which can be judged, for how many steps there are is known as well
            self.book.learn(submission(), Measured(), round(WORK))
        for k in range(jobs):
            self.submit(deadline=self.origin + deadlines[k] if k < len(deadlines) else None)

    def submit(self, workers: str = "1:8", **fields: Any) -> ScheduledJob:
        request = submission(workers, **fields)
        job = self.book.new_job(request, name="job", now=self.clock.wall())
        self.backend.handle(Submitted(job))
        return job

    def wish(self, job: str, wish: Happening) -> None:
        self.backend.handle(Wished(job, wish))

    def revive(self) -> LiveBackend:
        """Another life of the scheduler, which knows only the disk."""
        self.book = Book(Database(self.folder / "scheduler.db"))
        self.backend = LiveBackend(self.book, self.processes, self.spec, clock=self.clock)
        return self.backend

    def settle(self) -> None:
        self.processes.settle()
        run(self.backend.look())
        self.processes.settle()
        run(self.backend.look())

    def go_on(self, seconds: float) -> None:
        for _ in range(round(seconds)):
            self.clock.advance(1.0)
            run(self.backend.look())

    def judgement(self, job: str) -> Judgement:
        return self.backend.jobs.jobs[job].judgement

    def cycle(self, decide: Any) -> tuple[Snapshot, Decision]:
        snapshot = run(self.backend.observe())
        decision = decide(snapshot)
        run(self.backend.apply(decision))
        return snapshot, decision
