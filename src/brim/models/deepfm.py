"""DeepFM: a factorisation machine and a perceptron over the same embeddings."""

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


class DeepFM(ClickModel):
    """Binary classifier over categorical fields and numbers.

    Args:
        vocabulary_size: ids over all fields, as a brim dataset counts them.
        fields: ids per sample, as a brim dataset counts them.
        numbers: numeric columns per sample; they join the linear part and the perceptron.
        dim: embedding dimension.
        hidden: units of each hidden layer.
        dropout: probability of dropping a hidden unit in training.
        sequences: `dataset.sequences`, where it has some: each is a field, the mean of its items.
        table: makes the table of ids, in place of one of `vocabulary_size` rows; see `DIN`.
        batch_norm: normalise hidden units over a micro-batch before ReLU.

    Source: Guo et al., "DeepFM: A Factorization-Machine based Neural Network for CTR Prediction",
    IJCAI 2017, equations 1 to 4.
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
        self.linear = Linear(vocabulary_size, numbers, sequences, table)
        self.deep = Perceptron(self.width, hidden, dropout, batch_norm=batch_norm)

    def forward(self, inputs: Inputs) -> Tensor:
        """Logits [B] of inputs `ids` [B, F] and, where the model has any, `numbers` [B, N]."""
        embedded_BFD = self.embed(inputs)
        deep_B = self.deep(flat_inputs(embedded_BFD, inputs))
        logit_B: Tensor = self.linear(inputs) + _pairs(embedded_BFD) + deep_B
        return logit_B


def _pairs(embedded_BFD: Tensor) -> Tensor:
    # The sum of all inner products <e_i, e_j>, i < j, in O(F D): half of (square of sum - sum of
    # squares).
    square_of_sum_BD = embedded_BFD.sum(1).square()
    sum_of_squares_BD = embedded_BFD.square().sum(1)
    return 0.5 * (square_of_sum_BD - sum_of_squares_BD).sum(1)
