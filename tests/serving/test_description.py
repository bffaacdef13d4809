"""A server says what it needs, and its own example is answered."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import cast

import pytest

from brim import data
from brim.data.encoding import Encoder
from brim.serving.bodies import Body
from brim.serving.bundle import Model
from brim.serving.description import description, openapi
from brim.serving.inputs import ColumnReader, TensorReader

COLUMNS = (
    data.vocabulary("film"),
    data.sequence("history", length=3, of="film"),
    data.numeric("age", missing="mean"),
    data.hashed("film", "age", buckets=5),
    data.numeric("price"),
)
TABLES = ColumnReader(
    Encoder(COLUMNS, (), {0: {"a": 1}}, {2: (0.0, 1.0, 0.0), 4: (0.0, 1.0, 0.0)}), ["NA"]
)
TENSORS = TensorReader(
    {"image": {"dtype": "float32", "shape": ["rows", 2, 3]}, "ids": [
        {"dtype": "int64", "shape": ["rows"]}, {"dtype": "bool", "shape": ["rows", 1]}
    ]}
)  # fmt: skip


def model_of(reader: ColumnReader | TensorReader) -> Model:
    manifest = SimpleNamespace(training_file="films.py", version="1-a", step=1)
    return cast(Model, SimpleNamespace(reader=reader, manifest=manifest))


@pytest.mark.parametrize("reader", [TABLES, TENSORS], ids=["columns", "tensors"])
def test_the_example_is_answered(reader: ColumnReader | TensorReader) -> None:
    model = model_of(reader)
    said = json.loads(json.dumps(description(model)))
    assert (said["model"], said["version"]) == ("films.py", "1-a")
    inputs, count = Body(json.dumps(said["example"]).encode()).read(model)
    assert count == 1
    assert inputs


def test_a_large_model_has_no_example() -> None:
    film = TensorReader({"film": {"dtype": "float32", "shape": ["rows", 64, 3, 512, 512]}})
    for text in (description(model_of(film)), openapi(model_of(film))):
        assert len(json.dumps(text)) < 10_000, "anybody who asks would be sent 100 MB"


def test_columns_are_said_in_words() -> None:
    assert description(model_of(TABLES))["columns"] == {
        "film": "a value, or null where it is missing",
        "history": "a list of values of film, or a text with '|' between them",
        "age": "a number, or null where it is missing",
        "price": "a number",
    }


def test_the_document_has_a_schema_of_each_column() -> None:
    document = json.loads(json.dumps(openapi(model_of(TABLES))))
    post = document["paths"]["/predict"]["post"]["requestBody"]["content"]["application/json"]
    row = post["schema"]["properties"]["rows"]["items"]
    assert row["required"] == list(TABLES.described) == ["film", "history", "age", "price"]
    assert row["properties"]["price"]["type"] == ["number", "string"]
    assert row["properties"]["age"]["type"] == ["number", "string", "null"]
    assert row["properties"]["history"]["anyOf"][0]["type"] == "array"
    tensors = json.loads(json.dumps(openapi(model_of(TENSORS))))
    post = tensors["paths"]["/predict"]["post"]["requestBody"]["content"]["application/json"]
    image = post["schema"]["properties"]["inputs"]["properties"]["image"]
    assert (image["items"]["minItems"], image["items"]["items"]["maxItems"]) == (2, 3)
