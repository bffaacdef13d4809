"""facebookresearch/mixup-cifar10: pairs within a batch, lambda by numpy; label smoothing, gradient
noise.
"""

import numpy as np
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


def mixup_data(x, y, alpha=1.0):
    lam = np.random.beta(alpha, alpha)
    index = torch.randperm(len(x))
    return lam * x + (1 - lam) * x[index], y, y[index], lam


job = brim.join(model, optimizer)
for batch in job.batches(images(120), global_batch_size=24, epochs=2):
    inputs, a, b, lam = mixup_data(batch.inputs, batch.target)
    outputs = model(inputs)
    smooth = {"label_smoothing": 0.1}
    loss = lam * F.cross_entropy(outputs, a, **smooth) + (1 - lam) * F.cross_entropy(
        outputs, b, **smooth
    )
    job.step(loss)
