"""A whole job in one thread: the code that decides is the code that ships.

Shipped code: the rendezvous, the barriers, the hubs, the protocol of workers, the order in which they
make steps and pass boundaries, and the messages between all of these. Simulated: computation,
checkpoints, transfer of the state, and the links. Every link is a queue, and the adversary chooses
the next event. Numbers are symbols: a sum of gradients is the tree that made it, so
that a wrong order of additions shows as a difference, and memory that workers share can be spoilt
here as it can there.

`python -m coordination.cluster 100000` in `tests/` runs so many schedules at random, and
`python -m coordination.cluster 100000 0 depart` some in which hosts are to be free.
"""

from __future__ import annotations

import math
import random
import sys
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple, TypeVar

import numpy as np
from msgspec import structs

from brim.coordination.job import steps
from brim.coordination.job.attempts import Attempts
from brim.coordination.job.barrier import COMMIT, Barrier, Point
from brim.coordination.job.board import Note, NoteKind
from brim.coordination.job.hub import (
    Count,
    Expect,
    Flush,
    Hub,
    HubCommand,
    Open,
    Stands,
    Write,
)
from brim.coordination.job.membership import (
    AgentDeparts,
    AgentJoined,
    AgentLost,
    AllHeld,
    AwaitOthers,
    CheckpointCompleted,
    Command,
    Committed,
    Dismiss,
    End,
    Event,
    GiveUpOn,
    Hold,
    Hurry,
    Install,
    Kill,
    LetGo,
    PatienceOver,
    RendezvousPhase,
    ResizeRequested,
    RunOutcome,
    StartWorker,
    Stop,
    Straggling,
    UserFailed,
    WorkerAsksToLeave,
    WorkerCutOff,
    WorkerDisagrees,
    WorkerGone,
    WorkerIdle,
    WorkerInstalled,
    WorkerReady,
    WorkerState,
    World,
    WriteCheckpoint,
)
from brim.coordination.job.membership import JobCompleted as WorkerCompleted
from brim.coordination.job.participant import (
    AskedToLeave,
    AwaitNews,
    BeHeir,
    CatchUp,
    EnterRound,
    FetchState,
    Flow,
    GiveState,
    Incoming,
    Look,
    Need,
    Participant,
    PeerLost,
    Pin,
    Receive,
    RestoreState,
    RoundChanged,
    Wake,
    WriteState,
    round_of,
)
from brim.coordination.job.reduction import Block, ReductionPlan, fold
from brim.coordination.job.rendezvous import Rendezvous
from brim.coordination.job.roster import at_work, serving
from brim.coordination.job.steps import Act, Action, Add, Settle, Stand
from brim.domain.accounting import audit, sample_checksum
from brim.domain.batch import Schedule, cut
from brim.domain.step_records import CommittedPart, Restore, StepRecord, lasting
from brim.wire.messages import (
    AgentMessage,
    Arrive,
    ArriveTogether,
    CheckpointDrafted,
    CheckpointMade,
    CommitRecord,
    Commits,
    Completed,
    CutOff,
    Disagree,
    Dismissed,
    EndRun,
    FromWorker,
    Hello,
    HoldRound,
    Idle,
    Installed,
    InstallRound,
    LeaveAsked,
    LoseWorker,
    MasterMessage,
    NowWritten,
    Publish,
    ReleaseTogether,
    SignalWorker,
    StartWorkers,
    ToWorker,
    WorkerBound,
    WorkerMessage,
    WriteNow,
)

T = TypeVar("T")

MOST_NOTES = 3  # of the first rank that a board has room for; the second has room for one more …
PARTS = 4
ELEMENTS = 4  # of the gradient: enough for four ranks to own a slice each
SCHEDULE = Schedule(samples=11, global_batch_size=4, epochs=2)
MOST_EVENTS = 20_000

Tree = Any  # a leaf (step, micro-batch, element), or a pair of trees
Wait = Any  # "go", "message", or a function that says whether the wait is over


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The request to a simulated job."""

    agents: int = 1
    minimum: int = 1
    target: int = 2
    servers: int = 0
    spares: int = 0
    every: int = 1  # steps of an epoch from one checkpoint to the next
    patience: int = 1000  # deaths in a row of young workers that a host is forgiven
    room: int | None = None  # workers that each agent but the first takes at most
    board: bool = True  # workers of one host may meet on it
    machines: int = 0  # that the agents are on by turns; 0: each is on one of its own


@dataclass(frozen=True)
class Fault:
    """Something that happens after so many events.

    `kill`, `term`, `resize`, `serve` (so many servers), `place` (so many on each agent), `stop`,
    `hurry` (stop, without some late workers), `lose_agent`, `kill_all`, `kill_workers` (all but the
    servers), `straggle` (some are found to be slow), `idle` (one waits for data in its next step),
    `depart` (a host is to be free), `cut` (streams between hosts break, and all live), `estrange`
    (workers that start from now on do not agree with those that have made steps; or do again).
    """

    after: int
    kind: str
    which: int = 0


@dataclass(frozen=True)
class Gone:
    """The end of a worker's link."""

    reason: str


@dataclass(frozen=True)
class Closed:
    """The end of an agent's stream."""


@dataclass(eq=False)
class Stream:
    """A connection from a worker that lacks the state to the one that gives it."""

    greeting: str
    caller: SimWorker
    donor: SimWorker
    chunks: list[Any] = field(default_factory=list)
    closed: bool = False

    @property
    def broken(self) -> bool:
        return self.closed or not self.donor.alive or not self.caller.alive


class State(NamedTuple):
    """The values that must be the same on every member of the job."""

    committed: int
    evaluated: int
    due: bool  # a checkpoint, at the boundary where the job stands
    weights: Tree


@dataclass
class Flight:
    """A checkpoint that a worker's writer is at: `drafting`, then `asked`, then `permitted`."""

    state: State
    stage: str = "drafting"


