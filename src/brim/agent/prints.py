"""Output of this host's workers, for the command on another one.

What rank 0 prints is passed on as it comes, of another worker that fails the last lines: whole
lines, a limited number of bytes at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from brim.coordination.job.membership import World
from brim.domain.quantities import counted
from brim.telemetry.logs import Tail

_MAX_TAIL_BYTES = 16 << 10  # bytes that are passed on at once
# A worker that prints without end must not keep this host's agent from everything else.
_READS = 4  # of a log, at one call
_LAST_READS = 1024  # of the log of a worker that will not be read again


class PrintForwarder:
    """Follows the log of rank 0 while it is one of this host's workers.

    The first rank 0 of a run is read from its beginning, a successor from where it is when it takes
    over.

    Args:
        run_dir: of this agent, with the workers' logs.
    """

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._tail: Tail | None = None
        self.worker = ""

    def begin(self, world: World) -> str:
        """Take note of a new round.

        Returns what the rank 0 of the round before printed to its end.
        """
        first = world.members[0].worker
        if first == self.worker:
            return ""
        rest = self.rest()
        log = self._run_dir / "logs" / f"{first}.log"
        is_here = log.exists()
        self.worker = first if is_here else ""
        place = log.stat().st_size if is_here and world.round > 1 else 0
        self._tail = Tail(self._run_dir, first, {first: place}) if is_here else None
        return rest

    def fresh(self) -> str:
        """Return the lines that were completed since the last call.

        Where there are too many, the result is the last of them.
        """
        return self._read(_READS)

    def rest(self) -> str:
        """Return the same as `fresh`, for a worker that will not be asked for again."""
        return self._read(_LAST_READS)

    def last_words(self, worker: str) -> str:
        """Return the last lines of a worker that has failed; empty where they are followed anyway."""
        log = self._run_dir / "logs" / f"{worker}.log"
        if worker == self.worker or not log.exists():
            return ""
        tail = Tail(self._run_dir, worker, {worker: max(0, log.stat().st_size - _MAX_TAIL_BYTES)})
        return _last_of([text for _, text in tail.fresh(_LAST_READS)])

    def _read(self, reads: int) -> str:
        return _last_of([text for _, text in self._tail.fresh(reads)] if self._tail else [])


def _last_of(lines: Sequence[str]) -> str:
    """Return as many of the last lines as are passed on at once, and how many were before them."""
    last_lines: list[str] = []
    size = 0
    for line in reversed(lines):
        size += len(line.encode()) + 1
        if size > _MAX_TAIL_BYTES:
            break
        last_lines.append(line)
    if len(last_lines) < len(lines):
        omitted = counted(len(lines) - len(last_lines), "line")
        last_lines.append(f"[{omitted} left out: more than brim passes on to another host]")
    return "".join(f"{line}\n" for line in reversed(last_lines))
