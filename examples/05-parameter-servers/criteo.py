"""Which advertisements are clicked?

Wide & Deep, DeepFM, xDeepFM, DCN-V2 or FinalMLP over a table of as many rows as you say.

    brim train examples/05-parameter-servers/criteo.py --set path=dac_sample.txt --set model=deepfm
    --set rows=1000000

The file has no header: label, I1 to I13, C1 to C26, separated by tabs. The last tenth is the test
split. Nothing is fitted to the rows: each value of a field is hashed, and what is left when the
hash is divided by `rows` is its row of the table.
"""

from functools import cache

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import brim
from brim import data, models, param
from brim.errors import SpecError

COUNTS = [f"I{number}" for number in range(1, 14)]
CATEGORIES = [f"C{number}" for number in range(1, 27)]
MODELS = {
    "wide_deep": models.WideDeep,
    "deepfm": models.DeepFM,
    "xdeepfm": models.XDeepFM,
    "dcn_v2": models.DCNV2,
    "final_mlp": models.FinalMLP,
}
BUCKETS = 50_000_017  # of each field: so many that few values meet before they share the table


def log_squared(count):
    """Small counts as they are, larger ones as 1000 + floor(ln(count)²): the usual preparation."""
    return np.where(count > 2, 1000 + np.floor(np.log(np.maximum(count, 1)) ** 2), count)


COLUMNS = [
    *(data.hashed(name, buckets=BUCKETS, by=log_squared) for name in COUNTS),
    *(data.hashed(name, buckets=BUCKETS) for name in CATEGORIES),
]
CLICK = data.target("label")


class Hashed(nn.Module):
    """A click model whose ids are the rows of one table, which all fields share."""

    def __init__(self, inner, rows):
        super().__init__()
        self.inner, self.rows = inner, rows

    def forward(self, inputs):
        return self.inner({"ids": inputs["ids"] % self.rows})


@cache
def dataset(split):
    path = param("path", "")
    if not path:
        hint = "--set path=dac_sample.txt (Criteo's display advertising sample)"
        raise SpecError(
            "--set path", got="nothing", need="a file of 40 columns separated by tabs", hint=hint
        )
    names = ["label", *COUNTS, *CATEGORIES]
    return data.csv(
        path,
        names=names,
        delimiter="\t",
        columns=COLUMNS,
        target=CLICK,
        split=split,
        test=data.last(0.1),
    )


def model():
    name, rows = param("model", "wide_deep"), param("rows", 200_000)
    if name not in MODELS:
        raise SpecError("--set model", got=name, need=", ".join(MODELS))
    return Hashed(MODELS[name](rows, dataset("train").fields, dim=16, hidden=(256, 128)), rows)


def loss(output, target):
    return functional.binary_cross_entropy_with_logits(output, target)


def optimizer(model):
    # Adagrad moves only the rows that a step looks up: so the table is trained by rows.
    return torch.optim.Adagrad(model.parameters(), lr=param("learning_rate", 0.02))


def metrics():
    return {"auc": brim.metrics.auc(), "log_loss": brim.metrics.log_loss()}
