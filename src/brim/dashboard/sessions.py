"""Codes that open the dashboard once, and the sessions that they begin.

A code is in the address that opens the dashboard, so it is worth nothing once it was used, or after
some minutes. The browser keeps another secret, in a cookie that no script can read.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from dataclasses import dataclass, field

CODE_SECONDS = 300.0  # seconds in which the address opens the dashboard
SESSION_SECONDS = 12 * 3600.0  # seconds after which a browser has to be opened again
_MOST_SESSIONS = 32
_MOST_CODES = 32
_BYTES = 32


@dataclass(eq=False, slots=True)
class BrowserSession:
    """A browser that has shown a code.

    Attributes:
        ends: when it ends by itself, by the clock of the event loop.
        end: is set when it has ended; its streams end with it.
        streams: that it has open.
    """

    ends: float
    end: asyncio.Event = field(default_factory=asyncio.Event)
    streams: int = 0


class Sessions:
    """The sessions of one dashboard. Only digests of secrets are kept."""

    def __init__(self) -> None:
        self._codes: dict[bytes, float] = {}
        self._sessions: dict[bytes, BrowserSession] = {}

    def give_code(self, now: float) -> str:
        """Make a code that begins one session."""
        while len(self._codes) >= _MOST_CODES:
            self._codes.pop(next(iter(self._codes)))
        code = secrets.token_urlsafe(_BYTES)
        self._codes[_digest(code)] = now + CODE_SECONDS
        return code

    def begin(self, code: str, now: float) -> str | None:
        """Begin a session; return the value of its cookie, or None where the code is not good."""
        ends = self._codes.pop(_digest(code), None)
        if ends is None or now > ends:
            return None
        while len(self._sessions) >= _MOST_SESSIONS:
            self._end(next(iter(self._sessions)))
        value = secrets.token_urlsafe(_BYTES)
        self._sessions[_digest(value)] = BrowserSession(now + SESSION_SECONDS)
        return value

    def find(self, value: str, now: float) -> BrowserSession | None:
        """Return the session of a cookie; None where there is none, or none any more."""
        key = _digest(value)
        session = self._sessions.get(key)
        if session is not None and now > session.ends:
            self._end(key)
            return None
        return session

    @property
    def streams(self) -> int:
        """The streams that are open."""
        return sum(session.streams for session in self._sessions.values())

    def end(self, value: str) -> None:
        """End the session of a cookie, with its streams."""
        self._end(_digest(value))

    def end_all(self) -> None:
        """End all sessions, with their streams; codes are good no more."""
        self._codes.clear()
        for key in list(self._sessions):
            self._end(key)

    def _end(self, key: bytes) -> None:
        session = self._sessions.pop(key, None)
        if session is not None:
            session.end.set()


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode(errors="surrogatepass")).digest()
