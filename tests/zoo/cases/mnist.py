"""pytorch/examples, mnist: the ConvNet with two dropouts, Adadelta and StepLR,
as a training file.
"""

import torch
from torch import nn
from torch.nn import functional as F
from toys import images

import brim


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3, 1)
        self.conv2 = nn.Conv2d(4, 8, 3, 1)
        self.dropout1 = nn.Dropout(0.25)
        self.dropout2 = nn.Dropout(0.5)
        self.fc1 = nn.Linear(32, 16)
        self.fc2 = nn.Linear(16, 4)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        x = F.max_pool2d(x, 2)
        x = torch.flatten(self.dropout1(x), 1)
        x = F.relu(self.fc1(x))
        return F.log_softmax(self.fc2(self.dropout2(x)), dim=1)


def model():
    return Net()


def dataset(split):
    return images(120) if split == "train" else images(40, seed=1)


loss = F.nll_loss


def optimizer(model):
    adadelta = torch.optim.Adadelta(model.parameters(), lr=1.0)
    return adadelta, torch.optim.lr_scheduler.StepLR(adadelta, step_size=1, gamma=0.7)


def metrics():
    return {"accuracy": brim.metrics.accuracy(), "log_loss": brim.metrics.log_loss()}
