"""UBJSON, the binary form of XGBoost's model files: objects and lists, around bytes as they are. Pure.

Numbers, texts and arrays of numbers are not decoded, so all of their bits stay. XGBoost has each length
as an int64.

Source: the specification of UBJSON, draft 12.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from brim.errors import InternalError

# Bytes of a value behind its mark.
_SIZES = dict(zip(b"ZTFiUCIldLD", (0, 0, 0, 1, 1, 1, 2, 4, 4, 8, 8), strict=True))
_LENGTH = struct.Struct(">cq")  # the mark of an int64, and the number
_BEGIN_OBJECT, _END_OBJECT, _BEGIN_LIST, _TEXT = b"{}[S"
_BEGIN_NUMBERS, _BEGIN_VALUES = b"$#"


def decoded(content: bytes | bytearray) -> Any:
    """Return a value: a dict, a list, or the bytes of anything else.

    Raises:
        InternalError: XGBoost does not write such bytes.

    >>> decoded(encoded({"a": [number(1), text("b")]}))["a"][0].tobytes()
    b'L\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x01'
    """
    try:
        value, end = _value_at(memoryview(content), 0)
    except (IndexError, KeyError, UnicodeDecodeError, struct.error) as error:
        raise InternalError(f"a model file is not as xgboost writes it: {error!r}") from error
    if end != len(content):
        raise InternalError(f"a model file has {len(content)} bytes, and its value {end}")
    return value


def encoded(value: Any) -> bytearray:
    """Return the bytes of a value.

    Args:
        value: a dict, a list, or the bytes of anything else.
    """
    return bytearray().join(_parts(value))


def number(value: int) -> bytes:
    """Return the bytes of a whole number."""
    return _LENGTH.pack(b"L", value)


def text(value: str) -> bytes:
    """Return the bytes of a text."""
    return b"S" + _name(value)


def _parts(value: Any) -> Iterator[bytes | memoryview]:
    if isinstance(value, dict):
        yield b"{"
        for name, item in value.items():
            yield _name(name)
            yield from _parts(item)
        yield b"}"
    elif isinstance(value, list):
        yield b"[#" + number(len(value))
        for item in value:
            yield from _parts(item)
    else:
        yield value


def _name(name: str) -> bytes:
    content = name.encode()
    return number(len(content)) + content


def _value_at(content: memoryview, begin: int) -> tuple[Any, int]:
    """The value that begins there, and where it ends."""
    mark = content[begin]
    if mark == _BEGIN_OBJECT:
        return _object_at(content, begin + 1)
    if mark == _BEGIN_LIST and content[begin + 1] == _BEGIN_VALUES:
        return _list_at(content, begin + 2)
    if mark == _BEGIN_LIST and content[begin + 1] == _BEGIN_NUMBERS:
        # A mark that all have, a `#`, and their count.
        count, place = _length_at(content, begin + 4)
        end = place + count * _SIZES[content[begin + 2]]
    elif mark == _TEXT:
        count, place = _length_at(content, begin + 1)
        end = place + count
    else:
        end = begin + 1 + _SIZES[mark]
    return content[begin:end], end


def _object_at(content: memoryview, place: int) -> tuple[dict[str, Any], int]:
    fields = {}
    while content[place] != _END_OBJECT:
        count, begin = _length_at(content, place)
        end = begin + count
        fields[str(content[begin:end], "utf-8")], place = _value_at(content, end)
    return fields, place + 1


def _list_at(content: memoryview, place: int) -> tuple[list[Any], int]:
    count, place = _length_at(content, place)
    values = []
    for _ in range(count):
        value, place = _value_at(content, place)
        values.append(value)
    return values, place


def _length_at(content: memoryview, place: int) -> tuple[int, int]:
    mark, length = _LENGTH.unpack_from(content, place)
    if mark != b"L" or length < 0:
        raise InternalError(f"a model file of xgboost has no length at byte {place}")
    return length, place + _LENGTH.size
