"""Wide & Deep: a linear model that memorises and a perceptron that generalises.

They are trained together.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from brim.models.layers import EmbeddingTable, Inputs, Linear, Perceptron, flat_inputs


class WideDeep(nn.Module):
    """Binary classifier over categorical fields and numbers.

    Args:
        vocabulary_size: ids over all fields, as a brim dataset counts them.
        fields: categorical fields per sample.
        numbers: numeric columns per sample.
        dim: embedding dimension.
        hidden: units of each hidden layer.
        dropout: probability of dropping a hidden unit in training.

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
    ) -> None:
        super().__init__()
        self.embedding = EmbeddingTable(vocabulary_size, dim)
        self.wide = Linear(vocabulary_size, numbers)
        self.deep = Perceptron(fields * dim + numbers, hidden, dropout)

    def forward(self, inputs: Inputs) -> Tensor:
        """Logits [B] of inputs `ids` [B, F] and, where the model has any, `numbers` [B, N]."""
        embedded_BFD = self.embedding(inputs["ids"])
        logit_B: Tensor = self.wide(inputs) + self.deep(flat_inputs(embedded_BFD, inputs))
        return logit_B
