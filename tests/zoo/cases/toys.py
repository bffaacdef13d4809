"""Data that is small, the same everywhere, and has something to learn in it."""

import torch
from torch.utils.data import TensorDataset


def images(count=120, *, channels=1, size=8, classes=4, seed=0):
    """Pictures of a pattern for each class, under noise."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % classes
    patterns = torch.randn(
        classes, channels, size, size, generator=torch.Generator().manual_seed(99)
    )
    noise = torch.randn(count, channels, size, size, generator=generator)
    return TensorDataset(patterns[labels] + 0.5 * noise, labels)


def rows(count=120, *, numbers=6, seed=0):
    """Rows of numbers, and whether a hidden rule of them holds."""
    generator = torch.Generator().manual_seed(seed)
    table = torch.randn(count, numbers, generator=generator)
    return TensorDataset(table, (table[:, 0] * table[:, 1] + table[:, 2] > 0).float())


def clicks(count=120, *, fields=4, words=10, numbers=3, seed=0):
    """Categories [fields], numbers [numbers], and whether somebody clicked."""
    generator = torch.Generator().manual_seed(seed)
    categories = torch.randint(words, (count, fields), generator=generator)
    table = torch.randn(count, numbers, generator=generator)
    clicked = ((categories[:, 0] + categories[:, 1]) % 2 + table[:, 0] > 0.5).float()
    return categories, table, clicked


def sentences(count=120, *, length=9, words=12, seed=0):
    """Word numbers [count, length + 1] in which each word tells the next most of the time."""
    generator = torch.Generator().manual_seed(seed)
    text = torch.randint(words, (count, length + 1), generator=generator)
    for place in range(1, length + 1):
        keep = torch.rand(count, generator=generator) < 0.8
        text[keep, place] = (text[keep, place - 1] * 5 + 1) % words
    return text
