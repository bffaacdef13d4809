"""Says when every job is expected to end, behind the cycles and in nobody's way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from brim.domain.estimates import Estimate
from brim.domain.schedule import Decision, Policy, Snapshot
from brim.interfaces import Clock
from brim.policies.foresee import foresee
from brim.storage.book import Book, JobRecord

_PAUSE = 1.0  # seconds between two estimates, at least,
_SHARE = 0.05  # and of a processor's time, at most


class Foretelling:
    """Expectations of one cluster's jobs, for its book.

    Args:
        is_measured: whether anything can be said of a job.
    """

    def __init__(
        self, book: Book, *, clock: Clock, is_measured: Callable[[JobRecord], bool]
    ) -> None:
        self._book, self._clock, self._is_measured = book, clock, is_measured
        self._news = asyncio.Event()
        self._last: tuple[Snapshot, Decision, Policy] | None = None

    def tell(self, snapshot: Snapshot, decision: Decision, decide: Policy) -> None:
        """A cycle was decided; the last one counts."""
        self._last = snapshot, decision, decide
        self._news.set()

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await self._news.wait()
            self._news.clear()
            assert self._last is not None
            began = self._clock.now()
            # In a thread: a question over HTTP does not wait for many cycles.
            ends = await asyncio.to_thread(foresee, *self._last)
            self._keep(ends, self._last[0])
            await asyncio.sleep(max(_PAUSE, (self._clock.now() - began) / _SHARE))

    def _keep(self, ends: dict[str, float], snapshot: Snapshot) -> None:
        with self._book.together():  # the disk is waited for once
            for job, end in ends.items():
                record = self._book.jobs.get(job)  # it may have ended meanwhile, and been forgotten
                if record is not None and not record.life.ended and self._is_measured(record):
                    self._book.expect(
                        record, Estimate(at=snapshot.now, finish=end, step=record.step)
                    )
