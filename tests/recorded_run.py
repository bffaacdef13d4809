"""Writes the records that a run would leave, without running anything: the fake behind the edges'
tests.
"""

from __future__ import annotations

import itertools
import math
import weakref
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from brim.coordination.job.reduction import even_shares
from brim.domain.accounting import sample_checksum
from brim.domain.job import GLOBAL_BATCH_SIZE, JobSpec, WorkerRange
from brim.domain.order import EpochOrder
from brim.host.clock import VirtualClock
from brim.interfaces import Clock
from brim.telemetry.record_files import EVENTS, STEPS, RecordFile


def spec(**changes: Any) -> JobSpec:
    fields: dict[str, Any] = {
        "file": "flights.py",
        "parameters": {},
        "workers": WorkerRange.parse("4"),
        "epochs": 2,
    }
    return JobSpec(**{**fields, **changes})


class RecordLog:
    """Adds records to a file, each stamped by the clock."""

    def __init__(self, path: Path, *, clock: Clock) -> None:
        self._file, self._clock = RecordFile(path), clock
        weakref.finalize(self, self._file.close)

    def append(self, kind: str, /, **fields: object) -> None:
        self.write({"at": self._clock.wall(), "kind": kind, **fields})

    def append_step(self, **fields: object) -> None:
        self.write({"at": self._clock.wall(), **fields})

    def write(self, record: dict[str, object]) -> None:
        self._file.put(self._file.size, msgspec.json.encode(record) + b"\n")


