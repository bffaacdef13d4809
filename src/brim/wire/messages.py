"""Everything that processes of a job say to each other, as typed values.

Three conversations: worker and agent (a Unix socket that the worker is born with), agent and master (a session over
gRPC streams, numbered so that it outlives each of them), people and master (one gRPC call). Decoding checks every
type; what does not fit is a `ProtocolError`.
"""

from __future__ import annotations

import traceback
from typing import Any, Generic, TypeVar

import msgspec

from brim.coordination.membership import World
from brim.decoding import UNDECODABLE
from brim.domain.job import JobSpec
from brim.errors import EnvironmentFault, ProtocolError, SpecError, UserCodeError

__all__ = [
    "AgentMessage",
    "Answer",
    "Arrive",
    "ArriveTogether",
    "Ask",
    "AskToStop",
    "Beat",
    "CheckpointDrafted",
    "CheckpointMade",
    "Codec",
    "CommitRecord",
    "Commits",
    "Completed",
    "Configure",
    "Dismissed",
    "EndRun",
    "Evaluated",
    "Facts",
    "Failed",
    "FromAgent",
    "FromMaster",
    "FromWorker",
    "HeldAt",
    "Hello",
    "HoldRound",
    "InstallRound",
    "Installed",
    "JoinJob",
    "Leave",
    "LoseWorker",
    "MasterMessage",
    "MicroReport",
    "NowWritten",
    "Publish",
    "Refused",
    "ReleaseTogether",
    "Released",
    "SignalWorker",
    "Silence",
    "StartWorkers",
    "StepReport",
    "TemplateMessage",
    "TemplateReady",
    "ToWorker",
    "Warn",
    "WorkerBound",
    "WorkerEnded",
    "WorkerForked",
    "WorkerMessage",
    "WorkerStarted",
    "WriteNow",
    "failure_of",
]

T = TypeVar("T")


