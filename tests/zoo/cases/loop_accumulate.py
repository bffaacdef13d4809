"""Gradient accumulation over four micro-batches, said by one word."""

import torch
from torch import nn
from torch.nn import functional as F
from toys import images

import brim

torch.manual_seed(0)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

job = brim.join(model, optimizer, micro_batches=4)
for batch in job.batches(images(120), global_batch_size=24, epochs=2):
    job.step(F.cross_entropy(model(batch.inputs), batch.target))
