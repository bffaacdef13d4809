"""A LightningModule with its data, seen as a job's training.

`brim.lightning.fit` and training files use it.

Lightning itself is not imported: brim calls a module's steps, optimizer and data hooks as a Trainer
does. It refuses unsupported hooks by name, so that none is silently ignored.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import math
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from brim.data.feed import Feed
from brim.errors import SpecError
from brim.train.job import Job
from brim.train.metrics import Metric
from brim.train.samples import to_device, with_whole_batches

PACKAGES = frozenset({"lightning", "pytorch_lightning"})
_CALLED = frozenset(
    {
        "configure_model", "configure_optimizers", "forward", "on_fit_end", "on_fit_start", "on_train_end",
        "on_train_epoch_end", "on_train_epoch_start", "on_train_start", "prepare_data", "setup", "teardown",
        "train_dataloader", "training_step", "val_dataloader", "validation_step",
    }
)  # fmt: skip
_OF_OTHER_WORK = (
    "test_",
    "predict_",
    "on_test_",
    "on_predict_",
    "on_exception",
    "example_input_array",
    "load_from_checkpoint",
)


def is_lightning(thing: object) -> bool:
    """Return whether this is a LightningModule or a LightningDataModule."""
    return any(_is_of_lightning(kind) for kind in type(thing).__mro__)


def _is_of_lightning(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in PACKAGES


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitting:
    """The parts that `Trainer.fit` would train.

    Attributes:
        module: the LightningModule.
        datamodule: the LightningDataModule, or None.
        train: the DataLoader of the training split, whose batches come whole.
        val: that of the validation split, or None.
        trainer: what the module takes for its trainer.
    """

    module: Any
    datamodule: Any
    train: DataLoader[Any]
    val: DataLoader[Any] | None
    trainer: _Trainer

    @property
    def _owners(self) -> list[Any]:
        return [owner for owner in (self.module, self.datamodule) if owner is not None]

    def optimizer(self) -> tuple[torch.optim.Optimizer, dict[str, Any]]:
        """Return the result of `configure_optimizers`, and its schedule as keywords of `brim.join`."""
        return _optimizer_of(self.module.configure_optimizers())

    def metrics(self) -> dict[str, Metric]:
        """Return a metric for each value that `validation_step` logs.

        The first two samples show which it logs.
        """
        if self.val is None or not _has_own(self.module, "validation_step"):
            return {}
        tried = copy.deepcopy(self.module).eval()
        batch = to_device(Feed(self.val, seed=0, loaders=0).first(2), self.module.device)
        with torch.no_grad(), torch.random.fork_rng():
            return {name: _Logged(name) for name in self.forward(tried, batch)}

    def forward(self, module: Any, inputs: Mapping[str, Any]) -> Any:
        """Return the loss of `training_step`.

        In eval mode, return the values that `validation_step` logs.

        Args:
            module: this one, or a copy of it.
            inputs: with the whole batch.
        """
        module._trainer = self.trainer  # copies are made without
        if not module.training:
            return _validate(module, inputs)
        return _train(module, inputs["batch"], self.trainer.batch_index)

    def predict(self, module: Any, inputs: Mapping[str, Any]) -> Any:
        """Return the result of `predict_step` for a batch."""
        return _call(module.predict_step, inputs["batch"], 0)

    def train_by(self, job: Job, metrics: Mapping[str, Metric], epochs: int | None = None) -> None:
        """Do the work of `Trainer.fit`, as a worker of a job.

        Args:
            job: made of the module and its optimizer.
            metrics: of `metrics()`.
            epochs: passes over the data; None takes `--epochs`.
        """
        module = self.module
        self.trainer.job = job
        module.on_fit_start()
        module.on_train_start()
        for _ in job.epochs(epochs):
            module.on_train_epoch_start()
            for batch in job.batches(self.train):
                job.step(self.forward(module, batch.inputs))
            if self.val is not None and metrics:
                job.log(**job.evaluate(self.val, metrics, forward=self.forward))
            module.on_train_epoch_end()
        module.on_train_end()
        module.on_fit_end()
        for owner in self._owners:
            owner.teardown("fit")


def fitting_of(
    module: Any,
    datamodule: Any = None,
    *,
    train: Any = None,
    val: Any = None,
    epochs: int | None = None,
) -> Fitting:
    """Take a module and its data as `Trainer.fit` does.

    It stops at the point where it would go to a device.

    Args:
        module: a LightningModule with automatic optimization.
        datamodule: a LightningDataModule, or None.
        train, val: DataLoaders, if neither the module nor the datamodule has them.
        epochs: passes over the data, or None if only the job knows.

    Raises:
        SpecError: the module uses something that brim does not support; the message names it.
    """
    owners = [owner for owner in (module, datamodule) if owner is not None]
    for owner in owners:
        _check_hooks(owner)
    if not module.automatic_optimization:
        raise SpecError(
            type(module).__name__,
            got="manual optimization",
            need="automatic_optimization = True",
            hint="a loop of your own, with brim.join([g, d], [opt_g, opt_d])",
        )
    for owner in owners:
        owner.prepare_data()
        owner.setup("fit")
    if hasattr(module, "configure_model"):
        module.configure_model()
    train = _loader("train_dataloader", train, owners)
    if train is None:
        raise SpecError("train_dataloader", got="none", need="a DataLoader of the training split")
    val = _loader("val_dataloader", val, owners)
    trainer = module._trainer = _Trainer(epochs, train, datamodule)
    return Fitting(module=module, datamodule=datamodule, train=train, val=val, trainer=trainer)


class LightningFile(ModuleType):
    """A training file whose `model()` gives a LightningModule, seen as one that has every function.

    Args:
        file: that was run.
        module: what its `model()` gave.
        epochs: passes over the data.

    Attributes:
        fitting: the module and its data.

    Raises:
        SpecError: the module uses something that brim does not support; the message names it.
    """

    def __init__(self, file: ModuleType, module: Any, *, epochs: int) -> None:
        super().__init__(file.__name__, file.__doc__)
        self._file = file
        datamodule = file.datamodule() if hasattr(file, "datamodule") else None
        loaders = {}
        if hasattr(file, "dataset"):
            loaders = {"train": file.dataset("train"), "val": file.dataset("test")}
        self.fitting = fitting_of(module, datamodule, epochs=epochs, **loaders)
        self.splits = getattr(file, "splits", ())
        self.forward = self.fitting.forward

    def model(self) -> Any:
        """The module, made once."""
        return self.fitting.module

    def dataset(self, split: str) -> DataLoader[Any] | None:
        """Return the DataLoader of the module, its datamodule or the file.

        `test` is the validation split.
        """
        if split in ("train", "test"):
            return self.fitting.train if split == "train" else self.fitting.val
        return _loader(f"dataset({split!r})", self._file.dataset(split), [])

    def loss(self, output: Tensor, target: None) -> Tensor:
        """Return the loss of `training_step`."""
        return output

    def optimizer(self, model: Any) -> tuple[Any, ...]:
        """Return the result of `configure_optimizers`, with its scheduler."""
        optimizers, schedule = self.fitting.optimizer()
        if not schedule:
            return (optimizers,)
        scheduler = schedule["scheduler"]
        is_plateau = isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)
        return optimizers, scheduler, schedule["monitor" if is_plateau else "scheduler_interval"]

    def metrics(self) -> dict[str, Metric]:
        """Return the metrics that `validation_step` logs."""
        return self.fitting.metrics()


# What a module may have ---------------------------------------------------------------------------


def _check_hooks(owner: Any) -> None:
    """Check that brim calls every hook that is overridden.

    Raises:
        SpecError: it does not call one.
    """
    kinds = [kind for kind in type(owner).__mro__ if _is_of_lightning(kind)]
    if not kinds:
        raise SpecError(
            "brim.lightning.fit",
            got=f"a {type(owner).__name__}",
            need="a LightningModule, and a LightningDataModule if it has no data itself",
        )
    for name in sorted({name for kind in kinds for name in vars(kind) if not name.startswith("_")}):
        if name in _CALLED or name.startswith(_OF_OTHER_WORK):
            continue
        usual = next(vars(kind)[name] for kind in kinds if name in vars(kind))
        override = next(vars(kind)[name] for kind in type(owner).__mro__ if name in vars(kind))
        if override is not usual or name in vars(owner):
            raise SpecError(
                f"{type(owner).__name__}.{name}",
                got="a method of your own",
                need=f"only methods that brim calls: {', '.join(sorted(_CALLED))}",
                hint="a loop of your own, with brim.join",
            )


def _loader(name: str, given_loader: Any, owners: Sequence[Any]) -> DataLoader[Any] | None:
    """A split's DataLoader, whose batches come whole."""
    for owner in reversed(owners):  # the datamodule first
        if given_loader is None and _has_own(owner, name):
            given_loader = getattr(owner, name)()
    if given_loader is None:
        return None
    if isinstance(given_loader, (list, tuple)) and len(given_loader) == 1:
        (given_loader,) = given_loader
    if not isinstance(given_loader, DataLoader):
        raise SpecError(name, got=f"a {type(given_loader).__name__}", need="one DataLoader")
    return with_whole_batches(given_loader)


