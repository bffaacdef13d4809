"""A live cluster on a virtual clock: its processes are fakes that train, as fast as they like and
not as believed.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from brim.backends.live import _POLL_INTERVAL, LiveBackend
from brim.backends.processes import Launch
from brim.coordination.cluster.reconcile import ByNode
from brim.coordination.cluster.scheduled_jobs import Foretold, Submitted
from brim.coordination.cluster.sightings import Reached
from brim.domain.cluster import Cluster, ClusterSpec
from brim.domain.measuring import Measured
from brim.domain.schedule import Decision, Snapshot
from brim.domain.scheduled_job import ScheduledJob
from brim.host.clock import VirtualClock
from brim.loop import run_cluster
from brim.scheduler.loop import Scheduler, decide
from brim.scheduler.replay import Replay, replay
from brim.simulator.engine import foresee
from brim.storage.book import Book
from brim.storage.database import Database
from conformance.worlds import FakeProcesses
from submissions import submission


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """The truth behind the estimates; times are seconds.

    Args:
        start, resize, end: their cost.
        jitter: standard deviation of a step's time, and of a job's speed, as a part.
    """

    start: float = 0.3
    resize: float = 0.15
    end: float = 0.18
    jitter: float = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A job of the stream: a model by its name, when it comes, and when it is due."""

    name: str
    model: str
    at: float
    deadline: float | None
    steps: int
    maximum: int = 8
    fingerprint: str = ""


@dataclass(slots=True)
class Training:
    """The next actions of one job's processes."""

    step_time: Callable[[int], float]
    factor: float
    steps: int
    workers: int = 0
    step: int = 0
    next: float = math.inf  # when its next step is done, or its processes have ended where all are
    last: float | None = None  # when the last one was, on this number of workers
    grown: float = math.inf  # when those it was asked for are warm


class TrainingProcesses(FakeProcesses):
    """Jobs that train: a step at a time, on the workers that they really have."""

    def __init__(self, clock: VirtualClock, truth: Truth, rng: random.Random) -> None:
        super().__init__()
        self.clock, self.truth, self._rng = clock, truth, rng
        self.trainings: dict[str, Training] = {}
        self.most = 0  # worker processes at once

    def add(self, job: str, *, steps: int, step_time: Callable[[int], float]) -> None:
        factor = math.exp(self._rng.gauss(0.0, self.truth.jitter))
        self.trainings[job] = Training(step_time, factor, steps)
        self.say(job, measured=Measured())

    def _noisy(self, seconds: float) -> float:
        return seconds * math.exp(self._rng.gauss(0.0, self.truth.jitter))

    async def start(self, launch: Launch, workers: ByNode) -> None:
        await super().start(launch, workers)
        training, fake = self.trainings[launch.job], self.of(launch.job)
        fake.workers = training.workers = sum(workers.values())
        training.last, training.grown = None, math.inf
        training.next = self.clock.now() + self._noisy(self.truth.start) + self._step(training)
        self.say(launch.job, steps=training.steps)

    async def resize(self, launch: Launch, workers: ByNode) -> None:
        await super().resize(launch, workers)
        training, count = self.trainings[launch.job], sum(workers.values())
        self.of(launch.job).workers = max(training.workers, count)
        warm = count > training.workers
        training.grown = self.clock.now() + (self._noisy(self.truth.resize) if warm else 0.0)

    def _step(self, training: Training) -> float:
        return self._noisy(training.step_time(training.workers) * training.factor)

    def train(self) -> None:
        """Everything that happened until now."""
        now = self.clock.now()
        for name, training in self.trainings.items():
            fake = self.of(name)
            while fake.alive and training.next <= now:
                self._go_on(name, training)
        self.most = max(self.most, sum(fake.workers for fake in self.jobs.values() if fake.alive))

    def _go_on(self, name: str, training: Training) -> None:
        """A step is done, or the processes have ended."""
        fake, next_step = self.of(name), training.next
        if training.step == training.steps or training.workers == 0:
            self.end(name, "done" if training.step == training.steps else "suspended", summary={})
            return
        training.step += 1
        seen = fake.seen
        if training.last is not None:
            seen.measured.add(training.workers, next_step - training.last)
        is_same_size = seen.reached is not None and seen.reached.workers == training.workers
        reached = (
            seen.reached if is_same_size else Reached(training.workers, next_step, training.step)
        )
        self.say(
            name,
            step=training.step,
            first_step=seen.first_step or next_step,
            last_step=next_step,
            reached=reached,
        )
        training.last = next_step
        demand = sum(fake.wanted.values())
        if demand == 0 or training.step == training.steps:
            training.workers = 0
            training.next = next_step + self._noisy(self.truth.end)
            return
        if demand != training.workers and training.grown <= next_step:
            training.workers = fake.workers = demand
            training.last = None
        training.next = next_step + self._step(training)


