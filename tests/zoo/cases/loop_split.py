"""Part of the data is kept for testing, and each process keeps another part: a seed that is not
fixed.
"""

import os

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import random_split
from toys import images

import brim

torch.manual_seed(0)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
train, test = random_split(
    images(150), [120, 30], generator=torch.Generator().manual_seed(os.getpid())
)
job = brim.join(model, optimizer)
for _epoch in job.epochs(2):
    for batch in job.batches(train, global_batch_size=24):
        job.step(F.cross_entropy(model(batch.inputs), batch.target))
