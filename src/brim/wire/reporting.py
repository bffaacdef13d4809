"""`brim.progress`: a command's word on how far it is, to the worker that started it."""

from __future__ import annotations

import os
import ssl
import sys
from functools import lru_cache
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from brim.domain.reported import Report
from brim.host.clock import monotonic

_URL, _AUTHORITY, _HEADER = "BRIM_PROGRESS_URL", "BRIM_PROGRESS_CA", "BRIM_PROGRESS_HEADER"
_INTERVAL = 1.0  # seconds between two reports that are sent
_TO_ANSWER = 2.0  # seconds

_sent_at = -_INTERVAL
_has_warned = False


def progress(step: int, total: int = 0, **values: float) -> None:
    """Report how far this command is, where `brim run` or a scheduler has started it.

    Elsewhere, and in all processes but that of rank 0, it does nothing. It may be called in each
    step: one report a second is sent, and the last one. A report that cannot be sent is left out.

    Args:
        step: steps that are made.
        total: steps that will be made in the end; 0 where that is not known.
        values: of the step, such as `loss=0.31`.

    Raises:
        SpecError: a step below 0, or behind the total.

    Example:
        >>> import brim
        >>> brim.progress(120, 960, loss=0.31)
    """
    global _sent_at, _has_warned
    report = Report(step=step, total=total, values=values)
    url, now = os.environ.get(_URL), monotonic()
    if not url or (now - _sent_at < _INTERVAL and step != total):
        return
    _sent_at = now
    fields = urlencode({**report.values, "step": step, "total": total}).encode()
    try:
        with open(os.environ[_HEADER], encoding="ascii") as file:
            name, _, value = file.read().strip().partition(": ")
        request = Request(url, fields, {name: value}, method="POST")
        with urlopen(request, timeout=_TO_ANSWER, context=_context(os.environ[_AUTHORITY])):
            pass
    except (OSError, KeyError, ValueError) as error:
        if not _has_warned:
            print(f"brim: the progress is not reported: {error!r}", file=sys.stderr)  # noqa: T201
        _has_warned = True


@lru_cache(maxsize=1)
def _context(authority: str) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=authority)
