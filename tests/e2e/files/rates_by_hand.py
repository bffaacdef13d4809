"""A loop that sets its learning rate by the step, over samples of which the last take long."""

import time

import torch
from torch.utils.data import Dataset

import brim

STEP = 24  # samples


class Samples(Dataset):
    """The last third of each step is read by the last of three workers."""

    def __len__(self):
        return 10 * STEP

    def __getitem__(self, index):
        time.sleep(0.05 if index % STEP >= STEP * 2 // 3 else 0)
        x = torch.linspace(0, 1, 4) * (index + 1) / len(self)
        return x, x.sum().reshape(1)


torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
job = brim.join(model, optimizer)
samples = job.batches(Samples(), global_batch_size=STEP, epochs=1, shuffle=False, loaders=3)
for batch in samples:
    for group in optimizer.param_groups:
        group["lr"] = 0.1 / (job.committed + 1)
    job.step((model(batch.inputs) - batch.target).square().mean())
