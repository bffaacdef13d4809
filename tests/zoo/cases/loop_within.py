"""The work of loops between batches: measure every few steps, change inputs in place, take a few
batches of an epoch.
"""

import sys

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
from toys import images

import brim

KIND = sys.argv[1]
torch.manual_seed(0)
first = [nn.ReLU(inplace=True)] if KIND == "in_place" else []
model = nn.Sequential(*first, nn.Flatten(), nn.Linear(64, 16), nn.Dropout(0.2), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
test = images(40, seed=1)
data = brim.data.Tensors(*images(120).tensors)
if KIND == "in_place":
    data = DataLoader(data, batch_size=24, shuffle=False)

job = brim.join(model, optimizer)
for _ in job.epochs(2):
    for number, batch in enumerate(job.batches(data, global_batch_size=24)):
        if KIND == "a_few" and number == 3:
            break
        if KIND == "in_place":
            batch.inputs.add_(0.1)
        loss = job.step(F.cross_entropy(model(batch.inputs), batch.target))
        if KIND == "measures" and loss is not None and job.committed % 2 == 0:
            scores = job.evaluate(test, {"accuracy": brim.metrics.accuracy()})
            job.log(loss=loss, **scores)
        if KIND == "measures_by_itself" and number % 5 == 0:
            model.eval()
            with torch.no_grad():
                model(test.tensors[0])
            model.train()
