"""A cluster of scheduled jobs without clock, disk or processes: events in, commands out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from brim.coordination.cluster.metering import Charge
from brim.coordination.cluster.reconcile import Force, Leave, Resize, Start, Suspend
from brim.coordination.cluster.scheduled_jobs import (
    Command,
    Decide,
    Event,
    LearnCost,
    LearnRestart,
    LearnSpeed,
    Lose,
    Notify,
    Save,
    ScheduledJobs,
    Submitted,
)
from brim.domain.cluster import Cluster, ClusterSpec
from brim.domain.course import Change
from brim.domain.measuring import Measured
from brim.domain.resizing import Overheads, measured_overheads, measured_restart
from brim.domain.scheduled_job import ScheduledJob
from brim.domain.submission import Submission, kind_of_start
from submissions import submission


@dataclass
class Taught:
    """The lessons of jobs, in memory."""

    costs: dict[str, list[float]] = field(default_factory=dict)
    speeds: dict[str, Measured] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)
    restarts: dict[str, list[float]] = field(default_factory=dict)

    @property
    def overheads(self) -> Overheads:
        return measured_overheads(self.costs)

    def restart_of(self, submission: Submission) -> float | None:
        return measured_restart(self.restarts.get(kind_of_start(submission), ()))

    def measured(self, fingerprint: str) -> Measured:
        return self.speeds.get(fingerprint, Measured())

    def steps_of(self, submission: Submission) -> int | None:
        return self.steps.get(submission.fingerprint)


class Transcript:
    """A scheduler's automaton, and all that it has said.

    Attributes:
        said: its last commands but for lessons and notes, in words.
        story: of its jobs, in words.
    """

    def __init__(self, cluster: str = "1x8", **spec: Any) -> None:
        self.lessons = Taught()
        described = ClusterSpec(cluster=Cluster.parse(cluster), **{"grace": 10.0, **spec})
        self.jobs = ScheduledJobs([], described, self.lessons)
        self.known: dict[str, ScheduledJob] = {}
        self.story: list[str] = []
        self.commands: list[Command] = []

    def submit(self, workers: str = "1:8", *, at: float = 0.0, **fields: Any) -> ScheduledJob:
        number = len(self.known) + 1
        request = submission(workers, **fields)
        job = ScheduledJob(number=number, id=f"job-{number}", submission=request, submitted=at)
        self.known[job.id] = job
        self.hear(Submitted(job), at)
        return job

    def hear(self, event: Event, now: float) -> list[str]:
        """Return its answer to an event."""
        self.commands = self.jobs.handle(event, now)
        descriptions = []
        for command in self.commands:
            if isinstance(command, LearnCost):
                self.lessons.costs.setdefault(command.kind, []).append(command.seconds)
            elif isinstance(command, LearnRestart):
                kind = kind_of_start(command.submission)
                self.lessons.restarts.setdefault(kind, []).append(command.seconds)
            elif isinstance(command, LearnSpeed):
                lessons = self.lessons.measured(command.submission.fingerprint)
                merged = command.measured.merged([lessons])
                self.lessons.speeds[command.submission.fingerprint] = merged
            elif isinstance(command, Change):
                self.story.append(f"{command.job} {command.event}")
            words = in_words(command)
            descriptions += [words] if words else []
        return descriptions


def in_words(command: Command) -> str:
    """A command in words; empty for one that only keeps something."""
    match command:
        case Start(job=job, workers=workers):
            return f"start {job}: {_on(workers)}"
        case Resize(job=job, workers=workers):
            return f"resize {job}: {_on(workers)}"
        case Force(job=job, workers=workers):
            return f"force {job}: {_on(workers)}"
        case Leave(job=job, node=node):
            return f"leave {job}: {node}"
        case Suspend(job=job):
            return f"suspend {job}"
        case Lose(job=job, node=node):
            return f"lose {job}: {node}"
        case Change(job=job, event=event):
            return f"{job or 'cluster'} {event}"
        case Notify(channel=channel, notification=notification):
            return f"notify {channel}: {notification.job} {notification.event}"
        case Save() | LearnSpeed() | LearnCost() | LearnRestart() | Charge() | Decide():
            return ""


def _on(workers: Mapping[str, int]) -> str:
    if set(workers) <= {"node0"}:
        return str(sum(workers.values()))
    return ", ".join(f"{count} on {node}" for node, count in sorted(workers.items()))
