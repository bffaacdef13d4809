"""Two towers: users and items are embedded apart.

The items for a user are those whose vectors are nearest.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from brim.models.layers import EmbeddingTable, Inputs, dense_layers


class TwoTower(nn.Module):
    """Scores of users for items.

    A score is the cosine of the two towers' vectors, divided by a temperature.

    Args:
        vocabulary_size: ids over all fields, as a brim dataset counts them.
        user_fields: fields of the user, which come first in a sample's ids.
        item_fields: fields of the item, which come behind them.
        dim: embedding dimension.
        units: units of each layer of a tower; the last layer's are the vector of a user, or an
            item.
        dropout: probability of dropping a hidden unit in training.
        temperature: what cosines are divided by.
        counts: of each id in the training rows, [vocabulary_size]. With it the model is for
            `in_batch_softmax`: in training it scores each user of a batch for each item of it, less
            the logarithm of how often the item (the first of its fields) occurs, since popular
            items are in more batches. Ones correct nothing.

    Source: Yi et al., "Sampling-Bias-Corrected Neural Modeling for Large Corpus Item
    Recommendations", RecSys 2019, section 3; here the counts are known before.
    """

    log_counts: Tensor | None

    def __init__(
        self,
        vocabulary_size: int,
        user_fields: int,
        item_fields: int,
        dim: int = 16,
        units: Sequence[int] = (64, 32),
        dropout: float = 0.0,
        temperature: float = 0.1,
        counts: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.user_fields, self.item_fields = user_fields, item_fields
        self.temperature = temperature
        self.embedding = EmbeddingTable(vocabulary_size, dim)
        self.user_tower = nn.Sequential(*dense_layers((user_fields * dim, *units), dropout))
        self.item_tower = nn.Sequential(*dense_layers((item_fields * dim, *units), dropout))
        log_counts = None if counts is None else counts.clamp(min=1).log()
        self.register_buffer("log_counts", log_counts, persistent=False)

    def forward(self, inputs: Inputs) -> Tensor:
        """Logits [B] of inputs `ids` [B, F]: of each sample's user for its item.

        With `counts`, in training: [B, B], of user i for item j; -inf where j is another sample of
        i's own item.
        """
        ids_BF, embedded_BFD = inputs["ids"], self.embedding(inputs["ids"])
        user_BV = _vectors(self.user_tower, embedded_BFD[:, : self.user_fields])
        item_BV = _vectors(self.item_tower, embedded_BFD[:, self.user_fields :])
        if self.log_counts is None or not self.training:
            return (user_BV * item_BV).sum(1) / self.temperature
        item_BF = ids_BF[:, self.user_fields :]
        score_BB = user_BV @ item_BV.T / self.temperature - self.log_counts[item_BF[:, 0]]
        return score_BB.masked_fill(_is_repeated(item_BF), -torch.inf)

    def users(self, ids: Tensor) -> Tensor:
        """Vectors of users, of length 1 [B, V], from the ids of their fields [B, F]."""
        return _vectors(self.user_tower, self.embedding(ids))

    def items(self, ids: Tensor) -> Tensor:
        """Vectors of items, of length 1 [B, V], from the ids of their fields [B, F]."""
        return _vectors(self.item_tower, self.embedding(ids))


def in_batch_softmax(score_BB: Tensor, reward_B: Tensor) -> Tensor:
    """The loss of a user's own item among those of the whole batch, times the sample's reward.

    It is the mean over all samples.

    Under brim the batch is a micro-batch: its size decides how many items compete, the number of
    workers does not.

    Args:
        score_BB: of user i for item j.
        reward_B: such as 1 for a click; a sample of reward 0 only gives others its item to compete
            with.

    Source: Yi et al. 2019 (see `TwoTower`), section 3.
    """
    own_B = torch.arange(len(score_BB), device=score_BB.device)
    return (functional.cross_entropy(score_BB, own_B, reduction="none") * reward_B).mean()


def _vectors(tower: nn.Module, embedded_BFD: Tensor) -> Tensor:
    return functional.normalize(tower(embedded_BFD.flatten(1)), dim=1)


def _is_repeated(ids_BF: Tensor) -> Tensor:
    """Return whether another sample j has the item of sample i: [B, B]."""
    same_BB = (ids_BF.unsqueeze(1) == ids_BF.unsqueeze(0)).all(2)
    return same_BB.fill_diagonal_(False)
