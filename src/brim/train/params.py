"""The values that `--set name=value` gives to a training file.

They travel in one environment variable, so a file sees the same values in the template, in every
worker and when it is run alone.
"""

from __future__ import annotations

import json
import os
from typing import TypeVar

from brim.errors import SpecError, did_you_mean

ENVIRONMENT_VARIABLE = "BRIM_PARAMETERS"
_asked: set[str] = set()
T = TypeVar("T", str, int, float, bool)


def _given() -> dict[str, str]:
    values: dict[str, str] = json.loads(os.environ.get(ENVIRONMENT_VARIABLE, "{}"))
    return values


def param(name: str, default: T) -> T:
    """Return the value of `--set name=value`, or `default`; it has the type of `default`.

    Raises:
        SpecError: the value given is not of that type.

    >>> param("learning_rate", 1e-3)
    0.001
    """
    _asked.add(name)
    text = _given().get(name)
    if text is None:
        return default
    kind = type(default)
    try:
        if kind is bool:
            return kind({"true": True, "1": True, "false": False, "0": False}[text.lower()])
        return kind(text)
    except (ValueError, KeyError):
        need = "true or false" if kind is bool else f"a value of type {kind.__name__}"
        raise SpecError(
            f"--set {name}", got=repr(text), need=need, hint=f"the default is {default!r}"
        ) from None


def check_all_used() -> None:
    """Fail on a `--set` name that the file never asked for.

    A mistyped name must not pass in silence.
    """
    for name in sorted(_given().keys() - _asked):
        hint = (
            did_you_mean(name, _asked)
            if _asked
            else "this file reads no parameters: see brim.param"
        )
        raise SpecError(
            f"--set {name}",
            got="a name that the file does not read",
            need="one that it reads",
            hint=hint,
        )
