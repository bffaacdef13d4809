"""Layers of the click models: tables over one space of ids, the linear part, the perceptron.

Shape suffixes: B samples, F fields, D embedding dimension, N numbers, H hidden units.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

Inputs = Mapping[str, Tensor]


class EmbeddingTable(nn.Embedding):
    """An embedding table, initialised from N(0, 0.01²), whose lookup is quick on a CPU.

    There `index_select` and its backward pass take 0.8 of the time of `F.embedding` (39 fields, dim
    16, batches of 512 and 4096, one thread). On a GPU its backward pass adds in no fixed order: not
    used there.
    """

    by_rows = (
        True  # `forward` looks up rows of `weight` and does nothing else with it, nor with the ids
    )

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=0.01)

    def forward(self, ids: Tensor) -> Tensor:
        if self.weight.device.type != "cpu":
            return functional.embedding(ids, self.weight)
        rows = self.weight.index_select(0, ids.flatten())
        return rows.view(*ids.shape, self.embedding_dim)


class Linear(nn.Module):
    """The wide part: one weight per id, one per number, and a bias; logits [B]."""

    def __init__(self, vocabulary_size: int, numbers: int) -> None:
        super().__init__()
        self.weight = EmbeddingTable(vocabulary_size, 1)
        self.numbers = nn.Linear(numbers, 1, bias=False) if numbers else None
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, inputs: Inputs) -> Tensor:
        logit_B: Tensor = self.weight(inputs["ids"]).squeeze(2).sum(1) + self.bias
        if self.numbers is not None:
            logit_B = logit_B + self.numbers(inputs["numbers"]).squeeze(1)
        return logit_B


class Perceptron(nn.Sequential):
    """Layers of ReLU, dropout where it is above 0, and one output unit; logits [B]."""

    def __init__(self, width: int, hidden: Sequence[int], dropout: float) -> None:
        super().__init__(*dense_layers((width, *hidden, 1), dropout))

    def forward(self, x_BH: Tensor) -> Tensor:
        for layer in self:
            x_BH = layer(x_BH)
        return x_BH.squeeze(1)


def dense_layers(widths: Sequence[int], dropout: float) -> list[nn.Module]:
    """Linear layers from one width to the next.

    Between them ReLU, and dropout where it is above 0.
    """
    layers: list[nn.Module] = []
    for width_in, width_out in pairwise(widths):
        layers += [nn.ReLU()] if layers else []
        layers += [nn.Dropout(dropout)] if layers and dropout else []
        layers.append(nn.Linear(width_in, width_out))
    return layers


def flat_inputs(embedded_BFD: Tensor, inputs: Inputs) -> Tensor:
    """Return the perceptron's input: a sample's embeddings side by side, then its numbers."""
    flat_BH = embedded_BFD.flatten(1)
    return torch.cat([flat_BH, inputs["numbers"]], 1) if "numbers" in inputs else flat_BH
