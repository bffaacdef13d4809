"""Will a user like this film? A model that looks at the films that the user liked before.

curl -O https://files.grouplens.org/datasets/movielens/ml-100k/u.data
python examples/05-parameter-servers/histories.py u.data histories.parquet
brim train examples/05-parameter-servers/din.py --set path=histories.parquet --epochs 2
"""

from functools import cache

import torch
from torch.nn import functional

import brim
from brim import data, models, param
from brim.errors import SpecError

COLUMNS = [
    data.vocabulary("user"),
    data.vocabulary("film"),
    data.sequence("history", of="film", length=param("length", 20)),
]
MODELS = {"din": models.DIN, "dcn_v2": models.DCNV2, "final_mlp": models.FinalMLP}


@cache
def dataset(split):
    path = param("path", "")
    if not path:
        hint = "--set path=histories.parquet, which histories.py writes"
        raise SpecError("--set path", got="nothing", need="ratings with histories", hint=hint)
    target = data.target("liked")
    return data.parquet(path, columns=COLUMNS, target=target, split=split, test=data.last(0.1))


def model():
    name, train = param("model", "din"), dataset("train")
    if name not in MODELS:
        raise SpecError("--set model", got=name, need=", ".join(MODELS))
    return MODELS[name](
        train.vocabulary_size, train.fields, sequences=train.sequences, hidden=(64, 32)
    )


def loss(output, target):
    return functional.binary_cross_entropy_with_logits(output, target)


def optimizer(model):
    return torch.optim.Adagrad(model.parameters(), lr=param("learning_rate", 0.02))


def metrics():
    def user(inputs):
        return inputs["ids"][:, 0]

    return {
        "auc": brim.metrics.auc(),
        "gauc": brim.metrics.group_auc(user),
        "log_loss": brim.metrics.log_loss(),
    }
