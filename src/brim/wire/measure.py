"""Reads the load of a service from a URL that its owner names: a number, or Prometheus' answer with one."""

from __future__ import annotations

import contextlib
import http.client
import math
import socket
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

import msgspec

from brim.decoding import UNDECODABLE
from brim.errors import EnvironmentFault

_TO_ANSWER = 2.0  # seconds between two bytes of an answer
_TO_BE_READ = 10.0  # seconds for a whole answer
_LONGEST_ANSWER = 16_384  # bytes
_LONGEST_NUMBER = 64  # bytes


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
            with hung_up_after(connection.sock, _TO_BE_READ):
                connection.request(
                    "GET", path, headers={"Connection": "close", "User-Agent": "brim"}
                )
                with connection.getresponse() as answer:
                    content = answer.read(_LONGEST_ANSWER + 1)
        finally:
            connection.close()
    except (OSError, http.client.HTTPException, ValueError) as error:
        is_quoting = isinstance(error, http.client.HTTPException) and not isinstance(error, OSError)
        words = type(error).__name__ if is_quoting else error
        raise EnvironmentFault(f"cannot read the load: {words}") from error
    if answer.status != http.client.OK:
        raise EnvironmentFault(f"cannot read the load: status {answer.status}")
    return number_in(content)


@contextlib.contextmanager
def hung_up_after(connection: socket.socket, seconds: float) -> Iterator[None]:
    """Shut a connection down where the block takes longer: an answer byte by byte has no other end."""

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


class _Series(msgspec.Struct):
    value: tuple[float, str]  # when, and how much


class _Found(msgspec.Struct, rename="camel"):
    result: msgspec.Raw
    result_type: str = "vector"


class _PrometheusAnswer(msgspec.Struct):
    """An instant query of Prometheus, as far as it is read: one series, or a scalar."""

    data: _Found


def number_in(content: bytes) -> float:
    """Return the number of an answer, plain or as Prometheus gives it.

    No error quotes the answer: a reader of the error may not be allowed to read the URL.

    Raises:
        EnvironmentFault: it is no number from 0, or there are several.

    >>> number_in(b" 12.5\\n")
    12.5
    >>> number_in(b'{"data": {"result": [{"metric": {}, "value": [1435781451.781, "12.5"]}]}}')
    12.5
    """
    try:
        number = _found(content) if content.lstrip()[:1] == b"{" else float(content)
    except UNDECODABLE:
        number = math.nan
    longest = _LONGEST_ANSWER if content.lstrip()[:1] == b"{" else _LONGEST_NUMBER
    if len(content) > longest or not (math.isfinite(number) and number >= 0.0):
        raise EnvironmentFault(
            "the load is neither a number from 0 nor Prometheus' answer with one"
        )
    return number


def _found(content: bytes) -> float:
    found = msgspec.json.decode(content, type=_PrometheusAnswer).data
    if found.result_type == "scalar":
        return float(msgspec.json.decode(found.result, type=tuple[float, str])[1])
    series = msgspec.json.decode(found.result, type=list[_Series])
    if len(series) != 1:
        raise EnvironmentFault(
            f"the query finds {len(series):,} series, and should find one: sum(…)"
        )
    return float(series[0].value[1])
