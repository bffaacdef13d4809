"""Messages between people and a master: one gRPC call."""

from __future__ import annotations

from typing import Any

import msgspec


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """`status`, `stacks`, `resize` (with `workers`, `servers`, or both), `suspend`, `renew` or `lose`.

    A request to `suspend`, or to count an `agent` as lost, may have a `reason`.

    Args:
        workers: from now on; 0 for as many as before.
        places: so many of the workers on each agent; empty where it does not matter on which they
            are.
        servers: from now on; None for as many as before.
    """

    verb: str
    workers: int = 0
    places: dict[str, int] = {}
    servers: int | None = None
    reason: str = ""
    agent: str = ""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Either the answer, or why there is none."""

    ok: bool
    detail: str = ""
    status: dict[str, Any] = {}
