"""Level 1: a training file with the functions `model`, `dataset`, `loss` and `optimizer`.

`metrics` and others are optional.

A LightningModule has most of these itself: a file whose `model()` gives one needs no more than its
data.
"""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from brim.data.feed import Feed
from brim.domain.batch import Schedule
from brim.domain.job import GLOBAL_BATCH_SIZE, JobSpec
from brim.domain.seeds import mix
from brim.embeddings.embedding import only_looks_up
from brim.embeddings.keyed import rehearse
from brim.errors import BrimError, SpecError, UserCodeError, did_you_mean
from brim.tensors.chance import Sources, seed_host
from brim.train.captured.captured_steps import CapturedSteps
from brim.train.capturing import captured_steps
from brim.train.checks.attributes import Attributes
from brim.train.checks.click_models import check_sizes
from brim.train.checks.return_checks import (
    check_dataset,
    check_functions,
    check_metrics,
    check_model,
)
from brim.train.context import WorkerContext
from brim.train.entry.lightning import PACKAGES, Fitting, LightningFile, is_lightning
from brim.train.evaluation import Forward, observe
from brim.train.exchange.contribution import Contributions
from brim.train.job import Job
from brim.train.job_parts import JobParts
from brim.train.keras.network import (
    adopt,
    choose_backend,
    copied_by_structure,
    forward_in_a_file,
    is_keras,
    keras_parts,
)
from brim.train.keras.optimizer import with_keras
from brim.train.metrics import Metric
from brim.train.params import check_all_used
from brim.train.samples import pair_of, to_device
from brim.train.state.optimization import check_carried, check_optimizer
from brim.train.state.restoring import restore
from brim.user_code.tracebacks import trace_of

Splits = tuple[Any, Any]  # of a dataset: to train with, and to test with or None

_MOST_NOTES = 5  # warnings that are told
_MIN_SHARED_BYTES = 64 << 20  # bytes of an embedding
_OF_BATCH_NORM = "Expected more than 1 value per channel"


def load(path: str) -> ModuleType:
    """Run a training file and give its functions.

    Raises:
        UserCodeError: it raised.
        SpecError: it is no Python file, or its `model` is no function.
    """
    file = Path(path).resolve()
    spec = importlib.util.spec_from_file_location("brim_training_file", file)
    if spec is None or spec.loader is None:
        raise SpecError(path, got="no Python file", need="a file that ends in .py")
    module = importlib.util.module_from_spec(spec)
    choose_backend()
    sys.modules[spec.name] = module  # so that what it defines can be pickled and copied
    sys.path.insert(0, str(file.parent))
    call(lambda: spec.loader.exec_module(module))  # type: ignore[union-attr]
    if isinstance(made := getattr(module, "model", None), nn.Module):
        raise SpecError(
            f"{path}: model",
            got=f"a {type(made).__name__}",
            need="a function that makes it, so that each worker has its own",
            hint="def model(): return …",
        )
    return module


def functions_of(file: ModuleType, spec: JobSpec) -> ModuleType:
    """The functions of a training file; those of a LightningModule where its `model()` gives one.

    Raises:
        SpecError, UserCodeError: the module will not do.
    """
    has_own = (
        hasattr(file, "loss")
        or hasattr(file, "optimizer")
        or not callable(getattr(file, "model", None))
    )
    if has_own or sys.modules.keys().isdisjoint(PACKAGES):
        return file
    torch.manual_seed(mix(spec.seed))
    module = call(lambda: file.model())
    if not is_lightning(module):
        return file
    found: ModuleType = call(lambda: LightningFile(file, module, epochs=spec.epochs))
    return found


def call(function: Callable[[], Any]) -> Any:
    """Call the user's code.

    An exception of it becomes a UserCodeError with its traceback; errors of brim pass.
    """
    try:
        return function()
    except BrimError:
        raise
    except Exception as error:
        raise UserCodeError(trace_of(error)) from error


