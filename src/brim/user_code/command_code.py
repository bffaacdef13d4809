"""The code of a command, as far as its words show it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from brim.errors import SpecError
from brim.user_code.own_code import Code, CodeFile, collect, parse, parts_of_brim, script_in

_SCRIPT_BYTES = 8 << 20  # of a command's code that are looked at


def code_of(command: Sequence[str]) -> Code | None:
    """Return the code of a command; None where none is seen, or it cannot be read."""
    word = script_in(command) or _module_file(command)
    if not word:
        return None
    source = CodeFile(Path(os.path.realpath(word)), Path(word).name)
    with contextlib.suppress(OSError, SpecError):
        return collect(source, limit_bytes=_SCRIPT_BYTES)
    return None


def parts_of(command: Sequence[str], code: Code | None) -> dict[str, str]:
    """Map each name of brim that a command's code visibly uses, such as `join`, to its file.

    Args:
        code: of the command, by `code_of`.
    """
    return code.parts_of_brim() if code else dict.fromkeys(_inline_parts(command), "its code")


def keeps_on_each_host(command: Sequence[str]) -> bool:
    """Return whether a command visibly needs no disk that its hosts share.

    `brim.xgboost` keeps its rounds on each host, and goes on from the farthest of any.
    """
    return "xgboost" in parts_of(command, code_of(command))


def _module_file(command: Sequence[str]) -> str:
    """Return the file of a module of this directory that `python -m` runs, or an empty string."""
    name = word_after("-m", command).replace(".", "/")
    found = (f"{name}.py", f"{name}/__main__.py")
    return next((path for path in found if name and Path(path).is_file()), "")


def _inline_parts(command: Sequence[str]) -> set[str]:
    """Return the names of brim that the code of `python -c` uses."""
    with contextlib.suppress(SyntaxError, ValueError):
        return parts_of_brim(parse(word_after("-c", command).encode()))
    return set()


def word_after(option: str, command: Sequence[str]) -> str:
    """Return the word after an option of Python; empty for other programs, and without the option."""
    if "python" not in Path(command[0]).name or option not in command[1:-1]:
        return ""
    return command[command.index(option, 1) + 1]
