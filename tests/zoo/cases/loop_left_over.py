"""A loop ported in haste: one line of the old loop is still there, or one of the new is missing or
wrong.
"""

import sys

import torch
from torch import nn
from torch.nn import functional as F
from toys import images

import brim

KIND = sys.argv[1]
torch.manual_seed(0)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
if KIND == "thaws":
    model[1].requires_grad_(False)
scaler = torch.amp.GradScaler("cpu")
data = images(120)

job = brim.join(model, optimizer)
running = {"loss": 0.0}
if KIND == "registered_by_rank":
    job.register_state("running", running)
for batch in job.batches(data, global_batch_size=24, epochs=2):
    optimizer.zero_grad()
    if KIND == "freezes_once" and job.committed == 4:  # a worker that joins later does not
        model[1].requires_grad_(False)
    if KIND == "freezes" and job.committed >= 4:
        model[1].requires_grad_(False)
    if KIND == "thaws" and job.committed >= 4:
        model[1].requires_grad_(True)
    loss = F.cross_entropy(model(batch.inputs), batch.target)
    if KIND == "backward":
        loss.backward()
    if KIND == "divided":
        loss = loss / 4
    if KIND == "summed":
        loss = F.cross_entropy(model(batch.inputs), batch.target, reduction="sum")
    if KIND == "scaled":
        loss = scaler.scale(loss)
    if KIND == "break" and job.committed == 3:
        break
    if KIND == "exit" and job.committed == 3:
        sys.exit(0)
    if KIND == "no_step":
        continue
    if KIND == "detached":
        loss = loss.detach()
    if KIND == "vector":
        loss = F.cross_entropy(model(batch.inputs), batch.target, reduction="none")
    job.step(loss)
    if KIND == "freezes_within" and job.committed == 4:
        model[1].requires_grad_(False)
    running["loss"] += loss.item()
    if KIND == "stepped_twice":
        job.step(loss)
    if KIND == "optimizer_step":
        optimizer.step()
    if KIND == "weights_by_hand":  # clamp, as WGAN does
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.clamp_(-0.05, 0.05)
    if KIND == "added_group" and job.committed == 5:
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(3))]})

if KIND == "second_loop":
    for batch in job.batches(data, global_batch_size=24, epochs=2):
        job.step(F.cross_entropy(model(batch.inputs), batch.target))