@dataclass(slots=True, kw_only=True)
class Prepared:
    """A training file, run: the parts that every worker needs, made once."""

    model: nn.Module
    loss: Callable[[Any, Any], Tensor]
    optimizer: torch.optim.Optimizer
    forward: Forward | None
    scheduler: Any
    scheduler_interval: str | None
    monitor: str | None
    train: Any
    test: Any
    metrics: Mapping[str, Metric]
    fitting: Fitting | None = None  # of a LightningModule, which has a loop of its own
    is_checked: bool = False  # a micro-batch went through all of it: `warm_up` found nothing wrong
    notes: list[str] = field(default_factory=list)  # what Python warned of meanwhile


def splits_of(module: ModuleType, spec: JobSpec) -> Splits:
    """Call the function `dataset` of a training file, whose other functions are there.

    Raises:
        SpecError, UserCodeError: the file or its data will not do.
    """
    check_functions(module, spec.file)
    train, test = call(lambda: module.dataset("train")), call(lambda: module.dataset("test"))
    call(lambda: check_dataset(train, "train"))
    call(lambda: check_dataset(test, "test"))
    return train, test


def prepare(module: ModuleType, spec: JobSpec, splits: Splits | None = None) -> Prepared:
    """Call the functions of a training file, the dataset's first.

    A wrong column fails before a wrong model.

    Args:
        module: with the functions.
        spec: the job's.
        splits: of `splits_of`, where it was called before.

    Raises:
        SpecError, UserCodeError: the file or its data will not do.
    """
    train, test = splits or splits_of(module, spec)
    torch.manual_seed(mix(spec.seed))
    seed_host(mix(spec.seed))  # Keras draws the seeds of its layers from Python's generator
    device = device_of(spec)
    model = call(lambda: module.model())
    check_model(model)
    if forward_of(module) is None:
        check_sizes(model, train)
    model.to(device)
    for part in keras_parts(model):
        adopt(part)
    returned = call(lambda: module.optimizer(model))
    optimizer, scheduler, interval, monitor = _parts_of(returned, model)
    metrics = call(lambda: module.metrics()) if hasattr(module, "metrics") else {}
    check_metrics(metrics)
    check_all_used(module)
    measured = metrics if test is not None else {}
    if spec.keep_best is not None:
        _check_measured("--keep-best", spec.keep_best.metric, measured)
    if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
        monitor = monitor or (next(iter(measured)) if len(measured) == 1 else "")
        _check_measured("ReduceLROnPlateau", monitor, measured)
    return Prepared(
        model=model,
        loss=module.loss,
        forward=forward_of(module) or (forward_in_a_file if is_keras(model) else None),
        optimizer=optimizer,
        scheduler=scheduler,
        scheduler_interval=interval,
        monitor=monitor,
        train=train,
        test=test,
        metrics=metrics,
        fitting=module.fitting if isinstance(module, LightningFile) else None,
    )


def _check_measured(field: str, metric: str, metrics: Mapping[str, Metric]) -> None:
    """A metric that something depends on must be one that is measured."""
    if metric not in metrics:
        raise SpecError(
            field,
            got=repr(metric),
            need="a metric of metrics(), measured on dataset('test')",
            hint=did_you_mean(metric, metrics) if metrics else "this file measures none",
        )


def forward_of(module: ModuleType) -> Forward | None:
    """Return the file's `forward(model, inputs)`, if it has one."""
    return getattr(module, "forward", None)


def check_split(module: ModuleType, split: str) -> None:
    """Check that a file has a split of this name: it would take an unknown one for another.

    Raises:
        SpecError: it has none.
    """
    names = ("train", "test", *getattr(module, "splits", ()))
    if split not in names:
        raise SpecError(
            "--split",
            got=repr(split),
            need="train, test, or a name in the file's `splits`",
            hint=f'{did_you_mean(split, names)}, or splits = ("{split}",) in the file',
        )


