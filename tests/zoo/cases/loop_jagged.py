"""Sequences of different lengths as jagged tensors, and a scheduler that takes the epoch, as timm's;
the words pick them.
"""

import sys

import torch
from torch import nn
from torch.nested import nested_tensor
from torch.nn import functional as F
from toys import rows

import brim


class ByEpoch:
    """A scheduler whose step() takes the epoch, as timm's do."""

    def __init__(self, optimizer):
        self.optimizer, self.last = optimizer, None

    def step(self, epoch):
        self.last = epoch
        for group in self.optimizer.param_groups:
            group["lr"] = 0.1 / (1 + epoch)

    def state_dict(self):
        return {"last": self.last}

    def load_state_dict(self, state):
        self.last = state["last"]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(1, 4)
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        parts = x.unbind() if x.is_nested else [row[:, None] for row in x]
        return torch.stack([self.head(self.net(part).tanh().mean(0)) for part in parts])[:, 0]


def jagged(samples):
    sequences = [row[: 2 + int(target) * 3, None] for row, target in samples]
    return nested_tensor(sequences, layout=torch.jagged), torch.stack([t for _, t in samples])


torch.manual_seed(0)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = ByEpoch(optimizer)
job = brim.join(model, optimizer, scheduler=scheduler if "joined" in sys.argv else None)
job.register_state("scheduler", scheduler)
for epoch in job.epochs(2):
    scheduler.step(epoch)
    for batch in job.batches(
        rows(120), global_batch_size=24, collate_fn=jagged if "jagged" in sys.argv else None
    ):
        job.step(F.binary_cross_entropy_with_logits(model(batch.inputs), batch.target))
