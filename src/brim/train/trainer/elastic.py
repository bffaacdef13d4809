"""The mixin that puts brim's loop inside of transformers' Trainer."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, IterableDataset
from transformers.trainer_callback import PrinterCallback, ProgressCallback
from transformers.trainer_utils import (
    EvalLoopOutput,
    EvalPrediction,
    denumpify_detensorize,
    has_length,
)

from brim.errors import SpecError
from brim.host.clock import wall
from brim.train.entry.join import join, spec_here
from brim.train.job import Job
from brim.train.trainer.arguments import (
    check_arguments,
    check_job,
    check_join_options,
    check_optimizer_and_schedule,
    global_batch_size_of,
    micro_batches_of,
)
from brim.train.trainer.evaluation import CountedCollate, Merged
from brim.train.trainer.progress import TrainerProgress, untimed
from brim.train.trainer.totals import Totals

if TYPE_CHECKING:
    from transformers import Trainer as _Trainer
else:
    _Trainer = object

_PACKAGES = frozenset({"brim", "transformers", "trl", "sentence_transformers"})
# Methods of transformers' own loop, which brim's loop replaces.
_NOT_CALLED = (
    "_inner_training_loop", "_load_best_model", "_prepare_for_training", "_run_epoch", "_save_checkpoint",
    "_wrap_model", "get_batch_samples", "set_initial_training_values",
)  # fmt: skip


class _Plan(NamedTuple):
    """The length of a training.

    Attributes:
        steps: in total.
        steps_per_epoch: of a whole epoch.
        epochs: the last of which may be cut short.
        batches_per_epoch: of `per_device_train_batch_size`, by which a Trainer counts parts of an
            epoch; `per_step` of them, or fewer, are a step.
    """

    steps: int
    steps_per_epoch: int
    epochs: int
    batches_per_epoch: int
    per_step: int

    def part_of_epoch(self, steps: int) -> float:
        """Return the part of an epoch that its first so many steps are."""
        return min(steps * self.per_step, self.batches_per_epoch) / self.batches_per_epoch


class _ComputedBatch(NamedTuple):
    """A micro-batch that `training_step` computes: see `Totals.weigh`."""

    samples: int
    labels: float
    operations: float


class Elastic(_Trainer):  # type: ignore[misc]
    """Puts brim's loop inside of a Trainer: `class SFT(brim.transformers.Elastic, trl.SFTTrainer)`.

    The library prepares model, data, optimizer, schedule and callbacks, and computes losses. brim
    cuts each step into micro-batches, sums gradients over workers, and writes checkpoints. The
    weights are the same for any number of workers, whatever dies, joins or leaves.

    A step has `per_device_train_batch_size * gradient_accumulation_steps` samples, whatever the
    number of workers. The loss is the mean over all labels of a step.

    Args:
        arguments: of the Trainer.
        join_options: of `brim.join`: `micro_batches`, `on_nan`, `threads`, `audit`.
        keywords: of the Trainer.
    """

    def __init__(
        self,
        *arguments: Any,
        join_options: Mapping[str, Any] | None = None,
        **keywords: Any,
    ) -> None:
        self._join_options = dict(join_options or {})
        self._job: Any = None  # of this process, once it has joined
        self._is_in_loop = False
        self._stops = False  # a callback asks to stop, which all workers learn with the next step
        self._stops_now = False  # a callback asks to stop because of metrics, which all have
        self._step_begun = -1
        self._under_way: _ComputedBatch | None = None
        self._grad_norm: Any = None
        self._learning_rate: float | None = None
        super().__init__(*arguments, **keywords)

    # What a Trainer does otherwise ----------------------------------------------------------------

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> Any:
        """Train, alone or as a worker of a job.

        At the end the first worker saves the model in `output_dir`, unless `save_strategy` is "no".

        Args:
            resume_from_checkpoint: None: brim resumes runs by itself.
            trial: None.
            ignore_keys_for_eval: names of outputs that evaluation leaves out.

        Returns:
            transformers' `TrainOutput`: steps, mean loss, metrics.

        Raises:
            SpecError: an argument cannot be followed exactly; the message names it.
            SystemExit: this worker was asked to leave, and has left.
        """
        if resume_from_checkpoint:
            raise SpecError(
                "train(resume_from_checkpoint=)",
                got=repr(resume_from_checkpoint),
                need="none: brim's checkpoints have all of a run",
                hint="brim resume RUN",
            )
        if trial is not None:
            raise SpecError(
                "train(trial=)", got="a trial", need="none", hint="a run for each set of parameters"
            )
        if self._job is not None:
            raise SpecError(
                "train()",
                got="a second call",
                need="one training for each Trainer",
                hint="a new Trainer, with model=trainer.model",
            )
        check_arguments(self.args)
        _check_methods(type(self))
        self.args._n_gpu = 1  # else a process that sees several GPUs would use all of them
        result = super().train(None, None, ignore_keys_for_eval)
        if str(getattr(self.args.save_strategy, "value", self.args.save_strategy)) != "no":
            self.save_model()
        return result

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save what trains (of a PEFT model, its adapters), on the first worker.

        Args:
            output_dir: None takes that of the arguments.
        """
        if self.is_world_process_zero():
            super().save_model(output_dir, _internal_call)

    def is_world_process_zero(self) -> bool:
        """Return whether this is the first worker, which may change as workers leave."""
        return self._job is None or self._job.rank == 0

    def is_local_process_zero(self) -> bool:
        """Return whether this is the first worker of all hosts: one alone prints."""
        return self.is_world_process_zero()

    def log(self, logs: dict[str, Any], start_time: float | None = None) -> None:
        """Log numbers of the present step: to callbacks, brim's records and its loggers."""
        numbers = untimed(logs)
        if self._is_in_loop:
            place = {"epoch": self.state.epoch, "step": self.state.global_step}
            self._progress.history.append({**numbers, **place})
        super().log(logs, start_time)
        if self._is_in_loop:
            self._job.log(**numbers)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Write nothing: `--checkpoint-every` has brim write checkpoints."""

    # Data -----------------------------------------------------------------------------------------

    def _get_dataloader(
        self,
        dataset: Any,
        description: str,
        batch_size: int,
        sampler_fn: Callable[[Any], Any] | None = None,
        is_training: bool = False,
        dataloader_key: str | None = None,
    ) -> Any:
        """Return the DataLoader of a split; that of training as torch has it, for brim to read."""
        if not is_training:
            return super()._get_dataloader(
                dataset, description, batch_size, sampler_fn, is_training, dataloader_key
            )
        collator = self.data_collator
        if any(kind.__module__ == "datasets.arrow_dataset" for kind in type(dataset).__mro__):
            dataset = self._remove_unused_columns(dataset, description=description)
        else:
            collator = self._get_collator_with_removed_columns(collator, description=description)
        is_stream = isinstance(dataset, IterableDataset)
        return DataLoader(
            dataset,
            batch_size=batch_size,
            sampler=None if is_stream or sampler_fn is None else sampler_fn(dataset),
            collate_fn=collator,
            num_workers=self.args.dataloader_num_workers,
            prefetch_factor=self.args.dataloader_prefetch_factor,
            drop_last=self.args.dataloader_drop_last and not is_stream,
        )

    def _training_loader(self) -> DataLoader[Any]:
        """Return the DataLoader of the training split, whose batches are whole steps."""
        size = self._train_batch_size = global_batch_size_of(self.args)
        found = _by_samples(self.get_train_dataloader())
        if getattr(found, "batch_size", None) != size:
            raise SpecError(
                "get_train_dataloader()",
                got=f"batches of {getattr(found, 'batch_size', None)}",
                need=f"{size} samples: per_device_train_batch_size * gradient_accumulation_steps, "
                "which is a step for any number of workers",
                hint="DataLoader(..., batch_size=self._train_batch_size); a Trainer that generates "
                "its samples, as GRPOTrainer, trains at the restart level, without brim's mixin",
            )
        loader: DataLoader[Any] = copy.copy(found)
        loader.collate_fn = CountedCollate(found.collate_fn)
        return loader

    # The loop -------------------------------------------------------------------------------------

    def _inner_training_loop(
        self,
        batch_size: int | None = None,
        args: Any = None,
        resume_from_checkpoint: str | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> Any:
        self.accelerator.free_memory()
        loader = self._training_loader()
        plan = _plan(self.args, loader)
        with contextlib.ExitStack() as until_the_end:
            job = self._join(plan, until_the_end)
            self._init_training_state(plan.steps, plan.steps_per_epoch, plan.epochs, None, trial)
            started = wall()
            self._run(job, loader, plan, partial(self._follow, ignore_keys_for_eval, started))
        samples = plan.steps * global_batch_size_of(self.args)
        return self._finalize_training(trial, samples, started)

    def _join(self, plan: _Plan, until_the_end: contextlib.ExitStack) -> Job:
        """Prepare what trains, and join the job of this process.

        Args:
            plan: of the training.
            until_the_end: undoes what the Trainer has for brim's loop alone.
        """
        self.create_optimizer()
        self.accelerator.prepare_model(self.model, evaluation_mode=True)  # for mixed precision
        self.create_scheduler(num_training_steps=plan.steps)
        check_optimizer_and_schedule(self.optimizer, self.lr_scheduler)
        self.model_wrapped = self.model
        self._totals = until_the_end.enter_context(Totals(self.model))
        check_join_options(self._join_options)
        options = {"micro_batches": micro_batches_of(spec_here(), self.args), **self._join_options}
        job = join(
            self.model,
            self.optimizer,
            self.lr_scheduler,
            scheduler_interval="step",
            scaler=self.accelerator.scaler,
            seed=self.args.seed,
            **options,
        )
        check_job(job.spec, by_rows=bool(job.parts.embeddings.weights))
        for hook in (
            self.optimizer.register_step_pre_hook(self._before_update),
            self.optimizer.register_step_post_hook(self._after_update),
        ):
            until_the_end.callback(hook.remove)
        self.accelerator.backward = self._take_loss
        until_the_end.callback(delattr, self.accelerator, "backward")
        self._tr_loss = torch.tensor(0.0, dtype=torch.float64)
        self._total_loss_scalar = 0.0
        self._globalstep_last_logged = self._initial_global_step = 0
        self._initial_num_input_tokens_seen = 0
        self.current_gradient_accumulation_steps = 1
        self._progress = TrainerProgress(self)
        job.register_state("trainer", self._progress)
        if job.parts.run_dir is not None and self.pop_callback(ProgressCallback):
            self.add_callback(PrinterCallback)  # a bar belongs to one process from start to end
        handler = self.callback_handler
        handler.model, handler.optimizer, handler.lr_scheduler = (
            self.model,
            self.optimizer,
            self.lr_scheduler,
        )
        return job

    def _run(
        self,
        job: Job,
        loader: DataLoader[Any],
        plan: _Plan,
        follow: Callable[[int], None],
    ) -> None:
        """Train to the end, with the events of a Trainer.

        Args:
            job: of this process.
            loader: of the training split.
            plan: of the training.
            follow: logs and evaluates where callbacks ask for it.
        """
        self.callback_handler.train_dataloader = loader
        samples = None if has_length(loader) else plan.steps * (loader.batch_size or 1)
        self._job = job
        for epoch in job.epochs(plan.epochs):
            if not self._is_in_loop:
                self._is_in_loop = True
                self._take_place(epoch, plan)
                self.control = self._event("on_train_begin")
                if self.args.eval_on_start and not job.committed:
                    self._evaluate(None, None, skip_scheduler=True)
            self.control = self._event("on_epoch_begin")
            for batch in job.batches(loader, samples=samples):
                self._compute(job, batch.sample)
                if job.committed > self.state.global_step:
                    self._end_step(epoch, plan, follow)
            if job.committed > self.state.global_step:  # a last step without samples for this one
                self._end_step(epoch, plan, follow)
            was_asked, self._stops_now = self.control.should_training_stop, False
            self.control = self._event("on_epoch_end")
            follow(epoch)
            if self.control.should_training_stop and (self._stops_now or not was_asked):
                job.stop()
        self._is_in_loop = False
        self.state.global_step = job.committed  # also of a worker that came after the last step

    def _compute(self, job: Job, sample: Mapping[str, Any]) -> None:
        """Compute a micro-batch as `training_step` does."""
        if self._step_begun != job.committed:
            self._step_begun = job.committed
            self.control = self._event("on_step_begin")
        if self._stops:
            job.stop()
        inputs, samples = sample["inputs"], sample["samples"]
        labels = self._get_num_items_in_batch([inputs], self.args.device)
        self._under_way = _ComputedBatch(
            samples=samples,
            labels=float(samples if labels is None else labels),
            operations=float(self.floating_point_ops(inputs)),
        )
        self.training_step(self.model, inputs, None if labels is None else labels.clamp(min=1))
        if self._under_way is not None:
            raise SpecError(
                f"{type(self).__name__}.training_step",
                got="no call of self.accelerator.backward",
                need="one call for each batch, by which brim takes the loss",
                hint="self.accelerator.backward(loss) in place of loss.backward()",
            )

    def _take_loss(self, loss: Tensor, **_: Any) -> None:
        """Give a micro-batch's loss to brim, in the place of a backward pass."""
        under_way, self._under_way = self._under_way, None
        if under_way is None:
            raise SpecError(
                f"{type(self).__name__}.training_step",
                got="a second call of self.accelerator.backward for a batch",
                need="one call",
                hint="add the losses: self.accelerator.backward(first + second)",
            )
        self._job.step(self._totals.weigh(loss, **under_way._asdict()))

    def _before_update(self, *_: Any) -> None:
        """Turn the sum of gradients into that of the mean loss, and clip it."""
        self._totals.scale_gradients()
        norm = None
        if (self.args.max_grad_norm or 0) > 0:
            norm = self._clip_grad_norm(self.model)
        self._grad_norm = self._get_grad_norm(self.model, grad_norm=norm)
        self.control = self._event("on_pre_optimizer_step")

    def _after_update(self, *_: Any) -> None:
        self._learning_rate = self._get_learning_rate()
        self.control = self._event("on_optimizer_step")

    def _end_step(self, epoch: int, plan: _Plan, follow: Callable[[int], None]) -> None:
        """Follow a committed step with its events; the same on all workers."""
        totals = self._totals.take()
        loss = math.nan if totals is None else totals.loss
        if self.args.logging_nan_inf_filter and not math.isfinite(loss):
            steps = 1 + self.state.global_step - self._globalstep_last_logged
            self._tr_loss += self._tr_loss / steps
        else:
            self._tr_loss += loss
        self._take_place(epoch, plan)
        if totals is not None:
            self.current_flos += round(totals.operations * self._samples_of_last_step())
        self.control = self._event("on_step_end")
        is_asked, self._stops_now = self.control.should_training_stop, False
        follow(epoch)
        if self.control.should_epoch_stop:
            raise SpecError(
                "control.should_epoch_stop",
                got="True",
                need="control.should_training_stop: brim's epochs have the same samples on all "
                "workers",
                hint="num_train_epochs and max_steps",
            )
        if self._stops_now or (is_asked and self.state.global_step >= self.state.max_steps):
            self._job.stop()
        elif self.control.should_training_stop:
            self._stops = True

    def _take_place(self, epoch: int, plan: _Plan) -> None:
        """Take the job's place in the training, and this worker's among others, as the Trainer's."""
        done = self._job.committed - epoch * plan.steps_per_epoch
        self.state.global_step = self._job.committed
        self.state.epoch = epoch + plan.part_of_epoch(done)
        self.state.is_world_process_zero = self.is_world_process_zero()
        self.state.is_local_process_zero = self.state.is_world_process_zero

    def _samples_of_last_step(self) -> int:
        schedule = self._job.parts.state.schedule
        return len(schedule.span(self._job.committed - 1))

    def _event(self, name: str) -> Any:
        return getattr(self.callback_handler, name)(self.args, self.state, self.control)

    def _follow(self, ignore_keys_for_eval: list[str] | None, started: float, epoch: int) -> None:
        """Log, evaluate and tell of saves, where callbacks have asked for it."""
        self._maybe_log_save_evaluate(
            self._tr_loss,
            self._grad_norm,
            self.model,
            None,
            epoch,
            ignore_keys_for_eval,
            started,
            learning_rate=self._learning_rate,
        )

    # Evaluation -----------------------------------------------------------------------------------

    def _evaluate(self, trial: Any, ignore_keys: Any, skip_scheduler: bool = False) -> Any:
        was_asked = self.control.should_training_stop
        metrics = super()._evaluate(trial, ignore_keys, skip_scheduler)
        self._stops_now = self.control.should_training_stop and not was_asked
        return metrics

    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> Any:
        """Evaluate or predict: while the job trains, all workers together.

        Each batch is computed by one of them, and all get the losses, predictions and labels of
        all batches, in the order of the data: the metrics are the same for any number of workers.
        Before and after training, each process evaluates everything.

        Args:
            dataloader: of the data.
            description: for the log.
            prediction_loss_only: whether losses alone are kept; None takes the argument's.
            ignore_keys: names of outputs to leave out.
            metric_key_prefix: of the names of metrics.
        """
        dataset = getattr(dataloader, "dataset", None)
        if not self._is_in_loop or not has_length(dataset):
            return super().evaluation_loop(
                dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix
            )
        if prediction_loss_only is None:
            prediction_loss_only = self.args.prediction_loss_only
        self.callback_handler.eval_dataloader = dataloader
        merged = Merged(concatenate=self.args.eval_do_concat_batches)
        self._job.evaluate(
            dataset,
            {"loss": merged},
            forward=partial(self._predict_batch, prediction_loss_only, ignore_keys),
            collate_fn=CountedCollate(dataloader.collate_fn),
            batch_size=self.args.per_device_eval_batch_size,
        )
        metrics = self._metrics_of(merged, metric_key_prefix)
        return EvalLoopOutput(
            predictions=merged.predictions,
            label_ids=merged.labels,
            metrics=metrics,
            num_samples=merged.samples,
        )

    def _predict_batch(
        self,
        prediction_loss_only: bool,
        ignore_keys: list[str] | None,
        model: nn.Module,
        sample: Mapping[str, Any],
    ) -> dict[str, Any]:
        inputs = sample["inputs"]
        main_input = inputs.get(getattr(self.model, "main_input_name", "input_ids"))
        loss, logits, labels = self.prediction_step(
            model, inputs, prediction_loss_only, ignore_keys=ignore_keys
        )
        if logits is not None and self.preprocess_logits_for_metrics is not None:
            logits = self.preprocess_logits_for_metrics(logits, labels)
        self.control = self._event("on_prediction_step")
        return {
            "samples": sample["samples"],
            "loss": loss,
            "logits": logits,
            "labels": labels,
            "inputs": main_input if "inputs" in self.args.include_for_metrics else None,
        }

    def _metrics_of(self, merged: Merged, prefix: str) -> dict[str, Any]:
        metrics: dict[str, Any] = {}
        has_both = merged.predictions is not None and merged.labels is not None
        if self.compute_metrics is not None and has_both:
            includes = self.args.include_for_metrics
            metrics = self.compute_metrics(
                EvalPrediction(
                    predictions=merged.predictions,
                    label_ids=merged.labels,
                    losses=merged.losses if "loss" in includes else None,
                    inputs=merged.inputs if "inputs" in includes else None,
                )
            )
        metrics = denumpify_detensorize(metrics)
        if merged.losses is not None:
            finite = np.isfinite(merged.losses)
            keep = finite if self.args.logging_nan_inf_filter and finite.any() else slice(None)
            metrics[f"{prefix}_loss"] = merged.losses[keep].mean().item()
        return {
            name if name.startswith(f"{prefix}_") else f"{prefix}_{name}": value
            for name, value in metrics.items()
        }


