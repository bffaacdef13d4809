"""Readers of tables, such as `brim.data.csv(...)`, and descriptions of columns or streams."""

from brim.data.batches import Batched, Tensors, fetch
from brim.data.columns import hashed, numeric, sequence, target, vocabulary, where
from brim.data.datasets import Columnar
from brim.data.follow import follow
from brim.data.load import arrow, csv, libffm, libsvm, parquet
from brim.data.sized_stream import stream
from brim.data.splits import last, rows, sample

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
    "libffm",
    "libsvm",
    "numeric",
    "parquet",
    "rows",
    "sample",
    "sequence",
    "stream",
    "target",
    "vocabulary",
    "where",
]
