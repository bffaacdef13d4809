"""Threads for a process that goes on where this host does not allow it as many as it asks for."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor


class Threads(ThreadPoolExecutor):
    """Threads that share what there is to do.

    Where no further one can be started, work waits for one that there is.
    """

    def _adjust_thread_count(self) -> None:
        try:
            super()._adjust_thread_count()
        except RuntimeError:
            if not self._threads:
                raise