def _has_own(owner: Any, name: str) -> bool:
    if name in vars(owner):
        return True
    return not _is_of_lightning(next(kind for kind in type(owner).__mro__ if name in vars(kind)))


def _optimizer_of(configured: Any) -> tuple[torch.optim.Optimizer, dict[str, Any]]:
    """Turn the result of `configure_optimizers` into the arguments of `brim.join`.

    Raises:
        SpecError: several optimizers, or words that brim does not know.
    """
    schedulers: Any = None
    if (
        isinstance(configured, tuple)
        and len(configured) == 2
        and isinstance(configured[0], (list, tuple))
    ):
        configured, schedulers = configured
    if isinstance(configured, (list, tuple)) and len(configured) == 1:
        (configured,) = configured
    if isinstance(configured, Mapping):
        _check_words(configured, {"optimizer", "lr_scheduler", "monitor"})
        schedulers = configured.get("lr_scheduler")
        optimizer = configured.get("optimizer")
        monitor = configured.get("monitor")
    else:
        optimizer, monitor = configured, None
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise SpecError(
            "configure_optimizers()",
            got=f"a {type(optimizer).__name__}",
            need="one torch optimizer",
        )
    if isinstance(schedulers, (list, tuple)):
        if len(schedulers) > 1:
            raise SpecError(
                "configure_optimizers()", got=f"{len(schedulers)} schedulers", need="one at most"
            )
        schedulers = schedulers[0] if schedulers else None
    return optimizer, _schedule_of(schedulers, monitor)


