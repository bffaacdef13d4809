"""Models of several targets: experts that the targets share, and gates that choose among them."""

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
    hidden_layers,
)


class MMoE(ClickModel):
    """Binary classifier of several targets, whose experts are shared by all of them.

    Args:
        vocabulary_size: ids over all fields, as a brim dataset counts them.
        fields: ids per sample, as a brim dataset counts them.
        numbers: numeric columns per sample.
        targets: number of targets.
        dim: embedding dimension.
        experts: number of experts.
        expert: units of each layer of an expert; at least one layer.
        hidden: units of each hidden layer of a target's own perceptron.
        dropout: probability of dropping a hidden unit in training.
        sequences: `dataset.sequences`, where it has some: each is a field, the mean of its items.
        table: makes the table of ids, in place of one of `vocabulary_size` rows; see `DIN`.

    Source: Ma et al., "Modeling Task Relationships in Multi-task Learning with Multi-gate
    Mixture-of-Experts", KDD 2018, section 4.2.
    """

    def __init__(
        self,
        vocabulary_size: int,
        fields: int,
        numbers: int = 0,
        *,
        targets: int,
        dim: int = 16,
        experts: int = 4,
        expert: Sequence[int] = (128,),
        hidden: Sequence[int] = (64,),
        dropout: float = 0.0,
        sequences: Sequence[ItemPlaces] = (),
        table: Table | None = None,
    ) -> None:
        super().__init__(vocabulary_size, fields, numbers, dim, sequences, table)
        self.experts = _experts(experts, self.width, expert, dropout)
        self.gates = nn.ModuleList(nn.Linear(self.width, experts) for _ in range(targets))
        self.towers = nn.ModuleList(Perceptron(expert[-1], hidden, dropout) for _ in range(targets))

    def forward(self, inputs: Inputs) -> Tensor:
        """Logits [B, targets] of inputs `ids` [B, P] and, if there are any, `numbers` [B, N]."""
        x_BH = flat_inputs(self.embed(inputs), inputs)
        experts_BEH = torch.stack([expert(x_BH) for expert in self.experts], 1)
        logits = [
            tower(_mixture(gate(x_BH), experts_BEH))
            for gate, tower in zip(self.gates, self.towers, strict=True)
        ]
        return torch.stack(logits, 1)


class PLE(ClickModel):
    """Binary classifier of several targets, each of which has experts of its own besides.

    Args:
        vocabulary_size, fields, numbers, targets, dim, expert, hidden, dropout, sequences, table:
            as of `MMoE`.
        shared: experts of a level that all targets share.
        own: experts of a level that each target has.
        levels: of experts and gates, one behind the other.

    Source: Tang et al., "Progressive Layered Extraction (PLE): A Novel Multi-Task Learning (MTL)
    Model for Personalized Recommendations", RecSys 2020, section 4.
    """

    def __init__(
        self,
        vocabulary_size: int,
        fields: int,
        numbers: int = 0,
        *,
        targets: int,
        dim: int = 16,
        shared: int = 2,
        own: int = 2,
        levels: int = 2,
        expert: Sequence[int] = (128,),
        hidden: Sequence[int] = (64,),
        dropout: float = 0.0,
        sequences: Sequence[ItemPlaces] = (),
        table: Table | None = None,
    ) -> None:
        super().__init__(vocabulary_size, fields, numbers, dim, sequences, table)
        widths = [self.width, *[expert[-1]] * (levels - 1)]
        self.levels = nn.ModuleList(
            _Level(width, targets, shared, own, expert, dropout, is_last=level == levels - 1)
            for level, width in enumerate(widths)
        )
        self.towers = nn.ModuleList(Perceptron(expert[-1], hidden, dropout) for _ in range(targets))

    def forward(self, inputs: Inputs) -> Tensor:
        """Logits [B, targets] of inputs `ids` [B, P] and, if there are any, `numbers` [B, N]."""
        x_BH = flat_inputs(self.embed(inputs), inputs)
        parts = [x_BH] * (len(self.towers) + 1)  # one for each target, then the shared one
        for level in self.levels:
            parts = level(parts)
        logits = [tower(part_BH) for tower, part_BH in zip(self.towers, parts, strict=False)]
        return torch.stack(logits, 1)


class _Level(nn.Module):
    """Experts of the targets and shared ones, and a gate for each; the last level shares none."""

    def __init__(
        self,
        width: int,
        targets: int,
        shared: int,
        own: int,
        expert: Sequence[int],
        dropout: float,
        *,
        is_last: bool,
    ) -> None:
        super().__init__()
        self.own = nn.ModuleList(_experts(own, width, expert, dropout) for _ in range(targets))
        self.shared = _experts(shared, width, expert, dropout)
        self.gates = nn.ModuleList(nn.Linear(width, own + shared) for _ in range(targets))
        self.shared_gate = None if is_last else nn.Linear(width, targets * own + shared)

    def forward(self, parts: list[Tensor]) -> list[Tensor]:
        *of_targets, shared_BH = parts
        shared_experts = [expert(shared_BH) for expert in self.shared]
        all_experts, mixed = [], []
        for x_BH, experts, gate in zip(of_targets, self.own, self.gates, strict=True):
            assert isinstance(experts, nn.ModuleList)
            own_experts = [expert(x_BH) for expert in experts]
            mixed.append(_mixture(gate(x_BH), torch.stack([*own_experts, *shared_experts], 1)))
            all_experts += own_experts
        if self.shared_gate is not None:
            every_BEH = torch.stack([*all_experts, *shared_experts], 1)
            mixed.append(_mixture(self.shared_gate(shared_BH), every_BEH))
        return mixed


def _experts(count: int, width: int, units: Sequence[int], dropout: float) -> nn.ModuleList:
    return nn.ModuleList(
        nn.Sequential(*hidden_layers((width, *units), dropout)) for _ in range(count)
    )


def _mixture(gate_BE: Tensor, experts_BEH: Tensor) -> Tensor:
    """The sum of experts, each by its share of the gate; [B, H]."""
    return (gate_BE.softmax(1).unsqueeze(2) * experts_BEH).sum(1)