def validate(rendezvous: Rendezvous) -> None:
    """The invariants after every event."""
    workers = rendezvous.workers.values()
    members, workers_named = rendezvous.roster.members, rendezvous.workers.keys()
    for worker in workers:
        assert worker.agent in rendezvous.roster.agents, f"{worker.id} is on an agent that is gone"
        assert not worker.in_round or worker.state in (WorkerState.ACTIVE, WorkerState.LEAVING), (
            worker
        )
        assert worker.state is not WorkerState.ACTIVE or worker.in_round, worker
        waits = rendezvous.phase is RendezvousPhase.GATHERING and worker.state is WorkerState.READY
        assert (
            not worker.has_state
            or worker.state in (WorkerState.ACTIVE, WorkerState.LEAVING)
            or waits
        ), worker
    if rendezvous.phase is RendezvousPhase.GATHERING:
        assert all(member.serves for member in members), (
            "gathering with members that are no servers"
        )
    if rendezvous.phase in (RendezvousPhase.RUNNING, RendezvousPhase.WRITING):
        assert members, f"{rendezvous.phase} without members"
    if rendezvous.phase is RendezvousPhase.RUNNING and not rendezvous.is_stopping:
        assert any(not member.serves for member in members), "servers alone"
    if rendezvous.phase is RendezvousPhase.WRITING:
        condemned = rendezvous._condemned & workers_named  # who writes is named behind them
        assert condemned or any(worker.has_state for worker in members), "nobody can write"
    staying = [worker for worker in members if worker.state is WorkerState.ACTIVE]
    servers = sum(worker.serves for worker in staying)
    assert servers <= rendezvous.servers, f"{servers} servers stay, {rendezvous.servers} wanted"
    assert len(staying) - servers <= rendezvous.target, (
        f"{len(staying)} stay, {rendezvous.target} wanted"
    )
    coming = [worker for worker in workers if worker.state is WorkerState.READY]
    if rendezvous.phase is RendezvousPhase.RUNNING:
        spare = len(staying) + len(coming) - rendezvous.target - rendezvous.servers
        assert spare <= rendezvous.spares, f"{spare} more than {rendezvous.spares} spares are kept"
        if rendezvous._newcomers.all:
            is_held = rendezvous.round in (rendezvous._held_round, rendezvous._still_round)
            assert is_held or rendezvous._is_patient, "nothing brings in who is ready"
    assert rendezvous.target >= 1


def validate_world(world: World) -> None:
    """The invariants of every round."""
    named = [member.worker for member in world.members]
    agents = [member.agent for member in world.members]
    assert len(set(named)) == len(named) >= 1
    assert _are_together(agents), "ranks of one agent are not contiguous"
    computing = {member.agent for member, n in zip(world.members, world.shares, strict=True) if n}
    homes = [
        member.machine or member.agent for member in world.members if member.agent in computing
    ]
    assert _are_together(homes), "agents of one machine are not contiguous"
    assert world.shares[0], "rank 0 is a server"
    assert sum(world.shares) == PARTS
    for member in world.members:
        ranks, workers = world.ranks_beside(member.worker), world.workers_beside(member.worker)
        assert [rank for rank in ranks if world.shares[rank]] == list(workers), (
            "servers before workers"
        )
    for needy, donor in world.donors.items():
        assert needy in named
        assert donor in named
        assert donor not in world.donors, "a donor lacks the state itself"


def _are_together(names: Sequence[str]) -> bool:
    """Whether all that are equal follow each other."""
    return len(list(groupby(names))) == len(set(names))


# Workers ------------------------------------------------------------------------------------------


def _add_up(sums: dict[int, Any], pairs: Iterable[tuple[Block, Block]]) -> None:
    for left, right in pairs:
        sums[left.start] = list(zip(sums[left.start], sums[right.start], strict=True))


