"""Wide & Deep: a linear model that memorises and a perceptron that generalises.

They are trained together.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from brim.models.layers import (
    ClickModel,
    Inputs,
    ItemPlaces,
    Linear,
    Perceptron,
    Table,
    flat_inputs,
)


class WideDeep(ClickModel):
    """Binary classifier over categorical fields and numbers.

    Args:
        vocabulary_size: ids over all fields, as a brim dataset counts them.
        fields: ids per sample, as a brim dataset counts them.
        numbers: numeric columns per sample.
        dim: embedding dimension.
        hidden: units of each hidden layer.
        dropout: probability of dropping a hidden unit in training.
        sequences: `dataset.sequences`, where it has some: each is a field, the mean of its items.
        table: makes the table of ids, in place of one of `vocabulary_size` rows; see `DIN`.
        batch_norm: normalise hidden units over a micro-batch before ReLU.

    Source: Cheng et al., "Wide & Deep Learning for Recommender Systems", DLRS 2016, section 3.
    """

    def __init__(
        self,
        vocabulary_size: int,
        fields: int,
        numbers: int = 0,
        dim: int = 16,
        hidden: Sequence[int] = (256, 128),
        dropout: float = 0.0,
        sequences: Sequence[ItemPlaces] = (),
        table: Table | None = None,
        batch_norm: bool = False,
    ) -> None:
        super().__init__(vocabulary_size, fields, numbers, dim, sequences, table)
        self.wide = Linear(vocabulary_size, numbers, sequences, table)
        self.deep = Perceptron(self.width, hidden, dropout, batch_norm=batch_norm)

    def forward(self, inputs: Inputs) -> Tensor:
        """Logits [B] of inputs `ids` [B, F] and, where the model has any, `numbers` [B, N]."""
        embedded_BFD = self.embed(inputs)
        logit_B: Tensor = self.wide(inputs) + self.deep(flat_inputs(embedded_BFD, inputs))
        return logit_B
