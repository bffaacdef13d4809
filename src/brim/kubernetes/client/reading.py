"""Readings of objects that people write: a field's value, or an error that names it. Pure.

A misunderstood object is a value too, so it ends nothing but itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeAlias, TypeVar

from brim.errors import SpecError, did_you_mean

LONGEST_TEXT = 4_096  # characters of any text in a spec
MOST_WORDS = 256  # of a command
MOST_PAIRS = 256  # parameters, or variables of the environment
LARGEST_NUMBER = 2**63
NAME = "[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?"  # of an object, such as a Tenant
_LONGEST_SHOWN = 60  # characters of a value that an error quotes

Problems: TypeAlias = tuple[SpecError, ...]
"""The errors of one object, each about a field: `spec.workers.min`."""

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Reading:
    """A reading of one object, which goes on behind an error.

    Attributes:
        problems: that were found so far.
    """

    def __init__(self) -> None:
        self.problems: list[SpecError] = []

    def read_or_none(
        self, read: Callable[_P, _T], *arguments: _P.args, **named: _P.kwargs
    ) -> _T | None:
        """Return the result of `read` for these arguments; None where that is an error."""
        try:
            return read(*arguments, **named)
        except SpecError as wrong:
            self.problems.append(wrong)
            return None


def quoted(value: object) -> str:
    """Return a value as an error quotes it, however large.

    >>> quoted("x" * 99)[-8:], quoted(10**30)
    ('xxxxxxx…', 'a number of 100 bits')
    """
    if value is None:
        return "nothing"
    if isinstance(value, int) and abs(value) >= LARGEST_NUMBER:
        return f"a number of {value.bit_length()} bits"
    if isinstance(value, Mapping):
        return f"an object of {len(value):,} fields" if value else "an empty object"
    if isinstance(value, list):
        return f"a list of {len(value):,}" if value else "an empty list"
    text = repr(value[: _LONGEST_SHOWN * 2] if isinstance(value, str) else value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 1]}…"


def part_of(thing: object, name: str) -> object:
    """Return a field of an object; None where it has none, or is none."""
    return thing.get(name) if isinstance(thing, Mapping) else None


def pairs_of(value: object, *, path: str) -> dict[str, str]:
    """Return names with their texts.

    Raises:
        SpecError: it is nothing like that.
    """
    if not isinstance(value, Mapping) or len(value) > MOST_PAIRS:
        need = f"at most {MOST_PAIRS} NAME: TEXT pairs"
        raise SpecError(path, got=quoted(value), need=need, hint=f'{path}: {{rate: "0.01"}}')
    for name, text in value.items():
        if not isinstance(text, str) or len(text) > LONGEST_TEXT or len(name) > LONGEST_TEXT:
            place = f"{path}.{name[:_LONGEST_SHOWN]}"
            need = f"a text of at most {LONGEST_TEXT:,} characters, in quotes where it is a number"
            raise SpecError(
                place, got=quoted(text), need=need, hint=f'{name[:_LONGEST_SHOWN]}: "1"'
            )
    return dict(value)


def words_of(value: object, *, path: str) -> tuple[str, ...]:
    """Return a list of words.

    Raises:
        SpecError: it is none, or an empty one.
    """
    if not isinstance(value, list) or not 1 <= len(value) <= MOST_WORDS:
        need = f"a list of 1 to {MOST_WORDS} words"
        raise SpecError(path, got=quoted(value), need=need, hint=f"{path}: [python, loop.py]")
    for index, word in enumerate(value):
        if not isinstance(word, str) or len(word) > LONGEST_TEXT:
            need = f"a text of at most {LONGEST_TEXT:,} characters"
            raise SpecError(f"{path}[{index}]", got=quoted(word), need=need)
    return tuple(value)


def object_of(value: object, *, path: str) -> Mapping[str, Any]:
    """Return an object of NAME: VALUE pairs; an empty one where there is nothing.

    Raises:
        SpecError: it is something else.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise SpecError(path, got=quoted(value), need="NAME: VALUE pairs")
    return value


def text_of(value: object, *, path: str, limit: int = LONGEST_TEXT) -> str:
    """Return a text that says something.

    Raises:
        SpecError: it is none, an empty one, or longer than `limit`.
    """
    if not isinstance(value, str) or not 1 <= len(value) <= limit:
        raise SpecError(path, got=quoted(value), need=f"a text of 1 to {limit:,} characters")
    return value


def whole_of(value: object, *, path: str, minimum: int, maximum: int) -> int:
    """Return a whole number.

    Raises:
        SpecError: it is none, or none from `minimum` to `maximum`.
    """
    number = int(value) if isinstance(value, float) and value.is_integer() else value
    if isinstance(number, bool) or not isinstance(number, int) or not minimum <= number <= maximum:
        raise SpecError(
            path, got=quoted(value), need=f"a whole number from {minimum} to {maximum:,}"
        )
    return number


def number_of(value: object, *, path: str, bound: float, maximum: float) -> float:
    """Return a number.

    Raises:
        SpecError: it is none, or none above `bound` and at most `maximum`.
    """
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else None
    if number is None or not bound < number <= maximum:
        need = f"a number above {bound:,}, and at most {maximum:,}"
        hint = f"{path.rpartition('.')[2]}: 1"
        raise SpecError(path, got=quoted(value), need=need, hint=hint)
    return float(number)


def switch_of(value: object, *, path: str) -> bool:
    """Return a switch; off where there is nothing.

    Raises:
        SpecError: it is something else.
    """
    if value is None:
        return False
    if not isinstance(value, bool):
        raise SpecError(path, got=quoted(value), need="true or false")
    return value


def choice_of(value: object, words: Sequence[str], *, path: str) -> str:
    """Return one of a few words; the first where there is nothing.

    Raises:
        SpecError: it is another one.
    """
    if value is None:
        return words[0]
    if not isinstance(value, str) or value not in words:
        hint = did_you_mean(value[:_LONGEST_SHOWN], words) if isinstance(value, str) else ""
        raise SpecError(path, got=quoted(value), need="one of " + ", ".join(words), hint=hint)
    return value


def name_of(value: object, pattern: str, *, path: str, need: str = "") -> str:
    """Return a name of Kubernetes, or another text of a pattern, which `need` describes.

    Raises:
        SpecError: it is none.
    """
    if not isinstance(value, str) or not re.fullmatch(pattern, value):
        need = need or "a name of letters a to z, digits, '-' and '.'"
        raise SpecError(path, got=quoted(value), need=need)
    return value
