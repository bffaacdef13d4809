"""A whole job in one thread: the real rendezvous, hubs and barriers, with workers that are
generators.

Simulated: the workers follow `train/membership.py` and `train/job.py` wait for wait, the agents
`agent/loop.py`, the master `master/loop.py`. Every link is a queue, and whoever chooses what
happens next is the adversary. Numbers are symbols: a sum of gradients is the tree that made it, so
that a wrong order of additions shows as a difference, and memory that workers share can be spoilt
here as it can there.

`python -m coordination.cluster 100000` in `tests/` runs so many schedules at random.
"""

from __future__ import annotations

import random
import sys
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from brim.agent.hub import Hub, PassOn, is_commit
from brim.coordination.attempts import Attempts
from brim.coordination.barrier import COMMIT, Barrier, Point, Release
from brim.coordination.membership import (
    AgentJoined,
    AgentLost,
    CheckpointWritten,
    Command,
    Committed,
    Completed,
    Dismiss,
    End,
    Event,
    GiveUpOn,
    Held,
    Hold,
    Hurry,
    Install,
    Kill,
    Outcome,
    Phase,
    Resize,
    StartWorker,
    Stop,
    Straggling,
    WorkerAsksToLeave,
    WorkerGone,
    WorkerIdle,
    WorkerInstalled,
    WorkerReady,
    WorkerState,
    World,
    WriteCheckpoint,
)
from brim.coordination.reduction import Block, ReductionPlan, fold
from brim.coordination.rendezvous import Rendezvous
from brim.coordination.roster import at_work, serving
from brim.domain.accounting import Part, Restore, StepRecord, audit, lasting, sample_checksum
from brim.domain.batch import Schedule, cut

PARTS = 4
ELEMENTS = 4  # of the gradient: enough for four ranks to own a slice each
SCHEDULE = Schedule(samples=7, global_batch_size=4, epochs=2)
MOST_EVENTS = 20_000

Tree = Any  # a leaf (step, micro-batch, element), or a pair of trees
Wait = Any  # "go", "message", or a function that says whether the wait is over


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What a simulated job is asked to do."""

    agents: int = 1
    minimum: int = 1
    target: int = 2
    servers: int = 0
    spares: int = 0
    patience: int = 1000  # deaths in a row of young workers that a host is forgiven


@dataclass(frozen=True)
class Fault:
    """Something that happens after so many events.

    `kill`, `term`, `resize`, `serve` (so many servers), `place` (so many on each agent), `stop`,
    `hurry` (stop, without some who are late), `lose_agent`, `kill_all`, `kill_workers` (all but the
    servers), `straggle` (some are found to be slow), `idle` (one waits for data in its next step).
    """

    after: int
    kind: str
    which: int = 0


class RoundChanged(Exception):
    pass


class Dismissed(Exception):
    pass


class PeerLost(Exception):
    """Or Interrupted: both are answered alike."""


@dataclass(eq=False)
class Stream:
    """A connection from a worker that lacks the state to the one that gives it."""

    greeting: tuple[int, str]
    caller: SimWorker
    donor: SimWorker
    chunks: list[Any] = field(default_factory=list)
    closed: bool = False

    @property
    def broken(self) -> bool:
        return self.closed or not self.donor.alive or not self.caller.alive


@dataclass
class Flight:
    """A checkpoint that a worker's writer is at: `drafting`, then `asked`, then `permitted`."""

    state: tuple[int, int, Tree]
    stage: str = "drafting"


def validate(rendezvous: Rendezvous) -> None:
    """What must hold after every event."""
    workers = rendezvous.workers.values()
    members = rendezvous.roster.members
    for worker in workers:
        assert worker.agent in rendezvous.roster.agents, f"{worker.id} is on an agent that is gone"
        assert not worker.in_round or worker.state in (WorkerState.ACTIVE, WorkerState.LEAVING), (
            worker
        )
        assert worker.state is not WorkerState.ACTIVE or worker.in_round, worker
        waits = rendezvous.phase is Phase.GATHERING and worker.state is WorkerState.READY
        assert (
            not worker.has_state
            or worker.state in (WorkerState.ACTIVE, WorkerState.LEAVING)
            or waits
        ), worker
    if rendezvous.phase is Phase.GATHERING:
        assert all(member.serves for member in members), (
            "gathering with members that are no servers"
        )
    if rendezvous.phase in (Phase.RUNNING, Phase.WRITING):
        assert members, f"{rendezvous.phase} without members"
    if rendezvous.phase is Phase.RUNNING and not rendezvous.is_stopping:
        assert any(not member.serves for member in members), "servers alone"
    if rendezvous.phase is Phase.WRITING:
        assert any(worker.has_state for worker in members), "nobody can write"
    staying = [worker for worker in members if worker.state is WorkerState.ACTIVE]
    servers = sum(worker.serves for worker in staying)
    assert servers <= rendezvous.servers, f"{servers} servers stay, {rendezvous.servers} wanted"
    assert len(staying) - servers <= rendezvous.target, (
        f"{len(staying)} stay, {rendezvous.target} wanted"
    )
    coming = [worker for worker in workers if worker.state is WorkerState.READY]
    if rendezvous.phase is Phase.RUNNING:
        spare = len(staying) + len(coming) - rendezvous.target - rendezvous.servers
        assert spare <= rendezvous.spares, f"{spare} more than {rendezvous.spares} spares are kept"
    assert rendezvous.target >= 1


