"""A worker's side of a job: the training loop that any number of workers run together.

`Job.batches` hands out this worker's micro-batches; `Job.step` takes their losses. What happens between, when a
neighbour dies, joins or leaves, stays in here: the loop of a user sees micro-batches and nothing else.
"""

from __future__ import annotations

import platform
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

import brim
from brim.coordination.barrier import COMMIT
from brim.coordination.reduction import ReductionPlan
from brim.domain.batch import Schedule, Span, cut
from brim.domain.job import JobSpec
from brim.domain.seeds import mix
from brim.errors import EnvironmentFault, InternalError, SpecError
from brim.train.accumulate import Accumulator
from brim.train.chance import seed_everything
from brim.train.checkpoints import Checkpoints
from brim.train.context import WorkerContext
from brim.train.contribution import Contributions
from brim.train.data.batches import Collate
from brim.train.data.feed import Feed, Read, requests
from brim.train.exchange import Exchange
from brim.train.job_state import JobState
from brim.train.membership import Loner, Members, Membership, RoundChanged, parts_of
from brim.train.state import weights_sha256
from brim.wire.messages import Completed, Evaluated, Facts, MicroReport, StepReport, failure_of
from brim.wire.peer import Interrupted, PeerLost

__all__ = ["Evaluate", "Job", "MicroBatch", "pair", "to_device", "versions"]

Evaluate = Callable[["Job"], dict[str, float]]


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """What one forward and backward pass is run on.

    A sample that is a pair gives `inputs` and `target`; any other is `inputs` whole, and `target` is None.
    """

    inputs: Any
    target: Any


