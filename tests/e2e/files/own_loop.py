"""Level 2: one's own loop with three lines of brim."""

import sys
from pathlib import Path

import torch
from torch.nn import functional

import brim

sys.path.insert(0, str(Path(__file__).parent))
from digits import Digits
from digits import model as make_model

torch.set_num_threads(1)
torch.manual_seed(0)
model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
job = brim.join(model, optimizer)
for batch in job.batches(Digits("train"), global_batch_size=128, epochs=3):
    job.step(functional.cross_entropy(model(batch.inputs), batch.target))
if job.rank == 0:
    print("weights", brim.weights_sha256(model))