def _schedule_of(configured: Any, monitor: str | None) -> dict[str, Any]:
    """Return a scheduler, or Lightning's description of one, as keywords.

    It steps with every epoch by default.
    """
    if configured is None:
        return {}
    described = configured if isinstance(configured, Mapping) else {"scheduler": configured}
    _check_words(described, {"scheduler", "interval", "frequency", "monitor", "name", "strict"})
    by_step = described.get("interval") == "step"
    if by_step and isinstance(described["scheduler"], torch.optim.lr_scheduler.ReduceLROnPlateau):
        raise SpecError(
            "lr_scheduler", got="ReduceLROnPlateau with the interval 'step'", need="'epoch'"
        )
    if described.get("frequency", 1) != 1:
        raise SpecError("lr_scheduler", got=f"a frequency of {described['frequency']}", need="1")
    return {
        "scheduler": described["scheduler"],
        "scheduler_interval": described.get("interval", "epoch"),
        "monitor": described.get("monitor", monitor),
    }


def _check_words(described: Mapping[str, Any], names: set[str]) -> None:
    unknown = sorted(set(described) - names)
    if unknown:
        raise SpecError(
            "configure_optimizers()",
            got=repr(unknown[0]),
            need=f"only these keys: {', '.join(sorted(names))}",
        )


# Its steps ----------------------------------------------------------------------------------------


def _train(module: Any, batch: Any, index: int) -> Tensor:
    with _listening(
        module
    ):  # to nobody: training_step hears micro-batches, and brim records the loss
        result = _call(module.training_step, batch, index)
    loss = result.get("loss") if isinstance(result, Mapping) else result
    if not isinstance(loss, Tensor):
        raise SpecError(
            "training_step",
            got=f"a {type(result).__name__}",
            need='the loss, or a dict with "loss"',
        )
    return loss


def _validate(module: nn.Module, inputs: Mapping[str, Any]) -> dict[str, tuple[float, int]]:
    """Return the values that `validation_step` logs of a batch.

    Each value comes with the number of samples of which it is the mean.
    """
    with _listening(module) as logged:
        _call(module.validation_step, inputs["batch"], 0)
    samples = _size_of(inputs["batch"]) or 1
    return {
        name: (value, samples if size is None else size) for name, (value, size) in logged.items()
    }


def _call(step: Any, batch: Any, index: int) -> Any:
    """Steps take the number of their batch or leave it out."""
    return step(batch, index) if len(inspect.signature(step).parameters) > 1 else step(batch)


def _size_of(batch: Any) -> int | None:
    """Samples of a batch: the length of the first tensor in it."""
    if isinstance(batch, Tensor):
        return len(batch) if batch.ndim else 1
    parts = (
        batch.values()
        if isinstance(batch, Mapping)
        else batch
        if isinstance(batch, (list, tuple))
        else ()
    )
    return next((size for part in parts if (size := _size_of(part)) is not None), None)


