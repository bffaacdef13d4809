"""A run that has checkpoints, made without training: weights of any step are drawn by chance."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from brim.data import fitted
from brim.domain.inference import Inference
from brim.domain.job import JobSpec, WorkerRange
from brim.storage.checkpoints import Checkpoint, Store
from brim.storage.file_stores import open_place
from brim.train.context import shared_environment
from brim.train.entry.training_file import load
from brim.train.state.checkpoint import Image

ROWS = 400
FILE = """
import numpy as np
import torch
from functools import cache
from torch import nn
from brim import data, param

COLUMNS = [
    data.vocabulary("color", min_count=2{by}),
    data.hashed("word", buckets=9000),
    data.numeric("size", transform="log", missing="mean"),
    data.numeric("price"),
]


@cache
def dataset(split):
    return data.csv(param("path", ""), columns=COLUMNS, target=data.target("sold"), split=split, test=data.last(0.1))


class Model(nn.Module):
    def __init__(self, ids, fields, numbers):
        super().__init__()
        self.rows = nn.Embedding(ids, 8)
        self.head = nn.Sequential(nn.Linear(8 * fields + numbers, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, inputs):
        rows = self.rows(inputs["ids"]).flatten(1)
        logit = self.head(torch.cat([rows, inputs["numbers"]], 1)).squeeze(1)
        {branch}
        return logit


def model():
    train = dataset("train")
    return Model(train.vocabulary_size, train.fields, train.numbers)


def predict(output):
    return {{"sold": output.sigmoid()}}
"""
TRACED = FILE.format(by="", branch="")
WITH_FUNCTION = FILE.format(by=", by=lambda number: np.floor(number / 2)", branch="")
UNTRACED = FILE.format(by="", branch="logit = logit if logit.sum() > 0 else logit * 1.0")


def write_rows(path: Path, *, colors: bool = True) -> None:
    generator = torch.Generator().manual_seed(3)
    lines = ["color,word,size,price,sold"]
    for row in range(ROWS):
        color = int(torch.randint(0, 30, (), generator=generator))
        size = "" if row % 7 == 0 else f"{row % 13}"
        lines.append(
            f"{f'c{color}' if colors else color},w{row * 37 % 91},{size},{row / 8},{row % 2}"
        )
    path.write_text("\n".join(lines) + "\n")


@contextmanager
def as_before() -> Iterator[None]:
    """Undo the changes of exporting and serving to a whole process: variables, the import path and
    fitted columns.
    """
    environment, path, fits = dict(os.environ), list(sys.path), fitted._in_use
    fitted._in_use = None
    try:
        yield
    finally:
        fitted._in_use = fits
        os.environ.clear()
        os.environ |= environment
        sys.path[:] = path


@as_before()
def run_of(folder: Path, source: str, *, steps: tuple[int, ...]) -> JobSpec:
    """Make a run with a checkpoint of each step.

    A step changes a few rows of the embedding and the rest of the network.

    Returns:
        The spec of a job that uses the last one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file, rows = folder / "file.py", folder / "rows.csv"
    file.write_text(source)
    write_rows(rows, colors="np.floor" not in source)
    run = folder / "run"
    run.mkdir()
    spec = JobSpec(
        file=str(file),
        command=(),
        parameters={"path": str(rows)},
        workers=WorkerRange(minimum=1, maximum=1),
        inference=Inference(
            kind="predict",
            run=str(run),
            checkpoints=str(run / "checkpoints"),
            step=steps[-1],
            checkpoint=f"step {steps[-1]}",
        ),
    )
    os.environ |= shared_environment(spec, str(run))
    module = load(str(file))
    dataset = module.dataset("train")
    assert not hasattr(dataset, "_read")
    os.environ["BRIM_RUN_DIR"] = ""
    model: Any = module.model()
    store = Store(open_place(str(run / "checkpoints")))
    for step in steps:
        torch.manual_seed(step)
        with torch.no_grad():
            model.rows.weight[torch.randperm(len(model.rows.weight))[:50]] += 1.0
            for tensor in model.head.parameters():
                tensor += 0.1 * torch.randn_like(tensor)
        image = Image()
        tree = image.take(
            {"model": dict(model.state_dict()), "optimizer": {"state": {}, "param_groups": []}}
        )
        checkpoint = Checkpoint(step=step, tree=tree, versions={}, data=bytes(image.data))
        store.publish(store.draft(checkpoint, writer="w0"))
    assert (run / fitted.COLUMNS).exists()
    return spec
