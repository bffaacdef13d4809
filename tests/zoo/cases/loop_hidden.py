"""Loops whose losses depend on more than the weights, the seed and the samples."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F
from toys import images

import brim

kind, pause = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
torch.manual_seed(0)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 4))
target = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 4))
target.load_state_dict(model.state_dict())
target.requires_grad_(False)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
other = torch.optim.Adam(nn.Linear(64, 4).parameters())
weights, bank = torch.ones(4).numpy(), []

job = brim.join([model, target] if kind == "target_given" else model, optimizer)
for _ in job.epochs(4):
    for batch in job.batches(images(120), global_batch_size=24):
        scores = model(batch.inputs)
        loss = F.cross_entropy(scores, batch.target)
        if kind.startswith("target"):
            loss = loss + F.mse_loss(scores, target(batch.inputs))
        elif kind == "bank":
            bank.append(scores.detach().mean())
            loss = loss + (scores.mean() - torch.stack(bank[-4:]).mean()) ** 2
        elif kind == "class_weights":
            loss = F.cross_entropy(scores, batch.target, weight=torch.from_numpy(weights))
        elif kind == "rank":
            loss = loss * (1 + job.rank)
        elif kind == "other_optimizer":
            other.step()
        if job.step(loss) is not None:
            time.sleep(pause)
            weights *= 0.9
            for slow, fast in zip(target.parameters(), model.parameters(), strict=True):
                slow.data.lerp_(fast.data, 0.1)
