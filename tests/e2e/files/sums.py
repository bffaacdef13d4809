"""A loss whose gradients depend on no parameter: the sum of all batches is the same in any order,
to the bit.

With `--set deaths=3,17` the worker dies that is about to make these steps: its rows are written,
and nothing counts.
"""

import os
import signal
import time
from pathlib import Path

import torch
from torch.utils.data import TensorDataset

import brim

ROWS, FIELDS = 512, 4
PAUSE = brim.param(
    "pause", 0.0
)  # seconds for each batch, until there is a file `hurry` in the run's directory
DIRECTORY = os.environ.get("BRIM_RUN_DIR", "")
DEATHS = {int(step) for step in brim.param("deaths", "").split(",") if step}


class Sums(torch.nn.Module):
    def __init__(self):
        super().__init__()
        if brim.param("keyed", False):
            self.rows = brim.Embedding(8, limit=2 * ROWS, init="zeros")
        else:
            self.rows = torch.nn.Embedding(ROWS, 8, sparse=True)
        self.inner = torch.nn.Linear(8, 1)
        for parameter in (*self.rows.parameters(), *self.inner.parameters()):
            torch.nn.init.zeros_(parameter)

    def forward(self, ids):
        return self.rows(ids).sum((1, 2)) + self.inner(
            (ids[:, :1] % 8).expand(-1, 8).float()
        ).squeeze(1)


def model():
    return Sums()


def dataset(split):
    torch.manual_seed(0)
    ids = torch.randint(0, ROWS, (2048, FIELDS))
    return TensorDataset(ids, torch.zeros(len(ids)))


def loss(output, target):
    if PAUSE and not Path(DIRECTORY, "hurry").exists():
        time.sleep(PAUSE)
    return output.mean()


def rate(step):
    """Of each step: powers of two, so that nothing is rounded."""
    if step in DEATHS and DIRECTORY:
        mark = Path(DIRECTORY) / f"death-{step}"
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
    return 1.0


def optimizer(model):
    sgd = torch.optim.SGD(model.parameters(), lr=1.0)
    return sgd, torch.optim.lr_scheduler.LambdaLR(sgd, rate), "step"