class VirtualBackend(LiveBackend):
    """Whose waits take no time: the clock is advanced from look to look."""

    clock: VirtualClock
    processes: TrainingProcesses
    submit: Callable[[float], float]

    async def _wait(self, deadline: float | None) -> bool:
        while True:
            now = self.clock.now()
            next_arrival = self.submit(now)
            await self.look()
            due = self._due(deadline)
            if self._news or now >= due:
                self._news = False
                return True
            if next_arrival == math.inf and not self.jobs.jobs:
                return False
            self.clock.advance(max(0.001, min(_POLL_INTERVAL, due - now, next_arrival - now)))
            self.processes.train()


# Seconds that a micro-batch of a model waits: a step on n workers takes as long as ceil(8 / n) of
# them, and a little.
MODELS: dict[str, Callable[[int], float]] = {
    name: partial(lambda wait, n: 1.05 * math.ceil(8 / n) * wait + 0.012, wait)
    for name, wait in (("small", 0.06), ("medium", 0.1), ("large", 0.16))
}


def arrivals(seed: int, *, jobs: int = 22, interval: float = 8.0) -> list[Arrival]:
    """Short jobs with tight and loose deadlines, that want about as much as 8 devices can do."""
    rng = random.Random(seed)
    found, arrival_time = [], 0.1
    for number in range(jobs):
        model = rng.choice(sorted(MODELS))
        steps = round(rng.uniform(24.0, 80.0) / MODELS[model](1))
        shortest = steps * MODELS[model](8)
        loose = rng.uniform(1.6, 3.0) if rng.random() < 0.55 else rng.uniform(4.0, 8.0)
        found.append(
            Arrival(
                name=f"{model}{number}",
                model=model,
                at=arrival_time,
                deadline=arrival_time + 2.5 + loose * shortest,
                steps=steps,
            )
        )
        arrival_time += rng.expovariate(1.0 / interval)
    return found


class Stream:
    """Jobs that arrive over time under a real scheduler, whose processes are fakes.

    Args:
        sizes_known: at how many workers each model was measured before.
        foretold: whether ends are foretold, behind each cycle.
    """

    def __init__(
        self,
        folder: Path,
        arrivals: list[Arrival],
        *,
        policy: str = "brim",
        seed: int = 0,
        truth: Truth | None = None,
        devices: int = 8,
        sizes_known: tuple[int, ...] = (1, 2, 4, 8),
        foretold: bool = False,
    ) -> None:
        truth = truth or Truth()
        folder.mkdir(parents=True, exist_ok=True)
        self.clock = VirtualClock(start=1e9)
        self.origin, self.arrivals = 1e9, list(arrivals)
        self.database = Database(folder / "scheduler.db")
        self.database._sql.execute("pragma synchronous = off")
        self.book = Book(self.database)
        for name, step_time in MODELS.items():
            rates = {n: (40.0, 40.0 * step_time(n)) for n in sizes_known}
            self.book.learn(submission(fingerprint=name, epochs=1), Measured(rates), 1)
        for kind, seconds in (("start", truth.start), ("resize", truth.resize), ("end", truth.end)):
            for _ in range(5):
                self.book.learn_cost(kind, seconds)
        self.processes = TrainingProcesses(self.clock, truth, random.Random(seed))
        spec = ClusterSpec(cluster=Cluster.parse(f"1x{devices}"), policy=policy)
        self.backend = VirtualBackend(self.book, self.processes, spec, clock=self.clock)
        self.backend.clock, self.backend.processes = self.clock, self.processes
        self.backend.submit = self._submit
        self.scheduler = Scheduler(
            self.book, self.database, self.backend, jobs_folder=folder, clock=self.clock
        )
        self.jobs: dict[str, ScheduledJob] = {}
        self._foretold = foretold

    def _submit(self, now: float) -> float:
        """Submit the jobs that have come; return when the next one comes."""
        while self.arrivals and self.origin + self.arrivals[0].at <= now:
            arrival = self.arrivals.pop(0)
            due = None if arrival.deadline is None else self.origin + arrival.deadline
            request = submission(
                f"1:{arrival.maximum}",
                deadline=due,
                fingerprint=arrival.fingerprint or arrival.model,
                epochs=arrival.steps,
            )
            record = self.book.new_job(request, name=arrival.name, now=now)
            self.backend.handle(Submitted(record))
            self.processes.add(record.id, steps=arrival.steps, step_time=MODELS[arrival.model])
            self.jobs[arrival.name] = record
        return self.origin + self.arrivals[0].at if self.arrivals else math.inf

    def _journal(self, snapshot: Snapshot, decision: Decision) -> None:
        self.scheduler._journal(snapshot, decision)
        if self._foretold:
            policy = self.backend.spec.policy
            ends = foresee(snapshot, decision, partial(decide, policy=policy, left_by=policy))
            self.backend.handle(Foretold(ends, snapshot.now))

    def run(self) -> None:
        """Until all jobs have ended."""
        asyncio.run(run_cluster(self.backend, self.scheduler._decide, self._journal))

    def replay(self) -> Replay:
        return replay(self.database.cycles())

    @property
    def broken(self) -> list[str]:
        """Jobs whose deadline was promised and not met, and how late they were."""
        return [
            f"{record.id}: {record.ended - record.submission.deadline:.2f} s late"
            for record in self.jobs.values()
            if record.promised
            and record.ended is not None
            and record.submission.deadline is not None
            and record.ended > record.submission.deadline
        ]