def _plan(args: Any, loader: DataLoader[Any]) -> _Plan:
    """Return the length of a training, as a Trainer computes it.

    Raises:
        SpecError: nothing says it.
    """
    per_step = args.gradient_accumulation_steps
    if not has_length(loader):
        if args.max_steps <= 0:
            raise SpecError(
                "TrainingArguments(max_steps=)",
                got=str(args.max_steps),
                need="a whole number from 1: the training data has no length",
            )
        steps = args.max_steps
        return _Plan(steps, steps, 1, steps * per_step, per_step)
    per_epoch = max(len(loader), 1)
    steps = args.max_steps if args.max_steps > 0 else math.ceil(args.num_train_epochs * per_epoch)
    epochs = -(-steps // per_epoch)
    samples = min(len(loader.sampler), per_epoch * (loader.batch_size or 1))  # type: ignore[arg-type]
    batches = -(-samples // args.per_device_train_batch_size)
    return _Plan(steps, per_epoch, epochs, batches, per_step)


def _by_samples(loader: Any) -> Any:
    """Return a DataLoader that draws samples, in place of one whose sampler puts them in batches.

    A sampler of batches that chooses which samples meet in one is left as it is.
    """
    sampler = getattr(loader, "batch_sampler", None)
    if (
        getattr(loader, "batch_size", None) is not None
        or not isinstance(sampler, BatchSampler)
        or type(sampler).__iter__ is not BatchSampler.__iter__
    ):
        return loader
    return DataLoader(
        loader.dataset,
        batch_size=sampler.batch_size,
        sampler=sampler.sampler,
        drop_last=sampler.drop_last,
        collate_fn=loader.collate_fn,
        num_workers=loader.num_workers,
        prefetch_factor=loader.prefetch_factor,
    )


def _check_methods(kind: type) -> None:
    """Check that a subclass changes no method of the loop that brim's replaces.

    Raises:
        SpecError: it does.
    """
    for name in _NOT_CALLED:
        owner = next((base for base in kind.__mro__ if name in vars(base)), None)
        if owner is not None and owner.__module__.partition(".")[0] not in _PACKAGES:
            raise SpecError(
                f"{owner.__name__}.{name}",
                got="a method of your own",
                need="only methods that brim's loop calls, such as compute_loss, training_step, "
                "create_optimizer, create_scheduler, get_train_dataloader and log",
                hint="a loop of your own, with brim.join",
            )
