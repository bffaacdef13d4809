"""Layers that reparametrise, drop, quantise or compute in their own way;
`--set kind=` picks one.
"""

import random

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint
from toys import images

import brim
from brim import param

KIND = param("kind", "spectral_norm")


class StochasticDepth(nn.Module):
    """Deep networks with stochastic depth: a block is left out for a whole batch, or for single
    rows.
    """

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            if self.training and random.random() < 0.3:
                continue
            keep = (torch.rand(len(x), 1) < 0.8) / 0.8 if self.training else 1.0
            x = x + F.relu(block(x)) * keep
        return x


class LoRA(nn.Module):
    """microsoft/LoRA: the base is frozen, two narrow matrices learn."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(16, 16).requires_grad_(False)
        self.lora_A, self.lora_B = (
            nn.Parameter(torch.randn(2, 16) * 0.1),
            nn.Parameter(torch.zeros(16, 2)),
        )

    def forward(self, x):
        return self.base(x) + x @ self.lora_A.T @ self.lora_B.T


class Sign(torch.autograd.Function):
    """A straight-through estimator."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sign()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * (x.abs() < 1)


class Binarised(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(16, 16)

    def forward(self, x):
        return Sign.apply(self.fc(x))


class Observed(nn.Module):
    """Quantisation-aware: a running range in buffers, and values rounded to it."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(16, 16)
        self.register_buffer("low", torch.tensor(0.0))
        self.register_buffer("high", torch.tensor(0.0))

    def forward(self, x):
        x = self.fc(x)
        if self.training:
            self.low.lerp_(x.detach().min(), 0.1)
            self.high.lerp_(x.detach().max(), 0.1)
        scale = float((self.high - self.low).clamp(min=1e-3)) / 255
        return torch.fake_quantize_per_tensor_affine(x, scale, 0, -128, 127)


class FakeQuantised(nn.Module):
    """torch's own observers, which give their buffers new shapes as they begin."""

    def __init__(self):
        super().__init__()
        from torch.ao.quantization import FakeQuantize, MovingAveragePerChannelMinMaxObserver

        self.fc = nn.Linear(16, 16)
        observer = MovingAveragePerChannelMinMaxObserver
        self.fake = FakeQuantize(observer=observer, quant_min=0, quant_max=255, ch_axis=1)

    def forward(self, x):
        return self.fake(self.fc(x))


class Complex(nn.Module):
    """Weights of complex numbers, in a Fourier layer."""

    def __init__(self):
        super().__init__()
        self.filter = nn.Parameter(torch.randn(9, dtype=torch.complex64))

    def forward(self, x):
        return torch.fft.irfft(torch.fft.rfft(x) * self.filter, n=16)


class Checkpointed(nn.Module):
    """Computes its dropout again in the backward pass."""

    def __init__(self):
        super().__init__()
        self.block = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.3), nn.ReLU())

    def forward(self, x):
        return checkpoint(self.block, x, use_reentrant=False)


class Experts(nn.Module):
    """A mixture of experts: an unchosen one has no gradient in a micro-batch."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(16, 3)
        self.experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def forward(self, x):
        weights, chosen = self.gate(x).softmax(-1).max(-1)
        out = torch.zeros_like(x)
        for number in chosen.unique().tolist():
            rows = chosen == number
            out = out.index_put((rows,), self.experts[number](x[rows]) * weights[rows, None])
        return out


class Hooked(nn.Module):
    """Reverses its gradient by a hook, as domain adaptation does."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(16, 16)
        self.fc.weight.register_hook(lambda gradient: gradient * 0.5)

    def forward(self, x):
        x = self.fc(x)
        if x.requires_grad:
            x.register_hook(lambda gradient: -gradient)
        return x


