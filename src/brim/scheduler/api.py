"""The scheduler over HTTP: decode, handle, encode. Its OpenAPI document is made from the same table as its routes."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

import brim
from brim.coordination.lifecycle import Happening
from brim.decoding import UNDECODABLE
from brim.domain.cluster import ClusterSpec
from brim.domain.job import WorkerRange
from brim.errors import BrimError, EnvironmentFault, SpecError, StorageFault
from brim.scheduler.lives import Lives
from brim.scheduler.loop import NO_SUCH_JOB
from brim.telemetry.logs import Tail
from brim.wire.cluster import (
    ChangeView,
    ClusterView,
    Down,
    Forecast,
    JobView,
    Logs,
    Problem,
    Range,
    Submit,
    TenantView,
)

__all__ = ["application", "openapi"]

_LONGEST_PAGE = 500  # jobs: nobody else is answered while one is made
_LONGEST_WAIT = 60.0  # seconds that one request may wait
_Bytes = Annotated[int, msgspec.Meta(ge=0)]


@dataclass(frozen=True, slots=True)
class _Call:
    """One route.

    Args:
        takes: type of the body, or None.
        gives: type of the answer.
        handle: (lives, request, body) -> answer.
        asks: what may be asked in the query: name -> its JSON schema.
    """

    method: str
    path: str
    summary: str
    takes: Any
    gives: Any
    handle: Callable[[Lives, Request, Any], Awaitable[Any]]
    asks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def _wish(happening: Happening) -> Callable[[Lives, Request, Any], Awaitable[JobView]]:
    async def handle(lives: Lives, request: Request, _: Any) -> JobView:
        return lives.to_change.wish(request.path_params["job"], happening)

    return handle


async def _submit(lives: Lives, _: Request, body: Submit) -> JobView:
    return lives.to_change.submit(body)


async def _forecast(lives: Lives, _: Request, body: Submit) -> Forecast:
    return lives.now.forecast(body)


async def _jobs(lives: Lives, request: Request, _: Any) -> list[JobView]:
    asked = request.query_params
    try:
        limit = int(asked.get("limit") or _LONGEST_PAGE)
    except ValueError:
        limit = 0
    if not 1 <= limit <= _LONGEST_PAGE:
        raise SpecError("limit", got=repr(asked["limit"]), need=f"a whole number from 1 to {_LONGEST_PAGE}")
    unfinished = asked.get("unfinished") or "false"
    if unfinished not in ("true", "false"):
        raise SpecError("unfinished", got=repr(unfinished), need="true or false")
    return lives.now.jobs(after=asked.get("after", ""), limit=limit, unfinished=unfinished == "true")


async def _job(lives: Lives, request: Request, _: Any) -> JobView:
    """With `wait` seconds and `until` (`ended`, `judged`), not before that, or the end of them or the scheduler's."""
    job = request.path_params["job"]
    reached = {"ended": lambda view: view.has_ended, "judged": lambda view: view.judged or view.has_ended}
    until = request.query_params.get("until") or "ended"
    if until not in reached:
        raise SpecError("until", got=repr(until), need="ended or judged")
    end = _end_of_wait(request)
    view = lives.now.job(job)
    while not (reached[until](view) or lives.is_over) and asyncio.get_running_loop().time() < end:
        await lives.waiting.news(job, until=end)
        view = lives.now.job(job)
    return view


def _end_of_wait(request: Request) -> float:
    """Until when a request may wait for its answer, by the clock of the event loop."""
    asked = request.query_params.get("wait") or "0"
    try:
        return asyncio.get_running_loop().time() + max(0.0, min(float(asked), _LONGEST_WAIT))
    except ValueError:
        raise SpecError("wait", got=repr(asked), need="seconds") from None


