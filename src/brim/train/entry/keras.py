"""A compiled Keras model with its data, trained by brim's loop in place of `model.fit`.

`model.fit` reads a batch ahead of the step that it is in, and its metrics are those of one worker:
brim calls what it calls, batch by batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from brim.data.feed import Feed
from brim.errors import SpecError
from brim.train.entry.join import join
from brim.train.job import Job
from brim.train.keras.callbacks import CarriedCallback, check_callbacks
from brim.train.keras.measures import Measures, unpacked
from brim.train.keras.network import check_backend, forward, is_keras
from brim.train.keras.optimizer import KerasOptimizer
from brim.train.samples import Whole, with_whole_batches
from brim.train.training_data import agreed

_METRICS = "metrics of Keras"
_TRIED = 4  # samples by which a model is built and its metrics are tried
_UNMERGED = ("sum", "mean_with_sample_weight")  # reductions


@dataclass(frozen=True, slots=True, kw_only=True)
class KerasFitting:
    """The parts that `model.fit` would train.

    Attributes:
        model: compiled and built.
        data: of the training split.
        validation: the validation split, whose batches come whole; None for none.
        callbacks: of the user.
        measures: the model's metrics.
    """

    model: Any
    data: Any
    validation: Any
    callbacks: Sequence[Any]
    measures: Measures

    def train(
        self,
        *,
        epochs: int | None,
        global_batch_size: int | None,
        shuffle: bool | None,
        options: Mapping[str, Any],
    ) -> Any:
        """Do the work of `model.fit`, alone or as a worker of a job; return its History."""
        model = self.model
        model.stop_training = False
        model.train()
        job = join(model, model.optimizer, **options)
        optimizer = job.parts.optimization.optimizers[0]
        assert isinstance(optimizer, KerasOptimizer), "join made it"
        epochs = agreed("epochs", epochs, job.spec.epochs, default=1)
        sums = job.parts.add_up(_METRICS, len(self.measures.values()))
        callbacks = self._callback_list(job, epochs)
        callbacks.on_train_begin()
        for epoch in job.epochs(epochs):
            callbacks.on_epoch_begin(epoch)
            optimizer.show_rate()
            for batch in job.batches(
                self.data, global_batch_size=global_batch_size, shuffle=shuffle
            ):
                loss, batch.carried[_METRICS] = self.measures.loss_of(batch.sample)
                job.step(loss)
            self.measures.put(sums.tensors[0])
            logs = self.measures.results() | self._validated(job)
            callbacks.on_epoch_end(epoch, logs)
            if model.stop_training or epoch + 1 == epochs:  # within the loop: it may change weights
                model.optimizer.finalize_variable_values(model.trainable_variables)
                callbacks.on_train_end(logs)
            optimizer.show_rate()
            job.log(**{name: value for name, value in logs.items() if not np.ndim(value)})
            if model.stop_training:
                job.stop()
        model.eval()
        kind = import_module("keras").callbacks.History
        history = next(item for item in callbacks.callbacks if isinstance(item, kind))
        history.job = job
        return history

    def _callback_list(self, job: Job, epochs: int) -> Any:
        """Return Keras' list of callbacks, with its History, whose states brim carries."""
        callbacks = import_module("keras").callbacks.CallbackList(
            list(self.callbacks), add_history=True, model=self.model, epochs=epochs
        )
        for index, callback in enumerate(callbacks.callbacks):
            name = f"Keras callback {index} ({type(callback).__name__})"
            job.register_state(name, CarriedCallback(callback))
        return callbacks

    def _validated(self, job: Job) -> dict[str, Any]:
        if self.validation is None:
            return {}
        data, collate = self.validation
        measures = self.measures
        job.evaluate(data, {"Keras": measures}, forward=measures.test, collate_fn=collate)
        return {f"val_{name}": value for name, value in measures.results().items()}


def fitting_of(model: Any, data: Any, *, validation_data: Any, callbacks: Any) -> KerasFitting:
    """Take a model and its data as `model.fit` does, and build the model from the first samples.

    Raises:
        SpecError: something that brim does not support; the message names it.
    """
    _check_model(model)
    if not isinstance(callbacks, (list, tuple, type(None))):
        raise SpecError(
            "callbacks", got=f"a {type(callbacks).__name__}", need="a list of keras.callbacks"
        )
    callbacks = list(callbacks or ())
    check_callbacks(callbacks)
    data = _dataset(data)
    measures = Measures(model)
    batch = Feed(data, seed=0, loaders=0).first(_TRIED)
    with torch.no_grad(), torch.random.fork_rng():
        forward(model.eval(), unpacked(batch)[0])
        model.test_step(unpacked(batch))  # makes the variables of metrics
    _check_losses(model)
    measures.check_sums(batch)
    model.zero_grad()  # model.fit leaves gradients
    return KerasFitting(
        model=model,
        data=data,
        validation=None if validation_data is None else _whole(_dataset(validation_data)),
        callbacks=callbacks,
        measures=measures,
    )


# Data ---------------------------------------------------------------------------------------------