@contextlib.contextmanager
def _listening(module: Any) -> Iterator[dict[str, tuple[float, int | None]]]:
    """Yield the values that a module logs meanwhile.

    Its torchmetrics objects forget this batch afterwards.

    They would add up the batches that this worker had, which nobody carries to the others.
    """
    logged: dict[str, tuple[float, int | None]] = {}

    def log(name: str, value: Any, *_: Any, batch_size: int | None = None, **options: Any) -> None:
        if options.get("reduce_fx", "mean") not in ("mean", torch.mean):
            raise SpecError(f"self.log({name!r})", got="a reduce_fx", need="means over samples")
        if not isinstance(value, (int, float)) and not (
            isinstance(value, Tensor) and value.numel() == 1
        ):
            raise _no_number(name, value)
        logged[name] = (value.item() if isinstance(value, Tensor) else float(value), batch_size)

    module.log = log
    try:
        yield logged
    finally:
        del module.log
        for metric in _torchmetrics_of(module):
            metric.reset()


def _no_number(name: str, value: Any) -> SpecError:
    """Return the error of a value that is no mean over samples, with the line to write instead."""
    kind = type(value)
    line = f"self.log({name!r}, value.mean(), batch_size=len(batch[0]))"
    if _is_torchmetric(kind):
        function = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", kind.__name__).lower()
        functions = import_module("torchmetrics.functional")
        package = kind.__module__.split(".")[1]
        places = {
            "functional": functions,
            f"functional.{package}": getattr(functions, package, None),
        }
        place = next((name for name, found in places.items() if hasattr(found, function)), None)
        if place is not None:
            line = (
                f"self.log({name!r}, torchmetrics.{place}.{function}(output, target, ...), "
                "batch_size=len(target))"
            )
    return SpecError(
        f"self.log({name!r})",
        got=f"a {kind.__name__}",
        need="a number: the mean over the samples of the batch. brim adds these up over batches "
        "and workers, as no object of one worker can",
        hint=line,
    )


def _is_torchmetric(kind: type) -> bool:
    return any(base.__module__ == "torchmetrics.metric" for base in kind.__mro__)


@lru_cache(maxsize=1)  # of the module that is trained: the next copy takes its place
def _torchmetrics_of(module: nn.Module) -> list[Any]:
    return [module for module in module.modules() if _is_torchmetric(type(module))]


@dataclass(frozen=True, slots=True)
class _Logged:
    """The mean over samples of the values that `validation_step` logs by one name."""

    name: str

    def observe(self, output: Any, target: object) -> bytes:
        value, samples = output[self.name]
        return struct.pack("<dq", value, samples)

    def result(self, states: Sequence[bytes]) -> float:
        parts = [struct.unpack("<dq", state) for state in states]
        samples = sum(size for _, size in parts)
        return math.fsum(value * size for value, size in parts) / samples if samples else math.nan


class _Trainer:
    """The trainer's attributes that a module may ask for."""

    logger = None
    loggers: tuple[()] = ()
    sanity_checking = False

    def __init__(self, epochs: int | None, train: DataLoader[Any], datamodule: Any) -> None:
        self.max_epochs, self.datamodule = epochs, datamodule
        self.num_training_batches = len(train)
        self.job: Job | None = None

    @property
    def current_epoch(self) -> int:
        return 0 if self.job is None else self.job.epoch

    @property
    def global_step(self) -> int:
        return 0 if self.job is None else self.job.committed

    @property
    def global_rank(self) -> int:
        return 0 if self.job is None else self.job.rank

    @property
    def is_global_zero(self) -> bool:
        return self.global_rank == 0

    @property
    def batch_index(self) -> int:
        """Number of the present step within its epoch.

        All micro-batches of a step have the same.
        """
        return self.global_step % self.num_training_batches

    @property
    def estimated_stepping_batches(self) -> int:
        if self.max_epochs is None:
            raise SpecError(
                "trainer.estimated_stepping_batches",
                got="a number of epochs that only the command line has",
                need="brim.lightning.fit(…, epochs=…)",
            )
        return self.max_epochs * self.num_training_batches

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        names = [name for name in vars(type(self)) if not name.startswith("_")]
        raise SpecError(
            f"trainer.{name}",
            got="an attribute that brim does not offer",
            need=f"one of these: {', '.join(sorted([*names, *vars(self)]))}",
        )
