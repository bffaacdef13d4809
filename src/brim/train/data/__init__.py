"""Readers of tables, `brim.data.csv(...)` and `brim.data.parquet(...)`, and functions that describe columns."""

from brim.train.data.batches import Batched, Tensors, fetch
from brim.train.data.columns import hashed, numeric, target, vocabulary, where
from brim.train.data.datasets import Columnar
from brim.train.data.load import arrow, csv, parquet
from brim.train.data.splits import last, rows, sample

__all__ = [
    "Batched",
    "Columnar",
    "Tensors",
    "arrow",
    "csv",
    "fetch",
    "hashed",
    "last",
    "numeric",
    "parquet",
    "rows",
    "sample",
    "target",
    "vocabulary",
    "where",
]