class Message(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """A message of any conversation."""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What only a worker can know of a job: its data, its model and its versions."""

    samples: int
    test_samples: int
    steps: int
    steps_per_epoch: int
    block_size: int
    parameters: int
    quarantined: int
    quarantine_path: str
    versions: dict[str, str]
    start_method: str
    transport: str


class MicroReport(msgspec.Struct, frozen=True, array_like=True):
    """One micro-batch as the worker that computed it saw it; positions are in the epoch's order."""

    rank: int
    micro: int
    start: int
    stop: int
    crc32: int
    loss: float


class StepReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank brings to the commit of a step; `seconds` says where its time went."""

    epoch: int
    parts: list[MicroReport]
    seconds: dict[str, float]


# worker → agent -------------------------------------------------------------------------------------------


class Hello(Message, frozen=True):
    """The worker is warm and may be named in a round; `layout` must be the same for all workers."""

    address: str
    layout: str
    facts: Facts


class Arrive(Message, frozen=True):
    round: int
    step: int
    phase: str
    payload: bytes = b""


class Installed(Message, frozen=True):
    round: int
    step: int
    restored_from: str = ""


class Beat(Message, frozen=True):
    """Alive, nothing to say."""


class Leave(Message, frozen=True):
    """SIGTERM came: leave at the next boundary."""


class CheckpointDrafted(Message, frozen=True):
    """A checkpoint is stored and not official: may it be? The answer is Publish."""

    step: int


class CheckpointMade(Message, frozen=True):
    """It is official. `seconds` is how long it was written; training stood still for `pause` of them, before."""

    step: int
    path: str
    size_bytes: int
    seconds: float
    pause: float


class NowWritten(Message, frozen=True):
    """The answer to WriteNow: a checkpoint of this boundary is official."""


class Evaluated(Message, frozen=True):
    epoch: int
    step: int
    metrics: dict[str, float]


class Completed(Message, frozen=True):
    """The job is done; `metrics` again, for whoever should have told them may have died over it."""

    weights_sha256: str
    metrics: dict[str, float] = {}


class Failed(Message, frozen=True):
    """No restart will help. `who` must act: `user`, `spec`, `environment` or `internal`."""

    who: str
    message: str
    trace: str = ""


class Warn(Message, frozen=True):
    message: str


WorkerMessage = (
    Hello
    | Arrive
    | Installed
    | Beat
    | Leave
    | CheckpointDrafted
    | CheckpointMade
    | NowWritten
    | Evaluated
    | Completed
    | Failed
    | Warn
)


# agent → worker -------------------------------------------------------------------------------------------


class InstallRound(Message, frozen=True):
    world: World


class Released(Message, frozen=True):
    round: int
    step: int
    phase: str
    hold: bool
    payloads: list[bytes] = []


class WriteNow(Message, frozen=True):
    """Write a checkpoint: the job ends at this boundary."""


class Publish(Message, frozen=True):
    """Make the draft of this step official: the master has every commit that led there.

    `writers` may have drafts of their own; those of everyone else are left from the dead.
    """

    step: int
    writers: list[str]


class Dismissed(Message, frozen=True):
    """Nothing of this worker is needed any more."""


WorkerBound = InstallRound | Released | WriteNow | Publish | Dismissed


# agent → master -------------------------------------------------------------------------------------------


class JoinJob(Message, frozen=True):
    """The first message of every stream.

    Args:
        agent: its name in the job.
        session: made anew by every agent process, so that another one of the same name is not taken for it.
        host: the name of its host, for people.
        life: of the master that it obeyed last; 0 for an agent that comes new.
        heard: the number of the last message that it has from the master.
    """

    agent: str
    session: str
    host: str
    life: int = 0
    heard: int = 0


class AskToStop(Message, frozen=True):
    """The agent's process was asked to end the run."""

    reason: str


class FromWorker(Message, frozen=True):
    worker: str
    message: WorkerMessage


class WorkerStarted(Message, frozen=True):
    worker: str
    pid: int


class LoseWorker(Message, frozen=True):
    """The worker's process has ended."""

    worker: str
    reason: str


class Silence(Message, frozen=True):
    """The worker has been silent for half of its heartbeat timeout, or speaks again."""

    worker: str
    silent: bool


class HeldAt(Message, frozen=True):
    round: int
    step: int


class CommitRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A committed step: `step` counts it, `at` is seconds since 1970, payloads are StepReports."""

    round: int
    step: int
    at: float
    payloads: list[bytes]


class Commits(Message, frozen=True):
    records: list[CommitRecord]


class ArriveTogether(Message, frozen=True):
    """All workers of this agent stand at a point that concerns other agents too."""

    round: int
    step: int
    phase: str
    payloads: list[bytes]


AgentMessage = (
    JoinJob
    | FromWorker
    | WorkerStarted
    | LoseWorker
    | Silence
    | HeldAt
    | Commits
    | ArriveTogether
    | AskToStop
    | Beat
    | Failed
    | Warn
)


class FromAgent(msgspec.Struct, frozen=True, array_like=True):
    """A message with its place in the session; a `Beat` has number 0, and is not said again.

    Args:
        number: 1 for the first message of the session.
        heard: the number of the last message that came from the other end.
    """

    number: int
    heard: int
    message: AgentMessage


# master → agent -------------------------------------------------------------------------------------------


class Configure(Message, frozen=True):
    """The first answer of every stream.

    Args:
        life: of this master, which is the higher the later it was started: an agent that has obeyed a later one
            obeys it no more.
        heard: the number of the last message that the master has from this agent.
    """

    spec: JobSpec
    run_dir: str
    life: int
    heard: int


class Refused(Message, frozen=True):
    """The agent has no place in this job; where it was `lost`, it may come anew once its workers are gone."""

    reason: str
    lost: bool = False


class StartWorkers(Message, frozen=True):
    """Start these, after `delay` seconds."""

    workers: list[str]
    delay: float = 0.0


class HoldRound(Message, frozen=True):
    round: int


class ReleaseTogether(Message, frozen=True):
    round: int
    step: int
    phase: str
    hold: bool
    payloads: list[bytes] = []


class ToWorker(Message, frozen=True):
    worker: str
    message: WorkerBound


class SignalWorker(Message, frozen=True):
    """Send a signal; after `resume_after` seconds (0: never) send SIGCONT."""

    worker: str
    signal: int
    resume_after: float = 0.0


class EndRun(Message, frozen=True):
    """The job has ended, well or not: clean up and exit."""

    well: bool


MasterMessage = (
    Beat
    | Configure
    | Refused
    | StartWorkers
    | InstallRound
    | HoldRound
    | ReleaseTogether
    | ToWorker
    | SignalWorker
    | EndRun
)


class FromMaster(msgspec.Struct, frozen=True, array_like=True):
    """A message with its place in the session, as in `FromAgent`."""

    number: int
    heard: int
    message: MasterMessage


# template → agent -----------------------------------------------------------------------------------------


class TemplateReady(Message, frozen=True):
    """Workers can be asked for."""


class WorkerForked(Message, frozen=True):
    worker: str
    pid: int


class WorkerEnded(Message, frozen=True):
    """`status` is an exit code, or minus the number of a signal."""

    worker: str
    status: int


TemplateMessage = TemplateReady | WorkerForked | WorkerEnded | Failed


def failure_of(error: BaseException) -> Failed:
    """What the master is told of an error: who must act, and the words for them."""
    match error:
        case UserCodeError():
            return Failed(who="user", message=error.trace.strip().splitlines()[-1], trace=error.trace)
        case SpecError():
            return Failed(who="spec", message=str(error))
        case EnvironmentFault():
            return Failed(who="environment", message=str(error))
    trace = "".join(traceback.format_exception(error))
    return Failed(who="internal", message=f"{type(error).__name__}: {error}", trace=trace)


# people → master ------------------------------------------------------------------------------------------


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """`status`, `resize` (with `workers`) or `suspend` (with a `reason`)."""

    verb: str
    workers: int = 0
    reason: str = ""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Either the answer, or why there is none."""

    ok: bool
    detail: str = ""
    status: dict[str, Any] = {}


class Codec(Generic[T]):
    """Bytes to a message of one conversation and back.

    >>> codec = Codec(Ask)
    >>> codec.decode(codec.encode(Ask(verb="resize", workers=3))).workers
    3
    """

    def __init__(self, kind: Any) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(kind)

    def encode(self, message: T) -> bytes:
        return self._encoder.encode(message)

    def decode(self, data: bytes | memoryview) -> T:
        """Raises ProtocolError where the bytes are no message of this conversation."""
        try:
            return self._decoder.decode(data)
        except UNDECODABLE as error:
            raise ProtocolError(f"not a message of this version: {error}") from error