class SimWorker:
    """One worker: the protocol that ships, and its surroundings as a generator that yields the
    conditions it waits for.
    """

    def __init__(self, cluster: Cluster, name: str, agent: SimAgent) -> None:
        self.cluster, self.name, self.agent = cluster, name, agent
        # Steps of a worker alone wait for company until it says something else, or its heart beats.
        self.participant = Participant(name, company=math.inf)
        self.alive, self.asked = True, False
        self.is_strange = cluster.is_estranged
        self.inbox: deque[WorkerBound] = deque()
        self.woken = False  # by a member that let all pass
        self.notes_read, self.seen_generation = 0, 0
        self.outbox: deque[WorkerMessage | Gone] = deque()
        self.backlog: deque[Stream] = deque()
        self.greeted: dict[str, Stream] = {}
        self.doing = "starting"
        self.plan: ReductionPlan | None = None
        self.held = False  # its last commit was the round's last
        self.lacks_data = False
        self.loses_streams_in = 0  # a round, of which it gets no more from another host
        self.is_cut_off = False  # and nobody has died of whom it could hear
        self.own: list[Tree] = []
        self.state = State(0, 0, False, ())
        self.flight: Flight | None = None
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
            return self.flight is None or any(
                isinstance(message, Publish) for message in self.inbox
            )
        if self.inbox or self.asked:
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
        for message in [message for message in self.inbox if isinstance(message, Publish)]:
            self.inbox.remove(message)
            if self.flight is not None and self.flight.state[0] == message.step:
                self.flight.stage = "permitted"
        return bool(self.inbox) or self.participant.has_deferred

    @property
    def _called(self) -> bool:
        """Whether a message, a signal or another member ends a wait at the board."""
        return bool(self.inbox) or self.asked or self.woken

    def die(self, reason: str) -> None:
        """The kernel closes its link behind its last messages."""
        if self.alive:
            self.alive = False
            self.outbox.append(Gone(reason))

    def tell(self, message: WorkerMessage) -> None:
        self.participant.say(message)
        self.outbox.extend(self.participant.outgoing())

    @property
    def has_made(self) -> bool:
        """Whether a heartbeat has steps to tell of."""
        return bool(self.participant._steps_made)

    def beat(self) -> None:
        self.participant.tell_made()
        self.outbox.extend(self.participant.outgoing())

    @property
    def committed(self) -> int:
        return self.state.committed

    @property
    def world(self) -> World | None:
        return self.participant.world

    @property
    def rank(self) -> int:
        return self.participant.rank

    def _life(self) -> Iterator[Wait]:
        yield "go"
        self.doing = "ready"
        self.tell(Hello(address=self.name, layout="", facts=None))
        try:
            while True:
                try:
                    yield from self._run(self.participant.next_round())
                    yield from self._train()
                    yield from self._follow(steps.end(is_first=self.rank == 0), self._do_last)
                except RoundChanged:
                    pass
                except PeerLost:
                    yield from self._run(self.participant.await_replacement())
                self.held = False
        except SystemExit:
            self.doing = "draining"
            yield from self._settle()
            self.doing = "dismissed"
            yield "go"

    # The protocol ---------------------------------------------------------------------------------

    def _run(self, flow: Flow[T]) -> Generator[Wait, None, T]:
        """Run a flow of the protocol; the adversary chooses when each of its needs is met."""
        resume, answer = flow.send, None
        while True:
            try:
                need = resume(answer)
            except StopIteration as end:
                result: T = end.value
                return result
            finally:
                self.outbox.extend(self.participant.outgoing())
            resume = flow.send
            try:
                answer = yield from self._meet(need)
            except PeerLost as error:
                resume, answer = flow.throw, error

    def _meet(self, need: Need) -> Generator[Wait, None, Any]:
        match need:
            case Receive(timeout):
                return (yield from self._receive(timeout))
            case Pin() | Look() | AwaitNews() | Wake():
                return (yield from self._use_board(need))
            case RestoreState():
                yield "go"
                if self.cluster.storage is None:
                    return "", self.committed
                self.state = self.cluster.storage
                self.official = self.committed
                return "storage", self.committed
            case FetchState(donor, greeting):
                yield "go"
                self.doing = "fetching"
                yield from self._fetch(self.cluster.workers[donor.worker], greeting)
                return self.committed
            case CatchUp():
                yield "go"
                return self.committed
            case GiveState(_, greeting):
                self.doing = "donating"
                yield from self._give(greeting)
            case WriteState():
                self.doing = "writing"
                yield from self._write_now()
            case BeHeir():
                return False  # no agent follows here
            case EnterRound(world):
                self.doing = "installed"
                hosts = tuple(world.hosts.values())
                self.plan = ReductionPlan(PARTS, hosts, world.shares, world.machines)
            case _:
                raise AssertionError(f"nobody meets {need}")
        return None

    def _receive(self, timeout: float | None) -> Generator[Wait, None, Incoming | None]:
        while True:
            if self.asked:
                self.asked = False
                return AskedToLeave()
            if self.pending and self.inbox:
                message = self.inbox.popleft()
                assert not isinstance(message, Publish)
                return message
            if timeout is not None and (timeout < 1.0 or self.is_cut_off):
                self.is_cut_off = self.is_cut_off and timeout < 1.0
                return None  # other long waits are as good as endless ones
            yield "message"

    def _use_board(self, need: Pin | Look | AwaitNews | Wake) -> Generator[Wait, None, Any]:
        """Each store, look and wake-up is one event, before and behind which anybody may die."""
        yield "go"
        match need:
            case Pin(note):
                own = [other for other in self.agent.notes if other.member == note.member]
                if note.kind is NoteKind.ARRIVE and len(own) >= MOST_NOTES + note.member:
                    return False
                self.agent.pin(structs.replace(note, time=float(self.cluster.events)))
                yield "go"
                return True
            case Look(generation):
                if generation != self.seen_generation:
                    self.seen_generation, self.notes_read = generation, 0
                notes = self.agent.notes[self.notes_read :]
                self.notes_read += len(notes)
                return notes
            case AwaitNews():
                yield lambda: self._called
                self.woken = False
                if self.asked or self.pending:
                    return (yield from self._receive(0.0))
                return None
            case Wake(wakers):
                for waker in wakers:
                    for worker in self.agent.workers.values():
                        if self.agent.waker(worker.name) == waker:
                            worker.woken = True
                    yield "go"
        return None

    def _arrive(self, phase: str, payload: Any = None) -> Generator[Wait, None, list[Any]]:
        key = self.cluster.key_of(payload)
        arrival = self.participant.arrive(self.committed, phase, key)
        released = yield from self._run(arrival)
        return [self.cluster.payloads.get(key) for key in released.payloads]

    def _follow(
        self,
        actions: Generator[Action, Any, T],
        perform: Callable[[Action], Generator[Wait, None, object]],
    ) -> Generator[Wait, None, T]:
        answer: object = None
        while True:
            try:
                action = actions.send(answer)
            except StopIteration as end:
                result: T = end.value
                return result
            answer = yield from perform(action)

    # Checkpoints

    def _begin(self) -> None:
        """Copy the state for the writer; where it is at another, this one is left out."""
        if self.flight is None:
            self.flight = Flight(self.state)

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
        """The next action of the writer's thread."""
        assert self.flight is not None
        step = self.flight.state[0]
        if self.flight.stage == "drafting":
            self.flight.stage = "asked"
            self.tell(CheckpointDrafted(step=step))
        else:
            self.cluster.publish(self.flight.state)
            self.official, self.flight = step, None
            self.tell(CheckpointMade(step=step, path="", size_bytes=0, seconds=0.0, pause=0.0))

    # Other workers

    def _fetch(self, donor: SimWorker, greeting: str) -> Iterator[Wait]:
        stream = Stream(greeting, self, donor)
        if not donor.alive:
            raise PeerLost("it is dead")
        donor.backlog.append(stream)
        try:
            while len(stream.chunks) < 2:
                if stream.broken or self.pending:
                    raise PeerLost("or the agent spoke")
                yield lambda: stream.broken or len(stream.chunks) == 2
        finally:
            stream.closed = True
        yield "go"
        self.state = stream.chunks[1]

    def _give(self, greeting: str) -> Iterator[Wait]:
        assert self.world is not None
        for old in [message for message in self.greeted if round_of(message) < self.world.round]:
            self.greeted.pop(old).closed = True
        while greeting not in self.greeted:
            if self.pending:
                raise PeerLost("the agent spoke")
            yield lambda: bool(self.backlog)
            # It was blocked in accept: who calls is taken before the agent is heard.
            if self.backlog:
                stream = self.backlog.popleft()
                self.greeted[stream.greeting] = stream
        stream = self.greeted.pop(greeting)
        for chunk in (None, self.state):
            if stream.broken:
                raise PeerLost("it is dead")
            stream.chunks.append(chunk)
            yield "go"

    # Steps

    def _train(self) -> Iterator[Wait]:
        """As the loop of a user's file does, over epochs and their steps."""
        yield from self._compare()  # nobody adds up any more in the memory that all share
        while True:
            yield from self._follow(self._boundary(None), self._do_between)
            if self.state.evaluated < self.committed // SCHEDULE.steps_per_epoch:
                yield from self._end_epoch()
            elif self.committed == SCHEDULE.steps:
                return
            else:
                yield from self._steps()

    def _boundary(self, patience: float | None) -> Generator[Action, Any, None]:
        return steps.boundary(
            held=self.held, due=self.state.due, is_first=self.rank == 0, patience=patience
        )

    def _steps(self) -> Iterator[Wait]:
        """Steps until the epoch ends."""
        while True:
            yield from self._compute()
            assert self.plan is not None
            stages = ("blocks",) if self.plan.world_size > 1 else ()
            actions = steps.step(stages, changes_early=False)
            self.held = yield from self._follow(actions, self._do)
            if not self.committed % SCHEDULE.steps_per_epoch:
                return
            yield from self._follow(self._boundary(0.001), self._do_between)

    def _compare(self) -> Iterator[Wait]:
        """The state with those of the others; no other has it where this worker is alone."""
        if self.participant.is_alone:
            return
        assert self.world is not None
        own_state = self.state, self.name if self.is_strange else ""
        states = yield from self._arrive("agree", own_state)
        strangers = {name for _, name in states}.intersection(self.world.newcomers)
        if strangers:
            if self.name in strangers:
                self.tell(Disagree(message=""))
            raise PeerLost("it does not agree")
        assert all(state == self.state for state, _ in states), "the workers do not agree"

    def _compute(self) -> Iterator[Wait]:
        """This rank's micro-batches."""
        plan, rank, step = self.plan, self.rank, self.committed
        assert plan is not None
        self.doing = "computing"
        for block in plan.rank_blocks(rank):
            yield from self._run(self.participant.poll())
            yield "go"
            if self.lacks_data:
                yield from self._wait_for_data()
            micros = range(block.start, min(block.start + block.size, PARTS))
            sums: dict[int, Tree] = {m: [(step, m, e) for e in range(ELEMENTS)] for m in micros}
            for left, right in fold([Block(m, 1) for m in micros], block, PARTS):
                pairs = zip(sums[left.start], sums.pop(right.start), strict=True)
                sums[left.start] = [(a, b) for a, b in pairs]
            (self.own,) = sums.values()
            if plan.world_size > 1:
                self.agent.memory[self._rows[block.start]] = self.own

    @property
    def _rows(self) -> dict[int, int]:
        """Where the blocks of this host lie."""
        assert self.plan is not None
        host = self.plan.host_of(self.rank)
        return {block.start: 1 + row for row, block in enumerate(self.plan.local_blocks(host))}

    def _wait_for_data(self) -> Iterator[Wait]:
        """For a while, in which anything may happen."""
        self.lacks_data = False
        self.doing = "idle"
        yield from self._run(self.participant.wait_for_data(self.committed, 2.0))
        for _ in range(30):
            yield from self._run(self.participant.poll())
            yield "go"
        self.doing = "computing"

    def _do(self, action: Action) -> Generator[Wait, None, object]:
        """The next that a step consists of."""
        assert self.plan is not None
        match action:
            case Stand(phase):
                self.doing = f"at {phase}"
                yield from self._arrive(phase)
            case Add("blocks"):
                self.doing = "folding"
                ranks = self.plan.ranks_on(self.plan.host_of(self.rank))
                if len(self.plan.hosts) == 1:
                    yield from self._fold(self.rank - ranks.start, len(ranks))
                elif self.rank == ranks.start:
                    yield from self._fold(0, 1)
                    yield from self._trade()
            case Act.SUM | Act.PREPARE:
                pass
            case Act.COMMIT:
                self.doing = "at commit"
                key = self.cluster.key_of(self._parts())
                commit = self.participant.commit(self.committed, key, now=self.cluster.events)
                return (yield from self._run(commit))
            case Act.APPLY:
                self.doing = "applying"
                yield "go"
                total = self.agent.memory[0] if self.plan.world_size > 1 else self.own
                weights, committed = (self.state.weights, tuple(total)), self.committed + 1
                step_of_epoch = committed % SCHEDULE.steps_per_epoch
                due = bool(step_of_epoch) and not step_of_epoch % self.cluster.setting.every
                self.state = State(committed, self.state.evaluated, due, weights)
            case _:
                raise AssertionError(action)
        return None

    def _do_between(self, action: Action) -> Generator[Wait, None, None]:
        match action:
            case Settle(timeout):
                yield from self._run(self.participant.settle(timeout))
            case Act.COMPARE:
                self.doing = "held" if self.held else "agreeing"
                yield from self._compare()
                if not self.held:
                    self.state = self.state._replace(due=False)
            case Act.CHECKPOINT:
                self._begin()
            case _:
                raise AssertionError(action)

    def _do_last(self, action: Action) -> Generator[Wait, None, None]:
        match action:
            case Act.COMPARE:
                self.doing = "completing"
                yield from self._compare()
            case Stand(phase):
                yield from self._arrive(phase)
            case Act.WRITE:
                yield from self._write_now()
            case Act.COMPLETE:
                self.cluster.weights = self.state.weights
                self.tell(Completed(weights_sha256=""))
            case Act.AWAIT_DISMISSAL:
                self.doing = "done"
                yield from self._run(self.participant.await_dismissal())
                raise SystemExit
            case _:
                raise AssertionError(action)

    def _parts(self) -> list[tuple[int, int, int, int]]:
        assert self.plan is not None
        spans = cut(SCHEDULE.span(self.committed), PARTS)
        return [
            (self.rank, m, spans[m].start, spans[m].stop)
            for m in self.plan.micro_batches(self.rank)
            if len(spans[m])
        ]

    def _fold(self, part: int, parts: int) -> Iterator[Wait]:
        """One slice of so many of the rest of this worker's host."""
        plan = self.plan
        assert plan is not None
        memory, rows, host = self.agent.memory, self._rows, plan.host_of(self.rank)
        has_peers = len(plan.hosts) > 1
        elements = range(ELEMENTS * part // parts, ELEMENTS * (part + 1) // parts)
        pairs = [
            pair
            for want in (plan.host_blocks(host) if has_peers else (plan.root,))
            for pair in fold(plan.local_blocks(host), want, plan.parts)
        ]
        for left, right in pairs:
            yield "go"
            for e in elements:
                memory[rows[left.start]][e] = (
                    memory[rows[left.start]][e],
                    memory[rows[right.start]][e],
                )
        if not has_peers:
            for e in elements:
                memory[0][e] = memory[1][e]

    def _trade(self) -> Generator[Wait, None, None]:
        """The first workers of all hosts bring the folded sums of their hosts, by the way of the plan."""
        plan = self.plan
        assert plan is not None
        assert self.world is not None
        table = self.cluster.trades.setdefault((self.world.round, self.committed), {})
        host = plan.host_of(self.rank)
        route, blocks = plan.route(host), list(plan.host_blocks(host))
        blocks_here = {b.start: list(self.agent.memory[self._rows[b.start]]) for b in blocks}
        if route.above is not None:
            table["part", host] = blocks_here
            self.agent.memory[0] = list((yield from self._from(route.above, "sum", table)))
            return
        for peer in route.below:
            blocks_here |= yield from self._from(peer, "part", table)
            blocks += plan.host_blocks(peer)
        for want in plan.machine_blocks(route.machine):
            _add_up(blocks_here, fold(blocks, want, plan.parts))
        blocks_wanted = plan.machine_blocks(route.machine)
        table["part", host] = {block.start: blocks_here[block.start] for block in blocks_wanted}
        total: dict[int, Any] = {}
        for peer in sorted((host, *route.across)):
            total |= yield from self._from(peer, "part", table)
        all_blocks = [
            b for machine in range(len(plan.machines)) for b in plan.machine_blocks(machine)
        ]
        _add_up(total, fold(all_blocks, plan.root, plan.parts))
        yield "go"
        self.agent.memory[0], table["sum", host] = total[0], list(total[0])

    def _from(self, host: int, part_name: str, table: dict[Any, Any]) -> Generator[Wait, None, Any]:
        """The share of a host in this step, unless its first worker dies before, or the agent speaks."""
        assert self.world is not None
        assert self.plan is not None
        giver = self.cluster.workers[self.world.members[self.plan.ranks_on(host).start].worker]
        while (part_name, host) not in table:
            if self.pending or not giver.alive:
                raise PeerLost("it is dead, or the agent spoke")
            if self._is_cut_off_from(giver):
                self.loses_streams_in, self.is_cut_off = 0, True
                raise PeerLost("the stream has broken")
            yield (
                lambda: (
                    (part_name, host) in table
                    or self.pending
                    or not giver.alive
                    or self._is_cut_off_from(giver)
                )
            )
        return table[part_name, host]

    def _is_cut_off_from(self, giver: SimWorker) -> bool:
        assert self.world is not None
        return giver is not self and self.loses_streams_in == self.world.round

    def _end_epoch(self) -> Iterator[Wait]:
        self.doing = "evaluating"
        if not self.participant.is_alone:
            yield from self._arrive("gather")
        self.state = self.state._replace(evaluated=self.state.evaluated + 1, due=True)


# Agents -------------------------------------------------------------------------------------------


class SimAgent:
    """One agent: the hub that ships, and links."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster, self.name, self.hub = cluster, name, Hub(name)
        self.alive = True
        self.inbox: deque[MasterMessage] = deque()
        self.outbox: deque[AgentMessage | Closed] = deque()
        self.workers: dict[str, SimWorker] = {}
        self.waiting: list[str] = []  # to be started later
        self.held_round = 0  # whose next commit is to be its last
        self.notes: list[Note] = []  # on the board
        self.notes_read, self.generation = 0, 0
        if cluster.setting.board:
            self.hub.waker = self.waker
        self.memory: dict[int, list[Tree]] = {row: [None] * ELEMENTS for row in range(PARTS + 1)}

    def lose(self, unsent: int = 0) -> None:
        """It is gone, and so are the last words that it had not sent yet."""
        self.alive = False
        for _ in range(min(unsent, len(self.outbox))):
            self.outbox.pop()
        for worker in self.workers.values():
            worker.alive = False
        self.outbox.append(Closed())

    def _send(self, name: str, message: WorkerBound) -> None:
        worker = self.workers.get(name)
        if worker is not None and worker.alive:
            worker.inbox.append(message)

    def hear(self, worker: SimWorker) -> None:
        message = worker.outbox.popleft()
        self.read()
        match message:
            case Arrive():
                if message.round == self.hub.round:
                    self.seal()
                now = float(self.cluster.events)
                self._perform(self.hub.arrived(worker.name, message, now=now, wall=now))
            case Gone(reason):
                self.seal()
                self._perform(self.hub.lose(worker.name))
                del self.workers[worker.name]
                self.outbox.append(LoseWorker(worker=worker.name, reason=reason))
            case _:
                if isinstance(message, Installed):
                    self._perform(self.hub.installed(worker.name, message.round, message.step))
                self.outbox.append(FromWorker(worker=worker.name, message=message))

    def _perform(self, commands: Sequence[HubCommand]) -> None:
        records = [command.record for command in commands if isinstance(command, Count)]
        if records and records[-1].round == self.held_round:
            assert records[-1].held, "it goes on, though it was to hold"
        for command in commands:
            match command:
                case ToWorker(worker=worker, message=message):
                    self._send(worker, message)
                case Count(record):
                    self.outbox.append(Commits(records=[record]))
                case ArriveTogether():
                    self.outbox.append(command)
                case Open(generation):
                    self.notes, self.notes_read, self.generation = [], 0, generation
                case Write(note):
                    self.pin(note)
                case Flush() | Expect() | Stands():
                    pass

    # The board

    def waker(self, worker: str) -> int | None:
        """Return its number; some workers have none."""
        number = int(worker[1:])
        return None if number % 7 == 6 else number

    def pin(self, note: Note) -> None:
        self.notes.append(note)

    def read(self) -> None:
        """Read the board, which may be at any time."""
        notes, self.notes_read = self.notes[self.notes_read :], len(self.notes)
        now = float(self.cluster.events)
        steps_before = sum(isinstance(said, Commits) for said in self.outbox)
        self._perform(self.hub.noted(notes, now=now, wall=now))
        steps = sum(isinstance(said, Commits) for said in self.outbox)
        self.cluster.met_on_boards += steps - steps_before

    def seal(self) -> None:
        self._perform(self.hub.seal())
        self.read()

    def start(self, name: str) -> None:
        self.waiting.remove(name)
        self.workers[name] = self.cluster.workers[name] = SimWorker(self.cluster, name, self)

    def _forget_start(self, name: str) -> None:
        if name in self.waiting:
            self.waiting.remove(name)
            self.outbox.append(LoseWorker(worker=name, reason="it was not started"))

    def obey(self) -> None:
        message = self.inbox.popleft()
        match message:
            case EndRun():
                assert not self.workers, "it is let go, and has workers"
                self.lose()
            case StartWorkers(workers=names, delay=delay):
                self.waiting += names
                if not delay:
                    for name in names:
                        self.start(name)
            case InstallRound():
                self.seal()
                self._perform(self.hub.begin(message))
            case HoldRound(round=round):
                self.read()
                self._perform(self.hub.hold(round))
                self.held_round = round
            case ReleaseTogether():
                self._perform(self.hub.release(message))
            case ToWorker(worker=name, message=WriteNow() as request):
                self.seal()
                self._perform(self.hub.write(name, request))
            case ToWorker(worker=name, message=inner):
                if isinstance(inner, Dismissed):
                    self._forget_start(name)
                self._send(name, inner)
            case SignalWorker(worker=name):
                self._forget_start(name)
                if name in self.workers:
                    self.workers[name].die("signal 9")
            case _:
                raise AssertionError(message)


# The cluster --------------------------------------------------------------------------------------


class Cluster:
    """A job from its start to its end.

    Args:
        setting: the request to the job.
        choose: the adversary: of so many things that can happen next, which does.
        faults: with their times.
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
            attempts=Attempts(young=2, limit=setting.patience),
        )
        self.agents = {name: SimAgent(self, name) for name in "ABC"[: setting.agents]}
        self.workers: dict[str, SimWorker] = {}
        self._stored: dict[int, State] = {}
        self.payloads: dict[bytes, Any] = {}  # they are bytes: nobody on the way looks inside
        self.trades: dict[tuple[int, int], dict[Any, Any]] = {}
        self.events, self.met_on_boards = 0, 0  # steps that count without their agent
        self.steps: list[StepRecord] = []
        self.restores: list[Restore] = []
        self.end: End | None = None
        self.weights: Tree = None
        self.seen: Counter[str] = Counter()
        self.is_estranged, self.has_failed = False, False
        self.story: list[
            tuple[int, Event | Command | Fault]
        ] = []  # to be printed when a promise breaks
        self._barrier = Barrier()
        self._world: World | None = None
        self._held_round = 0  # whose next commit is to be its last
        self._over = 0  # the last round that had its last commit
        self._may_lose_agents = any(fault.kind in ("lose_agent", "depart") for fault in faults)
        self._departing: set[str] = set()
        self._has_installed, self._lost_state = False, False
        self._patient_rounds: list[int] = []
        self._brought: dict[str, Any] = {}
        self._committed = 0
        for number, name in enumerate(self.agents):
            machine = f"m{number % setting.machines}" if setting.machines else ""
            self._handle(AgentJoined(name, setting.room if number else None, machine))

    # Storage

    @property
    def storage(self) -> State | None:
        """The newest official checkpoint."""
        return self._stored[max(self._stored)] if self._stored else None

    def publish(self, state: State) -> None:
        """Make a checkpoint official, and keep the newest two."""
        self._stored[state[0]] = state
        for step in sorted(self._stored)[:-2]:
            del self._stored[step]

    def key_of(self, payload: Any) -> bytes:
        """A symbol of the things that a worker brings to a point; empty for nothing."""
        if payload is None:
            return b""
        key = str(len(self.payloads)).encode()
        self.payloads[key] = payload
        return key

    # The master

    def _handle(self, event: Event) -> None:
        self.story.append((self.events, event))
        commands = self.rendezvous.handle(event)
        validate(self.rendezvous)
        if self._committed and self.end is None:
            holders = [worker for worker in self.rendezvous.workers.values() if worker.has_state]
            self._lost_state = (
                self.rendezvous.phase is not RendezvousPhase.ENDING and not holders
            ) or (self._lost_state and not holders)
        for command in commands:
            self.story.append((self.events, command))
            self._perform(command)

    def _perform(self, command: Command) -> None:
        match command:
            case StartWorker(agent, worker, delay):
                workers_here = [
                    worker_here
                    for worker_here in at_work(self.rendezvous.workers.values())
                    if worker_here.agent == agent
                ]
                places, serves = (
                    self.rendezvous.roster.places,
                    self.rendezvous.workers[worker].serves,
                )
                assert agent not in self._departing, "it is started on a host that is to be free"
                assert len(workers_here) <= places.room.get(agent, len(workers_here)), (
                    "a host has too many"
                )
                assert not places or places.wanted[agent], "it is started where nobody is to be"
                assert serves or not places or len(workers_here) <= places.wanted[agent], (
                    "a device has two workers"
                )
                self._tell(agent, StartWorkers(workers=[worker], delay=delay))
            case GiveUpOn(_, _, _, target):
                assert target == self.rendezvous.target
            case Install(world, _, is_still):
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
                    self._tell(agent, InstallRound(world=world, still=is_still))
            case Hold(round):
                assert self._world is not None
                assert round == self._world.round
                if len(self._world.hosts) > 1:
                    self._barrier.hold(round)
                    self._held_round = round
                else:
                    self._tell(next(iter(self._world.hosts)), HoldRound(round=round))
            case WriteCheckpoint(worker):
                self._barrier.close()
                self._tell_worker(worker, WriteNow())
            case Dismiss(worker):
                self._tell_worker(worker, Dismissed())
            case Kill(worker):
                agent = self.rendezvous.workers[worker].agent
                self._tell(agent, SignalWorker(worker=worker, signal=9))
            case LetGo(agent):
                self._tell(agent, EndRun(well=True))
            case AwaitOthers(round):
                self._patient_rounds.append(round)
            case End():
                assert self.end is None
                self.end = command

    def _tell(self, agent: str, message: MasterMessage) -> None:
        if self.agents[agent].alive:
            self.agents[agent].inbox.append(message)

    def _tell_worker(self, worker: str, message: WorkerBound) -> None:
        if worker in self.rendezvous.workers:
            agent = self.rendezvous.workers[worker].agent
            self._tell(agent, ToWorker(worker=worker, message=message))

    def _hear(self, agent: SimAgent) -> None:
        message = agent.outbox.popleft()
        match message:
            case LoseWorker(worker=worker, reason=reason):
                self._handle(WorkerGone(worker, reason))
            case Closed():
                self._handle(AgentLost(agent.name, "its connection closed"))
            case Commits(records=[record]):
                self._commit(record)
            case ArriveTogether():
                self._together(agent.name, message)
            case FromWorker(worker=worker, message=inner):
                self._hear_worker(worker, inner)
            case _:
                raise AssertionError(message)

    def _hear_worker(self, worker: str, message: WorkerMessage) -> None:
        match message:
            case Hello(address=address):
                self._handle(WorkerReady(worker, address))
            case Installed(round=round, step=step, restored_from=restored):
                self._installed(worker, round, step, bool(restored))
            case LeaveAsked():
                self._handle(WorkerAsksToLeave(worker))
            case Idle(round=round):
                self._handle(WorkerIdle(worker, round))
            case CutOff(round=round):
                self._handle(WorkerCutOff(worker, round))
            case Disagree():
                can_go_on = self.rendezvous.can_do_without(worker)
                self.has_failed |= not can_go_on
                self._handle((WorkerDisagrees if can_go_on else UserFailed)(worker))
            case CheckpointDrafted(step=step):
                problem = f"a checkpoint of step {step} is ahead of the records"
                assert step <= self._committed, problem
                self._tell_worker(worker, Publish(step=step, writers=[worker]))
            case CheckpointMade():
                pass
            case NowWritten():
                self._handle(CheckpointCompleted(worker))
            case Completed():
                self._handle(WorkerCompleted(worker))
            case _:
                raise AssertionError(message)

    def _together(self, agent: str, message: ArriveTogether) -> None:
        round, point = message.round, Point(message.step, message.phase)
        release = self._barrier.arrive(agent, round, point)
        if round == self._barrier.round:
            self._brought[agent] = message.payloads
        if release is None:
            return
        assert self._world is not None
        if point.phase == COMMIT and round == self._held_round:
            assert release.hold, "it goes on, though it was to hold"
        payloads = [payload for name in self._world.hosts for payload in self._brought[name]]
        release_together = ReleaseTogether(
            round=round,
            step=point.step,
            phase=point.phase,
            hold=release.hold,
            payloads=[] if point.phase == COMMIT else payloads,
        )
        for name in self._world.hosts:
            self._tell(name, release_together)
        if point.phase == COMMIT:
            self._commit(
                CommitRecord(
                    round=round,
                    step=point.step + 1,
                    at=float(self.events),
                    payloads=payloads,
                    held=release.hold,
                )
            )

    def _commit(self, record: CommitRecord) -> None:
        assert record.step == self._committed + 1, f"step {record.step} behind {self._committed}"
        assert record.round != self._over, "a step behind the last of its round"
        self._committed = record.step
        if record.held:
            self._over = record.round
        parts = tuple(
            CommittedPart(rank, micro, start, stop, sample_checksum(np.arange(start, stop)))
            for payload in record.payloads
            for rank, micro, start, stop in self.payloads[payload]
        )
        self.steps.append(
            StepRecord(
                at=record.at,
                round=record.round,
                step=record.step,
                epoch=SCHEDULE.epoch_of(record.step - 1),
                loss=0.0,
                samples=sum(part.stop - part.start for part in parts),
                parts=parts,
                seconds={},
            )
        )
        self._handle(Committed(record.round, record.step))
        if record.held:
            self._handle(AllHeld(record.round, record.step))

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
        able: list[Callable[[], None]] = [self._lose_patience] * bool(self._patient_rounds)
        for agent in self.agents.values():
            if agent.outbox:
                able.append(partial(self._hear, agent))
            if not agent.alive:
                continue
            if agent.inbox:
                able.append(agent.obey)
            if len(agent.notes) > agent.notes_read:
                able.append(agent.read)
            able += [partial(agent.start, name) for name in agent.waiting]
            for worker in agent.workers.values():
                if worker.outbox:
                    able.append(partial(agent.hear, worker))
                if worker.runnable:
                    able.append(worker.run)
                if worker.writes:
                    able.append(worker.write)
                if worker.alive and worker.has_made:
                    able.append(worker.beat)
        return able

    def _lose_patience(self) -> None:
        self._handle(PatienceOver(self._patient_rounds.pop(0)))

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
            case "cut" if alive and self.rendezvous._progress:
                for worker in alive:
                    worker.loses_streams_in = self.rendezvous.round
            case "estrange":
                self.is_estranged = not self.is_estranged
            case "kill_workers":
                servers = {server.id for server in serving(self.rendezvous.roster.members)}
                for worker in alive:
                    if worker.name not in servers:
                        worker.die("signal 9")
            case "serve":
                places = self.rendezvous.roster.places.wanted
                self._handle(ResizeRequested(self.rendezvous.target, places, fault.which % 3))
            case "resize":
                self._handle(ResizeRequested(1 + fault.which % 4))
            case "place":
                places = self._places(fault.which)
                self._handle(ResizeRequested(sum(places.values()), places))
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
            case "depart" if agents:
                leaver = agents[fault.which % len(agents)].name
                self._departing.add(leaver)
                self._handle(AgentDeparts(leaver))
            case "lose_agent" if len(agents) > 1 or fault.which < 0:
                agents[fault.which % len(agents)].lose(unsent=fault.which)

    def _places(self, choice_count: int) -> dict[str, int]:
        """Workers by agent; where an agent may be lost, each has some: they are never placed again."""
        counts: tuple[int, ...] = [(1, 1), (2, 1), (2, 0), (0, 2)][choice_count]
        if not all(counts) and self._may_lose_agents:
            counts = (1, 2)
        if len(self.agents) == 1:
            counts = (sum(counts),)
        if len(self.agents) == 3:
            counts = (*counts, 1)
        return {name: count for name, count in zip(self.agents, counts, strict=True) if count}

    def run(self) -> Cluster:
        """Until the end; then every promise is checked."""
        while self.happen():
            pass
        self.check()
        return self

    def _filled(self) -> list[str]:
        """The agents that may have workers.

        Where workers have places, a job has none on an agent that was never to have any, whose
        last worker was asked to leave, or that is given up.
        """
        roster = self.rendezvous.roster
        return [
            agent for agent in roster.agents if not roster.places or roster.places.wanted.get(agent)
        ]

    def check(self) -> None:
        assert self.end is not None, "it hangs"
        is_over = not self.rendezvous.roster.agents and bool(self._departing)
        if self.end.outcome is RunOutcome.FAILED and not is_over and not self.has_failed:
            assert "died young" in self.end.reason, self.end
            attempts = self.rendezvous.attempts
            assert any(attempts.given_up(agent) for agent in self.rendezvous.roster.agents)
            assert all(attempts.given_up(agent) for agent in self._filled())
        assert not self.rendezvous.workers
        assert not [worker.name for worker in self.workers.values() if worker.alive], (
            "a worker is left"
        )
        lasting_steps = lasting(self.steps, self.restores)
        assert [step.step for step in lasting_steps] == list(range(1, len(lasting_steps) + 1)), (
            "steps are lost or repeated"
        )
        if self.end.outcome is not RunOutcome.DONE:
            if (
                self.end.outcome is RunOutcome.SUSPENDED
                and "died" not in self.end.reason
                and not self._lost_state
                and lasting_steps
            ):
                assert self.storage is not None
                assert self.storage[0] == len(lasting_steps), (
                    "it stopped without the last checkpoint"
                )
            assert self.storage is None or self.storage.weights == calm_weights(self.storage[0])
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
    """The end of any run, worked out by hand: ((0 1) (2 3)) in every step."""
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


