"""Turns of tenants: slow requests are served one at a time for each tenant.

However much one of them asks for at once, the request of another finds no more than one of its in
the way.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator

_LONGEST_REST = 1.0  # seconds


class TenantTurns:
    """The turns of callers, of which each has one at a time."""

    def __init__(self) -> None:
        self._locks = defaultdict[str, asyncio.Lock](asyncio.Lock)

    @contextlib.asynccontextmanager
    async def turn_of(self, caller: str) -> AsyncIterator[None]:
        """Wait for the turn of a caller; the next one comes after a rest as long as this one takes."""
        loop, lock = asyncio.get_running_loop(), self._locks[caller]
        await lock.acquire()
        started = loop.time()
        try:
            yield
        finally:
            loop.call_later(min(loop.time() - started, _LONGEST_REST), lock.release)
