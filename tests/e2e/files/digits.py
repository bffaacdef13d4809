"""A small CNN with BatchNorm and dropout on scikit-learn's handwritten digits: real data that is
always there.
"""

import os
import time
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

import brim
from brim import param

PAUSE = param(
    "pause", 0.0
)  # seconds for each micro-batch, until there is a file `hurry` in the run's directory
HURRY = Path(param("hurry", os.environ.get("BRIM_RUN_DIR", "") + "/hurry"))


class Digits(torch.utils.data.Dataset):
    def __init__(self, split):
        images, labels = load_digits(return_X_y=True)
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
    made = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    if param("scheduler", False):
        return made, torch.optim.lr_scheduler.StepLR(made, step_size=1, gamma=0.5)
    return made


def metrics():
    return {"accuracy": brim.metrics.accuracy()}
