"""A run's records as its master writes them: a failure to write is an event, not an exception where it happens."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping

from brim.telemetry.events import EventLog

__all__ = ["Records"]


class Records:
    """A log whose failure is told to `failed` and not to whoever had something to record."""

    def __init__(self, log: EventLog, failed: Callable[[OSError], None]) -> None:
        self._log, self._failed = log, failed

    def append(self, kind: str, /, **fields: object) -> None:
        with self._told():
            self._log.append(kind, **fields)

    def write(self, record: Mapping[str, object]) -> None:
        with self._told():
            self._log.write(record)

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._failed(error)
