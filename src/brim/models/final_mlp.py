"""FinalMLP: two perceptrons that look at other features, and a bilinear fusion of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from brim.models.layers import (
    ClickModel,
    Inputs,
    ItemPlaces,
    Table,
    dense_layers,
    flat_inputs,
    hidden_layers,
)


class FinalMLP(ClickModel):
    """Binary classifier over categorical fields and numbers.

    Args:
        vocabulary_size: ids over all fields, as a brim dataset counts them.
        fields: ids per sample, as a brim dataset counts them.
        numbers: numeric columns per sample.
        dim: embedding dimension.
        hidden: units of each hidden layer, of both perceptrons; at least one layer.
        dropout: probability of dropping a hidden unit in training.
        contexts: for each perceptron, the fields (from 0, each sequence one) by whose embeddings
            it selects features, such as those of the user and those of the item; none selects
            them alike for all samples.
        heads: parts into which the fusion divides the last layer; a divisor of its units.
        gate: units of the hidden layer that selects features.
        sequences: `dataset.sequences`, where it has some: each is a field, the mean of its items.
        table: makes the table of ids, in place of one of `vocabulary_size` rows; see `DIN`.
        batch_norm: normalise hidden units over a micro-batch before ReLU.

    Raises:
        ValueError: no hidden layer, or one that the heads do not divide.

    Source: Mao et al., "FinalMLP: An Enhanced Two-Stream MLP Model for CTR Prediction", AAAI 2023,
    sections 3.2 (selection) and 3.3 (fusion).
    """

    def __init__(
        self,
        vocabulary_size: int,
        fields: int,
        numbers: int = 0,
        dim: int = 16,
        hidden: Sequence[int] = (256, 128),
        dropout: float = 0.0,
        contexts: tuple[Sequence[int], Sequence[int]] = ((), ()),
        heads: int = 2,
        gate: int = 64,
        sequences: Sequence[ItemPlaces] = (),
        table: Table | None = None,
        batch_norm: bool = False,
    ) -> None:
        if not hidden or hidden[-1] % heads:
            raise ValueError(f"heads={heads} is no divisor of the last of hidden={tuple(hidden)}")
        super().__init__(vocabulary_size, fields, numbers, dim, sequences, table)
        self.streams = nn.ModuleList(
            _Stream(self.width, dim, hidden, dropout, context, gate, batch_norm=batch_norm)
            for context in contexts
        )
        self.outputs = nn.ModuleList(nn.Linear(hidden[-1], 1) for _ in contexts)
        part = hidden[-1] // heads
        self.fusion = nn.Parameter(torch.empty(heads, part, part))
        nn.init.xavier_normal_(self.fusion)

    def forward(self, inputs: Inputs) -> Tensor:
        """Logits [B] of inputs `ids` [B, P] and, where the model has any, `numbers` [B, N]."""
        embedded_BFD = self.embed(inputs)
        x_BH = flat_inputs(embedded_BFD, inputs)
        first_BH, second_BH = (stream(x_BH, embedded_BFD) for stream in self.streams)
        first, second = self.outputs
        logit_B: Tensor = (first(first_BH) + second(second_BH)).squeeze(1)
        heads, part, _ = self.fusion.shape
        left_KBH = first_BH.view(-1, heads, part).transpose(0, 1)
        right_KBH = second_BH.view(-1, heads, part).transpose(0, 1)
        fused_B: Tensor = ((left_KBH @ self.fusion) * right_KBH).sum((0, 2))
        return logit_B + fused_B


class _Stream(nn.Module):
    """A perceptron behind the selection of its features; K heads, H units."""

    def __init__(
        self,
        width: int,
        dim: int,
        hidden: Sequence[int],
        dropout: float,
        context: Sequence[int],
        gate: int,
        *,
        batch_norm: bool,
    ) -> None:
        super().__init__()
        self.context = tuple(context)
        self.own_context = None if self.context else nn.Parameter(torch.zeros(1, dim))
        self.gate = nn.Sequential(*dense_layers((max(1, len(self.context)) * dim, gate, width), 0))
        self.deep = nn.Sequential(*hidden_layers((width, *hidden), dropout, batch_norm=batch_norm))

    def forward(self, x_BH: Tensor, embedded_BFD: Tensor) -> Tensor:
        context_BH = (
            embedded_BFD[:, self.context].flatten(1)
            if self.own_context is None
            else self.own_context
        )
        deep_BH: Tensor = self.deep(x_BH * 2.0 * torch.sigmoid(self.gate(context_BH)))
        return deep_BH
