"""Raw rows of a request are seen as rows of a file are, and impossible ones are refused by name."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from brim import data
from brim.data.columns import Column
from brim.data.sources import NULL
from brim.errors import SpecError
from brim.serving.inputs import ColumnReader, TensorReader, columns_of_rows, join

COLUMNS: list[Column] = [
    data.vocabulary("color", min_count=2),
    data.vocabulary("color", "word"),
    data.hashed("word", buckets=50),
    data.vocabulary("size", by=lambda size: np.floor(size / 2)),
    data.hashed("color", "size", buckets=70),
    data.numeric("size", transform="log", missing="mean"),
    data.numeric("price", missing=0.5),
    data.numeric("weight", transform=None),
]
TEXT = "color,word,size,price,weight,sold\n" + "".join(
    f"c{row % 7},{'NA' if row % 5 == 0 else f'w{row % 11}'},{'' if row % 9 == 0 else row % 13},{row / 3},{row},0\n"
    for row in range(200)
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> data.Columnar:
    path = tmp_path_factory.mktemp("data") / "rows.csv"
    path.write_text(TEXT)
    return data.csv(path, columns=COLUMNS, target=data.target("sold"))


def reader_of(trained: data.Columnar) -> ColumnReader:
    return ColumnReader(trained.encoder, NULL)


CELLS = st.fixed_dictionaries(
    {
        "color": st.sampled_from(["c1", "c5", "violet", "", "NA", "nül", "3"]),
        "word": st.sampled_from(["w1", "w10", "", "null", "else"]),
        "size": st.sampled_from(["", "NaN", "3", "4.75", "1e2", "-7", "0012"]),
        "price": st.sampled_from(["", "2", "0.1", "1e-30"]),
        "weight": st.floats(width=32, allow_nan=False, allow_infinity=False).map(repr),
    }
)


@given(rows=st.lists(CELLS, min_size=1, max_size=20))
def test_rows_are_encoded_like_files(
    rows: list[dict[str, str]], trained: data.Columnar, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("other") / "other.csv"
    names = list(rows[0])
    path.write_text(
        "\n".join(
            ",".join(row_text)
            for row_text in [names, *([row[name] for name in names] for row in rows)]
        )
        + "\n"
    )
    of_file = trained.inputs_of(path)
    expected, _ = of_file.take(np.arange(len(of_file)))
    encoded, count = reader_of(trained).read(columns_of_rows(rows))
    assert count == len(rows) == len(of_file)
    assert torch.equal(encoded["ids"], expected["ids"])
    assert torch.equal(encoded["numbers"], expected["numbers"])
    single_rows = [reader_of(trained).read(columns_of_rows([row]))[0] for row in rows]
    joined_rows = join(single_rows)
    assert torch.equal(joined_rows["ids"], encoded["ids"])
    assert torch.equal(joined_rows["numbers"], encoded["numbers"]), (
        "a row is seen alike, whatever it is sent with"
    )


def test_numbers_and_null_are_cells_too(trained: data.Columnar) -> None:
    as_text = {
        "color": ["c1", ""],
        "word": ["3", "NA"],
        "size": ["4", ""],
        "price": ["2.5", ""],
        "weight": ["1", "0"],
    }
    as_json: dict[str, list[Any]] = {
        "color": ["c1", None], "word": [3.0, None], "size": [4, None], "price": [2.5, None], "weight": [True, 0]
    }  # fmt: skip
    first, second = (reader_of(trained).read(rows_given)[0] for rows_given in (as_text, as_json))
    assert torch.equal(first["ids"], second["ids"])
    assert torch.equal(first["numbers"], second["numbers"])


GOOD: dict[str, list[Any]] = {
    "color": ["c1"],
    "word": ["w"],
    "size": [1],
    "price": [1],
    "weight": [1],
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"color": None}, "column 'color': got nothing"),
        ({"colour": ["c1"]}, "did you mean 'color'"),
        ({"size": ["far"]}, "column 'size' of row 0: got 'far', not a number"),
        ({"size": ["inf"]}, "not a number"),
        ({"size": [math.inf]}, "not a number"),
        ({"size": [10**400]}, "not a number"),
        ({"weight": [1e300]}, "column 'weight' of row 0: got 1e\\+300, too large"),
        ({"weight": [None]}, "column 'weight' of row 0: got an empty cell"),
        ({"size": [1, 2]}, "columns of 1 and 2 rows"),
        ({name: [] for name in GOOD}, "no rows"),
        ({"size": ["x" * 100_000]}, "of row 0: got 'x{50,80}…, not a number"),
        ({"x" * 100_000: ["c1"]}, "column 'x{50,80}…: got an unknown column"),
    ],
)
def test_what_is_no_row_is_refused_by_name(
    trained: data.Columnar, change: dict[str, Any], message: str
) -> None:
    columns = {name: cells for name, cells in {**GOOD, **change}.items() if cells is not None}
    with pytest.raises(SpecError, match=message):
        reader_of(trained).read(columns)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "got none"),
        ([{"a": 1}, {}], "row 1: got one that lacks 'a'"),
        ([{}, {"a": 1}], "that has 'a'"),
    ],
)
def test_rows_have_the_same_columns(rows: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        columns_of_rows(rows)


SHAPES = {
    "image": {"dtype": "float32", "shape": ["rows", 2, 2]},
    "ids": {"dtype": "int64", "shape": ["rows"]},
}


def test_inputs_as_they_go_into_the_model() -> None:
    tensors, count = TensorReader(SHAPES).read(
        {"image": [[[1, 2.5], [3, 4]]] * 3, "ids": [7, 8.0, 2**62 + 1]}
    )
    assert count == 3
    assert tensors["image"].dtype is torch.float32
    assert tensors["ids"].tolist() == [7, 8, 2**62 + 1], "8.0 is whole, and none is rounded"


@pytest.mark.parametrize(
    ("dtype", "value", "right"),
    [
        ("uint8", 255, True),
        ("uint8", -1, False),
        ("uint8", 256, False),
        ("bool", True, True),
        ("bool", 1, True),
        ("bool", 2, False),
        ("int32", 2**31, False),
        ("float16", 70000.0, False),
        ("float64", 1e300, True),
    ],
)
def test_unrepresentable_numbers_are_refused(dtype: str, value: Any, right: bool) -> None:
    reader = TensorReader({"dtype": dtype, "shape": ["rows"]})
    if right:
        assert reader.read([value])[0].tolist() == [value]
    else:
        with pytest.raises(SpecError, match="inputs"):
            reader.read([value])


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (3, "inputs: got a int"),
        ({"image": [[[1, 2], [3, 4]]]}, "inputs: got"),
        ({"image": [[1, 2]], "ids": [1]}, "shape"),
        ({"image": [[[1, 2], [3]]], "ids": [1]}, "no array"),
        ({"image": [[[1, 2], [3, 4]]], "ids": [1, 2]}, "rows"),
        ({"image": 3, "ids": 4}, "shape"),
        ({"image": "x", "ids": [1]}, "no array"),
        (
            {"image": [[[1, 2], [3, 4]]] * 2, "ids": [1, 7.5]},
            r"inputs.ids of row 1: got 7.5, need a whole number",
        ),
        ({"image": [[[1, 2], [3, 4]]], "ids": [1e30]}, "inputs.ids"),
        ({"image": [[[1, 2], [3, 10**400]]], "ids": [1]}, "inputs.image: got no array"),
        (
            {"image": [[[1, 2], [3, 1e39]]], "ids": [1]},
            r"inputs.image of row 0: got 1e\+39, too large",
        ),
        ({"x" * 1000: 1}, "x{50,80}…"),
    ],
)
def test_inputs_of_other_shapes_are_refused(inputs: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        TensorReader(SHAPES).read(inputs)


def test_rows_of_nested_inputs_are_counted() -> None:
    inputs = {"image": [[[1, 2], [3, 4]]] * 7, "ids": [7] * 7}
    assert TensorReader(SHAPES).count(inputs) == 7
    assert TensorReader({"deep": {"er": SHAPES["ids"]}}).count({"deep": {"er": [1, 2, 3]}}) == 3
    assert (
        TensorReader([SHAPES["image"], SHAPES["ids"]]).count([inputs["image"], inputs["ids"]]) == 7
    )
    odd: Any
    for odd in (3, {}, [], None, {"deep": 1}):
        assert TensorReader({"deep": {"er": SHAPES["ids"]}}).count(odd) == 1


@pytest.mark.parametrize("column", [data.vocabulary("rate"), data.hashed("rate", buckets=10_000)])
@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_numeric_categories_match_at_any_precision(
    column: Any, kind: pa.DataType, tmp_path: Path
) -> None:
    """0.1 of a Parquet file may be in single precision, and a client may send it in either."""
    rates = [0.1, 2.5, 1e-7, 3.0] * 20
    table = pa.table({"rate": pa.array(rates, kind), "sold": [0, 1, 0, 1] * 20})
    pq.write_table(table, tmp_path / "rows.parquet")
    trained = data.parquet(tmp_path / "rows.parquet", columns=[column], target=data.target("sold"))
    expected = trained.take(np.arange(4))[0]["ids"].tolist()
    reader = ColumnReader(trained.encoder, [])
    single = [float(np.float32(rate)) for rate in rates[:4]]
    for sent in (rates[:4], single, [repr(rate) for rate in rates[:3]] + ["3"]):
        assert reader.read({"rate": sent})[0]["ids"].tolist() == expected