def at_random(seed: int, *, extra_kinds: tuple[str, ...] = ()) -> Cluster:
    """A setting, faults and a schedule that follow from the seed.

    Args:
        seed: of all of it.
        extra_kinds: kinds of faults besides the usual ones.
    """
    rng = random.Random(seed)
    target = rng.randint(1, 4)
    setting = Setting(
        agents=rng.choice((1, 1, 2)),
        minimum=rng.randint(1, target),
        target=target,
        servers=rng.choice((0, 0, 1, 2)),
        spares=rng.randint(0, 1),
        every=rng.choice((1, 2, 1000)),
        patience=rng.choice((1, 2, 3, 1000)),
        board=seed % 4 != 3,  # not every system has one
    )
    if "depart" in extra_kinds:
        agents, room = rng.choice((1, 2, 3)), rng.choice((None, 1, 2))
        # A job that has not begun waits for another host, where those that are left lack room.
        minimum = 1 if room else setting.minimum
        machines = seed % 3 if agents == 3 else 0  # without another draw: old seeds mean the same
        setting = replace(setting, agents=agents, room=room, minimum=minimum, machines=machines)
    if "cut" in extra_kinds:
        setting = replace(setting, agents=2 + seed % 2, target=max(2, setting.target))
    faults = tuple(
        Fault(int(rng.random() ** 2 * 250), rng.choice((*KINDS, *extra_kinds)), rng.randrange(4))
        for _ in range(rng.randint(0, 5 + len(extra_kinds)))
    )
    lazy = rng.random() < 0.5  # half of the adversaries favour some workers over others

    def choose(count: int) -> int:
        chosen = int(rng.random() ** (3 if lazy else 1) * count)
        return count - 1 - chosen if late else chosen

    late = rng.random() < 0.3  # and some let the master hear of everything late
    return Cluster(setting, choose, faults)


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    extra_kinds = tuple(sys.argv[3:])
    events, outcomes, failures = 0, Counter[str](), 0
    for seed in range(first, first + count):
        cluster = at_random(seed, extra_kinds=extra_kinds)
        try:
            cluster.run()
        except Exception as error:  # noqa: BLE001 - a tally of what went wrong
            failures += 1
            if failures <= 10:
                print(seed, type(error).__name__, str(error)[:200])  # noqa: T201
        events += cluster.events
        outcomes[cluster.end.outcome if cluster.end else "none"] += 1
    print(f"{count} schedules, {events} events, {failures} failures, {dict(outcomes)}")  # noqa: T201


if __name__ == "__main__":
    main()
