"""A training file whose data is a stream in shards: it says its samples and shards itself."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from toys import images

import brim


class Files(IterableDataset):
    """Eight files, of which each reader takes its own; none of them can be asked for its length."""

    def __init__(self, pictures):
        self.pictures = pictures

    def __iter__(self):
        info = get_worker_info()
        for number in range(info.id, len(self.pictures), info.num_workers):
            picture, kind = self.pictures[number]
            yield picture + 0.1 * torch.randn(picture.shape), kind


def model():
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4)
    )


def dataset(split):
    size = 120 if split == "train" else 320
    stream = brim.data.stream(Files(images(size)), samples=size, shards=8)
    if brim.param("kind", "plain") == "loader":
        return DataLoader(stream, batch_size=24, num_workers=2)
    return stream


def loss(output, kind):
    return F.cross_entropy(output, kind)


def optimizer(model):
    return torch.optim.Adam(model.parameters(), lr=1e-2)


def metrics():
    return {"accuracy": brim.metrics.accuracy()}
