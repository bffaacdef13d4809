"""The door of the dashboard: it lets in one origin, signed in, by few means.

Another site in the same browser may name this address, and have a name of its own lead here (DNS
rebinding); another account of this host may connect. So each request, and each stream, has to name
this host exactly, must not come from another origin, and has to show a session's cookie. The host is
a name below `localhost` that no other dashboard has: cookies of `127.0.0.1` go to every port of it.
Requests only read; all that changes something comes over a stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import http
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs

from brim.dashboard.sessions import SESSION_SECONDS, BrowserSession, Sessions
from brim.wire.door import Door

COOKIE = "brim-dashboard"
ENTER, SIGNED_OUT = "/enter", "/signed-out"
STREAM = "/_nicegui_ws/socket.io/"
LARGEST_FRAME = 256 << 10  # bytes that a browser may send at once
_MOST_FRAMES = 100  # of a stream in a second, on average
_BURST = 400  # frames that may come at once
_MOST_STREAMS = 16  # of a session
_TO_CLOSE = 1.0  # seconds that the application has to end a stream on its side
_CLOSED_BY_POLICY = 1008
_OWNER = "the dashboard's owner"

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

# All is served from here; scripts are the framework's, which compiles its templates in the browser.
_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self' data:; "
    "connect-src 'self' ws://{host}; frame-ancestors 'none'; form-action 'none'; base-uri 'self'; "
    "object-src 'none'"
)
_HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class Guard:
    """An application behind this door.

    Args:
        application: of ASGI; it is asked only on behalf of a session.
        host: `NAME:PORT`, as browsers say it.
        door: that connections come through.
    """

    def __init__(
        self, application: Application, *, host: str, sessions: Sessions, door: Door
    ) -> None:
        self._application, self._host = application, host
        self._sessions, self._door = sessions, door
        self._origin = f"http://{host}"
        self._policy = _POLICY.format(host=host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or serve one stream."""
        if scope["type"] == "lifespan":
            await self._application(scope, receive, send)
            return
        headers = _headers(scope)
        is_stream = scope["type"] == "websocket"
        problem = self._strange(scope, headers, is_stream=is_stream)
        if problem:
            await _refuse(scope, send, http.HTTPStatus.FORBIDDEN, problem)
            return
        if not is_stream and scope["path"] == ENTER:
            await self._enter(scope, send)
            return
        if not is_stream and scope["path"] == SIGNED_OUT:
            page = _PAGE.format(title="Signed out", text=_AGAIN)
            await _answer(send, http.HTTPStatus.OK, page, _HEADERS)
            return
        value = _cookie(headers)
        session = self._sessions.find(value, _now()) if value else None
        if session is None:
            await _refuse(scope, send, http.HTTPStatus.UNAUTHORIZED, _SIGN_IN)
            return
        if not self._door.admit(scope["client"] and tuple(scope["client"]), _OWNER, all_room=True):
            await _refuse(scope, send, http.HTTPStatus.SERVICE_UNAVAILABLE, "ask again")
            return
        scope["brim.session"] = value
        if is_stream:
            await self._stream(session, scope, receive, send)
        else:
            await self._application(scope, receive, self._with_headers(send))

    def _strange(self, scope: Scope, headers: Mapping[str, str], *, is_stream: bool) -> str:
        """Say why a request is not from a page of this dashboard; nothing where it may be."""
        if headers.get("host") != self._host:
            return f"this is {self._host} alone"
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
        if origin not in (None, self._origin) or (is_stream and origin is None):
            return "pages of other sites have no way in"
        if is_stream:
            is_known = scope["path"] == STREAM and "websocket" in scope["query_string"].decode()
            return "" if is_known else "there is no such stream"
        if scope["method"] not in ("GET", "HEAD"):
            return "requests only read"
        if scope["path"].startswith(STREAM.rstrip("/")):  # the framework takes it without the end
            return "streams are WebSockets"
        if site not in ("same-origin", "none") and scope["path"] != ENTER:
            return "pages of other sites have no way in"
        return ""

    async def _enter(self, scope: Scope, send: Send) -> None:
        """Exchange a code for a session's cookie."""
        code = parse_qs(scope["query_string"].decode(errors="replace")).get("code", [""])[0]
        value = self._sessions.begin(code, _now())
        if value is None:
            await _refuse(scope, send, http.HTTPStatus.UNAUTHORIZED, _USED)
            return
        cookie = (
            f"{COOKIE}={value}; HttpOnly; SameSite=Strict; Path=/; Max-Age={SESSION_SECONDS:.0f}"
        )
        # A page rather than a redirect: the cookie is sent only where a page of this host leads on.
        await _answer(send, http.HTTPStatus.OK, _WELCOME, {"set-cookie": cookie, **_HEADERS})

    def _with_headers(self, send: Send) -> Send:
        added = [
            (name.encode(), value.encode())
            for name, value in {"content-security-policy": self._policy, **_HEADERS}.items()
        ]

        async def send_with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *added]
            await send(message)

        return send_with_headers

    async def _stream(
        self, session: BrowserSession, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Serve a stream until one of its ends, or the session, ends it."""
        if session.streams >= _MOST_STREAMS:
            await _refuse(scope, send, http.HTTPStatus.TOO_MANY_REQUESTS, "too many streams")
            return
        session.streams += 1
        frames, flooded = _FrameAllowance(), asyncio.Event()

        async def receive_bounded() -> MutableMapping[str, Any]:
            message = await receive()
            if message["type"] == "websocket.receive" and not frames.take(_now()):
                flooded.set()
                return {"type": "websocket.disconnect", "code": _CLOSED_BY_POLICY}
            return message

        serving = asyncio.ensure_future(self._application(scope, receive_bounded, send))
        reasons = [asyncio.ensure_future(event.wait()) for event in (session.end, flooded)]
        timeout = max(0.0, session.ends - _now())
        try:
            await asyncio.wait(
                {serving, *reasons}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED
            )
            if not serving.done():
                with contextlib.suppress(RuntimeError):  # it is closed already
                    await send({"type": "websocket.close", "code": _CLOSED_BY_POLICY})
        finally:
            session.streams -= 1
            for task in (serving, *reasons):
                task.cancel()
            await asyncio.wait({serving}, timeout=_TO_CLOSE)
        if serving.done() and not serving.cancelled():
            serving.result()


class _FrameAllowance:
    """The frames that a stream may still send."""

    def __init__(self) -> None:
        self._room, self._counted = float(_BURST), _now()

    def take(self, now: float) -> bool:
        self._room = min(_BURST, self._room + _MOST_FRAMES * (now - self._counted)) - 1.0
        self._counted = now
        return self._room >= 0.0


def _now() -> float:
    return asyncio.get_running_loop().time()


def _headers(scope: Scope) -> dict[str, str]:
    """The headers of a request; of those that come twice nothing is believed."""
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        key = name.decode("latin-1").lower()
        found[key] = value.decode("latin-1") if key not in found else ""
    return found


def _cookie(headers: Mapping[str, str]) -> str:
    with contextlib.suppress(CookieError):
        morsel = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        return morsel.value if morsel else ""
    return ""


async def _refuse(scope: Scope, send: Send, status: http.HTTPStatus, text: str) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": _CLOSED_BY_POLICY, "reason": text})
        return
    await _answer(send, status, _PAGE.format(title=status.phrase, text=text), _HEADERS)


async def _answer(send: Send, status: int, page: str, headers: Mapping[str, str]) -> None:
    lines = {
        "content-type": "text/html; charset=utf-8",
        "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
        "cache-control": "no-store",
        "connection": "close",
        **headers,
    }
    encoded = [(name.encode(), value.encode()) for name, value in lines.items()]
    await send({"type": "http.response.start", "status": status, "headers": encoded})
    await send({"type": "http.response.body", "body": page.encode()})


_PAGE = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" '
    'content="width=device-width"><title>{title}</title><h1>{title}</h1><p>{text}</p></html>'
)
_WELCOME = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" '
    'content="0;url=/"><title>brim</title><p><a href="/">Continue to the dashboard</a></p></html>'
)
_AGAIN = "Press Enter where brim dashboard runs for an address that opens it again."
_SIGN_IN = f"This browser is not signed in. {_AGAIN}"
_USED = (
    "This address has been used, or is too old. Press Enter where brim dashboard runs for another "
    "one. If you have not used it, somebody else has: end brim dashboard with Ctrl-C."
)
