"""Columns as they were fitted, over other rows:
within a process, and from a run's `columns.json`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from brim import data
from brim.data import fitted
from brim.data.columns import Column
from brim.errors import EnvironmentFault, SpecError

COLUMNS: list[Column] = [
    data.vocabulary("color", min_count=2),
    data.hashed("color", buckets=5),
    data.numeric("size", transform="log", missing="mean"),
]
LATE = data.target("late")
TRAIN = "color,size,late\n" + "red,1,0\nblue,3,1\nred,5,1\nblue,,0\ngreen,9,1\n"
OTHER = "size,color\n2,blue\nfar,red\n,violet\n7,red,8\n4,green\n"


def train_on(path: Path, text: str = TRAIN, **options: Any) -> data.Columnar:
    path.write_text(text)
    return data.csv(path, columns=COLUMNS, target=LATE, **options)


@pytest.fixture(autouse=True)
def _forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitted, "_in_use", None)


def test_other_rows_use_the_fitted_encoding(tmp_path: Path) -> None:
    dataset = train_on(tmp_path / "train.csv")
    (tmp_path / "other.csv").write_text("late,size,color\n1,3,blue\n0,1,violet\n")
    inputs, target = dataset.over(tmp_path / "other.csv").take(np.array([0, 1]))
    fitted_inputs, _ = dataset.take(np.array([1, 0]))
    assert inputs["ids"][0].tolist() == fitted_inputs["ids"][0].tolist()
    assert inputs["ids"][1, 0] == 0, "what was not seen in training has the id 0"
    assert torch.equal(inputs["numbers"], fitted_inputs["numbers"])
    assert target.tolist() == [1, 0]


def test_inputs_need_no_target_and_keep_their_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRIM_RUN_DIR", str(tmp_path / "run"))
    keep = data.where("late", by=lambda late: late > 0)
    dataset = train_on(tmp_path / "train.csv", keep=keep)
    (tmp_path / "other.csv").write_text(OTHER)
    inputs = dataset.inputs_of(tmp_path / "other.csv")
    assert (len(inputs), inputs.quarantined) == (3, 2)
    (part,) = inputs.survey.parts
    assert part.total == 5
    assert part.places[part.mask_of(None)].tolist() == [0, 2, 4]
    bad_rows = (tmp_path / "run" / "quarantine" / "other.csv.jsonl").read_text().splitlines()
    assert [json.loads(line)["reason"] for line in bad_rows] == ["not a number", "3 fields, need 2"]


def test_parquet_rows_match_text_fits(tmp_path: Path) -> None:
    dataset = train_on(tmp_path / "train.csv")
    pq.write_table(
        pa.table({"color": ["blue", None], "size": [3.0, 1.0]}), tmp_path / "other.parquet"
    )
    inputs, _ = dataset.inputs_of(tmp_path / "other.parquet").take(np.array([0]))
    fitted_inputs, _ = dataset.take(np.array([1]))
    assert torch.equal(inputs["ids"], fitted_inputs["ids"])
    assert torch.equal(inputs["numbers"], fitted_inputs["numbers"])


def test_fits_are_used_without_their_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRIM_RUN_DIR", str(tmp_path))
    path = tmp_path / "train.csv"
    trained_on = train_on(path, split="train", test=data.last(1))
    path.unlink()
    fitted.use(tmp_path)
    second_read = data.csv(path, columns=COLUMNS, target=LATE, split="train", test=data.last(1))
    assert second_read.encoder == trained_on.encoder
    assert second_read.vocabulary_size == trained_on.vocabulary_size
    assert second_read.example(3)["ids"].shape == (3, 2)
    (tmp_path / "other.csv").write_text(OTHER)
    assert len(second_read.inputs_of(tmp_path / "other.csv")) == 3
    with pytest.raises(SpecError, match="no such file"):
        len(second_read)


def test_rows_are_read_when_they_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRIM_RUN_DIR", str(tmp_path))
    path = tmp_path / "train.csv"
    first_read = train_on(path)
    fitted.use(tmp_path)
    path.write_text(TRAIN + "red,100,1\n" * 3)
    second_read = data.csv(path, columns=COLUMNS, target=LATE)
    assert second_read.encoder == first_read.encoder, (
        "the data has grown, the columns are as they were"
    )
    assert len(second_read) == 8
    assert second_read[0][0]["ids"].tolist() == first_read[0][0]["ids"].tolist()


def test_fits_are_distinguished_by_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRIM_RUN_DIR", str(tmp_path))
    first_read = train_on(tmp_path / "one.csv")
    two = train_on(tmp_path / "two.csv", TRAIN.replace("9", "900"))
    fitted.use(tmp_path)
    for dataset, name in ((first_read, "one.csv"), (two, "two.csv")):
        assert data.csv(tmp_path / name, columns=COLUMNS, target=LATE).encoder == dataset.encoder
    assert first_read.encoder != two.encoder


def test_a_flipped_byte_of_fits_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRIM_RUN_DIR", str(tmp_path))
    train_on(tmp_path / "train.csv")
    path = tmp_path / fitted.COLUMNS
    path.write_text(path.read_text().replace('"red"', '"rex"'))
    with pytest.raises(EnvironmentFault, match=r"columns\.json is damaged"):
        fitted.use(tmp_path)


def test_a_run_without_columns_changes_nothing(tmp_path: Path) -> None:
    fitted.use(tmp_path)
    assert len(train_on(tmp_path / "train.csv")) == 5


def test_resumed_runs_keep_their_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRIM_RUN_DIR", str(tmp_path))
    first_read = train_on(tmp_path / "train.csv")
    train_on(tmp_path / "train.csv", TRAIN + "red,100,1\n" * 3)
    fitted.use(tmp_path)
    assert (
        data.csv(tmp_path / "train.csv", columns=COLUMNS, target=LATE).encoder == first_read.encoder
    )
