"""State of one's own, early stopping, metrics, printing by rank 0.

`job.register_state`, `log`, `stop`.
"""

import sys

import torch
from torch import nn
from torch.nn import functional as F
from toys import images

import brim


class Counter:
    """Counts committed steps; learning follows it."""

    steps = 0

    def state_dict(self):
        return {"steps": self.steps}

    def load_state_dict(self, state):
        self.steps = state["steps"]


torch.manual_seed(0)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
counter = Counter()

job = brim.join(model, optimizer)
if "unregistered" not in sys.argv:
    job.register_state("counter", counter)
for _ in job.epochs(4):
    for batch in job.batches(images(120), global_batch_size=24):
        for group in optimizer.param_groups if "stop" not in sys.argv else ():
            group["lr"] = 0.1 / (1 + counter.steps)
        if job.step(F.cross_entropy(model(batch.inputs), batch.target)) is not None:
            counter.steps += 1
    job.log(steps=counter.steps)
    if "stop" in sys.argv and counter.steps == 10:
        job.stop()
if job.rank == 0:
    print("trained", counter.steps, "steps")
