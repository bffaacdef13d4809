"""The TrainingArguments that brim's loop follows exactly, and those that it refuses by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from brim.domain.job import JobSpec, default_micro_batches
from brim.errors import SpecError


@dataclass(frozen=True, slots=True)
class _RefusedArgument:
    """An argument with values that brim does not support.

    Args:
        name: of the argument.
        applies: whether its value is one of them.
        need: a supported value, in words.
        hint: a line to write instead.
    """

    name: str
    applies: Callable[[Any], bool]
    need: str
    hint: str


_JOIN_OPTIONS = ("micro_batches", "on_nan", "threads", "audit")
_NAMES_IN_ARGUMENTS = {"seed": "seed", "clip_norm": "max_grad_norm"}
_BY_ITSELF = ("lomo", "adalomo", "layerwise")  # optimizers that step within the backward pass
_REFUSED = (
    _RefusedArgument(
        "deepspeed", bool, "none: brim sums the gradients of its workers", "leave it out"
    ),
    _RefusedArgument("fsdp", bool, "none: each worker has the whole model", "leave it out"),
    _RefusedArgument(
        "parallelism_config", bool, "none: each worker has the whole model", "leave it out"
    ),
    _RefusedArgument(
        "torch_compile",
        bool,
        "False: which graphs a worker compiles depends on the batches that it sees first",
        "brim.join with torch.compile(model) in your own loop",
    ),
    _RefusedArgument(
        "use_liger_kernel", bool, "False: brim has not been tried with its kernels", "leave it out"
    ),
    _RefusedArgument(
        "auto_find_batch_size",
        bool,
        "False: the samples of a step must not depend on the memory of a worker",
        "a smaller per_device_train_batch_size with more gradient_accumulation_steps",
    ),
    _RefusedArgument(
        "train_sampling_strategy",
        lambda value: value == "batch_rebalance",
        "'random', 'sequential' or 'group_by_length': its batches depend on the number of workers",
        "train_sampling_strategy='group_by_length'",
    ),
    _RefusedArgument(
        "lr_scheduler_type",
        lambda value: str(getattr(value, "value", value)) in ("reduce_lr_on_plateau", "greedy"),
        "a schedule of steps: brim steps it with the optimizer",
        "lr_scheduler_type='linear', or brim.join(..., scheduler=..., monitor=...) in your own loop",
    ),
    _RefusedArgument(
        "optim",
        lambda value: any(name in str(getattr(value, "value", value)) for name in _BY_ITSELF),
        "an optimizer that steps after the backward pass: gradients are summed first",
        "optim='adamw_torch'",
    ),
    _RefusedArgument(
        "load_best_model_at_end",
        bool,
        "False: the best state is one of brim's checkpoints",
        "brim run --keep-best eval_loss:min -- ...",
    ),
    _RefusedArgument(
        "save_strategy",
        lambda value: str(getattr(value, "value", value)) == "best",
        "'no', 'steps' or 'epoch': the best state is one of brim's checkpoints",
        "brim run --keep-best eval_loss:min -- ...",
    ),
    _RefusedArgument(
        "enable_jit_checkpoint",
        bool,
        "False: brim writes a checkpoint when a run is suspended",
        "leave it out",
    ),
    _RefusedArgument(
        "push_to_hub",
        bool,
        "False: every worker would push",
        "if trainer.is_world_process_zero(): trainer.push_to_hub()",
    ),
    _RefusedArgument(
        "batch_eval_metrics",
        bool,
        "False: a worker sees a part of the evaluation data",
        "preprocess_logits_for_metrics, which keeps what compute_metrics gets small",
    ),
    _RefusedArgument(
        "include_num_input_tokens_seen",
        lambda value: value not in (False, "no"),
        "'no': a worker sees a part of the tokens",
        "leave it out",
    ),
    _RefusedArgument(
        "average_tokens_across_devices",
        lambda value: not value,
        "True: the loss is the mean over all tokens of a step",
        "leave it out",
    ),
)


def check_arguments(args: Any) -> None:
    """Check that brim's loop can follow these TrainingArguments exactly.

    Raises:
        SpecError: it cannot.
    """
    for refusal in _REFUSED:
        value = getattr(args, refusal.name, None)
        if refusal.applies(value):
            raise SpecError(
                f"TrainingArguments({refusal.name}=)",
                got=repr(getattr(value, "value", value)),
                need=refusal.need,
                hint=refusal.hint,
            )
    if args.data_seed not in (None, args.seed):
        raise SpecError(
            "TrainingArguments(data_seed=)",
            got=f"{args.data_seed} beside seed={args.seed}",
            need="one seed: the order of samples and random numbers follow from it",
            hint=f"seed={args.data_seed}",
        )
    if args.world_size > 1:
        raise SpecError(
            "the launcher",
            got=f"one of {args.world_size} processes, as torchrun and accelerate start them",
            need="brim as the launcher",
            hint=f"brim run --workers {args.world_size} -- python ...",
        )


def check_optimizer_and_schedule(optimizer: Any, scheduler: Any) -> None:
    """Check that brim can step an optimizer and its schedule, where the script made them.

    Raises:
        SpecError: it cannot.
    """
    if callable(getattr(optimizer, "eval", None)):
        raise SpecError(
            f"optimizer {type(optimizer).__name__}",
            got="one that changes the weights between training and evaluation (schedule-free)",
            need="an optimizer that changes weights in step() alone",
            hint="optim='adamw_torch'",
        )
    if type(scheduler).__name__ in ("ReduceLROnPlateau", "GreedyLR"):
        raise SpecError(
            f"lr_scheduler {type(scheduler).__name__}",
            got="a schedule that follows a metric",
            need="a schedule of steps: brim steps it with the optimizer",
            hint="lr_scheduler_type='linear'",
        )


def check_join_options(options: Mapping[str, Any]) -> None:
    """Check that a Trainer's own arguments do not say what these say.

    Raises:
        SpecError: one does, or there is no such option.
    """
    for name in options:
        if name not in _JOIN_OPTIONS:
            raise SpecError(
                "Trainer(join_options=)",
                got=repr(name),
                need=f"only {', '.join(_JOIN_OPTIONS)}",
                hint=f"TrainingArguments({_NAMES_IN_ARGUMENTS[name]}=...)"
                if name in _NAMES_IN_ARGUMENTS
                else "",
            )


def check_job(spec: JobSpec, *, by_rows: bool) -> None:
    """Check options of the command line that a Trainer cannot have.

    Args:
        spec: of the job.
        by_rows: whether an embedding of the model is trained by rows.

    Raises:
        SpecError: there is one.
    """
    if spec.clip_norm is not None:
        raise SpecError(
            "--clip-norm",
            got=str(spec.clip_norm),
            need="none: a Trainer has its own",
            hint=f"TrainingArguments(max_grad_norm={spec.clip_norm})",
        )
    if spec.asynchronous is not None or spec.servers:
        raise SpecError(
            "--async" if spec.asynchronous is not None else "--ps",
            got="it for a Trainer",
            need="synchronous training, by workers alone",
            hint="leave it out",
        )
    if by_rows:
        raise SpecError(
            "TrainingArguments(optim=)",
            got="an optimizer by which a large embedding is trained by rows",
            need="one that trains all weights alike: a Trainer's loss is a mean over tokens",
            hint="optim='adamw_torch'",
        )


def micro_batches_of(spec: JobSpec, args: Any) -> int:
    """Return the parts that each step is computed in, whatever the number of workers.

    They are those of the command line, if it says how many. By default they are brim's, so many
    more that none is larger than `per_device_train_batch_size`, and no more than samples.

    Raises:
        SpecError: a step has fewer samples than there may be workers.
    """
    default = default_micro_batches(spec.workers)
    if spec.micro_batches != default:
        return spec.micro_batches
    samples = global_batch_size_of(args)
    if samples < spec.workers.maximum:
        raise SpecError(
            "TrainingArguments(per_device_train_batch_size=)",
            got=f"{samples} samples a step for up to {spec.workers.maximum} workers",
            need="a sample for each worker: a step has per_device_train_batch_size * "
            "gradient_accumulation_steps samples, with any number of workers",
            hint=f"gradient_accumulation_steps={spec.workers.maximum}",
        )
    return min(max(default, int(args.gradient_accumulation_steps)), samples)


def global_batch_size_of(args: Any) -> int:
    """Return the samples of a step: those of one device and all its accumulated batches."""
    return int(args.per_device_train_batch_size * args.gradient_accumulation_steps)
