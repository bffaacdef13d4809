"""Optimizers that keep factors of matrices, which LAPACK returns by columns; `--set optimizer=`
picks one.
"""

import torch
from torch import nn
from torch.nn import functional as F
from toys import rows

from brim import param


class Preconditioned(torch.optim.Optimizer):
    """Their common part: a state for each parameter, and vectors that go by plain descent."""

    def __init__(self, params, lr=1e-2):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                update = self.update(self.state[p], p.grad) if p.dim() == 2 else p.grad
                p.add_(update, alpha=-group["lr"])


class SOAP(Preconditioned):
    """Improving and stabilizing Shampoo using Adam (2409.11321): Adam in a rotating basis."""

    def update(self, state, grad):
        if not state:
            state["step"] = 0
            state["GG"] = [grad @ grad.T, grad.T @ grad]
            state["Q"] = [torch.linalg.eigh(factor)[1].flip(1) for factor in state["GG"]]
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(grad), torch.zeros_like(grad)
        state["step"] += 1
        left, right = state["Q"]
        turned = left.T @ grad @ right
        state["exp_avg"].lerp_(grad, 0.1)
        state["exp_avg_sq"].mul_(0.95).addcmul_(turned, turned, value=0.05)
        step = (left.T @ state["exp_avg"] @ right) / (state["exp_avg_sq"].sqrt() + 1e-8)
        update = left @ step @ right.T
        for index, seen in enumerate((grad @ grad.T, grad.T @ grad)):
            state["GG"][index].lerp_(seen, 0.05)
            turn = state["GG"][index] @ state["Q"][index]
            state["Q"][index] = torch.linalg.qr(turn)[0]
        return update


class Shampoo(Preconditioned):
    """Preconditioned stochastic tensor optimization (1802.09568), with roots by eigenvectors.

    It keeps the results of `eigh`, as many implementations do to take roots of other powers later.
    """

    def update(self, state, grad):
        if not state:
            state["left"], state["right"] = (torch.eye(size) * 1e-3 for size in grad.shape)
        state["left"] += grad @ grad.T
        state["right"] += grad.T @ grad
        for side in ("left", "right"):
            if state.setdefault(f"{side}_age", 0) % 3 == 0:
                state[f"{side}_eigen"] = torch.linalg.eigh(state[side])
            state[f"{side}_age"] += 1
        return self.root(state["left_eigen"]) @ grad @ self.root(state["right_eigen"])

    def root(self, eigen):
        return (
            eigen.eigenvectors * eigen.eigenvalues.clamp(min=1e-6) ** -0.25 @ eigen.eigenvectors.T
        )


class Kron(Preconditioned):
    """Preconditioned SGD by triangular factors (PSGD), the factors of which are transposed views."""

    def update(self, state, grad):
        if not state:
            state["Q"] = tuple(torch.eye(size).T for size in grad.shape)
            state["exprs"] = {"grad": "ab,ac,bd->cd", "kinds": ("triangular", "triangular")}
        left, right = state["Q"]
        whitened = left @ grad @ right.T
        moved = []
        for factor, seen in ((left, whitened @ whitened.T), (right, whitened.T @ whitened)):
            size = seen.norm() + 1e-8
            updated = factor - 0.1 * torch.triu((seen / size - torch.eye(len(seen)) / 8) @ factor)
            moved.append(torch.linalg.solve_triangular(torch.eye(len(seen)), updated, upper=True))
        state["Q"] = tuple(moved)
        assert state["exprs"]["kinds"][0] == "triangular"
        return left.T @ whitened @ right


class GaLore(Preconditioned):
    """Memory-efficient training by gradient low-rank projection (2403.03507): Adam in a subspace.

    Its projection is a part of a larger matrix, with gaps in memory between its numbers.
    """

    def update(self, state, grad):
        if not state:
            state["step"] = 0
        if state["step"] % 4 == 0:
            state["projector"] = torch.linalg.svd(grad, full_matrices=False)[2][:4]
        low = grad @ state["projector"].T
        if not state["step"]:
            state["m"], state["v"] = torch.zeros_like(low), torch.zeros_like(low)
        state["step"] += 1
        state["m"].lerp_(low, 0.1)
        state["v"].mul_(0.99).addcmul_(low, low, value=0.01)
        return (state["m"] / (state["v"].sqrt() + 1e-6)) @ state["projector"]


MADE = {"galore": GaLore, "kron": Kron, "shampoo": Shampoo, "soap": SOAP}
KIND = param("optimizer", "soap")


def model():
    return nn.Sequential(
        nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 32), nn.Tanh(), nn.Linear(32, 1), nn.Flatten(0)
    )


def dataset(split):
    return rows(120 if split == "train" else 40)


def loss(output, target):
    return F.binary_cross_entropy_with_logits(output, target)


def optimizer(model):
    return MADE[KIND](model.parameters())
