"""lucidrains/denoising-diffusion-pytorch: time steps and noise drawn in the loop."""

import torch
from torch import nn
from torch.nn import functional as F
from toys import images

import brim

torch.manual_seed(0)
betas = torch.linspace(1e-4, 0.02, 50)
kept = torch.cumprod(1 - betas, 0)


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Embedding(50, 8)
        self.net = nn.Sequential(
            nn.Conv2d(9, 8, 3, padding=1), nn.SiLU(), nn.Conv2d(8, 1, 3, padding=1)
        )

    def forward(self, x, t):
        time = self.time(t)[:, :, None, None].expand(-1, -1, *x.shape[2:])
        return self.net(torch.cat([x, time], 1))


model = Denoiser()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

job = brim.join(model, optimizer)
for batch in job.batches(images(120), global_batch_size=24, epochs=2):
    t = torch.randint(0, 50, (len(batch.inputs),))
    noise = torch.randn_like(batch.inputs)
    share = kept[t][:, None, None, None]
    noisy = share.sqrt() * batch.inputs + (1 - share).sqrt() * noise
    job.step(F.mse_loss(model(noisy, t), noise))
