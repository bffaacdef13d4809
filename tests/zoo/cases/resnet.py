"""CIFAR with torchvision's BasicBlock.

Nesterov, weight decay, cosine by epoch; BatchNorm frozen or not.
"""

import torch
from torch import nn
from torch.nn import functional as F
from toys import images

import brim
from brim import param

WIDTH = 8  # channels of the first block


class BasicBlock(nn.Module):
    def __init__(self, inplanes, planes, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(inplanes, planes, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.downsample = None
        if stride != 1 or inplanes != planes:
            shortcut = nn.Conv2d(inplanes, planes, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(planes))

    def forward(self, x):
        identity = x if self.downsample is None else self.downsample(x)
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(out + identity)


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, WIDTH, 3, 1, 1, bias=False), nn.BatchNorm2d(WIDTH), nn.ReLU()
        )
        self.layers = nn.Sequential(
            BasicBlock(WIDTH, WIDTH), BasicBlock(WIDTH, 2 * WIDTH, stride=2)
        )
        self.fc = nn.Linear(2 * WIDTH, 4)

    def forward(self, x):
        return self.fc(F.adaptive_avg_pool2d(self.layers(self.stem(x)), 1).flatten(1))


def freeze_batch_norm(model):
    """Fine-tuning as torchvision's detection recipes do it: the statistics stay as they were."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
            module.weight.requires_grad_(False)
            module.bias.requires_grad_(False)


def model():
    network = ResNet()
    if param("channels_last", False):
        network = network.to(memory_format=torch.channels_last)
    if param("frozen", False):
        freeze_batch_norm(network)
    return network


def dataset(split):
    return images(120 if split == "train" else 40, channels=3)


def loss(output, target):
    return F.cross_entropy(output, target, label_smoothing=0.1)


def optimizer(model):
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    sgd = torch.optim.SGD(trained, lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
    return sgd, torch.optim.lr_scheduler.CosineAnnealingLR(sgd, T_max=2)


def metrics():
    return {"accuracy": brim.metrics.accuracy()}
