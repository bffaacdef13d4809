"""A training loop as one writes it in plain PyTorch.

python plain.py
"""

import torch
from flights_tensors import flights
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

torch.manual_seed(0)
train, test = flights()
model = nn.Sequential(nn.Linear(7, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 1), nn.Flatten(0))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

for _ in range(2):
    for inputs, late in DataLoader(train, batch_size=512, shuffle=True):
        loss = functional.binary_cross_entropy_with_logits(model(inputs), late)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

model.eval()
with torch.no_grad():
    inputs, late = test.tensors
    print("test loss", functional.binary_cross_entropy_with_logits(model(inputs), late).item())
