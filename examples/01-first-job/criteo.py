"""Which advertisements are clicked?

Wide & Deep, DeepFM, xDeepFM, DCN-V2 or FinalMLP on a sample of Criteo's display logs.

    brim train examples/01-first-job/criteo.py --set path=dac_sample.txt --set model=deepfm

The file has no header: label, I1 to I13, C1 to C26, separated by tabs. The last tenth is the test
split.
"""

from functools import cache

import numpy as np
import torch
from torch.nn import functional

import brim
from brim import data, models, param
from brim.errors import SpecError

COUNTS = [f"I{number}" for number in range(1, 14)]
CATEGORIES = [f"C{number}" for number in range(1, 27)]
MODELS = {
    "wide_deep": "WideDeep",
    "deepfm": "DeepFM",
    "xdeepfm": "XDeepFM",
    "dcn_v2": "DCNV2",
    "final_mlp": "FinalMLP",
}


def log_squared(count):
    """Small counts as they are, larger ones as 1000 + floor(ln(count)²): the usual preparation."""
    return np.where(count > 2, 1000 + np.floor(np.log(np.maximum(count, 1)) ** 2), count)


COLUMNS = [
    *(data.vocabulary(name, by=log_squared, min_count=4) for name in COUNTS),
    *(data.vocabulary(name, min_count=4) for name in CATEGORIES),
]
CLICK = data.target("label")


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
    name, train = param("model", "wide_deep"), dataset("train")
    if name not in MODELS:
        raise SpecError("--set model", got=name, need=", ".join(MODELS))
    return getattr(models, MODELS[name])(
        train.vocabulary_size, train.fields, dim=16, hidden=(256, 128)
    )


def loss(output, target):
    return functional.binary_cross_entropy_with_logits(output, target)


def optimizer(model):
    return torch.optim.Adam(model.parameters(), lr=param("learning_rate", 1e-3), fused=True)


def metrics():
    return {"auc": brim.metrics.auc(), "log_loss": brim.metrics.log_loss()}