class Job:
    """A job as one of its workers has it.

    Args:
        model: the network; moved to the job's device.
        optimizer: over its parameters.
        spec: what the job was asked to do.
        context: the worker's place among others, or None for a process by itself.
        scheduler: its `step` is called after every epoch, or after every step.
        scheduler_interval: `epoch` or `step`.
        evaluate: called after each epoch on all workers; the metrics of the test split.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        spec: JobSpec,
        context: WorkerContext | None,
        scheduler: Any = None,
        scheduler_interval: str = "epoch",
        evaluate: Evaluate | None = None,
    ) -> None:
        self.model, self.optimizer, self.spec = model, optimizer, spec
        self.scheduler, self._scheduler_interval = scheduler, scheduler_interval
        self.members: Members = Membership(context) if context else Loner()
        self.device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
        self._evaluate = evaluate
        self._contributions = Contributions(model)
        self._state = JobState(model, optimizer, scheduler=scheduler, spec=spec)
        self._checkpoints = Checkpoints(
            self._state,
            spec,
            context=context,
            tell=lambda message: self.members.tell(message),
            listen=lambda seconds: self.members.listen(seconds),
        )
        self._weight = 0.0
        self._stepped = True
        self._losses: list[Tensor] = []
        self._contribution: list[Tensor] = []
        self._seconds: dict[str, float] = defaultdict(float)

    @property
    def committed(self) -> int:
        """Steps whose update the network has."""
        return self._state.committed

    @property
    def rank(self) -> int:
        return self.members.rank

    @property
    def world_size(self) -> int:
        return self.members.world_size

    # The loop ----------------------------------------------------------------------------------------------

    def batches(
        self,
        data: Any,
        *,
        global_batch_size: int | None = None,
        epochs: int,
        shuffle: bool | None = None,
        sampler: Iterable[int] | None = None,
        collate_fn: Collate | None = None,
        samples: int | None = None,
        facts: dict[str, Any] | None = None,
    ) -> Iterator[MicroBatch]:
        """This worker's micro-batches of every step until the job is done.

        Args:
            data, shuffle, sampler, collate_fn, samples: as `Feed` takes them.
            global_batch_size: samples of a step, whatever the number of workers; None takes a DataLoader's.
            epochs: passes over the data.
            facts: what else the records should say of the data.

        Raises:
            SystemExit: this worker was asked to leave, and has left.
        """
        feed = Feed(
            data,
            seed=self.spec.seed,
            global_batch_size=global_batch_size,
            shuffle=shuffle,
            sampler=sampler,
            collate_fn=collate_fn,
            samples=samples,
            loaders=self.spec.loaders,
        )
        feed.check()
        schedule = Schedule(samples=feed.samples, global_batch_size=feed.global_batch_size, epochs=epochs)
        if not schedule.samples:
            raise SpecError("dataset('train')", got="no samples", need="at least one")
        self._state.schedule = schedule
        self.members.join(self._contributions.layout, self._facts(schedule, feed, facts or {}))
        try:
            yield from self._rounds(feed, schedule)
        finally:
            feed.close()

    def _rounds(self, feed: Feed, schedule: Schedule) -> Iterator[MicroBatch]:
        while True:
            try:
                exchange = self.members.next_round(self._checkpoints)
                self._contributions.begin()
                yield from self._round(feed, schedule, exchange)
                self._finish()
                return
            except RoundChanged:
                pass
            except SystemExit:
                self._checkpoints.drain()
                raise
            except (Interrupted, PeerLost):
                self.members.await_replacement()
            finally:
                self._contributions.reset()
                self._contributions.clear()

    def _round(self, feed: Feed, schedule: Schedule, exchange: Exchange) -> Iterator[MicroBatch]:
        """Steps until the job is done; leaves by RoundChanged where the round is over before."""
        parts = parts_of(self.spec, self.members.world_size)
        plan = ReductionPlan(parts, (self.members.world_size,), self.members.shares)
        accumulator = Accumulator(parts, plan.rank_blocks(self.members.rank), exchange.rows)
        mine = plan.micro_batches(self.members.rank)
        wanted = requests(schedule, parts=parts, micro_batches=mine, after=self.committed)
        reads = feed.read(wanted, meanwhile=self.members.poll)
        try:
            if self.members.world_size > 1:
                # Someone of this host may still be adding up in the round before, in the memory that all share.
                self.members.arrive(self.committed, "enter")
            while True:
                if self._state.evaluated < self.committed // schedule.steps_per_epoch:
                    self._end_epoch()
                if self.committed == schedule.steps:
                    return
                reports: list[MicroReport] = []
                spans = cut(schedule.span(self.committed), parts)
                accumulator.begin()
                yield from self._micro_batches(
                    reads, schedule, {m: spans[m] for m in mine}, accumulator, reports
                )
                self._own = accumulator.only() if self.members.world_size == 1 else []
                self._commit(schedule, exchange, reports)
        finally:
            reads.close()
            exchange.close()

    def _micro_batches(
        self,
        reads: Iterator[Read],
        schedule: Schedule,
        mine: dict[int, Span],
        accumulator: Accumulator,
        reports: list[MicroReport],
    ) -> Iterator[MicroBatch]:
        """Hand out this rank's part of a step, and add up what comes back."""
        step = self.committed
        self._losses.clear()
        for micro, span in mine.items():
            self.members.poll()
            self._contributions.reset()
            if not len(span):
                accumulator.add(micro, self._contributions.nothing())
                continue
            started = time.perf_counter()
            read = next(reads)
            inputs, target = pair(read.sample)
            batch = MicroBatch(to_device(inputs, self.device), to_device(target, self.device))
            seed_everything(mix(self.spec.seed, step, micro))
            self._weight, self._stepped = len(span) / len(schedule.span(step)), False
            started = self._spent("data", started)
            yield batch
            if not self._stepped:
                raise SpecError(
                    "your training loop",
                    got="a batch without a step",
                    need="one call of job.step(loss) for every batch",
                    hint="for batch in job.batches(...): job.step(loss(model(batch.inputs), batch.target))",
                )
            accumulator.add(micro, self._contribution)
            self._contribution = []
            self._spent("compute", started)
            reports.append(MicroReport(self.members.rank, micro, span.start, span.stop, read.crc32, 0.0))

    def step(self, loss: Tensor) -> None:
        """Take the loss of the micro-batch at hand: the mean over its samples, a scalar.

        The optimizer steps once all micro-batches of a step are in, on whichever workers they are.
        """
        if self._stepped:
            raise SpecError("job.step", got="a second call for one batch", need="one call for every batch")
        if loss.numel() != 1:
            raise SpecError(
                "loss",
                got=f"a tensor of shape {list(loss.shape)}",
                need="a scalar: the mean over the micro-batch",
                hint="reduction='mean'",
            )
        (loss * self._weight).backward()  # type: ignore[no-untyped-call]
        self._losses.append(loss.detach().reshape(()))  # a shape of [1] or [1, 1] will do as well
        self._contribution = self._contributions.take(self._weight)
        self._stepped = True

    def _commit(self, schedule: Schedule, exchange: Exchange, reports: list[MicroReport]) -> None:
        step = self.committed
        started = time.perf_counter()
        if self.device.type == "cuda":  # what it has still to do is this rank's own work, not the exchange's
            torch.cuda.synchronize(self.device)
            started = self._spent("compute", started)
        waited = 0.0

        def arrive(phase: str) -> None:
            nonlocal waited
            before = time.perf_counter()
            self.members.arrive(step, phase)
            waited += time.perf_counter() - before

        total = exchange.reduce(self._own, arrive)
        losses = torch.stack(self._losses).double().tolist() if self._losses else []
        self._losses.clear()
        self._seconds["wait"] += waited
        self._spent("reduce", started + waited)
        report = StepReport(
            epoch=schedule.epoch_of(step),
            parts=[
                msgspec.structs.replace(each, loss=loss) for each, loss in zip(reports, losses, strict=True)
            ],
            seconds=dict(self._seconds),
        )
        self._seconds.clear()
        before = time.perf_counter()
        released = self.members.arrive(step, COMMIT, msgspec.msgpack.encode(report))
        started = self._spent("wait", before)
        self._apply(total, exchange, schedule)
        self._spent("apply", started)
        if self.members.rank == 0 and self.committed % schedule.steps_per_epoch:
            self._checkpoints.at_step()
        if released.hold:
            raise RoundChanged

    def _apply(self, total: list[Tensor], exchange: Exchange, schedule: Schedule) -> None:
        """The update of a step. It must not fail half-way: behind the commit there is no way back."""
        self._contributions.reset()
        self._contributions.put_back(total, shared=exchange.shares_result)
        if self.spec.clip_norm is not None:
            clip_grad_norm_(self.model.parameters(), self.spec.clip_norm)
        self.optimizer.step()
        self._contributions.clear()
        self._state.committed += 1
        ends_epoch = self.committed % schedule.steps_per_epoch == 0
        if self.scheduler is not None and (ends_epoch or self._scheduler_interval == "step"):
            self.scheduler.step()
        self._contributions.begin()

    def _spent(self, what: str, since: float) -> float:
        now = time.perf_counter()
        self._seconds[what] += now - since
        return now

    # The ends of epochs and of the job ---------------------------------------------------------------------

    def gather(self, payload: bytes) -> list[bytes]:
        """Everyone's payload, in rank order, on every worker."""
        return self.members.arrive(self.committed, "gather", payload).payloads

    def _end_epoch(self) -> None:
        if self._evaluate is not None:
            self._state.metrics, self._state.measured = self._evaluate(self), self.committed
        self._state.evaluated += 1
        if self.members.rank == 0:
            self.members.tell(
                Evaluated(epoch=self._state.evaluated, step=self.committed, metrics=self._state.metrics)
            )
            self._checkpoints.at_epoch_end()

    def _finish(self) -> None:
        """Agree on the weights, have the first worker write them, and wait until all of that is safe."""
        digest = weights_sha256(self.model)
        digests = set(self.members.arrive(self.committed, "end", digest.encode()).payloads)
        if len(digests) > 1:
            raise InternalError(f"workers ended with different weights: {sorted(digests)}")
        if self.members.rank == 0:
            try:
                self._checkpoints.now()  # that of the last epoch's end, or another: who began it may have died
            except EnvironmentFault as fault:
                self.members.tell(failure_of(fault))
                raise
            self.members.tell(Completed(weights_sha256=digest, metrics=self._state.metrics))
        self.members.wait_for_dismissal()
        self._checkpoints.drain()

    def _facts(self, schedule: Schedule, feed: Feed, more: dict[str, Any]) -> Facts:
        known = {
            "test_samples": 0,
            "quarantined": int(getattr(feed.dataset, "quarantined", 0)),
            "quarantine_path": str(getattr(feed.dataset, "quarantine_path", "") or ""),
            "start_method": "",
        }
        return Facts(
            samples=schedule.samples,
            steps=schedule.steps,
            steps_per_epoch=schedule.steps_per_epoch,
            block_size=feed.block_size,
            order=feed.order,
            order_size=feed.order_size,
            parameters=sum(parameter.numel() for parameter in self.model.parameters()),
            versions=versions(),
            transport=self.spec.transport,
            **{**known, **more},
        )


def versions() -> dict[str, str]:
    """Of what computes here."""
    return {
        "brim": brim.__version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
    }


def pair(sample: Any) -> tuple[Any, Any]:
    """Inputs and target of a collated sample; a sample that is no pair has no target.

    >>> pair([1, 2]), pair((1, 2, 3)), pair({"a": 1, "b": 2})
    ((1, 2), ((1, 2, 3), None), ({'a': 1, 'b': 2}, None))
    """
    if isinstance(sample, (tuple, list)) and len(sample) == 2:
        return sample[0], sample[1]
    return sample, None


def to_device(value: Any, device: torch.device) -> Any:
    """A collated value on another device."""
    if device.type == "cpu":
        return value
    match value:
        case Tensor():
            return value.to(device, non_blocking=True)
        case dict():
            return {key: to_device(each, device) for key, each in value.items()}
        case tuple() | list():
            return type(value)(to_device(each, device) for each in value)
    return value
