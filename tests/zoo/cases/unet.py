"""milesial/Pytorch-UNet: segmentation with skip connections, cross-entropy and Dice, RMSprop,
clipped.
"""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset
from toys import images


def double(width_in, width_out):
    return nn.Sequential(
        nn.Conv2d(width_in, width_out, 3, padding=1, bias=False),
        nn.BatchNorm2d(width_out),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.inc, self.down = double(1, 4), double(4, 8)
        self.up = nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.conv, self.outc = double(8, 4), nn.Conv2d(4, 2, 1)

    def forward(self, x):
        skip = self.inc(x)
        deep = self.up(self.down(F.max_pool2d(skip, 2)))
        return self.outc(self.conv(torch.cat([skip, deep], dim=1)))


def model():
    return UNet()


def dataset(split):
    pictures = images(120 if split == "train" else 40).tensors[0]
    return TensorDataset(pictures, (pictures[:, 0] > 0.3).long())


def dice(probability, mask):
    inter = 2 * (probability * mask).sum(dim=(-1, -2))
    return 1 - ((inter + 1e-6) / ((probability + mask).sum(dim=(-1, -2)) + 1e-6)).mean()


def loss(output, mask):
    return F.cross_entropy(output, mask) + dice(F.softmax(output, 1)[:, 1], mask.float())


def optimizer(model):
    return torch.optim.RMSprop(
        model.parameters(), lr=1e-3, weight_decay=1e-8, momentum=0.9, foreach=True
    )
