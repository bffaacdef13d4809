"""pytorch/examples, siamese_network: a nested sample ((one, other), same), the weights shared by
both.
"""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset
from toys import images


class SiameseNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()
        )
        self.fc = nn.Sequential(nn.Linear(288, 16), nn.ReLU(inplace=True), nn.Linear(16, 1))

    def forward(self, first, second):
        return torch.sigmoid(
            self.fc(torch.cat([self.features(first), self.features(second)], 1))
        ).flatten()


class Pairs(Dataset):
    def __init__(self, count):
        self.images, self.labels = images(count).tensors

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        partner = int(torch.randint(len(self), ()))  # as the example does: chance in the data
        is_same = (self.labels[index] == self.labels[partner]).float()
        return (self.images[index], self.images[partner]), is_same


def model():
    return SiameseNetwork()


def forward(model, pair):
    return model(*pair)


def dataset(split):
    return Pairs(120 if split == "train" else 40)


loss = F.binary_cross_entropy


def optimizer(model):
    return torch.optim.Adadelta(model.parameters(), lr=1.0)
