"""The words of a rendezvous: its events, its commands, and the world that it names.

Pure values.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby


class WorkerState(enum.StrEnum):
    STARTING = "starting"
    READY = "ready"
    ACTIVE = "active"
    LEAVING = "leaving"


class RendezvousPhase(enum.StrEnum):
    GATHERING = "gathering"  # no round yet: fewer than the minimum are ready
    RUNNING = "running"
    WRITING = "writing"  # at a boundary, a member writes the checkpoint that the job ends with
    ENDING = "ending"  # everyone is dismissed
    ENDED = "ended"


class RunOutcome(enum.StrEnum):
    DONE = "done"
    SUSPENDED = "suspended"
    FAILED = "failed"


@dataclass(slots=True, kw_only=True)
class Worker:
    """The rendezvous's knowledge of one worker.

    Args:
        serves: it is a server, or was started to be one: it takes no share of the batch.
    """

    id: str
    number: int
    agent: str
    serves: bool = False
    state: WorkerState = WorkerState.STARTING
    address: str = ""
    in_round: bool = False
    wants_out: bool = False  # it asked to leave by itself
    has_state: bool = False
    is_idle: bool = False  # it waits for data, in the step that is under way
    steps: int = 0  # that it has taken part in
    pace: float | None = None  # seconds per micro-batch, where that is known to matter


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One rank of a world; `address` is where others reach it (`host:port`).

    Args:
        machine: the name of the one that its agent is on; empty where that is alone on it.
    """

    worker: str
    agent: str
    address: str
    machine: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A round: its number, its members, and the donor of each newcomer's state.

    Args:
        members: in rank order; members of one agent are contiguous, its workers before its servers.
            Agents of one machine follow each other, but for those without workers.
        donors: worker that lacks the state → member that gives it.
        restore: no member has the state: the first member takes it from storage (or starts afresh)
            and donates.
        shares: parts of a step that each rank computes, in rank order; contiguous. A rank without a
            share is a server; the first has one.
        newcomers: workers that have made no step, where another one has.
        has_experience: a worker of it has made a step.
    """

    round: int
    members: tuple[Member, ...]
    donors: dict[str, str]
    restore: bool
    shares: tuple[int, ...]
    newcomers: tuple[str, ...] = ()
    has_experience: bool = False

    @property
    def world_size(self) -> int:
        """Members, servers among them."""
        return len(self.members)

    @property
    def workers(self) -> tuple[int, ...]:
        """Ranks that compute."""
        return tuple(rank for rank, share in enumerate(self.shares) if share)

    @property
    def servers(self) -> tuple[int, ...]:
        """Ranks that take no share of the batch."""
        return tuple(rank for rank, share in enumerate(self.shares) if not share)

    @property
    def hosts(self) -> dict[str, int]:
        """Ranks on each agent, in rank order."""
        counts: dict[str, int] = {}
        for member in self.members:
            counts[member.agent] = counts.get(member.agent, 0) + 1
        return counts

    @property
    def machines(self) -> tuple[int, ...]:
        """Agents on each machine, in rank order.

        Where all are on one, nothing crosses a network, and each counts as alone: so all fold.
        """
        names = {member.agent: member.machine for member in self.members}.values()
        groups = groupby(enumerate(names), key=lambda entry: entry[1] or entry[0])
        counts = tuple(len(list(group)) for _, group in groups)
        return counts if len(counts) > 1 else (1,) * len(self.hosts)

    def rank_of(self, worker: str) -> int:
        return next(rank for rank, member in enumerate(self.members) if member.worker == worker)

    def ranks_beside(self, worker: str) -> range:
        """The ranks of this worker's host, its own among them."""
        agent = self.members[self.rank_of(worker)].agent
        ranks = [rank for rank, member in enumerate(self.members) if member.agent == agent]
        return range(ranks[0], ranks[-1] + 1)

    def workers_beside(self, worker: str) -> range:
        """The ranks of this worker's host that compute: they come before its servers."""
        ranks = self.ranks_beside(worker)
        return range(ranks.start, ranks.start + sum(self.shares[rank] > 0 for rank in ranks))

    def givers(self, has_state: Sequence[bool]) -> dict[int, int | None]:
        """Return the bringer of each host's single parts to the hosts that lack them.

        Args:
            has_state: of each rank, whether its host has it as far as the rank knows.

        Returns:
            The first rank of each host that lacks it, and the first rank of a host that has it;
            None where none has.
        """
        firsts: dict[str, int] = {}
        hosts: dict[str, bool] = {}
        for rank, member in enumerate(self.members):
            firsts.setdefault(member.agent, rank)
            hosts[member.agent] = hosts.get(member.agent, False) or has_state[rank]
        giver = next((firsts[agent] for agent, has_it in hosts.items() if has_it), None)
        return {firsts[agent]: giver for agent, has_it in hosts.items() if not has_it}


# Events -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AgentJoined:
    """An agent has come to the job.

    Args:
        room: workers that it takes at most; None: as many as are wanted.
        machine: the name of the one that it is on; empty where it is alone on it.
    """

    agent: str
    room: int | None = None
    machine: str = ""


@dataclass(frozen=True, slots=True)
class AgentDeparts:
    """The agent was sent SIGTERM: its host is to be free, and its workers are wanted elsewhere."""

    agent: str


@dataclass(frozen=True, slots=True)
class AgentLost:
    """The agent is gone, and all its workers with it."""

    agent: str
    reason: str


