"""A small perceptron under each optimizer: those of torch, those that people copy from papers, and
one that draws.
"""

import torch
from torch import nn
from torch.nn import functional as F
from toys import rows

from brim import param


class Lion(torch.optim.Optimizer):
    """Symbolic discovery of optimization algorithms (2302.06675), algorithm 2."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.99)):
        super().__init__(params, {"lr": lr, "betas": betas})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                average = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                p.add_((average * beta1 + p.grad * (1 - beta1)).sign_(), alpha=-group["lr"])
                average.mul_(beta2).add_(p.grad, alpha=1 - beta2)


class Lamb(torch.optim.Optimizer):
    """Large batch optimization for deep learning (1904.00962).

    Adam with a trust ratio per tensor.
    """

    def __init__(self, params, lr=1e-2):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["step"] = 0
                    state["m"], state["v"] = torch.zeros_like(p), torch.zeros_like(p)
                state["step"] += 1
                state["m"].mul_(0.9).add_(p.grad, alpha=0.1)
                state["v"].mul_(0.999).addcmul_(p.grad, p.grad, value=0.001)
                update = state["m"] / (state["v"].sqrt() + 1e-6)
                ratio = (p.norm() / update.norm()).clamp(0.1, 10.0).item() if p.norm() > 0 else 1.0
                p.add_(update, alpha=-group["lr"] * ratio)


class SGLD(torch.optim.Optimizer):
    """Bayesian learning via stochastic gradient Langevin dynamics: every update draws noise."""

    def __init__(self, params, lr=1e-2):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(p.grad, alpha=-group["lr"]).add_(
                    torch.randn_like(p), alpha=0.1 * group["lr"]
                )


class Counting(torch.optim.SGD):
    """Counts its steps in an attribute, outside its state, and warms up by it."""

    count = 0

    def step(self, closure=None):
        self.count += 1
        for group in self.param_groups:
            group["lr"] = 0.01 * min(self.count, 10)
        return super().step(closure)


class MasterWeights(torch.optim.Optimizer):
    """float32 copies and averages beside bfloat16 weights, as recipes for mixed precision keep
    them.
    """

    def __init__(self, params, lr=1e-2):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["master"], state["average"] = (
                        p.float().clone(),
                        torch.zeros_like(p).float(),
                    )
                state["average"].mul_(0.9).add_(p.grad.float())
                state["master"].add_(state["average"], alpha=-group["lr"])
                p.copy_(state["master"])


MADE = {
    "adadelta": lambda p: torch.optim.Adadelta(p, lr=1.0),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=1e-2),
    "adam_amsgrad_foreach": lambda p: torch.optim.Adam(p, lr=1e-2, amsgrad=True, foreach=True),
    "adamw_fused": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    "adamax": lambda p: torch.optim.Adamax(p, lr=1e-2),
    "asgd": lambda p: torch.optim.ASGD(p, lr=1e-2, t0=2.0),
    "counting": lambda p: Counting(p, lr=1e-2),
    "lamb": Lamb,
    "lion": Lion,
    "master_weights": MasterWeights,
    "nadam": lambda p: torch.optim.NAdam(p, lr=1e-2),
    "radam": lambda p: torch.optim.RAdam(p, lr=1e-2),
    "rmsprop_centered": lambda p: torch.optim.RMSprop(p, lr=1e-3, centered=True, momentum=0.9),
    "rprop": lambda p: torch.optim.Rprop(p, lr=1e-2),
    "sgd_maximize_foreach": lambda p: torch.optim.SGD(p, lr=1e-3, maximize=True, foreach=True),
    "sgld": SGLD,
    "sparse_adam": lambda p: torch.optim.SparseAdam(p, lr=1e-2),
    "sparse_momentum": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9),
}
KIND = param("optimizer", "adamw_fused")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1), nn.Flatten(0))
        self.type = torch.bfloat16 if KIND == "master_weights" else torch.float32
        self.net.to(self.type)

    def forward(self, x):
        return self.net(x.to(self.type)).float()


class Sparse(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag = nn.EmbeddingBag(50, 1, sparse=True)

    def forward(self, x):
        return self.bag((x.abs() * 15).long().clamp(max=49)).squeeze(1)


def model():
    if KIND.startswith("sparse"):
        return Sparse()
    return Net()


def dataset(split):
    return rows(120 if split == "train" else 40)


def loss(output, target):
    return F.binary_cross_entropy_with_logits(output, target)


def optimizer(model):
    return MADE[KIND](model.parameters())
