"""A worker among others: its round, its rank, and the points where members wait for each other."""

from __future__ import annotations

import contextlib
import math
import socket
import sys
import threading
from collections.abc import Sequence
from operator import itemgetter
from typing import Any, NoReturn, Protocol

from brim.clock import SystemClock, monotonic, sleep
from brim.coordination.barrier import COMMIT
from brim.coordination.membership import Member, World
from brim.coordination.reduction import ReductionPlan
from brim.coordination.turns import TURN
from brim.death_notice import give_notice
from brim.domain.job import JobSpec
from brim.errors import EnvironmentFault, InternalError, ProtocolError
from brim.process import close_in_children
from brim.train.context import WorkerContext
from brim.train.distributed import Distributed
from brim.train.exchange import Alone, Exchange, SharedMemory, Shelf, Trade
from brim.train.heir import Inheritance
from brim.train.layout import Layout
from brim.train.signals import LeaveRequest, beat_forever
from brim.train.state import receive_state, send_state
from brim.wire.link import AgentGone, WorkerLink
from brim.wire.messages import (
    AgentMessage,
    Arrive,
    Beat,
    CommitRecord,
    Commits,
    Dismissed,
    Evaluated,
    Facts,
    FromWorker,
    Hello,
    Idle,
    Installed,
    InstallRound,
    Leave,
    Logged,
    Made,
    NowWritten,
    Publish,
    Released,
    Warn,
    WorkerBound,
    WorkerMessage,
    WriteNow,
)
from brim.wire.peer import Interrupted, Listener, PeerLost, connect

_LOOK = 1.0  # seconds between looks at what no message announces
# seconds between looks in passing: a micro-batch may be quicker than the call of the system
_GLANCE = 0.001
_COMPANY = (
    0.005  # seconds that steps of a worker alone wait for company: each telling wakes up the agent
)
_WITHOUT_DATA = 1.0  # seconds that data may take to come before others hear of it
_PATIENCE = 60.0
# seconds that a server waits where all workers are gone: others start first, and read data
_TO_BE_JOINED = 600.0
_INEXACT_ROWS = 64  # the largest world on one host without canonical reduction


class RoundChanged(Exception):
    """The round is over: what was under way in it is given up, and `next_round` has the new one."""


class Tree(Protocol):
    """A part of what must be the same on every member of a job."""

    def get(self) -> Any: ...

    def put(self, tree: Any) -> None: ...


class State(Tree, Protocol):
    """All that must be the same on every member of a job."""

    @property
    def committed(self) -> int: ...


class Kept(Protocol):
    """The state of a job, and how it is kept in storage."""

    @property
    def state(self) -> State: ...

    def restore(self, recorded: int | None = None) -> tuple[str, list[str]]:
        """Take what is in storage, up to the last step on record; where it came from, and what is
        wrong with newer.
        """
        ...

    def catch_up(self, recorded: int) -> None:
        """Have the state after the last step on record,
        where another member of this host made it.
        """
        ...

    def now(self) -> None:
        """Have this very state in storage when this returns."""
        ...

    def permit(self, answer: Publish) -> None:
        """The master's answer to a request to make something official."""
        ...

    def leave(self) -> None:
        """Have this very state in storage, as something that nobody permits any more; raises
        EnvironmentFault.
        """
        ...


