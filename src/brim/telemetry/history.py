"""A run as its records tell it.

The one fold of the records is shared by the live view, `brim status`, the report and the scheduler.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import asdict, replace

from brim.domain.accounting import time_breakdown
from brim.domain.quantities import counted
from brim.domain.step_records import Restore, Session, StepRecord
from brim.telemetry.events import (
    CheckpointPublished,
    CommandProgressed,
    DatasetRead,
    EpochEnded,
    Event,
    FaultPerformed,
    ReplicaChanged,
    Restored,
    RoundFormed,
    RunEnded,
    RunFailed,
    RunStarted,
    StillStarting,
    ValuesLogged,
    Warned,
    WorkerChanged,
    WorldReFormed,
)
from brim.telemetry.record_files import follow_events, follow_steps, in_order


class WorkerLife(WorkerChanged, frozen=True, kw_only=True):
    """The life of one worker: all changes of it as one, at the time of the first.

    `until` is when it ended, wall clock; None: not yet.
    """

    until: float | None = None


@dataclass(slots=True)
class RunState:
    """The state of a run, as its records say: the one fold of them, for all readers of a run.

    Restores and steps are put in order by the commits that they count, never by their times: a
    clock may have been set between two lives of a run, and then the times of its two files lie.

    Attributes:
        commits: lines of `steps.jsonl` so far, those that count no more among them.
        first, last: the first step that was committed, and the last.
        crew: the workers of the present life of the run, by name; those that are gone among them.
        command: the last that a command said of its steps, where it is started again at each change.
        replicas: of a service, by id, as far as they are there.
    """

    started: RunStarted | None = None
    dataset: DatasetRead | None = None
    round: RoundFormed | None = None
    failed: RunFailed | None = None
    ended: RunEnded | None = None
    crew: dict[str, WorkerLife] = field(default_factory=dict)
    commits: int = 0
    first: StepRecord | None = None
    last: StepRecord | None = None
    restored: Restore | None = None
    command: CommandProgressed | None = None
    replicas: dict[str, ReplicaChanged] = field(default_factory=dict)

    @property
    def step(self) -> int:
        """Steps committed that count: a restore takes it back. Of a command, those that it said."""
        if self.command:
            return self.command.step
        if self.restored and self.restored.commits >= self.commits:
            return self.restored.step
        return self.last.step if self.last else 0

    @property
    def planned(self) -> int | None:
        """Steps that the run will have; None where nobody has said so."""
        if self.started is None or not self.started.spec.get("restart"):
            return self.started.steps if self.started else None
        return (self.command.total or None) if self.command else None

    @property
    def present(self) -> list[WorkerLife]:
        """The workers that are there."""
        return [life for life in self.crew.values() if life.until is None]

    def take(self, record: Event | StepRecord, number: int) -> None:
        """Fold one record in.

        Args:
            number: of a step, which commit it is, from 1.
        """
        if isinstance(record, StepRecord):
            self.add_step(record, number)
        else:
            self.add(record)

    def add_step(self, step: StepRecord, number: int) -> None:
        """Fold one committed step in."""
        self.commits = number
        self.first = self.first or step
        self.last = step

    def add(self, event: Event) -> None:
        """Fold one event in."""
        match event:
            case RunStarted():
                self.started = event
                self.ended = None
                self.failed = None
            case DatasetRead():
                self.dataset = event
            case WorkerChanged():
                self._add_worker(event)
            case RoundFormed():
                self.round = event
                for rank, worker in enumerate(event.workers):
                    if worker in self.crew:
                        self.crew[worker] = replace(self.crew[worker], rank=rank)
            case Restored():
                self.restored = Restore(event.step, event.commits)
            case CommandProgressed(step=step) if step:
                self.command = event
            case ReplicaChanged(replica=replica, state="ready" | "leaving"):
                self.replicas[replica] = event
            case ReplicaChanged(replica=replica):
                self.replicas.pop(replica, None)
            case RunFailed():
                self.failed = event
            case RunEnded():
                self.ended = event
                self._all_gone(event.at)
            case _:
                pass

    def _add_worker(self, event: WorkerChanged) -> None:
        member = self.crew.get(event.worker)
        if member and event.pid and member.pid not in (0, event.pid):
            # Names begin from w1 with each start: the worker that had one before ended with its
            # agent, and nobody was left to say so.
            self._all_gone(event.at)
            self.crew, member = {}, None
        life = member or WorkerLife(**asdict(event))
        self.crew[event.worker] = replace(
            life,
            state=event.state,
            pid=event.pid or life.pid,
            agent=event.agent or life.agent,
            rank=life.rank if event.rank is None else event.rank,
            reason=event.reason or life.reason,
            serves=event.serves,
            until=event.at if event.state in ("lost", "left") else None,
        )
        if event.state in ("lost", "left"):
            self._forget_replicas_of(event.worker)

    def _forget_replicas_of(self, worker: str) -> None:
        self.replicas = {
            id: replica for id, replica in self.replicas.items() if replica.worker != worker
        }

    def _all_gone(self, timestamp: float) -> None:
        for life in self.present:
            self.crew[life.worker] = replace(life, until=timestamp)
        self.replicas = {}


@dataclass(slots=True)
class RunHistory(RunState):
    """The state of a run, and everything that led there, in order.

    Args:
        keep_steps: hold every step, which the ledger and the report need; else the last alone, so
            that following a run of millions of steps costs no memory.

    Attributes:
        former: the workers of earlier lives of the run, by name.
        staleness: of asynchronous training, how many steps had each.
        reported: the last reports of a command in its present round.
    """

    keep_steps: bool = True
    events: list[Event] = field(default_factory=list)
    steps: list[StepRecord] = field(default_factory=list)
    sessions: list[Session] = field(default_factory=list)
    former: dict[str, WorkerLife] = field(default_factory=dict)
    epochs: dict[int, EpochEnded] = field(default_factory=dict)
    restores: list[Restore] = field(default_factory=list)
    recent: deque[StepRecord] = field(default_factory=lambda: deque(maxlen=200))
    staleness: Counter[int] = field(default_factory=Counter)
    reported: deque[CommandProgressed] = field(default_factory=lambda: deque(maxlen=200))
    _lead: float | None = None

    @property
    def workers(self) -> dict[str, WorkerLife]:
        """All workers that ever were, by name; of a name that was given again, the last."""
        return {**self.former, **self.crew}

    def time_parts(self) -> dict[str, float]:
        """Return the seconds of the run by cause, as `time_breakdown` has them."""
        return time_breakdown(
            self.sessions,
            self.steps,
            self.restores,
            re_forming=sum(e.seconds for e in self.events if isinstance(e, WorldReFormed)),
            rounds=[
                event.at
                for event in self.events
                if isinstance(event, RoundFormed) and not self._begins_life(event)
            ],
        )

    def _begins_life(self, event: RoundFormed) -> bool:
        """A round that no step of its session precedes interrupts no training."""
        session = max(
            (session.start for session in self.sessions if session.start <= event.at),
            default=event.at,
        )
        first = bisect_left(self.steps, session, key=lambda step: step.at)
        return first == len(self.steps) or self.steps[first].at > event.at

    @property
    def planned_epochs(self) -> int:
        """Passes over the data, from the planned steps: the spec of a user's own loop has none."""
        return self.started.steps // max(1, self.started.steps_per_epoch) if self.started else 0

    @property
    def spec(self) -> dict[str, object]:
        return dict(self.started.spec) if self.started else {}

    @property
    def ahead(self) -> int | None:
        """Batches that a worker may be ahead of others, where training is asynchronous."""
        setting = self.spec.get("asynchronous")
        return setting if isinstance(setting, int) else None

    @property
    def verb(self) -> str:
        """The work of the run: `train`, `evaluate`, `predict`, `serve`, or `restart` of any command."""
        inference = self.spec.get("inference")
        if isinstance(inference, dict):
            return str(inference["kind"])
        if self.spec.get("service"):
            return "serve"
        return "restart" if self.spec.get("restart") else "train"

    def samples_per_second(self, *, window: float = 5.0) -> float:
        """The rate over the last `window` seconds of steps; 0 where there is too little to tell."""
        if len(self.recent) < 2:
            return 0.0
        newest = self.recent[-1].at
        steps_inside = [step for step in self.recent if newest - step.at <= window]
        span = newest - steps_inside[0].at
        return sum(step.samples for step in steps_inside[1:]) / span if span > 0 else 0.0

    def table_rates(self, *, window: float = 5.0) -> dict[str, tuple[float, float]]:
        """Rows of each table that were read and changed per second.

        The rates are over the last `window` seconds of steps.
        """
        newest = self.recent[-1].at if self.recent else 0.0
        steps_inside = [step for step in self.recent if newest - step.at <= window]
        span = newest - steps_inside[0].at if steps_inside else 0.0
        if span <= 0:
            return {}
        return {
            name: (
                sum(step.tables[name].read for step in steps_inside[1:] if name in step.tables)
                / span,
                sum(step.tables[name].changed for step in steps_inside[1:] if name in step.tables)
                / span,
            )
            for name in steps_inside[-1].tables
        }

    def hottest(self, table: str) -> tuple[tuple[int, int], ...]:
        """Ids of a table that are looked up most, with how often, as the last sample has them."""
        samples = (
            step.tables[table].hottest for step in reversed(self.recent) if table in step.tables
        )
        return next((sample for sample in samples if sample), ())

    def seconds_left(self) -> float | None:
        """Seconds until the planned end at the present rate; None where there is no rate."""
        timed = [(step.at, number) for number, step in enumerate(self.recent)]
        timed = timed or [(report.at, report.step) for report in self.reported]
        if not self.planned or len(timed) < 2 or timed[-1][1] <= timed[0][1]:
            return None
        per_step = (timed[-1][0] - timed[0][0]) / (timed[-1][1] - timed[0][1])
        return max(0, self.planned - self.step) * per_step

    def add_step(self, step: StepRecord, number: int) -> None:
        RunState.add_step(self, step, number)
        if not self.keep_steps:
            self.steps.clear()
        self._extend_session(step.at)
        self.steps.append(step)
        self.recent.append(step)
        if step.staleness is not None:
            self.staleness[step.staleness] += 1

    def add(self, event: Event) -> None:
        crew = self.crew
        RunState.add(self, event)
        self.former.update(crew if crew is not self.crew else {})
        self.events.append(event)
        self._time(event)
        match event:
            case RunStarted():
                self.recent.clear()
            case RoundFormed():
                self.reported.clear()
            case CommandProgressed(step=step) if step:
                self.reported.append(event)
            case EpochEnded():
                self.epochs[event.epoch] = event
            case Restored():
                self.restores.append(Restore(event.step, event.commits))
            case _:
                pass

    def _time(self, event: Event) -> None:
        """Keep the lives of the run apart: the time between them is no wait."""
        match event:
            case WorkerChanged(state="started" | "ready"):
                # Workers start before their run says so: these may belong to a life that begins
                # only now.
                self._lead = self._lead or event.at
            case RunStarted():
                self.sessions.append(Session(min(self._lead or event.at, event.at), event.at))
                self._lead = None
            case RunEnded() if self.sessions:
                total = (event.summary.get("seconds") or {}).get("total") or 0.0
                start = min(self.sessions[-1].start, event.at - total)
                self.sessions[-1] = Session(start, max(start, event.at))
            case _:
                self._extend_session(event.at)

    def _extend_session(self, timestamp: float) -> None:
        self._lead = None
        if self.sessions:
            session = self.sessions[-1]
            self.sessions[-1] = session._replace(end=max(session.end, timestamp))


