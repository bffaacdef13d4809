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
_requested_names: set[str] = set()
T = TypeVar("T", str, int, float, bool)


def _parameters_given() -> dict[str, str]:
    values: dict[str, str] = json.loads(os.environ.get(ENVIRONMENT_VARIABLE, "{}"))
    return values


def param(name: str, default: T) -> T:
    """Return the value of `--set name=value`, or `default`; it has the type of `default`.

    Raises:
        SpecError: the value given is not of that type.

    >>> param("learning_rate", 1e-3)
    0.001
    """
    _requested_names.add(name)
    text = _parameters_given().get(name)
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
    stand in calls of `brim.param` in the file, or in a module beside it.

    Args:
        module: the training file, run.

    Raises:
        SpecError: there is one.
    """
    unread = _parameters_given().keys() - _requested_names
    if not unread:
        return
    names = _requested_names | _read_later(module)
    for name in sorted(unread - names):
        raise SpecError(
            f"--set {name}",
            got="a name that the file does not read",
            need="one that it reads",
            hint=did_you_mean(name, names)
            if names
            else "this file reads no parameters: see brim.param",
        )


def _read_later(module: ModuleType) -> set[str]:
    """Return the names in calls of `brim.param` in a file, and in imported modules of its folder."""
    module_file = getattr(module, "__file__", None)
    if not module_file:
        return set()
    folder = Path(module_file).resolve().parent
    paths = {
        Path(path) for path in (_file_of(module) for module in list(sys.modules.values())) if path
    }
    files = {Path(module_file), *(path for path in paths if path.resolve().is_relative_to(folder))}
    names: set[str] = set()
    for path in files:
        with contextlib.suppress(OSError, SyntaxError, ValueError):
            names |= _names_in(path.read_bytes())
    return names


def _names_in(code: bytes) -> set[str]:
    """Return the names that calls of `param` have in some code.

    Where one of them has no name that stands there, it may be any text of the code.

    >>> sorted(_names_in(b'brim.param("late", 1); mode = "train"'))
    ['late']
    >>> sorted(_names_in(b'for name in ("late", "later"): brim.param(name, 1)'))
    ['late', 'later']
    """
    nodes = list(ast.walk(ast.parse(code)))
    aliases = {
        name.asname or name.name
        for node in nodes
        if isinstance(node, ast.ImportFrom)
        for name in node.names
        if name.name == "param"
    }
    named = {
        id(node.func): name
        for node in nodes
        if isinstance(node, ast.Call) and (name := _name_of(node)) is not None
    }
    mentions = [
        node
        for node in nodes
        if (isinstance(node, ast.Attribute) and node.attr == "param")
        or (isinstance(node, ast.Name) and node.id in aliases)
    ]
    if all(id(node) in named for node in mentions):
        return {named[id(node)] for node in mentions}
    return {
        node.value
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def _name_of(call: ast.Call) -> str | None:
    """Return the text that a call has as its first argument, or as `name=`."""
    by_name = [keyword.value for keyword in call.keywords if keyword.arg == "name"]
    for first in (*call.args[:1], *by_name):
        if isinstance(first, ast.Constant) and isinstance(first.value, str):
            return first.value
    return None


def _file_of(module: object) -> str:
    path = getattr(module, "__file__", None)
    return path if isinstance(path, str) and path.endswith(".py") else ""
