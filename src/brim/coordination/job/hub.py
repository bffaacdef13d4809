"""The barriers of an agent's own workers: decides on releases and commits. Pure.

The hub hears the arrivals of its workers. Where all members of a round are its own, it is the root:
its release is the commit. Where a round spans agents, it passes complete arrivals on to the master,
which is the root then. Messages and times go in, commands come out; the agent performs them in
order (`agent/loop.py`), and so does the scheduler of schedules in the tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from brim.coordination.job.barrier import COMMIT, Barrier, Point, Release
from brim.coordination.job.board import Board, Note, NoteKind
from brim.coordination.job.membership import World
from brim.coordination.job.messages.agents import (
    ArriveTogether,
    CommitRecord,
    ReleaseTogether,
    ToWorker,
)
from brim.coordination.job.messages.workers import (
    Arrive,
    DropStep,
    InstallRound,
    Made,
    Released,
    WriteNow,
)
from brim.coordination.job.turns import TURN, Answer, Applied, Granted, Proceed, Turns
from brim.coordination.job.waits import Doing
from brim.errors import InternalError

_LOCAL_PHASES = ("blocks",)  # these concern the workers of one host only


class Count(msgspec.Struct, frozen=True):
    """The command to count a step.

    The master must hear of it, even if this process ends, before a worker does.
    """

    record: CommitRecord


class Flush(msgspec.Struct, frozen=True):
    """Have the master hear at once of the steps that count: everybody waits for the next round."""


class Expect(msgspec.Struct, frozen=True):
    """The job waits for this worker from now on, which is at this."""

    worker: str
    doing: Doing


class Stands(msgspec.Struct, frozen=True):
    """The note that a worker waits for others."""

    worker: str


class Open(msgspec.Struct, frozen=True):
    """Empty the board: all members of the round stand here, and meet on it from now on."""

    generation: int


class Write(msgspec.Struct, frozen=True):
    """Put a note on the board."""

    note: Note


HubCommand = ToWorker | Count | Flush | Expect | ArriveTogether | Stands | Open | Write


class Hub:
    """The barriers of one agent.

    Args:
        agent: its name.

    Attributes:
        members: its workers that are in the round, in rank order.
        turns: of a job whose workers apply whole batches in turns, or None.
        board: on which the members meet without this hub, as far as it was read; None: they meet
            here.
        waker: the number by which others wake a worker that waits at the board; None where it
            cannot be there. Where the job has no board it is None itself.
        drops_steps: members leave their step as soon as another one is dead.
    """

    def __init__(self, agent: str) -> None:
        self._agent = agent
        self._barrier = Barrier()
        self._world: World | None = None
        self._counted_at = 0.0  # the time of the last step that counts
        self._lost: set[str] = set()  # workers; no name is given twice
        self.members: tuple[str, ...] = ()
        self.turns: Turns | None = None
        self.board: Board | None = None
        self.waker: Callable[[str], int | None] | None = None
        self.drops_steps = True
        self._generation = 0
        self._handed_over = False  # one may still look at the last board
        self._doing: dict[str, Doing | None] = {}  # of members at the board, when it was read last

    @property
    def round(self) -> int:
        """The number of the round."""
        return self._barrier.round

    @property
    def _is_root(self) -> bool:
        assert self._world is not None, "no round has begun"
        return len(self.members) == self._world.world_size

    # From the master ------------------------------------------------------------------------------

    def begin(self, named: InstallRound) -> list[HubCommand]:
        """Take up a new round; those that wait in the old one hear of it.

        Raises:
            ProtocolError: it cannot follow the one that is there.
        """
        self._check_sealed()
        self._handed_over = False
        world = self._world = named.world
        members = (member.worker for member in world.members if member.agent == self._agent)
        self.members = tuple(members)
        self._barrier.begin(world.round, self.members)
        if self.turns is not None:
            self.turns.begin(world.round, self.members)
        doing = Doing(kind="round", words=f"taking up round {world.round}", round=world.round)
        commands: list[HubCommand] = []
        for worker in self.members:
            commands.append(ToWorker(worker=worker, message=named))
            commands += self._expect(worker, doing)
        return commands

    def hold(self, round: int) -> list[HubCommand]:
        """Have the next commit of this round be its last; for a past round nothing happens."""
        self._barrier.hold(round)
        if self.turns is not None:
            self.turns.hold(round)
        return self._write(NoteKind.HOLD) if round == self.round else []

    def release(self, release: ReleaseTogether) -> list[HubCommand]:
        """Let the workers go on that the master releases; for a past round nothing happens."""
        if release.round != self.round:
            return []
        point = Point(release.step, release.phase)
        payloads = tuple(release.payloads)
        return self._release(Release(release.round, point, release.hold, payloads))

    def write(self, worker: str, request: WriteNow) -> list[HubCommand]:
        """Have a worker write the final checkpoint: no member is released any more."""
        self._check_sealed()
        self._barrier.close()
        if self.turns is not None:
            self.turns.close()
        doing = Doing(kind="write", words="writing the last checkpoint", round=self.round)
        return [*self._expect(worker, doing), ToWorker(worker=worker, message=request)]

    # From the workers -----------------------------------------------------------------------------

    def lose(self, worker: str) -> list[HubCommand]:
        """A worker is dead: where it was a member, nothing of this round counts any more.

        The master hears of it, and names a round. A member of that on another host may tell of the
        state sooner than this agent tells of a step that counts behind the death: so none does, even
        where the dead stands at its commit. So the other members leave their step at once: they are
        ready when the round comes, and their processors are free for those who name it. Not where
        the master may have let the step count meanwhile, which is the root of a round of several
        hosts, nor where the last checkpoint is being written, which may compute ahead.
        """
        self._lost.add(worker)
        commands: list[HubCommand] = []
        if worker in self.members:
            self._check_sealed()
            if self._drops_steps:
                commands = self._drop_step()
            self._barrier.close()
        if self.turns is not None:
            self.turns.lose(worker)
        return commands

    @property
    def _drops_steps(self) -> bool:
        """Return whether members may leave the step under way: it cannot count any more."""
        in_turns = self.turns is not None
        return self.drops_steps and self._is_root and not in_turns and not self._barrier.is_closed

    def _drop_step(self) -> list[HubCommand]:
        """Tell the members that live to leave their step; nobody waits for them meanwhile."""
        drop = DropStep(round=self.round)
        survivors = [member for member in self.members if member not in self._lost]
        return [
            command
            for member in survivors
            for command in (ToWorker(worker=member, message=drop), Stands(member))
        ]

    def installed(self, worker: str, round: int, step: int) -> list[HubCommand]:
        """A member has taken up a round, with the state after so many steps."""
        return self._expect(worker, in_step(step + 1, round)) if round == self.round else []

    def arrived(self, worker: str, arrival: Arrive, *, now: float, wall: float) -> list[HubCommand]:
        """A worker stands at a point.

        Args:
            now: seconds, by the clock that the worker's `Made` have.
            wall: the same moment, in seconds since 1970.

        Raises:
            ProtocolError: as `Barrier.arrive` and `Turns` do.
        """
        if arrival.round == self.round:
            self._check_sealed()
        turns = self.turns if len(self.members) > 1 else None
        point = Point(arrival.step, arrival.phase)
        if turns is not None and point.phase == TURN:
            return self._answer(turns.ask(worker, arrival.round, point.step), arrival.round, wall)
        if turns is not None and point.phase == COMMIT:
            answers = turns.commit(worker, arrival.round, point.step, arrival.payload)
            return self._answer(answers, arrival.round, wall)
        rested = [] if turns is None else turns.rest(worker, arrival.round)
        release = self._barrier.arrive(worker, arrival.round, point, arrival.payload)
        if release is None:
            return self._answer(rested, arrival.round, wall)
        if turns is not None:
            turns.level()
        if not self._is_root and point.phase not in _LOCAL_PHASES:
            arrival_message = ArriveTogether(
                round=release.round,
                step=point.step,
                phase=point.phase,
                payloads=list(release.payloads),
            )
            return [arrival_message]
        if point.phase == COMMIT:
            return self._commit(release, arrival.made, now=now, wall=wall)
        return self._release(release)

    def _commit(
        self, release: Release, records: list[Made], *, now: float, wall: float
    ) -> list[HubCommand]:
        """Commit one step, or several of a worker alone.

        This hub is the root, so its release is the commit.
        """
        wall_offset = wall - now
        steps = [(record.step, wall_offset + record.at, [record.report]) for record in records]
        counted: list[HubCommand] = []
        for step, timestamp, payloads in steps or [
            (release.point.step, wall, list(release.payloads))
        ]:
            is_held = release.hold and step == release.point.step
            counted.append(self._count(release.round, step, timestamp, payloads, is_held=is_held))
        # No worker hears of a commit that could be forgotten.
        return [*counted, *self._release(release), *_flush(release.hold)]

    def _count(
        self, round: int, step: int, timestamp: float, payloads: list[bytes], *, is_held: bool
    ) -> Count:
        self._counted_at = max(
            timestamp, self._counted_at
        )  # between two clocks' readings time goes by
        return Count(
            CommitRecord(
                round=round, step=step + 1, at=self._counted_at, payloads=payloads, held=is_held
            )
        )

    def _release(self, release: Release) -> list[HubCommand]:
        point = release.point
        opened, wakers = self._open(release)
        self._handed_over = False
        message = Released(
            round=release.round,
            step=point.step,
            phase=point.phase,
            hold=release.hold,
            payloads=[] if point.phase == COMMIT else list(release.payloads),
            board=self._generation if opened else 0,
            wakers=wakers,
        )
        commands: list[HubCommand] = list(opened)
        doing = _doing_behind(release)
        for worker in self.members:
            commands.append(ToWorker(worker=worker, message=message))
            if doing is not None and (point.phase != "end" or self._is_first(worker)):
                commands += self._expect(worker, doing)
        return commands

    # The board ------------------------------------------------------------------------------------

    def _open(self, release: Release) -> tuple[list[HubCommand], list[int]]:
        """Return the command that opens a board, and the members' wakers; nothing where none is.

        It opens behind a point of this hub at which all arrived on their links: so no member still
        looks at the board before.
        """
        world = self._world
        if self.waker is None or self.turns is not None or world is None or world.servers:
            return [], []
        if release.point.phase == "end" or release.hold or not self._is_root:
            return [], []
        if self._handed_over:
            return [], []
        wakers = [self.waker(worker) for worker in self.members]
        numbers = [number for number in wakers if number is not None]
        if len(wakers) < 2 or len(numbers) < len(wakers):
            return [], []
        self._generation += 1
        self.board = Board(generation=self._generation, members=len(wakers))
        self._doing = {}
        hold = self._write(NoteKind.HOLD) if self._barrier.is_holding else []
        return [Open(self._generation), *hold], numbers

    def seal(self) -> list[HubCommand]:
        """Keep the barriers of this round here again, once `noted` has read this note."""
        return self._write(NoteKind.SEAL)

    def recorded(self, step: int) -> list[HubCommand]:
        """Note that all steps up to this are on record."""
        return self._write(NoteKind.RECORDED, step=step)

    def _write(self, kind: NoteKind, *, step: int = 0) -> list[HubCommand]:
        if self.board is None:
            return []
        return [Write(Note(kind=kind, generation=self.board.generation, step=step))]

    def _check_sealed(self) -> None:
        """Raise InternalError where members may still let each other go on."""
        if self.board is not None:
            raise InternalError("the board is not sealed")

    def noted(self, notes: Iterable[Note], *, now: float, wall: float) -> list[HubCommand]:
        """Read what came onto the board; arguments as of `arrived`.

        Raises:
            ProtocolError: members stand at different points, or nobody can have written a note.
        """
        board = self.board
        if board is None:
            return []
        for note in notes:
            board.take(note)
        commands: list[HubCommand] = []
        for step in board.counted:
            reports, timestamp = list(step.reports), wall - now + step.time
            commands.append(
                self._count(self.round, step.step - 1, timestamp, reports, is_held=step.is_last)
            )
            commands += _flush(step.is_last)
        if board.counted:
            commands += self.recorded(board.counted[-1].step)
            board.counted = []
        commands += self._watch(board)
        if board.is_sealed:
            self.board = None
            self._handed_over = bool(board.arrived)
            for rank, note in board.arrived.items():
                point = Point(note.step, note.phase)
                self._barrier.arrive(self.members[rank], self.round, point, note.report)
        return commands

    def _watch(self, board: Board) -> list[HubCommand]:
        """Return whom the job waits for, where that has changed since the board was read last."""
        commands: list[HubCommand] = []
        passed = board.passed
        awaited = None
        if passed is not None:
            awaited = _doing_behind(Release(self.round, passed, board.is_over, ()))
        for rank, worker in enumerate(self.members):
            doing = None if rank in board.arrived else awaited
            if worker in self._doing and self._doing[worker] == doing:
                continue
            if doing is not None:
                commands += self._expect(worker, doing)
            elif rank in board.arrived or board.is_over:
                commands.append(Stands(worker))
            else:
                continue
            self._doing[worker] = doing
        return commands

    def _is_first(self, worker: str) -> bool:
        assert self._world is not None
        return worker == self._world.members[0].worker

    def _expect(self, worker: str, doing: Doing) -> list[HubCommand]:
        return [] if worker in self._lost else [Expect(worker, doing)]

    def _answer(self, answers: Iterable[Answer], round: int, wall: float) -> list[HubCommand]:
        """Tell workers their turns, and count the applied batches of the last."""
        commands: list[HubCommand] = []
        for answer in answers:
            match answer:
                case Granted(worker, step):
                    turn = Released(round=round, step=step, phase=TURN, hold=False)
                    commands.append(ToWorker(worker=worker, message=turn))
                    commands += self._expect(worker, _adding_up(step + 1, round))
                case Applied(_, step, payload, hold):
                    commands.append(self._count(round, step, wall, [payload], is_held=hold))
                    commands += _flush(hold)
                case Proceed(worker, step, hold):
                    go_on = Released(round=round, step=step, phase=COMMIT, hold=hold)
                    commands.append(ToWorker(worker=worker, message=go_on))
                    if not hold:
                        commands += self._expect(worker, in_step(step + 2, round))
        return commands


def _flush(hold: bool) -> list[HubCommand]:
    return [Flush()] if hold else []


def _doing_behind(release: Release) -> Doing | None:
    """Return the activity of released workers from now on; behind the end it is the first's."""
    point, round = release.point, release.round
    if point.phase == "end":
        return Doing(kind="end", words="writing what the job ends with", round=round)
    if point.phase == "blocks":
        return _adding_up(point.step + 1, round)
    if release.hold:
        return None
    return in_step(point.step + 1 + (point.phase == COMMIT), round)


def in_step(step: int, round: int) -> Doing:
    """The work from a commit to the next arrival."""
    return Doing(kind="step", words=f"in step {step}", step=step, round=round)


def _adding_up(step: int, round: int) -> Doing:
    return Doing(kind="sum", words=f"adding up in step {step}", step=step, round=round)
