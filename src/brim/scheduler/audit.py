"""The audit log of a scheduler: who asked for which change, from where, and whether it was made."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import msgspec

from brim.domain.rights import Caller
from brim.interfaces import Clock

AUDIT = "audit.jsonl"
_LARGEST = 16 << 20  # bytes; then it is `audit.1.jsonl`, and the one before is gone
_STRANGERS_TOLD = 60.0  # seconds between two lines about strangers

_log = logging.getLogger(__name__)


class _Line(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the log.

    Args:
        at: seconds since 1970.
        who: the tenant, or the administrator; empty: nobody whose token is known.
        origin: where the request came from.
        request: method and path.
        status: of the answer, as in HTTP.
        times: how often that happened since the last line like it.
    """

    at: float
    who: str
    origin: str
    request: str
    status: int
    times: int = 1


class Audit:
    """Appends to the log in a state directory.

    Args:
        clock: stamps the lines.
    """

    def __init__(self, state_dir: Path, clock: Clock) -> None:
        self._path, self._clock = state_dir / AUDIT, clock
        self._strangers = 0
        self._strangers_told = float("-inf")

    def note(self, caller: Caller, request: str, status: int) -> None:
        """A request that changes something, or was refused."""
        self._write(
            _Line(
                at=self._clock.wall(),
                who=caller.name,
                origin=caller.origin,
                request=request,
                status=status,
            )
        )

    def note_stranger(self, origin: str, request: str) -> None:
        """Note a request with no token or a wrong one.

        The first of a minute is told, and how many there were before.
        """
        self._strangers += 1
        now = self._clock.now()
        if now - self._strangers_told < _STRANGERS_TOLD:
            return
        at, times = self._clock.wall(), self._strangers
        self._strangers, self._strangers_told = 0, now
        self._write(_Line(at=at, who="", origin=origin, request=request, status=401, times=times))

    def _write(self, line: _Line) -> None:
        try:
            if self._path.exists() and self._path.stat().st_size > _LARGEST:
                self._path.replace(self._path.with_name("audit.1.jsonl"))
            file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.write(file, msgspec.json.encode(line) + b"\n")
            finally:
                os.close(file)
        except OSError as error:  # a full disk must not end what is being audited
            _log.warning("the audit log cannot be written: %s", error)
