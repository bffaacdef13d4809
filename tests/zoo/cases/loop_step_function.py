"""A loop whose step function may be replayed, and which logs and averages once a step."""

import torch
from mnist import Net
from torch.nn import functional as F
from toys import images

import brim

torch.manual_seed(1)
model = Net()
optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
average = torch.optim.swa_utils.AveragedModel(model)

job = brim.join(model, optimizer)
job.register_state("average", average)


@job.step_function
def loss_of(batch):
    return F.nll_loss(model(batch.inputs), batch.target)


for batch in job.batches(images(120), global_batch_size=24, epochs=2):
    loss = job.step(loss_of(batch))
    if loss is not None:
        average.update_parameters(model)
        job.log(loss=loss)
