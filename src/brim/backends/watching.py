"""Follows the files of a run for its scheduler: its processes, its steps, and their times.

A job of a week has millions of steps, and a scheduler must not stand still or run out of memory
over them. So of many new steps the last are enough: they say how far the job is and how fast. Older
measurements are in the scheduler's book.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from brim.coordination.cluster.sightings import Reached, Seen
from brim.domain.measuring import Measured
from brim.domain.services import MOST_REPLICAS, ServiceReplica, address_in
from brim.domain.step_records import StepRecord
from brim.telemetry.events import (
    CheckpointPublished,
    CommandProgressed,
    Event,
    ReplicaChanged,
    Restored,
    RunFailed,
    RunStarted,
    WorkerChanged,
)
from brim.telemetry.history import RunState, WorkerLife
from brim.telemetry.logs import last_line
from brim.telemetry.record_files import follow_events, follow_steps, in_order

# Bytes of steps that one look takes in, and of events that are in memory: some hundredths of a
# second.
_READ_BYTES = 1 << 20
_MAX_READS = 16  # times as many bytes of events that one look takes in
_MAX_LOSSES_SHOWN = 20  # losses for memory that a job's story has; the run's summary counts all
_WORDS = 200  # characters of each
_LAST_WORDS = 500  # characters of the last line of a log


def recordable(summary: dict[str, Any]) -> dict[str, Any]:
    """Return the summary of a run's end as a job's record can have it.

    The owner of the run wrote it. Of one with a number beyond 64 bits, only how the run ended is
    left.
    """
    try:
        msgspec.msgpack.encode(summary)
    except OverflowError:
        return {"exit": str(summary.get("exit", ""))}
    return summary


class RunWatch:
    """Follows `events.jsonl` and `steps.jsonl` of one run.

    Attributes:
        state: where the run stands.
        measured: what its steps took.
        reached: the first step that a world of the present size made.
        saved: when its last checkpoint was written, or it began.
        out_of_memory: the first workers that were lost for it, in words.
        served: replicas of a service that have become ready, ever.
    """

    def __init__(self, run_dir: Path) -> None:
        self._log = run_dir / "logs" / "agent.log"
        self._log_before = 0  # bytes of it that are of earlier processes
        self._events = follow_events(run_dir)
        self._steps = follow_steps(run_dir, at_most=_READ_BYTES)
        # since the run began or was restored; of a command, its last report
        self._last: StepRecord | CommandProgressed | None = None
        self._first_report: float | None = None  # when a command first reported a step
        self.state = RunState()
        self.measured = Measured()
        self.reached: Reached | None = None
        self.saved = 0.0
        self.out_of_memory: list[str] = []
        self.served = 0

    def poll(self) -> None:
        """Take in new records."""
        fresh = self._events.poll(at_once=_READ_BYTES)
        for _ in range(_MAX_READS - 1):
            if not self._events.has_more:
                break
            for event in fresh:
                self.take(event, 0)
            fresh = self._events.poll(at_once=_READ_BYTES)
        steps = self._steps.poll_numbered(at_once=_READ_BYTES)
        for number, record in in_order(fresh, steps):
            self.take(record, number)

    @property
    def has_more(self) -> bool:
        """True where there is more that the next look takes in."""
        return self._events.has_more or self._steps.has_more

    @property
    def damage(self) -> str:
        """The reason why nothing more can be known of the run; empty where it can."""
        return self._events.damage or self._steps.damage

    def begin(self, now: float) -> None:
        """New processes are about to be started: the end of the last ones is forgotten."""
        self.poll()
        with contextlib.suppress(OSError):
            self._log_before = self._log.stat().st_size
        self.state.crew = {}
        self.state.replicas = {}
        self.state.failed = None
        self.state.ended = None
        self._last = None
        self.saved = now
        self.reached = None

    @property
    def workers(self) -> dict[str, int]:
        """Process ids of the workers that are there, by name; a server takes no device."""
        return {life.worker: life.pid for life in self._computing}

    @property
    def _computing(self) -> list[WorkerLife]:
        return [life for life in self.state.present if life.pid and not life.serves]

    @property
    def step(self) -> int:
        """The last step that counts; of a service, how many replicas have become ready."""
        return self.served or self.state.step

    @property
    def steps(self) -> int | None:
        """The number that the run will have; None until it has said so."""
        return self.state.planned

    @property
    def first_step(self) -> float | None:
        """The time of the first step."""
        return self.state.first.at if self.state.first else self._first_report

    @property
    def last_step(self) -> float | None:
        """The time of the last step."""
        return self._last.at if self._last else None

    @property
    def failed(self) -> RunFailed | None:
        """The reason why it cannot go on."""
        return self.state.failed

    @property
    def summary(self) -> dict[str, Any]:
        """The summary of its end; empty before."""
        return recordable(self.state.ended.summary) if self.state.ended else {}

    @property
    def replicas(self) -> tuple[ServiceReplica, ...]:
        """The replicas of a service, where each says something that can be believed."""
        found = []
        for id, replica in sorted(self.state.replicas.items()):
            address = address_in(replica.address)
            if address is not None:
                found.append(ServiceReplica(id[:_WORDS], *address, replica.state, replica.cpu))
        return tuple(found[: 2 * MOST_REPLICAS])

    @property
    def by_agent(self) -> dict[str, int]:
        """The number of workers, by agent."""
        return dict(Counter(life.agent for life in self._computing))

    def seen(
        self,
        *,
        alive: bool,
        workers: Mapping[str, int],
        agents: frozenset[str] = frozenset(),
        processes: int = 1,
    ) -> Seen:
        """Return the look at the run's job.

        Args:
            alive, workers, agents: as the backend sees its processes.
            processes: of each of these workers; each is a worker of the run.
        """
        reached = self.reached
        if reached is not None and processes > 1:
            reached = reached._replace(workers=reached.workers // processes)
        damage = "" if alive or self.summary or self.failed else self.damage
        return Seen(
            alive=alive,
            workers=workers if alive else {},
            agents=agents if alive else frozenset(),
            step=self.step,
            steps=self.steps,
            saved=self.saved,
            first_step=self.first_step,
            last_step=self.last_step,
            out_of_memory=tuple(self.out_of_memory),
            reached=reached,
            outcome="failed" if damage else str(self.summary.get("exit", "")),
            who=self.failed.who if self.failed else "user" if damage else "",
            problem=self.failed.message if self.failed else damage or self._last_words(alive=alive),
            summary=self.summary,
            measured=self.measured.of_each(processes),
            replicas=self.replicas if alive else (),
        )

    def _last_words(self, *, alive: bool) -> str:
        """Return what the agent of processes that have died without a record of it said last."""
        if alive or self.summary:
            return ""
        with contextlib.suppress(OSError):
            if self._log.stat().st_size > self._log_before:
                words = last_line(self._log)[:_LAST_WORDS]
                return f"its processes died; the last line of their log: {words}"
        return ""

    def beyond(self, workers: Mapping[str, int]) -> list[int]:
        """Process ids to end so that so many workers of each agent are left.

        Workers in no round go, and the last of its members.
        """
        room = Counter(workers)
        lives = {life.worker: life for life in self._computing}
        spared = set()
        for worker in self.state.round.workers if self.state.round else []:
            agent = lives[worker].agent if worker in lives else ""
            if room[agent] > 0:
                room[agent] -= 1
                spared.add(worker)
        return [life.pid for worker, life in lives.items() if worker not in spared]

    def take(self, record: Event | StepRecord, number: int) -> None:
        """Take one record in; `number` as in `RunState.take`."""
        if isinstance(record, ReplicaChanged):
            self.served += record.state == "ready" and record.replica not in self.state.replicas
        self.state.take(record, number)
        match record:
            case StepRecord():
                self._measure(record)
            case RunStarted():
                self.saved = max(self.saved, record.at)
            case CheckpointPublished():
                self.saved = record.at
            case CommandProgressed():
                if record.saved:
                    self.saved = record.at
                if record.step:
                    self._first_report = self._first_report or record.at
                    self._measure(record)
            case ReplicaChanged(state="ready"):
                self._first_report = self._first_report or record.at
            case Restored():
                self._last = None
            case WorkerChanged(state="lost" | "left"):
                self._note_end(record)
            case _:
                pass

    def _measure(self, step: StepRecord | CommandProgressed) -> None:
        last = self._last
        self._last = step
        round = self.state.round
        size = round.world_size if round and step.round == round.round else 0
        if size and (self.reached is None or self.reached.workers != size):
            self.reached = Reached(size, step.at, step.step)
        # The first step of a round paid for the change; its time belongs to no number of workers.
        # Nor does the time between two steps with others between them that were left out.
        if last is None or last.round != step.round or not size or step.at <= last.at:
            return
        steps = step.step - last.step
        if steps == 1 or (isinstance(step, CommandProgressed) and steps > 0):
            self.measured.add(size, (step.at - last.at) / steps)

    def _note_end(self, event: WorkerChanged) -> None:
        # The owner of the records may write anything into them: a scheduler keeps little of that.
        life = self.state.crew[event.worker]
        self.state.crew[event.worker] = msgspec.structs.replace(life, reason="")
        if event.ran_out_of_memory and len(self.out_of_memory) < _MAX_LOSSES_SHOWN:
            words = f"{event.worker}: {event.reason.removeprefix('out of memory: ')}"
            self.out_of_memory.append(words[:_WORDS])
