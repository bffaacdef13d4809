"""The exception tree, split by culprit.

```
BrimError
├── SpecError          the user: a spec, a flag, a file or its data is wrong (exit 2)
├── UserCodeError      the user: their model, loss or dataset raised; has their traceback (exit 1)
├── EnvironmentFault   the environment: a host, disk or network failed (`retryable`: try again?)
│   └── StorageFault   what a scheduler remembers cannot be read, or nothing can be added to it
├── ProtocolError      a peer: it sent what no peer of this version sends
└── InternalError      us: an invariant of brim does not hold
```
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from functools import partial
from typing import Any

__all__ = [
    "NO_SUCH_FILE",
    "BrimError",
    "EnvironmentFault",
    "InternalError",
    "ProtocolError",
    "SpecError",
    "StorageFault",
    "UserCodeError",
    "did_you_mean",
]


NO_SUCH_FILE = "no such file"  # what a SpecError got whose field is the path of a file


class BrimError(Exception):
    """Base of all errors that brim raises on purpose."""


class SpecError(BrimError):
    """A request that cannot be carried out as the user wrote it.

    Args:
        field: the wrong part, as the user wrote it (`--workers`, `examples/flights.py`, `column
            'distance'`).
        got: the value found there.
        need: a right value, in words.
        hint: something to type or to change that would mend it; may be empty.

    >>> print(SpecError("--workers", got="0", need="a whole number from 1", hint="try --workers 4"))
    --workers: got 0, need a whole number from 1
      hint: try --workers 4
    """

    def __init__(self, field: str, *, got: str, need: str, hint: str = "") -> None:
        self.field, self.got, self.need, self.hint = field, got, need, hint
        super().__init__(field, got, need, hint)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(SpecError, self.field, got=self.got, need=self.need, hint=self.hint), ()

    def __str__(self) -> str:
        line = f"{self.field}: got {self.got}, need {self.need}"
        return f"{line}\n  hint: {self.hint}" if self.hint else line


class UserCodeError(BrimError):
    """The user's code raised; `trace` is their traceback, shown before anything of ours."""

    def __init__(self, trace: str) -> None:
        self.trace = trace
        super().__init__(trace)


class EnvironmentFault(BrimError):
    """A host, a disk or a network did not do its part."""

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        self.retryable = retryable
        super().__init__(message)


class StorageFault(EnvironmentFault):
    """A scheduler's database that cannot be read, or cannot be written to now."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retryable=True)


class ProtocolError(BrimError):
    """A peer sent something that this version cannot mean."""


class InternalError(BrimError):
    """An invariant of brim does not hold: a bug, and ours."""


def did_you_mean(actual: str, candidates: Iterable[str]) -> str:
    """The closest known name as a hint, or the whole list where none is close.

    >>> did_you_mean("distence", ["delay", "distance"])
    "did you mean 'distance'?"
    >>> did_you_mean("x", ["delay", "distance"])
    'known: delay, distance'
    """
    names = sorted(map(str, candidates))  # of enums, their values
    close = difflib.get_close_matches(actual, names, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    return "known: " + ", ".join(names) if names else ""
