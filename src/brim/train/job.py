"""A worker's side of a job, as a user's script sees it.

`Job.batches` hands out this worker's micro-batches; `Job.step` takes their losses. What happens
between, when a neighbour dies, joins or leaves, stays in the loop (`loop.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from brim.data.batches import Collate
from brim.data.feed import Feed
from brim.domain.inference import CHUNK
from brim.domain.job import JobSpec
from brim.errors import SpecError
from brim.train.captured.captured_steps import tell_of_eager_steps
from brim.train.captured.step_function import StepFunction
from brim.train.capturing import captured_steps, key_of_code
from brim.train.checks.return_checks import check_metrics
from brim.train.context import WorkerContext
from brim.train.evaluation import Forward, evaluate_together, feed_of
from brim.train.exchange.carried import Carried
from brim.train.job_parts import assemble, not_asynchronous
from brim.train.logged import logged_numbers
from brim.train.loop import Loop
from brim.train.metrics import Metric
from brim.train.samples import pair_of
from brim.train.state.job_state import Stateful
from brim.train.step import MicroBatch
from brim.train.training_data import TrainingData, agreed
from brim.wire.messages import Logged


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
        parts: of the job, for brim itself.
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
        self.parts = assemble(
            model,
            optimizer,
            spec=spec,
            context=context,
            scheduler=scheduler,
            scheduler_interval=scheduler_interval,
            monitor=monitor,
            scaler=scaler,
        )
        self._has_step_function = False
        self._data = TrainingData(self.parts)
        self._loop = Loop(self.parts, self._data)

    # What a user may know and say -----------------------------------------------------------------

    @property
    def model(self) -> nn.Module:
        """The network; several are in a `ModuleList`."""
        return self.parts.model

    @property
    def device(self) -> torch.device:
        """The device of the network's parameters."""
        return self.parts.device

    @property
    def spec(self) -> JobSpec:
        """The options of the job."""
        return self.parts.spec

    @property
    def has_left(self) -> bool:
        """True once this worker was asked to leave."""
        return self._loop.has_left

    @property
    def committed(self) -> int:
        """Number of steps that have updated the network."""
        return self.parts.state.committed

    @property
    def epoch(self) -> int:
        """Number of completed epochs; within the loop, the number of the current epoch, from 0."""
        return self.parts.state.epoch

    @property
    def rank(self) -> int:
        """The place of this worker among the others, from 0; it changes as workers come and go.

        Servers come behind.
        """
        rank, workers = self.parts.members.rank, self.parts.members.workers
        first_index = sum(worker < rank for worker in workers)
        return first_index if rank in workers else len(workers) + rank - first_index

    @property
    def world_size(self) -> int:
        """Number of workers that train together now; servers do not count."""
        return len(self.parts.members.workers)

    @property
    def metrics(self) -> dict[str, float]:
        """The last value of each name that `log` was given."""
        return dict(self.parts.state.metrics)

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
        self.parts.state.register(name, thing)
        self.parts.optimization.schedules.carry(thing)

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
        if self.parts.asynchrony is not None:
            raise not_asynchronous(
                "job.carry, by which each step starts from what the one before it left"
            )
        self.parts.carry(name, Carried(name, start, dim=dim, device=self.device))

    def _check_before_loop(self, call: str) -> None:
        if self._loop.has_begun:
            raise SpecError(
                call, got="a call within the loop", need="a call before it: newcomers need it too"
            )

    def measured(self, metrics: Mapping[str, float]) -> None:
        """Set the metrics of the current state, to be recorded at the end of the epoch."""
        self.parts.state.metrics.update(metrics)
        self.parts.state.measured = self.committed

    def log(self, *unnamed: object, **values: float) -> None:
        """Record values of this step, for the records, the report and `--keep-best`.

        Args:
            values: numbers, the same on all workers (for a loss, use what `job.step` returned).

        Raises:
            SpecError: a value without a name, or one that is not a number.
        """
        numbers = logged_numbers(unnamed, values)
        self.measured(numbers)
        self.parts.members.tell(Logged(epoch=self.epoch, step=self.committed, values=numbers))

    def stop(self) -> None:
        """End the job early, as done: after the current step, or at once between steps or epochs.

        Within a step, and within an epoch of asynchronous training, a call on one worker is enough;
        elsewhere all workers must call it.
        """
        if self._loop.steps.is_begun or self._loop.is_amid_epoch:
            self._loop.steps.is_stop_asked = True
        else:
            self.parts.state.stop_after = self.epoch + 1

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
        self.parts.state.has_lines_between = True
        for epoch in self.own_epochs(epochs):
            self.parts.checkpoints.await_copy()  # what comes between epochs may change parameters
            yield epoch

    def own_epochs(self, epochs: int | None = None) -> Iterator[int]:
        """Yield epochs as `epochs` does, for brim's own loops.

        The code of these loops between epochs never changes parameters.
        """
        return self._loop.epochs(epochs)

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
        if not self._data.is_used(data):
            if self.spec.capture and not self._has_step_function and not self.spec.file:
                tell_of_eager_steps("the loop has no @job.step_function")
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
        feed = self._data.feed
        assert feed is not None, "used above"
        if self._loop.has_begun and not self._loop.is_over:
            if epochs is not None:
                raise SpecError(
                    "job.batches(epochs=)",
                    got=f"{epochs} within a loop over job.epochs({self._data.epochs})",
                    need="epochs in one place",
                    hint="job.batches(train, global_batch_size=512)",
                )
            self.plan(feed, self._data.epochs)
            yield from self._loop.batches_of_epoch(feed)
            return
        self._loop.check_first()
        planned = agreed("epochs", epochs, self.spec.epochs, default=1)
        self.plan(feed, planned)
        for _ in self.own_epochs(planned):
            yield from self._loop.batches_of_epoch(feed)

    def use(self, feed: Feed, data: object) -> None:
        """Read from here when `batches` is asked for this data.

        Samples that were read ahead from elsewhere are dropped.
        """
        self._loop.use(feed, data)

    def plan(self, feed: Feed, epochs: int, *, test_samples: int = 0) -> None:
        """Set the data of the job, and report it.

        Raises:
            SpecError: the data does not fit the job, or differs from that of earlier epochs.
        """
        self._data.plan(feed, epochs, test_samples=test_samples)

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
        return self._loop.step(loss, optimizer)

    def step_function(self, function: Callable[[Any], Tensor]) -> Callable[[Any], Tensor]:
        """Declare the function that computes the loss of a batch, so that `--capture` can replay it.

        Without `--capture`, the function stays as it is. With it, a replayed step runs the body of
        the loop once, with the last micro-batch of this worker; there the function gives the loss
        that was computed for it, and `job.step` returns the mean loss of the step.

        Args:
            function: of a batch of `batches` to its loss: a scalar tensor, the mean over the
                samples, which goes to `step` as it is. It must have no other effects.

        Raises:
            SpecError: the loop has begun, or the job has a step function.
        """
        self._check_before_loop("job.step_function")
        if self._has_step_function:
            raise SpecError(
                "job.step_function", got="a second function", need="one that computes the loss"
            )
        self._has_step_function = True
        if not self.spec.capture:
            return function
        own = StepFunction(function)

        def one_pass(samples: Any) -> Tensor:
            return function(MicroBatch(*pair_of(samples)))

        obstacles = {
            "the job has several optimizers": len(self.parts.optimization.optimizers) > 1,
            "losses are scaled": self.parts.optimization.is_scaled,
            "states are carried from step to step": bool(self.parts.carried),
        }
        self.parts.captured = captured_steps(
            self.parts, one_pass, key=key_of_code(function), obstacles=obstacles, function=own
        )
        return own

    # Measuring ------------------------------------------------------------------------------------

    def evaluate(
        self,
        data: Any,
        metrics: Mapping[str, Metric],
        *,
        forward: Forward | None = None,
        collate_fn: Collate | None = None,
        batch_size: int = CHUNK,
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
            batch_size: samples of a forward pass, each of which one worker computes.

        Raises:
            SpecError: called in the middle of a step, or a metric does not fit.
        """
        if self._loop.steps.is_partly_done:
            raise SpecError(
                "job.evaluate",
                got="a call in the middle of a step",
                need="a call between steps or epochs: workers have different numbers of "
                "micro-batches",
                hint="if job.step(loss) is not None and job.committed % 100 == 0: "
                "job.evaluate(...)",
            )
        check_metrics(
            metrics,
            field="job.evaluate",
            example='job.evaluate(test, {"accuracy": brim.metrics.accuracy()})',
        )
        if batch_size < 1:
            raise SpecError(
                "job.evaluate(batch_size=)", got=str(batch_size), need="a whole number from 1"
            )
        feed = feed_of(data, seed=self.spec.seed, collate_fn=collate_fn)
        measure = partial(
            evaluate_together,
            self.model,
            feed,
            metrics,
            forward=forward,
            size=batch_size,
            seed=self.spec.seed,
        )
        # Where they do not stand together, each measures everything, and comes to the same.
        if self._loop.stands_together:
            with self._loop.while_it_lasts():
                return measure(
                    rank=self.parts.members.rank,
                    world_size=self.parts.members.world_size,
                    gather=self._gather,
                    meanwhile=self.parts.members.poll,
                )
        return measure(
            rank=0,
            world_size=1,
            gather=lambda payload: [payload],
            meanwhile=self.parts.members.moved,
        )

    def gather(self, payload: bytes) -> list[bytes]:
        """Return the payloads of all workers, in rank order, on every worker.

        Raises:
            SpecError: called within the loop over batches of a job with servers, which would wait
                for it, or of an asynchronous one.
        """
        if self._loop.is_amid_epoch:
            raise SpecError(
                "job.gather",
                got="a call within an epoch",
                need="a call between epochs: with --async workers are at different batches within "
                "one",
                hint="train without --async",
            )
        workers = self.parts.members.workers
        if self._loop.steps.under_way is not None and len(workers) < self.parts.members.world_size:
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
        return self.parts.members.arrive(self.committed, "gather", payload).payloads

    def close(self) -> None:
        """Check, at the end of the script, that it finished its loop.

        Raises:
            SpecError: the loop was left early, or never began.
        """
        if self._loop.has_begun and not self._loop.is_over:
            raise self._loop.left_early()
