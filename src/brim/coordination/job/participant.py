"""A worker's side of its job: its messages, its waits, and the meaning of each message to it.

Pure, and without I/O, as h11 is: it takes messages and times, and puts messages into an outbox.
A step of several messages is a flow: a generator that yields each `Need`, and is then sent the
answer, or has the error thrown into it that came in place of one. The process at the edge meets
needs (`train/membership.py`), and so does the scheduler of schedules in the tests, which chooses
when each of them is answered.

A flow runs from one need to the next without a pause; a driver that lets other threads speak for the
worker sees to that, and empties the outbox before anything else is said.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, TypeVar

from brim.coordination.job.barrier import COMMIT, Point
from brim.coordination.job.board import PHASES, Board, Note, NoteKind
from brim.coordination.job.membership import Member, World
from brim.coordination.job.messages.agents import (
    AgentMessage,
    CommitRecord,
    Commits,
    FromWorker,
)
from brim.coordination.job.messages.workers import (
    Arrive,
    CutOff,
    Dismissed,
    DropStep,
    Evaluated,
    Idle,
    Installed,
    InstallRound,
    LeaveAsked,
    Logged,
    Made,
    NowWritten,
    Released,
    WorkerBound,
    WorkerMessage,
    WriteNow,
)
from brim.errors import EnvironmentFault, ProtocolError

T = TypeVar("T")

_WITHOUT_DATA = 1.0  # seconds that data may take to come before others hear of it
_TO_HEAR_OF_A_DEATH = 2.0  # seconds in which the agent would have said that a worker has died
_ROUND_TIMEOUT = 60.0  # seconds until a round must be there without a worker that cannot be reached
# seconds that a server waits where all workers are gone: others start first, and read data
_TO_BE_JOINED = 600.0


class RoundChanged(Exception):
    """The round is over: its unfinished work is given up, and `next_round` has the new one."""


class Interrupted(Exception):
    """The agent has a message, so a stream to another worker may not be needed any more."""


class PeerLost(EnvironmentFault):
    """Another worker is gone or silent; the agent will name a round without it."""


# What a worker hears besides the messages of its agent ---------------------------------------------


class AgentGone:
    """The agent has ended, and every message that it had sent was received."""


class AskedToLeave:
    """SIGTERM came: this worker is to give up its place at the next boundary."""


Incoming = WorkerBound | AgentGone | AskedToLeave


# What a flow asks for -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Receive:
    """Wait for the next message to this worker.

    The answer is that, or None where it took too long.

    Args:
        within: seconds to wait; 0 takes messages that are there; None waits for as long as it
            takes.
    """

    within: float | None = None


@dataclass(frozen=True, slots=True)
class Pin:
    """Put a note on the board. The answer is whether there was room for it."""

    note: Note


@dataclass(frozen=True, slots=True)
class Look:
    """Read the board. The answer is the notes that were not read yet.

    Args:
        whole: read all of this generation, and with reports.
    """

    generation: int
    whole: bool = False


@dataclass(frozen=True, slots=True)
class AwaitNews:
    """Wait until somebody wakes this worker, a message comes, or for a while.

    The answer is a message, or None: then the board is to be looked at.
    """


@dataclass(frozen=True, slots=True)
class Wake:
    """Wake all others that wait at the board, by these numbers."""

    wakers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RestoreState:
    """Take the state of the job from storage, up to the last step on record, or start afresh.

    The answer is where it came from (empty: it starts afresh), and the steps that it has.
    """

    recorded: int | None


@dataclass(frozen=True, slots=True)
class FetchState:
    """Get the state from another member. The answer is the steps that it has.

    Raises Interrupted or PeerLost, as `GiveState` does.
    """

    donor: Member
    greeting: str


@dataclass(frozen=True, slots=True)
class GiveState:
    """Give the state to a newcomer that calls with this greeting."""

    worker: str
    greeting: str


@dataclass(frozen=True, slots=True)
class CatchUp:
    """Have the state after the last step on record, where another member of this host made it.

    The answer is the steps that the state has.
    """

    recorded: int | None


@dataclass(frozen=True, slots=True)
class WriteState:
    """Have this very state in storage, official, behind the last step on record."""

    recorded: int | None


@dataclass(frozen=True, slots=True)
class BeHeir:
    """Become the heir, or stop being it.

    An heir outlives its killed agent, to store the job's state. The answer is whether this worker
    is the heir now: a worker that could not write that down is not.
    """

    on_me: bool


@dataclass(frozen=True, slots=True)
class LeaveState:
    """Leave to the next agent the messages of this worker, then its state.

    See `Participant.last_words`.
    """


@dataclass(frozen=True, slots=True)
class EnterRound:
    """Be ready to add up with the members of a round.

    Raises Interrupted or PeerLost.
    """

    world: World


Need = (
    Receive
    | Pin
    | Look
    | AwaitNews
    | Wake
    | RestoreState
    | FetchState
    | GiveState
    | CatchUp
    | WriteState
    | BeHeir
    | LeaveState
    | EnterRound
)
Flow = Generator[Need, Any, T]

_RECEIVE = Receive()
_POLL = Receive(within=0.0)


# The worker ---------------------------------------------------------------------------------------


class Participant:
    """The protocol of one worker, from its first word to its last.

    ```
     joins ──▶ awaits a round ──▶ installs it ──▶ trains in it: makes steps, stands at points
                 ▲    │ WriteNow       │ PeerLost        │ RoundChanged: held, a member's death,
                 │    ▼                ▼                 ▼ another round, or the end is near
                 │  writes      awaits a replacement ◀── PeerLost
                 └──────────────────┴────────────────────┘      Dismissed, anywhere: it leaves
    ```

    A worker alone in its round does not wait for the answers to its commits: it keeps the steps
    that it made until it tells of them, all together, and goes on. At most one commit is told at a
    time, and while that has no answer nothing more is made.

    Args:
        worker: its name.
        company: seconds for which a worker alone batches its commits: telling of them wakes up the
            agent.

    Attributes:
        world: the round that this worker is in; None before the first.
        is_heir: this worker outlives its agent, to leave the state of the job.
    """

    def __init__(self, worker: str, *, company: float = 0.0) -> None:
        self.worker, self.company = worker, company
        self.world: World | None = None
        self.is_heir = False
        self.is_orphan = False  # the agent was killed, and this worker has the job's state to leave
        self._outbox: list[WorkerMessage] = []
        self._next: InstallRound | None = None
        self._to_write: WriteNow | None = None
        self._has_state = False
        self._has_asked_to_leave = False
        self._steps_made: list[Made] = []  # steps that count once they are told
        self._step_told: int | None = (
            None  # the last step that was told, whose answer is on its way
        )
        self._told_of: list[Made] = []  # it and the steps that were told with it
        self._told_at = 0.0
        self._idle_at = (0, 0)  # the round and step where it said last that it waits for data
        # what was said of the last two steps of which anything was: it may not have been heard
        self._messages_said: list[Evaluated | Logged] = []
        self._deferred: deque[Incoming] = (
            deque()
        )  # messages that came behind a point that was passed
        self._board: Board | None = None  # the last of this round
        self._meets_on_board = False
        self._notes_left: Sequence[Note] = ()  # of the board, where the agent is gone
        self._wakers: tuple[int, ...] = ()  # of the others

    @property
    def has_deferred(self) -> bool:
        """Return whether a message is to be taken that was heard already."""
        return bool(self._deferred)

    @property
    def round(self) -> World:
        """The round that this worker is in."""
        assert self.world is not None, "no round has been installed"
        return self.world

    @property
    def rank(self) -> int:
        return self.round.rank_of(self.worker)

    @property
    def is_alone(self) -> bool:
        """Return whether this worker is alone in the round."""
        return self.round.world_size == 1

    # Saying ---------------------------------------------------------------------------------------

    def outgoing(self) -> list[WorkerMessage]:
        """Return the messages to be sent, in order; they are taken out."""
        if not self._outbox:
            return []
        outgoing, self._outbox = self._outbox, []
        return outgoing

    def say(self, message: WorkerMessage) -> None:
        """Say something, behind the steps that were made before it."""
        if isinstance(message, Evaluated | Logged):
            last_step = max(
                (
                    message_before.step
                    for message_before in self._messages_said
                    if message_before.step < message.step
                ),
                default=0,
            )
            self._messages_said = [
                message_before
                for message_before in self._messages_said
                if message_before.step >= last_step
            ] + [message]
        self.tell_made()
        self._outbox.append(message)

    def tell_made(self) -> None:
        """Have the steps count that this worker made alone: all of them, or none."""
        if self._steps_made:
            last = self._steps_made[-1]
            self._step_told, self._told_at = last.step, last.at
            self._outbox.append(
                Arrive(round=self.round.round, step=last.step, phase=COMMIT, made=self._steps_made)
            )
            self._told_of, self._steps_made = self._steps_made, []

    def last_words(self, *, wall_offset: float) -> list[AgentMessage]:
        """Return the messages that the agent may not have received.

        Commits, and words behind them.

        The answer to a commit of a worker alone can only be yes (docs/design/decisions/lone-worker-commits-ahead.md).

        Args:
            wall_offset: seconds from the clock that `commit` was given to the time since 1970.
        """
        words: list[tuple[int, AgentMessage]] = []
        if self._board is not None:
            board = Board(generation=self._board.generation, members=self._board.members)
            for note in self._notes_left:
                board.take(note)
            for step in board.counted:
                record = CommitRecord(
                    round=self.round.round,
                    step=step.step,
                    at=wall_offset + step.time,
                    payloads=list(step.reports),
                    held=step.is_last,
                )
                words.append((step.step, Commits(records=[record])))
        for record_made in [
            *(self._told_of if self._step_told is not None else []),
            *self._steps_made,
        ]:
            record = CommitRecord(
                round=self.round.round,
                step=record_made.step + 1,
                at=wall_offset + record_made.at,
                payloads=[record_made.report],
            )
            words.append((record.step, Commits(records=[record])))
        for message_said in self._messages_said:
            words.append((message_said.step, FromWorker(worker=self.worker, message=message_said)))
        return [word for _, word in sorted(words, key=itemgetter(0))]

    # Hearing --------------------------------------------------------------------------------------

    def take(self, message: Incoming) -> None:
        """Take a message that comes where something else is waited for.

        Raises:
            RoundChanged: the round is over.
            SystemExit: nothing of this worker is needed any more.
            EnvironmentFault: the agent is gone.
            ProtocolError: no member waits for it.
        """
        match message:
            case AskedToLeave():
                if not self._has_asked_to_leave:
                    self._has_asked_to_leave = True
                    self.say(LeaveAsked())
            case AgentGone() if self.is_heir and self._has_state:
                self.is_orphan = True  # the step that is under way is given up
                raise RoundChanged
            case AgentGone():
                raise EnvironmentFault("the agent of this worker is gone")
            case Released() if self._answers(message):
                self._step_told = None
                if message.hold:
                    raise RoundChanged
            case InstallRound() | WriteNow() if self._step_told is not None or self._steps_made:
                # The state has a step that may not count. This cannot be
                # (docs/design/decisions/lone-worker-commits-ahead.md): better die.
                step = self._steps_made[-1].step if self._step_told is None else self._step_told
                raise ProtocolError(f"{message} before the answer to the commit of step {step + 1}")
            case InstallRound():
                self._next = message
                raise RoundChanged
            case DropStep():
                raise RoundChanged
            case Dismissed():
                self.is_heir = False  # the agent may end before this worker does
                raise SystemExit(0)
            case WriteNow():  # the job ends here: the step that is under way is given up
                self._to_write = message
                raise RoundChanged
            case Released(round=round) if self.world is not None and round < self.world.round:
                pass  # of a round that is over
            case _:
                raise ProtocolError(f"unexpected message {message}")

    def _answers(self, released: Released) -> bool:
        """Return whether this is the answer to the commit that was told last."""
        if self._step_told is None:
            return False
        expected = (self.round.round, self._step_told, COMMIT)
        return (released.round, released.step, released.phase) == expected

    def _hear(self, need: Receive) -> Flow[Any]:
        """Receive the next message: first those that were heard already."""
        if self._deferred:
            return self._deferred.popleft()
        return (yield need)

    # On the board ---------------------------------------------------------------------------------

    def _meet(self, board: Board, point: Point, payload: bytes) -> Flow[Released | None]:
        """Stand at a point on the board.

        Returns:
            The release, or None where the agent keeps the barriers, which has not heard of this
            arrival.
        """
        rank = self.rank
        note = Note(
            kind=NoteKind.ARRIVE,
            generation=board.generation,
            member=rank,
            step=point.step,
            phase=point.phase,
            report=payload,
        )
        if not (yield Pin(note)):
            return None
        message: Incoming | None = None
        while True:
            yield from self._look(board)
            if board.has_passed(point):
                if message is not None:
                    self._deferred.append(message)
                if board.last == rank:
                    yield Wake(self._wakers)
                hold = board.is_over and point.phase == COMMIT
                return Released(
                    round=self.round.round, step=point.step, phase=point.phase, hold=hold
                )
            if board.is_replaced:  # the round ended without this worker, which will hear so
                while True:
                    if message is not None:
                        self.take(message)
                    message = yield from self._hear(_RECEIVE)
            if isinstance(message, AgentGone) and not board.is_sealed:
                # Nobody seals it any more: this step is to count for all or for nobody.
                yield Pin(Note(kind=NoteKind.SEAL, generation=board.generation, member=rank))
                continue
            if message is not None:
                if board.is_sealed and isinstance(message, Released):
                    self._deferred.append(message)
                else:
                    self.take(message)
            if board.is_sealed:
                return (yield from self._await_release(board, rank))
            message = yield AwaitNews()

    def _await_release(self, board: Board, rank: int) -> Flow[Released | None]:
        """Wait for the agent, which has this arrival if it came before the seal."""
        self._meets_on_board = False
        if not board.is_handed_over(rank):
            return None
        return (yield from self._await_released())

    def _look(self, board: Board) -> Flow[None]:
        for note in (yield Look(board.generation)):
            board.take(note)

    # Within a round -------------------------------------------------------------------------------

    def poll(self) -> Flow[None]:
        """Take all waiting messages."""
        while (message := (yield from self._hear(_POLL))) is not None:
            self.take(message)

    def arrive(self, step: int, phase: str, payload: bytes = b"") -> Flow[Released]:
        """Stand at a point until all members do; raises as `take` where that will not be."""
        if self._steps_made or self._step_told is not None:
            yield from self.settle()
        if self._board is not None and self._meets_on_board and phase in PHASES:
            released = yield from self._meet(self._board, Point(step, phase), payload)
            if released is not None:
                return released
        self._meets_on_board = False  # the agent seals it
        self.say(Arrive(round=self.round.round, step=step, phase=phase, payload=payload))
        return (yield from self._await_released())

    def _await_released(self) -> Flow[Released]:
        while True:
            message = yield from self._hear(_RECEIVE)
            if isinstance(message, Released) and message.round == self.round.round:
                if message.board:
                    wakers = list(message.wakers)
                    wakers.pop(self.rank)
                    self._wakers = tuple(wakers)
                    self._board = Board(generation=message.board, members=self.round.world_size)
                    self._meets_on_board = True
                return message
            self.take(message)

    def commit(self, step: int, report: bytes, *, now: float) -> Flow[bool]:
        """Have a step count: behind this there is no way back, so its update must follow.

        A worker alone is not answered here: it goes on, and hears later whether this commit was the
        round's last. Once it has said that it waits for data, the round may end at any moment: then
        it waits for the answer as others do.

        Args:
            now: seconds, by any clock that only goes forward.

        Returns:
            Whether it is known to be the round's last.
        """
        if not self.is_alone or self._idle_at[0] == self.round.round:
            released = yield from self.arrive(step, COMMIT, report)
            return released.hold
        if self._step_told is not None:
            yield from self._await_answer()
        self._steps_made.append(Made(step, now, report))
        if now - self._told_at >= self.company:
            self.tell_made()
        return False

    def settle(self, timeout: float | None = None) -> Flow[None]:
        """Wait for the answer to the last commit, where that was not waited for.

        Args:
            timeout: seconds after which to go on without it; None has all steps told, and waits.
        """
        if timeout is None:
            self.tell_made()
            yield from self._await_answer()
        elif self._step_told is not None:
            message = yield from self._hear(Receive(timeout))
            while message is not None:
                self.take(message)
                message = None if self._step_told is None else (yield from self._hear(_POLL))

    def _await_answer(self) -> Flow[None]:
        while self._step_told is not None:
            self.take((yield from self._hear(_RECEIVE)))

    def wait_for_data(self, step: int, seconds: float) -> Flow[None]:
        """Say so, once, where the data of a step has not come for so many seconds."""
        position = (self.round.round, step)
        if seconds >= _WITHOUT_DATA and self._idle_at != position:
            yield from self.settle()  # from here on the round may end at any moment: see `commit`
            self._idle_at = position
            self.say(Idle(round=self.round.round))

    def await_replacement(self) -> Flow[None]:
        """Wait, where another member failed, until the agent names a round without it.

        Where none has been named soon, nobody has died, and only the stream has broken: then this
        worker says so.

        Raises:
            EnvironmentFault: there is no other round even so: the fault is between here and there.
        """
        serves = self.rank not in self.round.workers
        try:
            while (message := (yield from self._hear(Receive(_TO_HEAR_OF_A_DEATH)))) is not None:
                self.take(message)
            self.say(CutOff(round=self.round.round))
            while (
                message := (
                    yield from self._hear(Receive(_TO_BE_JOINED if serves else _ROUND_TIMEOUT))
                )
            ) is not None:
                self.take(message)
        except RoundChanged:
            return
        raise EnvironmentFault(
            "cannot reach a worker that the master still considers alive", retryable=True
        )

    def await_dismissal(self) -> Flow[None]:
        """Stay until nothing of this worker is needed.

        Another member's death is of no account by itself: the job may be complete, and no step is
        under way. Raises RoundChanged where this worker is needed again.
        """
        try:
            while True:
                message = yield from self._hear(_RECEIVE)
                if not isinstance(message, DropStep):
                    self.take(message)
        except SystemExit:
            return

    # Between rounds -------------------------------------------------------------------------------

    def next_round(self) -> Flow[Any]:
        """Wait for the next round in which steps are made, and be in it with the state of the job.

        Returns:
            The answer to `EnterRound`.
        """
        while True:
            named = yield from self._await_round()
            self.world, self._next = named.world, None
            self._board, self._meets_on_board = None, False
            try:
                yield from self._install(named)
                if not named.still:
                    is_first = self.rank == 0 and len(named.world.hosts) == 1
                    self.is_heir = yield BeHeir(on_me=is_first)
                    return (yield EnterRound(named.world))
            except (Interrupted, PeerLost):
                yield from self.await_replacement()

    def _await_round(self) -> Flow[InstallRound]:
        while True:
            if self.is_orphan:
                if self._board is not None:
                    self._notes_left = yield Look(self._board.generation, whole=True)
                yield LeaveState()
                raise SystemExit(0)
            if self._to_write is not None:
                request, self._to_write = self._to_write, None
                yield WriteState(request.recorded)
                self.say(NowWritten())
            if self._next is not None:
                return self._next
            with contextlib.suppress(RoundChanged):
                self.take((yield from self._hear(_RECEIVE)))

    def _install(self, named: InstallRound) -> Flow[None]:
        """Get the state of the job, and give it to this worker's recipients."""
        world = named.world
        members = {member.worker: member for member in world.members}
        self._has_state = not world.restore and self.worker not in world.donors
        restored = ""
        if self._has_state:
            step = yield CatchUp(named.recorded)
        elif self.worker in world.donors:
            greeting = state_greeting(world.round, self.worker)
            step = yield FetchState(members[world.donors[self.worker]], greeting)
        else:
            restored, step = yield RestoreState(named.recorded)
        for worker in sorted(_fed_by(self.worker, world)):
            yield GiveState(worker, state_greeting(world.round, worker))
        self._has_state = True
        self.say(Installed(round=world.round, step=step, restored_from=restored))


def _fed_by(donor: str, world: World) -> Iterator[str]:
    return (worker for worker, giver in world.donors.items() if giver == donor)


def state_greeting(round: int, worker: str) -> str:
    """The words of a newcomer to the member that has the state for it."""
    return f"round {round} state for {worker}"


def round_of(greeting: str) -> int:
    """The round that a stream belongs to; 0 for a stranger's."""
    _, _, rest = greeting.partition("round ")
    number, _, _ = rest.partition(" ")
    return int(number) if number.isdecimal() else 0
