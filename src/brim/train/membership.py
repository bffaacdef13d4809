"""A worker among others: its round, its rank, and the points where members wait for each other."""

from __future__ import annotations

import contextlib
import math
import socket
import sys
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from msgspec import structs
from torch import Tensor

from brim.coordination.job.barrier import COMMIT
from brim.coordination.job.membership import World
from brim.coordination.job.participant import (
    AgentGone,
    AskedToLeave,
    AwaitNews,
    BeHeir,
    CatchUp,
    EnterRound,
    FetchState,
    Flow,
    GiveState,
    Incoming,
    Interrupted,
    LeaveState,
    Look,
    Need,
    Participant,
    PeerLost,
    Pin,
    Receive,
    RestoreState,
    Wake,
    WriteState,
    round_of,
)
from brim.coordination.job.reduction import ReductionPlan
from brim.coordination.job.turns import TURN
from brim.domain.job import JobSpec
from brim.errors import EnvironmentFault, InternalError
from brim.host.clock import SystemClock, monotonic, sleep
from brim.host.death_notice import give_notice
from brim.host.process import close_in_children
from brim.train.context import WorkerContext
from brim.train.exchange.distributed import Distributed
from brim.train.exchange.folding import Exchange, LocalExchange, SharedMemory
from brim.train.exchange.layout import Layout
from brim.train.exchange.shelf import ReadyPieces, Shelf
from brim.train.exchange.trade import Trade
from brim.train.signals import LeaveRequest, beat_forever
from brim.train.state.heir import Inheritance
from brim.train.state.transfer import receive_state, send_state
from brim.wire.board_file import BoardFile, fall_asleep, wake
from brim.wire.link import WorkerLink
from brim.wire.messages import (
    Beat,
    Disagree,
    Dismissed,
    Facts,
    Hello,
    Publish,
    Released,
    Warn,
    WorkerMessage,
)
from brim.wire.peer import Listener, connect

T = TypeVar("T")

_POLL_INTERVAL = 1.0  # seconds between looks at what no message announces
# seconds between looks in passing: a micro-batch may be quicker than the call of the system
_GLANCE = 0.001
_COMPANY = (
    0.005  # seconds that steps of a worker alone wait for company: each telling wakes up the agent
)
_EXTRA_PATIENCE = 60.0
_PIECE_BYTES = 1 << 20  # of a row, that go to other hosts together: 8 ms at 1 Gbit/s
_INEXACT_ROWS = 64  # the largest world on one host without canonical reduction


class LookAhead(Exception):
    """The state is to be written: the next work is noted first, then `next_round` is called again."""


class Tree(Protocol):
    """A part of the state that must be the same on every member of a job."""

    def get(self) -> Any: ...

    def put(self, tree: Any) -> None: ...


class SharedState(Tree, Protocol):
    """All that must be the same on every member of a job."""

    @property
    def committed(self) -> int: ...

    def frozen(self) -> Mapping[str, Tensor]:
        """Return the tensors that a newcomer may have built as they are, by name."""
        ...


class StateKeeper(Protocol):
    """The state of a job, and how it is kept in storage."""

    @property
    def state(self) -> SharedState: ...

    def restore(self, recorded: int | None = None) -> tuple[str, list[str]]:
        """Take the stored state, up to the last step on record.

        Returns where it came from, and the problems of newer states.
        """
        ...

    def catch_up(self, recorded: int) -> None:
        """Have the state after the last step on record, made by another member of this host."""
        ...

    def now(self, *, ahead: bool = False) -> None:
        """Have this very state in storage when this returns.

        Args:
            ahead: raise LookAhead where the next work can be noted in it, and is not.
        """
        ...

    def permit(self, answer: Publish) -> None:
        """The master's answer to a request to make something official."""
        ...

    def leave(self) -> None:
        """Have this very state in storage, unofficially.

        Raises EnvironmentFault.
        """
        ...


