"""Text of others as a terminal may have it.

Nothing in it moves the cursor, answers questions or renames the window.

Pure.
"""

from __future__ import annotations

import re

_COLOUR = "\x1b\\[[0-9;:]*m"
_RESET = "\x1b[0m"
# All that a terminal may take for an order, in either encoding of it, and what turns the direction
# of a line.
_ORDERS = re.compile(
    f"{_COLOUR}|[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)
_COLOURED_LINE = re.compile(f".*{_COLOUR}.*")


def printable(text: str) -> str:
    r"""Escape control characters, except tab, newline and the sequences that set colours.

    Colours end with their line, so that no later line is printed in them.

    >>> printable("one\ttwo \x1b]0;title\x07"), printable("\x1b[31mred\nplain")
    ('one\ttwo \\x1b]0;title\\x07', '\x1b[31mred\x1b[0m\nplain')
    """
    escaped = _ORDERS.sub(_escape, text)
    return _COLOURED_LINE.sub(_ended, escaped) if "\x1b" in escaped else escaped


def _escape(found: re.Match[str]) -> str:
    order = found.group()
    if len(order) > 1:  # a colour
        return order
    return f"\\x{ord(order):02x}" if ord(order) < 256 else f"\\u{ord(order):04x}"


def _ended(line: re.Match[str]) -> str:
    text = line.group()
    return text if text.endswith((_RESET, "\x1b[m")) else f"{text}{_RESET}"
