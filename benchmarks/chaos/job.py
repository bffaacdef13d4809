"""The model of chaos runs: a small CNN with all kinds of state to carry from worker to worker, on
made-up images.

BatchNorm has buffers, dropout and the noise draw chance, momentum and the schedule are state of the
optimizer; and nothing is imported beside torch, since most of a short run is its start. With a
pause, a micro-batch takes as long as on an accelerator of one's own: where there are more workers
than cores, a job with more of them is faster.
"""

import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import brim

PAUSE = brim.param("pause", 0.0)  # seconds for each micro-batch


class Images(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    def __init__(self, size: int, seed: int) -> None:
        chance = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(0, 4, (size,), generator=chance)
        corners = torch.zeros(4, 1, 8, 8)
        for label in range(4):
            corners[label, 0, 4 * (label // 2) :, 4 * (label % 2) :][:4, :4] = 1.0
        self.images = corners[self.labels] + 0.8 * torch.randn(size, 1, 8, 8, generator=chance)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.images[index] + 0.01 * torch.randn(1, 8, 8), self.labels[index]


class Waits(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        if self.training and PAUSE:
            time.sleep(PAUSE)
        return inputs


def dataset(split: str) -> Images:
    return Images(1500, seed=0) if split == "train" else Images(300, seed=1)


def model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(128, 64),
        nn.ReLU(),
        nn.Linear(64, 4),
        Waits(),
    )


loss = functional.cross_entropy


def optimizer(
    model: nn.Module,
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    sgd = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return sgd, torch.optim.lr_scheduler.StepLR(sgd, step_size=1, gamma=0.9)


def metrics() -> dict[str, Any]:
    return {"accuracy": brim.metrics.accuracy()}