class Members(Protocol):
    """The training loop's view of the other workers of its job."""

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
        """Parts of a step that each rank computes; empty for a process by itself.

        Such a process computes all parts.
        """
        ...

    @property
    def names(self) -> tuple[str, ...]:
        """The members of the round, in rank order."""
        ...

    @property
    def newcomers(self) -> frozenset[int]:
        """Ranks that have made no step, where another one has."""
        ...

    @property
    def has_experience(self) -> bool:
        """Return whether a member has made a step in a round before."""
        ...

    def turn_away(self, ranks: Collection[int], reason: str) -> None:
        """Have the run go on without newcomers that do not agree with the others.

        Raises:
            PeerLost: always; another round comes.
        """
        ...

    @property
    def is_newcomer(self) -> bool:
        """Return whether this worker got the state of this round from a neighbour."""
        ...

    def join(self, layout: Layout, facts: Facts | None) -> None:
        """Say that this worker is warm and may be named in a round.

        The facts are None where its data is not known yet.
        """
        ...

    def next_round(self, keeper: StateKeeper) -> Exchange:
        """Wait for the next round and take part in it, with the state of the job.

        Returns:
            How contributions are combined in this round.

        Raises:
            LookAhead: the state is to be written, and the next work is not noted in it.
            SystemExit: this worker is not needed any more.
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
        """Note that this worker came on within something long: it does not hang."""
        ...

    def listen(self, seconds: float) -> None:
        """Hear messages within so many seconds, and keep them for later.

        Permissions to publish act at once.

        Raises:
            RoundChanged: nothing will come any more.
        """
        ...

    def arrive(self, step: int, phase: str, payload: bytes = b"") -> Released:
        """Wait until all members stand here; raises RoundChanged where that will not be."""
        ...

    def turn(self, step: int) -> int:
        """Wait until it is this worker's turn to apply a batch.

        The batch was computed on the state after so many steps.

        Returns:
            Steps that are committed now; `commit` ends the turn. Raises RoundChanged where there
            will be none.
        """
        ...

    def commit(
        self, step: int, report: bytes, *, overlap: Callable[[], None] | None = None
    ) -> bool:
        """Have a step count: behind this there is no way back, so its update must follow.

        Args:
            step: its number.
            report: on it.
            overlap: done while the answer is on its way, where it is waited for.

        Returns:
            Whether it is known to be the round's last. Of one member alone that is known later: see
            `settle`.
        """
        ...

    def settle(self, timeout: float | None = None) -> None:
        """Wait for the answer to the last commit, where that was not waited for.

        Args:
            timeout: seconds after which to go on without it; None waits for it.

        Raises:
            RoundChanged: it says that this commit was the round's last.
        """
        ...

    def tell(self, message: WorkerMessage) -> None:
        """Tell the master something."""
        ...

    def hand_over(self, has_tables: Sequence[bool], tables: Tree) -> bool:
        """Have hosts that lack the tables get them from one that has them.

        Args:
            has_tables: of each rank, whether its host has them as far as it knows.
            tables: of this host.

        Returns:
            Whether any lacked them.

        Raises:
            Interrupted, PeerLost: another member is gone, or the agent spoke.
        """
        ...

    def wait_for_dismissal(self) -> None:
        """Stay until nothing of this worker is needed.

        Raises RoundChanged where it is needed again.
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
    newcomers = frozenset[int]()
    has_experience = False

    def join(self, layout: Layout, facts: Facts | None) -> None:
        pass

    def next_round(self, keeper: StateKeeper) -> Exchange:
        keeper.restore()
        return LocalExchange()

    def await_replacement(self) -> None:
        raise InternalError("a process by itself has no neighbours")

    def turn_away(self, ranks: Collection[int], reason: str) -> None:
        raise InternalError("a process by itself has no newcomers")

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

    def commit(
        self, step: int, report: bytes, *, overlap: Callable[[], None] | None = None
    ) -> bool:
        return self.arrive(step, COMMIT, report).hold

    def settle(self, timeout: float | None = None) -> None:
        pass

    def hand_over(self, has_tables: Sequence[bool], tables: Tree) -> bool:
        return False

    def tell(self, message: WorkerMessage) -> None:
        """Tell the user a warning that a master would have: there is no master."""
        if isinstance(message, Warn):
            print(f"brim: {message.message}", file=sys.stderr)  # noqa: T201

    def wait_for_dismissal(self) -> None:
        pass


