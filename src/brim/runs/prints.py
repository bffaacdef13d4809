"""The output of rank 0 of a run, as it is printed.

The worker that has this rank changes with the rounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from brim.telemetry.history import RunHistory
from brim.telemetry.logs import Tail

# A worker that prints without end must not keep us from everything else.
_READS = 16  # of a log, at one call
_LAST_READS = 1024  # of the log of a worker that another one follows as rank 0


class Prints:
    """Follows the log of whichever worker has rank 0.

    The log of the first one is read from its beginning, as that of a newcomer. That of a successor
    which was a member before is read from where it was at the last look before it took over: what
    it printed before, everybody printed. Of a worker on another host there is no log before it has
    rank 0: the master writes it from what that host's agent passes on.

    Args:
        run_dir: of the run. What its logs have now, of an earlier life, is not shown.
        history: what is known of that life.
    """

    def __init__(self, run_dir: Path, history: RunHistory) -> None:
        self._run_dir, self._round = run_dir, history.round
        self._sizes_at_start = self._last = self._sizes()
        self._members: set[str] = set()
        self._tail: Tail | None = None
        self._worker = ""

    def fresh(self, history: RunHistory) -> list[str]:
        """Lines that were completed since the last call.

        Where there are too many, the result is the first of them.
        """
        lines = self._read()
        last, self._last = self._last, self._sizes()
        if history.round is None or history.round is self._round:
            return lines
        self._round = history.round
        worker = history.round.workers[0]
        if worker != self._worker:
            lines += self._read(_LAST_READS)
            self._worker = worker
            sizes = last if worker in self._members else self._sizes_at_start
            self._tail = self._begin(worker, sizes.get(worker, 0))
        self._members.update(history.round.workers)
        return lines + self._read()

    def rest(self, history: RunHistory) -> Iterator[str]:
        """All lines that are left once the run has ended."""
        while lines := self.fresh(history):
            yield from lines

    def _sizes(self) -> dict[str, int]:
        """Bytes of the logs by worker, as they are now."""
        return {path.stem: path.stat().st_size for path in (self._run_dir / "logs").glob("*.log")}

    def _begin(self, worker: str, place: int) -> Tail | None:
        if not (self._run_dir / "logs" / f"{worker}.log").exists():
            return None  # it is on another host, and has printed nothing yet
        return Tail(self._run_dir, worker, {worker: place})

    def _read(self, reads: int = _READS) -> list[str]:
        lines: list[str] = []
        if self._tail is None and self._worker:
            self._tail = self._begin(self._worker, self._sizes_at_start.get(self._worker, 0))
        if self._tail is not None:
            lines += [text for _, text in self._tail.fresh(reads)]
        return lines
