"""Level 1: a file with the functions `model`, `dataset`, `loss`, `optimizer` and, if wanted, `metrics`."""

from __future__ import annotations

import copy
import importlib.util
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from brim.domain.batch import Schedule
from brim.domain.job import JobSpec
from brim.domain.seeds import mix
from brim.errors import BrimError, SpecError, UserCodeError, did_you_mean
from brim.train.context import WorkerContext
from brim.train.data import fetch
from brim.train.evaluation import evaluation, observe
from brim.train.job import Job, to_device
from brim.train.metrics import Metric
from brim.train.params import check_all_used
from brim.train.returned import check_dataset, check_functions, check_metrics, check_model

__all__ = ["Prepared", "load", "prepare", "train"]

_OF_BATCH_NORM = "Expected more than 1 value per channel"


def load(path: str) -> ModuleType:
    """Run a training file and give its functions.

    Raises:
        UserCodeError: it raised.
    """
    file = Path(path).resolve()
    spec = importlib.util.spec_from_file_location("brim_training_file", file)
    if spec is None or spec.loader is None:
        raise SpecError(path, got="no Python file", need="a file that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # so that what it defines can be pickled and copied
    sys.path.insert(0, str(file.parent))
    call(lambda: spec.loader.exec_module(module))  # type: ignore[union-attr]
    return module


def call(function: Callable[[], Any]) -> Any:
    """Call the user's code; what it raises becomes a UserCodeError with its traceback, errors of ours pass."""
    try:
        return function()
    except BrimError:
        raise
    except Exception as error:
        raise UserCodeError(trace_of(error)) from error


def trace_of(error: BaseException) -> str:
    """The traceback as the user wants it: from the first frame outside brim."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = str(Path(__file__).resolve().parents[1])
    first = next((i for i, frame in enumerate(frames) if not frame.filename.startswith((ours, "<frozen"))), 0)
    lines = traceback.format_list(frames[first:]) + traceback.format_exception_only(error)
    return "Traceback (most recent call last):\n" + "".join(lines)


@dataclass(slots=True, kw_only=True)
class Prepared:
    """A training file, run: what every worker needs, made once."""

    model: nn.Module
    loss: Callable[[Any, Any], Tensor]
    optimizer: torch.optim.Optimizer
    scheduler: Any
    scheduler_interval: str
    train: Any
    test: Any
    metrics: Mapping[str, Metric]


def prepare(module: ModuleType, spec: JobSpec) -> Prepared:
    """Call the functions of a training file, the dataset's first: a wrong column fails before a wrong model.

    Raises:
        SpecError, UserCodeError: the file or its data will not do.
    """
    check_functions(module, spec.file)
    train, test = call(lambda: module.dataset("train")), call(lambda: module.dataset("test"))
    call(lambda: check_dataset(train, "train"))
    call(lambda: check_dataset(test, "test"))
    torch.manual_seed(mix(spec.seed))
    device = device_of(spec)
    model = call(lambda: module.model())
    check_model(model)
    model.to(device)
    made = call(lambda: module.optimizer(model))
    optimizer, scheduler, interval = _three(made)
    metrics = call(lambda: module.metrics()) if hasattr(module, "metrics") else {}
    check_metrics(metrics)
    check_all_used()
    if spec.keep_best is not None:
        _check_measured(spec.keep_best.metric, metrics if test is not None else {})
    return Prepared(
        model=model,
        loss=module.loss,
        optimizer=optimizer,
        scheduler=scheduler,
        scheduler_interval=interval,
        train=train,
        test=test,
        metrics=metrics,
    )


def _check_measured(metric: str, metrics: Mapping[str, Metric]) -> None:
    """A metric by which the best checkpoint is kept must be one that is measured."""
    if metric not in metrics:
        raise SpecError(
            "--keep-best",
            got=repr(metric),
            need="a metric of metrics(), measured on dataset('test')",
            hint=did_you_mean(metric, metrics) if metrics else "this file measures none",
        )


def _three(made: Any) -> tuple[torch.optim.Optimizer, Any, str]:
    """`optimizer`, `(optimizer, scheduler)` or `(optimizer, scheduler, "step" or "epoch")`."""
    given = made if isinstance(made, tuple) else (made,)
    optimizer, scheduler, interval = (*given, None, "epoch")[:3] if len(given) < 2 else (*given, "epoch")[:3]
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise SpecError(
            "optimizer(model)",
            got=f"a {type(optimizer).__name__}",
            need="a torch.optim.Optimizer, or (optimizer, lr_scheduler)",
            hint="return torch.optim.Adam(model.parameters())",
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise SpecError(
            "optimizer(model)",
            got="LBFGS, which computes the loss again within a step",
            need="an optimizer whose step() takes no closure: a step here is one pass over its micro-batches",
            hint="torch.optim.Adam(model.parameters())",
        )
    if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
        raise SpecError(
            "optimizer(model)",
            got="ReduceLROnPlateau, whose step() needs a metric",
            need="a scheduler whose step() takes nothing",
            hint="torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)",
        )
    if interval not in ("step", "epoch"):
        raise SpecError("optimizer(model)", got=f"interval {interval!r}", need="'step' or 'epoch'")
    return optimizer, scheduler, interval


def device_of(spec: JobSpec) -> torch.device:
    """Where workers of this job compute."""
    if spec.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if spec.device == "cuda" and not torch.cuda.is_available():
        raise SpecError("--device", got="cuda", need="a GPU that torch can use", hint="--device cpu")
    return torch.device(spec.device)


def warm_up(prepared: Prepared, spec: JobSpec) -> None:
    """Run a micro-batch through a copy of everything, so that no step pays for first times.

    The template does it for what is loaded lazily, and each worker again before it counts: a fork has to fault in
    every page that it touches.

    Raises:
        SpecError, UserCodeError: model, loss and data do not fit together.
    """
    size = max(1, min(len(prepared.train), spec.global_batch_size // spec.micro_batches))
    model, optimizer = copy.deepcopy((prepared.model, prepared.optimizer))
    loss = _try(prepared, model, size)
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        got = (
            f"a tensor of shape {list(loss.shape)}"
            if isinstance(loss, Tensor)
            else f"a {type(loss).__name__}"
        )
        raise SpecError(
            "loss(output, target)", got=got, need="a scalar tensor: the mean over the micro-batch"
        )
    call(loss.backward)
    call(optimizer.step)
    optimizer.load_state_dict(optimizer.state_dict())  # what a newcomer does while others wait for it
    _try_a_single_sample(prepared, model, spec)
    _try_metrics(prepared, model)


def _try(prepared: Prepared, model: nn.Module, size: int) -> Any:
    """The loss of the first so many samples."""
    inputs, target = _samples(prepared.train, size, model)
    return call(lambda: prepared.loss(model(inputs), target))


def _samples(dataset: Any, size: int, model: nn.Module) -> tuple[Any, Any]:
    """Inputs on the device of the model, and the target beside them."""
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    inputs, target = call(lambda: fetch(dataset, np.arange(size)))
    return to_device(inputs, device), to_device(target, device)


def _try_a_single_sample(prepared: Prepared, model: nn.Module, spec: JobSpec) -> None:
    """Where a micro-batch of the last step has one sample, what cannot take one would fail only there."""
    schedule = Schedule(samples=len(prepared.train), global_batch_size=spec.global_batch_size, epochs=1)
    if not spec.exact or 1 not in schedule.part_sizes(spec.micro_batches):
        return
    try:
        _try(prepared, model, 1)
    except UserCodeError as error:
        if _OF_BATCH_NORM in error.trace:
            raise _too_few_for_batch_norm(schedule, spec.micro_batches) from error
        note = "(with a micro-batch of 1 sample, as there is in the last step of each epoch)"
        raise UserCodeError(f"{error.trace.rstrip()} {note}\n") from error


def _too_few_for_batch_norm(schedule: Schedule, parts: int) -> SpecError:
    batch = schedule.global_batch_size
    sizes = range(batch + 1, batch + 10_000)
    better = next((n for n in sizes if 1 not in replace(schedule, global_batch_size=n).part_sizes(parts)), 0)
    return SpecError(
        "--global-batch-size",
        got=f"{batch}, which leaves micro-batches of 1 of the {schedule.samples:,} samples in a last step",
        need="at least 2 in each: the model has BatchNorm, which normalises over the samples of a micro-batch",
        hint=f"--global-batch-size {better}" if better else "a smaller --micro-batches",
    )


def _try_metrics(prepared: Prepared, model: nn.Module) -> None:
    """Measure a few samples: a metric that does not fit the model would fail only after an epoch."""
    if prepared.test is None or not len(prepared.test) or not prepared.metrics:
        return
    inputs, target = _samples(prepared.test, min(len(prepared.test), 2), model)
    model.eval()
    with torch.no_grad():
        output = call(lambda: model(inputs))
    on_host = output.cpu() if isinstance(output, Tensor) else output
    call(lambda: observe(prepared.metrics, on_host, target.cpu() if isinstance(target, Tensor) else target))


def train(prepared: Prepared, spec: JobSpec, context: WorkerContext | None) -> Job:
    """Train until the job is done, or until this worker has left (SystemExit)."""
    evaluate = evaluation(prepared.test, prepared.metrics) if prepared.test is not None else None
    job = Job(
        prepared.model,
        prepared.optimizer,
        spec=spec,
        context=context,
        scheduler=prepared.scheduler,
        scheduler_interval=prepared.scheduler_interval,
        evaluate=evaluate,
    )
    facts = {
        "test_samples": 0 if prepared.test is None else len(prepared.test),
        "start_method": context.start_method if context else "alone",
    }
    batches = job.batches(
        prepared.train, global_batch_size=spec.global_batch_size, epochs=spec.epochs, facts=facts
    )
    for batch in batches:
        job.step(prepared.loss(job.model(batch.inputs), batch.target))
    return job
