"""brim: elastic training that fills a cluster to the brim.

Importing this package does not import torch: the names that need it are looked up on first use.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

# public name -> the module that has it ("" where the name is a module itself)
_LAZY = {
    "Client": "brim.client",
    "Embedding": "brim.embeddings.keyed",
    "Run": "brim.runs.run",
    "data": "brim",
    "join": "brim.train.entry.join",
    "keras": "brim",
    "lightning": "brim",
    "metrics": "brim.train",
    "models": "brim",
    "param": "brim.train.params",
    "progress": "brim.wire.reporting",
    "run": "brim.runs.verbs",
    "stopping": "brim.train.entry.stopping",
    "submit": "brim.runs.verbs",
    "train": "brim",  # a package that can be called, see there
    "transformers": "brim",
    "weights_sha256": "brim.train.state.transfer",
    "xgboost": "brim",
}

__all__ = ["__version__", *_LAZY]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'brim' has no attribute {name!r}")
    home = _LAZY[name]
    if home == "brim.train" or home == "brim":
        return importlib.import_module(f"{home}.{name}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
