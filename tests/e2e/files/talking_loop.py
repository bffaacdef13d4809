"""A loop in which every worker prints each step, and once more behind the loop."""

import torch
from torch.nn import functional
from torch.utils.data import TensorDataset

import brim

torch.manual_seed(0)
inputs = torch.randn(2400, 4)
model = torch.nn.Linear(4, 1)
job = brim.join(model, torch.optim.SGD(model.parameters(), lr=0.1))
print("begun")
for batch in job.batches(TensorDataset(inputs, inputs[:, :1]), global_batch_size=24, epochs=1):
    loss = job.step(functional.mse_loss(model(batch.inputs), batch.target))
    if loss is not None:
        print(f"step {job.committed} of rank {job.rank}")
print("that was all")
