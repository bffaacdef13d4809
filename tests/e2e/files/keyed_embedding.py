"""Clicks whose ids are hashes: rows come to be by their first update."""

import os
import time
from pathlib import Path

import torch
from torch.nn import functional
from torch.utils.data import TensorDataset

import brim

FIELDS = 8
MANY = brim.param(
    "many", 0
)  # rows of one more embedding, at most; samples with the same first id share them
PAUSE = brim.param(
    "pause", 0.0
)  # seconds for each micro-batch, until there is a file `hurry` in the run's directory
HURRY = Path(os.environ.get("BRIM_RUN_DIR", "") + "/hurry")
OPTIMIZERS = {
    "adagrad": lambda weights: torch.optim.Adagrad(weights, lr=0.05),
    "adam": lambda weights: torch.optim.Adam(weights, lr=0.01),
    "adamw": lambda weights: torch.optim.AdamW(weights, lr=0.01, weight_decay=0, amsgrad=True),
    "momentum": lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9),
    "rmsprop": lambda weights: torch.optim.RMSprop(weights, lr=0.003, momentum=0.5, centered=True),
}


class Clicks(torch.nn.Module):
    def __init__(self):
        super().__init__()
        rules = {
            "admit_after": brim.param("admit_after", 1),
            "expire_after": brim.param("expire_after", 0) or None,
        }
        self.deep = brim.Embedding(8, limit=brim.param("limit", 20_000), init="normal", **rules)
        self.wide = brim.Embedding(1, limit=20_000, init="zeros")
        self.many = brim.Embedding(1, limit=MANY + 20_000, **rules) if MANY else None
        self.out = torch.nn.Sequential(
            torch.nn.Linear(8 * FIELDS, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)
        )

    def forward(self, ids):
        output = (self.out(self.deep(ids).flatten(1)) + self.wide(ids).sum(1)).squeeze(1)
        if self.many is None:
            return output
        keys = ids[:, :1] + torch.arange(MANY // 4096)
        return output + self.many(keys).sum(1)[:, 0]


def model():
    return Clicks()


def dataset(split):
    torch.manual_seed(len(split))
    numbers = (torch.rand(4096 if split == "train" else 512, FIELDS).pow(4) * 20_000).long()
    ids = (numbers * 0x1E3779B97F4A7C15) & ((1 << 63) - 1)
    return TensorDataset(ids, (numbers.sum(1) % 2).float())


def loss(output, target):
    if PAUSE and not HURRY.exists():
        time.sleep(PAUSE)
    return functional.binary_cross_entropy_with_logits(output, target)


def optimizer(model):
    name = brim.param("optimizer", "adagrad")
    return OPTIMIZERS[name](model.parameters())


def metrics():
    return {"log_loss": brim.metrics.log_loss()}
