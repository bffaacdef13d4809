"""A loop of one's own that stops in the middle of its second epoch, between two batches."""

import torch
from torch.utils.data import TensorDataset

import brim

torch.manual_seed(0)
data = TensorDataset(torch.randn(1000, 4), torch.randn(1000, 1))
model = torch.nn.Linear(4, 1)
job = brim.join(model, torch.optim.SGD(model.parameters(), lr=0.01))
for batch in job.batches(data, global_batch_size=10, epochs=3):
    job.step((model(batch.inputs) - batch.target).square().mean())
    if job.committed >= 130:
        job.stop()
