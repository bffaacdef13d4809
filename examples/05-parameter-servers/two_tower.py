"""Which films does a user like? Two towers on MovieLens' 100,000 ratings.

curl -O https://files.grouplens.org/datasets/movielens/ml-100k/u.data
brim train examples/05-parameter-servers/two_tower.py --set path=u.data
"""

from functools import cache

import torch
from ratings import ratings
from torch.nn import functional

import brim
from brim import models, param
from brim.errors import SpecError


@cache
def dataset(split):
    path = param("path", "")
    if not path:
        hint = "--set path=u.data (of https://files.grouplens.org/datasets/movielens/ml-100k/)"
        raise SpecError("--set path", got="nothing", need="MovieLens' file of ratings", hint=hint)
    return ratings(path, split)


def model():
    return models.TwoTower(
        dataset("train").vocabulary_size, user_fields=1, item_fields=1, dim=param("dim", 16)
    )


def loss(output, target):
    return functional.binary_cross_entropy_with_logits(output, target)


def optimizer(model):
    return torch.optim.Adagrad(model.parameters(), lr=param("learning_rate", 0.05))


def metrics():
    return {"auc": brim.metrics.auc(), "log_loss": brim.metrics.log_loss()}
