"""Columns of lists: ids of items, padded; in text, in lists, from a run's file and in requests."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from brim import data
from brim.data import fitted
from brim.data.columns import Column
from brim.data.encoding import SequencePlaces
from brim.errors import SpecError
from brim.serving.bodies import Body
from brim.serving.bundle import Model
from brim.serving.inputs import ColumnReader

COLUMNS: list[Column] = [
    data.numeric("age", transform=None),
    data.sequence("history", length=3, of="film"),
    data.vocabulary("film"),
    data.sequence("tags", length=2, min_count=2),
]
TARGET = data.target("liked")
ROWS: dict[str, list[Any]] = {
    "age": [1.0, 2.0, 3.0],
    "history": [["a", "b"], None, ["b", "c", "a", "b", "d"]],
    "film": ["b", "b", "a"],
    "tags": [["x", "y"], ["x"], ["z", "y", "x"]],
    "liked": [1, 0, 1],
}
# Films by how often both columns have them: b 5, a 3, then c and d; tags: x 3, y 2; z is rare.
IDS = [[2, 1, 0, 1, 6, 7], [0, 0, 0, 1, 6, 5], [2, 1, 4, 2, 7, 6]]


def as_text(cell: Any) -> str:
    return "" if cell is None else "|".join(cell) if isinstance(cell, list) else str(cell)


@pytest.fixture(params=["text", "lists"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param == "lists":
        pq.write_table(pa.table(ROWS), tmp_path / "rows.parquet")
        return tmp_path / "rows.parquet"
    lines = [
        ",".join(ROWS),
        *(",".join(map(as_text, row)) for row in zip(*ROWS.values(), strict=True)),
    ]
    (tmp_path / "rows.csv").write_text("\n".join(lines) + "\n")
    return tmp_path / "rows.csv"


def read(path: Path, **options: Any) -> data.Columnar:
    if path.suffix == ".csv":
        return data.csv(path, columns=COLUMNS, target=TARGET, **options)
    return data.parquet(path, columns=COLUMNS, target=TARGET, **options)


def test_items_share_ids_and_are_padded(path: Path) -> None:
    dataset = read(path)
    assert (dataset.fields, dataset.numbers, dataset.vocabulary_size) == (6, 1, 5 + 3)
    assert dataset.sequences == (
        SequencePlaces(name="history", start=0, length=3, padding=0, candidate=3),
        SequencePlaces(name="tags", start=4, length=2, padding=5, candidate=None),
    )
    inputs, _ = dataset.take(np.arange(3))
    assert inputs["ids"].tolist() == IDS
    assert dataset.example(2)["ids"].shape == (2, 6)


def test_unseen_items_are_left_out(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.csv"
    other.write_text("age,history,film,tags\n1,a|new|b|new|c,new,new\n")
    inputs, _ = read(path).inputs_of(other).take(np.array([0]))
    assert inputs["ids"].tolist() == [[2, 1, 3, 0, 5, 5]]


def test_row_groups_are_read_like_whole_files(tmp_path: Path) -> None:
    pq.write_table(pa.table(ROWS), tmp_path / "rows.parquet", row_group_size=2)
    inputs, _ = read(tmp_path / "rows.parquet", in_memory=False).take(np.arange(3))
    assert inputs["ids"].tolist() == IDS


def test_a_run_keeps_what_was_fitted(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRIM_RUN_DIR", str(tmp_path / "run"))
    encoder = read(path).encoder
    monkeypatch.setattr(fitted, "_in_use", None)
    fitted.use(tmp_path / "run")
    assert read(path).encoder == encoder
    fitted.write(tmp_path / "columns.json", encoder)
    assert fitted.encoder_in(tmp_path / "columns.json").sequences == encoder.sequences


def test_lists_are_read_whatever_arrow_makes_of_them(tmp_path: Path) -> None:
    lists = pa.array([["b", None, "a"], ["b"]])
    encoded = pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 1]), lists)
    floats = pa.array([[2.0, float("nan"), 1.0], [2.0], None, [2.0]])
    cells = {"names": encoded, "numbers": floats, "liked": [1, 0, 1, 0]}
    feather.write_feather(pa.table(cells), tmp_path / "rows.arrow", compression="uncompressed")
    columns = [data.sequence(name, length=2) for name in ("names", "numbers")]
    dataset = data.arrow(tmp_path / "rows.arrow", columns=columns, target=TARGET)
    ids = dataset.take(np.arange(4))[0]["ids"]
    assert ids.tolist() == [[1, 2, 4, 5], [1, 0, 4, 3], [0, 0, 3, 3], [1, 0, 4, 3]]


def test_requests_have_lists_or_texts(path: Path) -> None:
    reader = ColumnReader(read(path).encoder, ("", "NA"))
    columns = {name: cells for name, cells in ROWS.items() if name != "liked"}
    inputs, count = reader.read(columns)
    assert (inputs["ids"].tolist(), count) == (IDS, 3)
    texts = columns | {name: list(map(as_text, columns[name])) for name in ("history", "tags")}
    assert reader.read(texts)[0]["ids"].tolist() == IDS
    with_nulls = columns | {"history": [["a", None, "b"], [None], ROWS["history"][2]]}
    body = Body(msgspec.json.encode({"columns": with_nulls}))
    model = cast(Model, SimpleNamespace(reader=reader))
    assert body.read(model)[0]["ids"].tolist() == IDS, "null in a list is no item, as in files"
    with pytest.raises(SpecError, match=r"column 'film' of row 1: got a list, need one value"):
        reader.read(columns | {"film": ["a", ["b"], "a"]})
    with pytest.raises(SpecError, match=r"column 'age' of row 0: got a list, need one value"):
        reader.read(columns | {"age": [[1.0], 2.0, 3.0]})


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (lambda: data.sequence("tags", length=0), r"sequence\('tags', length=\): got 0"),
        (lambda: data.sequence("tags", length=10**6), "got 1000000, need a whole number from 1 to"),
        (lambda: data.sequence("tags", length=cast(int, "3")), "got '3', need a whole number"),
        (lambda: data.sequence("tags", length=2, separator=""), "got '', need the text between"),
        (lambda: data.sequence("tags", length=2, separator=cast(str, 5)), "got 5, need the text"),
        (lambda: data.sequence(cast(str, 5), length=2), "need one or more column names"),
        (lambda: data.sequence("tags", length=2, of="film", min_count=3), "beside of='film'"),
        (lambda: data.sequence("history", length=2, of="age"), "got 'age', need the name of a"),
        (lambda: data.vocabulary("history"), r"hint: brim.data.sequence\('history', length=…\)"),
    ],
)
def test_wrong_lists_are_refused(tmp_path: Path, column: Any, message: str) -> None:
    pq.write_table(pa.table(ROWS), tmp_path / "rows.parquet")
    with pytest.raises(SpecError, match=message):
        data.parquet(tmp_path / "rows.parquet", columns=[column()], target=TARGET)


def test_several_targets_are_columns(path: Path) -> None:
    targets = [TARGET, data.target("age", above=1)]
    if path.suffix == ".csv":
        dataset = data.csv(path, columns=COLUMNS, target=targets)
    else:
        dataset = data.parquet(path, columns=COLUMNS, target=targets)
    _, target = dataset.take(np.arange(3))
    assert target.tolist() == [[1, 0], [0, 1], [1, 1]]
    inputs, none = dataset.inputs_of(path).take(np.arange(3))
    assert (inputs["ids"].tolist(), none.shape) == (IDS, (3,))
    for wrong, message in (
        ([], "got an empty list"),
        ([TARGET, "age"], "got 'age', need a target"),
        ([TARGET, data.target("age", classes=True)], "got several, one of classes"),
    ):
        with pytest.raises(SpecError, match=message):
            data.csv(path, columns=COLUMNS, target=wrong)  # type: ignore[arg-type]
