"""Small pictures to tell apart, drawn with a seed: a bar, a ring, a cross or a slope, each in noise."""

import torch
from torch.utils.data import TensorDataset

CLASSES = 4


def shapes(samples, seed):
    """Pictures [1, 16, 16] in -1..1 and the number of what each shows."""
    generator = torch.Generator().manual_seed(seed)
    kinds = torch.randint(CLASSES, (samples,), generator=generator)
    centre = torch.rand(samples, 2, 1, 1, generator=generator) * 6 + 5
    grid = torch.arange(16.0)
    x, y = grid[None, None, :] - centre[:, 0], grid[None, :, None] - centre[:, 1]
    drawn = torch.stack(
        [
            (x.abs() < 1.5) & (y.abs() < 5),
            ((x**2 + y**2).sqrt() - 4).abs() < 1,
            (x.abs() < 1) | (y.abs() < 1),
            (x - y).abs() < 1.5,
        ]
    )
    pictures = drawn[kinds, torch.arange(samples)].float() * 2 - 1
    noise = torch.randn(pictures.shape, generator=generator) / 4
    return TensorDataset((pictures + noise).clamp(-1, 1)[:, None], kinds)
