"""The loop of most scripts, with Python's own `range` around the batches."""

import torch
from torch import nn
from torch.nn import functional as F
from toys import images

import brim

torch.manual_seed(0)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = images(120)

job = brim.join(model, optimizer)
for _ in range(2):
    for batch in job.batches(data, global_batch_size=24, epochs=1):
        job.step(F.cross_entropy(model(batch.inputs), batch.target))
