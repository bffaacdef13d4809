"""A loop ported in haste: the gradients are clipped by hand, where there are none."""

import torch
from torch import nn
from torch.nn import functional as F
from toys import images

import brim

torch.manual_seed(0)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
job = brim.join(model, optimizer)
for batch in job.batches(images(120), global_batch_size=24, epochs=2):
    job.step(F.cross_entropy(model(batch.inputs), batch.target))
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
