"""Answers to an operator's monitors: whether it lives, whether it is ready, and its metrics.

They prove nothing about themselves, so nothing here says more than names and numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from brim.telemetry.prometheus import MetricFamily, exposition

_IDLE_LIMIT = (
    300.0  # seconds without a look after which an operator is started again: more than any list
)
_UNHEARD = 30.0  # seconds: the Lease is asked for every two, and lost after ten
_CLOSE = {"Connection": "close"}  # a stranger asks once for each connection


@dataclass(frozen=True, slots=True, kw_only=True)
class Signs:
    """Signs of life of an operator.

    Args:
        holds: the Lease.
        begun: it has read all objects, and schedules.
        unheard: seconds since the API server last told it who holds the Lease.
        idle: seconds since it last looked at its jobs, or else asked for the Lease.
    """

    holds: bool
    begun: bool
    unheard: float
    idle: float

    @property
    def not_live(self) -> str:
        """The reason to start it again; empty: it lives."""
        return f"it has done nothing for {self.idle:.0f} s" if self.idle > _IDLE_LIMIT else ""

    @property
    def not_ready(self) -> str:
        """The reason why it would neither decide nor take over; empty: it would."""
        if self.holds:
            return "" if self.begun else "it reads what there is"
        if self.unheard > _UNHEARD:
            return f"the API server has not said who holds the Lease for {self.unheard:.0f} s"
        return ""


def application(
    signs: Callable[[], Signs], metrics: Callable[[], Iterable[MetricFamily]]
) -> Starlette:
    """Return the ASGI application."""

    def answered(problem: str) -> Response:
        return PlainTextResponse(f"{problem or 'ok'}\n", 503 if problem else 200, _CLOSE)

    async def live(_: Request) -> Response:
        return answered(signs().not_live)

    async def ready(_: Request) -> Response:
        return answered(signs().not_ready)

    async def figures(request: Request) -> Response:
        kind, text = exposition(metrics(), request.headers.get("accept", ""))
        return Response(text, headers={**_CLOSE, "Content-Type": kind, "Vary": "Accept"})

    routes: list[Any] = [
        Route("/healthz", live), Route("/readyz", ready), Route("/metrics", figures),
    ]  # fmt: skip
    return Starlette(routes=routes)
