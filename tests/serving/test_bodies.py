"""Bodies of requests: large parts are decoded where they are read, and not before."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, cast

import pytest

from brim import data
from brim.data.encoding import Encoder
from brim.errors import SpecError
from brim.serving.bodies import LARGE, MOST_ROWS, Body, Malformed
from brim.serving.bundle import Model
from brim.serving.inputs import ColumnReader, TensorReader

IMAGES = TensorReader({"image": {"dtype": "float32", "shape": ["rows", 3, 50]}})


@dataclass
class FakeModel:
    reader: Any


def model_of(reader: Any) -> Model:
    return cast(Model, FakeModel(reader))


def columns() -> Model:
    column = data.hashed("word", buckets=50)
    return model_of(ColumnReader(Encoder((column,), (), {}, {}), ["NA"]))


def body(**content: Any) -> Body:
    return Body(json.dumps(content).encode())


@pytest.mark.parametrize("rows", [1, 5000])
def test_rows_columns_and_inputs_are_read(rows: int) -> None:
    words = [f"word {row} of many" for row in range(rows)]
    by_row, by_column = body(rows=[{"word": word} for word in words]), body(columns={"word": words})
    first, second = by_row.read(columns()), by_column.read(columns())
    assert first[1] == second[1] == by_row.size(columns()) == by_column.size(columns()) == rows
    assert first[0]["ids"].tolist() == second[0]["ids"].tolist()
    assert by_row.is_large == (rows == 5000)
    image = [[[row + place / 64 for place in range(50)]] * 3 for row in range(rows)]
    request_body = body(inputs={"image": image})
    assert request_body.size(model_of(IMAGES)) == rows
    inputs, count = request_body.read(model_of(IMAGES))
    assert count == rows
    assert inputs["image"].tolist() == image


def test_cells_are_decoded_when_they_are_read() -> None:
    """So the event loop, which makes the body, is not held up by them."""
    text = json.dumps({"rows": [{"word": "w" * 100}] * 2000})[:-2].encode() + b', {"word": {}}]}'
    late = Body(text)
    assert len(text) > LARGE
    assert late.size(columns()) == 2001
    with pytest.raises(Malformed, match=r"column 'word' of row 2000: .*got `object`"):
        late.read(columns())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[" * 100_000, "got `array`"),
        (b'{"inputs":' + b"[" * 100_000, "recursion"),
        (
            b'{"inputs":[[' + b"[" * 900 + b"1," * LARGE + b"1" + b"]" * 900 + b"]]}",
            "need an object",
        ),
        (b'{"inputs": [NaN]}', "malformed"),
        (b"", "request: it is empty"),
        (b'{"columns": {"word": []}}', "got no rows"),
        (b'{"inputs": ["\xff"]}', "UTF"),
        (b'{"rows": [1]}', "row 0"),
        (b'{"columns": {"word": 1}}', "column 'word'"),
    ],
)
def test_what_is_no_request(content: bytes, message: str) -> None:
    reader = model_of(IMAGES) if b"inputs" in content else columns()
    with pytest.raises((Malformed, SpecError), match=f"(?i){message}"):
        Body(content).read(reader)


def test_columns_have_no_more_lists_than_rows() -> None:
    places = model_of(
        ColumnReader(Encoder((data.sequence("seen", length=2),), (), {0: {}}, {}), [])
    )
    many = body(columns={"word": ["a"], "seen": [[]] * (MOST_ROWS + 2)})
    assert many.size(places) == 1
    with pytest.raises(SpecError, match="column 'seen': got more than 65,536 lists"):
        many.read(places)
    inputs, count = body(columns={"seen": [["a"]] * MOST_ROWS}).read(places)
    assert (inputs["ids"].shape, count) == ((MOST_ROWS, 2), MOST_ROWS)
