"""Tracebacks of users' code as users want to see them."""

from __future__ import annotations

import errno
import sysconfig
import traceback
from pathlib import Path

import torch

from brim.host.shortage import words_of_shortage

_LIBRARIES = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib"))


def trace_of(error: BaseException) -> str:
    """Return the traceback as the user wants it: from the first frame outside brim.

    A lack of memory, or of threads, is said last.
    """
    frames = traceback.extract_tb(error.__traceback__)
    package = str(Path(__file__).resolve().parents[1])
    first = next(
        (
            i
            for i, frame in enumerate(frames)
            if not frame.filename.startswith((package, "<frozen"))
        ),
        0,
    )
    lines = traceback.format_list(frames[first:]) + traceback.format_exception_only(error)
    return "Traceback (most recent call last):\n" + "".join(lines) + _said_of_shortage(error)


def place_of(error: BaseException) -> str:
    """Return where a user's code was when an error came, as `loop.py:19`; empty if nowhere."""
    package = str(Path(__file__).resolve().parents[1])
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = frame.filename
        if not path.startswith((package, "<", *_LIBRARIES)) and "site-packages" not in path:
            return f"{Path(path).name}:{frame.lineno}"
    return ""


def is_raised_by_brim(error: BaseException) -> bool:
    """Return whether the innermost frame outside Python's own library is one of brim."""
    package = str(Path(__file__).resolve().parents[1])
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename.startswith(package):
            return True
        if "site-packages" in frame.filename or not frame.filename.startswith(("<", *_LIBRARIES)):
            return False
    return False


def _said_of_shortage(error: BaseException) -> str:
    """A last line for an error that means that memory, or threads, ran out; empty for others."""
    if isinstance(error, torch.OutOfMemoryError):
        device = "device"
    elif isinstance(error, MemoryError) or _is_refusal(error):
        device = "host"
    else:
        words = words_of_shortage(error) if isinstance(error, RuntimeError) else ""
        return f"{words}\n" if words else ""
    first = traceback.format_exception_only(error)[-1].strip().splitlines()[0]
    return (
        f"out of memory on this {device}: {first}; run fewer workers on it, have them do less at a "
        "time "
        "(--micro-batches), or hold less at once\n"
    )


def _is_refusal(error: BaseException) -> bool:
    """Return whether an error means that memory was refused.

    Python or torch's allocator refuses, and the latter's error has no type of its own.
    """
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
