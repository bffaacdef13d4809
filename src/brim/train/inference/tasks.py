"""Tasks of a trained model: evaluate it, or predict with it.

Made once, from the training file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import numpy as np
from torch import nn
from torch.utils.data import DataLoader, default_collate

from brim.data.datasets import columnar_in
from brim.data.feed import Feed
from brim.domain.batch import Span
from brim.domain.inference import Inference
from brim.domain.job import JobSpec
from brim.errors import SpecError
from brim.train.entry.lightning import LightningFile
from brim.train.entry.training_file import call, check_split, forward_of, size_of
from brim.train.evaluation import Forward, feed_of, observe, outputs, results, undisturbed
from brim.train.inference.job import Task
from brim.train.inference.predictions import (
    PredictedRows,
    check_kept,
    output_columns,
    pack,
    rows_of,
    write_predictions,
)
from brim.train.inference.weights import trained_model
from brim.train.metrics import Metric


def prepare_task(module: ModuleType, spec: JobSpec) -> Task:
    """The task of an inference job: its model with its weights, and its rows.

    Raises:
        SpecError, UserCodeError: the file, the checkpoint or the data will not do.
    """
    inference = spec.inference
    assert inference is not None
    model = trained_model(module, spec)
    dataset = _rows(module, inference)
    if inference.kind == "evaluate":
        metrics = call(lambda: module.metrics()) if hasattr(module, "metrics") else {}
        if not metrics:
            raise SpecError(
                spec.file,
                got="no metrics",
                need="a function metrics() that names some",
                hint='def metrics(): return {"auc": brim.metrics.auc()}',
            )
        feed = feed_of(dataset, seed=spec.seed)
        if feed.is_stream:
            feed_of(dataset, seed=spec.seed).check()  # and what it has begun is left behind
        return _Evaluation(model, feed, spec.seed, forward_of(module), metrics)
    if inference.keep:
        call(lambda: check_kept(dataset.source, inference.keep, Path(inference.output)))
    forward = module.fitting.predict if isinstance(module, LightningFile) else forward_of(module)
    feed = _feed_as_it_lies(dataset, spec.seed)
    return _Prediction(model, feed, spec.seed, forward, getattr(module, "predict", None), inference)


def _feed_as_it_lies(dataset: Any, seed: int) -> Feed:
    """Every row in its place, also where a DataLoader would shuffle them or drop the last ones."""
    collate = None
    if isinstance(dataset, DataLoader):
        collate = None if dataset.collate_fn is default_collate else dataset.collate_fn
        dataset = dataset.dataset
    return Feed(dataset, seed=seed, shuffle=False, collate_fn=collate, loaders=0)


def _rows(module: ModuleType, inference: Inference) -> Any:
    if not inference.input:
        check_split(module, inference.split)
        dataset = call(lambda: module.dataset(inference.split))
        if dataset is None or not size_of(dataset):
            actual = "None" if dataset is None else "no samples"
            raise SpecError(
                f"dataset({inference.split!r})", got=actual, need="a dataset", hint="--split train"
            )
        return dataset
    dataset = call(lambda: module.dataset("train"))
    trained_on = columnar_in(dataset)
    if trained_on is None:
        raise SpecError(
            "--input",
            got=f"a training file whose dataset is a {type(dataset).__name__}",
            need="columns of brim.data, which can be read from other files",
            hint="--split NAME takes the rows of dataset(NAME)",
        )
    return (trained_on.inputs_of if inference.kind == "predict" else trained_on.over)(
        inference.input
    )


@dataclass(frozen=True)
class _OverChunks:
    model: nn.Module
    feed: Feed
    seed: int
    forward: Forward | None

    @property
    def dataset(self) -> Any:
        return self.feed.dataset

    @property
    def samples(self) -> int:
        return self.feed.samples

    def output(self, chunk: int, span: Span) -> tuple[Any, Any, Any]:
        """The model's output for one chunk, its target, and its inputs.

        No chunk sees a buffer as another left it.
        """
        with undisturbed(self.model):
            return next(
                outputs(
                    self.model, self.feed, [(chunk, span)], forward=self.forward, seed=self.seed
                )
            )


@dataclass(frozen=True)
class _Evaluation(_OverChunks):
    metrics: Mapping[str, Metric]

    def compute(self, chunk: int, span: Span) -> bytes:
        return msgspec.msgpack.encode(observe(self.metrics, *self.output(chunk, span)))

    def finish(self, chunks: Iterator[bytes], *, job: str) -> dict[str, float]:
        return results(self.metrics, [msgspec.msgpack.decode(chunk) for chunk in chunks])


@dataclass(frozen=True)
class _Prediction(_OverChunks):
    function: Callable[[Any], Any] | None
    wanted: Inference

    def compute(self, chunk: int, span: Span) -> bytes:
        output, _, _ = self.output(chunk, span)
        columns = output_columns(output, self.function, len(span))
        for name in self.wanted.keep:
            if name in (*columns, "row"):
                raise SpecError(
                    "--keep", got=repr(name), need="a name that the predictions do not have"
                )
        return pack(columns)

    def finish(self, chunks: Iterator[bytes], *, job: str) -> dict[str, float]:
        rows = (
            rows_of(self.dataset, keep=self.wanted.keep)
            if self.wanted.input
            else [PredictedRows(self.samples, np.arange(self.samples))]
        )
        write_predictions(Path(self.wanted.output), rows, chunks, job=job)
        return {}
