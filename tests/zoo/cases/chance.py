"""Chance in the data: augmentation by torch, numpy and random, a generator of one's own, and data
that forgets.
"""

import random

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset
from toys import images

from brim import param

KIND = param("kind", "global")


class Augmented(Dataset):
    def __init__(self, count):
        self.images, self.labels = images(count).tensors
        self.generator = torch.Generator().manual_seed(1)
        self.rng = np.random.default_rng(1)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        picture = self.images[index]
        if KIND == "own_torch_generator":
            return picture + 0.1 * torch.randn(
                picture.shape, generator=self.generator
            ), self.labels[index]
        if KIND == "own_numpy_generator":
            return picture * float(self.rng.normal(1.0, 0.1)), self.labels[index]
        if random.random() < 0.5:  # RandomHorizontalFlip
            picture = picture.flip(-1)
        if np.random.rand() < 0.5:  # albumentations
            picture = picture * float(np.random.uniform(0.8, 1.2))
        if torch.rand(()) < 0.5:  # RandomCrop
            top, left = torch.randint(0, 3, (2,)).tolist()
            picture = F.pad(picture, (1, 1, 1, 1))[:, top : top + 8, left : left + 8]
        return picture, self.labels[index]


def model():
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4)
    )


def dataset(split):
    return Augmented(120 if split == "train" else 40)


loss = F.cross_entropy


def optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)
