"""One's own loop over clicks, which runs with and without `brim train`."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import brim

torch.set_num_threads(1)
torch.manual_seed(0)
rows, out = brim.Embedding(8, limit=1000), nn.Linear(8, 1)
numbers = (torch.rand(500, 5).pow(3) * 300).long()
data = TensorDataset(numbers << 50, (numbers[:, 0] % 2).float())

job = brim.join(
    nn.ModuleList([rows, out]), torch.optim.Adam([*rows.parameters(), *out.parameters()], lr=0.01)
)
for batch in job.batches(data, global_batch_size=64, epochs=2):
    output = out(rows(batch.inputs).sum(1)).squeeze(1)
    job.step(functional.binary_cross_entropy_with_logits(output, batch.target))
if job.rank == 0:
    print("weights", brim.weights_sha256(job.model), "rows", len(rows.state_dict()["ids"]))
