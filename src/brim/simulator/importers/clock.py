"""Times in logs: seconds since 1970, or dates, with a zone or without one."""

from __future__ import annotations

import datetime
import zoneinfo
from collections import Counter
from collections.abc import Callable, Iterator

from brim.errors import SpecError, did_you_mean
from brim.simulator.importers.lines import LARGEST
from brim.simulator.tables import Row

_UNKNOWN = frozenset({"", "unknown", "none", "null", "nan", "nat", "n/a"})
_NEED = "a time such as 2026-10-01T08:00:00, or seconds since 1970"


class LogClock:
    """Reads times, and counts those whose zone it had to assume.

    Args:
        zone: of times that do not name one; None: UTC, and `assumed` says so.

    Raises:
        SpecError: no such zone.
    """

    def __init__(self, zone: str | None = None) -> None:
        self._name = zone
        self._zone = _zone(zone or "UTC")
        self._counts: Counter[str] = Counter()

    def time(self, row: Row, column: str, *, earliest: float | None = None) -> float | None:
        """The time in a cell, in seconds since 1970; None where it is unknown.

        Args:
            earliest: the time before which it should not be. It decides which hour is meant where
                clocks went back.

        Raises:
            SpecError: the cell has something else.
        """
        return self.parse(row.text(column), lambda need: row.fault(column, need), earliest=earliest)

    def parse(
        self, text: str, fault: Callable[[str], SpecError], *, earliest: float | None = None
    ) -> float | None:
        """Read a time, as `time` does; `fault` makes the error."""
        if text.lower() in _UNKNOWN:
            return None
        try:
            found = float(text)
        except ValueError:
            try:
                found = self._seconds(datetime.datetime.fromisoformat(text), earliest)
            except (ValueError, OverflowError):
                raise fault(_NEED) from None
        if not abs(found) <= LARGEST:
            raise fault(_NEED)
        return found

    def _seconds(self, date: datetime.datetime, earliest: float | None) -> float:
        if date.tzinfo is not None:
            return date.timestamp()
        self._counts["all"] += 1
        # A time that clocks show twice has two readings, the earlier one first; one that they skip
        # has two as well, by the clock before the gap and by the one behind it.
        first = date.replace(tzinfo=self._zone).timestamp()
        second = date.replace(tzinfo=self._zone, fold=1).timestamp()
        if first == second:
            return first
        self._counts["twice" if first < second else "skipped"] += 1
        return second if earliest is not None and first < earliest <= second else first

    def assumed(self) -> Iterator[str]:
        """Give the assumptions on times, in sentences."""
        if self._counts["all"] and self._name is None:
            yield "times without a zone are in UTC (--zone names another one)"
        elif self._counts["all"]:
            yield f"times without a zone are in {self._name}"
        if self._counts["twice"]:
            yield (
                "times in an hour that clocks show twice are in the first one, unless a job would "
                f"then end before it starts ({self._counts['twice']:,})"
            )
        if self._counts["skipped"]:
            yield (
                "times in an hour that clocks skip are read as if clocks had not gone forward yet "
                f"({self._counts['skipped']:,})"
            )


def _zone(name: str) -> zoneinfo.ZoneInfo:
    try:
        return zoneinfo.ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        hint = did_you_mean(name, zoneinfo.available_timezones())
        raise SpecError(
            "--zone",
            got=repr(name),
            need="a time zone of this host, by its name",
            hint=hint if hint.startswith("did") else "--zone Europe/Berlin",
        ) from None
