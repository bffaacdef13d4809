"""Accounting from a run's records: use of every sample, wall time, and speed.

Pure: records in, numbers out. Reading the files is `telemetry`'s work.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from brim.domain.quantities import counted
from brim.domain.step_records import STEP_PHASES, Restore, Session, StepRecord, lasting

# Sample indices at the positions [start, stop) of an epoch's order: (epoch, start, stop) -> int64
# array.
Order = Callable[[int, int, int], npt.NDArray[np.int64]]
_WRAPS_AT = 1 << 32  # of sums of hashes
_ON_RECORD = np.dtype("<i8")


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochLedger:
    """Counts of how often the samples of one epoch were applied.

    Args:
        epoch: from 1, as people count.
        samples: how many there are.
        applied_once, missing, repeated: how many were applied once, never, and more than once; they
            add up to `samples`.
        mismatched: micro-batches whose worker fed other samples than the epoch's order says.
    """

    epoch: int
    samples: int
    applied_once: int
    missing: int
    repeated: int
    mismatched: int

    @property
    def exact(self) -> bool:
        return self.applied_once == self.samples and self.mismatched == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """The account of a whole run.

    Args:
        problems: the faults, in words.
        counted: `samples`; `contents` of a stream; or `positions` where nobody but a sampler knew
            which samples were there, or each shard of a stream was read by another worker.
    """

    epochs: tuple[EpochLedger, ...]
    problems: tuple[str, ...]
    counted: str = "samples"

    @property
    def exact(self) -> bool:
        """True if every sample of every planned epoch was applied exactly once.

        The workers' checksums confirm it.

        Where only positions were counted, each of them was.
        """
        return not self.problems and all(epoch.exact for epoch in self.epochs)


def sample_checksum(samples: npt.NDArray[np.int64]) -> int:
    """Return the checksum of a micro-batch's samples.

    It is the crc32 of their indices as little-endian 64-bit integers.

    >>> sample_checksum(np.array([3, 1, 2]))
    395507172
    """
    return zlib.crc32(np.ascontiguousarray(samples, dtype=_ON_RECORD).data)


def audit(
    steps: Iterable[StepRecord],
    restores: Iterable[Restore],
    *,
    samples_per_epoch: int,
    epochs: int,
    order: Order | None,
    last_epoch: int | None = None,
) -> Ledger:
    """Count the uses of every sample of every epoch.

    Args:
        steps: all records, undone ones too.
        samples_per_epoch: size of the training set.
        epochs: how many the run planned.
        order: recomputes the order that the run must have followed, so that the workers' checksums
            are compared with something that they did not write. None where it cannot be recomputed:
            then the uses of every position are counted.
        last_epoch: samples of the last epoch, where the job was stopped within it; None: all.
    """
    by_epoch: dict[int, list[StepRecord]] = {}
    for step in lasting(steps, restores):
        by_epoch.setdefault(step.epoch, []).append(step)
    ledgers, problems = [], []
    for epoch in sorted({*range(epochs), *by_epoch}):
        size = samples_per_epoch
        if epoch == epochs - 1 and last_epoch is not None:
            size = last_epoch
        ledger, found = _audit_epoch(epoch, by_epoch.get(epoch, []), size, order)
        ledgers.append(ledger)
        problems += found
        if not 0 <= epoch < epochs:
            problems.append(
                f"epoch {epoch + 1}: applied, but the run has {counted(epochs, 'epoch')}"
            )
    has_contents = bool(by_epoch) and all(
        step.contents for steps in by_epoch.values() for step in steps
    )
    unordered = "contents" if has_contents else "positions"
    unit = unordered if order is None else "samples"
    return Ledger(epochs=tuple(ledgers), problems=tuple(problems), counted=unit)


def _audit_epoch(
    epoch: int, steps: Sequence[StepRecord], size: int, order: Order | None
) -> tuple[EpochLedger, list[str]]:
    uses = np.zeros(size, dtype=np.uint32)
    problems: list[str] = []
    mismatched = 0
    in_order = order(epoch, 0, size) if steps and order is not None else None
    for step in steps:
        for part in step.parts:
            problem_place = (
                f"epoch {epoch + 1}, step {step.step}, micro-batch {part.micro} of rank {part.rank}"
            )
            if not 0 <= part.start <= part.stop <= size:
                problems.append(f"{problem_place}: positions {part.start} to {part.stop} of {size}")
                continue
            # An order has each of its samples once: who counts its positions has counted those.
            uses[part.start : part.stop] += 1
            if in_order is not None and part.crc32 != sample_checksum(
                in_order[part.start : part.stop]
            ):
                mismatched += 1
                problems.append(f"{problem_place}: fed other samples than the epoch's order says")
    for step in _with_other_contents(steps):
        mismatched += len(step.parts)
        problems.append(
            f"epoch {epoch + 1}, step {step.step}: fed other samples than the stream has there"
        )
    return (
        EpochLedger(
            epoch=epoch + 1,
            samples=size,
            applied_once=int(np.count_nonzero(uses == 1)),
            missing=int(np.count_nonzero(uses == 0)),
            repeated=int(np.count_nonzero(uses > 1)),
            mismatched=mismatched,
        ),
        problems,
    )


def _with_other_contents(steps: Sequence[StepRecord]) -> Iterator[StepRecord]:
    """Yield the steps of a stream whose parts do not add up to the samples read of it.

    Steps after such a step are compared from there on.
    """
    total = 0
    for step in sorted(steps, key=lambda step: min((part.start for part in step.parts), default=0)):
        if step.contents:
            total = (total + sum(part.crc32 for part in step.parts)) % _WRAPS_AT
            if {*step.contents} != {total}:
                yield step
                total = step.contents[0]


def throughput(
    steps: Sequence[StepRecord], *, start: float, end: float, buckets: int
) -> list[tuple[float, float]]:
    """Samples per second over time, as (middle of the bucket, rate), in equal buckets of wall time.

    Undone and redone work counts in both places: this is the machine's work, lasting or not.

    >>> step = StepRecord(at=1.5, round=1, step=1, epoch=0, loss=0.5, samples=8, parts=(), seconds={})
    >>> throughput([step], start=0.0, end=4.0, buckets=2)
    [(1.0, 4.0), (3.0, 0.0)]
    """
    if end <= start or buckets < 1:
        return []
    width = (end - start) / buckets
    totals = [0] * buckets
    for step in steps:
        if start <= step.at <= end:
            totals[min(int((step.at - start) / width), buckets - 1)] += step.samples
    return [(start + (bucket + 0.5) * width, total / width) for bucket, total in enumerate(totals)]


PART_NAMES = {
    "start": "starting, to the first step",
    "data": "data: reading and collating",
    "compute": "compute: forward and backward",
    "reduce": "reduce: adding up gradients",
    "wait": "wait: for other workers",
    "apply": "apply: the optimizer's step",
    "redone": "redone: steps that were lost",
    "re_forming": "re-forming the world",
    "stalled": "stalled: until a loss was noticed",
    "other": "other: evaluation, checkpoints",
}
"""What the parts of a run's time are, by the names of `time_breakdown`."""