@dataclass(frozen=True, slots=True)
class AgentReplaced:
    """The agent was killed, and all its workers with it; another process has taken its place."""

    agent: str


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """The worker has built its model, is warm, and has heard nothing of any round."""

    worker: str
    address: str


@dataclass(frozen=True, slots=True)
class WorkerInstalled:
    """The member has the state as of `step` committed steps."""

    worker: str
    round: int
    step: int


@dataclass(frozen=True, slots=True)
class WorkerAsksToLeave:
    """The worker was sent SIGTERM: somebody with a better right wants its place."""

    worker: str


@dataclass(frozen=True, slots=True)
class WorkerIdle:
    """The member has waited for data for a while, and may for long.

    The boundary behind its step does not come.
    """

    worker: str
    round: int


@dataclass(frozen=True, slots=True)
class CommandAdvanced:
    """The command of a round is farther than any before it: a death would lose less than all."""

    round: int


@dataclass(frozen=True, slots=True)
class WorkerCutOff:
    """A stream of the member to another has broken, and it has heard of no death since."""

    worker: str
    round: int


@dataclass(frozen=True, slots=True)
class WorkerDisagrees:
    """A newcomer disagrees with the others: the run goes on without it."""

    worker: str


@dataclass(frozen=True, slots=True)
class WorkerGone:
    """The worker's process has ended and can touch nothing any more."""

    worker: str
    reason: str


@dataclass(frozen=True, slots=True)
class Committed:
    round: int
    step: int


@dataclass(frozen=True, slots=True)
class AllHeld:
    """The word that all members wait at the boundary behind `step` committed steps.

    They wait for the next round.
    """

    round: int
    step: int


@dataclass(frozen=True, slots=True)
class CheckpointCompleted:
    worker: str


@dataclass(frozen=True, slots=True)
class JobCompleted:
    """All steps are committed and the last checkpoint is written."""

    worker: str


@dataclass(frozen=True, slots=True)
class UserFailed:
    """The user's code raised, or asked for the impossible: no restart will mend that."""

    worker: str


@dataclass(frozen=True, slots=True)
class Straggling:
    """Some members are consistently slower than others: shares should follow their paces.

    Args:
        paces: seconds per micro-batch of each member.
        cause: in words, for the record.
    """

    paces: tuple[tuple[str, float], ...]
    cause: str


@dataclass(frozen=True, slots=True)
class ResizeRequested:
    """Go to so many workers.

    Args:
        places: so many on each agent; empty where it does not matter on which they are.
        servers: beside them from now on; None for as many as before.
    """

    workers: int
    places: Mapping[str, int] = field(default_factory=dict)
    servers: int | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    reason: str


@dataclass(frozen=True, slots=True)
class Hurry:
    """The job should end, and its next boundary does not come: late members are left out.

    Args:
        late: workers, and the activity of each that takes too long.
    """

    late: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PatienceOver:
    """The newcomers that are ready in this round have waited long enough for others."""

    round: int


Event = (
    AgentJoined
    | AgentDeparts
    | AgentLost
    | AgentReplaced
    | WorkerReady
    | WorkerInstalled
    | WorkerAsksToLeave
    | WorkerIdle
    | CommandAdvanced
    | WorkerCutOff
    | WorkerDisagrees
    | WorkerGone
    | Committed
    | AllHeld
    | CheckpointCompleted
    | JobCompleted
    | UserFailed
    | Straggling
    | ResizeRequested
    | Stop
    | Hurry
    | PatienceOver
)


# Commands -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartWorker:
    """Start a worker, after `delay` seconds: those before it on this agent died young."""

    agent: str
    worker: str
    delay: float = 0.0


@dataclass(frozen=True, slots=True)
class Hold:
    """Ask the hub to stop everyone at the next step boundary of this round."""

    round: int


@dataclass(frozen=True, slots=True)
class AwaitOthers:
    """Say `PatienceOver` in a moment: until then, who is ready waits for others on their way."""

    round: int


@dataclass(frozen=True, slots=True)
class Install:
    """Name a round.

    Args:
        still: no step is made in it: all leave the step that is under way, and stand at the
            boundary before it.
    """

    world: World
    cause: str
    still: bool = False


@dataclass(frozen=True, slots=True)
class WriteCheckpoint:
    worker: str


@dataclass(frozen=True, slots=True)
class Dismiss:
    """The worker may leave: nothing of it is needed any more."""

    worker: str


@dataclass(frozen=True, slots=True)
class Kill:
    """End its process; where there is a `reason`, that is why it is lost."""

    worker: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class GiveUpOn:
    """Give an agent no more workers, because so many of them died young in a row.

    Users are told.

    Args:
        reason: why the last one died.
        target: workers that the job goes on with.
        ends: the agent ends with that.
    """

    agent: str
    deaths: int
    reason: str
    target: int
    ends: bool = False


@dataclass(frozen=True, slots=True)
class LetGo:
    """Tell an agent that none of its workers is left: its part in the job is over.

    Args:
        well: it departs; else it is let go because no worker lives on it.
    """

    agent: str
    well: bool = True


@dataclass(frozen=True, slots=True)
class End:
    outcome: RunOutcome
    reason: str


Command = (
    StartWorker
    | Hold
    | AwaitOthers
    | Install
    | WriteCheckpoint
    | Dismiss
    | Kill
    | GiveUpOn
    | LetGo
    | End
)
