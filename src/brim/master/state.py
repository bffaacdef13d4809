"""The state of a master's decisions between two entries of its journal: a value, and its bytes.

The module is pure. A long journal is replaced by such a value, so that its replay stays short. What
is read back is data: reading it runs nothing, and content that is not of this version is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import zip_longest

import msgspec

import brim
from brim.coordination.job.barrier import Barrier
from brim.coordination.job.membership import RunOutcome, World
from brim.coordination.job.places import Places
from brim.coordination.job.rendezvous import Rendezvous
from brim.coordination.job.rollout import Rollout
from brim.coordination.job.roster import Roster
from brim.coordination.job.session import Outbox
from brim.coordination.job.stragglers import Stragglers
from brim.coordination.job.waits import Hangs
from brim.decoding import UNDECODABLE
from brim.domain.faults import Fault
from brim.domain.host_kind import HostKind
from brim.errors import EnvironmentFault, InternalError
from brim.master.entries import Began
from brim.master.progress import Progress
from brim.wire.messages import JournalPlace, MasterMessage


@dataclass(slots=True)
class AgentSession:
    """The master's end of its conversation with one agent."""

    session: str
    host: str
    heard: int = 0
    outbox: Outbox[MasterMessage] = field(default_factory=Outbox)
    keeps: bool = False
    kind: HostKind | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReFormed:
    """All members of a round have the state.

    Args:
        seconds: since the reason for this round was noticed.
        in_flight: steps that were under way, and given up: 0 or 1.
    """

    seconds: float
    in_flight: int


@dataclass(slots=True, kw_only=True)
class RoundAccount:
    """The account from one round to the next: the pause, the work redone, and the restore.

    `at` is seconds since 1970, `now` monotonic.
    """

    world: World | None = None
    named_at: float = 0.0
    _noticed: float = 0.0
    _steps: dict[str, int] = field(default_factory=dict)  # of the members that have the state
    _step_in_flight: bool = False

    def notice(self, *, now: float) -> None:
        """Note that there is a reason for another round."""
        self._noticed = now

    def hold(self, *, now: float) -> None:
        """All members stand at a boundary: no step is under way."""
        self._step_in_flight = False
        self.notice(now=now)

    def name(self, world: World, *, timestamp: float) -> None:
        """The next round is named."""
        self.world = world
        self.named_at = timestamp
        self._steps = {}

    def is_first_restored(self, round: int) -> bool:
        """Return whether this is the first word on the restored state of this round.

        A worker that restored may die before its own words.
        """
        return (
            self.world is not None
            and round == self.world.round
            and self.world.restore
            and not self._steps
        )

    def install(self, worker: str, round: int, step: int, *, now: float) -> ReFormed | None:
        """A member has the state as of `step`; the seconds that took, once all have it.

        Raises:
            InternalError: members stand at different steps.
        """
        if self.world is None or round != self.world.round:
            return None
        self._steps[worker] = step
        if len(self._steps) < self.world.world_size:
            return None
        if len(set(self._steps.values())) > 1:
            raise InternalError(f"members of round {round} stand at different steps: {self._steps}")
        re_formed = ReFormed(seconds=now - self._noticed, in_flight=int(self._step_in_flight))
        self._step_in_flight = True
        return re_formed


