"""What people ask a master, and what it answers: one gRPC call."""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = ["Answer", "Ask"]


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """`status`, `resize` (with `workers`) or `suspend` (with a `reason`).

    Args:
        places: so many of the workers on each agent; empty where it does not matter on which they are.
    """

    verb: str
    workers: int = 0
    places: dict[str, int] = {}
    reason: str = ""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Either the answer, or why there is none."""

    ok: bool
    detail: str = ""
    status: dict[str, Any] = {}
