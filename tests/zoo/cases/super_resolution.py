"""pytorch/examples, super_resolution: a sub-pixel CNN that doubles the size of pictures."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset
from toys import images


class Net(nn.Module):
    def __init__(self, upscale_factor=2):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 5, padding=2)
        self.conv2 = nn.Conv2d(8, upscale_factor**2, 3, padding=1)
        self.pixel_shuffle = nn.PixelShuffle(upscale_factor)
        nn.init.orthogonal_(self.conv1.weight, nn.init.calculate_gain("relu"))

    def forward(self, x):
        return self.pixel_shuffle(self.conv2(F.relu(self.conv1(x))))


def model():
    return Net()


def dataset(split):
    large = images(120 if split == "train" else 40).tensors[0]
    return TensorDataset(F.avg_pool2d(large, 2), large)


loss = F.mse_loss


def optimizer(model):
    return torch.optim.Adam(model.parameters(), lr=1e-2)
