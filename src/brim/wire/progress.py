"""The address at which a command reports its progress: on loopback, encrypted, by a token."""

from __future__ import annotations

import asyncio
import hmac
import json
import re
import socket
import ssl
from collections.abc import Callable
from urllib.parse import parse_qsl

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from brim.domain.reported import Report, read_report
from brim.errors import SpecError
from brim.wire.bodies import Bodies, BodyTooLarge, NoRoom
from brim.wire.door import Door, answering

_LARGEST_BODY = 16 << 10  # bytes of a report
_TO_SEND = 5.0  # seconds that a body may take
_STRANGERS = 16  # connections without a token at once
_GUESTS = 16  # reports that are read at once
_TO_END = 1  # seconds for reports that are under way in the end
_START = re.compile(r"[0-9]{1,9}")
_SCHEME = "Bearer "


async def take_reports(
    listener: socket.socket,
    context: ssl.SSLContext,
    token: str,
    tell: Callable[[int, Report], None],
) -> None:
    """Take reports until this is cancelled, or no caller can be let in any more.

    Args:
        listener: on loopback.
        context: of TLS.
        token: that reports come with.
        tell: is called with the number of a command's start, from the address, and its report.
    """
    door = Door(strangers=_STRANGERS, guests=_GUESTS)
    application = _application(door, token, tell)
    async with answering(
        application, listener, door, context=context, to_end=_TO_END
    ) as letting_in:
        await asyncio.wait([letting_in])


def _application(door: Door, token: str, tell: Callable[[int, Report], None]) -> Starlette:
    bodies = Bodies(
        largest=_LARGEST_BODY,
        of_caller=_GUESTS * _LARGEST_BODY,
        in_all=_GUESTS * _LARGEST_BODY,
        to_send=_TO_SEND,
    )

    async def report(request: Request) -> Response:
        shown = request.headers.get("authorization", "").removeprefix(_SCHEME)
        if not hmac.compare_digest(shown.encode(), token.encode()):
            return _problem(401, "wrong or missing token: Authorization: Bearer TOKEN")
        client = (request.client.host, request.client.port) if request.client else None
        if not door.admit(client, "", all_room=True):
            return _problem(503, "too many reports are being read: report again later")
        start = request.path_params["start"]
        if not _START.fullmatch(start):
            return _problem(404, "no such start: report to the address in the environment")
        try:
            async with bodies.read(request, "") as content:
                tell(int(start), read_report(_parsed(bytes(content))))
        except BodyTooLarge:
            return _problem(413, f"a report has at most {_LARGEST_BODY:,} bytes")
        except (NoRoom, TimeoutError):
            return _problem(503, "the report did not come in time")
        except SpecError as error:
            return _problem(400, str(error))
        return JSONResponse({})

    return Starlette(routes=[Route("/{start}", report, methods=["POST"])])


def _parsed(content: bytes) -> object:
    """Return the JSON of a report, or the fields of its form.

    Raises:
        SpecError: it is neither.
    """
    try:
        text = content.decode()
        return (
            json.loads(text)
            if text.lstrip().startswith("{")
            else dict(parse_qsl(text, strict_parsing=True))
        )
    except (ValueError, RecursionError):
        raise SpecError(
            "the report", got=repr(content[:60]), need="step=N&total=N, or JSON"
        ) from None


def _problem(status: int, detail: str) -> Response:
    return JSONResponse({"detail": detail}, status, {"connection": "close"})
