"""The code of a command, as far as its words show it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from brim.errors import SpecError
from brim.user_code.own_code import Code, collect, parse, parts_of_brim, source_in, word_after

_SCRIPT_BYTES = 8 << 20  # of a command's code that are looked at


def code_of(command: Sequence[str]) -> Code | None:
    """Return the code of a command; None where none is seen, or it cannot be read."""
    source = source_in(command, Path())
    if source is None:
        return None
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


def _inline_parts(command: Sequence[str]) -> set[str]:
    """Return the names of brim that the code of `python -c` uses."""
    with contextlib.suppress(SyntaxError, ValueError):
        return parts_of_brim(parse(word_after("-c", command).encode()))
    return set()
