"""Keeps logs within a limit, while others write them, by giving the oldest parts back.

A process that writes a log has it open for life, and what user code starts inherits it: a log
cannot be renamed, nor cut short and copied without losing what is written meanwhile. So a hole is
made at its front. That is one call, done or not done wherever this process is killed; it takes no
room on a full disk; several processes may do it; and each byte that is left stays where readers
remember it. The length of the file counts all that was ever written, its blocks what is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from collections.abc import Iterable
from glob import iglob
from pathlib import Path

from brim.host.holes import free_front

_POLL_INTERVAL = (
    0.2  # seconds between two looks: what is written meanwhile comes on top of the limit
)
_SELDOM = 1.0  # where less than half of it is used
_SLACK = 8  # an eighth of the limit is freed at once, so that a log that grows slowly is seldom cut
_FARTHEST = 1 << 40  # no disk lets a file grow for ever


class LogLimit:
    """A limit of some logs together.

    Args:
        folder: where they are.
        patterns: of their names, from there.
        limit: bytes that they may have together, and can be changed. The longest lose first: who
            prints little loses nothing.
    """

    def __init__(self, folder: Path, *patterns: str, limit: int) -> None:
        self._folder, self._patterns = folder, patterns
        self.limit = limit

    async def keep(self) -> None:
        """Enforce the limit from time to time, and a last time when this is cancelled."""
        try:
            while True:
                used = await asyncio.to_thread(self.enforce)  # a disk may take its time
                await asyncio.sleep(_POLL_INTERVAL if used > self.limit // 2 else _SELDOM)
        finally:
            self.enforce()

    def enforce(self) -> int:
        """Cut overlong logs now; failures are tried again with the next call.

        Returns:
            How many bytes there were.
        """
        found = (os.path.join(self._folder, name) for name in self._names())
        sizes = {path: size for path in found if (size := _size_on_disk(path))}
        used = sum(sizes.values())
        if used <= self.limit:
            return used
        limit_each = _most_of_each(sizes.values(), self.limit - self.limit // _SLACK)
        for path, size in sizes.items():
            if size > limit_each:
                with contextlib.suppress(OSError):
                    _cut(path, limit_each)
        return used

    def _names(self) -> Iterable[str]:
        """List the names of the logs that are there.

        This is done several times a second: by strings, which take half the time of paths.
        """
        for pattern in self._patterns:
            yield from iglob(pattern, root_dir=self._folder)


def _most_of_each(sizes: Iterable[int], limit: int) -> int:
    """Return the largest length of each log that keeps all together within the limit.

    Logs that are shorter than that stay as they are.

    >>> _most_of_each([10, 1000, 20, 900], 430), _most_of_each([500], 430)
    (200, 430)
    """
    remaining = sorted(sizes)
    while remaining[0] * len(remaining) <= limit:
        limit -= remaining.pop(0)
    return limit // len(remaining)


def _size_on_disk(path: str) -> int:
    """Bytes that a log takes: some disks reserve more than was written."""
    try:
        found = os.lstat(path)
    except OSError:
        return 0
    return min(found.st_size, found.st_blocks * 512) if stat.S_ISREG(found.st_mode) else 0


def _cut(path: str, limit: int) -> None:
    """Free all but the last bytes of a log. Raises OSError where that cannot be done now."""
    file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(file)
        begin = (found.st_size - limit) // found.st_blksize * found.st_blksize
        if begin > _FARTHEST:
            os.ftruncate(file, 0)
        elif begin > 0:
            free_front(file, begin)
    finally:
        os.close(file)
