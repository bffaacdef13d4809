"""What the files of a run say to whoever schedules it: its processes, its steps, and what these
took.

A job of a week has millions of steps, and whoever schedules must not stand still or run out of
memory over them. So of many new steps the last are enough: they say how far the job is and how
fast, and older measurements are in the scheduler's book.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from brim.coordination.sightings import Reached
from brim.domain.accounting import StepRecord
from brim.domain.measuring import Measured
from brim.telemetry.events import follow_events, follow_steps, in_order
from brim.telemetry.records import (
    CheckpointWritten,
    Event,
    Failed,
    Restored,
    RoundFormed,
    RunEnded,
    RunStarted,
    WorkerChanged,
)

# Bytes of steps that one look takes in, and of events that are in memory: some hundredths of a
# second.
_AT_ONCE = 1 << 20
_MOST = 16  # times as many bytes of events that one look takes in
_TOLD = 20  # losses for memory that a job's story has; the run's summary counts all
_WORDS = 200  # characters of each


@dataclass(slots=True)
class RunWatch:
    """Follows `events.jsonl` and `steps.jsonl` of one run.

    Attributes:
        workers: process ids of the workers that are there, by name.
        steps: that the run will have; None until it has said so.
        measured: what its steps took.
        reached: the first step that a world of the present size made.
        saved: when its last checkpoint was written, or it began.
        out_of_memory: the first workers that were lost for it, in words.
    """

    run_dir: Path
    workers: dict[str, int] = field(default_factory=dict)
    step: int = 0
    steps: int | None = None
    round: RoundFormed | None = None
    measured: Measured = field(default_factory=Measured)
    reached: Reached | None = None
    saved: float = 0.0
    first_step: float | None = None
    failed: Failed | None = None
    summary: dict[str, Any] = field(default_factory=dict)
    out_of_memory: list[str] = field(default_factory=list)
    _born: dict[str, tuple[int, str]] = field(
        default_factory=dict
    )  # process and agent of each, gone ones included
    _last: StepRecord | None = None
    _files: Any = None

    def __post_init__(self) -> None:
        self._files = follow_events(self.run_dir), follow_steps(self.run_dir, at_most=_AT_ONCE)

    def poll(self) -> None:
        """Take in what is new."""
        events, steps = self._files
        fresh = events.poll(at_once=_AT_ONCE)
        for _ in range(_MOST - 1):
            if not events.behind:
                break
            for event in fresh:
                self._add(event)
            fresh = events.poll(at_once=_AT_ONCE)
        for record in in_order(fresh, steps.poll()):
            if isinstance(record, StepRecord):
                self._add_step(record)
            else:
                self._add(record)

    @property
    def behind(self) -> bool:
        """Whether there is more that the next look takes in."""
        return bool(self._files[0].behind)

    @property
    def damage(self) -> str:
        """Why nothing more can be known of the run; empty where it can."""
        return next((each.damage for each in self._files if each.damage), "")

    def begin(self, now: float) -> None:
        """New processes are about to be started: what the last ones said of their end is over."""
        self.poll()
        self.workers, self.failed, self.summary, self._last = {}, None, {}, None
        self._born = {}
        self.saved, self.reached = now, None

    @property
    def last_step(self) -> float | None:
        """When the last step was made."""
        return self._last.at if self._last else None

    @property
    def by_agent(self) -> dict[str, int]:
        """How many workers there are, by agent."""
        return dict(Counter(self._born[worker][1] for worker in self.workers))

    def beyond(self, workers: Mapping[str, int]) -> list[int]:
        """Process ids of those without whom so many of each agent are left.

        Who is in no round goes, and the last of its members.
        """
        room, kept = Counter(workers), set()
        for worker in self.round.workers if self.round else []:
            agent = self._born[worker][1] if worker in self.workers else ""
            if room[agent] > 0:
                room[agent] -= 1
                kept.add(worker)
        return [pid for worker, pid in self.workers.items() if worker not in kept]

    def _add_step(self, step: StepRecord) -> None:
        self.step = step.step
        self.first_step = self.first_step or step.at
        last, self._last = self._last, step
        size = self.round.world_size if self.round and step.round == self.round.round else 0
        if size and (self.reached is None or self.reached.workers != size):
            self.reached = Reached(size, step.at, step.step)
        # The first step of a round paid for the change; its time belongs to no number of workers.
        # Nor does the time between two steps with others between them that were left out.
        follows = last and last.round == step.round and last.step + 1 == step.step
        if last and follows and size and step.at > last.at:
            self.measured.add(size, step.at - last.at)

    def _add(self, event: Event) -> None:
        match event:
            case RunStarted(steps=steps):
                self.steps, self.failed, self.summary = steps, None, {}
                self.saved = max(self.saved, event.at)
            case RoundFormed():
                self.round = event
            case WorkerChanged(worker=worker, state="lost" | "left"):
                self.workers.pop(worker, None)
                if event.ran_out_of_memory and len(self.out_of_memory) < _TOLD:
                    words = f"{worker}: {event.reason.removeprefix('out of memory: ')}"
                    self.out_of_memory.append(words[:_WORDS])
            case WorkerChanged(worker=worker, pid=pid, agent=agent, serves=serves) if pid:
                if (
                    self._born.get(worker, (pid, agent))[0] != pid
                ):  # names begin anew with each start
                    self.workers.clear()
                    self._born.clear()
                self._born[worker] = pid, agent
                if not serves:  # a server takes no device
                    self.workers[worker] = pid
            case Restored(step=step):
                self.step, self._last = step, None
            case CheckpointWritten():
                self.saved = event.at
            case Failed():
                self.failed = event
            case RunEnded(summary=summary):
                self.summary = summary
                self.workers.clear()
