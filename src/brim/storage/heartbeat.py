"""A file by which a service manager sees that a process lives, and whether it is ready."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from brim.errors import SpecError
from brim.storage.files import write_whole

_PAUSE = 1.0  # seconds


class HeartbeatFile:
    """The heartbeat of this process: it is touched as long as the process does its work.

    The file says `ready` or `waiting`, and is removed at the end.

    Args:
        path: of the file; None: it is not watched.

    Raises:
        SpecError: it cannot be written.
    """

    def __init__(self, path: Path | None) -> None:
        self._path, self._last_word = path, ""
        if path is None:
            return
        try:
            self._say("waiting")
        except OSError as error:
            raise SpecError(
                "--heartbeat-file",
                got=f"{str(path)!r}, which cannot be written ({error.strerror})",
                need="a file in a directory that can be written",
                hint="--heartbeat-file /tmp/brim-heartbeat",
            ) from error

    def beat(self, *, ready: bool = False) -> None:
        """Touch it; a failure shows in its age."""
        with contextlib.suppress(OSError):
            self._say("ready" if ready else "waiting")

    async def keep_beating(self, is_ready: Callable[[], bool]) -> None:
        """Beat once a second, until the call is cancelled."""
        while True:
            self.beat(ready=is_ready())
            await asyncio.sleep(_PAUSE)

    def end(self) -> None:
        """Remove it."""
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)

    def _say(self, word: str) -> None:
        if self._path is None:
            return
        if word == self._last_word and self._path.exists():
            os.utime(self._path)
            return
        write_whole(self._path, f"{word}\n".encode())
        self._last_word = word
