"""Which digit is it?

A small convolutional network with BatchNorm, and dropout if asked for, on MNIST.

    brim train examples/01-first-job/mnist.py --set path=folder --set dropout=0.25

The folder holds a pair of idx files, for instance t10k-images-idx3-ubyte.gz and
t10k-labels-idx1-ubyte.gz. The last tenth of the images is the test split.
"""

import gzip
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

import brim
from brim import data, models, param
from brim.errors import SpecError


def idx(pattern):
    """The array in an idx file: two zeros, a type, the number of dimensions, their sizes, the
    bytes.
    """
    folder = Path(param("path", ""))
    found = sorted(folder.glob(pattern))
    if not param("path", "") or not found:
        hint = "--set path=folder (with t10k-images-idx3-ubyte.gz and t10k-labels-idx1-ubyte.gz)"
        raise SpecError(
            "--set path",
            got=f"no {pattern} in {folder}",
            need="a folder of MNIST's files",
            hint=hint,
        )
    content = gzip.decompress(found[-1].read_bytes())
    sizes = np.frombuffer(content, ">i4", content[3], 4)
    return torch.from_numpy(
        np.frombuffer(content, np.uint8, offset=4 + 4 * len(sizes)).reshape(sizes).copy()
    )


@cache
def dataset(split):
    images, labels = idx("*images-idx3-ubyte.gz"), idx("*labels-idx1-ubyte.gz")
    cut = len(labels) - len(labels) // 10
    rows = slice(cut) if split == "train" else slice(cut, None)
    return data.Tensors((images[rows, None] / 255 - 0.13) / 0.31, labels[rows].long())


def model():
    return models.SmallCNN(dropout=param("dropout", 0.0))


loss = functional.cross_entropy


def optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=param("learning_rate", 0.05), momentum=0.9)


def metrics():
    return {"accuracy": brim.metrics.accuracy(), "log_loss": brim.metrics.log_loss()}
