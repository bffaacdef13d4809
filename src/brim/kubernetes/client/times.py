"""Times as Kubernetes writes them (RFC 3339). Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from brim.errors import SpecError

_WRITTEN = re.compile(
    r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(\.\d{1,9})?(Z|[+-]\d\d:\d\d)", re.ASCII | re.IGNORECASE
)
NO_TIME = "1970-01-01T00:00:00Z"  # where an object must have a time and there is none
_LAST = 253_402_300_799.0  # the end of the year 9999: no later one can be written


def read_time(text: object, *, field: str) -> float:
    """Return the seconds since 1970 of a time.

    Args:
        text: of any type, as written.
        field: where, for the error.

    Raises:
        SpecError: it is none, or its zone is missing.

    >>> read_time("2026-12-01T08:00:00Z", field="spec.deadline")
    1796112000.0
    """
    found = _WRITTEN.fullmatch(text) if isinstance(text, str) else None
    try:
        if found is not None:
            day, clock, fraction, zone = found.groups()
            whole = datetime.fromisoformat(f"{day}T{clock}{zone.upper()}")
            return whole.timestamp() + float(fraction or 0.0)
    except (ValueError, OverflowError):  # the 30th of February
        pass
    raise SpecError(
        field,
        got=repr(text)[:60],
        need="a date, a time and a zone, as in RFC 3339",
        hint="2026-12-01T08:00:00Z, or 2026-12-01T09:00:00+01:00",
    )


def write_time(seconds: float | None) -> str | None:
    """Return a time as text, in whole seconds; None where there is none, or it is unknown.

    >>> write_time(1796112000.9), write_time(float("inf"))
    ('2026-12-01T08:00:00Z', None)
    """
    if seconds is None or not 0.0 <= seconds <= _LAST:
        return None
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
