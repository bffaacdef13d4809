"""Hinton's distillation: a teacher that stays as it is, outside the job, in eval mode."""

import torch
from torch import nn
from torch.nn import functional as F
from toys import images

import brim


def network(width):
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(width, 4)
    )


torch.manual_seed(0)
teacher, student = network(64).eval(), network(8)
optimizer = torch.optim.SGD(student.parameters(), lr=0.1)

job = brim.join(student, optimizer)
for batch in job.batches(images(120), global_batch_size=24, epochs=2):
    with torch.no_grad():
        soft = F.softmax(teacher(batch.inputs) / 4, dim=1)
    output = student(batch.inputs)
    distilled = F.kl_div(F.log_softmax(output / 4, dim=1), soft, reduction="batchmean") * 16
    job.step(0.7 * distilled + 0.3 * F.cross_entropy(output, batch.target))
