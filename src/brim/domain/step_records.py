"""The figures that a run records: facts of its data, steps, restores and sessions.

Pure, and without numpy, which masters and agents do not need.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

import msgspec

# A number in a run's records. Whoever owns a job writes them, and a scheduler keeps what they say in
# records of its own, and ends processes by their numbers: none is below 0, or beyond 64 bits.
Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
STEP_PHASES = ("data", "compute", "reduce", "wait", "apply")


class CommittedPart(msgspec.Struct, frozen=True, array_like=True):
    """One micro-batch of a committed step.

    Args:
        rank: of the worker that computed it.
        micro: its index within the step, from 0.
        start: first position in the epoch's order.
        stop: one past the last.
        crc32: `sample_checksum` of the samples that were really fed to the model; of a stream, the
            sum of the hashes of their contents, modulo 2³².
    """

    rank: int
    micro: int
    start: int
    stop: int
    crc32: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFacts:
    """A table of an embedding.

    `bytes` are those that it takes on each host, the optimizer's share among them.
    """

    name: str
    rows: int
    dim: int
    bytes: int


class DatasetFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of the data of a run.

    Args:
        block_size: as in `EpochOrder`.
        order: how an epoch's order comes about: `shuffled` (a permutation of `order_size` samples,
            of which `samples` are used), `sequential`, `stream`, or `sampler` (which nobody else
            can recompute).
        order_size: 0 where it is that of `samples`.
    """

    samples: Count
    test_samples: Count | None = None
    quarantined: Count = 0
    quarantine_path: str = ""
    block_size: Count = 1
    order: str = "shuffled"
    order_size: Count = 0


class TableTraffic(NamedTuple):
    """Rows of a table that a rank, or a step, had to do with.

    Args:
        read: distinct ones of each micro-batch.
        changed: that were applied.
        hottest: a sample of one micro-batch: ids and how often each was looked up, most often
            first.
    """

    read: int
    changed: int
    hottest: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """A committed step, as a line of `steps.jsonl` says it.

    Args:
        at: wall clock, seconds.
        step: which step of the run, from 1.
        epoch: which pass over the data, from 0.
        loss: mean over the step's samples; None where it was not a number.
        seconds: phase (of `STEP_PHASES`) -> seconds, mean over the ranks.
        lr: the learning rate that it was applied with: one number where all parameter groups had
            the same, else that of each. None where nobody said it.
        tables: all ranks' traffic with each table of an embedding.
        staleness: of asynchronous training, the steps that were applied between the state that its
            gradients were computed on and its own.
        contents: of a stream, the sum of the hashes of all that it has yielded in this epoch, up to
            the end of the step, modulo 2³², as each of those that read it in this step has it.
    """

    at: float
    round: Count
    step: Count
    epoch: Count
    loss: float | None
    samples: Count
    parts: tuple[CommittedPart, ...]
    seconds: dict[str, float]
    lr: float | tuple[float | None, ...] | None = None
    tables: dict[str, TableTraffic] = field(default_factory=dict)
    staleness: int | None = None
    contents: tuple[Count, ...] = ()

    def learning_rates(self) -> dict[str, float]:
        """Learning rates by name.

        `lr`, or `lr/0` and so on where the parameter groups have rates of their own.
        """
        if not isinstance(self.lr, tuple):
            return {} if self.lr is None else {"lr": self.lr}
        return {f"lr/{group}": rate for group, rate in enumerate(self.lr) if rate is not None}


class Restore(NamedTuple):
    """The restore of a run to the state after `step`.

    Of its first `commits` commits, those past the step are undone.
    """

    step: int
    commits: int


class Session(NamedTuple):
    """One life of a run: from its start (or resumption) to its end, wall clock."""

    start: float
    end: float


def lasting(steps: Iterable[StepRecord], restores: Iterable[Restore]) -> list[StepRecord]:
    """The commits that still count, in order: those past the step of a later restore were undone.

    The order follows from the places of the records, not their times: between two lives of a
    run, or between two hosts, a clock may differ. A number that comes twice without a restore
    between stays twice, and the ledger shows it.

    Args:
        steps: in the order in which they were committed.
        restores: in the order in which they were done.
    """
    lasting_steps: list[StepRecord] = []
    seen = 0
    all_steps = list(steps)
    for back in restores:
        lasting_steps += all_steps[seen : back.commits]
        lasting_steps = [step for step in lasting_steps if step.step <= back.step]
        seen = max(seen, back.commits)
    return lasting_steps + all_steps[seen:]