class Members(Protocol):
    """What the training loop asks of the other workers of its job."""

    @property
    def rank(self) -> int: ...

    @property
    def world_size(self) -> int: ...

    @property
    def workers(self) -> tuple[int, ...]:
        """Ranks that compute; the others are servers."""
        ...

    @property
    def round(self) -> int:
        """The number of the round."""
        ...

    @property
    def neighbours(self) -> range:
        """Ranks of this host that compute; they begin with its first."""
        ...

    @property
    def shares(self) -> tuple[int, ...]:
        """Parts of a step that each rank computes; empty for a process by itself, which computes
        all.
        """
        ...

    @property
    def names(self) -> tuple[str, ...]:
        """The members of the round, in rank order."""
        ...

    @property
    def is_newcomer(self) -> bool:
        """Whether this worker got the state of this round from a neighbour."""
        ...

    def join(self, layout: Layout, facts: Facts | None) -> None:
        """Say that this worker is warm and may be named in a round; None where its data is not
        known yet.
        """
        ...

    def next_round(self, kept: Kept) -> Exchange:
        """Wait for the next round and take part in it, with the state of the job.

        Returns:
            How contributions are combined in this round.

        Raises:
            SystemExit: nothing of this worker is needed any more.
        """
        ...

    def await_replacement(self) -> None:
        """A neighbour failed: wait until the agent names a round without it.

        Raises:
            EnvironmentFault: it does not, so the fault is between here and there.
        """
        ...

    def poll(self) -> None:
        """Raises RoundChanged where the round is over."""
        ...

    def wait_for_data(self, step: int, seconds: float) -> None:
        """Say so where the data of a step has not come for so many seconds; else as `poll`."""
        ...

    def moved(self) -> None:
        """This worker came on within something long: it does not hang."""
        ...

    def listen(self, seconds: float) -> None:
        """Hear what comes within so many seconds, and leave it for later; permissions to publish
        act at once.

        Raises:
            RoundChanged: nothing will come any more.
        """
        ...

    def arrive(self, step: int, phase: str, payload: bytes = b"") -> Released:
        """Wait until all members stand here; raises RoundChanged where that will not be."""
        ...

    def turn(self, step: int) -> int:
        """Wait until it is this worker's turn to apply a batch, computed on the state after so many
        steps.

        Returns:
            Steps that are committed now; `commit` ends the turn. Raises RoundChanged where there
            will be none.
        """
        ...

    def commit(self, step: int, report: bytes) -> bool:
        """Have a step count: behind this there is no way back, so its update must follow.

        Returns:
            Whether it is known to be the round's last. Of one member alone that is known later: see
            `settle`.
        """
        ...

    def settle(self, within: float | None = None) -> None:
        """Wait for the answer to the last commit, where that was not waited for.

        Args:
            within: seconds after which to go on without it; None waits for it.

        Raises:
            RoundChanged: it says that this commit was the round's last.
        """
        ...

    def tell(self, message: WorkerMessage) -> None:
        """Tell the master something."""
        ...

    def hand_over(self, have: Sequence[bool], tables: Tree) -> bool:
        """Have hosts that lack the tables get them from one that has them.

        Args:
            have: of each rank, whether its host has them as far as it knows.
            tables: of this host.

        Returns:
            Whether any lacked them.

        Raises:
            Interrupted, PeerLost: another member is gone, or the agent spoke.
        """
        ...

    def wait_for_dismissal(self) -> None:
        """Stay until nothing of this worker is needed; raises RoundChanged where it is needed
        again.
        """
        ...


class Loner:
    """The members of a job that one process runs by itself, with nothing of brim around it."""

    rank = 0
    world_size = 1
    workers = (0,)
    round = 1
    neighbours = range(1)
    shares: tuple[int, ...] = ()
    names = ("this process",)
    is_newcomer = False

    def join(self, layout: Layout, facts: Facts | None) -> None:
        pass

    def next_round(self, kept: Kept) -> Exchange:
        kept.restore()
        return Alone()

    def await_replacement(self) -> None:
        raise InternalError("a process by itself has no neighbours")

    def poll(self) -> None:
        pass

    def wait_for_data(self, step: int, seconds: float) -> None:
        pass

    def moved(self) -> None:
        pass

    def listen(self, seconds: float) -> None:
        sleep(seconds)

    def arrive(self, step: int, phase: str, payload: bytes = b"") -> Released:
        return Released(round=1, step=step, phase=phase, hold=False, payloads=[payload])

    def turn(self, step: int) -> int:
        return step

    def commit(self, step: int, report: bytes) -> bool:
        return self.arrive(step, COMMIT, report).hold

    def settle(self, within: float | None = None) -> None:
        pass

    def hand_over(self, have: Sequence[bool], tables: Tree) -> bool:
        return False

    def tell(self, message: WorkerMessage) -> None:
        """There is no master; what it would warn of, the user should know all the same."""
        if isinstance(message, Warn):
            print(f"brim: {message.message}", file=sys.stderr)  # noqa: T201

    def wait_for_dismissal(self) -> None:
        pass


