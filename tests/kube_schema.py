"""The schema of pods as an API server has it: values that break it, and values that do not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

Schema = dict[str, Any]
_CORE = "io.k8s.api.core.v1"
_TEXTS = ["", "a", "team", "8", "a/b", "1Gi", "/x", "é"]
_TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str, "boolean": bool, "integer": int, "number": (int, float), "object": dict,
    "array": list,
}  # fmt: skip


class PodSchema:
    """The kinds of the core group, by the server's own description of them.

    Args:
        document: of `/openapi/v3/api/v1`.
    """

    def __init__(self, document: Schema) -> None:
        self._parts: Schema = document["components"]["schemas"]

    def kind(self, name: str) -> Schema:
        """The schema of a kind such as `PodSpec`."""
        found: Schema = self._parts[f"{_CORE}.{name}"]
        return found

    def faults(self, value: Any, schema: Schema, place: str = "") -> Iterator[str]:
        """The places at which a value breaks a schema; null values are as if they were not there."""
        schema = self._resolved(schema)
        kinds = [option["type"] for option in schema.get("oneOf", [schema]) if "type" in option]
        if value is None or not kinds:
            return
        if not any(_is(value, kind) for kind in kinds):
            yield place
        elif isinstance(value, dict):
            for name in schema.get("required", []):
                if value.get(name) is None:
                    yield f"{place}.{name}"
            for name, part in value.items():
                inner = schema.get("properties", {}).get(name, schema.get("additionalProperties"))
                if inner is not None:  # others are left out by a server
                    yield from self.faults(part, inner, f"{place}.{name}")
        elif isinstance(value, list):
            for index, part in enumerate(value):
                yield from self.faults(part, schema.get("items", {}), f"{place}[{index}]")

    def values(self, schema: Schema, depth: int = 4) -> st.SearchStrategy[Any]:
        """Values that do not break a schema."""
        return _values(self, schema, depth)

    def _resolved(self, schema: Schema) -> Schema:
        while "$ref" in schema or "allOf" in schema:
            schema = schema.get("allOf", [schema])[0]
            if "$ref" in schema:
                schema = self._parts[schema["$ref"].rpartition("/")[2]]
        return schema


def _is(value: Any, kind: str) -> bool:
    number = isinstance(value, bool) and kind in ("integer", "number")
    return isinstance(value, _TYPES[kind]) and not number


@st.composite
def _values(draw: st.DrawFn, schemas: PodSchema, schema: Schema, depth: int) -> Any:
    schema = schemas._resolved(schema)
    kinds = [option["type"] for option in schema.get("oneOf", [schema]) if "type" in option]
    match draw(st.sampled_from(kinds or ["object"])):
        case "string":
            return draw(st.sampled_from(schema.get("enum", _TEXTS)))
        case "boolean":
            return draw(st.booleans())
        case "integer" | "number":
            return draw(st.integers(-1, 70_000))
        case "array":
            count = draw(st.integers(0, 2)) if depth else 0
            return [draw(_values(schemas, schema["items"], depth - 1)) for _ in range(count)]
        case _:
            return draw(_objects(schemas, schema, depth))


@st.composite
def _objects(draw: st.DrawFn, schemas: PodSchema, schema: Schema, depth: int) -> dict[str, Any]:
    properties: Schema = schema.get("properties", {})
    names = set(schema.get("required", []))
    if depth and properties:
        names |= set(draw(st.lists(st.sampled_from(sorted(properties)), max_size=4)))
    found = {name: draw(_values(schemas, properties[name], depth - 1)) for name in sorted(names)}
    if depth and "additionalProperties" in schema:
        extras = st.lists(st.sampled_from(["a", "cpu", "memory"]), max_size=2)
        for name in draw(extras):
            found[name] = draw(_values(schemas, schema["additionalProperties"], depth - 1))
    return found
