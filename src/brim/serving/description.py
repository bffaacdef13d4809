"""Descriptions of a served model: for people at `GET /`, and as an OpenAPI document for programs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import brim
from brim.data.columns import Column, ItemSequence, Numeric
from brim.serving.bundle import Model
from brim.serving.inputs import ColumnReader, TensorReader

PATHS = {
    "POST /predict": "answers rows",
    "GET /version": "the version that is served, and versions that are not, with the reasons",
    "GET /metrics": "figures for Prometheus",
    "GET /health": "ok, without a token",
    "GET /openapi.json": "this as an OpenAPI document",
}
_VALUE = ["string", "number", "boolean"]
_TENSOR_TYPES = {"bool": "boolean"}
_MOST_ZEROS = 4096  # numbers of an example: nobody reads those of a picture


def description(model: Model) -> dict[str, Any]:
    """Return the version that is served, the needs of a request, and an example of one."""
    manifest = model.manifest
    return {
        "model": manifest.training_file,
        "version": manifest.version,
        "step": manifest.step,
        **(
            {"columns": _words_by_name(model.reader)}
            if isinstance(model.reader, ColumnReader)
            else {"inputs": model.reader.shapes}
        ),
        **_example(model.reader),
        "paths": PATHS,
    }


def openapi(model: Model) -> dict[str, Any]:
    """The OpenAPI 3.1 document of the server, with the columns of the model that it serves."""
    row = _row_schema(model.reader)
    body = {"type": "object", "additionalProperties": False, **row}
    predicted = {
        "type": "object",
        "properties": {
            "version": {"type": "string"},
            "predictions": {"type": "object", "additionalProperties": {"type": "array"}},
        },
    }
    problem = {"type": "object", "properties": {"detail": {"type": "string"}}}
    predict = {
        "summary": PATHS["POST /predict"],
        "requestBody": {"required": True, **_content(body, **_example(model.reader))},
        "responses": {
            "200": {"description": "predictions, in the order of the rows", **_content(predicted)},
            "default": {"description": "the reason of a refusal", **_content(problem)},
        },
    }
    reads = {
        path.removeprefix("GET "): {
            "get": {"summary": words, "responses": {"200": {"description": words}}}
        }
        for path, words in PATHS.items()
        if path.startswith("GET ")
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": f"brim serve: {model.manifest.training_file}",
            "version": brim.__version__,
        },
        "paths": {"/predict": {"post": predict}, **reads},
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{"token": []}, {}],
    }


def _example(reader: ColumnReader | TensorReader) -> dict[str, Any]:
    """The body of a request with one row, whose values are only of the right kind; if it is short."""
    if isinstance(reader, ColumnReader):
        rows = [{name: _cell(column) for name, column in reader.described.items()}]
        return {"example": {"rows": rows}}
    if _size(reader.shapes) > _MOST_ZEROS:
        return {}
    return {"example": {"inputs": _zeros(reader.shapes)}}


def _words_by_name(reader: ColumnReader) -> dict[str, str]:
    return {name: _words(column) for name, column in reader.described.items()}


def _words(column: Column) -> str:
    if isinstance(column, ItemSequence):
        items = f"values of {column.of}" if column.of else "values"
        return f"a list of {items}, or a text with {column.separator!r} between them"
    if not isinstance(column, Numeric):
        return "a value, or null where it is missing"
    return "a number" if column.missing is None else "a number, or null where it is missing"


def _cell(column: Column) -> Any:
    if isinstance(column, ItemSequence):
        return ["a", "b"]
    return 1.0 if isinstance(column, Numeric) else "a"


def _row_schema(reader: ColumnReader | TensorReader) -> dict[str, Any]:
    """The properties of a body."""
    if isinstance(reader, TensorReader):
        return {"properties": {"inputs": _tensor_schema(reader.shapes)}, "required": ["inputs"]}
    cells = {name: _cell_schema(column) for name, column in reader.described.items()}
    row = {
        "type": "object",
        "properties": cells,
        "required": list(cells),
        "additionalProperties": False,
    }
    columns = {
        **row,
        "properties": {name: {"type": "array", "items": cell} for name, cell in cells.items()},
    }
    return {
        "properties": {"rows": {"type": "array", "items": row, "minItems": 1}, "columns": columns},
        "minProperties": 1,
        "maxProperties": 1,
    }


def _cell_schema(column: Column) -> dict[str, Any]:
    words = {"description": _words(column)}
    if isinstance(column, ItemSequence):
        items = {"type": "array", "items": {"type": [*_VALUE, "null"]}}
        return {"anyOf": [items, {"type": ["string", "null"]}], **words}
    if isinstance(column, Numeric):
        return {"type": ["number", "string", "null"][: 2 + (column.missing is not None)], **words}
    return {"type": [*_VALUE, "null"], **words}


def _tensor_schema(shapes: Any) -> dict[str, Any]:
    if isinstance(shapes, Mapping) and isinstance(shapes.get("dtype"), str):
        schema: dict[str, Any] = {"type": _TENSOR_TYPES.get(shapes["dtype"], "number")}
        for size in reversed(shapes["shape"]):
            exact = {} if isinstance(size, str) else {"minItems": size, "maxItems": size}
            schema = {"type": "array", "items": schema, **exact}
        return schema
    if isinstance(shapes, Mapping):
        parts = {name: _tensor_schema(part) for name, part in shapes.items()}
        return {"type": "object", "properties": parts, "required": list(parts)}
    return {"type": "array", "prefixItems": [_tensor_schema(part) for part in shapes]}


def _size(shapes: Any) -> int:
    """The numbers of one row."""
    if isinstance(shapes, Mapping) and isinstance(shapes.get("dtype"), str):
        return math.prod(size for size in shapes["shape"] if not isinstance(size, str))
    return sum(map(_size, shapes.values() if isinstance(shapes, Mapping) else shapes))


def _zeros(shapes: Any) -> Any:
    if isinstance(shapes, Mapping) and isinstance(shapes.get("dtype"), str):
        zero: Any = False if shapes["dtype"] == "bool" else 0
        for size in reversed(shapes["shape"]):
            zero = [zero] * (1 if isinstance(size, str) else size)
        return zero
    if isinstance(shapes, Mapping):
        return {name: _zeros(part) for name, part in shapes.items()}
    return [_zeros(part) for part in shapes]


def _content(schema: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"content": {"application/json": {"schema": schema, **more}}}
