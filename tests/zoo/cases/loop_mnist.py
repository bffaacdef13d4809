"""pytorch/examples, mnist, as a loop: train and test each epoch, StepLR per epoch."""

import torch
from mnist import Net
from torch.nn import functional as F
from toys import images

import brim

torch.manual_seed(1)
model = Net()
optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
train, test = images(120), images(40, seed=1)

job = brim.join(model, optimizer, scheduler=scheduler)
for _ in job.epochs(2):
    for batch in job.batches(train, global_batch_size=24):
        job.step(F.nll_loss(model(batch.inputs), batch.target))
    scores = job.evaluate(test, {"accuracy": brim.metrics.accuracy()})
    job.log(**scores)