async def _logs(lives: Lives, request: Request, _: Any) -> Logs:
    """With `wait` seconds, not before there is a line, or the end of the job, of them or of the scheduler."""
    job, asked = request.path_params["job"], request.query_params
    end = _end_of_wait(request)
    try:
        places = msgspec.json.decode(asked.get("after") or "{}", type=dict[str, _Bytes])
    except UNDECODABLE:
        raise SpecError("after", got=repr(asked["after"]), need="the value from the last answer") from None
    folder = Path(lives.now.job(job).run)
    tail = Tail(folder, asked.get("worker", ""), places)
    while True:
        ended = lives.now.job(job).has_ended  # asked first: what it printed at its very end is read as well
        lines = await asyncio.to_thread(tail.fresh)
        if lines or ended or lives.is_over or asyncio.get_running_loop().time() >= end:
            after = msgspec.json.encode(tail.places).decode()
            return Logs(lines=lines, after=after, ended=ended and not lines)
        await lives.waiting.lines(job, folder / "logs", until=end)


async def _explain(lives: Lives, request: Request, _: Any) -> list[ChangeView]:
    story = lives.now.story(request.path_params["job"])
    return [
        ChangeView(**{key: value for key, value in each._asdict().items() if key != "job"}) for each in story
    ]


async def _resize(lives: Lives, request: Request, body: Range) -> JobView:
    workers = WorkerRange(minimum=body.minimum, maximum=body.maximum)
    return lives.to_change.resize(request.path_params["job"], workers)


async def _cluster(lives: Lives, _: Request, __: Any) -> ClusterView:
    return lives.cluster()


async def _tenants(lives: Lives, _: Request, __: Any) -> list[TenantView]:
    return lives.now.tenants()


async def _apply(lives: Lives, _: Request, body: ClusterSpec) -> ClusterView:
    return lives.to_change.reconfigure(body)


async def _down(lives: Lives, _: Request, body: Down) -> ClusterView:
    lives.to_change.down(kill=body.kill)
    return lives.cluster()


_WAIT: dict[str, Any] = {
    "type": "number",
    "minimum": 0,
    "description": f"Seconds, {_LONGEST_WAIT:.0f} at most.",
}
_WHEN: dict[str, dict[str, Any]] = {
    "wait": _WAIT,
    "until": {"enum": ["ended", "judged"], "description": "What to wait for; default: `ended`."},
}
_WHICH_LINES: dict[str, dict[str, Any]] = {
    "wait": _WAIT,
    "worker": {"type": "string", "description": "Only the lines of this worker, such as `w1`."},
    "after": {"type": "string", "description": "The value of `after` in the last answer."},
}
_WHICH_JOBS: dict[str, dict[str, Any]] = {
    "after": {"type": "string", "description": "The id of the last job of the page before."},
    "limit": {"type": "integer", "minimum": 1, "maximum": _LONGEST_PAGE, "default": _LONGEST_PAGE},
    "unfinished": {"type": "boolean", "description": "Only jobs that have not ended."},
}
_CALLS = (
    _Call("GET", "/v1/cluster", "The cluster now", None, ClusterView, _cluster),
    _Call("PUT", "/v1/cluster", "Describe the cluster anew", ClusterSpec, ClusterView, _apply),
    _Call("GET", "/v1/tenants", "Who owns what, and holds what", None, list[TenantView], _tenants),
    _Call("GET", "/v1/jobs", "Jobs by order of submission, a page", None, list[JobView], _jobs, _WHICH_JOBS),
    _Call("POST", "/v1/jobs", "Submit a job", Submit, JobView, _submit),
    _Call("POST", "/v1/forecast", "What would happen to a job", Submit, Forecast, _forecast),
    _Call("GET", "/v1/jobs/{job}", "One job, at once or later", None, JobView, _job, _WHEN),
    _Call("GET", "/v1/jobs/{job}/explain", "Its story, with reasons", None, list[ChangeView], _explain),
    _Call("GET", "/v1/jobs/{job}/logs", "What it printed", None, Logs, _logs, _WHICH_LINES),
    _Call("POST", "/v1/jobs/{job}/resize", "Let it have other numbers of workers", Range, JobView, _resize),
    _Call("POST", "/v1/jobs/{job}/suspend", "Hold it", None, JobView, _wish(Happening.HOLD)),
    _Call("POST", "/v1/jobs/{job}/resume", "Let it run again", None, JobView, _wish(Happening.RELEASE)),
    _Call("POST", "/v1/jobs/{job}/cancel", "End it for good", None, JobView, _wish(Happening.CANCEL)),
    _Call("POST", "/v1/down", "Suspend all jobs and end the scheduler", Down, ClusterView, _down),
)


