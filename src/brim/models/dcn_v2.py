"""DCN-V2: a network of explicit crosses beside the perceptron."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from brim.models.layers import ClickModel, Inputs, ItemPlaces, Table, flat_inputs, hidden_layers


class DCNV2(ClickModel):
    """Binary classifier over categorical fields and numbers.

    Args:
        vocabulary_size: ids over all fields, as a brim dataset counts them.
        fields: ids per sample, as a brim dataset counts them.
        numbers: numeric columns per sample.
        dim: embedding dimension.
        hidden: units of each hidden layer of the perceptron; none leaves the crosses alone.
        dropout: probability of dropping a hidden unit in training.
        crosses: layers of the cross network.
        sequences: `dataset.sequences`, where it has some: each is a field, the mean of its items.
        table: makes the table of ids, in place of one of `vocabulary_size` rows; see `DIN`.
        batch_norm: normalise hidden units over a micro-batch before ReLU.

    Source: Wang et al., "DCN V2: Improved Deep & Cross Network and Practical Lessons for Web-scale
    Learning to Rank Systems", WWW 2021, section 3: the parallel structure, with full matrices.
    """

    def __init__(
        self,
        vocabulary_size: int,
        fields: int,
        numbers: int = 0,
        dim: int = 16,
        hidden: Sequence[int] = (256, 128),
        dropout: float = 0.0,
        crosses: int = 3,
        sequences: Sequence[ItemPlaces] = (),
        table: Table | None = None,
        batch_norm: bool = False,
    ) -> None:
        super().__init__(vocabulary_size, fields, numbers, dim, sequences, table)
        self.crosses = nn.ModuleList(nn.Linear(self.width, self.width) for _ in range(crosses))
        deep = hidden_layers((self.width, *hidden), dropout, batch_norm=batch_norm)
        self.deep = nn.Sequential(*deep) if deep else None
        self.output = nn.Linear(self.width + (hidden[-1] if deep else 0), 1)

    def forward(self, inputs: Inputs) -> Tensor:
        """Logits [B] of inputs `ids` [B, P] and, where the model has any, `numbers` [B, N]."""
        x_BH = crossed_BH = flat_inputs(self.embed(inputs), inputs)
        for cross in self.crosses:
            crossed_BH = x_BH * cross(crossed_BH) + crossed_BH
        if self.deep is not None:
            crossed_BH = torch.cat([crossed_BH, self.deep(x_BH)], 1)
        logit_B1: Tensor = self.output(crossed_BH)
        return logit_B1.squeeze(1)
