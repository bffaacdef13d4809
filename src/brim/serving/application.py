"""The server over HTTP: callers, requests and answers."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from brim.errors import BrimError, EnvironmentFault, SpecError
from brim.host.clock import monotonic
from brim.serving.batches import Batches, Busy
from brim.serving.bodies import LARGE, MOST_ROWS, Body, Malformed
from brim.serving.description import description, openapi
from brim.serving.inputs import quoted
from brim.telemetry.prometheus import (
    Histogram,
    MetricFamily,
    MetricSample,
    counter,
    exposition,
)
from brim.wire.bodies import Bodies, BodyTooLarge, NoRoom
from brim.wire.door import Door

VERSION = "Brim-Version"  # header of an answer
_LARGEST_BODY = 16 << 20  # bytes
_BODIES_OF_HOST = 32 << 20  # bytes
_BODIES_IN_ALL = 64 << 20  # bytes
_TO_SEND_BODY = 10.0  # seconds
_SCHEME = "Bearer "
_JSON = "application/json"
_PREDICT = "/predict"
_BOUNDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)  # seconds


class _Predicted(msgspec.Struct):
    version: str
    predictions: dict[str, list[Any]]


class _Problem(msgspec.Struct):
    detail: str


class Figures:
    """Counters of `GET /metrics`."""

    def __init__(self) -> None:
        self._answers = Counter[int]()  # by status
        self._rows = 0
        self._seconds = Histogram(_BOUNDS)
        self.loaded = 0
        self.refused = 0

    def answered(self, status: int, *, rows: int, seconds: float) -> None:
        self._answers[status] += 1
        self._rows += rows
        self._seconds.observe(seconds)

    def metrics(self, *, version: str, step: int, batches: int) -> list[MetricFamily]:
        """The figures as metrics."""
        answers = [
            MetricSample(count, {"status": str(status)})
            for status, count in sorted(self._answers.items())
        ]
        return [
            MetricFamily("brim_requests_total", "counter", "Requests, by status.", answers),
            counter("brim_rows_total", "Rows that were asked for.", self._rows),
            counter("brim_batches_total", "Batches that were computed.", batches),
            counter("brim_versions_loaded_total", "Versions that were loaded.", self.loaded),
            counter("brim_versions_refused_total", "Versions not served.", self.refused),
            self._seconds.metric("brim_request_seconds", "Seconds until an answer."),
            MetricFamily(
                "brim_step",
                "gauge",
                "Step of the model.",
                [MetricSample(step, {"version": version})],
            ),
        ]


def application(
    batches: Batches,
    *,
    token: str,
    door: Door,
    figures: Figures,
    problems: Callable[[], Sequence[str]],
) -> Starlette:
    """The ASGI application.

    Args:
        batches: the model's batches.
        token: that each request but `/health` must have; empty for none.
        door: which connections this is served on.
        figures: the counters.
        problems: versions that are not served, and why.
    """
    digest = _digest(token)
    bodies = Bodies(
        largest=_LARGEST_BODY,
        of_caller=_BODIES_OF_HOST,
        in_all=_BODIES_IN_ALL,
        to_send=_TO_SEND_BODY,
    )

    def refusal(request: Request) -> Response | None:
        """Return the answer that refuses a request by its headers alone, or None."""
        header = request.headers.get("authorization", "")
        if token and not hmac.compare_digest(_digest(header.removeprefix(_SCHEME)), digest):
            return _json(
                _Problem("wrong or missing token: Authorization: Bearer TOKEN"), 401, _CLOSE
            )
        client = (request.client.host, request.client.port) if request.client else None
        if not door.admit(client, "", all_room=True):
            return _json(_Problem("too many requests are being served: ask again"), 503, _CLOSE)
        return None

    async def predict(request: Request) -> Response:
        started = monotonic()
        response, rows = refusal(request), 0
        if response is None:
            response, rows = await _predict(batches, request, bodies)
        figures.answered(response.status_code, rows=rows, seconds=monotonic() - started)
        return response

    async def health(_: Request) -> Response:
        return PlainTextResponse("ok\n", headers=_CLOSE)

    async def start(request: Request) -> Response:
        return refusal(request) or _json(description(batches.model))

    async def document(request: Request) -> Response:
        return refusal(request) or _json(openapi(batches.model))

    async def version(request: Request) -> Response:
        manifest = batches.model.manifest
        details = {
            "version": manifest.version,
            "step": manifest.step,
            "weights_sha256": manifest.weights_sha256,
            "checkpoint": manifest.checkpoint,
            "not_served": list(problems()),
        }
        return refusal(request) or _json(details)

    async def metrics(request: Request) -> Response:
        manifest = batches.model.manifest
        families = figures.metrics(
            version=manifest.version, step=manifest.step, batches=batches.batches
        )
        kind, text = exposition(families, request.headers.get("accept", ""))
        headers = {"Content-Type": kind, "Vary": "Accept"}
        return refusal(request) or Response(text, headers=headers)

    async def no_page(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 404
        headers = error.headers if isinstance(error, HTTPException) else None
        detail = f"there is no {request.method} {quoted(request.url.path)}"
        if request.url.path == _PREDICT:
            detail += f': POST it with "Content-Type: {_JSON}"; GET / shows an example'
        return _json(_Problem(detail), status, {**(headers or {}), **_CLOSE})

    return Starlette(
        routes=[
            Route("/", start),
            Route("/openapi.json", document),
            Route(_PREDICT, predict, methods=["POST"]),
            Route("/health", health),
            Route("/version", version),
            Route("/metrics", metrics),
        ],
        exception_handlers={404: no_page, 405: no_page},
    )


_CLOSE = {"Connection": "close"}  # a stranger asks once for each connection


async def _predict(batches: Batches, request: Request, bodies: Bodies) -> tuple[Response, int]:
    """The answer, and how many rows it has."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != _JSON:  # a browser asks before it sends this kind for a page of somebody else's
        return _json(_Problem(f"the body is {kind or 'of no kind'}, need {_JSON}"), 415, _CLOSE), 0
    caller = request.client.host if request.client else ""
    try:
        async with bodies.read(request, caller) as content:
            return await _predicted(batches, content)
    except Busy as error:
        return _json(_Problem(str(error)), 503), 0
    except EnvironmentFault as error:
        return _json(_Problem(str(error)), 500), 0
    except Malformed as error:
        return _json(_Problem(f"{error}; GET / shows an example"), 400), 0
    except BrimError as error:
        return _json(_Problem(str(error)), 422), 0
    except ClientDisconnect:
        return _json(_Problem("the body did not come to its end"), 400, _CLOSE), 0
    except TimeoutError:
        return _json(_Problem(f"the body did not come in {_TO_SEND_BODY:.0f} s"), 408, _CLOSE), 0
    except NoRoom:
        return _json(
            _Problem("too many large requests are being served: ask again"), 503, _CLOSE
        ), 0
    except BodyTooLarge:
        return _json(_Problem(f"the body is larger than {_LARGEST_BODY:,} bytes"), 413, _CLOSE), 0


async def _predicted(batches: Batches, content: bytearray) -> tuple[Response, int]:
    """The answer, and how many rows it has; a large body is decoded beside the loop."""

    def begin() -> tuple[Body, int]:
        body = Body(content)
        size = body.size(batches.model)
        if size > MOST_ROWS:
            need, hint = f"{MOST_ROWS:,} at most", "send some at a time"
            raise SpecError("the body", got=f"{size:,} rows", need=need, hint=hint)
        return body, size

    body, size = await asyncio.to_thread(begin) if len(content) > LARGE else begin()
    answer = await batches.predict(body.read, size, in_thread=body.is_large)
    predicted = _Predicted(answer.version, answer.columns)
    return _json(predicted, 200, {VERSION: answer.version}), size


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _json(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(content), status, headers, media_type=_JSON)
