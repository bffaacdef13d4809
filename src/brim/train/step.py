"""The steps of a job on one worker: micro-batches out, their losses in, the sum to the network.

`Steps.micro_batches` hands out this worker's part of a step, `Steps.take` does the backward pass of
each, and `Steps.commit` makes the step count, in the order of `coordination/job/steps.py`.
"""

from __future__ import annotations

import contextlib
import math
import sys
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from brim.coordination.job import steps
from brim.coordination.job.audits import newcomers_apart
from brim.coordination.job.participant import RoundChanged
from brim.coordination.job.steps import Act, Action, Add, Stand
from brim.data.feed import MicroBatchRequest, Read
from brim.data.repeatable import digest_of
from brim.data.streams import StreamMark
from brim.domain.batch import Span, cut
from brim.domain.seeds import StepSeeds
from brim.embeddings.rows import GradientRows, OwnedRows
from brim.errors import BrimError, EnvironmentFault, InternalError, SpecError, UserCodeError
from brim.host.clock import monotonic
from brim.train.asynchronous.turn import Asynchrony
from brim.train.audit import NOT_DETERMINISTIC, StepAudit, describe, findings_of
from brim.train.captured.captured_steps import ReplayedPart
from brim.train.captured.step_function import gave_another_loss
from brim.train.checks import left_over, others
from brim.train.checks.attributes import Values
from brim.train.exchange.carried import check_names
from brim.train.exchange.contribution import TO_BOUND, StepOutcome
from brim.train.exchange.folding import Exchange
from brim.train.job_parts import JobParts
from brim.train.round import Round
from brim.train.samples import pair_of, to_device
from brim.train.training_data import TrainingData
from brim.wire.messages import MicroReport, StepReport, Warn

_SAMPLED = 50  # steps of which one says what rows of embeddings are looked up most
_WATCHED_STEPS = 3  # of each round: what a network keeps in attributes shows in them
# Stands in for the number of a micro-batch when seeding the update.
_UPDATE = 1 << 41

