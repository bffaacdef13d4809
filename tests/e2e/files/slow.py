"""Digits, with workers that a file in the run's directory makes slow: they sleep in every forward
pass.
"""

import os
import time
from pathlib import Path

import torch
from digits import dataset, loss, metrics, optimizer  # noqa: F401
from digits import model as digits_model

from brim import param

PAUSE = param("pause", 0.01)  # seconds that everybody sleeps, so that nobody waits for a core
BAD = param(
    "bad_after", 0
)  # forward passes after which a worker dies, where BRIM_TEST_BAD_HOST is set
passes = 0


def slowness():
    """How long this process sleeps on top: as the file `slow-w2` says, for the worker w2."""
    worker = Path("/proc/self/comm").read_text().strip().removeprefix("brim-")
    file = Path(os.environ["BRIM_RUN_DIR"]) / f"slow-{worker}"
    return float(file.read_text()) if file.exists() else 0.0


class Slow(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = digits_model()

    def forward(self, inputs):
        global passes
        passes += self.training
        if BAD and passes > BAD and "BRIM_TEST_BAD_HOST" in os.environ:
            os._exit(7)
        time.sleep(PAUSE + slowness())
        return self.inner(inputs)


def model():
    return Slow()
