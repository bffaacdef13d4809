"""caogang/wgan-gp: a gradient penalty by a second derivative, the generator every second step."""

import torch
from torch import nn
from toys import images

import brim

torch.manual_seed(0)
generator = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 64))
critic = nn.Sequential(nn.Linear(64, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1), nn.Flatten(0))
optimizer_g = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.9))
optimizer_c = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.9))


def gradient_penalty(real, fake):
    alpha = torch.rand(len(real), 1)
    mixed = (alpha * real + (1 - alpha) * fake).requires_grad_(True)
    (gradient,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
    return ((gradient.norm(2, dim=1) - 1) ** 2).mean()


job = brim.join([generator, critic], [optimizer_g, optimizer_c])
for batch in job.batches(images(120), global_batch_size=24, epochs=2):
    real = batch.inputs.flatten(1)
    fake = generator(torch.randn(len(real), 6))
    apart = critic(fake.detach()).mean() - critic(real).mean()
    job.step(apart + 10 * gradient_penalty(real, fake.detach()), optimizer=optimizer_c)
    if job.committed % 2:
        job.step(-critic(fake).mean(), optimizer=optimizer_g)
