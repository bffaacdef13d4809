"""Optimizers that keep more than tensors and numbers, in the style of libraries of them;
`--set optimizer=` picks one.
"""

import random

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from toys import rows

from brim import param


class Stepping(torch.optim.Optimizer):
    """Their common part: a state for each parameter."""

    def __init__(self, params, lr=1e-2):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(self.update(self.state[p], p.grad), alpha=-group["lr"])


class Projector:
    """An object per matrix that projects, as galore-torch keeps them in the state."""

    def __init__(self, rank):
        self.rank, self.calls, self.basis = rank, 0, None

    def project(self, grad):
        if self.calls % 3 == 0:
            self.basis = torch.linalg.svd(grad, full_matrices=False)[0][:, : self.rank]
        self.calls += 1
        return self.basis @ (self.basis.T @ grad)


class Projected(Stepping):
    def update(self, state, grad):
        if grad.dim() < 2:
            return grad
        if "projector" not in state:
            state["projector"] = Projector(2)
        return state["projector"].project(grad)


class Coded(Tensor):
    """A tensor of 8 bits with a scale, a subclass by torch's protocol, as torchao's optimizers keep."""

    @staticmethod
    def __new__(cls, codes, scale):
        wrapper = Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.float32)
        wrapper.codes, wrapper.scale = codes, scale
        return wrapper

    def __init__(self, codes, scale):
        pass

    def __tensor_flatten__(self):
        return ["codes", "scale"], [torch.int8]

    @classmethod
    def __tensor_unflatten__(cls, inner, about, size, stride):
        return cls(inner["codes"], inner["scale"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func in (torch.ops.aten._to_copy.default, torch.ops.aten.detach.default):
            return cls(args[0].codes, args[0].scale)
        raise NotImplementedError(func)


class EightBits(Stepping):
    def update(self, state, grad):
        average = grad
        if "average" in state:
            coded = state["average"]
            average = 0.9 * coded.codes.float() * coded.scale + grad
        scale = average.abs().max() / 127 + 1e-12
        state["average"] = Coded((average / scale).round().to(torch.int8), scale)
        return average


class OddState(Stepping):
    """Sets, types and text beside tensors, as heavyball and pytorch-optimizer have them."""

    def __init__(self, params):
        super().__init__(params)
        self.param_groups[0]["storage"] = torch.bfloat16
        self.param_groups[0]["exclude"] = {"bias", "norm"}

    def update(self, state, grad):
        if not state:
            state["seen"], state["kind"] = set(), "first"
            state["average"] = torch.zeros_like(grad, dtype=self.param_groups[0]["storage"])
        assert state["kind"] == ("first" if not state["seen"] else "later")
        assert state["average"].dtype == torch.bfloat16
        state["seen"].add(len(state["seen"]))
        state["kind"] = "later"
        state["average"].mul_(0.9).add_(grad)
        return state["average"].float()


class Lookahead(torch.optim.Optimizer):
    """Around another optimizer, with a state_dict of its own form, as pytorch-optimizer's."""

    def __init__(self, inner):
        self.inner, self.slow, self.count = inner, {}, 0
        super().__init__(inner.param_groups, {})
        self.param_groups = inner.param_groups

    @torch.no_grad()
    def step(self, closure=None):
        self.inner.step()
        self.count += 1
        for group in self.param_groups:
            for p in group["params"]:
                slow = self.slow.setdefault(p, p.clone())
                if self.count % 2 == 0:
                    p.copy_(slow.lerp_(p, 0.5))

    def state_dict(self):
        slow = {index: self.slow[p] for index, p in enumerate(self._all()) if p in self.slow}
        return {"slow": slow, "inner": self.inner.state_dict()}

    def load_state_dict(self, state):
        self.inner.load_state_dict(state["inner"])
        parameters = self._all()
        self.slow = {parameters[index]: value.clone() for index, value in state["slow"].items()}

    def _all(self):
        return [p for group in self.param_groups for p in group["params"]]


class Drawing(Stepping):
    """Draws by a generator of its own when it does more, as PSGD's Kron."""

    def __init__(self, params):
        super().__init__(params)
        self.random = random.Random(5)

    def update(self, state, grad):
        return grad * (2.0 if self.random.random() < 0.5 else 0.5)


class Keeping(Stepping):
    """Keeps a function for each parameter, which cannot be carried."""

    def update(self, state, grad):
        state.setdefault("rule", lambda gradient: gradient.sign())
        return state["rule"](grad)


class Prepared(torch.optim.Optimizer):
    """Wraps an optimizer without torch's own __init__, as accelerate's and opacus's do."""

    def __init__(self, inner):
        self.inner, self.param_groups, self.state = inner, inner.param_groups, inner.state

    def step(self, closure=None):
        self.inner.step()


MADE = {
    "drawing": Drawing,
    "eight_bits": EightBits,
    "keeping": Keeping,
    "lookahead": lambda p: Lookahead(torch.optim.Adam(p, lr=1e-2)),
    "odd_state": OddState,
    "prepared": lambda p: Prepared(torch.optim.SGD(p, lr=0.1)),
    "projected": Projected,
}
KIND = param("optimizer", "projected")


def model():
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1), nn.Flatten(0))


def dataset(split):
    return rows(120 if split == "train" else 40)


def loss(output, target):
    return F.binary_cross_entropy_with_logits(output, target)


def optimizer(model):
    return MADE[KIND](model.parameters())
