"""HTTP to an API server: the one module that knows the library for it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler
from yarl import URL

from brim.errors import SpecError
from brim.kubernetes.client.refusals import NoAnswer

_MOST_REQUESTS = 32  # connections for requests that end; those that watch or follow have their own
_IDLE = 30.0  # seconds for which a connection is kept: servers close theirs after a minute or more
_TO_CONNECT = 10.0
_LARGEST_ANSWER = 512 << 20  # bytes: a list that comes at once has all objects of a kind
_LARGEST_REFUSAL = 1 << 20
_LARGEST_LINE = 32 << 20  # bytes: an object has at most a few MB
_CHUNK = 1 << 18
# A host that is gone without a word is noticed after 15 + 3 · 5 s of silence.
_KEEP_ALIVE = {
    "TCP_KEEPIDLE": 15,
    "TCP_KEEPINTVL": 5,
    "TCP_KEEPCNT": 3,
}


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """The answer to a request.

    Args:
        code: of HTTP.
        body: all of it.
        retry_after: seconds that the server wants to be left alone for; None: it does not say.
    """

    code: int
    body: bytes
    retry_after: float | None


class HttpStream:
    """An answer that comes in pieces, for as long as both ends want."""

    def __init__(self, response: aiohttp.ClientResponse, called: str) -> None:
        self._response, self._called = response, called
        self.code = response.status

    async def read(self, timeout: float) -> bytes:
        """Return all of it: a refusal.

        Raises:
            NoAnswer: it is larger than a refusal is, the connection broke, or it was not all there
                after so many seconds.
        """
        with _faults(self._called):
            async with asyncio.timeout(timeout):
                return await _body(self._response, _LARGEST_REFUSAL, self._called)

    async def lines(self, silence: float) -> AsyncGenerator[bytes]:
        """Yield its lines, without their ends.

        Args:
            silence: seconds without a byte after which the other end counts as gone.

        Raises:
            NoAnswer: the connection broke, or nothing came for so long.
        """
        rest = b""
        while True:
            with _faults(self._called):
                async with asyncio.timeout(silence):
                    chunk = await self._response.content.readany()
            if not chunk:
                break
            *lines, rest = (rest + chunk).split(b"\n") if b"\n" in chunk else (rest + chunk,)
            if len(rest) > _LARGEST_LINE:
                raise NoAnswer(f"{self._called}: a line of more than {_LARGEST_LINE >> 20} MiB")
            for line in lines:
                yield line
        if rest:
            yield rest


class _KubeConnection(ResponseHandler):
    """A connection that ends at once.

    TLS would say farewell, and wait for an answer that may never come: nobody would wait for that,
    and the connection would be there after all that used it has ended.
    """

    def close(self) -> None:
        self.abort()


class _KubeConnector(aiohttp.TCPConnector):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        handler: type[ResponseHandler] = _KubeConnection
        self._factory = partial(handler, loop=self._loop)


class Transport:
    """Connections to one API server.

    Args:
        url: `https://HOST:PORT`, with a path where a proxy has one.
        tls: certificates to trust and to show; None: the URL is of HTTP.
        server_name: in its certificate; empty: the host of the URL.
        proxy: URL of an HTTP proxy on the way; empty: none.

    Raises:
        SpecError: the URL is none.
    """

    def __init__(
        self, url: str, *, tls: ssl.SSLContext | None, server_name: str = "", proxy: str = ""
    ) -> None:
        self._tls, self._name, self._proxy = tls, server_name or None, proxy or None
        self._base = url.rstrip("/")
        try:
            is_one = URL(self._base).scheme in ("http", "https") and URL(self._base).host
        except ValueError:
            is_one = False
        if not is_one:
            raise SpecError("server", got=url, need="a URL such as https://HOST:PORT")
        self._session: aiohttp.ClientSession | None = None
        self._streams: aiohttp.ClientSession | None = None

    async def ask(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        body: bytes | None,
        timeout: float,
    ) -> HttpAnswer:
        """Send a request and read the answer.

        Args:
            path: quoted already.
            timeout: seconds for all of it.

        Raises:
            NoAnswer: none came.
        """
        if self._session is None:
            self._session = self._new_session(limit=_MOST_REQUESTS)
        called = f"{method} {path}"
        with _faults(called):
            async with (
                asyncio.timeout(timeout),
                self._session.request(
                    method, self._url(path, query), data=body, **self._request_options(headers)
                ) as response,
            ):
                retry_after = _seconds(response.headers.get("Retry-After"))
                body_of_it = await _body(response, _LARGEST_ANSWER, called)
                return HttpAnswer(response.status, body_of_it, retry_after)

    @contextlib.asynccontextmanager
    async def stream(
        self,
        path: str,
        *,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        timeout: float,
    ) -> AsyncIterator[HttpStream]:
        """Send a GET whose answer comes in pieces.

        Args:
            timeout: seconds until the answer begins.

        Raises:
            NoAnswer: it did not begin.
        """
        if self._streams is None:
            self._streams = self._new_session(limit=0)
        called = f"GET {path}"
        with _faults(called):
            async with asyncio.timeout(timeout):
                response = await self._streams.get(
                    self._url(path, query), **self._request_options(headers)
                )
        try:
            _notice_its_end(response)
            yield HttpStream(response, called)
        finally:
            response.close()  # a watch does not end: its connection is of no further use

    async def close(self) -> None:
        """Close all connections; requests under way fail."""
        for session in (self._session, self._streams):
            if session is not None:
                await session.close()
        self._session = self._streams = None

    def _new_session(self, *, limit: int) -> aiohttp.ClientSession:
        connector = _KubeConnector(
            ssl=self._tls or True, limit=limit, keepalive_timeout=_IDLE, use_dns_cache=True
        )
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_TO_CONNECT),
            read_bufsize=_CHUNK,
        )

    def _url(self, path: str, query: Mapping[str, str]) -> URL:
        return URL(f"{self._base}{path}", encoded=True).with_query(query)

    def _request_options(self, headers: Mapping[str, str]) -> dict[str, Any]:
        """Return the options of each request; a redirect would carry the token elsewhere."""
        # Compressed answers cost the server more than a network between its nodes gains.
        request_options: dict[str, Any] = {
            "headers": {"Accept-Encoding": "identity", **headers},
            "allow_redirects": False,
        }
        if self._proxy:
            request_options["proxy"] = self._proxy
        if self._name:
            request_options["server_hostname"] = self._name
        return request_options


async def _body(response: aiohttp.ClientResponse, at_most: int, called: str) -> bytes:
    """Return the body of an answer.

    Raises:
        NoAnswer: it is larger than that.
    """
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > at_most:
            raise NoAnswer(f"{called}: an answer of more than {at_most >> 10} KiB", retryable=False)
    return bytes(body)


@contextlib.contextmanager
def _faults(called: str) -> Iterator[None]:
    """Raise errors of the library and the system as NoAnswer, in words for people."""
    try:
        yield
    except aiohttp.ClientConnectorCertificateError as error:
        raise NoAnswer(
            f"{called}: the certificate of the server is not signed by the authority that is "
            f"trusted, or is not its own: {error.certificate_error}",
            retryable=False,
        ) from error
    except TimeoutError as error:
        raise NoAnswer(f"{called}: no answer in time") from error
    except (aiohttp.ClientError, OSError) as error:
        raise NoAnswer(f"{called}: {str(error) or type(error).__name__}") from error


def _notice_its_end(response: aiohttp.ClientResponse) -> None:
    """Have the kernel ask whether the other end is still there, where nothing is said for long."""
    connection = response.connection
    link = (
        connection.transport.get_extra_info("socket")
        if connection and connection.transport
        else None
    )
    if link is None:
        return
    with contextlib.suppress(OSError):  # it may have ended already
        link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEP_ALIVE.items():
            if hasattr(socket, name):
                link.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _seconds(retry_after: str | None) -> float | None:
    """Return the seconds that a header Retry-After names; None where it names none.

    >>> _seconds("2"), _seconds("Fri, 31 Dec 2027 23:59:59 GMT"), _seconds(None)
    (2.0, None, None)
    """
    if retry_after is None or not retry_after.isascii() or not retry_after.isdigit():
        return None
    return min(float(retry_after), 3600.0)