class _Arrays(Dataset[Any]):
    """Samples of nested arrays, as `model.fit` takes them: `({"a": ..., "b": ...}, y)`."""

    def __init__(self, arrays: Any) -> None:
        self._tree = import_module("keras").tree
        self._arrays = arrays
        self._size = len(self._tree.flatten(arrays)[0])

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> Any:
        return self._tree.map_structure(lambda array: array[index], self._arrays)


def _dataset(data: Any) -> Any:
    """Return data as `job.batches` takes it: arrays become a dataset."""
    if data is None:
        raise SpecError(
            "brim.keras.fit", got="no data", need="(x, y), or a dataset or DataLoader of torch"
        )
    if not isinstance(data, (tuple, list)):
        _check_samples(data)
        return data
    if not 1 <= len(data) <= 3:
        raise SpecError(
            "brim.keras.fit",
            got=f"data of {len(data)} parts",
            need="inputs, targets and sample weights: (x, y) or (x, y, weights)",
            hint="several inputs are one list or dict: ([x1, x2], y)",
        )
    tree = import_module("keras").tree
    arrays = tree.map_structure(_tensor, tuple(data))
    leaves = tree.flatten(arrays)
    sizes = sorted({len(leaf) for leaf in leaves})
    if len(sizes) > 1:
        raise SpecError(
            "brim.keras.fit",
            got=f"arrays of {' and '.join(map(str, sizes))} samples",
            need="the same number in all of them",
        )
    is_flat = len(leaves) == len(arrays) and all(isinstance(part, torch.Tensor) for part in arrays)
    return TensorDataset(*arrays) if is_flat else _Arrays(arrays)


def _check_samples(data: Any) -> None:
    """Check that entries of data can be samples.

    Raises:
        SpecError: they are Keras' or TensorFlow's batches, or it is one array.
    """
    kind = type(data)
    is_batched = isinstance(data, import_module("keras").utils.PyDataset)
    if is_batched or kind.__module__.partition(".")[0] == "tensorflow":
        need = "samples, since brim makes the batches: arrays, or a dataset or DataLoader of torch"
        hint = "a torch.utils.data.Dataset whose [i] is sample i, (x, y)"
        raise SpecError("brim.keras.fit", got=f"batches of a {kind.__name__}", need=need, hint=hint)
    if isinstance(data, np.ndarray | torch.Tensor):
        raise SpecError(
            "brim.keras.fit", got=f"one {kind.__name__}", need="inputs and targets", hint="(x, y)"
        )


def _tensor(array: Any) -> torch.Tensor:
    """Return an array as a tensor on the host, of Keras' floating-point type where it is one."""
    try:
        tensor = array if isinstance(array, torch.Tensor) else torch.as_tensor(np.asarray(array))
    except TypeError:  # text, or objects
        actual, need = f"an array of {np.asarray(array).dtype}", "arrays of numbers"
        raise SpecError("brim.keras.fit", got=actual, need=need) from None
    if not tensor.ndim:
        raise SpecError(
            "brim.keras.fit", got=repr(array), need="arrays with one entry for each sample"
        )
    if tensor.dtype is torch.float64:
        tensor = tensor.to(getattr(torch, import_module("keras").config.floatx()))
    return tensor.cpu()


def _whole(data: Any) -> tuple[Any, Any]:
    """Return data whose batches come whole, and its collate function where it has none itself."""
    if isinstance(data, DataLoader):
        return with_whole_batches(data), None
    return data, Whole()


# What a model may have ----------------------------------------------------------------------------


def _check_model(model: Any) -> None:
    if is_keras(model):
        check_backend()
    keras = import_module("keras")
    if not isinstance(model, keras.Model):
        raise SpecError(
            "brim.keras.fit", got=f"a {type(model).__name__}", need="a keras.Model, compiled"
        )
    if not model.compiled or model.optimizer is None:
        raise SpecError(
            "brim.keras.fit",
            got="a model that is not compiled",
            need="its loss and its optimizer",
            hint='model.compile(optimizer="adam", loss="mse")',
        )
    for method in ("train_step", "make_train_function", "fit"):
        if getattr(type(model), method) is not getattr(keras.Model, method):
            raise SpecError(
                f"{type(model).__name__}.{method}",
                got="a method of your own",
                need="Keras' own: brim does its work, batch by batch",
                hint="compute_loss() or compute_metrics() of your own, or a loop with brim.join",
            )
    if model.jit_compile:
        raise SpecError(
            "model.compile", got="jit_compile=True", need="passes of torch as they are",
            hint='leave it out, or jit_compile="auto"',
        )  # fmt: skip
    if model.steps_per_execution != 1:
        raise SpecError(
            "model.compile", got=f"steps_per_execution={model.steps_per_execution}", need="1"
        )


def _check_losses(model: Any) -> None:
    """Check that the loss of a step is the mean of those of its micro-batches."""
    compiled = model._compile_loss
    for part in (compiled._flat_losses or ()) if compiled is not None else ():
        reduction = getattr(part.loss, "reduction", None)
        if reduction in _UNMERGED:
            raise SpecError(
                f"loss {part.loss.name!r}",
                got=f"reduction={reduction!r}",
                need="a mean over samples: brim weighs micro-batches by their samples",
                hint='reduction="sum_over_batch_size"; multiply the learning rate if need be',
            )
