"""pytorch-metric-learning's ArcFace: the loss has weights of its own, in the optimizer but not in
the model.
"""

import sys

import torch
from torch import nn
from torch.nn import functional as F
from toys import images

import brim


class ArcFaceLoss(nn.Module):
    def __init__(self, classes=4, size=8, margin=0.2, scale=8.0):
        super().__init__()
        self.W = nn.Parameter(torch.randn(classes, size))
        self.margin, self.scale = margin, scale

    def forward(self, embedding, target):
        cosine = F.linear(F.normalize(embedding), F.normalize(self.W))
        angle = torch.acos(cosine.clamp(-0.999, 0.999)) + self.margin * F.one_hot(
            target, len(self.W)
        )
        return F.cross_entropy(self.scale * angle.cos(), target)


torch.manual_seed(0)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 8))
criterion = ArcFaceLoss()
optimizer = torch.optim.SGD([*model.parameters(), *criterion.parameters()], lr=0.1, momentum=0.9)

job = brim.join([model, criterion] if "both" in sys.argv else model, optimizer)
for batch in job.batches(images(120), global_batch_size=24, epochs=2):
    job.step(criterion(model(batch.inputs), batch.target))
