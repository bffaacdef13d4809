"""A scheduler may die wherever it writes or asks: the next one forgets no job, and starts none
twice.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from brim.backends.live import LiveBackend
from brim.backends.processes import Launch
from brim.coordination.cluster.reconcile import ByNode
from brim.domain.cluster import Cluster, ClusterSpec
from brim.domain.lifecycle import Happening
from brim.domain.schedule import Decision
from brim.domain.tenancy import Tenant
from brim.errors import EnvironmentFault
from brim.host.clock import VirtualClock
from brim.scheduler.loop import CLUSTER, Scheduler
from brim.storage.book import Book
from brim.storage.database import Database
from brim.wire.cluster import Submit
from brim_lab.chaos.cluster_promises import journal_replays
from brim_lab.chaos.deeds import Deed, DeedKind
from brim_lab.chaos.judging import Acknowledged, nobody_is_forgotten, stories_make_sense
from conformance.worlds import FakeProcesses, measured
from submissions import submission

CLUSTER_OF_TWO = Cluster.parse("2x2")
CAPACITY = CLUSTER_OF_TWO.devices
STEPS = 60
TICK = 0.5
RATES = {1: 4.0, 2: 7.0, 3: 9.0, 4: 11.0}


class Died(BaseException):
    """The scheduler, where it writes or asks."""


class Points:
    """Counts the points at which a scheduler may die; it does at one of them."""

    def __init__(self, last: int | None = None) -> None:
        self.last, self.count, self.dead = last, 0, False

    def __call__(self) -> None:
        self.count += 1
        self.dead = self.dead or self.count - 1 == self.last
        if self.dead:
            raise Died


class MortalSql:
    """A connection whose user may die before each write.

    Nothing of a transaction is kept before its commit: a death anywhere in it leaves the same as
    one before its commit.
    """

    def __init__(self, sql: Any, point: Points) -> None:
        self._sql, self._point = sql, point

    def execute(self, statement: str, *rest: Any) -> Any:
        if not statement.startswith(("select", "begin", "rollback")):
            self._before(statement)
        return self._sql.execute(statement, *rest)

    def executemany(self, statement: str, *rest: Any) -> Any:
        self._before(statement)
        return self._sql.executemany(statement, *rest)

    def _before(self, statement: str) -> None:
        if statement == "commit" or not self._sql.in_transaction:
            self._point()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sql, name)


class MortalProcesses(FakeProcesses):
    """Fakes that train; their caller may die before they heard, or after."""

    def __init__(self, point: Points) -> None:
        super().__init__()
        self._point = point

    async def start(self, launch: Launch, workers: ByNode) -> None:
        self._point()
        await super().start(launch, workers)

    async def resize(self, launch: Launch, workers: ByNode) -> None:
        self._point()
        await super().resize(launch, workers)

    async def leave(self, launch: Launch, node: str) -> None:
        self._point()
        await super().leave(launch, node)

    async def suspend(self, launch: Launch) -> None:
        self._point()
        await super().suspend(launch)

    def train(self, seconds: float) -> None:
        """Some time passes; jobs that have done all steps end."""
        self.settle()
        nobody_shares(job.held for job in self.jobs.values() if job.alive)
        for name, job in self.jobs.items():
            if job.alive:
                step = min(STEPS, job.seen.step + int(RATES[job.workers] * seconds))
                self.say(name, step=step, steps=STEPS, measured=measured(RATES))
                if step == STEPS:
                    self.end(name, "done", summary={"exit": "done"})


def nobody_shares(placements: Iterable[ByNode]) -> None:
    """No device is two jobs', on any node."""
    counts = sum(map(Counter, placements), Counter[str]())
    assert all(counts[node.id] <= node.devices for node in CLUSTER_OF_TWO.nodes), counts


def spec_of(ads: int) -> ClusterSpec:
    tenants = Tenant(id="ads", guaranteed=ads), Tenant(id="web", guaranteed=CAPACITY - ads)
    return ClusterSpec(cluster=CLUSTER_OF_TWO, tenants=tenants, grace=10.0)


def run(work: Coroutine[Any, Any, None]) -> None:
    async def quietly() -> None:
        # Who has died asks nobody else what became of their questions.
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        await work

    asyncio.run(quietly())


