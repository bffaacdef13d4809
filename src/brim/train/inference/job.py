"""A job that uses a model: every chunk of the rows is computed once, by any number of workers.

The loop is that of training without an update: rounds, the barrier and its commit are the same, and
what a step leaves is a file of results (`parts.py`) instead of other weights.
"""

from __future__ import annotations

import contextlib
import math
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
from torch import nn

from brim.coordination.job.barrier import COMMIT
from brim.coordination.job.participant import Interrupted, PeerLost, RoundChanged
from brim.coordination.job.reduction import share
from brim.domain.batch import Span
from brim.domain.inference import chunks_of_step, steps_of
from brim.domain.job import JobSpec
from brim.errors import EnvironmentFault
from brim.host.clock import monotonic
from brim.train.context import WorkerContext
from brim.train.exchange.layout import Layout
from brim.train.inference.parts import Parts
from brim.train.membership import Membership
from brim.train.software import versions
from brim.train.state.transfer import weights_sha256
from brim.wire.messages import Completed, Facts, MicroReport, StepReport, failure_of


class Task(Protocol):
    """The task that is done with the rows."""

    @property
    def model(self) -> nn.Module: ...

    @property
    def dataset(self) -> Any: ...

    @property
    def samples(self) -> int: ...

    def compute(self, chunk: int, span: Span) -> bytes:
        """The result of a chunk; it depends on the chunk alone."""
        ...

    def finish(self, chunks: Iterator[bytes], *, job: str) -> dict[str, float]:
        """Make one whole of the results of all chunks, in order; the metrics, if there are any.

        `job` is the name of the run: the successor of a worker that died over it is told the
        same.
        """
        ...


def infer(task: Task, spec: JobSpec, context: WorkerContext) -> None:
    """Take part in an inference job until it is done, or this worker has left (SystemExit)."""
    _InferenceJob(task, spec, context).run()


class _InferenceJob:
    def __init__(self, task: Task, spec: JobSpec, context: WorkerContext) -> None:
        self._task, self._per_step, self._spec = task, spec.micro_batches, spec
        self._samples = task.samples
        self._steps = steps_of(self._samples, self._per_step)
        self._members = Membership(context)
        self._run_dir = Path(context.run_dir)
        self._parts = Parts(self._run_dir / "parts", samples=self._samples)
        self._start_method = context.start_method

    def run(self) -> None:
        model = self._task.model
        self._members.join(Layout([*model.parameters(), *model.buffers()]), self._facts())
        while True:
            try:
                self._members.next_round(self._parts).close()
                while self._parts.committed < self._steps:
                    self._step()
                self._finish()
                return
            except RoundChanged:
                pass
            except (Interrupted, PeerLost):
                self._members.await_replacement()

    def _step(self) -> None:
        """Compute this rank's chunks, have the first worker keep everybody's, and commit."""
        step, rank = self._parts.committed, self._members.rank
        chunks = chunks_of_step(step, self._per_step, self._samples)
        chunks_here = [list(chunks)[index] for index in self._own_chunks(len(chunks))]
        results, started = [], monotonic()
        for chunk in chunks_here:
            self._members.poll()
            results.append(self._task.compute(chunk, chunks[chunk]))
        computed = monotonic()
        payloads = self._members.arrive(step, "gather", msgspec.msgpack.encode(results)).payloads
        if rank == 0:
            results = [result for payload in payloads for result in msgspec.msgpack.decode(payload)]
            with self._telling():
                self._parts.keep(step, results)
        report = StepReport(
            epoch=0,
            parts=[
                _report(rank, chunk - step * self._per_step, chunks[chunk]) for chunk in chunks_here
            ],
            seconds={"compute": computed - started, "wait": monotonic() - computed},
        )
        released = self._members.arrive(step, COMMIT, msgspec.msgpack.encode(report))
        self._parts.committed += 1
        if released.hold:
            raise RoundChanged

    def _own_chunks(self, chunks: int) -> range:
        """Return this rank's chunks of a step, as the round shares them.

        Where they are fewer than the shares, they are divided evenly.
        """
        shares, rank = self._members.shares, self._members.rank
        if chunks != sum(shares):
            return share(chunks, self._members.world_size, rank)
        first = sum(shares[:rank])
        return range(first, first + shares[rank])

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        """Turn an error of the disk into the job's end.

        The next worker would meet it too, and the job can be resumed.
        """
        try:
            yield
        except EnvironmentFault as fault:
            self._members.tell(failure_of(fault))
            raise

    def _finish(self) -> None:
        """Wait until all are there; then the first worker merges all parts."""
        self._members.arrive(self._parts.committed, "end")
        if self._members.rank == 0:
            with self._telling():
                metrics = self._task.finish(self._parts.chunks(), job=self._run_dir.name)
            digest = weights_sha256(self._task.model)
            self._members.tell(Completed(weights_sha256=digest, metrics=metrics))
        self._members.wait_for_dismissal()

    def _facts(self) -> Facts:
        dataset = self._task.dataset
        return Facts(
            samples=self._samples,
            test_samples=0,
            steps=self._steps,
            steps_per_epoch=self._steps,
            global_batch_size=self._spec.global_batch_size,
            epochs=1,
            seed=self._spec.seed,
            clip_norm=None,
            on_nan=self._spec.on_nan,
            order="sequential",
            order_size=self._samples,
            parameters=sum(parameter.numel() for parameter in self._task.model.parameters()),
            quarantined=int(getattr(dataset, "quarantined", 0)),
            quarantine_path=str(getattr(dataset, "quarantine_path", "") or ""),
            versions=versions(),
            start_method=self._start_method,
            transport="auto",
        )


def _report(rank: int, micro: int, span: Span) -> MicroReport:
    crc32 = zlib.crc32(np.arange(span.start, span.stop, dtype="<i8").tobytes())
    return MicroReport(rank, micro, span.start, span.stop, crc32, math.nan)
