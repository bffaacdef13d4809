"""The output of the processes of a run.

`logs/WORKER.log`, read on from where the last reader was.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Mapping
from pathlib import Path

from brim.errors import SpecError, did_you_mean
from brim.host.untrusted import NotRegularError, open_regular

_READ_BYTES = 1 << 18  # bytes of a file that are read at once
_MOST_OF_ALL = 4 << 20  # and of all files together: there may be any number
_BLOCK = 4096  # what `brim.telemetry.log_limit` frees of a log is a multiple of this
_FREED_BYTE = b"\0"  # how a byte reads that was freed


class Tail:
    """Remembers how far each log was read.

    Args:
        run_dir: of the run.
        worker: whose log, such as `w1`; empty: all of them.
        places: bytes of each log that were read before, by worker.

    Raises:
        SpecError: that worker has no log.
    """

    def __init__(
        self, run_dir: Path, worker: str = "", places: Mapping[str, int] | None = None
    ) -> None:
        self._folder, self._worker = run_dir / "logs", worker
        self.places = dict(places or {})
        names = sorted(path.stem for path in self._folder.glob("*.log"))
        if worker and worker not in names:
            raise SpecError(
                "--worker",
                got=repr(worker),
                need=f"a worker of {run_dir}",
                hint=did_you_mean(worker, names) if names else "no worker has printed anything",
            )

    def fresh(self, reads: int = 1) -> list[tuple[str, str]]:
        """Worker and text of lines that were completed since the last call.

        Call again until there are none.

        Where lines are gone by now, because logs are kept within a limit, a line says how much that
        was.

        Args:
            reads: of each log at most, a quarter of a MiB each.
        """
        lines: list[tuple[str, str]] = []
        for _ in range(reads):
            fresh = self._fresh()
            if not fresh:
                break
            lines += fresh
        return lines

    def _fresh(self) -> list[tuple[str, str]]:
        lines: list[tuple[str, str]] = []
        took = 0
        for path in sorted(self._folder.glob("*.log"), key=_natural):
            if self._worker not in ("", path.stem):
                continue
            place_before = self.places.get(path.stem, 0)
            found, self.places[path.stem] = _read(path, place_before)
            lines += [(path.stem, line) for line in found]
            took += min(_READ_BYTES, max(0, self.places[path.stem] - place_before))
            if took > _MOST_OF_ALL:
                break  # the next call reads on
        return lines


def last_line(log: Path) -> str:
    """The last line of a log; empty where it says nothing, or is not there."""
    try:
        with os.fdopen(open_regular(log), "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _READ_BYTES))
            lines = file.read().strip(_FREED_BYTE + b" \t\r\n").splitlines()
    except OSError:
        lines = []
    return lines[-1].decode(errors="replace") if lines else ""


def _read(path: Path, place: int) -> tuple[list[str], int]:
    """Whole lines of a log from a place on, and the place behind them.

    Where lines are gone, a word on those comes first.
    """
    try:
        log = open_regular(path)
    except NotRegularError:  # nobody printed to it
        return [], place
    with os.fdopen(log, "rb") as file:
        if place > os.fstat(file.fileno()).st_size:
            return ["[this log was emptied, and begins again]"], 0
        begin, content = _read_what_is_left(file.fileno(), place)
    # A last line without an end waits for it, unless it is longer than what is read at once.
    cut = content.rfind(b"\n") + 1 or (len(content) if len(content) == _READ_BYTES else 0)
    if not cut:
        return [], place
    if begin == place:
        return content[:cut].decode(errors="replace").splitlines(), place + cut
    torn = content.find(b"\n") + 1  # the rest of a line whose beginning is gone
    omission = f"[{begin + torn - place:,} bytes are left out: more than --log-limit keeps]"
    return [omission, *content[torn:cut].decode(errors="replace").splitlines()], begin + cut


def _read_what_is_left(file: int, place: int) -> tuple[int, bytes]:
    """Some bytes from a place on, or behind a cut there, and where they begin."""
    while True:
        begin = _first_left(file, place)
        content = os.pread(file, _READ_BYTES, begin)
        if begin == _first_left(file, place):  # else some went while they were read
            return begin, content


def _first_left(file: int, place: int) -> int:
    """The first place that is not in the hole at the front of a log."""
    if os.pread(file, 1, place) != _FREED_BYTE:
        return place

    def is_left(block: int) -> bool:
        return bool(os.pread(file, _BLOCK, block * _BLOCK).strip(_FREED_BYTE))

    size = os.fstat(file).st_size
    blocks = range(place // _BLOCK, -(-size // _BLOCK))
    first = blocks.start + bisect_left(blocks, True, key=is_left)
    return max(place, min(size, first * _BLOCK))


def _natural(path: Path) -> tuple[int, str]:
    """w2 before w10."""
    return len(path.stem), path.stem
