"""Messages between an agent and its workers, and the template from which these are forked."""

from __future__ import annotations

import traceback

import msgspec

from brim.coordination.job.membership import World
from brim.domain.step_records import CommittedPart, DatasetFacts, TableFacts, TableTraffic
from brim.errors import NO_SUCH_FILE, EnvironmentFault, SpecError, UserCodeError


class Message(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """A message of any conversation."""


class Facts(DatasetFacts, frozen=True, kw_only=True):
    """Facts that only a worker can know of a job: its data, its model and its versions."""

    steps: int
    steps_per_epoch: int
    global_batch_size: int
    epochs: int
    seed: int
    clip_norm: float | None
    on_nan: str
    parameters: int
    versions: dict[str, str]
    start_method: str
    transport: str
    tables: list[TableFacts] = msgspec.field(
        default_factory=list
    )  # of embeddings that are trained by rows


class MicroReport(CommittedPart, frozen=True, array_like=True):
    """One micro-batch as the worker that computed it saw it."""

    loss: float


class StepReport(msgspec.Struct, frozen=True, kw_only=True):
    """A rank's part in the commit of a step.

    `seconds` says where its time went.

    The first rank says the learning rate, which is the same everywhere: see `StepRecord`. So is
    `staleness`, of asynchronous training alone. `contents` is the last 32 bits of the digest of all
    that a stream has yielded in this epoch, up to the end of the step.
    """

    epoch: int
    parts: list[MicroReport]
    seconds: dict[str, float]
    lr: float | list[float] | None = None
    tables: dict[str, TableTraffic] = {}
    staleness: int | None = None
    contents: int | None = None


# worker → agent -----------------------------------------------------------------------------------


class Hello(Message, frozen=True):
    """The worker is warm and may be named in a round; `layout` must be the same for all workers.

    A loop of one's own may know its data only later: then `Introduce` tells the facts. Its
    `micro_batches` are those that its script chose; 0 leaves them to the job's spec.
    """

    address: str
    layout: str
    facts: Facts | None
    micro_batches: int = 0


class Introduce(Message, frozen=True):
    """The worker's facts of the job's data, sent before its first step."""

    facts: Facts


class Made(msgspec.Struct, frozen=True, array_like=True):
    """A step that a worker alone in its round has made.

    `at` is when, by the host's monotonic clock.
    """

    step: int
    at: float
    report: bytes


class Arrive(Message, frozen=True):
    """The message that a member stands at a point of a step.

    A worker alone at its commit lists in `made` all steps that it has not told of; `step` is the
    last of them.
    """

    round: int
    step: int
    phase: str
    payload: bytes = b""
    made: list[Made] = []


class Installed(Message, frozen=True):
    round: int
    step: int
    restored_from: str = ""


class Beat(Message, frozen=True):
    """Alive, nothing to say.

    Args:
        moves: counts the progress of a worker's main thread: where it stays the same, that thread
            may hang.
    """

    moves: int = 0


class LeaveAsked(Message, frozen=True, tag="Leave"):
    """SIGTERM came: leave at the next boundary."""


class Idle(Message, frozen=True):
    """The member has waited for data for a while.

    Its step may be given up where something waits for its end.
    """

    round: int


class CommandProgress(Message, frozen=True, tag="Progress"):
    """The first member's word on how far a command is that is started again at each change.

    Args:
        round: in which it was started.
        step: as the command counts; 0 where it has not said.
        total: steps of the whole command; 0 where it has not said.
        values: that it tells of the step, by name.
        saved: it has written a checkpoint since the last such message.
        seconds: for which it has run in this round.
    """

    round: int
    step: int = 0
    total: int = 0
    values: dict[str, float] = {}
    saved: bool = False
    seconds: float = 0.0


class ReplicaNews(Message, frozen=True, tag="Replica"):
    """The word of a worker on a replica of a service that it keeps.

    Args:
        replica: its id.
        state: `ready`, `leaving`, `gone`, or `failed`: one start after the other has, and none was
            ever ready here.
        address: `HOST:PORT` at which it answers.
        reason: why it is gone.
        cpu: processors that it keeps busy, where that is asked for.
    """

    replica: str
    state: str
    address: str = ""
    reason: str = ""
    cpu: float = 0.0


class Disagree(Message, frozen=True):
    """The word of a newcomer that disagrees with the others; it names the difference."""

    message: str


class CutOff(Message, frozen=True):
    """A stream of the member to another has broken, without news of the other's end."""

    round: int


class CheckpointDrafted(Message, frozen=True):
    """A checkpoint is stored and not official: may it be? The answer is Publish."""

    step: int


class CheckpointMade(Message, frozen=True):
    """The checkpoint is official.

    `seconds` is how long it was written; training stood still for `pause` of them, before.
    """

    step: int
    path: str
    size_bytes: int
    seconds: float
    pause: float


class NowWritten(Message, frozen=True):
    """The answer to WriteNow: a checkpoint of this boundary is official."""


class Evaluated(Message, frozen=True):
    """An epoch is over; every member says so."""

    epoch: int
    step: int
    metrics: dict[str, float]


class Logged(Message, frozen=True):
    """Values that the user's code has of a step; every member says so.

    `epoch` counts those that are over.
    """

    epoch: int
    step: int
    values: dict[str, float]


class Completed(Message, frozen=True):
    """The job is done; `metrics` again, for the worker that should have told them may have died."""

    weights_sha256: str
    metrics: dict[str, float] = {}


class JobFailed(Message, frozen=True, tag="Failed"):
    """The failure of a job that no restart mends.

    `who` must act: `user`, `spec`, `environment` or `internal`. `missing` is the path of a file that
    is not there, where that is why.
    """

    who: str
    message: str
    trace: str = ""
    missing: str = ""


class Warn(Message, frozen=True):
    message: str


WorkerMessage = (
    Hello
    | Introduce
    | Arrive
    | Installed
    | Beat
    | LeaveAsked
    | Idle
    | CutOff
    | CommandProgress
    | ReplicaNews
    | Disagree
    | CheckpointDrafted
    | CheckpointMade
    | NowWritten
    | Evaluated
    | Logged
    | Completed
    | JobFailed
    | Warn
)


# agent → worker -----------------------------------------------------------------------------------


class InstallRound(Message, frozen=True):
    """A round, and the last step on record, which no restore goes beyond.

    It is None where the records know nothing.

    Args:
        still: no step is made in it; its consequences are on their way.
    """

    world: World
    recorded: int | None = None
    still: bool = False


class Released(Message, frozen=True):
    """All members stand at a point, and go on.

    Args:
        board: the generation of the board on which they meet from here on; 0: at their agent.
        wakers: the number of each member's, in rank order.
    """

    round: int
    step: int
    phase: str
    hold: bool
    payloads: list[bytes] = []
    board: int = 0
    wakers: list[int] = []


class DropStep(Message, frozen=True):
    """Leave the step under way: a member of this round has died, and the next one is to be named."""

    round: int


class WriteNow(Message, frozen=True):
    """Write a checkpoint: the job ends at this boundary, behind the last step on record."""

    recorded: int | None = None


class Publish(Message, frozen=True):
    """Make the draft of this step official: the master has every commit that led there.

    `writers` may have drafts of their own; those of everyone else are left from the dead.
    """

    step: int
    writers: list[str]


class Dismissed(Message, frozen=True):
    """The worker is no longer needed."""


class RenewReplica(Message, frozen=True):
    """Have a successor take over from the replica of a service that this worker keeps."""


WorkerBound = InstallRound | Released | DropStep | WriteNow | Publish | Dismissed | RenewReplica


# template → agent ---------------------------------------------------------------------------------


class TemplateReady(Message, frozen=True):
    """Workers can be asked for."""


class WorkerForked(Message, frozen=True):
    """A worker's process is there, or cannot be made.

    Args:
        pid: its number; 0: there is none.
        problem: why there is none.
    """

    worker: str
    pid: int
    problem: str = ""


TemplateMessage = TemplateReady | WorkerForked | JobFailed


def failure_of(error: BaseException) -> JobFailed:
    """Turn an error into a message for the master: the culprit, and an explanation."""
    match error:
        case UserCodeError():
            return JobFailed(
                who="user",
                message=error.trace.strip().splitlines()[-1],
                trace=error.trace,
                missing=_missing(error.__cause__),
            )
        case SpecError():
            missing = error.field if error.got == NO_SUCH_FILE else ""
            return JobFailed(who="spec", message=str(error), missing=missing)
        case EnvironmentFault():
            return JobFailed(who="environment", message=str(error))
    trace = "".join(traceback.format_exception(error))
    return JobFailed(who="internal", message=f"{type(error).__name__}: {error}", trace=trace)


def _missing(error: BaseException | None) -> str:
    """The file that is not there, where an error says so."""
    if isinstance(error, FileNotFoundError) and isinstance(error.filename, str):
        return error.filename
    return ""


def words_of(failure: JobFailed) -> str:
    """All that there is to say of a failure: the user's trace ends with the message."""
    trace = failure.trace.rstrip()
    return trace if failure.message in trace else f"{trace}\n{failure.message}".lstrip()