def validate_world(world: World) -> None:
    """What must hold of every round."""
    named = [member.worker for member in world.members]
    agents = [member.agent for member in world.members]
    assert len(set(named)) == len(named) >= 1
    runs = sum(1 for before, after in zip([None, *agents], agents, strict=False) if before != after)
    assert runs == len(set(agents)), "ranks of one agent are not contiguous"
    assert world.shares[0], "rank 0 is a server"
    assert sum(world.shares) == PARTS
    for member in world.members:
        beside, workers = world.ranks_beside(member.worker), world.workers_beside(member.worker)
        assert [rank for rank in beside if world.shares[rank]] == list(workers), (
            "servers before workers"
        )
    for needy, donor in world.donors.items():
        assert needy in named
        assert donor in named
        assert donor not in world.donors, "a donor lacks the state itself"


# Workers ------------------------------------------------------------------------------------------


class SimWorker:
    """One worker: a generator that yields what it waits for."""

    def __init__(self, cluster: Cluster, name: str, agent: SimAgent) -> None:
        self.cluster, self.name, self.agent = cluster, name, agent
        self.alive, self.asked, self.told = True, False, False
        self.inbox: deque[tuple[Any, ...]] = deque()
        self.outbox: deque[tuple[Any, ...]] = deque()
        self.backlog: deque[Stream] = deque()
        self.greeted: dict[tuple[int, str], Stream] = {}
        self.doing = "starting"
        self.world: World | None = None
        self.next: World | None = None
        self.still = False  # nobody makes a step in the round that is next
        self.lacks_data = False
        self.idle_in = 0  # the round in which it said so last
        self.made: list[tuple[int, Any]] = []  # steps of a worker alone that nobody was told of
        self.asked_for: int | None = (
            None  # the last step that was told of, whose answer is on its way
        )
        self.committed, self.evaluated = 0, 0
        self.weights: Tree = ()
        self.flight: Flight | None = None
        self.to_write = False
        self.official: int | None = None
        self.waits: Wait = "go"
        self._body = self._life()
        next(self._body)

    @property
    def runnable(self) -> bool:
        if not self.alive:
            return False
        if self.waits == "go":
            return True
        if self.waits == "writer":  # it listens, and leaves what is not for the writer
            return self.flight is None or any(message[0] == "publish" for message in self.inbox)
        if self.inbox or (self.asked and not self.told):
            return True
        return self.waits != "message" and bool(self.waits())

    def run(self) -> None:
        try:
            self.waits = next(self._body)
        except StopIteration:
            self.die("exit status 0")

    @property
    def pending(self) -> bool:
        """Whether there is a message for the loop; hearing a permission hands it to the writer."""
        for message in [each for each in self.inbox if each[0] == "publish"]:
            self.inbox.remove(message)
            if self.flight is not None and self.flight.state[0] == message[1]:
                self.flight.stage = "permitted"
        return bool(self.inbox)

    def die(self, reason: str) -> None:
        """The kernel closes its link behind what it had still to say."""
        if self.alive:
            self.alive = False
            self.outbox.append(("gone", reason))

    def tell(self, *message: Any) -> None:
        self.tell_made()
        self.outbox.append(message)

    def tell_made(self) -> None:
        """What the main thread does as it waits, and the heartbeat at any time."""
        if self.made:
            assert self.world is not None
            self.asked_for = self.made[-1][0]
            self.outbox.append(("made", self.world.round, self.made))
            self.made = []

    @property
    def rank(self) -> int:
        assert self.world is not None
        return self.world.rank_of(self.name)

    def _life(self) -> Iterator[Wait]:
        yield "go"
        self.doing = "ready"
        self.tell("hello")
        try:
            while True:
                try:
                    yield from self._next_round()
                    yield from self._round()
                    yield from self._finish()
                except RoundChanged:
                    pass
                except PeerLost:
                    yield from self._await_replacement()
        except Dismissed:
            self.doing = "draining"
            yield from self._settle()
            self.doing = "dismissed"
            yield "go"

    def _receive(self) -> Generator[Wait, None, tuple[Any, ...]]:
        while True:
            if self.asked and not self.told:
                self.told = True
                self.tell("leave")
            if self.pending:
                return self.inbox.popleft()
            yield "message"

    def _take(self, message: tuple[Any, ...]) -> None:
        match message:
            case ("released", _, step, phase, hold, _) if (phase, step) == (COMMIT, self.asked_for):
                self.asked_for = None
                if hold:
                    self.doing = "held"
                    raise RoundChanged
                return
            case ("install" | "write", *_) if self.asked_for is not None or self.made:
                raise AssertionError(f"{self.name}: {message} while a commit is under way")
            case ("install", world, still):
                self.next, self.still = world, still
                raise RoundChanged
            case ("dismissed",):
                raise Dismissed
            case ("write",):
                self.to_write = True
                raise RoundChanged
            case ("released", round, *_) if self.world is not None and round < self.world.round:
                return
        raise AssertionError(f"{self.name}: nobody waits for {message}")

    def _poll(self) -> Iterator[Wait]:
        while self.pending or (self.asked and not self.told):
            if self.asked and not self.told:
                self.told = True
                self.tell("leave")
            if self.pending:
                self._take(self.inbox.popleft())
        return
        yield

    def _arrive(self, phase: str, payload: Any = None) -> Generator[Wait, None, tuple[Any, ...]]:
        assert self.world is not None
        yield from self._settle_commit()
        self.tell("arrive", self.world.round, Point(self.committed, phase), payload)
        while True:
            message = yield from self._receive()
            if message[0] == "released" and message[1] == self.world.round:
                return message
            self._take(message)

    def _commit(self, parts: Any) -> Generator[Wait, None, bool]:
        """Alone, it is told of now or later, and not waited for: the next step takes in whether it
        was the last.
        """
        assert self.world is not None
        if self.world.world_size > 1 or self.idle_in == self.world.round:
            return (yield from self._arrive(COMMIT, parts))[4]
        yield from self._await_answer()
        self.made.append((self.committed, parts))
        return False

    def _settle_commit(self) -> Iterator[Wait]:
        self.tell_made()
        yield from self._await_answer()

    def _await_answer(self) -> Iterator[Wait]:
        while self.asked_for is not None:
            self._take((yield from self._receive()))

    def _await_replacement(self) -> Iterator[Wait]:
        try:
            while True:
                self._take((yield from self._receive()))
        except RoundChanged:
            pass

    # Rounds

    def _next_round(self) -> Iterator[Wait]:
        while True:
            if self.to_write:
                yield from self._write_for_the_end()
            if self.next is None:
                yield from self._await_world()
            self.world, self.next = self.next, None
            still = self.still
            assert self.world is not None
            for greeting in [each for each in self.greeted if each[0] < self.world.round]:
                self.greeted.pop(greeting).closed = True
            try:
                yield from self._install(self.world)
                if not still:
                    return
            except PeerLost:
                yield from self._await_replacement()

    def _await_world(self) -> Iterator[Wait]:
        while self.next is None:
            message = yield from self._receive()
            if message[0] == "write":
                yield from self._write_for_the_end()
                continue
            try:
                self._take(message)
            except RoundChanged:
                return

    # Checkpoints

    def _write_for_the_end(self) -> Iterator[Wait]:
        self.to_write = False
        self.doing = "writing"
        yield from self._write_now()
        self.tell("now_written")

    def _begin(self) -> None:
        """Copy the state for the writer; where it is at another, this one is left out."""
        if self.flight is None:
            self.flight = Flight((self.committed, self.evaluated, self.weights))

    def _settle(self) -> Iterator[Wait]:
        while self.flight is not None:
            yield "writer"
            _ = self.pending

    def _write_now(self) -> Iterator[Wait]:
        yield from self._settle()
        if self.official != self.committed:
            self._begin()
            yield from self._settle()

    @property
    def writes(self) -> bool:
        return self.alive and self.flight is not None and self.flight.stage != "asked"

    def write(self) -> None:
        """What the writer's thread does next."""
        assert self.flight is not None
        step = self.flight.state[0]
        if self.flight.stage == "drafting":
            self.flight.stage = "asked"
            self.tell("drafted", step)
        else:
            self.cluster.publish(self.flight.state)
            self.official, self.flight = step, None
            self.tell("made", step)

    def _install(self, world: World) -> Iterator[Wait]:
        yield "go"
        restored = False
        if world.restore and world.members[0].worker == self.name:
            if self.cluster.storage is not None:
                self.committed, self.evaluated, self.weights = self.cluster.storage
                self.official, restored = self.committed, True
        elif self.name in world.donors:
            self.doing = "fetching"
            yield from self._fetch(world, self.cluster.workers[world.donors[self.name]])
        for caller in sorted(needy for needy, donor in world.donors.items() if donor == self.name):
            self.doing = "donating"
            yield from self._donate((world.round, caller))
        self.doing = "installed"
        self.tell("installed", world.round, self.committed, restored)

    def _fetch(self, world: World, donor: SimWorker) -> Iterator[Wait]:
        stream = Stream((world.round, self.name), self, donor)
        if not donor.alive:
            raise PeerLost
        donor.backlog.append(stream)
        try:
            while len(stream.chunks) < 2:
                if stream.broken or self.pending:
                    raise PeerLost
                yield lambda: stream.broken or len(stream.chunks) == 2
        finally:
            stream.closed = True
        yield "go"
        self.committed, self.evaluated, self.weights = stream.chunks[1]

    def _donate(self, greeting: tuple[int, str]) -> Iterator[Wait]:
        while greeting not in self.greeted:
            if self.pending:
                raise PeerLost
            yield lambda: bool(self.backlog)
            if (
                self.backlog
            ):  # it was blocked in accept: who calls is taken before the agent is heard
                stream = self.backlog.popleft()
                self.greeted[stream.greeting] = stream
        stream = self.greeted.pop(greeting)
        for chunk in (None, (self.committed, self.evaluated, self.weights)):
            if stream.broken:
                raise PeerLost
            stream.chunks.append(chunk)
            yield "go"

    # Steps

    def _round(self) -> Iterator[Wait]:
        assert self.world is not None
        plan = ReductionPlan(PARTS, tuple(self.world.hosts.values()), self.world.shares)
        if self.world.world_size > 1:
            yield from self._arrive("enter")
        while True:
            if self.evaluated < self.committed // SCHEDULE.steps_per_epoch:
                yield from self._settle_commit()
                yield from self._end_epoch()
            if self.committed == SCHEDULE.steps:
                return
            yield from self._step(plan)

    def _step(self, plan: ReductionPlan) -> Iterator[Wait]:
        step, rank = self.committed, self.rank
        own: list[Tree] = []
        memory = self.agent.memory
        host = plan.host_of(rank)
        rows = {block.start: 1 + row for row, block in enumerate(plan.local_blocks(host))}
        self.doing = "computing"
        for block in plan.rank_blocks(rank):
            yield from self._poll()
            yield "go"
            if self.lacks_data:
                yield from self._wait_for_data()
            micros = range(block.start, min(block.start + block.size, PARTS))
            sums: dict[int, Tree] = {m: [(step, m, e) for e in range(ELEMENTS)] for m in micros}
            for left, right in fold([Block(m, 1) for m in micros], block, PARTS):
                both = zip(sums[left.start], sums.pop(right.start), strict=True)
                sums[left.start] = [(a, b) for a, b in both]
            (own,) = sums.values()
            if plan.world_size > 1:
                memory[rows[block.start]] = own
        if plan.world_size > 1:
            own = yield from self._reduce(plan, host, rows)
        spans = cut(SCHEDULE.span(step), PARTS)
        parts = [
            (rank, m, spans[m].start, spans[m].stop)
            for m in plan.micro_batches(rank)
            if len(spans[m])
        ]
        self.doing = "at commit"
        held = yield from self._commit(parts)
        self.doing = "applying"
        yield "go"
        total = memory[0] if plan.world_size > 1 else own
        self.weights = (self.weights, tuple(total))
        self.committed += 1
        if rank == 0 and self.committed % SCHEDULE.steps_per_epoch:
            self._begin()
        if held:
            self.doing = "held"
            raise RoundChanged

    def _wait_for_data(self) -> Iterator[Wait]:
        """For a while, in which anything may happen."""
        assert self.world is not None
        self.lacks_data = False
        yield from self._settle_commit()
        self.idle_in, self.doing = self.world.round, "idle"
        self.tell("idle", self.world.round)
        for _ in range(20):
            yield from self._poll()
            yield "go"
        self.doing = "computing"

    def _reduce(
        self, plan: ReductionPlan, host: int, rows: dict[int, int]
    ) -> Generator[Wait, None, list[Tree]]:
        self.doing = "at blocks"
        yield from self._arrive("blocks")
        memory, several = self.agent.memory, len(plan.hosts) > 1
        ranks = plan.ranks_on(host)
        part = self.rank - ranks.start
        mine = range(ELEMENTS * part // len(ranks), ELEMENTS * (part + 1) // len(ranks))
        pairs = [
            pair
            for want in (plan.host_blocks(host) if several else (plan.root,))
            for pair in fold(plan.local_blocks(host), want, plan.parts)
        ]
        self.doing = "folding"
        for left, right in pairs:
            yield "go"
            for e in mine:
                memory[rows[left.start]][e] = (
                    memory[rows[left.start]][e],
                    memory[rows[right.start]][e],
                )
        if several:
            yield from self._arrive("folded")
            if part == 0:
                yield from self._trade(plan, host, rows)
        else:
            for e in mine:
                memory[0][e] = memory[1][e]
        return memory[0]

    def _trade(self, plan: ReductionPlan, host: int, rows: dict[int, int]) -> Iterator[Wait]:
        """The first workers of all hosts bring what their hosts folded;
        each folds all of it here.
        """
        assert self.world is not None
        table = self.cluster.trades.setdefault((self.world.round, self.committed), {})
        table[host] = {
            b.start: list(self.agent.memory[rows[b.start]]) for b in plan.host_blocks(host)
        }
        firsts = [
            self.world.members[plan.ranks_on(each).start].worker for each in range(len(plan.hosts))
        ]
        others = [self.cluster.workers[name] for name in firsts]
        while len(table) < len(plan.hosts):
            if self.pending or not all(other.alive for other in others):
                raise PeerLost
            yield lambda: len(table) == len(plan.hosts) or not all(other.alive for other in others)
        have = {start: list(row) for rows_of in table.values() for start, row in rows_of.items()}
        blocks = [block for each in range(len(plan.hosts)) for block in plan.host_blocks(each)]
        for left, right in fold(blocks, plan.root, plan.parts):
            have[left.start] = list(zip(have[left.start], have[right.start], strict=True))
        yield "go"
        self.agent.memory[0] = have[0]

    def _end_epoch(self) -> Iterator[Wait]:
        self.doing = "evaluating"
        yield from self._arrive("gather")
        self.evaluated += 1
        if self.rank == 0:
            yield "go"
            self._begin()

    def _finish(self) -> Iterator[Wait]:
        self.doing = "completing"
        digests = (yield from self._arrive("end", self.weights))[5]
        assert all(digest == self.weights for digest in digests), (
            "workers ended with different weights"
        )
        if self.rank == 0:
            yield from self._write_now()
            self.tell("completed", self.weights)
        self.doing = "done"
        while True:
            self._take((yield from self._receive()))


# Agents -------------------------------------------------------------------------------------------


class SimAgent:
    """One agent: the real hub, and links."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster, self.name, self.hub = cluster, name, Hub(name)
        self.alive = True
        self.inbox: deque[tuple[Any, ...]] = deque()
        self.outbox: deque[tuple[Any, ...]] = deque()
        self.workers: dict[str, SimWorker] = {}
        self.waiting: list[str] = []  # to be started later
        self.memory: dict[int, list[Tree]] = {row: [None] * ELEMENTS for row in range(PARTS + 1)}
        self._payloads: dict[bytes, Any] = {}

    def lose(self, unsent: int = 0) -> None:
        """It is gone, and so are the last words that it had not sent yet."""
        self.alive = False
        for _ in range(min(unsent, len(self.outbox))):
            self.outbox.pop()
        for worker in self.workers.values():
            worker.alive = False
        self.outbox.append(("closed",))

    def send(self, name: str, *message: Any) -> None:
        worker = self.workers.get(name)
        if worker is not None and worker.alive:
            worker.inbox.append(message)

    def hear(self, worker: SimWorker) -> None:
        message = worker.outbox.popleft()
        match message:
            case ("arrive", round, point, payload):
                self._arrived(worker.name, round, point, payload)
            case ("made", round, made):
                self._made_alone(worker.name, round, made)
            case ("gone", reason):
                del self.workers[worker.name]
                self.outbox.append(("gone", worker.name, reason))
            case _:
                self.outbox.append(("from", worker.name, message))

    def _arrived(self, worker: str, round: int, point: Point, payload: Any) -> None:
        key = str(len(self._payloads)).encode()  # payloads are bytes: the hub must not look inside
        self._payloads[key] = payload
        answer = self.hub.arrive(worker, round, point, key)
        if answer is None:
            return
        payloads = [self._payloads[key] for key in answer.payloads]
        if isinstance(answer, PassOn):
            self.outbox.append(("together", answer.round, answer.point, payloads))
            return
        self.release(answer, payloads)
        if is_commit(point):
            self.outbox.append(("commit", round, point.step + 1, self.cluster.events, payloads))
            if answer.hold:
                self.outbox.append(("held", round, point.step + 1))

    def _made_alone(self, worker: str, round: int, made: list[tuple[int, Any]]) -> None:
        answer = self.hub.arrive(worker, round, Point(made[-1][0], COMMIT), b"")
        if answer is None:
            return
        assert isinstance(answer, Release), "a worker alone in its round has the root beside it"
        self.release(answer, [])
        for step, parts in made:
            self.outbox.append(("commit", round, step + 1, self.cluster.events, [parts]))
        if answer.hold:
            self.outbox.append(("held", round, made[-1][0] + 1))

    def release(self, release: Release, payloads: list[Any]) -> None:
        for name in self.hub.members:
            point = release.point
            self.send(
                name, "released", release.round, point.step, point.phase, release.hold, payloads
            )

    def start(self, name: str) -> None:
        self.waiting.remove(name)
        self.workers[name] = self.cluster.workers[name] = SimWorker(self.cluster, name, self)

    def _forget_start(self, name: str) -> None:
        if name in self.waiting:
            self.waiting.remove(name)
            self.outbox.append(("gone", name, "it was not started"))

    def obey(self) -> None:
        match self.inbox.popleft():
            case ("start", name, delay):
                self.waiting.append(name)
                if not delay:
                    self.start(name)
            case ("install", world, still):
                self.hub.begin(world)
                for name in self.hub.members:
                    self.send(name, "install", world, still)
            case ("hold", round):
                self.hub.hold(round)
            case ("release", release, payloads):
                if release.round == self.hub.round:
                    self.release(release, payloads)
            case ("worker", name, "write"):
                self.hub.close()
                self.send(name, "write")
            case ("worker", name, *message):
                if message == ["dismissed"]:
                    self._forget_start(name)
                self.send(name, *message)
            case ("kill", name):
                self._forget_start(name)
                if name in self.workers:
                    self.workers[name].die("signal 9")


# The cluster --------------------------------------------------------------------------------------


class Cluster:
    """A job from its start to its end.

    Args:
        setting: what the job was asked to do.
        choose: the adversary: of so many things that can happen next, which does.
        faults: what goes wrong, and when.
    """

    def __init__(
        self, setting: Setting, choose: Callable[[int], int], faults: tuple[Fault, ...] = ()
    ) -> None:
        self.setting, self._choose = setting, choose
        self._faults = sorted(faults, key=lambda fault: fault.after)
        self.rendezvous = Rendezvous(
            minimum=setting.minimum,
            target=setting.target,
            servers=setting.servers,
            spares=setting.spares,
            expected_agents=setting.agents,
            parts=PARTS,
            attempts=Attempts(young=2, most=setting.patience),
        )
        self.agents = {name: SimAgent(self, name) for name in "ABC"[: setting.agents]}
        self.workers: dict[str, SimWorker] = {}
        self._stored: dict[int, tuple[int, int, Tree]] = {}
        self.trades: dict[tuple[int, int], dict[int, Any]] = {}
        self.events = 0
        self.steps: list[StepRecord] = []
        self.restores: list[Restore] = []
        self.end: End | None = None
        self.weights: Tree = None
        self.seen: Counter[str] = Counter()
        self.story: list[
            tuple[int, Event | Command | Fault]
        ] = []  # to be printed when a promise breaks
        self._barrier = Barrier()
        self._world: World | None = None
        self._may_lose_agents = any(fault.kind == "lose_agent" for fault in faults)
        self._has_installed, self._lost_state = False, False
        self._brought: dict[str, Any] = {}
        self._committed = 0
        for name in self.agents:
            self._handle(AgentJoined(name))

    # Storage

    @property
    def storage(self) -> tuple[int, int, Tree] | None:
        """The newest official checkpoint."""
        return self._stored[max(self._stored)] if self._stored else None

    def publish(self, state: tuple[int, int, Tree]) -> None:
        """Make a checkpoint official, and keep the newest two."""
        self._stored[state[0]] = state
        for step in sorted(self._stored)[:-2]:
            del self._stored[step]

    # The master

    def _handle(self, event: Event) -> None:
        self.story.append((self.events, event))
        commands = self.rendezvous.handle(event)
        validate(self.rendezvous)
        if self._committed and self.end is None:
            holders = [worker for worker in self.rendezvous.workers.values() if worker.has_state]
            self._lost_state = (self.rendezvous.phase is not Phase.ENDING and not holders) or (
                self._lost_state and not holders
            )
        for command in commands:
            self.story.append((self.events, command))
            self._perform(command)

    def _perform(self, command: Command) -> None:
        match command:
            case StartWorker(agent, worker, delay):
                here = [
                    each
                    for each in at_work(self.rendezvous.workers.values())
                    if each.agent == agent
                ]
                places, serves = (
                    self.rendezvous.roster.places,
                    self.rendezvous.workers[worker].serves,
                )
                assert not places or places.wanted[agent], "it is started where nobody is to be"
                assert serves or not places or len(here) <= places.wanted[agent], (
                    "a device has two workers"
                )
                self._tell(agent, "start", worker, delay)
            case GiveUpOn(_, _, _, target):
                assert target == self.rendezvous.target
            case Install(world, _, still):
                validate_world(world)
                holders = [
                    worker for worker in self.rendezvous.workers.values() if worker.has_state
                ]
                assert not (world.restore and holders), (
                    f"{holders} may still be making a checkpoint official"
                )
                self._world, self._has_installed = world, False
                self._barrier.begin(world.round, world.hosts)
                for agent in world.hosts:
                    self._tell(agent, "install", world, still)
            case Hold(round):
                assert self._world is not None
                assert round == self._world.round
                if len(self._world.hosts) > 1:
                    self._barrier.hold(round)
                else:
                    self._tell(next(iter(self._world.hosts)), "hold", round)
            case WriteCheckpoint(worker):
                self._barrier.close()
                self._tell_worker(worker, "write")
            case Dismiss(worker):
                self._tell_worker(worker, "dismissed")
            case Kill(worker):
                self._tell(self.rendezvous.workers[worker].agent, "kill", worker)
            case End():
                assert self.end is None
                self.end = command

    def _tell(self, agent: str, *message: Any) -> None:
        if self.agents[agent].alive:
            self.agents[agent].inbox.append(message)

    def _tell_worker(self, worker: str, *message: Any) -> None:
        if worker in self.rendezvous.workers:
            self._tell(self.rendezvous.workers[worker].agent, "worker", worker, *message)

    def _hear(self, agent: SimAgent) -> None:
        match agent.outbox.popleft():
            case ("gone", worker, reason):
                self._handle(WorkerGone(worker, reason))
            case ("closed",):
                self._handle(AgentLost(agent.name, "its connection closed"))
            case ("commit", round, step, at, payloads):
                self._commit(round, step, at, payloads)
            case ("held", round, step):
                self._handle(Held(round, step))
            case ("together", round, point, payloads):
                self._together(agent.name, round, point, payloads)
            case ("from", worker, ("hello",)):
                self._handle(WorkerReady(worker, worker))
            case ("from", worker, ("installed", round, step, restored)):
                self._installed(worker, round, step, restored)
            case ("from", worker, ("leave",)):
                self._handle(WorkerAsksToLeave(worker))
            case ("from", worker, ("idle", round)):
                self._handle(WorkerIdle(worker, round))
            case ("from", worker, ("drafted", step)):
                assert step <= self._committed, (
                    f"a checkpoint of step {step} is ahead of the records"
                )
                self._tell_worker(worker, "publish", step)
            case ("from", _, ("made", _)):
                pass
            case ("from", worker, ("now_written",)):
                self._handle(CheckpointWritten(worker))
            case ("from", worker, ("completed", weights)):
                self.weights = weights
                self._handle(Completed(worker))
            case unknown:
                raise AssertionError(unknown)

    def _together(self, agent: str, round: int, point: Point, payloads: list[Any]) -> None:
        release = self._barrier.arrive(agent, round, point)
        if round == self._barrier.round:
            self._brought[agent] = payloads
        if release is None:
            return
        assert self._world is not None
        everything = [each for name in self._world.hosts for each in self._brought[name]]
        for name in self._world.hosts:
            self._tell(name, "release", release, everything)
        if point.phase == COMMIT:
            self._commit(round, point.step + 1, self.events, everything)
            if release.hold:
                self._handle(Held(round, point.step + 1))

    def _commit(self, round: int, step: int, at: int, payloads: list[Any]) -> None:
        self._committed = step
        parts = tuple(
            Part(rank, micro, start, stop, sample_checksum(np.arange(start, stop)))
            for payload in payloads
            for rank, micro, start, stop in payload
        )
        self.steps.append(
            StepRecord(
                at=at,
                round=round,
                step=step,
                epoch=SCHEDULE.epoch_of(step - 1),
                loss=0.0,
                samples=sum(part.stop - part.start for part in parts),
                parts=parts,
                seconds={},
            )
        )
        self._handle(Committed(round, step))

    def _installed(self, worker: str, round: int, step: int, restored: bool) -> None:
        self._handle(WorkerInstalled(worker, round, step))
        if self._world is None or round != self._world.round:
            return
        first = not self._has_installed
        self._has_installed = True
        if self._world.restore and first and (restored or self._committed):
            self.restores.append(Restore(step, len(self.steps)))
            self._committed = step
        assert step == self._committed, f"{worker} has step {step}, the job is at {self._committed}"

    # What happens next

    def _enabled(self) -> list[Callable[[], None]]:
        able: list[Callable[[], None]] = []
        for agent in self.agents.values():
            if agent.outbox:
                able.append(lambda agent=agent: self._hear(agent))
            if not agent.alive:
                continue
            if agent.inbox:
                able.append(agent.obey)
            able += [lambda agent=agent, name=name: agent.start(name) for name in agent.waiting]
            for worker in agent.workers.values():
                if worker.outbox:
                    able.append(lambda agent=agent, worker=worker: agent.hear(worker))
                if worker.runnable:
                    able.append(worker.run)
                if worker.writes:
                    able.append(worker.write)
                if worker.alive and worker.made:
                    able.append(worker.tell_made)
        return able

    def happen(self) -> bool:
        """One event; False once there is none left."""
        if self.end is not None:
            return False
        able = self._enabled()
        while self._faults and (self.events >= self._faults[0].after or not able):
            self.inflict(self._faults.pop(0))
            able = self._enabled()
        if not able:
            return False
        self.events += 1
        assert self.events < MOST_EVENTS, "it does not end"
        able[self._choose(len(able))]()
        return True

    def inflict(self, fault: Fault) -> None:
        alive = [worker for worker in self.workers.values() if worker.alive]
        agents = [agent for agent in self.agents.values() if agent.alive]
        self.story.append((self.events, fault))
        match fault.kind:
            case "kill" if alive:
                victim = alive[fault.which % len(alive)]
                self.seen[victim.doing] += 1
                victim.die("signal 9")
            case "kill_all":
                for worker in alive:
                    worker.die("signal 9")
            case "term" if alive:
                alive[fault.which % len(alive)].asked = True
            case "idle" if alive:
                alive[fault.which % len(alive)].lacks_data = True
            case "kill_workers":
                servers = {server.id for server in serving(self.rendezvous.roster.members)}
                for worker in alive:
                    if worker.name not in servers:
                        worker.die("signal 9")
            case "serve":
                places = self.rendezvous.roster.places.wanted
                self._handle(Resize(self.rendezvous.target, places, fault.which % 3))
            case "resize":
                self._handle(Resize(1 + fault.which % 4))
            case "place":
                places = self._places(fault.which)
                self._handle(Resize(sum(places.values()), places))
            case "stop":
                self._handle(Stop("asked"))
            case "hurry":
                members = self.rendezvous.roster.members
                self._handle(Stop("asked"))
                late = [member.id for member in members if (member.number + fault.which) % 2]
                self._handle(Hurry(dict.fromkeys(late, "late")))
            case "straggle":
                slow = [(worker.id, float(1 + (fault.which + worker.number) % 3))
                        for worker in self.rendezvous.roster.members]  # fmt: skip
                self._handle(Straggling(tuple(slow), "slow"))
            case "lose_agent" if len(agents) > 1 or fault.which < 0:
                agents[fault.which % len(agents)].lose(unsent=fault.which)

    def _places(self, which: int) -> dict[str, int]:
        """Workers by agent; where an agent may be lost, each has some: nobody is there to place
        them anew.
        """
        counts = [(1, 1), (2, 1), (2, 0), (0, 2)][which]
        if not all(counts) and self._may_lose_agents:
            counts = (1, 2)
        if len(self.agents) == 1:
            counts = (sum(counts),)
        return {name: count for name, count in zip(self.agents, counts, strict=True) if count}

    def run(self) -> Cluster:
        """Until the end; then every promise is checked."""
        while self.happen():
            pass
        self.check()
        return self

    def _filled(self) -> list[str]:
        """The agents that may have workers."""
        rendezvous = self.rendezvous
        return [
            agent
            for agent in rendezvous.roster.agents
            if not rendezvous.roster.places or agent in rendezvous.roster.places.wanted
        ]

    def check(self) -> None:
        assert self.end is not None, "it hangs"
        if self.end.outcome is Outcome.FAILED:
            assert "died young" in self.end.reason, self.end
            assert all(self.rendezvous.attempts.given_up(agent) for agent in self._filled())
        assert not self.rendezvous.workers
        assert not [worker.name for worker in self.workers.values() if worker.alive], (
            "a worker is left"
        )
        kept = lasting(self.steps, self.restores)
        assert [step.step for step in kept] == list(range(1, len(kept) + 1)), (
            "steps are lost or repeated"
        )
        if self.end.outcome is not Outcome.DONE:
            if (
                self.end.outcome is Outcome.SUSPENDED
                and "died" not in self.end.reason
                and not self._lost_state
                and kept
            ):
                assert self.storage is not None
                assert self.storage[0] == len(kept), "it stopped without the last checkpoint"
            assert self.storage is None or self.storage[2] == calm_weights(self.storage[0])
            return
        assert self.weights == calm_weights(SCHEDULE.steps), (
            "other weights than those of a calm run"
        )
        assert self.storage is not None
        assert self.storage[0] == SCHEDULE.steps, "the last checkpoint is missing"
        ledger = audit(
            self.steps,
            self.restores,
            samples_per_epoch=SCHEDULE.samples,
            epochs=SCHEDULE.epochs,
            order=lambda epoch, start, stop: np.arange(start, stop),
        )
        assert ledger.exact, ledger


def calm_weights(steps: int) -> Tree:
    """What any run must end with, worked out by hand: ((0 1) (2 3)) in every step."""
    weights: Tree = ()
    for step in range(steps):
        trees = [
            (((step, 0, e), (step, 1, e)), ((step, 2, e), (step, 3, e))) for e in range(ELEMENTS)
        ]
        weights = (weights, tuple(trees))
    return weights


KINDS = (
    *("kill", "kill", "kill", "straggle", "straggle", "term", "resize", "serve", "place", "place"),
    *("lose_agent", "kill_all", "kill_workers", "kill_workers", "stop", "hurry"),
)


def at_random(seed: int, *, more: tuple[str, ...] = ()) -> Cluster:
    """A setting, faults and a schedule that follow from the seed.

    Args:
        seed: of all of it.
        more: kinds of faults besides the usual ones.
    """
    rng = random.Random(seed)
    target = rng.randint(1, 4)
    setting = Setting(
        agents=rng.choice((1, 1, 2)),
        minimum=rng.randint(1, target),
        target=target,
        servers=rng.choice((0, 0, 1, 2)),
        spares=rng.randint(0, 1),
        patience=rng.choice((1, 2, 3, 1000)),
    )
    faults = tuple(
        Fault(int(rng.random() ** 2 * 250), rng.choice((*KINDS, *more)), rng.randrange(4))
        for _ in range(rng.randint(0, 5 + len(more)))
    )
    lazy = rng.random() < 0.5  # half of the adversaries favour some workers over others

    def choose(many: int) -> int:
        chosen = int(rng.random() ** (3 if lazy else 1) * many)
        return many - 1 - chosen if late else chosen

    late = rng.random() < 0.3  # and some let the master hear of everything late
    return Cluster(setting, choose, faults)


def main() -> None:
    many = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    events, outcomes, failures = 0, Counter[str](), 0
    for seed in range(first, first + many):
        cluster = at_random(seed)
        try:
            cluster.run()
        except Exception as error:  # noqa: BLE001 - a tally of what went wrong
            failures += 1
            if failures <= 10:
                print(seed, type(error).__name__, str(error)[:200])  # noqa: T201
        events += cluster.events
        outcomes[cluster.end.outcome if cluster.end else "none"] += 1
    print(f"{many} schedules, {events} events, {failures} failures, {dict(outcomes)}")  # noqa: T201


if __name__ == "__main__":
    main()
