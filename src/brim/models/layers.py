"""Layers of the click models: tables over one space of ids, the linear part, the perceptron.

Shape suffixes: B samples, P ids of a sample, F fields, L items of a sequence, D embedding
dimension, N numbers, H hidden units.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from brim.errors import SpecError

Inputs = Mapping[str, Tensor]
Table = Callable[[int], nn.Module]  # from an embedding dimension to what looks up ids


class ItemPlaces(Protocol):
    """The places of a sequence's items among the ids of a sample, as a brim dataset says them."""

    @property
    def start(self) -> int: ...

    @property
    def length(self) -> int: ...

    @property
    def padding(self) -> int:
        """The id behind the last item."""

    @property
    def candidate(self) -> int | None:
        """The place of the field whose ids the items have."""


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
        try:
            rows = self.weight.index_select(0, ids.flatten())
        except (IndexError, RuntimeError) as problem:
            if int(ids.min()) >= 0 and int(ids.max()) < self.num_embeddings:
                raise
            raise SpecError(
                "vocabulary_size",
                got=f"{self.num_embeddings:,}, and ids from {ids.min():,} to {ids.max():,}",
                need="more than the largest id, and ids from 0",
                hint="dataset('train').vocabulary_size",
            ) from problem
        return rows.view(*ids.shape, self.embedding_dim)


class ClickModel(nn.Module):
    """The table of a click model, and what it makes of a sample's ids.

    Args:
        vocabulary_size: ids over all fields, as a brim dataset counts them.
        fields: ids of a sample.
        numbers: numeric columns per sample.
        dim: embedding dimension.
        sequences: where sequences lie among the ids; each is one field, the mean of its items.
        table: makes the table; None makes an `EmbeddingTable` of `vocabulary_size` rows.

    Raises:
        SpecError: sequences that do not lie among the ids, and, in `forward`, inputs of other sizes.

    Attributes:
        fields: ids of a sample.
        numbers: numeric columns per sample.
        field_count: fields of a sample, each sequence one.
        width: units of `flat_inputs`.
    """

    def __init__(
        self,
        vocabulary_size: int,
        fields: int,
        numbers: int,
        dim: int,
        sequences: Sequence[ItemPlaces],
        table: Table | None = None,
    ) -> None:
        super().__init__()
        self.fields, self.numbers = fields, numbers
        self.sequences = tuple(sequences)
        for places in self.sequences:
            if not 0 <= places.start <= places.start + places.length <= fields:
                raise SpecError(
                    f"{type(self).__name__}(sequences=)",
                    got=f"ids {places.start} to {places.start + places.length - 1} of a sample",
                    need=f"places among its ids, of which fields= says that there are {fields}",
                    hint="fields and sequences of one dataset",
                )
        self.field_count = fields - sum(places.length - 1 for places in self.sequences)
        self.width = self.field_count * dim + numbers
        self.embedding = _table(vocabulary_size, dim, table)

    def embed(self, inputs: Inputs) -> Tensor:
        """Embeddings [B, F, D] of inputs `ids` [B, P]."""
        return by_field(self.look_up(inputs), inputs["ids"], self.sequences)

    def look_up(self, inputs: Inputs) -> Tensor:
        """Embeddings [B, P, D] of inputs `ids` [B, P], each on its own.

        Raises:
            SpecError: inputs of other sizes than the model was made for.
        """
        for key, width, argument in (
            ("ids", self.fields, "fields"),
            ("numbers", self.numbers, "numbers"),
        ):
            found = inputs[key].shape[1] if key in inputs else 0
            if found != width:
                raise SpecError(
                    f"{type(self).__name__}({argument}=)",
                    got=f"{width}, and a batch with {found} {key} in each sample",
                    need=f"{argument}={found}",
                    hint=f"dataset('train').{argument}",
                )
        x_BPD: Tensor = self.embedding(inputs["ids"])
        return x_BPD


def _table(vocabulary_size: int, dim: int, table: Table | None) -> nn.Module:
    return EmbeddingTable(vocabulary_size, dim) if table is None else table(dim)


def by_field(x_BPD: Tensor, ids_BP: Tensor, sequences: Sequence[ItemPlaces]) -> Tensor:
    """Replace the items of each sequence by their mean, 0 where it has none; [B, F, D]."""
    if not sequences:
        return x_BPD
    return replace_items(
        x_BPD, sequences, [mean_of_items(x_BPD, ids_BP, places) for places in sequences]
    )