class Compiled(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.compile(nn.Sequential(nn.Linear(16, 16), nn.GELU()), backend="eager")

    def forward(self, x):
        return self.inner(x)


class Masked(nn.Module):
    """Attention with a causal mask of minus infinities, as TransformerModel keeps it."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(4, 12)
        self.register_buffer("mask", torch.full((4, 4), float("-inf")).triu(1))

    def forward(self, x):
        q, k, v = self.qkv(x.unflatten(1, (4, 4))).chunk(3, dim=-1)
        return ((q @ k.transpose(1, 2) / 2 + self.mask).softmax(-1) @ v).flatten(1)


class OddBuffers(nn.Module):
    """Constants of many types, one expanded, one empty, and one that takes part in the state of
    nothing.
    """

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(16, 16)
        for dtype in (
            torch.bool,
            torch.uint8,
            torch.int16,
            torch.float16,
            torch.float64,
            torch.complex64,
        ):
            self.register_buffer(f"of_{dtype}".replace("torch.", ""), torch.ones(3).to(dtype))
        self.register_buffer("expanded", torch.ones(1).expand(16))
        self.register_buffer("empty", torch.zeros(0))
        self.register_buffer("nothing", None)

    def forward(self, x):
        return self.fc(x) * self.expanded


class Rotary(nn.Module):
    """Makes its tables when it first needs them, as rotary embeddings do."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(16, 16)
        self.register_buffer("cos", None, persistent=False)

    def forward(self, x):
        if self.cos is None:
            self.register_buffer("cos", torch.arange(16).div(16).cos(), persistent=False)
        return self.fc(x) * self.cos


class OddParameters(nn.Module):
    """A weight that lies transposed, an empty one, a number, and one that is never used."""

    def __init__(self):
        super().__init__()
        self.transposed = nn.Parameter((torch.randn(16, 16) * 0.1).t())
        self.empty = nn.Parameter(torch.zeros(0))
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, x):
        return x @ self.transposed * self.scale + self.empty.sum()


class MonteCarlo(nn.Module):
    """Drops out in evaluation too."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(16, 16)

    def forward(self, x):
        return F.dropout(self.fc(x), 0.3, training=True)


LAYERS = {
    "batch_norm_cumulative": lambda: nn.BatchNorm1d(16, momentum=None),
    "binarised": Binarised,
    "checkpointed": Checkpointed,
    "compiled": Compiled,
    "complex": Complex,
    "experts": Experts,
    "fake_quantised": FakeQuantised,
    "group_norm": lambda: nn.Sequential(nn.Linear(16, 16), nn.GroupNorm(4, 16)),
    "hooked": Hooked,
    "lazy": lambda: nn.LazyLinear(16),
    "lora": LoRA,
    "masked": Masked,
    "monte_carlo": MonteCarlo,
    "observed": Observed,
    "odd_buffers": OddBuffers,
    "odd_parameters": OddParameters,
    "rotary": Rotary,
    "spectral_norm": lambda: parametrizations.spectral_norm(nn.Linear(16, 16)),
    "stochastic_depth": StochasticDepth,
    "sync_batch_norm": lambda: nn.SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm1d(16)),
    "weight_norm": lambda: parametrizations.weight_norm(nn.Linear(16, 16)),
}
TYPES = {"float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        inner = LAYERS[KIND]() if KIND in LAYERS else nn.Linear(16, 16)
        self.net = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 16), inner, nn.ReLU(), nn.Linear(16, 4)
        )
        self.net.to(TYPES.get(KIND, torch.float32))

    def forward(self, x):
        if KIND == "autocast":
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return self.net(x).float()
        return self.net(x.to(TYPES.get(KIND, torch.float32))).float()


def model():
    return Net()


def dataset(split):
    return images(120 if split == "train" else 40)


loss = F.cross_entropy


def optimizer(model):
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    eps = 1e-3 if KIND == "float16" else 1e-8  # the usual one is 0 in float16
    return torch.optim.AdamW(trained, lr=1e-2, eps=eps)


def metrics():
    return {"accuracy": brim.metrics.accuracy()}
