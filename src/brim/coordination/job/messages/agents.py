"""Messages between an agent and the master.

A session over gRPC streams, numbered so that it outlives them.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from brim.coordination.job.messages.workers import (
    Beat,
    InstallRound,
    JobFailed,
    Message,
    Released,
    Warn,
    WorkerBound,
    WorkerMessage,
)
from brim.domain.host_kind import HostKind
from brim.domain.job import JobSpec

RecordName = Literal["events.jsonl", "steps.jsonl"]


class Unheard(msgspec.Struct, frozen=True, kw_only=True):
    """A message that was under way, or about to be sent, when an agent was killed.

    Args:
        session: of that agent; empty where its worker left it, which knows neither this nor the
            number.
        number: its place in the session; 0: behind all that was heard.
    """

    session: str
    number: int
    message: AgentMessage


class JournalPlace(msgspec.Struct, frozen=True, array_like=True):
    """A place in the journal of a run's masters.

    Args:
        origin: names the host's directory in which that part of the journal was written.
        number: entries before the place, from the journal's beginning on.
    """

    origin: str
    number: int


class RecordBytes(msgspec.Struct, frozen=True, array_like=True):
    """Bytes of a record file, and how many there are before them."""

    file: RecordName
    place: int
    data: bytes


class CopyPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of an agent's copy of the master's journal and records.

    Args:
        number: entries of the journal that the copy stands for behind this part; 0: it is not
            whole.
        begins: the earlier contents of the copy are void.
        restates: the entries take the place of all before them.
        holders: agents that keep a copy.
    """

    number: int
    begins: bool = False
    restates: bool = False
    holders: int = 0
    entries: list[bytes] = []
    records: list[RecordBytes] = []


class CopyOffer(msgspec.Struct, frozen=True, kw_only=True):
    """A whole copy that an agent has: as of which place, of a journal that so many agents keep."""

    place: JournalPlace
    holders: int


class JoinJob(Message, frozen=True):
    """The first message of every stream.

    Args:
        agent: its name in the job.
        session: of this agent process, so that another one of the same name is not taken
            for it.
        host: the name of its host, for people.
        life: of the master that it obeyed last; 0 for an agent that comes new.
        heard: the number of the last message that it has from the master.
        unheard: the last messages of killed agents of its name, in order.
        room: workers that it takes at most; None: as many as are wanted.
        keeps: it keeps a copy of the master's journal, being on a host of its own.
        told: all that masters told it follows from the entries before this place; None: it was told
            nothing.
        copy: the copy that it has.
        kind: of its host, where it takes any.
        machine: the name of the one that it is on, where other agents may be on it that share no
            memory with it; empty: it is alone.
    """

    agent: str
    session: str
    host: str
    life: int = 0
    heard: int = 0
    unheard: tuple[Unheard, ...] = ()
    room: int | None = None
    keeps: bool = False
    told: JournalPlace | None = None
    copy: CopyOffer | None = None
    kind: HostKind | None = None
    machine: str = ""


class AskToStop(Message, frozen=True):
    """The agent's process was asked to end the run."""

    reason: str


class Depart(Message, frozen=True):
    """The agent's host is to be free: its workers are to leave, and to go on elsewhere."""


class FromWorker(Message, frozen=True):
    worker: str
    message: WorkerMessage


class WorkerStarted(Message, frozen=True):
    worker: str
    pid: int


class Hang(msgspec.Struct, frozen=True, kw_only=True):
    """The place where a worker made no progress until it was killed.

    `stack` is its Python stack there.
    """

    round: int
    step: int
    stack: str


class LoseWorker(Message, frozen=True):
    """The worker's process has ended.

    Args:
        hang: where it was killed since it hung.
        by_itself: it ended without an error, and nobody had told it that it may.
        memory: `limit` where it had more memory than a worker may have, `host` where the kernel
            ended it, or seems to have, since memory ran out; empty: neither.
    """

    worker: str
    reason: str
    hang: Hang | None = None
    by_itself: bool = False
    memory: Literal["", "limit", "host"] = ""


class Late(Message, frozen=True):
    """The job waits for this worker (for the template, where there is no name) longer than usual.

    Args:
        limit: seconds after which it is given up; None: never.
        start: its activity in a start that is only slow, such as `importing torch`; empty: it is at
            something else, or for minutes.
    """

    worker: str
    doing: str
    seconds: float
    limit: float | None
    stack: str
    start: str = ""


class OnTime(Message, frozen=True):
    """The worker that was late has come on."""

    worker: str


class Decline(Message, frozen=True):
    """The message that this host cannot take part in the job.

    Its agent leaves where the job goes on without it.
    """

    failure: JobFailed


