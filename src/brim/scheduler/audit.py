"""The audit log of a scheduler: requests for changes with caller, origin and outcome."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import msgspec

from brim.domain.rights import Caller
from brim.interfaces import Clock

AUDIT = "audit.jsonl"
_MAX_LOG_BYTES = 16 << 20  # bytes; then it is `audit.1.jsonl`, and the one before is gone
_LINE_INTERVAL = 60.0  # seconds in which a caller may cause one more line without a change
_REFUSALS_TOLD = 60  # of a caller, each in a line, before they are counted
_REFUSED = 400  # and above, of the answers of HTTP
_UNKNOWN = 401
_MAX_REQUEST_CHARACTERS = 300  # characters of a request that a line has

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


class _Allowance:
    """The lines that one caller may still cause without a change.

    Attributes:
        untold: refusals since its last line.
    """

    def __init__(self, limit: int, now: float) -> None:
        self._max_tokens, self._tokens, self._filled_at = limit, float(limit), now
        self.untold = 0

    def is_full(self, now: float) -> bool:
        """Return whether it is as if the caller had done nothing."""
        return (
            self._tokens + (now - self._filled_at) / _LINE_INTERVAL >= self._max_tokens
            and not self.untold
        )

    def take(self, now: float) -> int:
        """Return how often something was done, if a line may say so now; else 0."""
        self._tokens = min(
            self._max_tokens, self._tokens + (now - self._filled_at) / _LINE_INTERVAL
        )
        self._filled_at = now
        self.untold += 1
        if self._tokens < 1:
            return 0
        self._tokens -= 1
        times, self.untold = self.untold, 0
        return times


class Audit:
    """Appends to the log in a state directory.

    Each change has a line. Of refusals a caller can cause any number, and they would push out what
    others have changed: so many of a caller's have a line each, and then one a minute has, with the
    number of those before it.

    Args:
        clock: stamps the lines.
    """

    def __init__(self, state_dir: Path, clock: Clock) -> None:
        self._path, self._clock = state_dir / AUDIT, clock
        self._allowances: dict[str, _Allowance] = {}  # by caller

    def note(self, caller: Caller, request: str, status: int, *, changes: bool = True) -> None:
        """Note a request that changes something, or was refused.

        Args:
            changes: it would have changed something.
        """
        is_change = changes and status < _REFUSED
        times = 1 if is_change else self._times(caller.name, _REFUSALS_TOLD)
        self._note(caller.name, caller.origin, request, status, times)

    def note_stranger(self, origin: str, request: str) -> None:
        """Note a request with no token or a wrong one."""
        times = self._times("", 1)
        self._note("", origin, request, _UNKNOWN, times)

    def _times(self, caller: str, limit: int) -> int:
        now = self._clock.now()
        if caller not in self._allowances:
            allowances = self._allowances.items()
            self._allowances = {
                name: allowance for name, allowance in allowances if not allowance.is_full(now)
            }
            self._allowances[caller] = _Allowance(limit, now)
        return self._allowances[caller].take(now)

    def _note(self, caller: str, origin: str, request: str, status: int, times: int) -> None:
        if times:
            shortened = (
                request
                if len(request) <= _MAX_REQUEST_CHARACTERS
                else f"{request[:_MAX_REQUEST_CHARACTERS]}…"
            )
            timestamp = self._clock.wall()
            self._write(
                _Line(
                    at=timestamp,
                    who=caller,
                    origin=origin,
                    request=shortened,
                    status=status,
                    times=times,
                )
            )

    def _write(self, line: _Line) -> None:
        try:
            if self._path.exists() and self._path.stat().st_size > _MAX_LOG_BYTES:
                self._path.replace(self._path.with_name("audit.1.jsonl"))
            file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.write(file, msgspec.json.encode(line) + b"\n")
            finally:
                os.close(file)
        except OSError as error:  # a full disk must not end what is being audited
            _log.warning("the audit log cannot be written: %s", error)