class House:
    """Life after life of a scheduler, on one disk, with processes that outlive it."""

    def __init__(self, folder: Path, point: Points) -> None:
        self.folder, self.point = folder, point
        self.clock = VirtualClock(start=1e9)
        self.processes = MortalProcesses(point)
        self.deaths = 0
        self.acknowledged: list[Acknowledged] = []
        self.ids: dict[str, str] = {}
        folder.mkdir(exist_ok=True)
        database = Database(folder / "scheduler.db")
        database.put(CLUSTER, msgspec.json.encode(spec_of(2)))
        database.close()
        self.live()

    def live(self) -> None:
        """As `brim.backends.up` does."""
        self.database = Database(self.folder / "scheduler.db")
        self.database._sql.execute(
            "pragma synchronous = off"
        )  # who dies here takes no power with him
        self.database._sql = MortalSql(self.database._sql, self.point)  # type: ignore[assignment]
        described = self.database.get(CLUSTER)
        assert described is not None
        spec = msgspec.json.decode(described, type=ClusterSpec)
        self.book = Book(self.database)
        self.backend = LiveBackend(self.book, self.processes, spec, clock=self.clock)
        self.scheduler = Scheduler(
            self.book,
            self.database,
            self.backend,
            jobs_folder=self.folder / "jobs",
            clock=self.clock,
        )

    def survive(self, work: Callable[[], object]) -> bool:
        """Whether the scheduler lived to say yes; if not, there is another one."""
        try:
            work()
        except Died:
            self.deaths += 1
            self.database.close()
            self.point.dead = False
            self.live()
            return False
        return True

    def ask(self, deed: DeedKind, name: str, call: Callable[[], object]) -> None:
        """Ask until it is acknowledged, or too late."""
        answers: list[Any] = []

        def hear() -> None:
            answer = call()
            self.point()  # all is done and on disk, and nobody hears of it
            answers.append(answer)

        try:
            while not self.survive(hear):
                pass
        except EnvironmentFault:
            return
        if deed is DeedKind.SUBMIT:
            self.ids[name] = answers[0].job
        job = self.ids.get(name, "")
        self.acknowledged.append(Acknowledged(Deed(kind=deed, at=0.0), job))

    def submit(self, name: str, **fields: Any) -> None:
        request = Submit(submission=submission(**fields), name=name, key=f"key of {name}")
        self.ask(DeedKind.SUBMIT, name, lambda: self.scheduler.submit(request))

    def wish(self, deed: DeedKind, name: str, happening: Happening) -> None:
        self.ask(deed, name, lambda: self.scheduler.wish(self.ids[name], happening))

    def tick(self) -> None:
        """Time passes, and the scheduler looks and decides once."""
        self.clock.advance(TICK)
        self.processes.train(TICK)
        self.survive(lambda: run(self._pass()))
        nobody_shares(job.wanted for job in self.processes.jobs.values() if job.alive)

    async def _pass(self) -> None:
        await self.backend.look()
        snapshot = await self.backend.observe()
        decision = self.scheduler._decide(snapshot)
        assert isinstance(decision, Decision)
        self.scheduler._journal(snapshot, decision)
        await self.backend.apply(decision)

    def go_down(self) -> None:
        """`brim down`, asked again of the next scheduler where one dies of it; then `brim up`."""
        running = True
        while running:
            self.backend.drain(kill=False)
            self.clock.advance(TICK)
            self.processes.train(TICK)
            self.survive(lambda: run(self.backend.look()))
            running = any(record.running for record in self.book.unfinished())
        self.database.close()
        self.live()

    def tell_the_story(self) -> None:
        self.submit("a", workers="1:4", tenant="ads")
        self.tick()
        self.tick()
        self.submit("b", workers="1:4", tenant="web", deadline=self.clock.wall() + 500.0)
        self.tick()
        self.submit("c", workers="2", tenant="web", deadline=self.clock.wall() + 900.0)
        self.tick()
        self.wish(DeedKind.SUSPEND, "a", Happening.HOLD)
        self.tick()
        self.tick()
        self.submit("d", workers="1:2", tenant="ads", deadline=self.clock.wall() + 1.0)
        self.ask(DeedKind.APPLY, "", lambda: self.scheduler.reconfigure(spec_of(1)))
        self.tick()
        self.wish(DeedKind.SUSPEND, "a", Happening.RELEASE)
        self.tick()
        if self.processes.of(self.ids["b"]).alive:
            self.processes.end(self.ids["b"], "")
        self.tick()
        self.wish(DeedKind.CANCEL, "c", Happening.CANCEL)
        self.tick()
        self.go_down()
        for _ in range(100):
            self.tick()
            if not self.book.unfinished():
                return
        raise AssertionError([(r.id, r.life) for r in self.book.unfinished()])

    def broken(self) -> list[str]:
        stories = {record.id: self.book.story(record) for record in self.book.jobs.values()}
        return [
            *nobody_is_forgotten(self.acknowledged, self.book.jobs),
            *stories_make_sense(stories, self.book.jobs),
            *journal_replays(self.database),
        ]


@pytest.fixture(scope="module")
def points(tmp_path_factory: pytest.TempPathFactory) -> int:
    """How many there are, in a story in which every kind of thing happens."""
    house = House(tmp_path_factory.mktemp("calm"), points := Points())
    house.tell_the_story()
    assert house.broken() == []
    phases = {name: house.book.jobs[job].life.phase.value for name, job in house.ids.items()}
    assert phases == {"a": "done", "b": "done", "c": "cancelled", "d": "done"}
    events = {
        change.event for record in house.book.jobs.values() for change in house.book.story(record)
    }
    assert events >= {
        "promised",
        "refused",
        "accepted",
        "running",
        "suspended",
        "hold",
        "release",
        "workers",
    }
    assert points.count > 100
    return points.count


PARTS = 8  # of all points, so that a failure says soon where


@pytest.mark.parametrize("part", range(PARTS))
def test_it_may_die_at_every_point(tmp_path: Path, points: int, part: int) -> None:
    for last in range(part, points, PARTS):
        house = House(tmp_path / str(last), Points(last))
        house.tell_the_story()
        assert (last, house.deaths, house.broken()) == (last, 1, [])