def read_history(run_dir: Path) -> RunHistory:
    """All that the run's records say now."""
    reader = RunReader(run_dir)
    reader.poll()
    return reader.history


class RunReader:
    """Follows the two files of a run and folds their growth into `history`."""

    def __init__(self, run_dir: Path, *, keep_steps: bool = True) -> None:
        self._events, self._steps = follow_events(run_dir), follow_steps(run_dir)
        self.history = RunHistory(keep_steps=keep_steps)

    def poll(self) -> list[Event | StepRecord]:
        """Fold in and return the new records, in order."""
        events = self._events.poll()  # first: the commits that a restore counts are then there
        fresh = []
        for number, record in in_order(events, self._steps.poll_numbered()):
            self.history.take(record, number)
            fresh.append(record)
        return fresh


def _named(names: list[str], limit: int = 3) -> str:
    """A few names.

    >>> _named(["a", "b", "c", "d", "e"])
    'a, b, c and 2 others'
    """
    rest = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {counted(rest, 'other')}" if rest > 0 else "")


def describe_event(event: Event, history: RunHistory) -> str:
    """One line for people; empty for internal events."""
    match event:
        case RunStarted():
            subject = event.file or " ".join(event.command)
            if history.verb in ("restart", "serve"):
                return f"running {subject}, records in {event.run}"
            doing = {"evaluate": "evaluating", "predict": "predicting with"}.get(
                history.verb, "training"
            )
            text = f"{doing} {subject}: {counted(event.steps, 'step')}, records in {event.run}"
            if history.ahead is not None:
                batches = counted(history.ahead, "batch")
                text += f"; asynchronous, at most {batches} ahead: the result depends on timing"
            late = event.spec.get("delay")
            delay = f", {counted(late, 'step')} late" if late else ""
            names = _named([table.name for table in event.tables])
            return f"{text}; by rows: {names}{delay}" if event.tables else text
        case DatasetRead():
            return _describe_dataset(event, history)
        case WorkerChanged():
            return _describe_worker(event, history)
        case RoundFormed():
            cause = f" ({event.cause})" if event.cause else ""
            shares = f", shares {', '.join(map(str, event.shares))}" if event.is_uneven else ""
            start = "" if history.verb in ("restart", "serve") else f" from step {event.step}"
            return f"round {event.round}: {event.members}{shares}{start}{cause}"
        case WorldReFormed():
            redone = (
                f", {event.redone} {'step' if event.redone == 1 else 'steps'} redone"
                if event.redone
                else ""
            )
            return f"round {event.round} re-formed in {milliseconds(event.seconds)}{redone}"
        case FaultPerformed():
            return f"fault: {event.text}" + (f" ({event.worker})" if event.worker else "")
        case EpochEnded():
            return f"epoch {event.epoch} done at step {event.step}" + describe_metrics(
                event.metrics
            )
        case ValuesLogged():
            return f"step {event.step}{describe_metrics(event.values)}"
        case CommandProgressed() | ReplicaChanged():
            return event.words
        case CheckpointPublished():
            return f"checkpoint at step {event.step}: {_relative_path(history, event.path)}"
        case Restored():
            source = f" from {_relative_path(history, event.path)}" if event.path else ""
            return f"restored step {event.step}{source}"
        case Warned():
            return f"warning: {event.message}"
        case StillStarting():
            return event.message
        case RunFailed():
            return f"failed: {event.message}"
        case RunEnded():
            return ""


