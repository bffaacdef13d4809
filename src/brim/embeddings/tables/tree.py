"""The tables' part of a job's state: beside the rest, which every worker has for itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from brim.embeddings.tables.table import WEIGHT

TABLES = "tables"
PLACES = "places of tables"  # in the dense part: which optimizer has each, and its number there


def states_of(tree: Mapping[str, Any]) -> list[dict[Any, Any]]:
    """Return each optimizer's states of its parameters, by their numbers."""
    optimizers = tree["optimizer"] if isinstance(tree["optimizer"], list) else [tree["optimizer"]]
    return [optimizer.get("state", {}) for optimizer in optimizers]


def joined(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state without tables: their rows are in weights and optimizers instead.

    The optimizers' states are in new dicts; tensors are not copied.
    """
    weights = dict(tree["model"])
    optimizers = [  # a wrapper around another optimizer may have no "state"
        {**optimizer, "state": dict(optimizer["state"])} if "state" in optimizer else optimizer
        for optimizer in (
            tree["optimizer"] if isinstance(tree["optimizer"], list) else [tree["optimizer"]]
        )
    ]
    for name, table in tree.get(TABLES, {}).items():
        fields: dict[str, Tensor] = dict(table["fields"])
        weights[name] = fields.pop(WEIGHT)
        number, index = table["at"]
        state = optimizers[number]["state"]
        if fields or index in state:
            state[index] = {**state.get(index, {}), **fields}
    optimizer = optimizers if isinstance(tree["optimizer"], list) else optimizers[0]
    rest = {key: value for key, value in tree.items() if key != TABLES}
    return {**rest, "model": weights, "optimizer": optimizer}
