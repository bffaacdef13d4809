"""Forgets ended jobs: on request, or by age where the cluster's description says so.

The record and the story go first, in one transaction that also notes that the run directory is
still there. So a scheduler that dies in between leaves no half a job: the job is gone, and the next
scheduler removes the directory. A directory that no note speaks of is no scheduler's to remove.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from brim.domain.course import Change
from brim.domain.quantities import counted
from brim.domain.scheduled_job import ScheduledJob
from brim.errors import BrimError, EnvironmentFault, StorageFault
from brim.interfaces import Clock
from brim.storage.book import Book
from brim.storage.removing import remove_run

_POLL_INTERVAL = 5.0  # seconds between two looks for jobs that are old enough
_JOBS_PER_BATCH = 50  # jobs: nobody else is answered while they are forgotten
_RETRY_INTERVAL = 600.0  # seconds before another attempt to remove what could not be removed

_log = logging.getLogger(__name__)


class Forgetting:
    """Forgets jobs of a book.

    Args:
        jobs_folder: has the run directories.
        keep: seconds after its end for which a job is kept; None: for ever.
    """

    def __init__(
        self, book: Book, *, jobs_folder: Path, clock: Clock, keep: Callable[[], float | None]
    ) -> None:
        self._book, self._folder, self._clock, self._keep = book, jobs_folder, clock, keep
        self._clearing = asyncio.Lock()
        self._failed: dict[str, float] = {}  # when
        self._is_over = False

    def close(self) -> None:
        """Write nothing more: the next life removes the rest."""
        self._is_over = True

    async def run(self) -> None:
        """Forget by age, and remove leftovers of earlier schedulers, until cancelled."""
        while True:
            self.forget_old()
            self._book.give_back()
            for id, user in self._book.leavings().items():
                if self._clock.now() - self._failed.get(id, float("-inf")) > _RETRY_INTERVAL:
                    await self._clear_quietly(id, user)
            await asyncio.sleep(_POLL_INTERVAL)

    def forget_old(self) -> None:
        """Forget the jobs that are old enough, some at a time."""
        keep = self._keep()
        if keep is None:
            return
        now = self._clock.wall()
        old = self._book.jobs.ended_before(now - keep)[:_JOBS_PER_BATCH]
        if not old:
            return
        with self._book.transaction():
            for id in old:
                self._book.forget(self._book.jobs[id])
            detail = f"{counted(len(old), 'job')}, by age"
            self._book.note(Change(now, event="jobs forgotten", detail=detail))

    async def forget(self, record: ScheduledJob) -> int:
        """Forget one job now; the bytes of the disk that came back.

        Raises:
            EnvironmentFault: its run directory cannot be removed now; that is tried again.
        """
        self._book.forget(record)
        try:
            return await self._clear(record.id, record.user)
        except StorageFault:
            raise
        except (BrimError, OSError) as error:  # its account may be gone
            self._failed[record.id] = self._clock.now()
            detail = f"its directory cannot be removed now: {error}"
            raise EnvironmentFault(
                f"{record.id} is forgotten, but {detail}; that is tried again"
            ) from error

    async def _clear_quietly(self, id: str, user: str) -> None:
        try:
            await self._clear(id, user)
        except StorageFault:
            raise
        except (BrimError, OSError) as error:
            self._failed[id] = self._clock.now()
            _log.warning(
                "the directory of %s, which was forgotten, cannot be removed: %s", id, error
            )
        except Exception:  # noqa: BLE001 - whatever it is, the other directories are removed
            self._failed[id] = self._clock.now()
            _log.exception("the directory of %s, which was forgotten, cannot be removed", id)

    async def _clear(self, id: str, user: str) -> int:
        async with self._clearing:
            size = await asyncio.to_thread(remove_run, self._folder / id, user=user)
            if not self._is_over:
                self._book.cleared(id)
        return size
