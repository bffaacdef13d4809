"""Rank 0 measures by itself after each epoch, as scripts for DDP do; `forgets` leaves the model in
eval mode.
"""

import sys

import torch
from torch import nn
from torch.nn import functional as F
from toys import images

import brim

torch.manual_seed(0)
model = nn.Sequential(
    nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 4)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
pictures, labels = images(40, seed=1).tensors

job = brim.join(model, optimizer)
for epoch in job.epochs(2):
    for batch in job.batches(images(120), global_batch_size=24):
        job.step(F.cross_entropy(model(batch.inputs), batch.target))
    if job.rank == 0:
        model.eval()
        with torch.no_grad():
            print(epoch, F.cross_entropy(model(pictures), labels).item())
        if "forgets" not in sys.argv:
            model.train()
