"""Readers of tables, such as `brim.data.csv(...)`; functions that describe their columns, or a
stream.
"""

from brim.train.data.batches import Batched, Tensors, fetch
from brim.train.data.columns import hashed, numeric, target, vocabulary, where
from brim.train.data.datasets import Columnar
from brim.train.data.follow import follow
from brim.train.data.load import arrow, csv, parquet
from brim.train.data.sized_stream import stream
from brim.train.data.splits import last, rows, sample

__all__ = [
    "Batched",
    "Columnar",
    "Tensors",
    "arrow",
    "csv",
    "fetch",
    "follow",
    "hashed",
    "last",
    "numeric",
    "parquet",
    "rows",
    "sample",
    "stream",
    "target",
    "vocabulary",
    "where",
]
