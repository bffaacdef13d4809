"""The values that `--set name=value` gives to a training file.

They travel in one environment variable, so a file sees the same values in the template, in every
worker and when it is run alone.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import sys
from pathlib import Path
from types import ModuleType
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


def check_all_used(module: ModuleType) -> None:
    """Fail on a `--set` name that the file neither has asked for nor names.

    A mistyped name must not pass in silence. Some are read only once the model is trained: those
    stand as a text in the file, or in a module beside it.

    Args:
        module: the training file, run.

    Raises:
        SpecError: there is one.
    """
    unread = sorted(_given().keys() - _asked)
    if not unread:
        return
    texts = _texts_beside(module)
    for name in unread:
        if name in texts:
            continue
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


def _texts_beside(module: ModuleType) -> set[str]:
    """Return all texts in a training file, and in modules of its folder that it has imported."""
    own = getattr(module, "__file__", None)
    if not own:
        return set()
    folder = Path(own).resolve().parent
    paths = {Path(each) for each in (_file_of(each) for each in list(sys.modules.values())) if each}
    files = {Path(own), *(path for path in paths if path.resolve().is_relative_to(folder))}
    texts: set[str] = set()
    for path in files:
        with contextlib.suppress(OSError, SyntaxError, ValueError):
            tree = ast.parse(path.read_bytes())
            texts |= {
                node.value
                for node in ast.walk(tree)
                if isinstance(node, ast.Constant) and isinstance(node.value, str)
            }
    return texts


def _file_of(module: object) -> str:
    path = getattr(module, "__file__", None)
    return path if isinstance(path, str) and path.endswith(".py") else ""
