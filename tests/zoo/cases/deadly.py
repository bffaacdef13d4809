"""One sample ends its reader, as a damaged image does in some decoders."""

import os
import signal

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from brim import param


class Images(Dataset):
    def __len__(self):
        return 120

    def __getitem__(self, index):
        if index == 77:
            os.kill(os.getpid(), signal.SIGSEGV)
        generator = torch.Generator().manual_seed(index)
        image = torch.randn(16, generator=generator)
        return image, (image[0] > 0).float()


def model():
    return nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 1), nn.Flatten(0))


def dataset(split):
    loaders = int(param("loaders", 0))
    return DataLoader(Images(), batch_size=24, num_workers=loaders) if split == "train" else None


def loss(output, target):
    return functional.binary_cross_entropy_with_logits(output, target)


def optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)
