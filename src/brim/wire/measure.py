"""Reads the load of a service from a URL that its owner names."""

from __future__ import annotations

import contextlib
import http.client
import math
import socket
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

from brim.errors import EnvironmentFault

_TO_ANSWER = 2.0  # seconds between two bytes of an answer
_TO_BE_READ = 10.0  # seconds for a whole answer
_LONGEST_ANSWER = 64  # bytes of a number


def measure(url: str) -> float:
    """Return the number at a URL; no redirection is followed.

    Raises:
        EnvironmentFault: there is none.
    """
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    try:
        connection = kind(parts.hostname or "", parts.port, timeout=_TO_ANSWER)
        try:
            path = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
            connection.connect()
            with _hung_up_after(connection.sock, _TO_BE_READ):
                connection.request(
                    "GET", path, headers={"Connection": "close", "User-Agent": "brim"}
                )
                with connection.getresponse() as answer:
                    content = answer.read(_LONGEST_ANSWER + 1)
        finally:
            connection.close()
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise EnvironmentFault(f"cannot read the load: {error}") from error
    if answer.status != http.client.OK:
        raise EnvironmentFault(f"cannot read the load: status {answer.status}")
    return number_in(content)


@contextlib.contextmanager
def _hung_up_after(connection: socket.socket, seconds: float) -> Iterator[None]:
    """Shut a connection down where the block takes longer: what comes byte by byte has no other end."""

    def hang_up() -> None:
        with contextlib.suppress(OSError):  # it is closed already
            connection.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(seconds, hang_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def number_in(content: bytes) -> float:
    """Return the number that an answer consists of.

    Raises:
        EnvironmentFault: it is no number from 0.

    >>> number_in(b" 12.5\\n")
    12.5
    """
    try:
        number = float(content)
    except ValueError:
        number = math.nan
    if len(content) > _LONGEST_ANSWER or not (math.isfinite(number) and number >= 0.0):
        shown = content[:20].decode(errors="replace")
        raise EnvironmentFault(f"the load is {shown!r}, and should be a number from 0")
    return number
