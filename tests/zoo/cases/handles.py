"""Records of files that a dataset opens once, in `__init__`, and reads by position."""

import os
import sqlite3
import tempfile
import zipfile

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

from brim import param

SIZE, LONG = 120, 4096


def make(kind, path):
    records = np.random.default_rng(0).standard_normal((SIZE, LONG)).astype(np.float32)
    if kind == "file":
        records.tofile(path)
    elif kind == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            for number, record in enumerate(records):
                archive.writestr(str(number), record.tobytes())
    elif kind == "npz":
        np.savez(path, **{str(number): record for number, record in enumerate(records)})
    else:
        rows = sqlite3.connect(path)
        rows.execute("create table rows (number integer primary key, record blob)")
        values = [(number, record.tobytes()) for number, record in enumerate(records)]
        rows.executemany("insert into rows values (?, ?)", values)
        rows.commit()
        rows.close()


class Records(Dataset):
    def __init__(self, kind):
        self.kind = kind
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "records.npz")
            make(kind, path)
            if kind == "file":
                self.opened = open(path, "rb")  # noqa: SIM115 - as datasets do
            elif kind == "zip":
                self.opened = zipfile.ZipFile(path)
            elif kind == "npz":
                self.opened = np.load(path)
            else:
                self.opened = sqlite3.connect(path)
                self.read(0)

    def __len__(self):
        return SIZE

    def read(self, number):
        if self.kind == "file":
            self.opened.seek(number * LONG * 4)
            return self.opened.read(LONG * 4)
        if self.kind == "zip":
            return self.opened.read(str(number))
        if self.kind == "npz":
            return self.opened[str(number)].tobytes()
        query = "select record from rows where number = ?"
        return self.opened.execute(query, (number,)).fetchone()[0]

    def __getitem__(self, number):
        record = np.frombuffer(self.read(number), np.float32)[:16]
        return torch.from_numpy(record.copy()), torch.tensor(float(record.sum() > 0))


def model():
    return nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 1), nn.Flatten(0))


def dataset(split):
    return Records(param("kind", "file")) if split == "train" else None


def loss(output, target):
    return functional.binary_cross_entropy_with_logits(output, target)


def optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)
