"""Draw shapes: a generator and a discriminator, both of convolutions with BatchNorm."""

import torch
from accelerate import Accelerator
from shapes import shapes
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

NOISE = 16


def generator():
    return nn.Sequential(
        nn.ConvTranspose2d(NOISE, 32, 4, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.ConvTranspose2d(32, 16, 4, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.ConvTranspose2d(16, 1, 4, stride=2, padding=1),
        nn.Tanh(),
    )


def discriminator():
    return nn.Sequential(
        nn.Conv2d(1, 16, 4, stride=2, padding=1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(16, 32, 4, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.LeakyReLU(0.2),
        nn.Conv2d(32, 1, 4),
        nn.Flatten(0),
    )


def verdict(d, pictures, real):
    """The loss of a discriminator that should call all of these real, or none."""
    answer = d(pictures)
    return functional.binary_cross_entropy_with_logits(answer, torch.full_like(answer, real))


def main():
    torch.manual_seed(999)
    loader = DataLoader(shapes(256, seed=1), batch_size=64, shuffle=True)
    g, d = generator(), discriminator()
    opt_g = torch.optim.Adam(g.parameters(), lr=2e-4, betas=(0.5, 0.999))
    opt_d = torch.optim.Adam(d.parameters(), lr=2e-4, betas=(0.5, 0.999))
    accelerator = Accelerator()
    g, d, opt_g, opt_d, loader = accelerator.prepare(g, d, opt_g, opt_d, loader)
    for epoch in range(3):
        for real, _ in loader:
            fake = g(torch.randn(len(real), NOISE, 1, 1))
            d_loss = verdict(d, real, 1.0) + verdict(d, fake.detach(), 0.0)
            opt_d.zero_grad()
            accelerator.backward(d_loss)
            opt_d.step()
            g_loss = verdict(d, fake, 1.0)
            opt_g.zero_grad()
            accelerator.backward(g_loss)
            opt_g.step()
        accelerator.print(f"epoch {epoch}: discriminator {d_loss.item():.3f}, generator {g_loss.item():.3f}")


if __name__ == "__main__":
    main()
