"""Who earns more than 50,000 dollars? DeepFM on the Adult census income table, from a Parquet file.

brim train examples/01-first-job/census.py --set path=adult_census.parquet --epochs 3
"""

from functools import cache

import torch
from torch.nn import functional

import brim
from brim import data, models, param
from brim.errors import SpecError

COLUMNS = [
    data.vocabulary("workclass"),
    data.vocabulary("education"),
    data.vocabulary("marital-status"),
    data.vocabulary("occupation"),
    data.vocabulary("relationship"),
    data.vocabulary("race"),
    data.vocabulary("gender"),
    data.vocabulary("native-country"),
    data.vocabulary("education", "occupation", min_count=10),
    data.numeric("age"),
    data.numeric("educational-num"),
    data.numeric("hours-per-week"),
    data.numeric("capital-gain", transform="log"),
    data.numeric("capital-loss", transform="log"),
]


@cache
def dataset(split):
    path = param("path", "")
    if not path:
        hint = "--set path=adult_census.parquet (UCI's Adult data set)"
        raise SpecError("--set path", got="nothing", need="a Parquet file", hint=hint)
    rich = data.target("income", equals=">50K")
    return data.parquet(path, columns=COLUMNS, target=rich, split=split, test=data.sample(0.2))


def model():
    train = dataset("train")
    return models.DeepFM(train.vocabulary_size, train.fields, train.numbers, dim=8, hidden=(64, 32))


def loss(output, target):
    return functional.binary_cross_entropy_with_logits(output, target)


def optimizer(model):
    return torch.optim.Adam(model.parameters(), lr=param("learning_rate", 2e-3), fused=True)


def metrics():
    return {"auc": brim.metrics.auc(), "accuracy": brim.metrics.accuracy()}
