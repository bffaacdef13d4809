"""Structs that declare objects: one declaration gives a field its schema, and reads its value. Pure.

A field is declared by its type, its default and `msgspec.Meta`: bounds, a pattern, more keywords of
its schema. Descriptions are those of the struct's docstring.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from inspect import cleandoc
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, inspect

from brim.kubernetes.client.reading import (
    LARGEST_NUMBER,
    LONGEST_TEXT,
    MOST_PAIRS,
    Reading,
    choice_of,
    name_of,
    number_of,
    object_of,
    pairs_of,
    switch_of,
    text_of,
    whole_of,
    words_of,
)

Schema = dict[str, Any]
_S = TypeVar("_S", bound=msgspec.Struct)

RULES = "x-kubernetes-validations"
LIST_TYPE, LIST_KEYS = "x-kubernetes-list-type", "x-kubernetes-list-map-keys"
OPEN: Schema = {"x-kubernetes-preserve-unknown-fields": True}


def keywords(**more: Any) -> Meta:
    """Give the schema of a field keywords that `Meta` does not know."""
    return Meta(extra_json_schema=more)


def read_by(read: Callable[..., Any]) -> Meta:
    """Have a field read by a function, `read(value, path=…)`, in place of by its type."""
    return Meta(extra={"read": read})


def unread(value: object, *, path: str) -> object:
    """Return a value as it is, for others to read."""
    return value


Text = Annotated[str, Meta(max_length=LONGEST_TEXT)]
Words = Annotated[str, Meta(min_length=1, max_length=LONGEST_TEXT)]
Name = Annotated[str, Meta(min_length=1, max_length=253)]  # of an object
Label = Annotated[str, Meta(min_length=1, max_length=63)]
Short = Annotated[str, Meta(min_length=1, max_length=40)]  # of a time, or an amount
Time = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
Pairs = Annotated[dict[str, Text], Meta(max_length=MOST_PAIRS)]
Count = Annotated[int, Meta(ge=0)]
Int32 = Annotated[int, Meta(extra_json_schema={"format": "int32"})]


def matching(pattern: str, need: str) -> Schema:
    """Return the rule that a text is of a pattern, which no keyword of a schema says as well."""
    return rule(f"self.matches('^({pattern})$')", f"need {need}")


def rule(rule: str, message: str, *, at: str = "", reason: str = "") -> Schema:
    """Return a rule of the Common Expression Language; a backslash in it is one of its own texts."""
    schema: Schema = {"rule": rule.replace("\\", "\\\\"), "message": message}
    if at:
        schema["fieldPath"] = at
    return schema | {"reason": reason} if reason else schema


_ARGUMENT = re.compile(r"^    (\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)


# Schemas ------------------------------------------------------------------------------------------


def schema_of(kind: type[msgspec.Struct], **more: Any) -> Schema:
    """Return the schema of the objects that a struct declares.

    Args:
        more: properties of the objects beside the declared ones.
    """
    head, _, args = cleandoc(kind.__doc__ or "").partition("\n\nArgs:\n")
    descriptions = dict(_ARGUMENT.findall(args))
    fields = {
        field.encode_name: _described(descriptions.get(field.name, ""), _of_field(field))
        for field in _fields(kind)
    } | more
    schema = _described(head, {"type": "object"})
    if fields:  # a server leaves empty ones out, and then takes them for a change
        schema["properties"] = fields
    required = [field.encode_name for field in _fields(kind) if field.required]
    return schema | ({"required": required} if required else {})


def _described(text: str, schema: Schema) -> Schema:
    """Return a schema with its description, behind its type."""
    words = " ".join(text.split())
    described = {"description": words[:1].upper() + words[1:]} if words else {}
    return {name: schema[name] for name in ("type",) if name in schema} | described | schema


def _of_field(field: inspect.Field) -> Schema:
    has_default = isinstance(field.default, str | int | float) and field.default != ""
    found = _of_type(field.type)
    return {**found, "default": found.get("default", field.default)} if has_default else found


def _of_type(kind: inspect.Type) -> Schema:
    match kind:
        case inspect.Metadata():
            return _of_type(kind.type) | (kind.extra_json_schema or {})
        case inspect.UnionType():
            return _of_type(_present(kind))
        case inspect.StructType():
            return schema_of(kind.cls)
        case inspect.StrType():
            schema: Schema = {"type": "string", "pattern": kind.pattern}
            schema |= {"minLength": kind.min_length, "maxLength": kind.max_length}
        case inspect.IntType():
            schema = {"type": "integer", "format": "int64", "minimum": kind.ge, "maximum": kind.le}
        case inspect.FloatType():
            schema = {"type": "number", "minimum": kind.gt, "maximum": kind.le}
            schema["exclusiveMinimum"] = kind.gt is not None or None
        case inspect.BoolType():
            return {"type": "boolean"}
        case inspect.ListType() | inspect.FrozenSetType():
            listed = "set" if isinstance(kind, inspect.FrozenSetType) else "atomic"
            schema = {"type": "array", "items": _of_type(kind.item_type), LIST_TYPE: listed}
            schema |= {"minItems": kind.min_length, "maxItems": kind.max_length}
        case inspect.DictType(value_type=inspect.AnyType()):
            return {"type": "object"}
        case inspect.DictType():
            schema = {"type": "object", "additionalProperties": _of_type(kind.value_type)}
            schema["maxProperties"] = kind.max_length
        case _:
            return {}
    return {name: value for name, value in schema.items() if value is not None}


# Readings -----------------------------------------------------------------------------------------


def read_struct(kind: type[_S], value: object, *, path: str) -> _S:
    """Decode an object to the struct that declares it.

    Args:
        path: of the object, for errors.

    Raises:
        SpecError: about the first field that cannot be.
    """
    reading = Reading()
    found = read_fields(kind, object_of(value, path=path), reading, path=path)
    if reading.problems:
        raise reading.problems[0]
    return found


def read_fields(kind: type[_S], values: Mapping[str, Any], reading: Reading, *, path: str) -> _S:
    """Decode an object; values that cannot be are None in it, and noted."""
    found = {
        field.name: reading.read_or_none(_read, field.type, values.get(name), path=f"{path}.{name}")
        for field in _fields(kind)
        if values.get(name := field.encode_name) is not None or field.required
    }
    return kind(**found)


def _read(kind: inspect.Type, value: object, *, path: str, need: str = "") -> Any:
    """Raises SpecError where a value is not of a type."""
    match kind:
        case inspect.Metadata():
            extra, words = kind.extra or {}, (kind.extra_json_schema or {}).get("enum")
            if "read" in extra:
                return extra["read"](value, path=path)
            if words:
                return choice_of(value, words, path=path)
            return _read(kind.type, value, path=path, need=extra.get("need", need))
        case inspect.UnionType():
            return _read(_present(kind), value, path=path, need=need)
        case inspect.StructType():
            return read_struct(kind.cls, value, path=path)
        case inspect.StrType(pattern=None, min_length=None) if value == "":
            return ""
        case inspect.StrType(pattern=None):
            return text_of(value, path=path, limit=kind.max_length or LONGEST_TEXT)
        case inspect.StrType():
            return name_of(value, kind.pattern or "", path=path, need=need)
        case inspect.IntType():
            return whole_of(
                value, path=path, minimum=kind.ge or 0, maximum=kind.le or LARGEST_NUMBER
            )
        case inspect.FloatType():
            return number_of(
                value, path=path, bound=kind.gt or 0, maximum=kind.le or LARGEST_NUMBER
            )
        case inspect.BoolType():
            return switch_of(value, path=path)
        case inspect.ListType():
            return words_of(value, path=path)
        case inspect.DictType():
            return pairs_of(value, path=path)
        case _:
            return value


@cache
def _fields(kind: type[msgspec.Struct]) -> tuple[inspect.Field, ...]:
    found = inspect.type_info(kind)
    assert isinstance(found, inspect.StructType)
    return found.fields


def _present(kind: inspect.UnionType) -> inspect.Type:
    """Return the type of a field that may be left out."""
    return next(part for part in kind.types if not isinstance(part, inspect.NoneType))
