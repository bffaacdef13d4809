"""A worker's side of a job: the training loop that any number of workers run together.

`Job.batches` hands out this worker's micro-batches; `Job.step` takes their losses. What happens
between, when a neighbour dies, joins or leaves, stays in here: the loop of a user sees
micro-batches and nothing else.
"""

from __future__ import annotations

import contextlib
import math
import platform
import sys
from collections import defaultdict, deque
from collections.abc import (
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
    Sequence,
)
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

import brim
from brim.chance import Sources
from brim.clock import monotonic
from brim.coordination import steps
from brim.coordination.participant import Interrupted, PeerLost, RoundChanged
from brim.coordination.reduction import ReductionPlan
from brim.coordination.steps import Act, Action, Add, Settle, Stand
from brim.data.batches import Collate
from brim.data.feed import Feed, MicroBatchRequest, Read, requests
from brim.domain.batch import Schedule, Span, cut
from brim.domain.job import JobSpec
from brim.domain.seeds import mix
from brim.errors import BrimError, EnvironmentFault, InternalError, SpecError, UserCodeError
from brim.train import left_over
from brim.train.accumulate import Accumulator
from brim.train.asynchronous.turn import Asynchrony
from brim.train.attributes import Attributes
from brim.train.carried import Carried, check_names
from brim.train.checkpoints import Checkpoints
from brim.train.context import WorkerContext
from brim.train.contribution import Contributions, StepOutcome
from brim.train.digests import describe_difference, root_of
from brim.train.embeddings import Embeddings
from brim.train.evaluation import Forward, evaluate_together, feed_of
from brim.train.exchange import Exchange
from brim.train.job_state import SAME_DATA, SAMPLES, STOP, Stateful, TrainingState
from brim.train.layout import Layout
from brim.train.membership import Loner, Members, Membership, parts_of
from brim.train.memory import make_own
from brim.train.metrics import Metric
from brim.train.optimization import Optimization
from brim.train.rows import GradientRows, OwnedRows, RowSums
from brim.train.samples import pair_of, to_device
from brim.train.state import weights_sha256
from brim.wire.messages import (
    Completed,
    Evaluated,
    Facts,
    Introduce,
    Logged,
    MicroReport,
    StepReport,
    Warn,
    failure_of,
)

_SAMPLED = 50  # steps of which one says what rows of embeddings are looked up most
_WATCHED_STEPS = 3  # of each round: what a network keeps in attributes shows in them
_UPDATE, _EPOCH = (
    1 << 41,
    1 << 42,
)  # in the place of a micro-batch, or of a step: what chance is drawn for


