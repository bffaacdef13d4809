"""One's own loop over the kinds of data of PyTorch users.

`python own_data.py loader|weighted|stream`.
"""

import random
import sys

import torch
from torch.nn import functional
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    WeightedRandomSampler,
    default_collate,
)

import brim

SIZE = 400


def sample(index):
    """A point near the circle of its class; chance moves it."""
    angle = torch.tensor(index * 0.7)
    point = (1 + index % 2) * torch.stack([angle.cos(), angle.sin()])
    return {"point": point + 0.1 * torch.randn(2), "weight": random.random(), "class": index % 2}


class Points(Dataset):
    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        return sample(index)


class Stream(IterableDataset):
    def __len__(self):
        return SIZE

    def __iter__(self):
        yield from map(sample, range(SIZE))


def collate(samples):
    batch = default_collate(samples)
    return batch | {"point": batch["point"] + 0.1 * torch.randn_like(batch["point"])}


def data(kind):
    if kind == "stream":
        return DataLoader(Stream(), batch_size=32)
    if kind == "weighted":
        sampler = WeightedRandomSampler(torch.arange(SIZE) + 1.0, SIZE)
        return DataLoader(Points(), batch_size=32, sampler=sampler)
    return DataLoader(
        Points(), batch_size=32, shuffle=True, drop_last=True, collate_fn=collate, num_workers=2
    )


torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Dropout(0.1), torch.nn.Linear(16, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
job = brim.join(model, optimizer)
for batch in job.batches(data(sys.argv[1]), epochs=4):
    loss = functional.cross_entropy(
        model(batch.inputs["point"]), batch.inputs["class"], reduction="none"
    )
    job.step((loss * batch.inputs["weight"]).mean())
if job.rank == 0:
    print("weights", brim.weights_sha256(model))
