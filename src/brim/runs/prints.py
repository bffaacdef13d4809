"""The output of rank 0 of a run, as it is printed.

The worker that has this rank changes with the rounds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from brim.coordination.job.attempts import EXIT_STATUS
from brim.coordination.job.launches import is_mark
from brim.domain.quantities import counted
from brim.host.clock import monotonic
from brim.telemetry.history import RunHistory
from brim.telemetry.logs import Tail

_NUMBER = re.compile(r"0x[0-9a-f]+|[0-9]+")  # times, processes, places in memory
_LONGEST_START = 200  # lines of a start that are compared with those of the next
_TO_DIFFER = 5.0  # seconds that lines which repeat an earlier start are held back
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
        self._repeats = Repeats()
        self._has_read = False

    def fresh(self, history: RunHistory) -> list[str]:
        """Lines that were completed since the last call.

        Where there are too many, the result is the first of them.
        """
        lines = self._pass_on(self._read())
        last, self._last = self._last, self._sizes()
        if history.round is None or history.round is self._round:
            return lines
        self._round = history.round
        worker = history.round.workers[0]
        if worker != self._worker:
            lines += self._pass_on(self._read(_LAST_READS))
            self._worker = worker
            sizes = last if worker in self._members else self._sizes_at_start
            self._tail = self._begin(worker, sizes.get(worker, 0))
        self._members.update(history.round.workers)
        never_got_going = history.verb == "restart" and history.command is None
        self._repeats.begin(after_failure=never_got_going and EXIT_STATUS in history.round.cause)
        return lines + self._pass_on(self._read())

    def rest(self, history: RunHistory) -> Iterator[str]:
        """All lines that are left once the run has ended."""
        self._has_read = True
        while self._has_read:
            self._has_read = False
            yield from self.fresh(history)
        yield from self._repeats.finish()

    def _pass_on(self, lines: Sequence[str]) -> list[str]:
        self._has_read = self._has_read or bool(lines)
        return self._repeats.pass_on(lines, now=monotonic())

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
            # Who sees it as it is printed is told of each start, and why there is another.
            lines += [text for _, text in self._tail.fresh(reads) if not is_mark(text)]
        return lines


class Repeats:
    """Shows once the lines of a command whose starts all fail alike.

    A start's lines are held back as long as they repeat those of the start before, apart from
    numbers, and counted if it ends so.

    >>> repeats = Repeats()
    >>> repeats.pass_on(["no such file"], now=0.0)
    ['no such file']
    >>> repeats.begin(after_failure=True)
    >>> repeats.pass_on(["no such file"], now=1.0), repeats.finish()
    ([], ['[1 more start printed the same]'])
    """

    def __init__(self) -> None:
        self._before: list[str] = []  # what is compared with
        self._lines: list[str] = []
        self._held: list[str] = []
        self._held_since = 0.0
        self._count = 0

    def begin(self, *, after_failure: bool) -> None:
        """Begin the next start; one without a line is never compared with."""
        self._count += bool(self._held)
        if self._lines or not after_failure:
            self._before = self._lines[:_LONGEST_START] if after_failure else []
        self._lines = []
        self._held = []

    def pass_on(self, lines: Sequence[str], *, now: float) -> list[str]:
        """Return the lines to show, of these and of those held back before.

        Args:
            now: seconds of any clock.
        """
        shown = []
        for line in lines:
            place, words = len(self._lines), _NUMBER.sub("0", line)
            if place <= _LONGEST_START:
                self._lines.append(words)
            if place < len(self._before) and self._before[place] == words:
                self._held_since = self._held_since if self._held else now
                self._held.append(line)
            else:
                shown += [*self._released(), line]
        if self._held and now - self._held_since > _TO_DIFFER:
            shown += self._released()
        return shown

    def finish(self) -> list[str]:
        """Return the last words."""
        self._count += bool(self._held)
        self._held = []
        return self._released()

    def _released(self) -> list[str]:
        """Return the lines held back, after the number of starts with the same ones."""
        note = [f"[{counted(self._count, 'more start')} printed the same]"] if self._count else []
        released = [*note, *self._held]
        self._before, self._held, self._count = [], [], 0
        return released
