"""What people iterate over: loaders with samplers and collate_fn, streams, dicts, tuples, plain
lists.
"""

import sys

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    WeightedRandomSampler,
    get_worker_info,
)
from toys import images

import brim

KIND = sys.argv[1]
pictures, labels = images({"ragged": 125, "few": 20}.get(KIND, 120)).tensors


class Dicts(Dataset):
    def __len__(self):
        return len(labels)

    def __getitem__(self, index):
        sample = {"image": pictures[index], "label": labels[index]}
        if KIND == "three_keys":
            sample["meta"] = {"index": index, "name": f"picture {index}"}
        return sample


class Triples(Dicts):
    def __getitem__(self, index):
        return pictures[index], labels[index], torch.tensor(0.5 + index % 2)


class Lengths(Dicts):
    """Sequences of different lengths, which only a collate_fn can put together."""

    def __getitem__(self, index):
        return {"image": pictures[index].flatten()[: 40 + index % 24], "label": labels[index]}


class Stream(IterableDataset):
    """Shards its files as PyTorch's documentation shows."""

    def __iter__(self):
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        for index in range(first, len(labels), step):
            yield {"image": pictures[index], "label": labels[index]}


class Deaf(Stream):
    """Does not ask which part it is to read."""

    def __iter__(self):
        yield from Dicts()


def padded(samples):
    image = torch.zeros(len(samples), 64)
    for row, sample in zip(image, samples, strict=True):
        row[: len(sample["image"])] = sample["image"]
    return {"image": image, "label": torch.stack([sample["label"] for sample in samples])}


DATA = {
    "dicts": Dicts,
    "few": Dicts,
    "three_keys": Dicts,
    "triples": Triples,
    "list": lambda: [
        {"image": picture, "label": label} for picture, label in zip(pictures, labels, strict=True)
    ],
    "loader": lambda: DataLoader(Dicts(), batch_size=24, shuffle=True, num_workers=2),
    "collate": lambda: DataLoader(Lengths(), batch_size=24, shuffle=True, collate_fn=padded),
    "weighted": lambda: DataLoader(
        Dicts(), batch_size=24, sampler=WeightedRandomSampler((labels + 1.0).tolist(), 120)
    ),
    "in_order": lambda: DataLoader(Dicts(), batch_size=24, shuffle=False),
    "ragged": lambda: DataLoader(Dicts(), batch_size=24),
    "drop_last": lambda: DataLoader(Dicts(), batch_size=25, shuffle=True, drop_last=True),
    "stream": lambda: DataLoader(Stream(), batch_size=24),
    "shards": lambda: DataLoader(Stream(), batch_size=24, num_workers=2),
    "deaf_shards": lambda: DataLoader(Deaf(), batch_size=24),
    "endless": lambda: DataLoader(Stream(), batch_size=24),
    "own_batches": lambda: ((pictures[i : i + 24], labels[i : i + 24]) for i in range(0, 120, 24)),
}
torch.manual_seed(0)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
data = DATA[KIND]()
size = {} if isinstance(data, DataLoader) else {"global_batch_size": 24}
if KIND in ("stream", "shards", "deaf_shards"):
    size["samples"] = 120  # it cannot say how many it has
if "shards" in KIND:
    size["shards"] = 8

job = brim.join(model, optimizer)
for batch in job.batches(data, epochs=2, **size):
    if KIND == "triples":
        image, label, weight = batch.inputs
        losses = F.cross_entropy(model(image), label, reduction="none")
        job.step((losses * weight).mean())
        continue
    job.step(F.cross_entropy(model(batch.inputs["image"]), batch.inputs["label"]))
