"""Digits, with a mistake at `where`, in the worker w2 alone or, where BRIM_TEST_BAD_HOST is set, on
one host.
"""

import os
import sys
from pathlib import Path

import digits
import torch
from digits import Digits
from torch.nn import functional

from brim import param

WHERE = param("where", "")
ON_HOST = param("on_host", False)


def mistake(where):
    is_bad_host = Path("/proc/self/comm").read_text().strip() == "brim-w2"
    if ON_HOST:
        is_bad_host = "BRIM_TEST_BAD_HOST" in os.environ
    if where != WHERE or not is_bad_host:
        return
    if where == "exit":
        sys.exit("the user's own exit")
    raise ZeroDivisionError("the user's own mistake")


class Careless(Digits):
    def __getitem__(self, index):
        mistake("getitem")
        return super().__getitem__(index)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = digits.model()

    def forward(self, inputs):
        mistake("forward" if self.training else "evaluation")
        return self.inner(inputs)


class Optimizer(torch.optim.SGD):
    def step(self, closure=None):
        mistake("optimizer")
        return super().step(closure)


class Scheduler(torch.optim.lr_scheduler.StepLR):
    def step(self, epoch=None):
        mistake("scheduler")
        super().step(epoch)


class Accuracy:
    def observe(self, output, target):
        mistake("metric")
        return b"1"

    def result(self, states):
        mistake("result")
        return 1.0


def dataset(split):
    return Careless(split)


def model():
    return Model()


def loss(output, target):
    mistake("loss")
    mistake("exit")
    return functional.cross_entropy(output, target)


def optimizer(model):
    adam = Optimizer(model.parameters(), lr=0.05)
    return adam, Scheduler(adam, step_size=1), "step"


def metrics():
    return {"accuracy": Accuracy()}
