"""An average of the weights (timm's ModelEma, torch's AveragedModel) beside them, registered with
the job.
"""

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from toys import images

import brim

torch.manual_seed(0)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 4))
ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

job = brim.join(model, optimizer)
job.register_state("ema", ema)
for _ in job.epochs(2):
    for batch in job.batches(images(120), global_batch_size=24):
        if job.step(F.cross_entropy(model(batch.inputs), batch.target)) is not None:
            ema.update_parameters(model)
    job.log(average=sum(parameter.double().abs().sum().item() for parameter in ema.parameters()))