_NO_OWNED_ROWS = OwnedRows(
    GradientRows(torch.empty(0, dtype=torch.int64), torch.empty(0, 0)), owner=0, start=0
)


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """The input of one forward and backward pass.

    Attributes:
        inputs: the first parts of the samples if they are pairs, else whole samples; collated, on
            the job's device.
        target: the second parts of the samples if they are pairs, else None.
        carried: for each name given to `Job.carry`, what its samples start from; replace it by what
            they end with.
    """

    inputs: Any
    target: Any
    carried: dict[str, Any] = field(default_factory=dict)

    @property
    def sample(self) -> Any:
        """Return the result of the collate function: a pair again, where samples are pairs."""
        return self.inputs if self.target is None else (self.inputs, self.target)

    def __iter__(self) -> Iterator[Any]:
        """Yield the parts of a DataLoader's batch: `for inputs, target in job.batches(...)`."""
        return iter(self.sample)

    def __getitem__(self, key: Any) -> Any:
        """Return a part of a DataLoader's batch: `batch[0]`, `batch["ids"]`."""
        return self.sample[key]

    def __len__(self) -> int:
        """Return how many parts the batch of a DataLoader would have."""
        return len(self.sample)

    def keys(self) -> Any:
        """Return the names of samples that are mappings, as `model(**batch)` asks for them."""
        return self.sample.keys()

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of a DataLoader's batch: `batch.items()`.

        Raises:
            AttributeError: that has none of this name.
        """
        sample = None if name.startswith("__") else self.sample
        if hasattr(sample, name):
            return getattr(sample, name)
        raise AttributeError(
            f"a batch of job.batches has no attribute {name!r}: batch.inputs and batch.target are "
            f"the parts of samples that are pairs, batch.sample is all of them (a "
            f"{type(self.sample).__name__} here), on the job's device"
        )


class MicroUnderWay(msgspec.Struct, kw_only=True, eq=False):
    """The micro-batch that the user's code is at work on.

    Attributes:
        read: its samples.
        weight: its part of the step's samples.
        since: when it was handed out.
        losses: of each optimizer, [1]; of one on the CPU, its value.
        carried: hidden states, as the user's code leaves them.
        taken: number of these losses that have come.
        samples: their digest, where the micro-batch is computed twice.
    """

    read: Read
    weight: float
    since: float
    losses: list[Tensor | float | None]
    carried: dict[str, Any]
    taken: int = 0
    samples: str = ""


class StepUnderWay(msgspec.Struct, kw_only=True, eq=False):
    """A step under way on this worker.

    Attributes:
        number: steps that were committed when it began.
        batch: index of the batch whose samples it has; equals `number` except in asynchronous
            training.
        span: of the samples of its epoch.
        samples: how many these are.
        todo: micro-batches of this worker that are still to come.
        due: a checkpoint is, behind it.
        since: when it began.
        done: micro-batches, each with the checksum of its samples.
        losses: of these.
        marks: of the stream that it has read, at the end of this step.
        void: sums that were given away early have changed since.
        micro: the micro-batch under way, or None.
        staleness: how many steps others have made meanwhile; None where they make none.
        total: the sum over all micro-batches.
        outcome: of the step, once the network has the sum.
        busy: seconds that this worker has spent with the sum.
        audit: of the step; None where it has none.
        replay: of the worker's part by a program, to be compared with eager passes.
        promised: the same, with what was read for it, until an own loop gives it to `Job.step`.
        is_watched: attributes of the network are looked at.
        left: what its micro-batches leave in them; None before the first.
    """

    number: int
    batch: int
    span: Span
    samples: int
    todo: deque[int]
    due: bool
    since: float
    done: list[tuple[MicroBatchRequest, int]] = []
    losses: list[Tensor | float] = []
    marks: dict[int, StreamMark] = {}
    void: bool = False
    micro: MicroUnderWay | None = None
    staleness: int | None = None
    total: list[Tensor] = []
    outcome: StepOutcome | None = None
    busy: float = 0.0
    audit: StepAudit | None = None
    replay: ReplayedPart | None = None
    promised: tuple[ReplayedPart, list[Read]] | None = None
    is_watched: bool = False
    left: Values | None = None

    @property
    def has_batch(self) -> bool:
        """Return whether the loop has a batch whose loss has not come."""
        return self.micro is not None or self.promised is not None

    def places(self, span: Span) -> Span:
        """Return the places in this step of some samples of an epoch."""
        return Span(span.start - self.span.start, span.stop - self.span.start)


class Steps:
    """The steps that a worker makes.

    Args:
        parts: of the job on this worker.
        data: that it trains on.

    Attributes:
        under_way: the step that was begun last, until its round is left or the next boundary.
        is_stop_asked: the user's code has called `Job.stop` within a step.
        is_amid_batch: a micro-batch was handed out whose loss has not come.
        is_given_up: the round ended under the last loss, and no micro-batch was handed out since.
    """

    def __init__(self, parts: JobParts, data: TrainingData) -> None:
        self._parts, self._data = parts, data
        self._seeds = StepSeeds(parts.spec.seed)
        self.under_way: StepUnderWay | None = None
        self.is_stop_asked = False
        self.is_given_up = False
        self.is_amid_batch = False
        self._saw_a_loss = False
        self._warned_of_audit = False
        self._warned_of_bound = False
        current = weakref.ref(self)
        others.refuse_other_optimizers(
            parts.optimization.optimizers,
            lambda: (owner := current()) is not None and owner.is_amid_batch,
            owner=self,
        )

    @property
    def is_begun(self) -> bool:
        """Return whether a step is under way that has not been committed."""
        step = self.under_way
        return step is not None and step.number == self._parts.state.committed

    @property
    def is_partly_done(self) -> bool:
        """Return whether micro-batches of a step that is not committed were handed out."""
        step = self.under_way
        return step is not None and self.is_begun and bool(step.done or step.has_batch)

    def give_up(self) -> None:
        """Leave the step under way, whose round has ended."""
        parts = self._parts
        if self.is_begun:  # else buffers are as the script has left them since the last step
            parts.optimization.give_up()
            parts.contributions.reset()
        self.under_way = None
        parts.contributions.clear()

    # Micro-batches --------------------------------------------------------------------------------

    def micro_batches(
        self, round: Round, reads: Iterator[Read], batch: int
    ) -> Iterator[MicroBatch]:
        """Hand out this rank's part of a step, and add up the results."""
        parts, schedule = self._parts, self._data.schedule
        number = parts.state.committed
        span = schedule.span(batch)
        step = self.under_way = StepUnderWay(
            number=number,
            batch=batch,
            span=span,
            samples=len(span),
            todo=deque(round.mine),
            due=round.rank == 0 and not parts.takes_turns and parts.checkpoints.is_due(number + 1),
            since=monotonic(),
        )
        in_epoch = batch % schedule.steps_per_epoch  # lines between epochs may set them
        step.is_watched = min(round.commits, in_epoch) < _WATCHED_STEPS
        if round.audits is not None and round.audits.covers(number):
            step.audit = StepAudit(own=round.audits.micro_of(round.rank, number))
        round.accumulator.begin()
        round.rows.begin()
        round.exchange.begin(number)
        if round.rank == 0 and number % _SAMPLED == 0:
            parts.embeddings.sample_lookups()
        parts.optimization.begin()
        parts.contributions.begin()  # the script may have changed buffers since the last step
        if step.samples < round.parts:
            self._skip_empty(round, step)
        coming_reads = self._replay(round, step, reads)
        if step.promised is not None:
            yield from self._lend_replayed(round, step, *step.promised)
        while step.todo:
            parts.members.poll()
            round.asked = monotonic()
            read = next(coming_reads)
            if read.request.is_audit:
                with parts.state.registered_kept():
                    yield from self._lend(round, step, read)
                parts.contributions.overlook()
            else:
                yield from self._lend(round, step, read)
        if parts.state.committed == number:
            self.commit(round, step)

    def _replay(self, round: Round, step: StepUnderWay, reads: Iterator[Read]) -> Iterator[Read]:
        """Have a program compute this rank's part of a step, where there is one.

        Returns:
            What is to be read for the micro-batches that are still to come: all of them, where the
            step is made eagerly, to compare the two or for want of a program.
        """
        parts, captured = self._parts, self._parts.captured
        is_whole = step.audit is None and tuple(step.todo) == tuple(round.mine) != ()
        if captured is None or captured.refused or not is_whole or round.commits < _WATCHED_STEPS:
            return reads
        parts.members.poll()
        round.asked = started = monotonic()
        read_before = list(islice(reads, len(step.todo)))
        coming_reads = chain(read_before, reads)
        started = parts.spent("data", started)
        program = captured.program(
            read_before, round.blocks, round.parts, may_trace=round.leads_host
        )
        if program is None:
            return coming_reads
        reads_before = parts.embeddings.reads()
        replay = captured.replay(
            program, read_before, step.span, step.batch, stop=self.is_stop_asked, due=step.due
        )
        if replay is None:
            return coming_reads
        begins_epoch = step.batch % self._data.schedule.steps_per_epoch == 0
        if program.trust.asks_for_comparison(begins_epoch=begins_epoch):
            step.replay = replay
            parts.embeddings.put_reads(reads_before)
            return coming_reads
        step.todo.clear()
        if captured.function is None:
            self._count(round, step, replay, read_before)
        else:
            step.promised = replay, read_before
        parts.spent("compute", started)
        return reads

    def _count(
        self, round: Round, step: StepUnderWay, replay: ReplayedPart, reads: Sequence[Read]
    ) -> None:
        """Take what a program computed as this rank's part of a step."""
        replay.program.trust.counted()
        for block, contribution in zip(round.blocks, replay.sums, strict=True):
            round.accumulator.add_block(block.start, contribution)
        step.losses += replay.losses.tolist()
        step.done += [(read.request, read.crc32) for read in reads]
        for read, rows in zip(reads, replay.rows, strict=True):
            round.rows.add(read.request.micro, rows)
            if read.marks:
                step.marks.update(read.marks)

    def _lend_replayed(
        self, round: Round, step: StepUnderWay, replay: ReplayedPart, reads: Sequence[Read]
    ) -> Iterator[MicroBatch]:
        """Hand out the last micro-batch of a replayed part: the body of an own loop runs for it.

        Raises:
            RoundChanged: the round ended meanwhile.
        """
        parts, request = self._parts, reads[-1].request
        assert parts.captured is not None, "it has replayed them"
        assert parts.captured.function is not None, "its loop has one"
        self.is_given_up = False
        parts.contributions.watch()
        parts.contributions.watch_buffers()
        parts.sources.seed(self._seeds.seed(step.batch, request.micro))
        batch = MicroBatch(*pair_of(reads[-1].sample))
        parts.captured.function.begin(batch, replay.losses[-1])
        self.is_amid_batch = True
        try:
            yield batch
        finally:
            self.is_amid_batch = False
        if self.under_way is not step:
            raise RoundChanged  # job.step found it out
        if step.promised is not None:
            raise _no_step()

    def _take_replayed(
        self, round: Round, step: StepUnderWay, loss: Tensor, part: tuple[ReplayedPart, list[Read]]
    ) -> tuple[StepUnderWay, int]:
        """Count a replayed part, whose loss the loop has given back."""
        parts, (replay, reads) = self._parts, part
        assert parts.captured is not None, "it has replayed them"
        started = monotonic()
        self.is_amid_batch = False
        if parts.captured.function is None or not parts.captured.function.gave(loss):
            raise gave_another_loss()
        parts.optimization.check_rates()
        parts.contributions.check_untouched()
        parts.contributions.check_unchanged()
        parts.contributions.check_buffers()
        if self.is_stop_asked:  # perhaps since the replay
            parts.contributions.ask_to_stop(replay.sums)
        step.promised = None
        self._count(round, step, replay, reads)
        parts.spent("compute", started)
        return step, 0

    def look_ahead(self, round: Round, reads: Iterator[Read]) -> Iterator[MicroBatch]:
        """Hand out a micro-batch of the next step that adds nothing, and note its results.

        The state is written with that: who goes on from it must come to the same.
        """
        parts = self._parts
        number = parts.state.committed
        span = self._data.schedule.span(number)
        step = self.under_way = StepUnderWay(
            number=number,
            batch=number,
            span=span,
            samples=len(span),
            todo=deque(),
            due=False,
            since=monotonic(),
            audit=StepAudit(own=None),
        )
        parts.optimization.begin()
        parts.contributions.begin()
        with parts.state.registered_kept():
            yield from self._lend(round, step, next(reads))
        self.give_up()
        assert step.audit is not None, "it has one"
        parts.state.ahead = step.audit.early_digests(number)

    def _lend(self, round: Round, step: StepUnderWay, read: Read) -> Iterator[MicroBatch]:
        """Hand out a micro-batch, and take its results.

        Raises:
            RoundChanged: the round ended meanwhile.
        """
        micro_batch = self._hand_out(round, step, read)
        self.is_amid_batch = True
        try:
            yield micro_batch
        except BaseException:  # the loop has ended within it
            self._parts.attributes.watch_pass(is_alone=False)
            raise
        finally:
            self.is_amid_batch = False
        if self.under_way is not step:
            raise RoundChanged  # job.step found it out
        if step.micro is not None:
            self._complete(round, step)

    def _skip_empty(self, round: Round, step: StepUnderWay) -> None:
        """Add nothing for the micro-batches without samples that come next."""
        parts = self._parts
        spans = cut(step.span, round.parts)
        while step.todo and not len(spans[step.todo[0]]):
            contribution = parts.contributions.no_contribution(
                stop=self.is_stop_asked, due=step.due
            )
            for carried in parts.carried.values():
                contribution += carried.no_value()
            round.rows.add(step.todo[0], parts.embeddings.no_rows())
            round.accumulator.add(step.todo.popleft(), contribution)

    def _hand_out(self, round: Round, step: StepUnderWay, read: Read) -> MicroBatch:
        parts = self._parts
        started = monotonic()
        self.is_given_up = False
        inputs, target = pair_of(to_device(read.sample, parts.device))
        if round.commits < _WATCHED_STEPS:
            parts.attributes.forget(starts_round=not round.commits and not step.done)
        if step.is_watched:
            parts.attributes.watch_pass(is_alone=not step.done and len(step.todo) == 1)
        if not step.done:
            parts.contributions.watch(is_first=step.number == 0, closely=step.audit is not None)
        parts.contributions.reset()
        if parts.embeddings.weights:
            parts.embeddings.begin()
        parts.sources.seed(self._seeds.seed(step.batch, read.request.micro))
        span = read.request.span
        carried = {}
        for name, values in parts.carried.items():
            carried[name] = values.copy_at(step.places(span))
        read_at = parts.spent("data", started)
        step.micro = MicroUnderWay(
            read=read,
            weight=(span.stop - span.start) / step.samples,
            since=read_at,
            losses=[None] * len(parts.optimization.optimizers),
            carried=carried,
        )
        if step.audit is not None and step.audit.covers(read.request):
            step.micro.samples = digest_of(read.sample)
        batch = MicroBatch(inputs, target, carried)
        if parts.captured is not None and parts.captured.function is not None:
            parts.captured.function.begin(batch)
        return batch

    def take(
        self, round: Round, loss: Tensor, optimizer: torch.optim.Optimizer | None
    ) -> tuple[StepUnderWay, int] | None:
        """Do the backward pass of the micro-batch under way.

        Args:
            round: that it belongs to.
            loss: a scalar tensor, the mean over its samples.
            optimizer: whose parameters get it; None where the job has one.

        Returns:
            The step and the place of this loss in it, where the worker has done all of its
            micro-batches; before that, None.

        Raises:
            SpecError: the loop does something that it must leave to brim.
        """
        parts = self._parts
        step = self.under_way
        assert step is not None, "the loop looks"
        if step.promised is not None:
            return self._take_replayed(round, step, loss, step.promised)
        micro = step.micro
        assert micro is not None, "the loop looks"
        self.is_amid_batch = False
        is_only_loss = len(micro.losses) == 1 and optimizer is None
        index = 0 if is_only_loss else self._index_of(optimizer, micro)
        _check_loss(loss)
        if parts.captured is not None:
            parts.captured.check_loss(loss)
        if not self._saw_a_loss:
            self._look_for_left_over(loss, len(micro.read.request.span), is_part=micro.weight < 1)
        parts.optimization.check_rates()
        if not micro.taken:
            parts.contributions.check_untouched()
        is_last = len(step.todo) == 1 and not micro.read.request.is_audit
        early = round.early if is_last else None
        if early is None and not parts.embeddings.weights:
            parts.optimization.backward(loss, micro.weight, optimizer)
        else:
            with parts.embeddings.in_backward, early.in_backward() if early else nullcontext():
                parts.optimization.backward(loss, micro.weight, optimizer)
            step.void = early is not None and early.settle()
        is_at_hand = loss.is_cpu and len(micro.losses) == 1
        micro.losses[index] = loss.item() if is_at_hand else loss.detach().reshape(1)
        micro.taken += 1 if optimizer is not None else len(micro.losses)
        if micro.taken < len(micro.losses):
            self.is_amid_batch = True
            return None
        self._complete(round, step)
        return None if step.todo or micro.read.request.is_audit else (step, index)

    def _look_for_left_over(self, loss: Tensor, samples: int, *, is_part: bool) -> None:
        """Warn, once in a run, of left-overs of the loop.

        Args:
            loss: of a micro-batch of so many samples.
            is_part: whether the step has more of them.
        """
        parts = self._parts
        self._saw_a_loss = True
        if parts.state.committed or parts.members.rank:
            return
        own_loop = not parts.spec.file and parts.spec.clip_norm is None
        for text in (
            *parts.notes,
            others.of_loss(loss, parts.model.parameters(), by_rows=bool(parts.embeddings.weights)),
            left_over.of_loss(loss, samples=samples, is_part=is_part),
            left_over.of_hooks(parts.model) if is_part else "",
            left_over.of_buffers(parts.contributions.changes(), samples=samples) if is_part else "",
            left_over.of_script(sys.argv[0]) if own_loop else "",
        ):
            if text:
                parts.members.tell(Warn(message=text))

    def _warn_of_bound(self, name: str) -> None:
        """Warn, once in a worker's life, of a parameter that forward changes through `.data`."""
        if not name or self._warned_of_bound or self._parts.members.rank:
            return
        self._warned_of_bound = True
        text = (
            f"parameter {name!r} changes within a step, through .data: workers have different numbers "
            f"of micro-batches, and may come to other weights; {TO_BOUND}"
        )
        self._parts.members.tell(Warn(message=text))

    def _index_of(self, optimizer: torch.optim.Optimizer | None, micro: MicroUnderWay) -> int:
        optimizers = self._parts.optimization.optimizers
        if optimizer is None and not self._parts.optimization.are_disjoint:
            raise SpecError(
                "job.step",
                got=f"a loss for one of {len(optimizers)} optimizers that share parameters",
                need="the optimizer that it is for",
                hint="job.step(loss, optimizer=...)",
            )
        index = (
            0
            if optimizer is None
            else next((i for i, candidate in enumerate(optimizers) if candidate is optimizer), None)
        )
        if index is None:
            raise SpecError(
                "job.step(optimizer=)",
                got="an optimizer that the job does not know",
                need="one that you gave to brim.join",
            )
        if micro.losses[index] is not None:
            raise SpecError(
                "job.step",
                got="a second loss of one optimizer for one batch",
                need="one call for every batch, and for each optimizer",
                hint="add them: job.step(loss_real + loss_fake, optimizer=...)",
            )
        return index

    def _complete(self, round: Round, step: StepUnderWay) -> None:
        """A micro-batch is done: add up its gradients."""
        parts = self._parts
        micro = step.micro
        assert micro is not None
        step.micro = None
        if not micro.taken:
            raise _no_step()
        self._warn_of_bound(parts.contributions.check_unchanged())
        if step.is_watched:
            parts.attributes.check_pass()
            step.left = parts.check_attributes(step.left)
        rows, by_rows = parts.embeddings.take() if parts.embeddings.weights else ([], [])
        contribution = parts.contributions.take(
            micro.weight, micro.losses, by_rows=by_rows, stop=self.is_stop_asked, due=step.due
        )
        if micro.carried or parts.carried:
            check_names(parts.carried, micro.carried)
            for name, carried in parts.carried.items():
                contribution += carried.left_by(
                    step.places(micro.read.request.span), micro.carried[name]
                )
        if step.audit is not None and step.audit.covers(micro.read.request):
            results = parts.contributions.by_name(contribution)
            results["gradient"] |= dict(zip(parts.embeddings.names, rows, strict=True))
            results["carried"] = contribution[len(parts.contributions.like) :]
            step.audit.take(micro.read.request, micro.samples, results)
        if micro.read.request.is_audit:
            parts.spent("compute", micro.since)
            return
        round.rows.add(step.todo[0], rows)
        round.accumulator.add(step.todo.popleft(), contribution)
        step.losses.append(_sum_of(micro.losses))
        step.done.append((micro.read.request, micro.read.crc32))
        step.marks.update(micro.read.marks)
        if step.samples < round.parts:
            self._skip_empty(round, step)
        parts.spent("compute", micro.since)

    # The sum, and what it changes ----------------------------------------------------------------

    def commit(self, round: Round, step: StepUnderWay) -> StepOutcome:
        parts = self._parts
        if parts.asynchrony is not None:
            step.staleness = 0
            if parts.takes_turns:
                return self._commit_in_turn(parts.asynchrony, round, step)
        started = monotonic()
        if parts.device.type == "cuda":
            # what it has still to do is this rank's own work, not the exchange's
            torch.cuda.synchronize(parts.device)
            started = parts.spent("compute", started)
        if step.replay is not None and parts.captured is not None:
            eager_sums = [round.accumulator.block(block.start) for block in round.blocks]
            eager_rows = [round.rows.of_micro_batch(micro) for micro in round.mine]
            parts.captured.compare(step.replay, eager_sums, eager_rows)
        self._compare_streams(round, step)
        self._put_rows(round)
        round.exchange.have_ready(step.number, len(round.exchange.pieces), void=step.void)
        parts.spent("reduce", started)
        early = bool(parts.embeddings.weights) and parts.members.world_size > 1
        actions = steps.step(
            round.exchange.stages, changes_early=early, audited=step.audit is not None
        )
        round.held = steps.follow(actions, partial(self._perform, round, step))
        round.commits += 1
        assert step.outcome is not None, "every step is prepared"
        return step.outcome

    def _compare_streams(self, round: Round, step: StepUnderWay) -> None:
        if (witness := self._data.witness) is not None:
            schedule = self._data.schedule
            witness.compare(
                schedule.epoch_of(step.batch),
                step.marks,
                commits=round.commits,
                ends_epoch=(step.batch + 1) % schedule.steps_per_epoch == 0,
            )

    def _perform(self, round: Round, step: StepUnderWay, action: Action) -> object:
        """Do the next that a step consists of, and note how long it took."""
        parts = self._parts
        started = monotonic()
        match action:
            case Stand(phase):
                if phase == "summed":  # behind it others change the tables that are copied
                    parts.checkpoints.await_copy()
                parts.members.arrive(step.number, phase)
                parts.spent("wait", started)
            case Add(phase):
                round.exchange.add(phase, step.number)
                step.busy += parts.spent("reduce", started) - started
            case Act.AUDIT:
                self._compare(round, step)
                parts.spent("wait", started)
            case Act.SUM:
                buffers_alone = (
                    round.accumulator.local_sum() if parts.members.world_size == 1 else []
                )
                step.total = round.exchange.total(buffers_alone)
                step.busy += parts.spent("reduce", started) - started
            case Act.PREPARE:
                step.total = round.exchange.fetch(step.total)
                step.outcome = self._prepare(round, step.total)
                step.busy += parts.spent("apply", started) - started
            case Act.COMMIT:
                if step.outcome is not None:
                    round.exchange.took(step.busy)
                report = msgspec.msgpack.encode(self._report(round, step))
                look_ahead = partial(self._look_ahead, round, step)
                is_committed = parts.members.commit(step.number, report, overlap=look_ahead)
                round.pace = monotonic() - step.since
                parts.spent("wait", started)
                return is_committed
            case Act.APPLY:
                assert step.outcome is not None, "it was prepared"
                self._apply(step.total, step.outcome, samples=step.samples)
                step.total = []  # it may be large, and the user's code follows
                if parts.asynchrony is not None:
                    parts.asynchrony.mark(step.batch % self._data.schedule.steps_per_epoch)
                parts.spent("apply", started)
            case _:
                raise InternalError(f"{action} is no part of a step")
        return None

    def _compare(self, round: Round, step: StepUnderWay) -> None:
        """Compare the results of micro-batches that were computed twice.

        On devices whose kernels may add up in any order a difference is no more than a warning.

        Raises:
            UserCodeError: one came to two results.
        """
        audit, members = step.audit, self._parts.members
        assert audit is not None, "it has one"
        assert round.audits is not None, "it plans them"

        def exchange_words(phase: str, word: bytes) -> Sequence[bytes]:
            is_alone = members.world_size == 1
            return [word] if is_alone else members.arrive(step.number, phase, word).payloads

        early, self._parts.state.ahead = self._parts.state.ahead, {}
        if text := audit.apart_from(early, step=step.number):
            members.tell(Warn(message=text))
        findings = findings_of(
            round.audits, exchange_words("audited", audit.word), step=step.number
        )
        if findings:
            tables = exchange_words("differ", audit.tables)
            differing, finding = newcomers_apart(findings, members.newcomers)
            text = describe(finding, tables, members.names, step=step.number + 1)
            is_deterministic = torch.are_deterministic_algorithms_enabled()
            if self._parts.device.type == "cpu" or is_deterministic:
                if differing:
                    members.turn_away(differing, text)
                raise UserCodeError(text)
            if round.rank == 0 and not self._warned_of_audit:
                members.tell(Warn(message=f"{text}{NOT_DETERMINISTIC}"))
            self._warned_of_audit = True

    def _look_ahead(self, round: Round, step: StepUnderWay) -> None:
        """Read the next step's first micro-batch of the same epoch."""
        ends_epoch = (step.batch + 1) % self._data.schedule.steps_per_epoch == 0
        if round.reads is not None and not ends_epoch:
            round.reads.look_ahead()

    def _put_rows(self, round: Round) -> None:
        """Leave the gradients of embeddings' rows where the round adds them up."""
        if self._parts.embeddings.weights:
            self._parts.embeddings.check()
            round.exchange.put_rows(round.rows.blocks())

    def _commit_in_turn(
        self, asynchrony: Asynchrony, round: Round, step: StepUnderWay
    ) -> StepOutcome:
        """Apply a batch to the newest state, to which others have come meanwhile.

        None of them applies a batch during this.
        """
        parts = self._parts
        started = monotonic()
        if parts.device.type == "cuda":
            torch.cuda.synchronize(parts.device)
            started = parts.spent("compute", started)
        self._put_rows(round)
        total = round.accumulator.local_sum()
        turn_before = parts.members.turn(step.number)
        started = parts.spent("wait", started)
        with asynchrony.turn(round.number):
            step.staleness = turn_before - step.number
            parts.checkpoints.await_copy()
            parts.contributions.reset()
            asynchrony.refresh(turn_before)
            parts.contributions.begin()
            if round.rank == 0:
                fresh, round.looked_at = range(round.looked_at + 1, turn_before + 1), turn_before
                if any(map(parts.checkpoints.is_due, fresh)):
                    parts.embeddings.check_unchanged()
                    parts.checkpoints.begin(ends_epoch=False)  # `_prepare` waits for the copy
            report = msgspec.msgpack.encode(self._report(round, step))
            outcome = self._prepare(round, total)
            self._apply(total, outcome, samples=step.samples)
            asynchrony.mark(step.batch % self._data.schedule.steps_per_epoch)
            asynchrony.store()
        started = parts.spent("apply", started)
        round.held = parts.members.commit(turn_before, report)
        round.pace = monotonic() - step.since
        parts.spent("wait", started)
        round.commits += 1
        return outcome

    def _report(self, round: Round, step: StepUnderWay) -> StepReport:
        parts = self._parts
        losses = _numbers(step.losses)
        reports = []
        for (request, crc32), loss in zip(step.done, losses, strict=True):
            start, stop = request.span.start, request.span.stop
            reports.append(MicroReport(round.rank, request.micro, start, stop, crc32, loss))
        report = StepReport(
            epoch=self._data.schedule.epoch_of(step.batch),
            parts=reports,
            seconds=dict(parts.seconds),
            lr=parts.optimization.learning_rate() if round.rank == 0 or parts.takes_turns else None,
            staleness=step.staleness,
            tables=parts.embeddings.traffic(self._owned(round)) if parts.embeddings.weights else {},
            contents=self._data.contents_of(step.marks),
        )
        parts.seconds.clear()
        return report

    def _owned(self, round: Round) -> Sequence[OwnedRows]:
        """The rows that this worker applies.

        Each host applies all, and those of the first are counted.
        """
        is_counted = self._parts.members.neighbours.start == 0
        return (
            round.exchange.rows_owned()
            if is_counted
            else [_NO_OWNED_ROWS] * len(self._parts.embeddings.weights)
        )

    def _prepare(self, round: Round, total: list[Tensor]) -> StepOutcome:
        """Give the network the sum of a step, and the tables their update.

        Until the commit both can be undone. Nobody may still be adding up: all members stand behind
        the reduction.
        """
        parts = self._parts
        outcome = parts.contributions.outcome(total)
        parts.checkpoints.await_copy()
        parts.contributions.reset()
        if not self._moves(outcome):
            return outcome
        dense_count = len(parts.contributions.like)
        parts.contributions.put_back(
            total[:dense_count], outcome, shared=round.exchange.shares_result
        )
        if not parts.embeddings.weights:
            parts.optimization.clip()
            return outcome
        used = outcome.used[len(outcome.used) - len(parts.embeddings.weights) :]
        parts.embeddings.update(self._changes(round.exchange, used), step=parts.state.committed + 1)
        for name in parts.embeddings.newly_full():
            text = (
                f"embedding {name!r} has no room for more rows: other ids stay as they start "
                "(see its limit)"
            )
            parts.members.tell(Warn(message=text))
        return outcome

    def _changes(self, exchange: Exchange, used: Sequence[bool]) -> list[OwnedRows | None]:
        """The rows that this worker is about to change, with clipped gradients of its own.

        Args:
            used: whether any micro-batch of the step gave each table a gradient.

        Returns:
            Of each table; None where it does not change.
        """
        embeddings = self._parts.embeddings
        if not embeddings.delay:
            owned = list(exchange.rows_owned())
            if self._parts.spec.clip_norm is not None:
                owned = [part._replace(rows=part.rows.copy()) for part in owned]
                self._clip(exchange, [part.rows for part in owned], used)
            return [part if is_used else None for part, is_used in zip(owned, used, strict=True)]
        rows = [part.copy() for part in exchange.rows_total()]  # all of them wait, on each worker
        self._clip(exchange, rows, used)
        due = embeddings.put_off(rows)
        if not due:
            return [None] * len(rows)
        owned = list(exchange.owned_of(due))
        return [
            part if len(table_due.ids) else None for part, table_due in zip(owned, due, strict=True)
        ]

    def _clip(self, exchange: Exchange, rows: Sequence[GradientRows], used: Sequence[bool]) -> None:
        """Scale down the gradients of the network, and these rows, where the norm is too large.

        The norm is that of all gradients.
        """
        if self._parts.spec.clip_norm is None:
            return
        stand_ins = [nn.Parameter(torch.empty_like(row.values)) for row in rows]
        for stand_in, part in zip(stand_ins, rows, strict=True):
            stand_in.grad = part.values
        total = zip(exchange.rows_total(), used, strict=True)
        self._parts.optimization.clip(
            [part.values for part, is_used in total if is_used], stand_ins
        )

    def _apply(self, total: list[Tensor], outcome: StepOutcome, *, samples: int) -> None:
        """The update of a step.

        It must not fail half-way: behind the commit there is no way back.
        """
        parts = self._parts
        parts.sources.seed(self._seeds.seed(parts.state.committed, _UPDATE))
        if self._is_to_be_applied(outcome):
            self._put_carried(total[len(parts.contributions.like) :], samples)
            parts.optimization.step()
            parts.embeddings.settle()
            parts.contributions.clear()
        parts.state.committed += 1
        if parts.embeddings.weights and parts.members.rank == parts.members.neighbours.start:
            parts.embeddings.step = parts.state.committed
        parts.state.due = outcome.due
        if outcome.stop:
            parts.state.stop_after = parts.state.epoch + 1
        parts.contributions.begin()

    def _put_carried(self, total: Sequence[Tensor], samples: int) -> None:
        rest = iter(total)
        for carried in self._parts.carried.values():
            carried.put(list(islice(rest, len(carried.tensors))), samples=samples)

    def _moves(self, outcome: StepOutcome) -> bool:
        """Return whether a step is applied: its losses are numbers, or `--on-nan` only warns."""
        return all(map(math.isfinite, outcome.losses)) or self._parts.spec.on_nan == "warn"

    def _is_to_be_applied(self, outcome: StepOutcome) -> bool:
        """Return whether the losses of a step are numbers; else follow `--on-nan`.

        Raises:
            UserCodeError: it says stop.
        """
        parts = self._parts
        if all(map(math.isfinite, outcome.losses)):
            parts.state.unsound_since = None
            return True
        number, is_first = parts.state.committed, parts.state.unsound_since is None
        text = (
            f"the loss of step {number + 1} (epoch {parts.state.epoch + 1}) is {outcome.losses[0]}"
        )
        if parts.spec.on_nan == "stop":
            raise self._not_finite(text)
        if is_first and (parts.members.rank == 0 or parts.takes_turns):
            consequence = (
                "its update is left out" if parts.spec.on_nan == "skip" else "training goes on"
            )
            parts.members.tell(
                Warn(message=f"{text}; {consequence}; the last checkpoint before it is kept")
            )
        if is_first:
            parts.state.unsound_since = number
        return parts.spec.on_nan == "warn"

    def _not_finite(self, text: str) -> BrimError:
        """End at the state before the step, with a checkpoint where that state is sound."""
        parts = self._parts
        if parts.members.rank == 0 and all(
            bool(p.isfinite().all()) for p in parts.model.parameters()
        ):
            with contextlib.suppress(EnvironmentFault):
                parts.checkpoints.now()
        return UserCodeError(
            f"{text}\n  hint: a smaller learning rate, --clip-norm 1, or --on-nan skip to leave "
            "such steps out"
        )