@dataclass
class RecordedRun:
    """A run whose clock is ours: call its methods in the order in which things shall
    have happened.
    """

    run_dir: Path
    spec: JobSpec
    samples: int = 4096
    order: str = "shuffled"
    order_size: int = 0
    start: float = 1_790_000_000.0
    step_seconds: float = 0.012
    workers: list[str] = field(default_factory=list)
    step: int = 0
    round: int = 0
    redone: int = 0
    re_forming: float = 0.0
    sizes: set[int] = field(default_factory=set)
    started_before: int = 0  # processes, which had the numbers before those of this run's workers
    lr: float | list[float] | None = None  # runs of earlier versions do not say it
    tables: dict[str, list[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.run_dir.mkdir(parents=True, exist_ok=True)
        batch = self.spec.global_batch_size or GLOBAL_BATCH_SIZE
        self.spec = replace(self.spec, epochs=self.spec.epochs or 1, global_batch_size=batch)
        self.clock = VirtualClock(self.start)
        self.events = RecordLog(self.run_dir / EVENTS, clock=self.clock)
        self.log = RecordLog(self.run_dir / STEPS, clock=self.clock)
        self.random = np.random.default_rng(self.spec.seed)
        self.started = 0

    @property
    def commits(self) -> int:
        """Steps that are on record, those of an earlier life among them."""
        path = self.run_dir / STEPS
        return path.read_bytes().count(b"\n") if path.exists() else 0

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.samples // self.spec.global_batch_size)

    @property
    def steps(self) -> int:
        return self.steps_per_epoch * self.spec.epochs

    def begin(self, workers: int = 4, **changes: Any) -> None:
        import msgspec

        self.began = self.clock.now()
        fields: dict[str, Any] = {
            "run": str(self.run_dir),
            "file": self.spec.file,
            "command": list(self.spec.command),
            "spec": msgspec.to_builtins(self.spec),
            "versions": {"brim": "0.1.0", "python": "3.11.9", "torch": "2.13.0"},
            "host": "laptop",
            "start_method": "fork",
            "steps": self.steps,
            "steps_per_epoch": self.steps_per_epoch,
        }
        self.events.append("run_started", **{**fields, **changes})
        self.clock.advance(1.4)
        self.events.append(
            "dataset",
            samples=self.samples,
            test_samples=512,
            quarantined=0,
            quarantine_path="",
            block_size=1,
            order=self.order,
            order_size=self.order_size,
        )
        for _ in range(workers):
            self.start_worker()
        self.clock.advance(0.1)
        self.form(self.workers, "start", seconds=0.0)

    def start_worker(self) -> str:
        worker = f"w{self.started}"
        self.started += 1
        pid = 4000 + self.started_before + self.started
        for state in ("started", "ready"):
            self.events.append(
                "worker", worker=worker, state=state, pid=pid, agent="a0", rank=None, reason=""
            )
            self.clock.advance(0.02)
        self.workers = [*self.workers, worker]
        return worker

    def share_out(self, shares: list[int], cause: str) -> None:
        self.form(self.workers, cause, seconds=0.018, shares=shares)

    def form(
        self,
        workers: list[str],
        cause: str,
        *,
        seconds: float,
        redone: int = 0,
        shares: list[int] | None = None,
    ) -> None:
        self.round += 1
        self.workers = workers
        shares = shares or list(even_shares(self.spec.micro_batches, len(workers)))
        computing = sum(share > 0 for share in shares)
        self.sizes.add(computing)
        self.clock.advance(seconds)
        self.events.append(
            "round",
            round=self.round,
            world_size=computing,
            workers=workers,
            shares=shares,
            step=self.step,
            cause=cause,
        )
        for rank, (worker, share) in enumerate(zip(workers, shares, strict=True)):
            writer = {
                "worker": worker,
                "state": "active",
                "pid": 0,
                "agent": "a0",
                "rank": rank,
                "reason": "",
            }
            self.events.append("worker", **writer, serves=not share)
        if self.round > 1:
            self.events.append("re_formed", round=self.round, seconds=seconds, redone=redone)
            self.redone += redone
            self.re_forming += seconds

    def lose(self, rank: int, *, text: str = "") -> None:
        """A kill -9: the survivors go on, and a replacement joins."""
        worker = self.workers[rank]
        self.events.append(
            "fault",
            text=text or f"kill rank {rank} at step {self.step}",
            step=self.step,
            worker=worker,
        )
        self.events.append(
            "worker", worker=worker, state="lost", pid=0, agent="a0", rank=rank, reason="signal 9"
        )
        remaining = [other for other in self.workers if other != worker]
        self.form(remaining, f"{worker} lost (signal 9)", seconds=0.024, redone=1)
        self.start_worker()
        self.form(self.workers, f"{self.workers[-1]} joined", seconds=0.008)

    def add(self, count: int) -> None:
        self.events.append(
            "fault", text=f"add {count} at step {self.step}", step=self.step, worker=None
        )
        for _ in range(count):
            self.start_worker()
        self.form(self.workers, f"{count} joined", seconds=0.009)

    def leave(self, rank: int) -> None:
        worker = self.workers[rank]
        self.events.append(
            "fault", text=f"term rank {rank} at step {self.step}", step=self.step, worker=worker
        )
        for state in ("leaving", "left"):
            self.events.append(
                "worker", worker=worker, state=state, pid=0, agent="a0", rank=rank, reason="SIGTERM"
            )
        self.form(
            [other for other in self.workers if other != worker], f"{worker} left", seconds=0.006
        )

    def train(self, steps: int) -> None:
        """Commit so many steps, with the epoch's end where it falls."""
        for _ in range(steps):
            self._commit()
            if self.step % self.steps_per_epoch == 0:
                self._end_epoch()

    def train_to_end(self) -> None:
        self.train(self.steps - self.step)

    def checkpoint(self) -> None:
        self.events.append(
            "checkpoint",
            step=self.step,
            path=f"checkpoints/{self.step}",
            bytes=1 << 20,
            seconds=0.05,
        )

    def restore(self, step: int) -> None:
        self.clock.advance(0.5)
        self.step = step
        self.events.append("restored", step=step, path=f"checkpoints/{step}", commits=self.commits)
        self.clock.advance(0.001)

    def end(self, outcome: str = "done") -> dict[str, Any]:
        for rank, worker in enumerate(self.workers):
            self.events.append(
                "worker", worker=worker, state="left", pid=0, agent="a0", rank=rank, reason=""
            )
        total = self.clock.now() - self.began
        summary = {
            "run": str(self.run_dir),
            "exit": outcome,
            "metrics": {"auc": 0.7712, "log_loss": 0.4581},
            "steps": self.step,
            "samples_per_epoch": self.samples,
            "steps_redone": self.redone,
            "out_of_memory": 0,
            "world_sizes": sorted(self.sizes),
            "weights_sha256": "ab" * 32,
            "samples_per_second": self.step * self.spec.global_batch_size / total,
            "seconds": {"total": total, "to_first_step": 1.62, "re_forming": self.re_forming},
        }
        self.events.append("run_ended", summary=summary)
        return summary

    def _commit(self) -> None:
        size = len(self.workers)
        epoch, step_in_epoch = divmod(self.step, self.steps_per_epoch)
        first = step_in_epoch * self.spec.global_batch_size
        last = min(first + self.spec.global_batch_size, self.samples)
        took = (
            self.step_seconds * (0.35 + 1.4 / min(size, 4)) * float(self.random.lognormal(0, 0.08))
        )
        self.step += 1
        self.clock.advance(took)
        noise = float(self.random.normal(0, 0.02))
        self.log.append_step(
            round=self.round,
            step=self.step,
            epoch=epoch,
            loss=0.45 + 0.25 * math.exp(-self.step / 120) + noise,
            samples=last - first,
            parts=self._parts(epoch, first, last),
            seconds={
                "data": took * 0.08,
                "compute": took * 0.55,
                "reduce": took * 0.17,
                "wait": took * 0.06,
                "apply": took * 0.11,
            },
            **({} if self.lr is None else {"lr": self.lr}),
            **({"tables": self.tables} if self.tables else {}),
            **({"contents": self._contents(epoch, last)} if self.order == "stream" else {}),
        )

    def _contents(self, epoch: int, last: int) -> list[int]:
        """The sum of the checksums of an epoch up to a position."""
        batch = self.spec.global_batch_size
        spans = [(first, min(first + batch, last)) for first in range(0, last, batch)]
        parts = [part for span in spans for part in self._parts(epoch, *span)]
        return [sum(part[4] for part in parts) % (1 << 32)]

    def _parts(self, epoch: int, first: int, last: int) -> list[list[int]]:
        count, size = self.spec.micro_batches, len(self.workers)
        order = self._order(epoch)
        edges = [first + (last - first) * micro // count for micro in range(count + 1)]
        return [
            [micro * size // count, micro, start, stop, sample_checksum(order[start:stop])]
            for micro, (start, stop) in enumerate(itertools.pairwise(edges))
        ]

    def _order(self, epoch: int) -> npt.NDArray[np.int64]:
        match self.order:
            case "shuffled":
                size = self.order_size or self.samples
                return EpochOrder(seed=self.spec.seed, epoch=epoch, size=size).samples(
                    0, self.samples
                )
            case "sampler":
                return np.random.default_rng(epoch).integers(0, 100, self.samples)
            case _:
                return np.arange(self.samples)

    def _end_epoch(self) -> None:
        self.clock.advance(0.25)
        epoch = self.step // self.steps_per_epoch
        self.events.append(
            "epoch",
            epoch=epoch,
            step=self.step,
            metrics={"auc": 0.74 + 0.03 * (1 - 0.5**epoch), "log_loss": 0.47 - 0.01 * epoch},
        )
        self.checkpoint()


def eventful(run_dir: Path, *, samples: int = 60_000, epochs: int = 3) -> RecordedRun:
    """A kill, a join of two and a leave on the way to a good end."""
    run = RecordedRun(run_dir, spec(epochs=epochs), samples=samples)
    run.begin()
    quarter = run.steps // 5
    run.train(quarter)
    run.lose(1)
    run.train(quarter)
    run.add(2)
    run.train(quarter)
    run.leave(2)
    run.train_to_end()
    run.end()
    return run
