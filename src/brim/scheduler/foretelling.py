"""Forecasts the end of every job, behind the cycles and without delaying them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from brim.coordination.cluster.scheduled_jobs import Foretold
from brim.coordination.cluster.shortages import expected_starts
from brim.domain.course import Change
from brim.domain.schedule import Decision, Policy, Snapshot
from brim.interfaces import Clock
from brim.simulator.engine import foresee_changes

_PAUSE = 1.0  # seconds between two estimates, at least,
_SHARE = 0.05  # of a processor's time, at most
_MOST_PLANNED = 2_000  # changes that are kept, the next ones


class Foretelling:
    """Expectations of one cluster's jobs.

    Args:
        hear: is called with each.

    Attributes:
        plan: the changes of workers that are expected next, in order.
    """

    def __init__(self, hear: Callable[[Foretold], object], *, clock: Clock) -> None:
        self._hear, self._clock = hear, clock
        self._news = asyncio.Event()
        self._last: tuple[Snapshot, Decision, Policy] | None = None
        self.plan: list[Change] = []

    def tell(self, snapshot: Snapshot, decision: Decision, decide: Policy) -> None:
        """A cycle was decided; the last one counts."""
        self._last = snapshot, decision, decide
        self._news.set()

    async def run(self) -> None:
        """Look ahead until this task is cancelled."""
        while True:
            await self._news.wait()
            self._news.clear()
            assert self._last is not None
            started = self._clock.now()
            # In a thread: a question over HTTP does not wait for many cycles.
            foreseen = await asyncio.to_thread(foresee_changes, *self._last)
            self.plan = foreseen.changes[:_MOST_PLANNED]
            starts = expected_starts(foreseen.changes)
            self._hear(Foretold(foreseen.ends, self._last[0].now, starts))
            await asyncio.sleep(max(_PAUSE, (self._clock.now() - started) / _SHARE))
