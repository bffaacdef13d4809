"""A GPT of 30 million weights that stay as they are, with LoRA by hand: half a million that train."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from brim import param

WIDTH, HEADS, LAYERS, WORDS, LENGTH = 512, 8, 8, 8192, 32
RANK = 8
SAMPLES = param("samples", 512)


class Adapted(nn.Module):
    """A frozen linear layer, and two small matrices beside it that are trained."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, outputs).requires_grad_(False)
        self.down = nn.Parameter(torch.randn(RANK, inputs) / inputs**0.5)
        self.up = nn.Parameter(torch.zeros(outputs, RANK))

    def forward(self, hidden: Tensor) -> Tensor:
        found: Tensor = self.base(hidden) + hidden @ self.down.t() @ self.up.t()
        return found


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first_norm, self.second_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        for norm in (self.first_norm, self.second_norm):
            norm.requires_grad_(False)
        self.attention, self.out = Adapted(WIDTH, 3 * WIDTH), Adapted(WIDTH, WIDTH)
        self.wide, self.narrow = Adapted(WIDTH, 4 * WIDTH), Adapted(4 * WIDTH, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        shape = (*hidden.shape[:2], HEADS, WIDTH // HEADS)
        heads = self.attention(self.first_norm(hidden)).chunk(3, -1)
        queries, keys, values = (part.view(shape).transpose(1, 2) for part in heads)
        mixed = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        hidden = hidden + self.out(mixed.transpose(1, 2).flatten(2))
        found: Tensor = hidden + self.narrow(functional.gelu(self.wide(self.second_norm(hidden))))
        return found


class Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH).requires_grad_(False)
        self.places = nn.Embedding(LENGTH, WIDTH).requires_grad_(False)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))

    def forward(self, words: Tensor) -> Tensor:
        hidden = self.words(words) + self.places.weight
        found: Tensor = self.blocks(hidden) @ self.words.weight.t()
        return found


def model() -> nn.Module:
    return Gpt()


def loss(output: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(output.flatten(0, 1), target.flatten())


def optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam([part for part in model.parameters() if part.requires_grad])


def dataset(split: str) -> Any:
    chance = torch.Generator().manual_seed(len(split))
    words = torch.randint(WORDS, (SAMPLES if split == "train" else 8, LENGTH + 1), generator=chance)
    return TensorDataset(words[:, :-1], words[:, 1:])
