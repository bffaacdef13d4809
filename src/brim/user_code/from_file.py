"""Finds the function of `FILE.py:NAME`: a policy, a logger."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from brim.errors import SpecError, UserCodeError, did_you_mean


def is_in_file(text: str) -> bool:
    """Return whether a name has the form FILE.py:NAME.

    brim's own names do not.

    >>> is_in_file("mine.py:shortest"), is_in_file("edf:as-coded"), is_in_file("mine.py")
    (True, False, True)
    """
    return ".py" in text or "/" in text


def split(text: str, *, field: str) -> tuple[Path, str]:
    """The file and the name in `FILE.py:NAME`.

    Raises:
        SpecError: one of them is missing, or there is no such file.
    """
    file, colon, name = text.rpartition(":")
    if not colon or not file.endswith(".py") or not name.isidentifier():
        raise SpecError(
            field,
            got=repr(text),
            need="FILE.py:NAME",
            hint=f"{field} {file or text.removesuffix(':')}:name",
        )
    path = Path(file)
    if not path.is_file():
        raise SpecError(
            field, got=f"{file}, which is no file", need="a Python file", hint=_similar_names(path)
        )
    return path, name


def _similar_names(path: Path) -> str:
    names = [file.name for file in path.parent.glob("*.py")] if path.parent.is_dir() else []
    return did_you_mean(path.name, names) if names else f"ls {path.parent}"


def load_callable(text: str, *, field: str, role: str) -> Callable[..., Any]:
    """Load the callable that `FILE.py:NAME` names.

    The file is run, with its directory importable as a script's is.

    Args:
        field: the option, for messages.
        role: of the function, as in "a policy: a function of a snapshot".

    Raises:
        SpecError: there is no such file or name, or it cannot be called.
        UserCodeError: the file raises.
    """
    path, name = split(text, field=field)
    module = _run(path)
    if not hasattr(module, name):
        names = [key for key, value in vars(module).items() if _is_own(value, module)]
        raise SpecError(
            field,
            got=f"{name!r}, which {path} does not define",
            need=role,
            hint=did_you_mean(name, names) if names else f"write def {name}(…) in {path}",
        )
    found = getattr(module, name)
    if not callable(found):
        raise SpecError(
            field,
            got=f"{text}, which is of type {type(found).__name__}",
            need=role,
            hint="name a function or a class of the file",
        )
    return found  # type: ignore[no-any-return]


def _is_own(thing: object, module: ModuleType) -> bool:
    return callable(thing) and getattr(thing, "__module__", None) == module.__name__


def _run(path: Path) -> ModuleType:
    name = f"_brim_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # whatever a user's file may raise
        raise UserCodeError(trace_of(error)) from error
    return module


def trace_of(error: BaseException) -> str:
    """A traceback from the user's first frame on, without its callers."""
    frames = traceback.extract_tb(error.__traceback__)
    package = str(Path(__file__).resolve().parent)
    first_theirs = next(
        (
            index
            for index, frame in enumerate(frames)
            if not frame.filename.startswith((package, "<frozen"))
        ),
        0,
    )
    text = traceback.format_list(frames[first_theirs:]) + traceback.format_exception_only(error)
    return "Traceback (most recent call last):\n" + "".join(text).rstrip()
