"""Quantities as people write and read them; behind the edge a float is seconds. Pure."""

from __future__ import annotations

import re

from brim.errors import SpecError

# Longest first, which is the order in which a duration is written out.
_SECONDS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_BYTES = {f"{prefix}iB": 1 << 10 * power for power, prefix in enumerate("KMGT", 1)}
_BYTES |= {f"{prefix}B": 1000**power for power, prefix in enumerate("kMGT", 1)}
_A_SIZE = r"([0-9]{1,18}(?:\.[0-9]{0,18})?|\.[0-9]{1,18})\s*([kKMGT]i?B)"
_A_PART = r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*(ms|[dhms])"
_SIZE = re.compile(_A_SIZE, re.ASCII)
_PART = re.compile(_A_PART, re.ASCII)
# As other programs check what people write, in any dialect of regular expressions. Bare numbers of
# seconds are left out: who reads `hangTimeout: "30"` cannot see what it counts.
SIZE_PATTERN = _A_SIZE
DURATION_PATTERN = rf"({_A_PART})+"


def counted(count: int, thing: str) -> str:
    """A number of things.

    >>> counted(1, "worker"), counted(1200, "worker"), counted(2, "micro-batch"), counted(2, "process")
    ('1 worker', '1,200 workers', '2 micro-batches', '2 processes')
    """
    ending = "" if count == 1 else "es" if thing.endswith(("ch", "s", "x")) else "s"
    return f"{count:,} {thing}{ending}"


def parse_duration(text: str, *, field: str) -> float:
    """Read `2h`, `1h30m`, `5s`, `500ms`, or a bare number of seconds.

    Args:
        text: what the user wrote.
        field: the option or clause it was written in, for the message.

    Returns:
        Seconds, from 0.001, in whole milliseconds.

    Raises:
        SpecError: it is not a duration, or it is shorter than a millisecond.

    >>> parse_duration("1h30m", field="--for"), parse_duration("500ms", field="--for")
    (5400.0, 0.5)
    """
    seconds = _seconds("".join(text.split()))
    if seconds is None or not 0.001 <= seconds < float("inf"):
        raise SpecError(
            field,
            got=repr(text),
            need="a duration above 0, such as 500ms, 5s, 10m or 1h30m",
            hint="units: ms, s, m (minutes), h, d"
            if seconds is None
            else "write a number and a unit: 3s",
        )
    return round(seconds, 3)


def _seconds(compact: str) -> float | None:
    try:
        return float(compact)
    except ValueError:
        parts: list[tuple[str, str]] = _PART.findall(compact)
        if not parts or "".join(number + unit for number, unit in parts) != compact:
            return None
        return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def format_duration(seconds: float) -> str:
    """Seconds as `parse_duration` would read them, exact to a millisecond.

    >>> format_duration(5400), format_duration(2.5), format_duration(0.05)
    ('1h30m', '2500ms', '50ms')
    """
    remaining_ms = round(seconds * 1000)
    if remaining_ms % 1000:
        return f"{remaining_ms}ms"
    text = ""
    for unit, size in list(_SECONDS.items())[:-1]:
        count, remaining_ms = divmod(remaining_ms, round(size * 1000))
        text += f"{count}{unit}" if count else ""
    return text or "0s"


def parse_bytes(text: str, *, field: str) -> int:
    """Read `4GiB`, `1.5 GiB` or `500MB`.

    Args:
        text: what the user wrote.
        field: the option or clause it was written in, for the message.

    Raises:
        SpecError: it is not a size with its unit, or less than a byte.

    >>> parse_bytes("1.5GiB", field="--memory"), parse_bytes("500 MB", field="--memory")
    (1610612736, 500000000)
    """
    parts = _SIZE.fullmatch(text.strip())
    size = round(float(parts[1]) * _BYTES.get(parts[2], 0)) if parts else 0
    if size < 1:
        raise SpecError(
            field,
            got=repr(text),
            need="a size above 0, such as 500MiB, 4GiB or 1.5GiB",
            hint="units: " + ", ".join(_BYTES),
        )
    return size


def format_bytes(size: float) -> str:
    """Bytes as people compare them.

    >>> format_bytes(300 << 20), format_bytes(4 << 30), format_bytes(7.94 * (1 << 30)), format_bytes(5000)
    ('300 MiB', '4 GiB', '7.9 GiB', '5 KiB')
    """
    if size < 1 << 20:
        return f"{size / 1024:.0f} KiB"
    gib = size / (1 << 30)
    if gib >= 1:
        return f"{round(gib, 1):g} GiB"
    return f"{size / (1 << 20):.0f} MiB"
