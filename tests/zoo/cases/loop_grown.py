"""Networks that a first forward pass changes, in a loop of one's own; the first word picks one."""

import sys

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel
from toys import images

import brim

KIND = sys.argv[1]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh())
        self.head = nn.Linear(16, 4)
        self.size, self.is_built, self.widest = None, False, None
        if KIND.startswith("averaged"):
            self.average = AveragedModel(self.head, avg_fn=lambda a, b, n: a.lerp(b, 1 / (n + 1)))
            self.average.requires_grad_(False)
        if KIND == "quantized":  # vector-quantize-pytorch: a codebook that asks for a gradient
            self.register_buffer("codes", torch.randn(8, 16).requires_grad_())
            self.register_buffer("counts", torch.ones(8))
        if KIND == "spiking":  # snntorch: a membrane that takes the shape of the samples
            self.register_buffer("membrane", torch.zeros(0), persistent=False)
        if KIND in ("initialised", "initialised_before"):  # gpytorch: variational parameters
            self.register_buffer("is_set", torch.tensor(0))
            self.mean = nn.Parameter(torch.zeros(16))
        if KIND == "metric":
            from torchmetrics.classification import MulticlassAccuracy

            self.accuracy = MulticlassAccuracy(num_classes=4)

    def forward(self, x):
        x = self.body(x)
        match KIND:
            case "cache":  # torchvision, transformers, Keras: what depends on shapes alone
                if self.size is None:
                    self.size, self.is_built = x.shape[1], True
            case "learned_cache":  # of the samples that a worker happens to see first
                if self.widest is None:
                    self.widest = x.abs().max().item()
                x = x / self.widest
            case "quantized":
                nearest = torch.cdist(x, self.codes).argmin(1)
                if self.training:
                    seen = F.one_hot(nearest, 8).float()
                    self.counts.data.mul_(0.9).add_(seen.sum(0), alpha=0.1)
                    self.codes.data.lerp_((seen.T @ x.detach()) / (seen.sum(0)[:, None] + 1), 0.1)
                x = x + (self.codes[nearest] - x).detach()
            case "spiking":
                self.membrane = torch.zeros_like(self.membrane)
                if self.membrane.shape != x.shape:
                    self.membrane = torch.zeros_like(x)
                for _ in range(3):
                    self.membrane = 0.9 * self.membrane + x
                x = self.membrane
            case "initialised" | "initialised_before":
                if not self.is_set:
                    self.mean.data.copy_(x.detach().mean(0))
                    self.is_set.fill_(1)
                x = x - self.mean
            case "averaged_in_forward":
                if self.training:
                    self.average.update_parameters(self.head)
        return self.head(x)


torch.manual_seed(0)
model = Net()
data = images(120)
if KIND == "initialised_before":
    model(data.tensors[0][:15])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

job = brim.join(model, optimizer)
for _ in job.epochs(2):
    for batch in job.batches(data, global_batch_size=24):
        output = model(batch.inputs)
        if KIND == "metric":
            model.accuracy(output, batch.target)
        loss = job.step(F.cross_entropy(output, batch.target))
        if KIND == "averaged" and loss is not None:
            model.average.update_parameters(model.head)
if KIND == "averaged":
    assert model.average.n_averaged == 10, model.average.n_averaged