_NOTHING = OwnedRows(
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


@dataclass(slots=True, kw_only=True)
class _Round:
    """A round that this worker is in."""

    number: int
    exchange: Exchange
    accumulator: Accumulator
    rows: RowSums  # of embeddings
    rank: int
    parts: int  # that each step is cut into
    mine: range  # those of this rank
    reads: Generator[Read] | None = None
    commits: int = 0
    looked_at: int = (
        0  # the last step behind which a checkpoint would have been begun, where workers take turns
    )
    asked: float = 0.0  # when its next micro-batch was
    pace: float = 0.0  # seconds of its last step, to the commit
    held: bool = False  # its last commit was the last


@dataclass(slots=True, kw_only=True)
class _Step:
    """A step under way on this worker.

    Args:
        number: steps that were committed when it began.
        batch: whose samples it is of; that of the same number, but for asynchronous training.
    """

    number: int
    batch: int
    span: Span
    todo: deque[int]
    due: bool
    since: float
    done: list[tuple[MicroBatchRequest, int]] = field(
        default_factory=list
    )  # with the checksum of its samples
    losses: list[Tensor] = field(default_factory=list)
    micro: _Micro | None = None
    staleness: int | None = None
    total: list[Tensor] = field(default_factory=list)  # the sum over all micro-batches
    outcome: StepOutcome | None = None  # once the network has it
    busy: float = 0.0  # seconds of this worker with the sum, until now

    def places(self, span: Span) -> Span:
        """Return the places in this step of some samples of an epoch."""
        return Span(span.start - self.span.start, span.stop - self.span.start)


@dataclass(slots=True, kw_only=True)
class _Micro:
    """The micro-batch that the user's code is at work on."""

    read: Read
    weight: float
    since: float
    losses: list[Tensor | None]  # of each optimizer, [1]
    carried: dict[str, Any]
    taken: int = 0  # of these losses


class _WhileItLasts:
    """Lets a caller say which of the errors within it end it, and nothing else."""

    def __init__(self, ends: Callable[[BaseException], bool]) -> None:
        self._ends = ends

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        return error is not None and self._ends(error)


class Job:
    """A job, as seen by one of its workers.

    Args:
        model: the network, or several; on the job's device.
        optimizer: over its parameters; several step in the given order.
        spec: the options of the job.
        context: connects the worker to the others; None if it trains alone.
        scheduler: a learning-rate scheduler, or several, or None.
        scheduler_interval: `step`, `epoch`, or None for the default of the kind of scheduler.
        monitor: the metric that ReduceLROnPlateau looks at.
        scaler: for losses in float16, or None.

    Attributes:
        model: the network; several are in a `ModuleList`.
        device: where its parameters are.
        has_left: this worker was asked to leave.
    """

    def __init__(
        self,
        model: nn.Module | Sequence[nn.Module],
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        *,
        spec: JobSpec,
        context: WorkerContext | None,
        scheduler: Any = None,
        scheduler_interval: str | None = None,
        monitor: str | None = None,
        scaler: torch.amp.GradScaler | None = None,
    ) -> None:
        self.model = model if isinstance(model, nn.Module) else nn.ModuleList(model)
        self.spec = spec
        self.members: Members = Membership(context) if context else Loner()
        self.device = next(
            (parameter.device for parameter in self.model.parameters()), torch.device("cpu")
        )
        optimizers = (
            [optimizer] if isinstance(optimizer, torch.optim.Optimizer) else list(optimizer)
        )
        schedulers = (
            scheduler
            if isinstance(scheduler, (list, tuple))
            else [scheduler] * (scheduler is not None)
        )
        self._optimization = Optimization(
            self.model,
            optimizers,
            schedulers=schedulers,
            interval=scheduler_interval,
            monitor=monitor,
            scaler=scaler,
            clip_norm=spec.clip_norm,
        )
        obstacle = "a GradScaler" if scaler is not None else ""
        self._embeddings = Embeddings(self.model, optimizers, spec, obstacle=obstacle)
        if spec.servers and not self._embeddings.weights:
            raise _nothing_to_serve(spec)
        self._contributions = Contributions(
            self.model, losses=len(optimizers), by_rows=self._embeddings.names
        )
        self._carried: dict[str, Carried] = {}
        self._attributes = Attributes(self.model)
        self._sources = Sources(self.model)
        self._state = TrainingState(self.model, self._optimization, self._embeddings, spec=spec)
        self._embeddings.committed = lambda: self._state.committed
        self._checkpoints = Checkpoints(
            self._state,
            spec,
            context=context,
            tell=lambda message: self.members.tell(message),
            listen=lambda seconds: self.members.listen(seconds),
        )
        self._start_method = context.start_method if context else "alone"
        self._tables = context.tables if context else None
        self._asynchrony: Asynchrony | None = None
        if context is not None and spec.asynchronous is not None:
            if scaler is not None:
                raise _not_asynchronous("a GradScaler, whose scale follows from step to step")
            self._asynchrony = Asynchrony(self._state, self._embeddings, context.memory)
            self._checkpoints.asynchrony = self._asynchrony
        self._epochs = 0  # planned; 0 before the loop
        self._over = False
        self._lines_between = False  # of the user's, which run between `epochs` and `batches`
        self._at_hold = (
            False  # nothing but a neighbour's state has changed the state since all compared it
        )
        self.has_left = False
        self._round: _Round | None = None
        self._step: _Step | None = None
        self._epoch_read = -1  # the last epoch whose batches were asked for
        self._introduced = False
        self._stop_asked = False
        self._saw_a_loss = False
        self._interrupted = False  # the round ended under the last job.step
        self._feed: Feed | None = None
        self._data: object = None
        self._data_facts: dict[str, Any] = {}
        self._seconds: dict[str, float] = defaultdict(float)

    # What a user may know and say -----------------------------------------------------------------

    @property
    def committed(self) -> int:
        """Number of steps that have updated the network."""
        return self._state.committed

    @property
    def epoch(self) -> int:
        """Number of completed epochs; within the loop, the number of the current epoch, from 0."""
        return self._state.epoch

    @property
    def rank(self) -> int:
        """The place of this worker among the others, from 0; it changes as workers come and go.

        Servers come behind.
        """
        rank, workers = self.members.rank, self.members.workers
        before = sum(each < rank for each in workers)
        return before if rank in workers else len(workers) + rank - before

    @property
    def world_size(self) -> int:
        """Number of workers that train together now; servers do not count."""
        return len(self.members.workers)

    @property
    def metrics(self) -> dict[str, float]:
        """The last value of each name that `log` was given."""
        return dict(self._state.metrics)

    def register_state(self, name: str, thing: Stateful | MutableMapping[str, Any]) -> None:
        """Copy your own state to workers that join, and into checkpoints.

        Args:
            name: a different one for each state.
            thing: an object with `state_dict()` and `load_state_dict(state)`, such as an average of
                the weights, or a dict that you change in place. It must change in the same way on
                all workers.

        Raises:
            SpecError: the loop has begun, the name is taken, the thing has no state to carry, or
                the job has servers.
        """
        self._check_before_loop("job.register_state")
        if self.spec.servers:
            raise SpecError(
                "job.register_state",
                got=f"{name!r} beside --ps {self.spec.servers}",
                need="a loop whose state brim carries by itself: on servers no batch is run that "
                "could change another",
                hint="--ps 0",
            )
        self._state.register(name, thing)

    def carry(self, name: str, start: Tensor | Sequence[Tensor], *, dim: int = 0) -> None:
        """Carry a hidden state from the samples of a step to those of the next step.

        The state of each sample goes to the sample at the same position.

        `batch.carried[name]` is the state that the samples of a micro-batch start from, detached.
        Replace it by the state that they end with. Each epoch starts from `start`. The data must
        not be shuffled.

        Args:
            name: different for each carried state.
            start: a floating-point tensor, or several, with `global_batch_size` entries in
                dimension `dim`.
            dim: the dimension of the samples: 1 for torch's recurrent layers, whose state is
                [layers, batch, size].

        Raises:
            SpecError: the loop has begun, the name is taken, or `start` is something else.
        """
        self._check_before_loop("job.carry")
        if self._asynchrony is not None:
            raise _not_asynchronous(
                "job.carry, by which each step starts from what the one before it left"
            )
        carried = Carried(name, start, dim=dim, device=self.device)
        self._state.register(name, carried)
        self._carried[name] = carried

    def _check_before_loop(self, call: str) -> None:
        if self._epochs:
            raise SpecError(
                call, got="a call within the loop", need="a call before it: newcomers need it too"
            )

    def measured(self, metrics: Mapping[str, float]) -> None:
        """Set the metrics of the current state, to be recorded at the end of the epoch."""
        self._state.metrics.update(metrics)
        self._state.measured = self.committed

    def log(self, **values: float) -> None:
        """Record values of this step, for the records, the report and `--keep-best`.

        Args:
            values: numbers, the same on all workers (for a loss, use what `job.step` returned).
        """
        numbers = {name: float(value) for name, value in values.items()}
        self.measured(numbers)
        self.members.tell(Logged(epoch=self.epoch, step=self.committed, values=numbers))

    def stop(self) -> None:
        """End the job early, as done: after the current step, or at once between steps or epochs.

        Within a step, and within an epoch of asynchronous training, a call on one worker is enough;
        elsewhere all workers must call it.
        """
        is_within_step = self._step is not None and self._step.number == self.committed
        if is_within_step or self._is_amid_epoch:
            self._stop_asked = True
        else:
            self._state.stop_after = self.epoch + 1

    # The loop -------------------------------------------------------------------------------------

    def epochs(self, epochs: int | None = None) -> Iterator[int]:
        """Yield the numbers of the remaining epochs, from 0; loop over `batches` in each.

        A worker that joins starts with the current epoch.

        Args:
            epochs: how many epochs the job has in total; None takes `--epochs`.

        Raises:
            SpecError: the loop was left early, or the job is over.
            SystemExit: this worker was asked to leave, and has left.
        """
        self._lines_between = True
        for epoch in self.own_epochs(epochs):
            self._checkpoints.await_copy()  # what comes between epochs may change parameters
            yield epoch

    def own_epochs(self, epochs: int | None = None) -> Iterator[int]:
        """Yield epochs as `epochs` does, for brim's own loops.

        The code of these loops between epochs never changes parameters.
        """
        self._check_first_loop()
        self._epochs = self._agreed("epochs", epochs, self.spec.epochs, default=1)
        facts = None if self._state.schedule is None else self._facts()
        self._introduced = facts is not None
        self._get_ready()
        self._embeddings.open(self._tables)
        self.members.join(self._layout(), facts)
        with self._embeddings.in_use():
            yield from self._epochs_to_come()

    def _epochs_to_come(self) -> Iterator[int]:
        while True:
            if not self._at_boundary():
                continue
            if self._state.epoch >= min(self._epochs, self._state.stop_after or self._epochs):
                if self._has_finished():
                    return
                continue
            self._sources.seed(mix(self.spec.seed, _EPOCH, self.epoch))
            yield self.epoch
            self._close_epoch()

    def _layout(self) -> Layout:
        """Return the layout of what a micro-batch adds to a step."""
        carried = [tensor for each in self._carried.values() for tensor in each.tensors]
        tables = self._embeddings
        return Layout([*self._contributions.like, *carried], tables.weights, tables.partitions)

    def batches(
        self,
        data: Any,
        *,
        global_batch_size: int | None = None,
        epochs: int | None = None,
        shuffle: bool | None = None,
        sampler: Iterable[int] | None = None,
        collate_fn: Collate | None = None,
        samples: int | None = None,
        shards: int | None = None,
        loaders: int | None = None,
    ) -> Iterator[MicroBatch]:
        """Yield this worker's micro-batches of every step.

        The steps are those of one epoch within `epochs`, else of the whole job.

        Args:
            data: a map-style dataset, a torch DataLoader, or an IterableDataset.
            global_batch_size: samples per step, whatever the number of workers; None takes that of
                the DataLoader, or `--global-batch-size`.
            epochs: passes over the data, if this is the only loop; None takes `--epochs`.
            shuffle: False reads the data in its order.
            sampler: draws the indices of each epoch, instead of a shuffle.
            collate_fn: turns a list of samples into a batch; None collates as torch does.
            samples: number of samples per epoch, for iterable data without a length.
            shards: number of parts of an IterableDataset, each read only by the workers whose
                micro-batches come from it. The dataset finds its part by `get_worker_info()`, or
                has `shard(num_shards, index)` as those of Hugging Face do. None makes every worker
                read the whole stream.
            loaders: processes on each host that read ahead, divided among its workers; None takes
                `--loaders`, or the DataLoader's `num_workers`.

        Raises:
            SpecError: the data or the loop is not supported.
            SystemExit: this worker was asked to leave, and has left.
        """
        if self._feed is None or self._data is not data:
            self.use(
                Feed(
                    data,
                    seed=self.spec.seed,
                    global_batch_size=global_batch_size or self.spec.global_batch_size or None,
                    shuffle=shuffle,
                    sampler=sampler,
                    collate_fn=collate_fn,
                    samples=samples,
                    shards=shards,
                    loaders=self.spec.loaders if loaders is None else loaders,
                ),
                data,
            )
        feed = self._feed
        assert feed is not None, "used above"
        if self._epochs and not self._over:
            if epochs is not None:
                raise SpecError(
                    "job.batches(epochs=)",
                    got=f"{epochs} within a loop over job.epochs({self._epochs})",
                    need="epochs in one place",
                    hint="job.batches(train, global_batch_size=512)",
                )
            self.plan(feed, self._epochs)
            yield from self._batches_of_epoch(feed)
            return
        self._check_first_loop()
        planned = self._agreed("epochs", epochs, self.spec.epochs, default=1)
        self.plan(feed, planned)
        for _ in self.own_epochs(planned):
            yield from self._batches_of_epoch(feed)

    def use(self, feed: Feed, data: object) -> None:
        """Read from here what `batches` is asked for of this data.

        Samples that were read ahead from elsewhere are dropped.
        """
        feed.check()
        if not feed.samples:
            raise SpecError("dataset('train')", got="no samples", need="at least one")
        if self._feed is not None:
            self._stop_reading()
            self._feed.close()
        self._feed, self._data = feed, data

    def _stop_reading(self) -> None:
        if self._round is not None and self._round.reads is not None:
            self._round.reads.close()
            self._round.reads = None

    def _check_first_loop(self) -> None:
        if self._epochs:
            raise SpecError(
                "your training loop",
                got=f"another loop over a job that {'has ended' if self._over else 'has begun'}, "
                f"with {self._epochs} "
                f"{'epoch' if self._epochs == 1 else 'epochs'}",
                need="one loop over all epochs of a job",
                hint="for epoch in job.epochs(N): for batch in job.batches(train, "
                "global_batch_size=512): ...",
            )

    def _agreed(self, name: str, given: int | None, asked: int, *, default: int) -> int:
        """Return the one number that the script and the command line agree on.

        The number 0 is a command line that says nothing.
        """
        if given is not None and asked and given != asked:
            raise SpecError(
                f"--{name}",
                got=str(asked),
                need=f"{given}, as the script has it",
                hint=f"leave out --{name}",
            )
        number = asked or default if given is None else given
        if number < 1:
            raise SpecError(name, got=str(number), need="a whole number from 1")
        return number

    def plan(self, feed: Feed, epochs: int, *, test_samples: int = 0) -> None:
        """Set the data of the job, and report it.

        Raises:
            SpecError: the data does not fit the job, or differs from that of earlier epochs.
        """
        self._agreed(
            "global-batch-size", feed.global_batch_size, self.spec.global_batch_size, default=1
        )
        if self.spec.exact and feed.global_batch_size < self.spec.micro_batches:
            raise SpecError(
                "global_batch_size",
                got=str(feed.global_batch_size),
                need=f"at least 1 sample for each of the {self.spec.micro_batches} micro-batches "
                "of a step",
                hint=f"{self.spec.micro_batches} or more, or fewer micro_batches",
            )
        self._check_carried(feed)
        schedule = Schedule(
            samples=feed.samples, global_batch_size=feed.global_batch_size, epochs=epochs
        )
        if self._state.schedule not in (None, schedule):
            raise SpecError(
                "job.batches",
                got=f"{schedule.samples:,} samples in steps of {schedule.global_batch_size}",
                need=f"{self._state.schedule.samples:,} in steps of "
                f"{self._state.schedule.global_batch_size}, "
                "as in the epochs before",
                hint="one dataset for all epochs",
            )
        self._optimization.check_horizon(epochs, schedule.steps)
        self._state.plan(schedule, mark=f"{self.epoch} {feed.mark}" if feed.mark else "")
        self._data_facts = {
            "block_size": feed.block_size,
            "order": feed.order,
            "order_size": feed.order_size,
            "quarantined": int(getattr(feed.dataset, "quarantined", 0)),
            "quarantine_path": str(getattr(feed.dataset, "quarantine_path", "") or ""),
            "test_samples": test_samples or self._data_facts.get("test_samples", 0),
        }
        if self._epochs and not self._introduced:
            self._introduced = True
            self.members.tell(Introduce(facts=self._facts()))

    def _check_carried(self, feed: Feed) -> None:
        if self._carried and feed.order == "shuffled":
            raise SpecError(
                "job.carry",
                got="data that is shuffled",
                need="data in which a sample goes on where the one a step before it ended",
                hint="job.batches(data, shuffle=False)",
            )
        for name, each in self._carried.items():
            if each.places != feed.global_batch_size:
                raise SpecError(
                    f"carried {name!r}",
                    got=f"{each.places} places",
                    need=f"{feed.global_batch_size}: one for each sample of a step",
                    hint="job.carry(name, start, dim=1) where dimension 1 of start is that of the "
                    "samples",
                )

    # Rounds ---------------------------------------------------------------------------------------

    def _get_ready(self) -> None:
        """Do for a first time, before this worker counts, what its first round needs.

        The others would else wait for it in that round.
        """
        make_own([*self.model.parameters(), *self.model.buffers()])
        self._sources.seed(0)
        if self._feed is not None and self._feed.is_computed:
            self._feed.indices(0, self._schedule.span(0))

    def _while_it_lasts(self) -> _WhileItLasts:
        """A common action of the members of a round, which ends where the round does."""
        return _WhileItLasts(self._on_rounds_end)

    def _on_rounds_end(self, error: BaseException) -> bool:
        """Handle the end of a common action; return whether the next round is to be entered."""
        match error:
            case RoundChanged():
                self._leave_round()
            case Interrupted() | PeerLost():
                self._leave_round()
                self.members.await_replacement()
            case SystemExit():
                self.has_left = True
                self._leave_round()
                self._checkpoints.drain()
                return False
            case _:
                return False
        return True

    def _leave_round(self) -> None:
        self._checkpoints.await_copy()  # the next round may put another state in place of this one
        self._checkpoints.end_round()
        if self._round is not None:
            self._stop_reading()
            self._round.exchange.close()
        if self._step is not None and self._step.number == self.committed:
            self._optimization.give_up()
        self._round = self._step = None
        self._contributions.reset()
        self._contributions.clear()

    def _in_round(self) -> _Round:
        """Return the present round, or the next one once it is there."""
        if self._round is None:
            exchange = self.members.next_round(self._checkpoints)
            parts, rank = parts_of(self.spec, len(self.members.workers)), self.members.rank
            plan = ReductionPlan(parts, (self.members.world_size,), self.members.shares)
            if self._asynchrony is not None:  # each computes whole steps, as who is alone
                parts, rank, plan = 1, 0, ReductionPlan(1, (1,), (1,))
            blocks = plan.rank_blocks(rank)
            self._round = _Round(
                number=self.members.round,
                exchange=exchange,
                accumulator=Accumulator(parts, blocks, exchange.rows),
                rows=RowSums(parts, blocks),
                rank=self.members.rank,
                parts=parts,
                mine=plan.micro_batches(rank),
            )
            self._contributions.begin()
            # Someone of this host may still be adding up in the round before, in the memory that
            # all share: what follows begins once all have agreed.
            at_hold, self._at_hold = self._at_hold, False
            self._agree(at_hold=at_hold)
            self._settle_tables()
        return self._round

    def _settle_tables(self) -> None:
        """Have the tables of this host at the last commit.

        All members have left the round before.
        """
        if not self._embeddings.names:
            return
        tables, is_first = self._embeddings, self.members.rank == self.members.neighbours.start
        if is_first:
            tables.take_back(self.committed)
        if self.members.world_size > 1:
            was_here = tables.is_shown and not self.members.is_newcomer
            word = b"1" if was_here or tables.step == self.committed else b""
            have = [
                bool(each) for each in self.members.arrive(self.committed, "tables", word).payloads
            ]
            if self.members.hand_over(have, tables):
                self.members.arrive(self.committed, "handed over")
        if is_first:
            tables.step = self.committed
        tables.show()

    def _at_boundary(self) -> bool:
        """Do what is to be done between two steps; False where the round ended over it."""
        with self._while_it_lasts():
            self._between_steps(self._in_round(), patience=None)
            return True
        return False

    def _between_steps(self, round: _Round, *, patience: float | None) -> None:
        """Follow what the last commit brought.

        Args:
            patience: seconds to wait for its answer, where this worker is alone in its round; None
                waits for it.
        """
        self._step = None
        is_first = self.members.rank == 0
        actions = steps.boundary(
            held=round.held, due=self._state.due, is_first=is_first, patience=patience
        )
        steps.follow(actions, partial(self._do_between, round))

    def _do_between(self, round: _Round, action: Action) -> None:
        """Do the next of what comes between two steps."""
        match action:
            case Settle(within):
                self.members.settle(within)
            case Act.COMPARE if round.held:
                if self._asynchrony is None:
                    # One by itself compares nothing, and has no digests.
                    self._at_hold = self.members.world_size > 1
                    self._agree()
            case Act.COMPARE:
                self._embeddings.check_unchanged()
                self._agree()
                self._state.due = False
            case Act.CHECKPOINT:
                self._checkpoints.begin(ends_epoch=self._ends_epoch)
            case _:
                raise InternalError(f"{action} does not come between steps")

    def _agree(self, *, at_hold: bool = False) -> None:
        """Compare the state with those of the others.

        Args:
            at_hold: they compared it before, at the end of the last round, and nothing of the
                user's ran since.

        Raises:
            UserCodeError: they differ; nothing brim carries does by itself.
        """
        self._attributes.check()
        if self.members.world_size == 1:
            return
        started = monotonic()
        digests = self._state.digests(unless_put=at_hold)
        roots = self.members.arrive(self.committed, "agree", root_of(digests)).payloads
        self._spent("agree", started)
        if len(set(roots)) == 1:
            return
        payload = msgspec.msgpack.encode(digests)
        everyone = self.members.arrive(self.committed, "differ", payload).payloads
        tables = [msgspec.msgpack.decode(each, type=dict[str, bytes]) for each in everyone]
        what = describe_difference(tables, self.members.names)
        raise UserCodeError(
            f"the workers do not agree after step {self.committed}: {what}\n  {_why(what)}\n"
            "  The last checkpoint on which all agreed is kept."
        )

    # Steps ----------------------------------------------------------------------------------------

    @property
    def _ends_epoch(self) -> bool:
        """Return whether the step that was committed last is the last of an epoch.

        The answer is as far as the job's data is known yet.
        """
        schedule = self._state.schedule
        return schedule is not None and self.committed % schedule.steps_per_epoch == 0

    @property
    def _schedule(self) -> Schedule:
        assert self._state.schedule is not None, "batches plans it"
        return self._state.schedule

    def _batches_of_epoch(self, feed: Feed) -> Iterator[MicroBatch]:
        if self._epoch_read == self.epoch:
            raise SpecError(
                "your training loop",
                got=f"a second loop over job.batches in epoch {self.epoch}",
                need="one loop over the batches of an epoch",
                hint="job.evaluate(test, metrics) measures; a second training set is joined by "
                "ConcatDataset",
            )
        self._epoch_read = self.epoch
        if (
            self._lines_between
        ):  # what stands in front of this loop was done before this worker came
            self._state.put_again()
        self._state.keep_put()
        self._state.order = feed.order_crc32(self.epoch) if feed.order == "sampler" else 0
        end = (self.epoch + 1) * self._schedule.steps_per_epoch
        if self._asynchrony is not None:
            yield from self._asynchronous_epoch(self._asynchrony, feed, end)
            return
        while self.committed < end and self._state.stop_after is None:
            with self._while_it_lasts():
                yield from self._steps(self._in_round(), feed, end)
        self._step = None

    def _steps(self, round: _Round, feed: Feed, end: int) -> Iterator[MicroBatch]:
        """Steps until the epoch ends; leaves by RoundChanged where the round is over before."""
        while self.committed < end and self._state.stop_after is None:
            # Of a long step a hundredth is enough for the answer, of a short one the answer may
            # come within the next: where it says that the round is over, what was begun of that
            # step is given up.
            self._between_steps(round, patience=0.01 * round.pace)
            if round.reads is None:
                wanted = requests(
                    self._schedule,
                    parts=round.parts,
                    micro_batches=round.mine,
                    after=self.committed,
                )
                loaders = self._part_of(feed.loaders)
                round.reads = feed.read(
                    wanted, loaders=loaders, meanwhile=partial(self._wait_for_data, round)
                )
            yield from self._micro_batches(round, round.reads, self.committed)

    def _wait_for_data(self, round: _Round) -> None:
        self.members.wait_for_data(self.committed, monotonic() - round.asked)

    def _asynchronous_epoch(
        self, asynchrony: Asynchrony, feed: Feed, end: int
    ) -> Iterator[MicroBatch]:
        """Yield this worker's batches of an epoch, and take the state that came of all batches."""
        asynchrony.begin_epoch(self._schedule.steps_per_epoch)
        try:
            while asynchrony.is_in_epoch:
                with self._while_it_lasts():
                    yield from self._turns(asynchrony, self._in_round(), feed, end)
                    asynchrony.is_in_epoch = False
        finally:
            asynchrony.is_in_epoch = False  # also where the loop is left
        self._step = None

    def _turns(
        self, asynchrony: Asynchrony, round: _Round, feed: Feed, end: int
    ) -> Iterator[MicroBatch]:
        """Batches until none is left; what others apply meanwhile is taken over with each turn."""
        base, members = self.committed, self.members.world_size
        allotment = asynchrony.allotment(members)
        if members > 1:
            # others are going to change the tables that it is taken of
            self._checkpoints.await_copy()
            if round.rank == 0:
                asynchrony.settle(round.number)
            self.members.arrive(base, "settled")
            asynchrony.begin()
            round.looked_at = base
        batch = allotment.first(round.rank)
        while batch is not None:
            self._between_steps(round, patience=0.01 * round.pace)
            number = end - self._schedule.steps_per_epoch + batch
            wanted = requests(self._schedule, parts=1, micro_batches=round.mine, after=number)
            loaders = self._part_of(feed.loaders)
            round.reads = feed.read(islice(wanted, 1), loaders=loaders, meanwhile=self.members.poll)
            yield from self._micro_batches(round, round.reads, number)
            self._stop_reading()
            batch = (
                None if self._state.stop_after is not None else allotment.next(self.committed - 1)
            )
        if members > 1:
            self.members.arrive(end, "epoch")
            asynchrony.end()
            round.commits = (
                self.committed - base
            )  # of all: so they find out alike whether all stand here

    def _part_of(self, loaders: int) -> int:
        """Return this worker's part of the processes that read on its host.

        The part is at least one, where there are any. A server reads nothing.
        """
        neighbours = self.members.neighbours
        if self.members.rank not in neighbours:
            return 0
        part = cut(Span(0, loaders), len(neighbours))[self.members.rank - neighbours.start]
        return max(len(part), min(loaders, 1))

    def _micro_batches(
        self, round: _Round, reads: Iterator[Read], batch: int
    ) -> Iterator[MicroBatch]:
        """Hand out this rank's part of a step, and add up what comes back."""
        number = self.committed
        step = self._step = _Step(
            number=number,
            batch=batch,
            span=self._schedule.span(batch),
            todo=deque(round.mine),
            due=round.rank == 0 and not self._takes_turns and self._checkpoints.is_due(number + 1),
            since=monotonic(),
        )
        round.accumulator.begin()
        round.rows.begin()
        if round.rank == 0 and number % _SAMPLED == 0:
            self._embeddings.sample_lookups()
        self._optimization.begin()
        self._skip_empty(round, step)
        while step.todo:
            self.members.poll()
            round.asked = monotonic()
            yield self._hand_out(round, step, next(reads))
            if self._round is not round:
                raise RoundChanged  # job.step found it out
            if step.micro is not None:
                self._complete(round, step)
        if self.committed == number:
            self._commit(round, step)

    def _skip_empty(self, round: _Round, step: _Step) -> None:
        if len(step.span) >= round.parts:
            return
        spans = cut(step.span, round.parts)
        while step.todo and not len(spans[step.todo[0]]):
            nothing = self._contributions.nothing(stop=self._stop_asked, due=step.due)
            for each in self._carried.values():
                nothing += each.nothing()
            round.rows.add(step.todo[0], self._embeddings.nothing())
            round.accumulator.add(step.todo.popleft(), nothing)

    def _hand_out(self, round: _Round, step: _Step, read: Read) -> MicroBatch:
        started = monotonic()
        self._interrupted = False
        inputs, target = pair_of(to_device(read.sample, self.device))
        if round.commits < _WATCHED_STEPS:
            self._attributes.forget()
        if not step.done:
            self._contributions.watch()
        self._contributions.reset()
        self._embeddings.begin()
        self._sources.seed(mix(self.spec.seed, step.batch, read.request.micro))
        span = read.request.span
        carried = {name: each.of(step.places(span)) for name, each in self._carried.items()}
        since = self._spent("data", started)
        step.micro = _Micro(
            read=read,
            weight=len(span) / len(step.span),
            since=since,
            losses=[None] * len(self._optimization.optimizers),
            carried=carried,
        )
        return MicroBatch(inputs, target, carried)

    def step(self, loss: Tensor, *, optimizer: torch.optim.Optimizer | None = None) -> float | None:
        """Do the backward pass of the current micro-batch.

        The optimizer steps once all micro-batches of the step are done, on all workers.

        Args:
            loss: a scalar tensor, the mean over the micro-batch's samples.
            optimizer: if the job has several, the one whose parameters get this loss; all of them
                step together.

        Returns:
            After this worker's last micro-batch of the step, when the network has been updated, the
            mean loss over the whole step; before that, None.

        Raises:
            SpecError: the loop does something that it must leave to brim.
        """
        step, round = self._step, self._round
        if step is None or step.micro is None or round is None:
            if not self._interrupted:
                raise SpecError(
                    "job.step", got="a second call for one batch", need="one call for every batch"
                )
            return None
        micro = step.micro
        index = self._index_of(optimizer, micro)
        _check_loss(loss)
        if not self._saw_a_loss:
            self._look_for_left_over(loss)
        self._optimization.check_rates()
        if not micro.taken:
            self._contributions.check_untouched()
        with self._embeddings.backward():
            self._optimization.backward(loss, micro.weight, optimizer)
        micro.losses[index] = loss.detach().reshape(1)
        micro.taken += 1
        if micro.taken < len(micro.losses):
            return None
        self._complete(round, step)
        if step.todo:
            return None
        with self._while_it_lasts():
            return self._commit(round, step).losses[index]
        self._interrupted = True
        return None

    def _look_for_left_over(self, loss: Tensor) -> None:
        """Warn, once in a run, of what the loop still does by itself."""
        self._saw_a_loss = True
        if self.committed or self.members.rank:
            return
        own_loop = not self.spec.file and self.spec.clip_norm is None
        for text in (left_over.of_loss(loss), left_over.of_script(sys.argv[0]) if own_loop else ""):
            if text:
                self.members.tell(Warn(message=text))

    def _index_of(self, optimizer: torch.optim.Optimizer | None, micro: _Micro) -> int:
        known = self._optimization.optimizers
        if optimizer is None and len(known) > 1:
            raise SpecError(
                "job.step",
                got=f"a loss for one of {len(known)} optimizers",
                need="the optimizer that it is for",
                hint="job.step(loss, optimizer=...)",
            )
        index = (
            0
            if optimizer is None
            else next((i for i, each in enumerate(known) if each is optimizer), None)
        )
        if index is None:
            raise SpecError(
                "job.step(optimizer=)",
                got="an optimizer that the job does not know",
                need="one that you gave to brim.join",
            )
        if micro.losses[index] is not None:
            raise SpecError(
                "job.step", got="a second call for one batch", need="one call for every batch"
            )
        return index

    def _complete(self, round: _Round, step: _Step) -> None:
        """A micro-batch is done: add up what it left."""
        micro = step.micro
        assert micro is not None
        step.micro = None
        taken = [loss for loss in micro.losses if loss is not None]
        if not taken:
            raise SpecError(
                "your training loop",
                got="a batch without a step",
                need="one call of job.step(loss) for every batch",
                hint="for batch in job.batches(...): job.step(loss(model(batch.inputs), "
                "batch.target))",
            )
        self._contributions.check_unchanged()
        if round.commits < _WATCHED_STEPS:
            self._attributes.check()
        rows, by_rows = self._embeddings.take()
        round.rows.add(step.todo[0], rows)
        contribution = self._contributions.take(
            micro.weight, micro.losses, by_rows=by_rows, stop=self._stop_asked, due=step.due
        )
        if micro.carried or self._carried:
            check_names(self._carried, micro.carried)
            for name, each in self._carried.items():
                contribution += each.left_by(
                    step.places(micro.read.request.span), micro.carried[name]
                )
        round.accumulator.add(step.todo.popleft(), contribution)
        step.losses.append(torch.cat(taken).sum().reshape(1) if len(taken) > 1 else taken[0])
        step.done.append((micro.read.request, micro.read.crc32))
        self._skip_empty(round, step)
        self._spent("compute", micro.since)

    @property
    def _takes_turns(self) -> bool:
        return self._asynchrony is not None and self.members.world_size > 1

    def _commit(self, round: _Round, step: _Step) -> StepOutcome:
        if self._asynchrony is not None:
            step.staleness = 0
            if self._takes_turns:
                return self._commit_in_turn(self._asynchrony, round, step)
        started = monotonic()
        if self.device.type == "cuda":
            # what it has still to do is this rank's own work, not the exchange's
            torch.cuda.synchronize(self.device)
            started = self._spent("compute", started)
        self._put_rows(round)
        self._spent("reduce", started)
        early = bool(self._embeddings.weights) and self.members.world_size > 1
        actions = steps.step(round.exchange.stages, changes_early=early)
        round.held = steps.follow(actions, partial(self._do, round, step))
        round.commits += 1
        assert step.outcome is not None, "every step is prepared"
        return step.outcome

    def _do(self, round: _Round, step: _Step, action: Action) -> object:
        """Do the next that a step consists of, and note how long it took."""
        started = monotonic()
        match action:
            case Stand(phase):
                if phase == "summed":  # behind it others change the tables that are copied
                    self._checkpoints.await_copy()
                self.members.arrive(step.number, phase)
                self._spent("wait", started)
            case Add(phase):
                round.exchange.add(phase)
                step.busy += self._spent("reduce", started) - started
            case Act.SUM:
                own = round.accumulator.only() if self.members.world_size == 1 else []
                step.total = round.exchange.total(own)
                step.busy += self._spent("reduce", started) - started
            case Act.PREPARE:
                step.outcome = self._prepare(round, step.total)
                step.busy += self._spent("apply", started) - started
            case Act.COMMIT:
                if step.outcome is not None:
                    round.exchange.took(step.busy)
                report = msgspec.msgpack.encode(self._report(round, step))
                held = self.members.commit(step.number, report)
                round.pace = monotonic() - step.since
                self._spent("wait", started)
                return held
            case Act.APPLY:
                assert step.outcome is not None, "it was prepared"
                self._apply(step.total, step.outcome, samples=len(step.span))
                step.total = []  # it may be large, and the user's code follows
                if self._asynchrony is not None:
                    self._asynchrony.mark(step.batch % self._schedule.steps_per_epoch)
                self._spent("apply", started)
            case _:
                raise InternalError(f"{action} is no part of a step")
        return None

    def _put_rows(self, round: _Round) -> None:
        """Leave the gradients of embeddings' rows where the round adds them up."""
        if self._embeddings.weights:
            self._embeddings.check()
            round.exchange.put_rows(round.rows.blocks())

    def _commit_in_turn(self, asynchrony: Asynchrony, round: _Round, step: _Step) -> StepOutcome:
        """Apply a batch to the newest state, to which others have come meanwhile.

        None of them applies a batch during this.
        """
        started = monotonic()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            started = self._spent("compute", started)
        self._put_rows(round)
        total = round.accumulator.only()
        before = self.members.turn(step.number)
        started = self._spent("wait", started)
        with asynchrony.turn(round.number):
            step.staleness = before - step.number
            self._checkpoints.await_copy()
            self._contributions.reset()
            asynchrony.refresh(before)
            self._contributions.begin()
            if round.rank == 0:
                fresh, round.looked_at = range(round.looked_at + 1, before + 1), before
                if any(map(self._checkpoints.is_due, fresh)):
                    self._embeddings.check_unchanged()
                    self._checkpoints.begin(ends_epoch=False)  # `_prepare` waits for the copy
            report = msgspec.msgpack.encode(self._report(round, step))
            outcome = self._prepare(round, total)
            self._apply(total, outcome, samples=len(step.span))
            asynchrony.mark(step.batch % self._schedule.steps_per_epoch)
            asynchrony.store()
        started = self._spent("apply", started)
        round.held = self.members.commit(before, report)
        round.pace = monotonic() - step.since
        self._spent("wait", started)
        round.commits += 1
        return outcome

    def _report(self, round: _Round, step: _Step) -> StepReport:
        losses = _numbers(step.losses)
        parts = []
        for (request, crc32), loss in zip(step.done, losses, strict=True):
            start, stop = request.span.start, request.span.stop
            parts.append(MicroReport(round.rank, request.micro, start, stop, crc32, loss))
        report = StepReport(
            epoch=self._schedule.epoch_of(step.batch),
            parts=parts,
            seconds=dict(self._seconds),
            lr=self._optimization.learning_rate() if round.rank == 0 or self._takes_turns else None,
            staleness=step.staleness,
            tables=self._embeddings.traffic(self._owned(round)) if self._embeddings.weights else {},
        )
        self._seconds.clear()
        return report

    def _owned(self, round: _Round) -> Sequence[OwnedRows]:
        """The rows that this worker applies.

        Each host applies all, and those of the first are counted.
        """
        is_counted = self.members.neighbours.start == 0
        return (
            round.exchange.rows_owned()
            if is_counted
            else [_NOTHING] * len(self._embeddings.weights)
        )

    def _prepare(self, round: _Round, total: list[Tensor]) -> StepOutcome:
        """Give the network the sum of a step, and the tables their update.

        Until the commit both can be undone. Nobody may still be adding up: all members stand behind
        the reduction.
        """
        outcome = self._contributions.outcome(total)
        self._checkpoints.await_copy()
        self._contributions.reset()
        if not self._moves(outcome):
            return outcome
        own = len(self._contributions.like)
        self._contributions.put_back(total[:own], outcome, shared=round.exchange.shares_result)
        used = outcome.used[len(outcome.used) - len(self._embeddings.weights) :]
        self._embeddings.update(self._changes(round.exchange, used), step=self.committed + 1)
        for name in self._embeddings.newly_full():
            text = (
                f"embedding {name!r} has no room for more rows: other ids stay as they start "
                "(see its limit)"
            )
            self.members.tell(Warn(message=text))
        return outcome

    def _changes(self, exchange: Exchange, used: Sequence[bool]) -> list[OwnedRows | None]:
        """The rows that this worker is about to change, with clipped gradients of its own.

        Args:
            used: whether any micro-batch of the step gave each table a gradient.

        Returns:
            Of each table; None where it does not change.
        """
        if not self._embeddings.delay:
            parts = list(exchange.rows_owned())
            if self.spec.clip_norm is not None:
                parts = [part._replace(rows=part.rows.copy()) for part in parts]
                self._clip(exchange, [part.rows for part in parts], used)
            return [part if is_used else None for part, is_used in zip(parts, used, strict=True)]
        rows = [each.copy() for each in exchange.rows_total()]  # all of them wait, on each worker
        self._clip(exchange, rows, used)
        due = self._embeddings.put_off(rows)
        if not due:
            return [None] * len(rows)
        parts = list(exchange.owned_of(due))
        return [part if len(each.ids) else None for part, each in zip(parts, due, strict=True)]

    def _clip(self, exchange: Exchange, rows: Sequence[GradientRows], used: Sequence[bool]) -> None:
        """Scale down the gradients of the network, and these rows, where the norm is too large.

        The norm is that of all gradients.
        """
        if self.spec.clip_norm is None:
            return
        stand_ins = [nn.Parameter(torch.empty_like(each.values)) for each in rows]
        for stand_in, each in zip(stand_ins, rows, strict=True):
            stand_in.grad = each.values
        total = zip(exchange.rows_total(), used, strict=True)
        self._optimization.clip([each.values for each, is_used in total if is_used], stand_ins)

    def _apply(self, total: list[Tensor], outcome: StepOutcome, *, samples: int) -> None:
        """The update of a step.

        It must not fail half-way: behind the commit there is no way back.
        """
        self._sources.seed(mix(self.spec.seed, self.committed, _UPDATE))
        if self._is_to_be_applied(outcome):
            self._put_carried(total[len(self._contributions.like) :], samples)
            self._optimization.step()
            self._embeddings.settle()
            self._contributions.clear()
        self._state.committed += 1
        if self._embeddings.weights and self.members.rank == self.members.neighbours.start:
            self._embeddings.step = self.committed
        self._state.due = outcome.due
        if outcome.stop:
            self._state.stop_after = self.epoch + 1
        self._contributions.begin()

    def _put_carried(self, total: Sequence[Tensor], samples: int) -> None:
        rest = iter(total)
        for each in self._carried.values():
            each.put(list(islice(rest, len(each.tensors))), samples=samples)

    def _moves(self, outcome: StepOutcome) -> bool:
        """Return whether a step is applied: its losses are numbers, or `--on-nan` only warns."""
        return all(math.isfinite(loss) for loss in outcome.losses) or self.spec.on_nan == "warn"

    def _is_to_be_applied(self, outcome: StepOutcome) -> bool:
        """Return whether the losses of a step are numbers; else do what `--on-nan` says.

        Raises:
            UserCodeError: it says stop.
        """
        if all(math.isfinite(loss) for loss in outcome.losses):
            self._state.unsound_since = None
            return True
        number, is_first = self.committed, self._state.unsound_since is None
        text = f"the loss of step {number + 1} (epoch {self.epoch + 1}) is {outcome.losses[0]}"
        if self.spec.on_nan == "stop":
            raise self._not_finite(text)
        if is_first and (self.members.rank == 0 or self._takes_turns):
            does = "its update is left out" if self.spec.on_nan == "skip" else "training goes on"
            self.members.tell(
                Warn(message=f"{text}; {does}; the last checkpoint before it is kept")
            )
        if is_first:
            self._state.unsound_since = number
        return self.spec.on_nan == "warn"

    def _not_finite(self, text: str) -> BrimError:
        """End at the state before the step, with a checkpoint where that state is sound."""
        if self.members.rank == 0 and all(
            bool(p.isfinite().all()) for p in self.model.parameters()
        ):
            with contextlib.suppress(EnvironmentFault):
                self._checkpoints.now()
        return UserCodeError(
            f"{text}\n  hint: a smaller learning rate, --clip-norm 1, or --on-nan skip to leave "
            "such steps out"
        )

    def _spent(self, what: str, since: float) -> float:
        now = monotonic()
        self._seconds[what] += now - since
        return now

    # Measuring ------------------------------------------------------------------------------------

    def evaluate(
        self,
        data: Any,
        metrics: Mapping[str, Metric],
        *,
        forward: Forward | None = None,
        collate_fn: Collate | None = None,
    ) -> dict[str, float]:
        """Compute metrics of some data on all workers together.

        The values are the same for any number of workers. The model is in eval mode meanwhile, and
        its buffers are restored afterwards.

        Args:
            data: as `batches` takes it.
            metrics: by name; see `brim.metrics`.
            forward: `forward(model, inputs)` gives the output that metrics look at; None calls
                `model(inputs)`.
            collate_fn: turns a list of samples into a batch; None collates as torch does.

        Raises:
            SpecError: called in the middle of a step, or a metric does not fit.
        """
        if self._is_within_step:
            raise SpecError(
                "job.evaluate",
                got="a call in the middle of a step",
                need="a call between steps or epochs: workers have different numbers of "
                "micro-batches",
                hint="if job.step(loss) is not None and job.committed % 100 == 0: "
                "job.evaluate(...)",
            )
        feed = feed_of(data, seed=self.spec.seed, collate_fn=collate_fn)
        measure = partial(
            evaluate_together, self.model, feed, metrics, forward=forward, seed=self.spec.seed
        )
        # All members of a round that has made a step stand at this very line of the script. Where
        # it has made none, some came from elsewhere, and servers do not come by a line within a
        # loop over batches: then each measures everything, and comes to the same.
        all_here = self._step is None or len(self.members.workers) == self.members.world_size
        all_here = all_here and not self._is_amid_epoch
        if self._round is not None and self._round.commits and not self._over and all_here:
            with self._while_it_lasts():
                return measure(
                    rank=self.members.rank,
                    world_size=self.members.world_size,
                    gather=self._gather,
                    meanwhile=self.members.poll,
                )
        return measure(
            rank=0, world_size=1, gather=lambda payload: [payload], meanwhile=self.members.moved
        )

    @property
    def _is_amid_epoch(self) -> bool:
        return self._asynchrony is not None and self._asynchrony.is_in_epoch

    @property
    def _is_within_step(self) -> bool:
        step = self._step
        return step is not None and step.number == self.committed and bool(step.done or step.micro)

    def gather(self, payload: bytes) -> list[bytes]:
        """Return the payloads of all workers, in rank order, on every worker.

        Raises:
            SpecError: called within the loop over batches of a job with servers, which would wait
                for it, or of an asynchronous one.
        """
        if self._is_amid_epoch:
            raise SpecError(
                "job.gather",
                got="a call within an epoch",
                need="a call between epochs: with --async workers are at different batches within "
                "one",
                hint="train without --async",
            )
        workers = self.members.workers
        if self._step is not None and len(workers) < self.members.world_size:
            raise SpecError(
                "job.gather",
                got="a call within the loop over batches, beside --ps",
                need="a call between epochs: on servers no batch is run",
                hint="--ps 0",
            )
        payloads = self._gather(payload)
        return [payloads[rank] for rank in workers]

    def _gather(self, payload: bytes) -> list[bytes]:
        """The payloads of all members, in the order of their ranks."""
        return self.members.arrive(self.committed, "gather", payload).payloads

    # The ends of epochs and of the job ------------------------------------------------------------

    def _close_epoch(self) -> None:
        """The user's code is done with an epoch."""
        self._embeddings.check_unchanged()
        end = (self.epoch + 1) * (
            self._state.schedule.steps_per_epoch if self._state.schedule else 1
        )
        if self.committed < end and self._state.stop_after is None:
            raise self._left_early()
        measured = self._state.metrics if self._state.measured == self.committed else {}
        self._optimization.end_epoch(measured)
        self._state.epoch += 1
        for each in self._carried.values():
            each.begin_epoch()
        if self._asynchrony is not None:
            self._asynchrony.end_epoch()
        self._step = None
        # Every worker says so, and the master takes the first: whoever should have may be dying.
        self.members.tell(Evaluated(epoch=self.epoch, step=self.committed, metrics=measured))
        self._state.due = self._state.due or self._checkpoints.is_due_at_epochs_end()

    def _left_early(self) -> SpecError:
        schedule = self._state.schedule
        where = (
            "before its first step"
            if schedule is None
            else f"after step {self.committed} of {schedule.steps}"
        )
        return SpecError(
            "your training loop",
            got=f"a loop that was left {where}",
            need="a loop to its end: other workers would stop at a different sample",
            hint="job.stop() ends a job early, at the same step on all workers",
        )

    def _has_finished(self) -> bool:
        """Agree on the end, have the first worker write it, and wait until all of that is safe."""
        self._embeddings.check_unchanged()
        with self._while_it_lasts():
            steps.follow(steps.end(is_first=self.members.rank == 0), self._do_last)
            self._checkpoints.drain()
            self._over = True
            self._leave_round()
            if self._feed is not None:
                self._feed.close()
            return True
        return False

    def _do_last(self, action: Action) -> None:
        """Do the next of what a job ends with."""
        match action:
            case Act.COMPARE:
                self._agree()
            case Stand(phase):
                self.members.arrive(self.committed, phase)
                if not self._introduced and self._state.plan_as_found(self._epochs):
                    self.members.tell(Introduce(facts=self._facts()))
            case Act.WRITE:
                try:
                    self._checkpoints.now()
                except EnvironmentFault as fault:
                    self.members.tell(failure_of(fault))
                    raise
            case Act.COMPLETE:
                digest = weights_sha256(self.model)
                self.members.tell(Completed(weights_sha256=digest, metrics=self._state.metrics))
            case Act.AWAIT_DISMISSAL:
                self.members.wait_for_dismissal()
            case _:
                raise InternalError(f"{action} does not end a job")

    def close(self) -> None:
        """Check, at the end of the script, that it finished its loop.

        Raises:
            SpecError: the loop was left early, or never began.
        """
        if self._epochs and not self._over:
            raise self._left_early()

    def _facts(self) -> Facts:
        schedule = self._schedule
        known = {
            "block_size": 1,
            "order": "sampler",
            "order_size": schedule.samples,
            "quarantined": 0,
            "quarantine_path": "",
            "test_samples": 0,
        }
        return Facts(
            samples=schedule.samples,
            steps=schedule.steps,
            steps_per_epoch=schedule.steps_per_epoch,
            global_batch_size=schedule.global_batch_size,
            epochs=schedule.epochs,
            seed=self.spec.seed,
            clip_norm=self.spec.clip_norm,
            on_nan=self.spec.on_nan,
            parameters=sum(parameter.numel() for parameter in self.model.parameters()),
            versions=versions(),
            start_method=self._start_method,
            tables=self._embeddings.facts(),
            transport=self.spec.transport,
            **{**known, **self._data_facts},
        )


def _nothing_to_serve(spec: JobSpec) -> SpecError:
    return SpecError(
        "--ps",
        got=f"{spec.servers} for a model without an embedding that is trained by rows",
        need="nn.Embedding or nn.EmbeddingBag on the CPU, of a million elements or with "
        "sparse=True, and SGD without "
        "momentum, Adagrad or SparseAdam: servers own these tables, and nothing else",
        hint="--ps 0",
    )


def _not_asynchronous(what: str) -> SpecError:
    return SpecError(
        "--async",
        got=f"it beside {what}",
        need="steps that may be applied in any order",
        hint="train without --async",
    )


def _numbers(losses: Sequence[Tensor]) -> list[float]:
    """Return the value of each tensor of one element; from a device all come at once."""
    if all(loss.is_cpu for loss in losses):
        return [loss.item() for loss in losses]
    return torch.cat(list(losses)).tolist()


def _check_loss(loss: object) -> None:
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        what = (
            f"a tensor of shape {list(loss.shape)}"
            if isinstance(loss, Tensor)
            else f"a {type(loss).__name__}"
        )
        raise SpecError(
            "loss",
            got=what,
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


def versions() -> dict[str, str]:
    """Return the versions of the software that computes here."""
    return {
        "brim": brim.__version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
    }


def _why(what: str) -> str:
    """Return advice for a difference between workers, by what differs."""
    if what.startswith(SAMPLES):
        return f"Their training data has the same length and other samples.\n  hint: {SAME_DATA}"
    if what.startswith(STOP):
        return (
            "They do not agree on job.stop(): the script decides by variables that a newcomer does "
            "not have.\n"
            '  hint: keep them in a dict, and name it: job.register_state("best", best)'
        )
    return (
        "brim carries parameters, buffers, optimizers, schedulers and what job.register_state "
        "names.\n"
        "  What differs was changed by something else: a variable of the script, the rank, or the "
        "clock.\n"
        "  hint: job.register_state(name, thing), or change it in the same way on all workers"
    )
