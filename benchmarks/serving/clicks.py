"""The model that is served.
Wide & Deep over 26 fields of 7,692 values, 200,000 rows of dimension 16, and 13 numbers.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from brim import data, models, param
from brim.data.columns import Column

FIELDS, NUMBERS, VALUES = 26, 13, 7_691  # an id more for each field: what is unknown
COLUMNS: list[Column] = [
    *(data.vocabulary(f"C{number}") for number in range(FIELDS)),
    *(data.numeric(f"I{number}", missing=0.0) for number in range(NUMBERS)),
]


def write(path: Path) -> None:
    """A file in which each value of each field occurs once."""
    rng = np.random.default_rng(0)
    names = [
        *(f"C{number}" for number in range(FIELDS)),
        *(f"I{number}" for number in range(NUMBERS)),
        "click",
    ]
    numbers = rng.integers(0, 1000, (VALUES, NUMBERS))
    lines = [
        ",".join([*(value_of(row),) * FIELDS, *map(str, numbers[row]), str(row % 4 // 3)])
        for row in range(VALUES)
    ]
    path.write_text("\n".join([",".join(names), *lines]) + "\n")


def value_of(number: int) -> str:
    """A categorical value, eight letters as Criteo has them."""
    return f"{number * 2654435761 % 2**32:08x}"


@cache
def dataset(split: str) -> data.Columnar | None:
    if split != "train":
        return None
    return data.csv(param("path", ""), columns=COLUMNS, target=data.target("click"))


def model() -> nn.Module:
    train = dataset("train")
    assert train is not None
    return models.WideDeep(
        train.vocabulary_size, train.fields, train.numbers, dim=16, hidden=(256, 128)
    )


def loss(output: Tensor, target: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(output, target)


def optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adagrad(model.parameters(), lr=0.02)
