"""Learning rates as scripts set them.

`onecycle`, `plateau`, `by_hand` per epoch, or wrongly within a step.
"""

import sys

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import lr_scheduler
from toys import images

import brim

KIND = sys.argv[1]
torch.manual_seed(0)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler, interval = {
    "onecycle": lambda: (lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=10), "step"),
    "onecycle_unsaid": lambda: (
        lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=10),
        None,
    ),
    "cosine_unsaid": lambda: (lr_scheduler.CosineAnnealingLR(optimizer, T_max=10), None),
    "sequential": lambda: (
        lr_scheduler.SequentialLR(
            optimizer,
            [
                lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3),
                lr_scheduler.CosineAnnealingLR(optimizer, 7),
            ],
            milestones=[3],
        ),
        "step",
    ),
    "cyclic": lambda: (lr_scheduler.CyclicLR(optimizer, 0.01, 0.1, step_size_up=4), None),
    "lambda": lambda: (lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.9**epoch), "epoch"),
    "plateau": lambda: (lr_scheduler.ReduceLROnPlateau(optimizer, patience=0), None),
}.get(KIND, lambda: (None, None))()

job = brim.join(model, optimizer, scheduler=scheduler, scheduler_interval=interval)
for epoch in job.epochs(2):
    if KIND == "by_hand" and epoch > 0:
        for group in optimizer.param_groups:
            group["lr"] *= 0.5
    for batch in job.batches(images(120), global_batch_size=24):
        job.step(F.cross_entropy(model(batch.inputs), batch.target))
        if KIND == "within_a_step":  # once a batch, which was once a step
            for group in optimizer.param_groups:
                group["lr"] *= 0.99
        if KIND == "scheduler_left_over":
            scheduler = scheduler or lr_scheduler.StepLR(optimizer, 5)
            scheduler.step()
    if KIND == "plateau":
        job.log(**job.evaluate(images(40, seed=1), {"log_loss": brim.metrics.log_loss()}))