@dataclass(slots=True, kw_only=True)
class State:
    """All that the decisions of one job follow from, besides the next entry.

    Args:
        began: the first entry of the journal.
        life: counts the masters of the run.
        line: where each part of the journal begins that was written in a directory of its own.
        entries: of the journal so far.
        at: when the last entry was written, in seconds since 1970.
        now: the same, monotonic.
        faults: those that are still to come, in the order of their steps.
        sizes: bytes of the record files, by name.
        commits: steps that were ever committed.
        agents: those in the job, by name.
        hosts: agents that the members of the current round are with.
        barrier: of the current round, in use where it has several hosts.
        pids: the process of each worker.
        ranks: the rank that people know each worker by.
        late: what a worker has been at for too long.
        ended_by_itself: workers that ended before the job without an error.
        too_large: why the last worker was ended that had more memory than it may have.
        patience_told: people know that scripts go on behind their loops.
        failure_told: people know why the job fails.
        has_differed: people know that a step which was made again came to another loss.
        is_advised: people know what makes short steps slow.
        outcome: None where the job goes on.
        grace_ends: when a run that waits for its last boundary does without who is late, monotonic.
        rollout: of a service, whose replicas are replaced one after the other.
        has_served: a replica of a service was ready at some time.
        others_due: the round in which newcomers wait for others, and until when, monotonic.
    """

    began: Began
    life: int
    at: float
    now: float
    progress: Progress
    rendezvous: Rendezvous
    faults: list[Fault]
    sizes: dict[str, int]
    commits: int
    line: list[JournalPlace]
    entries: int = 1
    agents: dict[str, AgentSession] = field(default_factory=dict)
    stragglers: Stragglers = field(default_factory=Stragglers)
    rounds: RoundAccount = field(default_factory=RoundAccount)
    hosts: list[str] = field(default_factory=list)
    barrier: Barrier = field(default_factory=Barrier)
    pids: dict[str, int] = field(default_factory=dict)
    ranks: dict[str, int] = field(default_factory=dict)
    hangs: Hangs = field(default_factory=Hangs)
    late: dict[str, str] = field(default_factory=dict)
    ended_by_itself: int = 0
    too_large: str = ""
    patience_told: bool = False
    failure_told: bool = False
    has_differed: bool = False
    is_advised: bool = False
    outcome: RunOutcome | None = None
    grace_ends: float | None = None
    others_due: tuple[int, float] | None = None
    rollout: Rollout = field(default_factory=Rollout)
    has_served: bool = False

    @classmethod
    def after(cls, beginning: Began) -> State:
        """The state once the first entry of a journal was taken."""
        spec = beginning.spec
        return cls(
            began=beginning,
            life=beginning.life,
            at=beginning.at,
            now=beginning.now,
            progress=Progress(
                run=beginning.run, started=beginning.started, step=beginning.before.step
            ),
            rendezvous=Rendezvous(
                minimum=spec.workers.minimum,
                target=spec.workers.maximum,
                servers=spec.servers,
                spares=spec.spares,
                expected_agents=spec.agents,
                parts=spec.micro_batches if spec.exact else 0,
                roster=Roster(places=Places(dict(beginning.places))),
                stands_alone=beginning.stands_alone,
                restarts=spec.is_restarted,
                lingers=spec.service is not None,
            ),
            faults=sorted(spec.faults, key=lambda fault: fault.step),
            sizes=dict(beginning.before.sizes),
            commits=beginning.before.commits,
            line=[JournalPlace(beginning.origin or beginning.attempt, 0)],
        )

    @property
    def place(self) -> JournalPlace:
        """The place behind the last entry."""
        return JournalPlace(self.line[-1].origin, self.entries)

    @property
    def holders(self) -> int:
        """Agents that keep a copy of the journal."""
        return sum(agent.keeps for agent in self.agents.values())

    def is_behind(self, place: JournalPlace) -> bool:
        """Return whether a place is one that this journal has passed.

        A part of the journal has no place behind the beginning of the next: what was written there
        all the same, and told to somebody, is not in this journal.
        """
        for part, following in zip_longest(self.line, self.line[1:]):
            if part.origin == place.origin:
                return place.number <= (following.number if following else self.entries)
        return False


class _Version(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a snapshot that every version can read."""

    version: str


class _Snapshot(_Version, frozen=True, kw_only=True):
    state: State


_encoder = msgspec.msgpack.Encoder()
_versions = msgspec.msgpack.Decoder(_Version)
_snapshots = msgspec.msgpack.Decoder(_Snapshot)


def freeze(state: State) -> bytes:
    """A state as bytes."""
    return _encoder.encode(_Snapshot(version=brim.__version__, state=state))


def thaw(data: bytes) -> State:
    """The state that `freeze` was given.

    Raises:
        EnvironmentFault: the bytes are not of this version of brim.
    """
    try:
        version = _versions.decode(data).version
        if version != brim.__version__:
            raise EnvironmentFault(
                f"the journal's snapshot is of brim {version}, this is {brim.__version__}"
            )
        return _snapshots.decode(data).state
    except UNDECODABLE as error:
        raise EnvironmentFault(f"the journal's snapshot cannot be read: {error}") from error
