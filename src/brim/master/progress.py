"""The progress of a run: figures of committed steps, and the final summary.

Pure: records in, numbers out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from brim.coordination.job.membership import RunOutcome, World
from brim.coordination.job.stragglers import Load
from brim.wire.messages import (
    CommandProgress,
    CommitRecord,
    Facts,
    MicroReport,
    ReplicaNews,
    StepReport,
)

# what a rank does by itself, and the more of it the larger its share is
_OWN_WORK = ("data", "compute")
_micro = attrgetter("micro")
_LONG_ENOUGH = 20.0  # seconds of a command behind which a checkpoint of it counts
_REMEMBERED = 256  # steps whose losses are known, if a checkpoint is older than they are


def step_fields(record: CommitRecord, reports: list[StepReport]) -> dict[str, Any]:
    """A line of `steps.jsonl` from the ranks' reports of a committed step."""
    parts = sorted([part for report in reports for part in report.parts], key=_micro)
    samples = sum([part.stop - part.start for part in parts])
    fields: dict[str, Any] = {
        "at": record.at,
        "round": record.round,
        "step": record.step,
        "epoch": reports[0].epoch,
        "loss": _mean_loss(parts, samples),
        "samples": samples,
        "parts": [[part.rank, part.micro, part.start, part.stop, part.crc32] for part in parts],
        "seconds": _mean_seconds(reports),
    }
    if reports[0].lr is not None:
        fields["lr"] = reports[0].lr
    if reports[0].staleness is not None:
        fields["staleness"] = reports[0].staleness
    if contents := {report.contents for report in reports if report.contents is not None}:
        fields["contents"] = sorted(contents)
    if tables := _traffic(reports):
        fields["tables"] = tables
    return fields


def progress_fields(message: CommandProgress) -> dict[str, Any]:
    """A line of `events.jsonl` from the progress of a command."""
    return {name: getattr(message, name) for name in ("round", "step", "total", "values", "saved")}


def replica_fields(news: ReplicaNews) -> dict[str, Any]:
    """A line of `events.jsonl` from news of a replica."""
    return {name: getattr(news, name) for name in ("replica", "state", "address", "reason", "cpu")}


def _traffic(reports: list[StepReport]) -> dict[str, list[Any]]:
    """Return all ranks' traffic with each table, as a line of `steps.jsonl` has it."""
    found: dict[str, list[Any]] = {}
    for name in dict.fromkeys(name for report in reports for name in report.tables):
        table_reports = [report.tables[name] for report in reports if name in report.tables]
        hottest = next((traffic.hottest for traffic in table_reports if traffic.hottest), ())
        sums = [
            sum(traffic.read for traffic in table_reports),
            sum(traffic.changed for traffic in table_reports),
        ]
        found[name] = [*sums, hottest] if hottest else sums
    return found


def _mean_loss(parts: list[MicroReport], samples: int) -> float:
    return sum([part.loss * (part.stop - part.start) for part in parts]) / max(1, samples)


def _mean_seconds(reports: list[StepReport]) -> dict[str, float]:
    reports = [
        report for report in reports if report.parts
    ] or reports  # a server does nothing but wait and fold
    totals: dict[str, float] = {}
    for report in reports:
        for name, seconds in report.seconds.items():
            totals[name] = totals.get(name, 0.0) + seconds
    return {name: round(totals[name] / len(reports), 7) for name in sorted(totals)}


def loads_of(world: World, reports: Sequence[StepReport]) -> tuple[list[Load], float]:
    """The load of each worker in a step, and the seconds of the step that do not depend on shares.

    A server has no pace: it waits for blocks, and how long its own work takes is seen in
    everybody's step.
    """
    own_seconds = [sum([report.seconds.get(name, 0.0) for name in _OWN_WORK]) for report in reports]
    loads = [
        Load(member.worker, len(report.parts), seconds)
        for member, share, report, seconds in zip(
            world.members, world.shares, reports, own_seconds, strict=False
        )
        if share
    ]
    # Who is last waits for nobody, so its other seconds are the fewest.
    other_times = [
        sum(report.seconds.values()) - work
        for report, work in zip(reports, own_seconds, strict=True)
    ]
    other_seconds = min(other_times, default=0.0)
    return loads, other_seconds