def _parts_of(
    returned: Any, model: nn.Module
) -> tuple[torch.optim.Optimizer, Any, str | None, str | None]:
    """Split the result of `optimizer`.

    Either the optimizer, or `(optimizer, scheduler)`, or `(optimizer, scheduler, "step" or
    "epoch")`; and what to monitor.

    ReduceLROnPlateau steps with every epoch: what stands behind it is the metric that it looks at.
    """
    parts = returned if isinstance(returned, tuple) else (returned,)
    optimizer, scheduler, interval = (*parts, None, None)[:3]
    optimizer = with_keras(model, optimizer)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise SpecError(
            "optimizer(model)",
            got=f"a {type(optimizer).__name__}",
            need="a torch.optim.Optimizer, or (optimizer, lr_scheduler)",
            hint="return torch.optim.Adam(model.parameters())",
        )
    check_optimizer(optimizer, "optimizer(model)")
    if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
        return optimizer, scheduler, "epoch", interval
    if interval not in ("step", "epoch", None):
        raise SpecError("optimizer(model)", got=f"interval {interval!r}", need="'step' or 'epoch'")
    return optimizer, scheduler, interval, None


def device_of(spec: JobSpec) -> torch.device:
    """Return the device on which workers of this job compute."""
    if spec.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if spec.device == "cuda" and not torch.cuda.is_available():
        raise SpecError(
            "--device", got="cuda", need="a GPU that torch can use", hint="--device cpu"
        )
    return torch.device(spec.device)


