"""A network of 8 MB. A worker whose pid is in the file `die` of its host's folder is killed when
half of its backward pass is done.
"""

import os
import signal
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from brim import param

PAUSE = param("pause", 0.0)  # seconds for each micro-batch, until there is a file `hurry`
FOLDERS = Path(param("folders", ""))  # where those of the hosts are, of which each sees its own
WIDTH = 700


class Deadly(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values):
        return values.view_as(values)

    @staticmethod
    def backward(ctx, gradient):
        if is_to_die():
            os.kill(os.getpid(), signal.SIGKILL)
        return gradient


def is_to_die():
    return any(file.read_text() == str(os.getpid()) for file in FOLDERS.glob("host-*/die"))


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(10, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
        self.last = nn.Sequential(
            *(nn.Sequential(nn.ReLU(), nn.Linear(WIDTH, WIDTH)) for _ in range(3)),
            nn.Linear(WIDTH, 2),
        )

    def forward(self, inputs):
        return self.last(Deadly.apply(self.first(inputs)))


def model():
    return Network()


def dataset(split):
    torch.manual_seed(len(split))
    inputs = torch.randn(2048 if split == "train" else 64, 10)
    return TensorDataset(inputs, (inputs.sum(1) > 0).long())


def loss(output, target):
    if PAUSE and not any(FOLDERS.glob("host-*/hurry")):
        time.sleep(PAUSE)
    return functional.cross_entropy(output, target)


def optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