def application(lives: Lives, *, token: str) -> Starlette:
    """The ASGI application.

    Args:
        token: what every caller must present, also on this host: others may have accounts on it, and browsers
            carry out what pages from anywhere ask of it.
    """

    def endpoint(call: _Call) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            given = request.headers.get("authorization", "")
            if not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
                return _json(Problem(detail="wrong or missing token"), 401)
            try:
                body = msgspec.json.decode(await request.body(), type=call.takes) if call.takes else None
                return _json(await call.handle(lives, request, body))
            except BrimError as error:  # a spec inside a body checks itself
                return _json(*_problem(error))
            except UNDECODABLE as error:
                return _json(Problem(detail=str(error)), 400)

        return answer

    async def document(_: Request) -> Response:
        return _json(openapi())

    async def healthy(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def ready(_: Request) -> Response:
        # Anybody may ask, so it does not say why.
        if lives.problem:
            return PlainTextResponse("it decides nothing for now: brim jobs says why\n", 503)
        return PlainTextResponse("ok\n")

    async def nothing(request: Request, error: Exception) -> Response:
        status, headers = (
            (error.status_code, error.headers) if isinstance(error, HTTPException) else (404, None)
        )
        return _json(Problem(detail=f"there is no {request.method} {request.url.path}"), status, headers)

    routes = [Route(call.path, endpoint(call), methods=[call.method]) for call in _CALLS]
    return Starlette(
        routes=[
            Route("/openapi.json", document),
            Route("/healthz", healthy),
            Route("/readyz", ready),
            *routes,
        ],
        exception_handlers={404: nothing, 405: nothing},
    )


def _problem(error: BrimError) -> tuple[Problem, int]:
    match error:
        case SpecError(field=field, got=got, need=need, hint=hint):
            status = 404 if field == NO_SUCH_JOB else 422
            return Problem(detail=str(error), field=field, got=got, need=need, hint=hint), status
        case StorageFault():
            return Problem(detail=str(error)), 503
        case EnvironmentFault():
            return Problem(detail=str(error)), 409
        case _:
            return Problem(detail=str(error)), 500


def _json(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(content), status, headers, media_type="application/json")


def openapi() -> dict[str, Any]:
    """The OpenAPI 3.1 document of this API."""
    types = [kind for call in _CALLS for kind in (call.takes, call.gives) if kind is not None] + [Problem]
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    named = iter(schemas)
    paths: dict[str, Any] = {}
    operation: dict[str, Any]
    for call in _CALLS:
        body = _content(next(named)) | {"required": True} if call.takes else None
        answers = {"200": {"description": call.summary, **_content(next(named))}, "default": _REFUSAL}
        operation = {"summary": call.summary, "responses": answers} | ({"requestBody": body} if body else {})
        job = {"name": "job", "in": "path", "required": True, "schema": {"type": "string"}}
        asks = [{"name": name, "in": "query", "schema": schema} for name, schema in call.asks.items()]
        operation["parameters"] = [job, *asks] if "{job}" in call.path else asks
        paths.setdefault(call.path, {})[call.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "brim scheduler", "version": brim.__version__},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


def _content(schema: dict[str, Any]) -> dict[str, Any]:
    return {"content": {"application/json": {"schema": schema}}}


_REFUSAL = {"description": "Why not", **_content({"$ref": "#/components/schemas/Problem"})}
