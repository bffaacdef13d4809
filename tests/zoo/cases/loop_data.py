"""Data to iterate over: loaders with samplers and collate_fn, streams, dicts, tuples, plain
lists.
"""

import itertools
import os
import random
import sys
import time

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


class Shuffled(IterableDataset):
    """Shuffles itself, behind its first samples, by the numbers of `draw`."""

    first = 0

    def __init__(self, draw):
        self.draw = draw

    def __iter__(self):
        order = list(range(self.first, len(labels)))
        self.draw().shuffle(order)
        for index in [*range(self.first), *order]:
            yield {"image": pictures[index], "label": labels[index]}


class Late(Shuffled):
    first = 20


class Told(IterableDataset):
    """Is told the epoch, as a DistributedSampler is."""

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        yield from Shuffled(lambda: random.Random(self.epoch))


class Buffered(IterableDataset):
    """Shuffles within a buffer by the global generator, as pipelines of torch do."""

    def __iter__(self):
        rows = []
        for sample in Dicts():
            rows.append(sample)
            if len(rows) == 30:
                yield rows.pop(random.randrange(30))
        random.shuffle(rows)
        yield from rows


class Deaf(Stream):
    """Does not ask which part it is to read."""

    def __iter__(self):
        yield from Dicts()


def padded(samples):
    image = torch.zeros(len(samples), 64)
    for row, sample in zip(image, samples, strict=True):
        row[: len(sample["image"])] = sample["image"]
    return {"image": image, "label": torch.stack([sample["label"] for sample in samples])}


counted = itertools.count()
DATA = {
    "by_process": lambda: Shuffled(lambda: random.Random(os.getpid() + time.time())),
    "by_count": lambda: Shuffled(lambda: random.Random(next(counted))),
    "late_by_process": lambda: Late(lambda: random.Random(os.getpid())),
    "by_epoch": lambda: brim.data.stream(
        lambda epoch: Shuffled(lambda: random.Random(epoch)), samples=120
    ),
    "told": Told,
    "buffered": Buffered,
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
if isinstance(getattr(data, "dataset", data), IterableDataset) and KIND not in (
    "endless",
    "by_epoch",
):
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
