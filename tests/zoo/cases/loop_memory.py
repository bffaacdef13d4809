"""Things with a memory from micro-batch to micro-batch, in a loop of one's own; the first word
picks one.
"""

import sys

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset
from toys import images

import brim

KIND = sys.argv[1]


class Remembering(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.Dropout(0.2)
        )
        self.head = nn.Linear(16, 4)
        self.calls, self.recent, self.hidden = 0, [], torch.zeros(16)
        self.temperature = 1.0
        self.generator = torch.Generator().manual_seed(5)

    def forward(self, x):
        x = self.backbone(x)
        match KIND:
            case "counter":
                self.calls += 1
                x = x * (1 + 0.01 * self.calls)
            case "list":
                self.recent.append(x.mean().item())
                x = x + sum(self.recent[-3:])
            case "hidden":
                x = x + 0.1 * self.hidden
                self.hidden = x.mean(0).detach()
            case "cached":
                self.last = x.detach()
            case "generator":
                x = x + 0.1 * torch.randn(x.shape, generator=self.generator)
        return self.head(x) / self.temperature


class Augmented(Dataset):
    def __init__(self):
        self.images, self.labels = images(120).tensors
        self.generator = torch.Generator().manual_seed(1)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.images[index] + 0.1 * torch.randn(
            (1, 8, 8), generator=self.generator
        ), self.labels[index]


torch.manual_seed(0)
model = Remembering()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
data = Augmented() if KIND == "data" else images(120)

job = brim.join(model, optimizer)
for epoch in job.epochs(2):
    model.train()
    if (
        KIND == "backbone"
    ):  # fine-tuning: the statistics of the backbone stay, and later its weights too
        model.backbone.eval()
        if epoch > 0:
            model.backbone.requires_grad_(False)
    if KIND == "epoch":
        model.temperature = 0.5**epoch
    if KIND == "epoch_tensor":
        model.temperature = torch.tensor(0.5**epoch)
    for batch in job.batches(data, global_batch_size=24):
        if KIND == "set":
            model.temperature = 0.9**job.committed
        loss = job.step(F.cross_entropy(model(batch.inputs), batch.target))
        if KIND == "annealed" and loss is not None:
            model.temperature *= 0.9
        if KIND == "annealed_by_numpy" and loss is not None:
            model.temperature = np.maximum(model.temperature * np.exp(-0.1), 0.3)