def _sum_of(losses: Sequence[Tensor | float | None]) -> Tensor | float:
    """Return the sum of a micro-batch's losses that came, of shape [1] where it is a tensor."""
    came = [loss for loss in losses if loss is not None]
    if len(came) == 1:
        return came[0]
    return torch.cat([loss for loss in came if isinstance(loss, Tensor)]).sum().reshape(1)


def _numbers(losses: Sequence[Tensor | float]) -> list[float]:
    """Return the value of each loss; those of tensors come from a device at once."""
    tensors = [loss for loss in losses if isinstance(loss, Tensor)]
    if tensors and not tensors[0].is_cpu:  # all are
        return torch.cat(tensors).tolist()
    return list(map(float, losses))


def _no_step() -> SpecError:
    return SpecError(
        "your training loop",
        got="a batch without a step",
        need="one call of job.step(loss) for every batch",
        hint="for batch in job.batches(...): job.step(loss(model(batch.inputs), batch.target))",
    )


def _check_loss(loss: object) -> None:
    if isinstance(loss, (int, float)):
        raise SpecError(
            "job.step",
            got=f"a {type(loss).__name__}",
            need="the loss tensor, from which it makes the gradients",
            hint="leave out .item()",
        )
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        actual = (
            f"a tensor of shape {list(loss.shape)}"
            if isinstance(loss, Tensor)
            else f"a {type(loss).__name__}"
        )
        raise SpecError(
            "loss",
            got=actual,
            need="a scalar: the mean over the micro-batch",
            hint="reduction='mean'",
        )
    if not loss.requires_grad:
        raise SpecError(
            "loss",
            got="a tensor that does not depend on any parameter",
            need="the result of the model, with its graph",
            hint="remove .detach(), .item() and torch.no_grad() between the model and the loss",
        )
