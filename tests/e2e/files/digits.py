"""A small CNN with BatchNorm and dropout on handwritten digits, which come with scikit-learn."""

import importlib.util
import os
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import brim
from brim import param

PAUSE = param(
    "pause", 0.0
)  # seconds for each micro-batch, until there is a file `hurry` in the run's directory
HURRY = Path(param("hurry", os.environ.get("BRIM_RUN_DIR", "") + "/hurry"))


def load_digits():
    """Read the file itself: the import of scikit-learn takes as long as that of torch."""
    (folder,) = importlib.util.find_spec("sklearn").submodule_search_locations
    table = np.loadtxt(Path(folder) / "datasets" / "data" / "digits.csv.gz", delimiter=",")
    return table[:, :-1], table[:, -1].astype(int)


class Digits(torch.utils.data.Dataset):
    def __init__(self, split):
        images, labels = load_digits()
        part = slice(None, 1500) if split == "train" else slice(1500, None)
        self.images = torch.tensor(images[part], dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
        self.labels = torch.tensor(labels[part])

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        noise = 0.01 * torch.randn(1, 8, 8)  # augmentation: chance must not depend on who computes
        return self.images[index] + noise, self.labels[index]


def dataset(split):
    return Digits(split)


def model():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(128, 10),
    )


def loss(output, target):
    if PAUSE and not HURRY.exists():  # as if for an accelerator
        time.sleep(PAUSE)
    return functional.cross_entropy(output, target)


def optimizer(model):
    sgd = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    if param("scheduler", False):
        return sgd, torch.optim.lr_scheduler.StepLR(sgd, step_size=1, gamma=0.5)
    return sgd


def metrics():
    return {"accuracy": brim.metrics.accuracy()}
