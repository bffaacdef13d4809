"""Checks that a click model of `brim.models` has the sizes of the table that it is trained on.

Otherwise an id without a row, or a matrix of another width, fails in torch, whose message names
neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.utils.data import DataLoader

from brim.data.datasets import Columnar, columnar_in
from brim.errors import SpecError
from brim.models.calibrated import Calibrated
from brim.models.layers import ClickModel, EmbeddingTable, ItemPlaces
from brim.models.two_tower import TwoTower


def check_sizes(model: nn.Module, dataset: Any) -> None:
    """Compare a click model with the table behind its training data, if there is one.

    One that is a part of another model may see other inputs than the data has.

    Raises:
        SpecError: another number of ids, fields or numbers, other sequences, or a share of the
            negatives that is not corrected.
    """
    columnar = columnar_in(dataset.dataset if isinstance(dataset, DataLoader) else dataset)
    if columnar is None:
        return
    inner = model.model if isinstance(model, Calibrated) else model
    if isinstance(inner, ClickModel):
        _check_click_model(inner, columnar)
    elif isinstance(inner, TwoTower):
        fields = inner.user_fields + inner.item_fields
        _check(inner, "user_fields + item_fields", fields, columnar.fields, "fields")
        _check_table(inner, inner.embedding, columnar)
    _check_negatives(model, columnar.negatives)


def _check_click_model(model: ClickModel, columnar: Columnar) -> None:
    _check(model, "fields", model.fields, columnar.fields, "fields")
    _check(model, "numbers", model.numbers, columnar.numbers, "numbers")
    given, needed = _places(model.sequences), _places(columnar.sequences)
    if given != needed:
        got = "no sequences" if not given else f"sequences at {_shown(model.sequences)}"
        need = f"at {_shown(columnar.sequences)}" if needed else "none"
        raise SpecError(
            f"{type(model).__name__}(sequences=)",
            got=got,
            need=f"those of the data: {need}",
            hint="sequences=dataset('train').sequences",
        )
    _check_table(model, model.embedding, columnar)


def _check_table(model: nn.Module, table: nn.Module, columnar: Columnar) -> None:
    if isinstance(table, EmbeddingTable):
        size = columnar.vocabulary_size
        _check(model, "vocabulary_size", table.num_embeddings, size, "vocabulary_size", more=True)


def _check(
    model: nn.Module, argument: str, got: int, need: int, attribute: str, *, more: bool = False
) -> None:
    if got < need or (got > need and not more):
        raise SpecError(
            f"{type(model).__name__}({argument}=)",
            got=f"{got:,}",
            need=f"{need:,}{', or more' * more}, which its data has",
            hint=f"dataset('train').{attribute}",
        )


def _check_negatives(model: nn.Module, share: float) -> None:
    shares = [part.negatives for part in model.modules() if isinstance(part, Calibrated)]
    if share == 1 and not shares:
        return
    if not shares or shares[0] not in (share, 1):
        raise SpecError(
            "model()",
            got=f"Calibrated(negatives={shares[0]:g})"
            if shares
            else "predictions without correction",
            need=f"one for the share of {share:g} of the negatives that it is trained on",
            hint="Calibrated(model, dataset('train').negatives), or 1.0 to correct nothing",
        )


def _places(sequences: Sequence[ItemPlaces]) -> list[tuple[int, int, int, int | None]]:
    return [(places.start, places.length, places.padding, places.candidate) for places in sequences]


def _shown(sequences: Sequence[ItemPlaces]) -> str:
    return ", ".join(
        f"ids {places.start} to {places.start + places.length - 1}" for places in sequences
    )
