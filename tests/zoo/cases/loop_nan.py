"""A loss that is not a number in one micro-batch of one step: of the fourth step there is nothing
to learn.
"""

import sys

import torch
from torch import nn
from torch.nn import functional as F
from toys import images

import brim

torch.manual_seed(0)
model = nn.Sequential(
    nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
pictures, labels = images(120).tensors
pictures[7] = float("nan")  # one bad picture

job = brim.join(model, optimizer, on_nan=sys.argv[1])
for batch in job.batches(
    torch.utils.data.TensorDataset(pictures, labels), global_batch_size=24, epochs=2
):
    job.step(F.cross_entropy(model(batch.inputs), batch.target))
if sys.argv[1] == "skip":
    assert all(tensor.isfinite().all() for tensor in model.state_dict().values())
