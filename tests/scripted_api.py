"""An API server of few words: it answers each request as the test says, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from aiohttp import web

from brim.kubernetes.client.access import Access
from brim.kubernetes.client.api_server import ApiServer
from brim.kubernetes.client.credentials import Credentials, FixedProof, Proof
from brim.kubernetes.client.resources import PlainObject

Answering = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class ScriptedApi:
    """Answers the nth request by the nth entry, and any further one by the last.

    Args:
        answers: functions of the request.
        asked: the requests so far, as `METHOD PATH?QUERY`.
        headers: of each of them.
        bodies: of each of them.
    """

    answers: Sequence[Answering]
    asked: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        number = len(self.asked)
        self.asked.append(f"{request.method} {request.path_qs}")
        self.headers.append(dict(request.headers))
        self.bodies.append(await request.read())
        return await self.answers[min(number, len(self.answers) - 1)](request)

    @contextlib.asynccontextmanager
    async def served(
        self, credentials: Credentials | None = None, **settings: float
    ) -> AsyncIterator[ApiServer]:
        """Serve on loopback; yield a client of it."""
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self.handle)
        runner = web.AppRunner(application, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            host, port = runner.addresses[0][:2]
            access = Access(
                url=f"http://{host}:{port}",
                namespace="default",
                credentials=credentials or FixedProof(Proof("Bearer secret")),
            )
            async with ApiServer(access, **settings) as server:  # type: ignore[arg-type]
                yield server
        finally:
            await runner.cleanup()


def says(body: object, code: int = 200, **headers: str) -> Answering:
    """Answer with an object, or a Status of this code."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}

    async def answer(_: web.Request) -> web.StreamResponse:
        return web.json_response(body, status=code, headers=named)

    return answer


def refuses(code: int, reason: str = "", message: str = "", **headers: str) -> Answering:
    status = {"kind": "Status", "code": code, "reason": reason, "message": message}
    return says(status, code, **headers)


def page(names: str, version: int, token: str = "") -> Answering:
    """Answer with a page of a list of objects of these names, one letter each."""
    items = [plain_object(name, version=number) for number, name in enumerate(names, 1)]
    return says({"metadata": {"resourceVersion": str(version), "continue": token}, "items": items})


def plain_object(name: str, *, version: int, uid: str = "", **fields: object) -> PlainObject:
    metadata = {
        "namespace": "default",
        "name": name,
        "uid": uid or f"uid-{name}",
        "resourceVersion": str(version),
    }
    return {"metadata": metadata, **fields}


def watched(*events: tuple[str, PlainObject], stays: bool = False) -> Answering:
    """Answer with these events of a watch, and end it unless it stays."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for kind, thing in events:
            await response.write(json.dumps({"type": kind, "object": thing}).encode() + b"\n")
        if stays:
            await asyncio.sleep(3600)
        return response

    return answer