def replace_items(
    x_BPD: Tensor, sequences: Sequence[ItemPlaces], interests: Sequence[Tensor]
) -> Tensor:
    """Put one vector [B, D] in place of the items of each sequence; [B, F, D]."""
    parts, end = [], 0
    for places, interest_BD in zip(sequences, interests, strict=True):
        parts += [x_BPD[:, end : places.start], interest_BD.unsqueeze(1)]
        end = places.start + places.length
    return torch.cat([*parts, x_BPD[:, end:]], 1)


def mean_of_items(x_BPD: Tensor, ids_BP: Tensor, places: ItemPlaces) -> Tensor:
    """The mean of a sequence's items; [B, D]."""
    items_BLD, is_item_BL = items_of(x_BPD, ids_BP, places)
    return (items_BLD * is_item_BL.unsqueeze(2)).sum(1) / is_item_BL.sum(1, True).clamp(min=1)


def items_of(x_BPD: Tensor, ids_BP: Tensor, places: ItemPlaces) -> tuple[Tensor, Tensor]:
    """The embeddings of a sequence [B, L, D], and 1 where there is an item, else 0 [B, L]."""
    end = places.start + places.length
    is_item_BL = (ids_BP[:, places.start : end] != places.padding).to(x_BPD.dtype)
    return x_BPD[:, places.start : end], is_item_BL


class Linear(nn.Module):
    """The wide part: one weight per id, one per number, and a bias; logits [B].

    Of a sequence, the mean of its items' weights counts.
    """

    def __init__(
        self,
        vocabulary_size: int,
        numbers: int,
        sequences: Sequence[ItemPlaces] = (),
        table: Table | None = None,
    ) -> None:
        super().__init__()
        self.sequences = tuple(sequences)
        self.weight = _table(vocabulary_size, 1, table)
        self.numbers = nn.Linear(numbers, 1, bias=False) if numbers else None
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, inputs: Inputs) -> Tensor:
        weights_BF1 = by_field(self.weight(inputs["ids"]), inputs["ids"], self.sequences)
        logit_B: Tensor = weights_BF1.squeeze(2).sum(1) + self.bias
        if self.numbers is not None:
            logit_B = logit_B + self.numbers(inputs["numbers"]).squeeze(1)
        return logit_B


class Perceptron(nn.Sequential):
    """Hidden layers, see `hidden_layers`, and one output unit; logits [B]."""

    def __init__(
        self, width: int, hidden: Sequence[int], dropout: float, *, batch_norm: bool = False
    ) -> None:
        super().__init__(*dense_layers((width, *hidden, 1), dropout, batch_norm=batch_norm))

    def forward(self, x_BH: Tensor) -> Tensor:
        for layer in self:
            x_BH = layer(x_BH)
        return x_BH.squeeze(1)


def dense_layers(
    widths: Sequence[int], dropout: float, *, batch_norm: bool = False
) -> list[nn.Module]:
    """Linear layers from one width to the next, all but the last one hidden."""
    hidden = hidden_layers(widths[:-1], dropout, batch_norm=batch_norm)
    return [*hidden, nn.Linear(widths[-2], widths[-1])]


def hidden_layers(
    widths: Sequence[int], dropout: float, *, batch_norm: bool = False
) -> list[nn.Module]:
    """Linear layers from one width to the next, each with ReLU behind it.

    Before ReLU batch normalisation, if it is wanted; behind it dropout, where that is above 0.
    """
    layers: list[nn.Module] = []
    for width_in, width_out in pairwise(widths):
        layers.append(nn.Linear(width_in, width_out))
        layers += [nn.BatchNorm1d(width_out)] if batch_norm else []
        layers.append(nn.ReLU())
        layers += [nn.Dropout(dropout)] if dropout else []
    return layers


def flat_inputs(embedded_BFD: Tensor, inputs: Inputs) -> Tensor:
    """Return the perceptron's input: a sample's embeddings side by side, then its numbers."""
    flat_BH = embedded_BFD.flatten(1)
    return torch.cat([flat_BH, inputs["numbers"]], 1) if "numbers" in inputs else flat_BH
