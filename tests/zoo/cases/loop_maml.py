"""learn2learn's MAML: a gradient step within the loss, by torch.func, and a second derivative
through it.
"""

import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import brim

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
phases = torch.rand(120, 1) * 6  # a task is a sine of its phase


def adapted(x, y, rate=0.1):
    weights = dict(model.named_parameters())
    loss = F.mse_loss(functional_call(model, weights, x), y)
    gradients = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
    return {name: w - rate * g for (name, w), g in zip(weights.items(), gradients, strict=True)}


job = brim.join(model, optimizer)
for batch in job.batches(TensorDataset(phases), global_batch_size=24, epochs=2):
    losses = []
    for phase in batch.inputs[0]:
        x = torch.rand(8, 1) * 6
        weights = adapted(x[:4], torch.sin(x[:4] + phase))
        losses.append(F.mse_loss(functional_call(model, weights, x[4:]), torch.sin(x[4:] + phase)))
    job.step(torch.stack(losses).mean())