def time_breakdown(
    sessions: Sequence[Session],
    steps: Sequence[StepRecord],
    restores: Sequence[Restore] = (),
    *,
    re_forming: float,
    rounds: Sequence[float] = (),
) -> dict[str, float]:
    """Divide the wall time of a run's sessions by cause, in seconds.

    The values add up to the sessions' length.

    `start` is until the first step of each session, the phases are those of steps that lasted,
    `redone` is steps that a restore undid, `re_forming` as measured, `stalled` the rest between the
    steps around a round (until a silent worker was given up), and `other` the rest: evaluation,
    checkpoints.

    Args:
        re_forming: seconds of all rounds together.
        rounds: when the rounds were formed, wall clock.
    """
    parts: dict[str, float] = {"start": sum(_start_up(session, steps) for session in sessions)}
    lasting_steps = lasting(steps, restores)
    for phase in STEP_PHASES:
        parts[phase] = sum(step.seconds.get(phase, 0.0) for step in lasting_steps)
    step_seconds = sum(_phases(step.seconds) for step in steps)
    parts["redone"] = max(0.0, step_seconds - sum(_phases(step.seconds) for step in lasting_steps))
    parts["re_forming"] = re_forming
    parts["stalled"] = max(0.0, sum(_gap(steps, moment) for moment in rounds) - re_forming)
    total = sum(session.end - session.start for session in sessions)
    parts["other"] = max(0.0, total - sum(parts.values()))
    return parts


def _gap(steps: Sequence[StepRecord], timestamp: float) -> float:
    """Seconds around `timestamp` in which no step was under way; 0 before the first and after the last."""
    next_index = bisect_right(steps, timestamp, key=lambda step: step.at)
    if not 0 < next_index < len(steps):
        return 0.0
    return max(
        0.0, steps[next_index].at - _phases(steps[next_index].seconds) - steps[next_index - 1].at
    )


def _phases(seconds: Mapping[str, float]) -> float:
    return sum(seconds.get(phase, 0.0) for phase in STEP_PHASES)


def _start_up(session: Session, steps: Sequence[StepRecord]) -> float:
    """Seconds until the session's first step began.

    A step's record is written when it is committed.
    """
    for step in steps:
        if session.start <= step.at <= session.end:
            return max(0.0, step.at - _phases(step.seconds) - session.start)
    return session.end - session.start


def as_plain(ledger: Ledger) -> dict[str, Any]:
    """The ledger as the JSON that `brim ledger --json` prints: a public contract."""
    return {
        "exact": ledger.exact,
        "counted": ledger.counted,
        "epochs": [
            {
                "epoch": epoch.epoch,
                "samples": epoch.samples,
                "applied_once": epoch.applied_once,
                "missing": epoch.missing,
                "repeated": epoch.repeated,
                "mismatched": epoch.mismatched,
            }
            for epoch in ledger.epochs
        ],
        "problems": list(ledger.problems),
    }
