"""The terminal that a person is at, while a program elsewhere has it."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import termios
import tty
from collections.abc import Iterator

_USUAL = os.terminal_size((80, 24))  # of one that does not tell


def is_at_terminal() -> bool:
    """Return whether the standard input and output of this process are a person's terminal."""
    try:
        return os.isatty(0) and os.isatty(1)
    except OSError:
        return False


def window() -> tuple[int, int]:
    """Return the rows and columns of the terminal's window."""
    try:
        size = os.get_terminal_size(1)
    except OSError:
        size = _USUAL
    return size.lines, size.columns


@contextlib.contextmanager
def raw_terminal() -> Iterator[None]:
    """Have every key come as it is typed, Ctrl-C as well, until the end of the block.

    The terminal is as it was behind it, also where this process is asked to end.
    """
    usual = termios.tcgetattr(0)
    handlers = {number: signal.signal(number, _leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        tty.setraw(0)
        yield
    finally:
        with contextlib.suppress(termios.error):  # it may be gone
            termios.tcsetattr(0, termios.TCSADRAIN, usual)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def show(data: bytes) -> None:
    """Write to the terminal as it is, escape sequences as well. Raises OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


def _leave(number: int, _: object) -> None:
    sys.exit(128 + number)
