"""Clicks with 140,000 ids, of which a step looks up a few hundred: the embeddings are trained by
rows.
"""

import os
import time
from pathlib import Path

import torch
from torch.nn import functional
from torch.utils.data import TensorDataset

from brim import models, param

PAUSE = param(
    "pause", 0.0
)  # seconds for each micro-batch, until there is a file `hurry` in the run's directory
HURRY = Path(os.environ.get("BRIM_RUN_DIR", "") + "/hurry")
IDS, FIELDS = param("ids", 140_000), 8


class Clicks(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = models.WideDeep(IDS, FIELDS, dim=8, hidden=(16,))

    def forward(self, ids):
        return self.inner({"ids": ids})


def model():
    return Clicks()


def dataset(split):
    torch.manual_seed(len(split))
    ids = (torch.rand(4096 if split == "train" else 512, FIELDS).pow(4) * IDS).long()
    return TensorDataset(ids, (ids.sum(1) % 2).float())


def loss(output, target):
    if PAUSE and not HURRY.exists():
        time.sleep(PAUSE)
    return functional.binary_cross_entropy_with_logits(output, target)


def optimizer(model):
    adagrad = torch.optim.Adagrad(model.parameters(), lr=0.1)
    return adagrad, torch.optim.lr_scheduler.ExponentialLR(adagrad, 0.7)
