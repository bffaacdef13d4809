"""torch's AMP recipe: autocast and a GradScaler; the first steps overflow until the scale fits."""

import torch
from torch import nn
from torch.nn import functional as F
from toys import images

import brim

torch.manual_seed(0)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40, growth_interval=4)

job = brim.join(model, optimizer, scaler=scaler, clip_norm=1.0)
for batch in job.batches(images(120), global_batch_size=24, epochs=4):
    with torch.autocast("cpu", dtype=torch.float16):
        loss = F.cross_entropy(model(batch.inputs), batch.target)
    job.step(loss)
