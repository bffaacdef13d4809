"""The typed lines of a run's `events.jsonl`: the master writes them, every view reads them.

The kinds and their fields are a public contract: docs/reference/run-directory.md. A reader must
survive lines of another version, so fields that are not needed to make sense of a line have
defaults.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from brim.domain.quantities import counted
from brim.domain.step_records import Count, DatasetFacts, TableFacts
from brim.errors import InternalError

ReplicaState = Literal["ready", "leaving", "gone", "failed"]
WorkerState = Literal["started", "ready", "active", "suspect", "leaving", "lost", "left"]


class _Record(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    at: float


class RunStarted(_Record, frozen=True, kw_only=True, tag="run_started"):
    """A run began, or was resumed; `steps` is the total planned, `tables` of embeddings."""

    run: str
    steps: Count
    steps_per_epoch: Count
    spec: dict[str, Any]
    file: str = ""
    command: list[str] = []
    versions: dict[str, str] = {}
    host: str = ""
    start_method: str = ""
    tables: list[TableFacts] = []


class DatasetRead(DatasetFacts, frozen=True, kw_only=True, tag_field="kind", tag="dataset"):
    """The facts of the training data."""

    at: float


class WorkerChanged(_Record, frozen=True, kw_only=True, tag="worker"):
    """A worker entered `state`; a server `serves`.

    `reason` says why the worker left or was lost, as in `signal 9`.
    """

    worker: str
    state: WorkerState
    pid: Count = 0
    agent: str = ""
    rank: Count | None = None
    reason: str = ""
    serves: bool = False

    @property
    def ran_out_of_memory(self) -> bool:
        """True where that is why it was lost, or seems to be."""
        return self.state == "lost" and "out of memory" in self.reason


class RoundFormed(_Record, frozen=True, kw_only=True, tag="round"):
    """A new membership: `workers` in rank order, going on after `step`.

    `shares` are their shares of a step's parts. A member without a share is a server; `world_size`
    counts the others.
    """

    round: Count
    world_size: Count
    workers: list[str]
    shares: list[int] = []
    step: Count = 0
    cause: str = ""

    @property
    def is_uneven(self) -> bool:
        """True where shares differ by more than an uneven division."""
        shares = [share for share in self.shares if share]
        return bool(shares) and max(shares) - min(shares) > 1

    @property
    def servers(self) -> int:
        """Members without a share."""
        return len(self.workers) - self.world_size

    @property
    def members(self) -> str:
        """The members in words.

        >>> RoundFormed(at=0.0, round=1, world_size=2, workers=["w1", "w2", "w3"], shares=[4, 4, 0]).members
        '2 workers and 1 server'
        """
        workers = counted(self.world_size, "worker")
        return f"{workers} and {counted(self.servers, 'server')}" if self.servers else workers


class WorldReFormed(_Record, frozen=True, kw_only=True, tag="re_formed"):
    """The time that training stood still for a round, and the steps lost and done again."""

    round: Count
    seconds: float
    redone: Count = 0


class FaultPerformed(_Record, frozen=True, kw_only=True, tag="fault"):
    """A clause of `--faults` was carried out."""

    text: str
    step: Count
    worker: str | None = None


class EpochEnded(_Record, frozen=True, kw_only=True, tag="epoch"):
    """`epoch` (from 1) is done, with the metrics of the test split."""

    epoch: Count
    step: Count
    metrics: dict[str, float | None] = {}


class ValuesLogged(_Record, frozen=True, kw_only=True, tag="logged"):
    """Values that the user's code logged of the state after `step`.

    `epoch` counts the epochs that are over.
    """

    epoch: Count
    step: Count
    values: dict[str, float | None] = {}


class CommandProgressed(_Record, frozen=True, kw_only=True, tag="progress"):
    """The word of a command that brim starts and does not look into, on how far it is.

    Args:
        round: in which it was started.
        step: as the command counts; 0 where it has not said.
        total: steps of the whole command; 0 where it has not said.
        values: of the step, by name.
        saved: it has written a checkpoint since it said something last.
    """

    round: Count
    step: Count = 0
    total: Count = 0
    values: dict[str, float | None] = {}
    saved: bool = False

    @property
    def words(self) -> str:
        """Return it in words.

        >>> CommandProgressed(at=0.0, round=1, step=1200, total=2000, values={"loss": 0.5}).words
        'step 1,200/2,000 · loss 0.5000'
        >>> CommandProgressed(at=0.0, round=1, saved=True).words
        'a checkpoint is saved'
        """
        total = f"/{self.total:,}" if self.total else ""
        parts = [f"step {self.step:,}{total}"] if self.step else []
        parts += [f"{name} {value:.4f}" for name, value in self.values.items() if value is not None]
        return " · ".join(parts + ["a checkpoint is saved"] * self.saved)


class ReplicaChanged(_Record, frozen=True, kw_only=True, tag="replica"):
    """A replica of a service entered `state`, or keeps more or fewer processors busy.

    Args:
        worker: that keeps it.
        replica: its id.
        address: `HOST:PORT` at which it answers.
        reason: why it is gone.
        cpu: processors that it keeps busy, where its service is scaled by that.
    """

    worker: str
    replica: str
    state: ReplicaState
    address: str = ""
    reason: str = ""
    cpu: float = 0.0

    @property
    def words(self) -> str:
        """Return it in words.

        >>> ReplicaChanged(at=0.0, worker="w1", replica="w1-2", state="gone", reason="signal 9").words
        'replica w1-2 is gone (signal 9)'
        """
        place = f" at {self.address}" if self.state == "ready" else ""
        reason = f" ({self.reason})" if self.reason else ""
        verb = "has" if self.state == "failed" else "is"
        return f"replica {self.replica} {verb} {self.state}{place}{reason}"


class CheckpointPublished(_Record, frozen=True, kw_only=True, tag="checkpoint"):
    """A checkpoint became official.

    Training stood still for `pause`, and the checkpoint was written in `seconds`.
    """

    step: Count
    path: str
    bytes: Count = 0
    seconds: float = 0.0
    pause: float = 0.0


class Restored(_Record, frozen=True, kw_only=True, tag="restored"):
    """The run went back to the state after `step`.

    Of its first `commits` commits, those past that step are undone.
    """

    step: Count
    commits: Count
    path: str = ""


class Warned(_Record, frozen=True, kw_only=True, tag="warning"):
    """A word that the user should know, and that stops nothing."""

    message: str


class StillStarting(_Record, frozen=True, kw_only=True, tag="starting"):
    """A process that takes long to start, as on a busy host, and its activity."""

    message: str


class RunFailed(_Record, frozen=True, kw_only=True, tag="failed"):
    """The reason why the run cannot go on, and the culprit."""

    who: Literal["user", "spec", "environment", "internal"] = "internal"
    message: str = ""
    trace: str = ""

    @property
    def words(self) -> str:
        """Return all that there is to say: the user's trace ends with the message."""
        trace = self.trace.rstrip()
        return trace if self.message in trace else f"{trace}\n{self.message}".lstrip()


class RunEnded(_Record, frozen=True, kw_only=True, tag="run_ended"):
    """The run is over; `summary` is printed by `--json`."""

    summary: dict[str, Any]


Event = (
    RunStarted
    | DatasetRead
    | WorkerChanged
    | RoundFormed
    | WorldReFormed
    | FaultPerformed
    | EpochEnded
    | ValuesLogged
    | CommandProgressed
    | ReplicaChanged
    | CheckpointPublished
    | Restored
    | Warned
    | StillStarting
    | RunFailed
    | RunEnded
)


def event_of(kind: str, /, **fields: object) -> Event:
    """The event of these fields, as its readers will have it.

    Raises:
        ValidationError: a field is missing, or is of another type.
        InternalError: readers know no such field, and would leave it out.

    >>> event_of("warning", at=0.0, message="the disk is full")
    Warned(at=0.0, message='the disk is full')
    >>> event_of("warning", at=0.0, message="the disk is full", hint="df")
    Traceback (most recent call last):
    ...
    brim.errors.InternalError: a warning has no hint
    """
    event: Event = msgspec.convert({"kind": kind, **fields}, Event)
    for name in fields:
        if name not in event.__struct_fields__:
            raise InternalError(f"a {kind} has no {name}")
    return event