def _relative_path(history: RunHistory, path: str) -> str:
    """The path as seen from the run's directory."""
    return path.removeprefix(f"{history.started.run}/") if history.started else path


def _describe_dataset(event: DatasetRead, history: RunHistory) -> str:
    test = f", {event.test_samples:,} to test" if event.test_samples else ""
    bad = (
        f"; {counted(event.quarantined, 'bad row')} set aside in {event.quarantine_path}"
        if event.quarantined
        else ""
    )
    return f"data: {counted(event.samples, 'sample')} to {history.verb}{test}{bad}"


def _describe_worker(event: WorkerChanged, history: RunHistory) -> str:
    # A round's line says who is active; and that all leave when the work is done or has failed is
    # no news.
    whole = history.started is not None and history.step >= history.started.steps
    done = history.failed or (whole and history.steps and event.at >= history.steps[-1].at)
    if event.state in ("started", "ready", "active", "suspect") or (
        event.state in ("leaving", "left") and done
    ):
        return ""
    return f"{event.worker} {event.state}{reason_in_brackets(event.reason)}"


def describe_staleness(staleness: Mapping[int, int]) -> str:
    """Between which state and which a step's gradients were computed and applied, in words.

    >>> describe_staleness({0: 10, 2: 85, 1: 4, 7: 1})
    'staleness 2 steps in the median, at most 7'
    """
    values = sorted(staleness)
    half, seen = sum(staleness.values()) / 2, 0
    for value in values:
        seen += staleness[value]
        if seen >= half:
            break
    return f"staleness {counted(value, 'step')} in the median, at most {values[-1]}"


def reason_in_brackets(reason: str) -> str:
    """A worker's reason in brackets; that it ended as it should is none."""
    return f" ({reason})" if reason not in ("", "exit status 0") else ""


def describe_metrics(metrics: dict[str, float | None]) -> str:
    """`: auc 0.7712, log loss 0.46`, or nothing."""
    values = [f"{name} {value:.4f}" for name, value in metrics.items() if value is not None]
    return ": " + ", ".join(values) if values else ""


def milliseconds(seconds: float) -> str:
    """Short times in ms, long ones in s.

    >>> milliseconds(0.0242), milliseconds(2.5)
    ('24 ms', '2.5 s')
    """
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
