"""Click models over a large table, or over one of hashed ids."""

import os
import time
from functools import cache, partial
from pathlib import Path

import torch
from torch.nn import functional

import brim
from brim import data, models, param

BUCKETS = param("buckets", 70_000)  # 70,000 rows of 16 are trained by rows
# Seconds for each micro-batch, until there is a file `hurry` in the run's directory.
PAUSE = param("pause", 0.0)
HURRY = Path(os.environ.get("BRIM_RUN_DIR", "") + "/hurry")
KINDS = {"din": models.DIN, "dcn_v2": models.DCNV2}
TABLES = {
    "whole": None,
    "keyed": partial(brim.Embedding, limit=4000, init="normal", admit_after=2, expire_after=40),
}
OPTIMIZERS = {
    "adagrad": partial(torch.optim.Adagrad, lr=0.05),
    "adam": partial(torch.optim.Adam, lr=0.005),
}


@cache
def dataset(split):
    return data.csv(
        param("path", "clicks.csv"),
        columns=[
            data.hashed("user", buckets=BUCKETS),
            data.hashed("film", buckets=BUCKETS),
            data.sequence("history", of="film", length=4),
            data.numeric("hour"),
        ],
        target=data.target("click"),
        split=split,
        test=data.last(0.2),
    )


def model():
    train = dataset("train")
    return KINDS[param("model", "din")](
        train.vocabulary_size,
        train.fields,
        train.numbers,
        hidden=(16,),
        sequences=train.sequences,
        table=TABLES[param("table", "whole")],
    )


def loss(output, target):
    if PAUSE and not HURRY.exists():
        time.sleep(PAUSE)
    return functional.binary_cross_entropy_with_logits(output, target)


def optimizer(model):
    return OPTIMIZERS[param("optimizer", "adagrad")](model.parameters())


def predict(output):
    return {"probability": torch.sigmoid(output)}


def metrics():
    return {"auc": brim.metrics.auc()}
