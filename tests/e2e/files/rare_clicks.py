"""Clicks, of which a few in a hundred are positive; a tenth of the negatives is trained on."""

from functools import cache

import torch
from torch.nn import functional

import brim
from brim import data, models, param

NEGATIVES = param("negatives", 0.1)


@cache
def dataset(split):
    return data.csv(
        param("path", "clicks.csv"),
        columns=[data.vocabulary("user"), data.vocabulary("item"), data.numeric("hour")],
        target=data.target("click"),
        split=split,
        test=data.last(0.25),
        negatives=data.sample(NEGATIVES) if NEGATIVES < 1 else None,
    )


def model():
    train = dataset("train")
    deep = models.WideDeep(train.vocabulary_size, train.fields, train.numbers, dim=4, hidden=(8,))
    return models.Calibrated(deep, train.negatives)


def loss(output, target):
    return functional.binary_cross_entropy_with_logits(output, target)


def optimizer(model):
    return torch.optim.Adam(model.parameters(), lr=param("learning_rate", 0.01))


def predict(output):
    return {"probability": torch.sigmoid(output)}


def metrics():
    return {"log_loss": brim.metrics.log_loss(), "auc": brim.metrics.auc()}
