"""What the processes of a run printed: `logs/WORKER.log`, read on from where the last reader was."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from brim.errors import SpecError, did_you_mean

__all__ = ["Tail"]

_MOST = 1 << 18  # bytes of a file that are read at once


class Tail:
    """Remembers how far each log was read.

    Args:
        run_dir: of the run.
        worker: whose log, such as `w1`; empty: all of them.
        places: bytes of each log that were read before, by worker.

    Raises:
        SpecError: that worker has no log.
    """

    def __init__(self, run_dir: Path, worker: str = "", places: Mapping[str, int] | None = None) -> None:
        self._folder, self._worker = run_dir / "logs", worker
        self.places = dict(places or {})
        known = sorted(path.stem for path in self._folder.glob("*.log"))
        if worker and worker not in known:
            raise SpecError(
                "--worker",
                got=repr(worker),
                need=f"a worker of {run_dir}",
                hint=did_you_mean(worker, known) if known else "no worker has printed anything",
            )

    def fresh(self) -> list[tuple[str, str]]:
        """Worker and text of lines that were completed since the last call; call again until there are none."""
        lines: list[tuple[str, str]] = []
        for path in sorted(self._folder.glob(f"{self._worker or '*'}.log"), key=_natural):
            place = self.places.get(path.stem, 0)
            with path.open("rb") as file:
                file.seek(place)
                content = file.read(_MOST)
            # A last line without an end waits for it, unless it is longer than what is read at once.
            whole = (
                content
                if len(content) == _MOST and b"\n" not in content
                else content[: content.rfind(b"\n") + 1]
            )
            self.places[path.stem] = place + len(whole)
            lines += [(path.stem, line) for line in whole.decode(errors="replace").splitlines()]
        return lines


def _natural(path: Path) -> tuple[int, str]:
    """w2 before w10."""
    return len(path.stem), path.stem