class Membership:
    """A worker's membership in a job under an agent: meets the needs of its protocol.

    Args:
        context: what the worker was born with.
    """

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._leave = LeaveRequest()
        self._link = WorkerLink(context.link, self._leave.wakeup)
        close_in_children(context.link)
        self._listener = Listener(context.host, context.secret, insecure=context.spec.insecure)
        self._layout: Layout | None = None
        self._shelf: Shelf | None = None
        self._inheritance = Inheritance(context.run_dir)
        # Other threads speak for this worker, too: a heartbeat tells of steps, a checkpoint's
        # writer of drafts. Nothing they say may come between a flow's decision and its words.
        self._speaking = threading.Lock()
        self._participant = Participant(
            context.worker,
            company=0.0 if context.spec.faults else _COMPANY,  # faults come at a step's number
        )
        self._looked = 0.0
        self._overlap: Callable[[], None] | None = None  # until the next wait
        self._moves = 0  # of the main thread: it does not hang in the user's code
        notes, reports, *self._wakers = context.board or (-1, -1)
        self._board = BoardFile(notes, reports)
        self._waiting: tuple[Flow[Any], Need] | None = None  # for what comes next to be noted
        context.before_failing.append(self._tell_made)
        beat_forever(self._beat, interval=context.spec.heartbeat_timeout / 4)

    @property
    def rank(self) -> int:
        return self._participant.rank

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
    def is_newcomer(self) -> bool:
        return self._context.worker in self._round.donors

    @property
    def newcomers(self) -> frozenset[int]:
        return frozenset(map(self._round.rank_of, self._round.newcomers))

    @property
    def has_experience(self) -> bool:
        return self._round.has_experience

    def turn_away(self, ranks: Collection[int], reason: str) -> None:
        if self.rank in ranks:
            self.tell(Disagree(message=reason))
        raise PeerLost(reason)

    @property
    def _round(self) -> World:
        return self._participant.round

    @property
    def _patience(self) -> float:
        """Seconds that a silent worker is waited for: where it hangs, its agent ends it before."""
        limit = self._context.spec.hang_timeout
        return math.inf if limit is None else limit + _EXTRA_PATIENCE

    def join(self, layout: Layout, facts: Facts | None) -> None:
        self._layout, spec = layout, self._context.spec
        total = spec.workers.maximum + spec.servers
        if spec.transport != "distributed" and spec.asynchronous is None and total > 1:
            self._open_shelf(layout)  # else others would wait for it in its first round
        if layout.is_on_host:  # a device is in use until the kernel has cleared the process away
            give_notice(self._context.notice)
        self.tell(
            Hello(
                address=self._listener.address,
                layout=layout.fingerprint,
                facts=facts,
                micro_batches=spec.micro_batches if spec.command and spec.exact else 0,
            )
        )

    # Saying ---------------------------------------------------------------------------------------

    def tell(self, message: WorkerMessage) -> None:
        with self._speaking:
            self._participant.say(message)
            self._send_out()

    def _tell_made(self) -> None:
        with self._speaking:
            self._participant.tell_made()
            self._send_out()

    def _beat(self) -> None:
        """Send a sign of life.

        It is heard also where the main thread is at something long behind unreported steps.
        """
        self._tell_made()
        self._link.send(Beat(moves=self._moves))

    def _send_out(self) -> None:
        outgoing = self._participant.outgoing()
        if outgoing:
            # Where the agent is gone, the next look at the link finds out.
            with contextlib.suppress(EnvironmentFault):
                for message in outgoing:
                    self._link.send(message)

    # Meeting needs --------------------------------------------------------------------------------

    def _run(self, flow: Flow[T], kept: StateKeeper | None = None, need: Need | None = None) -> T:
        """Run a flow of the protocol to its end.

        Args:
            kept: the state of the job, where the flow needs it.
            need: that the flow waits for; None where it is to begin.
        """
        resume: Callable[[Any], Need] = flow.send
        answer: Any = None
        while True:
            if need is None:
                with self._speaking:
                    try:
                        need = resume(answer)
                    except StopIteration as end:
                        result: T = end.value
                        return result
                    finally:
                        self._send_out()
            resume, current, need = flow.send, need, None
            if isinstance(current, Receive):
                answer = self._receive(current.within)
                continue
            if isinstance(current, Pin | Look | AwaitNews | Wake):
                answer = self._use_board(current)
                continue
            assert kept is not None, f"{current} outside of next_round"
            try:
                answer = self._meet(current, kept)
            except LookAhead:
                self._waiting = flow, current
                raise
            except (Interrupted, PeerLost) as error:
                resume = flow.throw
                answer = error

    def _receive(self, timeout: float | None) -> Incoming | None:
        """Hear the next that comes, or None after so many seconds."""
        if timeout == 0.0:
            return self._next_message(0.0) if self._has_news else None
        if self._overlap is not None:
            overlap, self._overlap = self._overlap, None
            overlap()
        deadline = math.inf if timeout is None else monotonic() + timeout
        while True:
            remaining = deadline - monotonic()
            message = self._next_message(max(0.0, min(remaining, _POLL_INTERVAL)))
            if message is not None or remaining <= 0:
                return message
            self._moves += timeout is not None  # who waits for long on purpose does not hang

    def _use_board(self, need: Pin | Look | AwaitNews | Wake) -> object:
        match need:
            case Pin(note):
                return self._board.pin(structs.replace(note, time=monotonic()))
            case Look(generation, whole):
                return self._board.look(generation, whole=whole, with_reports=whole)
            case Wake(wakers):
                wake(self._wakers[number] for number in wakers)
                return None
            case AwaitNews():
                if self._overlap is not None:
                    overlap, self._overlap = self._overlap, None
                    overlap()
                waker = self._wakers[self._context.place]
                message = self._next_message(_POLL_INTERVAL, waker=waker)
                fall_asleep(waker)
                return message

    @property
    def _has_news(self) -> bool:
        return self._participant.has_deferred or self._leave.is_requested or self._link.pending()

    def _next_message(self, timeout: float, *, waker: int = -1) -> Incoming | None:
        if self._leave.is_requested:
            self._leave.is_requested = False
            return AskedToLeave()
        message = self._link.receive(timeout, waker=waker)
        if isinstance(message, Dismissed):
            self._inheritance.settle(on_me=False)
        return message

    def _meet(self, need: Need, keeper: StateKeeper) -> object:
        """Meet a flow's need, and return the result."""
        match need:
            case RestoreState(recorded):
                restored, problems = keeper.restore(recorded)
                for problem in problems:
                    self.tell(Warn(message=f"{problem}; going on from {restored}"))
                return restored, keeper.state.committed
            case FetchState(donor, greeting):
                with self._call(donor.address, greeting) as peer:
                    tree = receive_state(
                        peer,
                        frozen=keeper.state.frozen().values(),
                        timeout=self._patience,
                        cancelled=self._is_called,
                    )
                keeper.state.put(tree)
                return keeper.state.committed
            case GiveState(_, greeting):
                with self._accept(greeting) as peer:
                    tree = keeper.state.get()
                    send_state(
                        peer,
                        tree,
                        frozen=keeper.state.frozen().values(),
                        timeout=self._patience,
                        cancelled=self._is_called,
                    )
            case CatchUp(recorded):
                keeper.catch_up(recorded or 0)
                return keeper.state.committed
            case WriteState(recorded):
                keeper.catch_up(recorded or 0)
                keeper.now(ahead=True)
            case LeaveState():
                self._leave_behind(keeper)
            case BeHeir(on_me):
                knows_all = self._context.spec.asynchronous is None  # others' last steps, too
                self._inheritance.settle(on_me=on_me and knows_all)
                return self._inheritance.is_mine
            case EnterRound(world):
                # Nobody asks any more for streams of rounds before, which would stay open for ever.
                self._listener.drop_waiting(lambda greeting: round_of(greeting) < world.round)
                return self._exchange(world)
            case _:
                raise InternalError(f"no handler for {need}")
        return None

    # Within a round -------------------------------------------------------------------------------

    def poll(self) -> None:
        self._moves += 1
        now = monotonic()
        if now - self._looked >= _GLANCE:
            self._looked = now
            if self._has_news:
                self._run(self._participant.poll())

    def wait_for_data(self, step: int, seconds: float) -> None:
        self.poll()
        self._run(self._participant.wait_for_data(step, seconds))

    def moved(self) -> None:
        self._moves += 1

    def listen(self, seconds: float) -> None:
        self._moves += 1
        self._link.listen(seconds)
        if self._link.is_over and not self._participant.is_orphan:
            self._participant.take(AgentGone())  # what is waited for will not come

    def turn(self, step: int) -> int:
        return self.arrive(step, TURN).step

    def commit(
        self, step: int, report: bytes, *, overlap: Callable[[], None] | None = None
    ) -> bool:
        self._overlap = overlap
        try:
            return self._run(self._participant.commit(step, report, now=monotonic()))
        finally:
            self._overlap = None

    def settle(self, timeout: float | None = None) -> None:
        self._run(self._participant.settle(timeout))

    def arrive(self, step: int, phase: str, payload: bytes = b"") -> Released:
        return self._run(self._participant.arrive(step, phase, payload))

    def await_replacement(self) -> None:
        self._run(self._participant.await_replacement())

    def wait_for_dismissal(self) -> None:
        self._run(self._participant.await_dismissal())

    # Rounds ---------------------------------------------------------------------------------------

    def next_round(self, keeper: StateKeeper) -> Exchange:
        self._link.on_publish = keeper.permit
        flow, need = self._waiting or (self._participant.next_round(), None)
        self._waiting = None
        exchange: Exchange = self._run(flow, keeper, need)
        return exchange

    def _leave_behind(self, keeper: StateKeeper) -> None:
        """Leave to the next agent this worker's messages, then its state.

        So no state is ahead of the records.
        """
        clock_offset = SystemClock().wall() - monotonic()
        with self._speaking:
            words = self._participant.last_words(wall_offset=clock_offset)
        self._inheritance.leave_words(words)
        keeper.leave()

    def hand_over(self, hidden_texts: Sequence[bool], tables: Tree) -> bool:
        givers = self._round.givers(hidden_texts)
        if None in givers.values():
            raise InternalError("no host has the tables of embeddings")
        greeting = f"round {self._round.round} tables for {{}}"
        for rank in (rank for rank, giver in givers.items() if giver == self.rank):
            with self._accept(greeting.format(self._round.members[rank].worker)) as peer:
                send_state(peer, tables.get(), timeout=self._patience, cancelled=self._is_called)
        giver = givers.get(self.rank)
        if giver is not None:
            address = self._round.members[giver].address
            with self._call(address, greeting.format(self._context.worker)) as peer:
                tables.put(receive_state(peer, timeout=self._patience, cancelled=self._is_called))
        return bool(givers)

    # Other workers --------------------------------------------------------------------------------

    def _is_called(self) -> bool:
        """Return whether the agent has something to say to a worker that waits for another one.

        Such a wait is no hang of its own.
        """
        self._moves += 1
        return self._participant.has_deferred or self._link.pending()

    def _call(self, address: str, greeting: str) -> socket.socket:
        """Call another worker; raises as `connect` does."""
        return connect(
            address,
            greeting,
            self._context.secret,
            timeout=_EXTRA_PATIENCE,
            patience=self._patience,
            cancelled=self._is_called,
            insecure=self._context.spec.insecure,
        )

    def _accept(self, greeting: str) -> socket.socket:
        """Wait for another worker's call; raises as `Listener.accept` does."""
        return self._listener.accept(greeting, timeout=self._patience, cancelled=self._is_called)

    def _exchange(self, world: World) -> Exchange:
        layout, spec = self._layout, self._context.spec
        assert layout is not None, "join comes first"
        hosts, machines = tuple(world.hosts.values()), world.machines
        plan = ReductionPlan(sum(world.shares), hosts, world.shares, machines)
        if world.world_size == 1 or spec.asynchronous is not None:
            return LocalExchange()
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
        keeps_total = spec.clip_norm is not None or spec.delay > 0
        if len(plan.hosts) == 1:
            return SharedMemory(shelf, plan, rank=self.rank, keeps_total=keeps_total)
        pieces, ready = layout.pieces(_PIECE_BYTES), ReadyPieces(shelf.ready, world.round)
        trade = None
        if self.rank == plan.ranks_on(plan.host_of(self.rank)).start:
            trade = Trade(
                shelf,
                pieces,
                ready,
                plan,
                world,
                rank=self.rank,
                patience=self._patience,
                call=self._call,
                listener=self._listener,
                cancelled=self._is_called,
            )
        return SharedMemory(
            shelf,
            plan,
            rank=self.rank,
            pieces=pieces,
            ready=ready,
            trade=trade,
            keeps_total=keeps_total,
        )

    def _open_shelf(self, layout: Layout) -> Shelf:
        if self._shelf is None:
            spec = self._context.spec
            rows = 1 + (spec.micro_batches if spec.exact else _INEXACT_ROWS)
            self._shelf = Shelf(self._context.memory, layout, rows)
        return self._shelf


def parts_of(spec: JobSpec, workers: int) -> int:
    """Parts that a step is cut into: without canonical reduction, one large batch per worker."""
    return spec.micro_batches if spec.exact else workers
