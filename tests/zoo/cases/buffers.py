"""Modules that keep more than weights, well or badly; `--set kind=` picks one."""

import torch
from torch import nn
from torch.nn import functional as F
from toys import images

import brim
from brim import param

KIND = param("kind", "running_mean")


class Body(nn.Module):
    """Scales its input by its memory; each kind remembers in another way."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(64, 4)
        self.register_buffer("mean", torch.zeros(64), persistent=KIND != "not_persistent_assigned")
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))
        self.count = 0
        self.recent = []
        self.hidden = torch.zeros(64)
        self.generator = torch.Generator().manual_seed(5)

    def remember(self, x):
        mean = 0.9 * self.mean + 0.1 * x.mean(0).detach()
        match KIND:
            case "running_mean":
                self.mean.copy_(mean)
                self.seen += 1
            case "assigned" | "not_persistent_assigned":
                self.mean = mean
            case "counter":
                self.count += 1
                x = x * (1 + 0.01 * self.count)
            case "list":
                self.recent = [*self.recent[-2:], x.mean().item()]
                x = x + sum(self.recent)
            case "cached":  # to be looked at, as many keep their attention
                self.last = x.detach()
            case "carried":
                x = x + 0.1 * self.hidden
                self.hidden = x.mean(0).detach()
            case "own_generator":
                x = x + 0.1 * torch.randn(x.shape, generator=self.generator)
        return x - self.mean.detach()

    def forward(self, x):
        x = x.flatten(1)
        if self.training or KIND == "changed_in_evaluation":
            x = self.remember(x)
        if KIND == "changed_in_evaluation" and not self.training:
            self.mean.mul_(0.5)
            self.seen += 1
        return self.fc(x - self.mean)


class ExtraState(Body):
    """Carries a number of its own by get_extra_state, which may be any object."""

    scale = 1.0

    def get_extra_state(self):
        return {"scale": self.scale}

    def set_extra_state(self, state):
        self.scale = state["scale"]

    def forward(self, x):
        return super().forward(x) * self.scale


def model():
    return ExtraState() if KIND == "extra_state" else Body()


def dataset(split):
    return images(120 if split == "train" else 40)


loss = F.cross_entropy


def optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def metrics():
    return {"accuracy": brim.metrics.accuracy()}
