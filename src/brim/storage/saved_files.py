"""The directory of a command's own checkpoints: what it has saved, and what it has not finished."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path

from brim.domain.job import JobSpec

SAVED = "saved"  # in a run's directory
_ASIDE = ".incomplete"  # in it
_DEPTH = 3  # folders: Lightning has version_0/checkpoints/FILE
_MOST_LOOKED_AT = 1000  # entries in one look
_MARK = ".round-"  # and the number of the present one
# Of transformers: a folder that lacks the first, or has the second, was being written. Others, as
# diffusers, give theirs the same names, and know none of these files.
_FOLDER = re.compile(r"checkpoint-\d+")
_LAST_WRITTEN, _BEING_WRITTEN = "trainer_state.json", "checkpoint-is-incomplete.txt"
_OF_TRAINER = "training_args.bin"


def saved_directory(spec: JobSpec, run_dir: str) -> Path:
    """Return where a command writes its checkpoints: BRIM_CHECKPOINTS."""
    return Path(spec.checkpoints.removeprefix("file://") or Path(run_dir) / SAVED).absolute()


class SavedFiles:
    """The checkpoints of a command, as far as names and times tell.

    Args:
        directory: may be missing, until this host is the one that marks it.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.aside = directory / _ASIDE
        self._newest = self._time_of_newest()

    def has_grown(self) -> bool:
        """Return whether something was saved since the last call."""
        newest = self._time_of_newest()
        has_grown, self._newest = newest > self._newest, newest
        return has_grown

    def mark(self, round: int) -> None:
        """Leave a mark of a round, by which other hosts see whether they share the directory."""
        self.directory.mkdir(parents=True, exist_ok=True)
        for stale_mark in self.directory.glob(f"{_MARK}*"):
            stale_mark.unlink(missing_ok=True)
        (self.directory / f"{_MARK}{round}").touch()

    def is_marked(self, round: int) -> bool:
        """Return whether the mark of a round is in this host's directory of the same name."""
        return (self.directory / f"{_MARK}{round}").exists()

    def put_aside(self) -> list[str]:
        """Put aside the checkpoints that were not finished, and return their names.

        A script that goes on from the folder with the highest number takes it for whole.
        """
        names: list[str] = []
        if not self.directory.exists():
            return names
        with os.scandir(self.directory) as entries:
            unfinished = [entry.name for entry in entries if _is_unfinished(entry)]
        for name in sorted(unfinished):
            self.aside.mkdir(exist_ok=True)
            asides = (self.aside / f"{name}-{number}" for number in count())
            os.rename(self.directory / name, next(path for path in asides if not path.exists()))
            names.append(name)
        return names

    def _time_of_newest(self) -> float:
        return max(islice(_times_in(self.directory, _DEPTH), _MOST_LOOKED_AT), default=0.0)


def _times_in(folder: Path, depth: int) -> Iterator[float]:
    """The times of all finished entries of a folder, and so many folders deep."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:  # it may be gone
        for entry in entries:
            with contextlib.suppress(OSError):
                if entry.name.startswith(".") or _is_unfinished(entry):
                    continue
                yield entry.stat().st_mtime
                if depth and entry.is_dir(follow_symlinks=False):
                    yield from _times_in(Path(entry.path), depth - 1)


def _is_unfinished(entry: os.DirEntry[str]) -> bool:
    if not (_FOLDER.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)):
        return False
    folder = Path(entry.path)
    if (folder / _BEING_WRITTEN).exists():
        return True
    if (folder / _LAST_WRITTEN).exists():
        return False
    return (
        (folder / _OF_TRAINER).exists()
        or not any(folder.iterdir())
        or any(folder.parent.glob(f"checkpoint-*/{_LAST_WRITTEN}"))
    )