def warm_up(prepared: Prepared, spec: JobSpec) -> None:
    """Run a micro-batch through a copy of everything, so that no step pays for first times.

    The template does it for what is loaded lazily, and each worker again before it counts: a fork
    has to fault in every page that it touches. What the template has found to be right is not
    looked for again.

    Raises:
        SpecError, UserCodeError: model, loss and data do not fit together.
    """
    feed = _feed(prepared, spec)
    size = max(1, min(feed.samples, feed.global_batch_size // spec.micro_batches))
    model, optimizer = _rehearsal_of(prepared, spec)
    rehearse(model)
    with _noting_warnings(prepared):
        loss = (_try if prepared.is_checked else _try_twice)(prepared, model, size)
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        actual = (
            f"a tensor of shape {list(loss.shape)}"
            if isinstance(loss, Tensor)
            else f"a {type(loss).__name__}"
        )
        raise SpecError(
            "loss(output, target)",
            got=actual,
            need="a scalar tensor: the mean over the micro-batch",
        )
    if loss.requires_grad or not _tables_of(prepared, spec):
        call(loss.backward)
        call(optimizer.step)
    check_carried("optimizer", optimizer)
    restore(optimizer, optimizer.state_dict())  # what a newcomer does while others wait for it
    if not prepared.is_checked:
        _try_a_single_sample(prepared, model, spec)
        _try_metrics(prepared, model)
        prepared.is_checked = True


@contextlib.contextmanager
def _noting_warnings(prepared: Prepared) -> Iterator[None]:
    """Keep Python's warnings meanwhile, which are in no watched log."""
    with warnings.catch_warnings(record=True) as caught:
        yield
    for warning in caught:
        warnings.showwarning(warning.message, warning.category, warning.filename, warning.lineno)
        if issubclass(warning.category, UserWarning):
            text = " ".join(str(warning.message).split())
            note = f"{Path(warning.filename).name}:{warning.lineno}: {text}"
            if note not in prepared.notes and len(prepared.notes) < _MOST_NOTES:
                prepared.notes.append(note)


def _rehearsal_of(prepared: Prepared, spec: JobSpec) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Copies of the model and its optimizer, which may be changed.

    The rows of large embeddings are not copied, and nobody trains them: a copy, and a gradient of
    all rows, would take as much memory again in each worker.
    """
    memo: dict[int, Any] = {}
    for weight in _tables_of(prepared, spec):
        memo[id(weight)] = nn.Parameter(weight.detach(), requires_grad=False)
        state = prepared.optimizer.state.get(weight, {})
        memo |= {id(tensor): tensor for tensor in state.values() if isinstance(tensor, Tensor)}
    with copied_by_structure() as shared:
        memo |= shared
        model = copy.deepcopy(prepared.model, memo)
        return model, _copy_of(prepared.optimizer, memo)


def _copy_of(optimizer: torch.optim.Optimizer, memo: dict[int, Any]) -> torch.optim.Optimizer:
    """Copy an optimizer with all of its attributes: torch copies its own, and no other.

    Args:
        memo: copies that were made before, of other objects, by their ids.
    """
    copied = copy.deepcopy(optimizer, memo)
    for name, value in vars(optimizer).items():
        if name in vars(copied):
            continue
        if isinstance(value, torch.optim.Optimizer):
            setattr(copied, name, _copy_of(value, memo))
        else:
            with contextlib.suppress(TypeError):  # nobody can copy locks, and rehearsals need none
                setattr(copied, name, copy.deepcopy(value, memo))
    return copied


def _tables_of(prepared: Prepared, spec: JobSpec) -> list[nn.Parameter]:
    """Weights of embeddings that are too large for copies; looking up changes none of them."""
    if spec.embeddings == "dense":
        return []
    modules = [
        module
        for module in prepared.model.modules()
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag))
    ]
    found = (
        module.weight for module in modules if only_looks_up(module) and module.max_norm is None
    )
    return [
        weight
        for weight in found
        if isinstance(weight, nn.Parameter) and weight.nbytes >= _MIN_SHARED_BYTES
    ]


def _feed(prepared: Prepared, spec: JobSpec, *, loaders: int | None = 0) -> Feed:
    return Feed(
        prepared.train,
        seed=spec.seed,
        global_batch_size=_batch_size(prepared, spec),
        loaders=loaders,
    )


def _batch_size(prepared: Prepared, spec: JobSpec) -> int | None:
    """Return the batch size of the spec, else that of a DataLoader, else the usual."""
    usual = None if isinstance(prepared.train, DataLoader) else GLOBAL_BATCH_SIZE
    return spec.global_batch_size or usual


def size_of(data: Any) -> int:
    """Samples of a split."""
    return Feed(data, seed=0, loaders=0).samples


def _try(prepared: Prepared, model: nn.Module, size: int) -> Any:
    """The loss of the first so many samples."""
    inputs, target = _samples(prepared.train, size, model)
    return call(lambda: prepared.loss(_output(prepared, model, inputs), target))


def _try_twice(prepared: Prepared, model: nn.Module, size: int) -> Any:
    """The loss of the first so many samples, which must come out the same again.

    Raises:
        SpecError: it does not: what a micro-batch gives would depend on which others its worker had
            before.
    """
    sources, attributes, tries = Sources(model), Attributes(model), []
    inputs, target = _samples(prepared.train, size, model)
    contributions = Contributions(model)
    for _ in range(1 if _is_on_gpu(model) else 2):
        contributions.reset()
        sources.seed(0)
        tries.append(call(lambda: prepared.loss(_output(prepared, model, inputs), target)))
        attributes.check()
        leftovers = attributes.forget()
    values = [loss.detach() for loss in tries if isinstance(loss, Tensor)]
    if len(values) > 1 and not torch.equal(
        torch.nan_to_num(values[0]), torch.nan_to_num(values[1])
    ):
        raise SpecError(
            f"model attribute {leftovers[0]!r}"
            if leftovers
            else "model() and loss(output, target)",
            got=f"{values[0].tolist()} and then {values[1].tolist()} for the same micro-batch and "
            "seed",
            need="the same result each time, on any worker",
            hint="keep changing state in buffers; draw random numbers from torch, numpy or random, "
            "or from a generator "
            "in an attribute of the model",
        )
    return tries[-1]


def _is_on_gpu(model: nn.Module) -> bool:
    return any(parameter.is_cuda for parameter in model.parameters())


def _output(prepared: Prepared, model: nn.Module, inputs: Any) -> Any:
    return model(inputs) if prepared.forward is None else prepared.forward(model, inputs)


def _samples(dataset: Any, size: int, model: nn.Module) -> tuple[Any, Any]:
    """Inputs and target on the device of the model."""
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    feed = Feed(dataset, seed=0, loaders=0)
    return pair_of(to_device(call(lambda: feed.first(size)), device))


def _try_a_single_sample(prepared: Prepared, model: nn.Module, spec: JobSpec) -> None:
    """Try a micro-batch of one sample where the last step has one.

    A model that cannot take it would fail only there.
    """
    feed = _feed(prepared, spec)
    schedule = Schedule(samples=feed.samples, global_batch_size=feed.global_batch_size, epochs=1)
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
    better = next(
        (n for n in sizes if 1 not in replace(schedule, global_batch_size=n).part_sizes(parts)), 0
    )
    return SpecError(
        "--global-batch-size",
        got=f"{batch}, which leaves micro-batches of 1 of the {schedule.samples:,} samples in a "
        "last step",
        need="at least 2 in each: the model has BatchNorm, which normalises over the samples of a "
        "micro-batch",
        hint=f"--global-batch-size {better}" if better else "a smaller --micro-batches",
    )


def _try_metrics(prepared: Prepared, model: nn.Module) -> None:
    """Measure a few samples.

    A metric that does not fit the model would fail only after an epoch.
    """
    if prepared.test is None or not prepared.metrics or not size_of(prepared.test):
        return
    inputs, target = _samples(prepared.test, 2, model)
    model.eval()
    with torch.no_grad():
        output = call(lambda: _output(prepared, model, inputs))
    on_host = output.cpu() if isinstance(output, Tensor) else output
    target_on_host = target.cpu() if isinstance(target, Tensor) else target
    call(lambda: observe(prepared.metrics, on_host, target_on_host, inputs))


def _captured(prepared: Prepared, parts: JobParts) -> CapturedSteps | None:
    """Return programs for the steps of a training file; None where its passes have to be eager."""

    def one_pass(samples: Any) -> Tensor:
        inputs, target = pair_of(samples)
        return prepared.loss(_output(prepared, parts.model, inputs), target)

    key = Path(parts.spec.file).read_bytes() + repr(parts.spec.parameters).encode()
    obstacles = {"Lightning's hooks stand around its passes": prepared.fitting is not None}
    return captured_steps(parts, one_pass, key=key, obstacles=obstacles)


def train(prepared: Prepared, spec: JobSpec, context: WorkerContext | None) -> Job:
    """Train until the job is done, or until this worker has left (SystemExit)."""
    job = Job(
        prepared.model,
        prepared.optimizer,
        spec=spec,
        context=context,
        scheduler=prepared.scheduler,
        scheduler_interval=prepared.scheduler_interval,
        monitor=prepared.monitor,
    )
    job.parts.notes = prepared.notes
    if spec.capture:
        job.parts.captured = _captured(prepared, job.parts)
    test = prepared.test
    feed = _feed(prepared, spec, loaders=spec.loaders)
    job.use(feed, prepared.train)
    job.plan(
        feed,
        spec.epochs,
        test_samples=0 if test is None else size_of(test),
    )
    if prepared.fitting is not None:
        prepared.fitting.train_by(job, prepared.metrics)
        return job
    for _ in job.own_epochs():
        for batch in job.batches(prepared.train, global_batch_size=_batch_size(prepared, spec)):
            job.step(prepared.loss(_output(prepared, job.model, batch.inputs), batch.target))
        if test is not None:
            job.measured(job.evaluate(test, prepared.metrics, forward=prepared.forward))
    return job