class Silence(Message, frozen=True):
    """The worker has been silent for half of its heartbeat timeout, or speaks again."""

    worker: str
    silent: bool


class CommitRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A committed step: `step` counts it, `at` is seconds since 1970, payloads are StepReports.

    Args:
        held: everybody waits behind it for the next round. It is said with the commit: the job
            stands still meanwhile.
    """

    round: int
    step: int
    at: float
    payloads: list[bytes]
    held: bool = False


class Commits(Message, frozen=True):
    records: list[CommitRecord]


class ArriveTogether(Message, frozen=True):
    """All workers of this agent stand at a point that concerns other agents too."""

    round: int
    step: int
    phase: str
    payloads: list[bytes]


class Printed(Message, frozen=True):
    """Whole lines that rank 0 printed on a host of a guest.

    It has number 0: where the stream breaks, it is lost.
    """

    worker: str
    text: str


class CopyData(Message, frozen=True):
    """Bytes of the copy that an agent was asked for, in order; none behind the `last`.

    It has number 0.
    """

    file: str
    data: bytes
    last: bool = False


class StacksShown(Message, frozen=True):
    """The Python stacks of this agent's workers, by name; empty for one that did not answer.

    It has number 0.
    """

    stacks: dict[str, str]


AgentMessage = (
    JoinJob
    | FromWorker
    | WorkerStarted
    | LoseWorker
    | Silence
    | Late
    | OnTime
    | Decline
    | Commits
    | ArriveTogether
    | AskToStop
    | Depart
    | Beat
    | JobFailed
    | Warn
    | Printed
    | CopyData
    | StacksShown
)


class FromAgent(msgspec.Struct, frozen=True, array_like=True):
    """A message with its place in the session.

    A `Beat`, `Printed` or `StacksShown` has number 0, and is not said again.

    Args:
        number: 1 for the first message of the session.
        heard: the number of the last message that came from the other end.
    """

    number: int
    heard: int
    message: AgentMessage


# master → agent -----------------------------------------------------------------------------------


class Configure(Message, frozen=True):
    """The first answer of every stream.

    Args:
        life: of this master, which is the higher the later it was started: an agent that has obeyed
            a later one obeys it no more.
        heard: the number of the last message that the master has from this agent.
        bundle: the sha256 of the bundle with the code of the job, which a host fetches from the
            master; empty where there is none.
        line: where each part of the master's journal begins, the oldest first.
        host, kind: the first host that computes beside this agent's, which must be like it; None
            where there is none.
    """

    spec: JobSpec
    run_dir: str
    life: int
    heard: int
    bundle: str = ""
    line: tuple[JournalPlace, ...] = ()
    host: str = ""
    kind: HostKind | None = None


class Refused(Message, frozen=True):
    """The answer that the agent has no place in this job.

    Where it was `lost`, it may come again once its workers are gone. `line` is that of `Configure`.
    """

    reason: str
    lost: bool = False
    line: tuple[JournalPlace, ...] = ()


class SendCopy(Message, frozen=True):
    """A master that has no journal yet asks for an agent's copy."""


class StartWorkers(Message, frozen=True):
    """Start these, after `delay` seconds."""

    workers: list[str]
    delay: float = 0.0


class HoldRound(Message, frozen=True):
    round: int


class ReleaseTogether(Released, frozen=True):
    """Let the workers of an agent go on, each by a `Released` that says the same."""


class ToWorker(Message, frozen=True):
    worker: str
    message: WorkerBound


class SignalWorker(Message, frozen=True):
    """Send a signal; after `resume_after` seconds (0: never) send SIGCONT.

    Args:
        reason: in the records, for a worker that dies of it.
    """

    worker: str
    signal: int
    resume_after: float = 0.0
    reason: str = ""


class ShowStacks(Message, frozen=True):
    """Say where the Python code of each worker is now. It has number 0."""


class EndRun(Message, frozen=True):
    """The job has ended, well or not: clean up and exit."""

    well: bool


MasterMessage = (
    Beat
    | Configure
    | Refused
    | SendCopy
    | StartWorkers
    | InstallRound
    | HoldRound
    | ReleaseTogether
    | ToWorker
    | SignalWorker
    | ShowStacks
    | EndRun
)


class FromMaster(msgspec.Struct, frozen=True, array_like=True):
    """A message with its place in the session, as in `FromAgent`.

    Args:
        told: entries of the journal that the message, and what was `heard`, follow from.
        copy: the missing entries of the agent's copy; it has that before it obeys the message.
    """

    number: int
    heard: int
    message: MasterMessage
    told: int = 0
    copy: CopyPart | None = None