@dataclass(slots=True, kw_only=True)
class Progress:
    """The run so far.

    Args:
        run: its directory.
        started: wall clock at which the user typed the command.
    """

    run: str
    started: float
    facts: Facts | None = None
    step: int = 0
    epoch: int = 0
    loss: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    weights_sha256: str | None = None
    world_sizes: set[int] = field(default_factory=set)
    servers: set[int] = field(default_factory=set)  # numbers of them
    steps_redone: int = 0
    out_of_memory: int = 0  # workers that were lost for it
    re_forming: float = 0.0
    first_commit: float = 0.0
    last_commit: float = 0.0
    first_installed: float = 0.0
    losses: dict[int, float] = field(default_factory=dict)  # of the last steps
    samples: int = 0
    epochs: int = 0  # the last that was told to be over
    command_step: int = 0  # of a command that is started again: where it is
    farthest: int = 0  # and the farthest that it ever was
    _logged: dict[str, int] = field(
        default_factory=dict
    )  # the step that each value was logged of last

    def committed(self, fields: dict[str, Any]) -> None:
        self.step, self.epoch, self.loss = fields["step"], fields["epoch"], fields["loss"]
        self.first_commit = self.first_commit or fields["at"]
        self.last_commit = fields["at"]
        self.samples += fields["samples"]
        self.losses.pop(self.step - _REMEMBERED, None)
        self.losses[self.step] = fields["loss"]

    def command_told(self, message: CommandProgress) -> bool:
        """Take the progress of a command, and return whether it is farther than ever.

        So it is as well where it has run for a while and saved something: one that writes at its
        start and then dies gets on no more for that.

        >>> progress = Progress(run="run", started=0.0)
        >>> [progress.command_told(CommandProgress(round=1, step=step)) for step in (3, 2, 3, 4)]
        [True, False, False, True]
        >>> saves = [CommandProgress(round=1, saved=True, seconds=seconds) for seconds in (1.0, 30.0)]
        >>> [progress.command_told(message) for message in saves]
        [False, True]
        """
        has_lasted = message.seconds >= _LONG_ENOUGH
        is_farther = (message.saved and has_lasted) or message.step > self.farthest
        if message.step:
            self.steps_redone += max(0, self.command_step - message.step)
        self.command_step = message.step or self.command_step
        self.farthest = max(self.farthest, message.step)
        self.metrics = {**self.metrics, **message.values}
        return is_farther

    def loss_before(self, fields: dict[str, Any]) -> float | None:
        """Return the loss of a step when it was made before, where it has another one now.

        >>> progress = Progress(run="run", started=0.0, losses={1: 0.5, 2: math.nan})
        >>> [progress.loss_before({"step": step, "loss": 0.5}) for step in (1, 2, 3)]
        [None, nan, None]
        >>> progress.loss_before({"step": 2, "loss": math.nan})
        """
        now: float = fields["loss"]
        previous_loss = self.losses.get(fields["step"], now)
        return (
            None
            if previous_loss == now or (math.isnan(previous_loss) and math.isnan(now))
            else previous_loss
        )

    def ended(self, epoch: int, metrics: dict[str, float]) -> bool:
        """Take note that an epoch is over, and return whether that is news.

        Every member says so, and a life after a restore says so again.
        """
        if epoch <= self.epochs:
            return False
        self.epochs, self.metrics = epoch, metrics or self.metrics
        return True

    def logged(self, step: int, values: dict[str, float]) -> dict[str, float]:
        """Values of a step; those that are news."""
        fresh = {name: value for name, value in values.items() if self._logged.get(name, -1) < step}
        self._logged |= dict.fromkeys(fresh, step)
        self.metrics = {**self.metrics, **fresh}
        return fresh

    def installed(self, step: int, now: float) -> None:
        """A round is under way, at `step`; a step behind an earlier commit is redone."""
        self.first_installed = self.first_installed or now
        self.steps_redone += max(0, self.step - step)
        self.step = step

    @property
    def samples_per_second(self) -> float | None:
        seconds = self.last_commit - self.first_installed
        return self.samples / seconds if self.samples and seconds > 0 else None

    def summary(self, outcome: RunOutcome, now: float) -> dict[str, Any]:
        """The object that `--json` prints; its names are a public contract."""
        return {
            "run": self.run,
            "exit": outcome.value,
            "metrics": self.metrics,
            "steps": self.step or self.command_step,
            "samples_per_epoch": self.facts.samples if self.facts else None,
            "steps_redone": self.steps_redone,
            "out_of_memory": self.out_of_memory,
            "world_sizes": sorted(self.world_sizes),
            "servers": sorted(self.servers),
            "weights_sha256": self.weights_sha256,
            "samples_per_second": self.samples_per_second,
            "seconds": {
                "total": now - self.started,
                "to_first_step": self.first_commit - self.started if self.first_commit else None,
                "re_forming": self.re_forming,
            },
        }
