"""A model whose state and gradients are recognised wherever they pass: the same bytes, many times."""

import time
from pathlib import Path

import torch
from torch import nn

from brim import param

STATE, GRADIENT = param("state", 1.0), param("gradient", 1.0)
PAUSE, HURRY = param("pause", 0.0), Path(param("hurry", "/nowhere"))


class Marked(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(8, 1)
        self.register_buffer("kept", torch.full((4096,), STATE))
        self.pushed = nn.Parameter(torch.zeros(4096))

    def forward(self, inputs):
        return self.line(inputs) + (self.pushed * GRADIENT).sum()


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 640

    def __getitem__(self, index):
        return torch.full((8,), index / 640), torch.zeros(1)


def dataset(split):
    return Numbers()


def model():
    return Marked()


def loss(output, target):
    if PAUSE and not HURRY.exists():
        time.sleep(PAUSE)
    return (output - target).mean()  # so that each gradient of `pushed` is GRADIENT itself


def optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.01)