class Membership:
    """A worker's membership in a job under an agent.

    Args:
        context: what the worker was born with.
    """

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._leave = LeaveRequest()
        self._told_to_leave = False
        self._link = WorkerLink(context.link, self._leave.wakeup)
        close_in_children(context.link)
        self._listener = Listener(context.host, context.secret)
        self._layout: Layout | None = None
        self._shelf: Shelf | None = None
        self._world: World | None = None
        self._next: InstallRound | None = None
        self._writes: WriteNow | None = None
        # Of a worker alone. Told is never more than one commit, and while it has no answer nothing
        # more is made.
        self._telling = threading.RLock()
        self._made: list[Made] = []  # steps that count once they are told
        self._told: int | None = None  # the last step that was told, whose answer is on its way
        self._told_of: list[Made] = []  # it and the steps that were told with it
        self._told_at = 0.0
        self._company = 0.0 if context.spec.faults else _COMPANY  # faults come at a step's number
        self._idle_at = (
            0,
            0,
        )  # the round and step in which this worker said last that it waits for data
        self._orphaned = False  # the agent was killed
        self._inheritance = Inheritance(context.run_dir)
        self._has_state = False
        self._said: list[
            Evaluated | Logged
        ] = []  # of the last two steps that had any: it may not have been heard
        self._looked = 0.0
        self._moves = 0  # of the main thread: it does not hang in the user's code
        context.before_failing.append(self._tell_made)
        beat_forever(self._beat, interval=context.spec.heartbeat_timeout / 4)

    @property
    def rank(self) -> int:
        return self._round.rank_of(self._context.worker)

    @property
    def world_size(self) -> int:
        return self._round.world_size

    @property
    def workers(self) -> tuple[int, ...]:
        return self._round.workers

    @property
    def round(self) -> int:
        return self._round.round

    @property
    def neighbours(self) -> range:
        return self._round.workers_beside(self._context.worker)

    @property
    def shares(self) -> tuple[int, ...]:
        return self._round.shares

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(member.worker for member in self._round.members)

    @property
    def _patience(self) -> float:
        """Seconds that another worker is waited for that sends nothing: where it hangs, its agent
        ends it before.
        """
        limit = self._context.spec.hang_timeout
        return math.inf if limit is None else limit + _PATIENCE

    @property
    def _round(self) -> World:
        assert self._world is not None, "no round has been installed"
        return self._world

    def tell(self, message: WorkerMessage) -> None:
        if isinstance(message, Evaluated | Logged):
            before = max((said.step for said in self._said if said.step < message.step), default=0)
            self._said = [said for said in self._said if said.step >= before] + [message]
        self._tell_made()
        with contextlib.suppress(
            EnvironmentFault
        ):  # the agent is gone: whoever looks at the link finds out
            self._link.send(message)

    def _beat(self) -> None:
        """Be heard, also where the main thread is at something long behind steps that nobody knows
        of.
        """
        self._tell_made()
        self._link.send(Beat(moves=self._moves))

    @property
    def is_newcomer(self) -> bool:
        return self._context.worker in self._round.donors

    def join(self, layout: Layout, facts: Facts | None) -> None:
        self._layout, spec = layout, self._context.spec
        most = spec.workers.maximum + spec.servers
        if spec.transport != "distributed" and spec.asynchronous is None and most > 1:
            self._open_shelf(layout)  # else others would wait for it in its first round
        if (
            layout.device.type == "cpu"
        ):  # another is in use until the kernel has cleared the process away
            give_notice(self._context.notice)
        self.tell(Hello(address=self._listener.address, layout=layout.fingerprint, facts=facts))

    # Waiting --------------------------------------------------------------------------------------

    def _receive(self) -> WorkerBound | AgentGone:
        """The next message, however long it takes."""
        while True:
            self._pass_on_leave_request()
            message = self._link.receive(_LOOK)
            if message is not None:
                return message

    def _pass_on_leave_request(self) -> None:
        if self._leave.asked and not self._told_to_leave:
            self._told_to_leave = True
            self.tell(Leave())

    def _take(self, message: WorkerBound | AgentGone) -> None:
        """A message that ends a wait for something else."""
        match message:
            case AgentGone() if self._inheritance.is_mine and self._has_state:
                self._orphaned = True  # the step that is under way is given up
                raise RoundChanged
            case AgentGone():
                raise EnvironmentFault("the agent of this worker is gone")
            case Released() if self._answers(message):
                self._told = None
                if message.hold:
                    raise RoundChanged
            case InstallRound() | WriteNow() if self._told is not None or self._made:
                # The state has a step that may not count. This cannot be
                # (docs/design/decisions.md): better die.
                step = self._made[-1].step if self._told is None else self._told
                raise ProtocolError(f"{message} before the answer to the commit of step {step + 1}")
            case InstallRound():
                self._next = message
                raise RoundChanged
            case Dismissed():
                self._inheritance.settle(on_me=False)
                raise SystemExit(0)
            case WriteNow():  # the job ends here: the step that is under way is given up
                self._writes = message
                raise RoundChanged
            case Released(round=round) if self._world is not None and round < self._world.round:
                return  # of a round that is over
            case _:
                raise ProtocolError(f"nobody waits for {message}")

    def _answers(self, message: Released) -> bool:
        if self._told is None:
            return False
        return (message.round, message.step, message.phase) == (
            self._round.round,
            self._told,
            COMMIT,
        )

    def poll(self) -> None:
        self._moves += 1
        now = monotonic()
        if now - self._looked < _GLANCE:
            return
        self._looked = now
        self._pass_on_leave_request()
        while self._link.pending():
            self._take(self._receive())

    def wait_for_data(self, step: int, seconds: float) -> None:
        self.poll()
        here = (self._round.round, step)
        if seconds < _WITHOUT_DATA or self._idle_at == here:
            return
        self.settle()  # from here on the round may end at any moment: see `commit`
        self._idle_at = here
        self.tell(Idle(round=self._round.round))

    def moved(self) -> None:
        self._moves += 1

    def listen(self, seconds: float) -> None:
        self._moves += 1
        self._link.listen(seconds)
        if self._link.is_over and not self._orphaned:  # what is waited for will not come
            self._take(AgentGone())

    def _is_called(self) -> bool:
        """Whether the agent has something to say to one that waits for another worker, which is no
        hang of its own.
        """
        self._moves += 1
        return self._link.pending()

    def turn(self, step: int) -> int:
        return self.arrive(step, TURN).step

    def commit(self, step: int, report: bytes) -> bool:
        if self.world_size > 1 or self._idle_at[0] == self._round.round:
            return self.arrive(step, COMMIT, report).hold
        now = monotonic()
        with self._telling:
            self._await_answer()
            self._made.append(Made(step, now, report))
        if now - self._told_at >= self._company:
            self._tell_made()
        return False

    def _tell_made(self) -> None:
        """Have the steps count that this worker made alone: all of them, or none."""
        with self._telling:
            if self._made:
                self._told, self._told_at = self._made[-1].step, self._made[-1].at
                arrival = Arrive(
                    round=self._round.round, step=self._told, phase=COMMIT, made=self._made
                )
                self._told_of, self._made = self._made, []
                with contextlib.suppress(EnvironmentFault):  # as in `tell`
                    self._link.send(arrival)

    def _await_answer(self) -> None:
        while self._told is not None:
            self._take(self._receive())

    def settle(self, within: float | None = None) -> None:
        if within is None:
            self._tell_made()
            self._await_answer()
        elif self._told is not None:
            self._link.listen(within)
            while self._told is not None and self._link.pending():
                self._take(self._receive())

    def arrive(self, step: int, phase: str, payload: bytes = b"") -> Released:
        self.settle()
        self.tell(Arrive(round=self._round.round, step=step, phase=phase, payload=payload))
        while True:
            message = self._receive()
            if isinstance(message, Released) and message.round == self._round.round:
                return message
            self._take(message)

    def wait_for_dismissal(self) -> None:
        with contextlib.suppress(SystemExit):
            while True:
                self._take(self._receive())

    # Rounds ---------------------------------------------------------------------------------------

    def next_round(self, kept: Kept) -> Exchange:
        self._link.on_publish = kept.permit
        while True:
            named = self._await_round(kept)
            self._world, self._next = named.world, None
            self._listener.drop_waiting(self._is_over)
            try:
                self._install(named, kept)
                if named.still:
                    continue
                knows_all = (
                    self._context.spec.asynchronous is None
                )  # of other workers' last steps, too
                self._inheritance.settle(
                    on_me=knows_all and self.rank == 0 and len(named.world.hosts) == 1
                )
                return self._exchange(named.world)
            except (Interrupted, PeerLost):
                self.await_replacement()

    def _is_over(self, greeting: str) -> bool:
        return _round_of(greeting) < self._round.round

    def _await_round(self, kept: Kept) -> InstallRound:
        while True:
            if self._orphaned:
                self._leave_behind(kept)
            if self._writes is not None:
                self._write(self._writes, kept)
            if self._next is not None:
                return self._next
            with contextlib.suppress(RoundChanged):
                self._take(self._receive())

    def _write(self, asked: WriteNow, kept: Kept) -> None:
        self._writes = None
        kept.catch_up(asked.recorded or 0)
        kept.now()
        self.tell(NowWritten())

    def _leave_behind(self, kept: Kept) -> NoReturn:
        """Leave to the next agent what this worker has said, then what it has: no state is ahead of
        the records.
        """
        words: list[tuple[int, AgentMessage]] = []
        with self._telling:
            made = [*(self._told_of if self._told is not None else []), *self._made]
        behind = SystemClock().wall() - monotonic()
        for each in made:  # the answer can only be yes (docs/design/decisions.md)
            commit = CommitRecord(
                round=self._round.round,
                step=each.step + 1,
                at=behind + each.at,
                payloads=[each.report],
            )
            words.append((commit.step, Commits(records=[commit])))
        for said in self._said:
            words.append((said.step, FromWorker(worker=self._context.worker, message=said)))
        self._inheritance.leave_words(word for _, word in sorted(words, key=itemgetter(0)))
        kept.leave()
        raise SystemExit(0)

    def await_replacement(self) -> None:
        serves = self.rank not in self.workers
        deadline = monotonic() + (_TO_BE_JOINED if serves else _PATIENCE)
        with contextlib.suppress(RoundChanged):
            while monotonic() < deadline:
                self._moves += 1
                message = self._link.receive(_LOOK)
                if message is not None:
                    self._take(message)
            raise EnvironmentFault(
                "cannot reach a worker that the master still considers alive", retryable=True
            )

    def _install(self, named: InstallRound, kept: Kept) -> None:
        world, state = named.world, kept.state
        me, members = self._context.worker, {member.worker: member for member in world.members}
        self._has_state = not world.restore and me not in world.donors
        restored = ""
        if world.restore and world.members[0].worker == me:
            restored, problems = kept.restore(named.recorded)
            for problem in problems:
                self.tell(Warn(message=f"{problem}; going on from {restored}"))
        elif me in world.donors:
            self._fetch(world, members[world.donors[me]], state)
        elif self._has_state:
            kept.catch_up(named.recorded or 0)
        for worker in sorted(worker for worker, donor in world.donors.items() if donor == me):
            greeting = _state_greeting(world.round, worker)
            peer = self._listener.accept(
                greeting, timeout=self._patience, cancelled=self._is_called
            )
            with peer:
                send_state(peer, state.get(), timeout=self._patience, cancelled=self._is_called)
        self._has_state = True
        self.tell(Installed(round=world.round, step=state.committed, restored_from=restored))

    def _fetch(self, world: World, donor: Member, state: State) -> None:
        greeting = _state_greeting(world.round, self._context.worker)
        with self._call(donor.address, greeting) as peer:
            state.put(receive_state(peer, timeout=self._patience, cancelled=self._is_called))

    def hand_over(self, have: Sequence[bool], tables: Tree) -> bool:
        givers = self._round.givers(have)
        if None in givers.values():
            raise InternalError("no host has the tables of embeddings")
        greeting = f"round {self._round.round} tables for {{}}"
        for rank in (rank for rank, giver in givers.items() if giver == self.rank):
            expected = greeting.format(self._round.members[rank].worker)
            with self._listener.accept(
                expected, timeout=self._patience, cancelled=self._is_called
            ) as peer:
                send_state(peer, tables.get(), timeout=self._patience, cancelled=self._is_called)
        giver = givers.get(self.rank)
        if giver is not None:
            address = self._round.members[giver].address
            with self._call(address, greeting.format(self._context.worker)) as peer:
                tables.put(receive_state(peer, timeout=self._patience, cancelled=self._is_called))
        return bool(givers)

    def _call(self, address: str, greeting: str) -> socket.socket:
        """Call another worker; raises as `connect` does."""
        return connect(
            address,
            greeting,
            self._context.secret,
            timeout=_PATIENCE,
            patience=self._patience,
            cancelled=self._is_called,
        )

    def _exchange(self, world: World) -> Exchange:
        layout, spec = self._layout, self._context.spec
        assert layout is not None, "join comes first"
        plan = ReductionPlan(sum(world.shares), tuple(world.hosts.values()), world.shares)
        if world.world_size == 1 or spec.asynchronous is not None:
            return Alone()
        if spec.transport == "distributed":
            return Distributed(
                layout,
                plan,
                round=world.round,
                rank=self.rank,
                host=self._context.host,
                device=layout.device,
                patience=self._patience,
                agree=lambda word: self.arrive(0, "links", word).payloads,
                cancelled=self._is_called,
            )
        shelf = self._open_shelf(layout)
        trade = None
        if len(plan.hosts) > 1 and self.rank == plan.ranks_on(plan.host_of(self.rank)).start:
            trade = Trade(
                shelf,
                plan,
                world,
                rank=self.rank,
                patience=self._patience,
                call=self._call,
                listener=self._listener,
                cancelled=self._is_called,
            )
        keeps_total = spec.clip_norm is not None or spec.delay > 0
        return SharedMemory(shelf, plan, rank=self.rank, trade=trade, keeps_total=keeps_total)

    def _open_shelf(self, layout: Layout) -> Shelf:
        if self._shelf is None:
            spec = self._context.spec
            rows = 1 + (spec.micro_batches if spec.exact else _INEXACT_ROWS)
            self._shelf = Shelf(self._context.memory, layout, rows)
        return self._shelf


def parts_of(spec: JobSpec, workers: int) -> int:
    """Parts that a step is cut into: without canonical reduction, one large batch per worker."""
    return spec.micro_batches if spec.exact else workers


def _round_of(greeting: str) -> int:
    """The round that a stream belongs to; 0 for a stranger's."""
    _, _, rest = greeting.partition("round ")
    number, _, _ = rest.partition(" ")
    return int(number) if number.isdecimal() else 0


def _state_greeting(round: int, worker: str) -> str:
    return f"round {round} state for {worker}"
