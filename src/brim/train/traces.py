"""Tracebacks of users' code as users want to see them."""

from __future__ import annotations

import traceback
from pathlib import Path

__all__ = ["trace_of"]


def trace_of(error: BaseException) -> str:
    """The traceback as the user wants it: from the first frame outside brim."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = str(Path(__file__).resolve().parents[1])
    first = next((i for i, frame in enumerate(frames) if not frame.filename.startswith((ours, "<frozen"))), 0)
    lines = traceback.format_list(frames[first:]) + traceback.format_exception_only(error)
    return "Traceback (most recent call last):\n" + "".join(lines)
