"""DIN: what a user did before, weighed by how much it says about the item shown."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from brim.models.layers import (
    ClickModel,
    Inputs,
    ItemPlaces,
    Perceptron,
    Table,
    flat_inputs,
    items_of,
    mean_of_items,
    replace_items,
)


class DIN(ClickModel):
    """Binary classifier over sequences, categorical fields and numbers.

    Args:
        vocabulary_size: ids over all fields, as a brim dataset counts them.
        fields: ids per sample, as a brim dataset counts them.
        numbers: numeric columns per sample.
        dim: embedding dimension.
        hidden: units of each hidden layer.
        dropout: probability of dropping a hidden unit in training.
        attention: units of each hidden layer of the network that weighs an item.
        sequences: `dataset.sequences`. Of one with items of another column (`of=`), the items are
            weighed by that column's; of any other, the mean counts.
        table: makes the table of ids from its dimension, in place of one of `vocabulary_size` rows:
            `functools.partial(brim.Embedding, limit=2_000_000)`, for hashed ids.
        batch_norm: normalise hidden units over a micro-batch before ReLU.

    Source: Zhou et al., "Deep Interest Network for Click-Through Rate Prediction", KDD 2018,
    section 4.3: weights that are not normalised, with ReLU in place of Dice.
    """

    def __init__(
        self,
        vocabulary_size: int,
        fields: int,
        numbers: int = 0,
        dim: int = 16,
        hidden: Sequence[int] = (256, 128),
        dropout: float = 0.0,
        attention: Sequence[int] = (64, 32),
        sequences: Sequence[ItemPlaces] = (),
        table: Table | None = None,
        batch_norm: bool = False,
    ) -> None:
        super().__init__(vocabulary_size, fields, numbers, dim, sequences, table)
        self.attentions = nn.ModuleList(
            nn.Identity() if places.candidate is None else Perceptron(4 * dim, attention, 0.0)
            for places in self.sequences
        )
        self.deep = Perceptron(self.width, hidden, dropout, batch_norm=batch_norm)

    def forward(self, inputs: Inputs) -> Tensor:
        """Logits [B] of inputs `ids` [B, P] and, where the model has any, `numbers` [B, N]."""
        ids_BP = inputs["ids"]
        x_BPD = self.look_up(inputs)
        interests = [
            mean_of_items(x_BPD, ids_BP, places)
            if places.candidate is None
            else _interest(x_BPD, ids_BP, places, places.candidate, attention)
            for places, attention in zip(self.sequences, self.attentions, strict=True)
        ]
        x_BFD = replace_items(x_BPD, self.sequences, interests)
        logit_B: Tensor = self.deep(flat_inputs(x_BFD, inputs))
        return logit_B


def _interest(
    x_BPD: Tensor, ids_BP: Tensor, places: ItemPlaces, candidate: int, attention: nn.Module
) -> Tensor:
    """The sum of a sequence's items, each by its weight; [B, D]."""
    items_BLD, is_item_BL = items_of(x_BPD, ids_BP, places)
    candidate_BLD = x_BPD[:, candidate].unsqueeze(1).expand_as(items_BLD)
    features = (candidate_BLD, items_BLD, candidate_BLD - items_BLD, candidate_BLD * items_BLD)
    # All items of all samples at once, as rows of the perceptron.
    weights_BL = attention(torch.cat(features, 2).flatten(0, 1)).view_as(is_item_BL)
    interest_BD: Tensor = (items_BLD * (weights_BL * is_item_BL).unsqueeze(2)).sum(1)
    return interest_BD
