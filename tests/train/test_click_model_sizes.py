"""Click models of other sizes than their data: refused before the first step, with what to write."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import brim
from brim import data, models
from brim.data.columns import Column
from brim.data.encoding import SequencePlaces
from brim.errors import SpecError
from brim.train.checks.click_models import check_sizes
from brim.train.entry.training_file import load, prepare
from train.test_training_file import spec

FILE = """
from functools import cache
from brim import data, models

@cache
def dataset(split):
    columns = [data.vocabulary("film"), data.sequence("history", of="film", length=2)]
    if split == "train":
        return data.csv({path!r}, columns=columns, target=data.target("click"))

def model():
    train = dataset("train")
    return models.{model}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    rows = [f"{row % 5},{row % 3}|{row % 4},{row},{int(row % 3 == 0)}" for row in range(40)]
    (tmp_path / "rows.csv").write_text("film,history,hour,click\n" + "\n".join(rows) + "\n")
    return tmp_path / "rows.csv"


def read(path: Path, **options: Any) -> data.Columnar:
    columns: list[Column] = [
        data.vocabulary("film"),
        data.sequence("history", of="film", length=2),
        data.numeric("hour"),
    ]
    return data.csv(path, columns=columns, target=data.target("click"), **options)


def sizes(dataset: data.Columnar, **changed: Any) -> dict[str, Any]:
    known = ("vocabulary_size", "fields", "numbers", "sequences")
    return {name: getattr(dataset, name) for name in known} | changed


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"vocabulary_size": 5}, r"DCNV2\(vocabulary_size=\): got 5, need 6, or more"),
        ({"fields": 4}, r"DCNV2\(fields=\): got 4, need 3, which its data has"),
        ({"numbers": 0}, r"DCNV2\(numbers=\): got 0, need 1"),
        ({"sequences": ()}, r"got no sequences, need those of the data: at ids 1 to 2"),
    ],
)
def test_other_sizes_than_the_data_are_refused(
    changed: dict[str, Any], message: str, path: Path
) -> None:
    dataset = read(path)
    model = models.DCNV2(**sizes(dataset, **changed), dim=4)
    for given in (dataset, DataLoader(dataset, batch_size=8)):
        with pytest.raises(SpecError, match=message):
            check_sizes(model, given)
        with pytest.raises(SpecError, match=message):
            check_sizes(models.Calibrated(model, 1.0), given)
    check_sizes(nn.Sequential(model), dataset)  # which may give it other inputs
    check_sizes(models.DCNV2(**sizes(dataset, vocabulary_size=50), dim=4), dataset)


@pytest.mark.parametrize("make", [models.MMoE, models.PLE])
def test_sequences_cannot_be_forgotten(make: Any, path: Path) -> None:
    dataset = read(path)
    with pytest.raises(SpecError, match=r"sequences=.*no sequences"):
        check_sizes(make(**sizes(dataset, sequences=()), targets=1), dataset)
    check_sizes(make(**sizes(dataset), targets=1), dataset)


def test_negatives_without_correction_are_refused(path: Path) -> None:
    dataset = read(path, negatives=data.sample(0.5))
    model = models.DIN(**sizes(dataset), dim=4)
    with pytest.raises(SpecError, match=r"got predictions without correction.*share of 0.5"):
        check_sizes(model, dataset)
    with pytest.raises(SpecError, match=r"got Calibrated\(negatives=0.1\)"):
        check_sizes(models.Calibrated(model, 0.1), dataset)
    for share in (0.5, 1.0):
        check_sizes(models.Calibrated(model, share), dataset)
    with pytest.raises(SpecError, match=r"got Calibrated\(negatives=0.5\)"):
        check_sizes(models.Calibrated(model, 0.5), read(path))


def test_it_is_said_before_the_first_step(path: Path, tmp_path: Path) -> None:
    wrong = "WideDeep(train.vocabulary_size, train.fields)"
    job = spec(tmp_path, FILE.format(path=str(path), model=wrong))
    with pytest.raises(SpecError, match=r"WideDeep\(sequences=\)"):
        prepare(load(job.file), job)
    dataset = read(path)
    model = models.WideDeep(dataset.vocabulary_size, dataset.fields, sequences=dataset.sequences)
    job_of_a_loop = brim.join(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(SpecError, match=r"WideDeep\(numbers=\): got 0, need 1"):
        next(iter(job_of_a_loop.batches(dataset, global_batch_size=8)))


def test_batches_of_other_sizes_are_named() -> None:
    batch = {"ids": torch.tensor([[0, 9], [1, 2]])}
    with pytest.raises(SpecError, match=r"DIN\(fields=\): got 3, and a batch with 2 ids"):
        models.DIN(10, 3, dim=4)(batch)
    with pytest.raises(SpecError, match=r"DeepFM\(numbers=\): got 1, and a batch with 0 numbers"):
        models.DeepFM(10, 2, 1, dim=4)(batch)
    with pytest.raises(SpecError, match="vocabulary_size: got 9, and ids from 0 to 9"):
        models.WideDeep(9, 2, dim=4)(batch)
    places = SequencePlaces(name="tags", start=1, length=2, padding=0, candidate=None)
    with pytest.raises(SpecError, match=r"MMoE\(sequences=\): got ids 1 to 2"):
        models.MMoE(10, 2, targets=2, sequences=[places])


@pytest.mark.parametrize("name", ["WideDeep", "DeepFM", "XDeepFM", "DCNV2", "FinalMLP", "DIN"])
def test_tables_of_hashed_ids(name: str, path: Path) -> None:
    columns: list[Column] = [
        data.hashed("film", buckets=2**45),
        data.sequence("history", of="film", length=2),
        data.hashed("hour", buckets=2**45),
    ]
    dataset = data.csv(path, columns=columns, target=data.target("click"))
    inputs, _ = dataset.take(np.arange(40))
    film, first, last, hour = inputs["ids"].T
    assert len(film.unique()) == 5
    assert {*first.tolist(), *last.tolist()} <= {*film.tolist()}  # the same ids, of the same space
    assert hour.min() >= 2**45 > film.max()
    table = partial(brim.Embedding, limit=1000)
    # `vocabulary_size` means nothing here.
    model = getattr(models, name)(1, 4, dim=4, sequences=dataset.sequences, table=table)
    check_sizes(model, dataset)
    assert model(inputs).shape == (40,)
    kinds = {type(part) for part in model.modules()}
    assert brim.Embedding in kinds
    assert models.layers.EmbeddingTable not in kinds
