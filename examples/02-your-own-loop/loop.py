"""The loop of plain.py, elastic: alone, or on any number of workers that may die, join and leave.

python loop.py
brim run --workers 4 -- python loop.py
"""

import torch
from flights_tensors import flights
from torch import nn
from torch.nn import functional

import brim

torch.manual_seed(0)
train, test = flights()
model = nn.Sequential(nn.Linear(7, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 1), nn.Flatten(0))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

job = brim.join(model, optimizer)  # 1
for batch in job.batches(train, global_batch_size=512, epochs=2):  # 2
    loss = functional.binary_cross_entropy_with_logits(model(batch.inputs), batch.target)
    job.step(loss)  # 3

if job.rank == 0:  # every worker that is there at the end comes here, with the same weights
    model.eval()
    with torch.no_grad():
        inputs, late = test.tensors
        print("test loss", functional.binary_cross_entropy_with_logits(model(inputs), late).item())
    print("weights", brim.weights_sha256(model))
