"""Training on a stream of parts of a log, each written once, in the order of their names."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import IterableDataset

from brim.data.datasets import Columnar
from brim.data.sized_stream import SizedStream
from brim.errors import SpecError, did_you_mean
from brim.host.clock import monotonic, sleep

_POLL_INTERVAL = 0.05  # seconds between two looks for a new part
_CHUNK_ROWS = 1024  # rows
_WILD = set("*?")
_PART_TIMEOUT = 1500.0  # seconds: less than the default of --hang-timeout, which has no such words


def follow(
    columnar: Columnar, parts: str, *, rows: int, patience: float = _PART_TIMEOUT
) -> SizedStream:
    """Train on files that are yet to come: epoch after epoch takes the next `rows` rows of them.

    The files are read in the order of their names, so each new one must come last. One that is
    being written must have another name: write it beside, and rename it. Where there are fewer rows
    than an epoch takes, it waits. Training resumes at the row after its checkpoint; the files
    before are read again for that, and must stay.

    Args:
        columnar: whose columns the files have: they are encoded with its means and vocabularies.
        parts: a glob of files on this host, such as `clicks/*.csv`.
        rows: of an epoch: each ends with a checkpoint. Bad rows do not count, nor do negatives that
            `negatives=` leaves out.
        patience: seconds to wait for the next file.

    Returns:
        A result for `dataset("train")` of a training file.

    Raises:
        SpecError: no table, no whole number of rows, or wildcards in the folder of the parts.

    Example:
        >>> history = csv("history.csv", columns=COLUMNS, target=TARGET)   # doctest: +SKIP
        >>> follow(history, "clicks/*.csv", rows=1000)                     # doctest: +SKIP
    """
    dataset: object = columnar
    if not isinstance(dataset, Columnar):
        need = "a table of brim.data, whose columns the parts have"
        raise SpecError("brim.data.follow", got=f"a {type(dataset).__name__}", need=need)
    if rows < 1:
        raise SpecError("brim.data.follow(rows=)", got=str(rows), need="a whole number from 1")
    folder, name = Path(parts).parent, Path(parts).name
    if _WILD.intersection(str(folder)) or "**" in name:
        raise SpecError(
            "brim.data.follow(parts=)",
            got=repr(parts),
            need="a folder without wildcards, and a name that may have them",
            hint="clicks/*.csv: all parts come into one folder",
        )
    return _Followed(_Parts(columnar, parts, rows, patience), rows, columnar)


class _Followed(SizedStream):
    """The dataset that `follow` returns.

    Attributes:
        columnar: whose columns the samples have.
    """

    loaders = 1  # beside the step: who waits for a part must go on to hear the master

    def __init__(self, parts: _Parts, rows: int, columnar: Columnar) -> None:
        super().__init__(parts, rows, None)
        self.columnar = columnar


class _Parts(IterableDataset[Any]):
    """The rows of one epoch after the other.

    Attributes:
        waits: for what it yields, so it is begun only where its worker goes on to hear the master.
    """

    waits = True

    def __init__(self, columnar: Columnar, pattern: str, rows: int, patience: float) -> None:
        self._columnar, self._rows, self._patience = columnar, rows, patience
        self._folder, self._pattern = Path(pattern).parent, Path(pattern).name
        self._epoch = 0
        self._names: list[str] = []  # of the parts that were read
        self._ends: list[int] = []  # rows up to the end of each
        self._open: tuple[int, Columnar] | None = None

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        row, stop = self._epoch * self._rows, (self._epoch + 1) * self._rows
        while row < stop:
            number = bisect_right(self._ends, row)
            while number == len(self._ends):
                self._read_next()
                number = bisect_right(self._ends, row)
            first = self._ends[number - 1] if number else 0
            indices = np.arange(row, min(stop, row + _CHUNK_ROWS, self._ends[number])) - first
            inputs, target = self._part(number).take(indices)
            for place in range(len(indices)):
                yield {name: array[place] for name, array in inputs.items()}, target[place]
            row += len(indices)

    def _part(self, number: int) -> Columnar:
        if self._open is None or self._open[0] != number:
            self._open = number, self._columnar.over(self._folder / self._names[number], train=True)
        return self._open[1]

    def _read_next(self) -> None:
        """Wait for the next part, and read it."""
        name = self._next()
        part = self._columnar.over(self._folder / name, train=True)
        self._open = len(self._names), part
        self._ends.append((self._ends[-1] if self._ends else 0) + len(part))
        self._names.append(name)

    def _next(self) -> str:
        end = monotonic() + self._patience
        if not self._names:
            self._check_place()
        while True:
            names = sorted(
                path.name for path in self._folder.glob(self._pattern) if path.name[0] != "."
            )
            count = len(self._names)
            if names[:count] != self._names:
                missing = [name for name in self._names if name not in names]
                early = [name for name in names if name not in self._names]
                problem = (
                    f"without {missing[0]!r}, which was read"
                    if missing
                    else f"with {early[0]!r} before one that was read"
                )
                raise SpecError(
                    str(self._folder / self._pattern),
                    got=f"parts {problem}",
                    need="all parts that were read, and new ones with names after theirs",
                    hint="name them by their time: 2026-11-22T10.csv",
                )
            if len(names) > count:
                return names[count]
            if monotonic() > end:
                raise SpecError(
                    str(self._folder / self._pattern),
                    got=f"no new part after {self._names[-1] if count else 'the start'} in "
                    f"{self._patience:g} s",
                    need="the next part",
                    hint="brim resume RUN once it is there, or a larger patience=",
                )
            sleep(_POLL_INTERVAL)

    def _check_place(self) -> None:
        """Refuse a folder that no part will ever come to.

        A process that only uses the model has no need of the folder.
        """
        folder, need = self._folder, "a folder that parts come to"
        if not folder.exists():
            names = (
                [path.name for path in folder.parent.iterdir()] if folder.parent.is_dir() else []
            )
            hint = did_you_mean(folder.name, names)
            raise SpecError(
                str(folder / self._pattern), got=f"no such folder: {folder}", need=need, hint=hint
            )
        if not folder.is_dir():
            raise SpecError(
                str(folder / self._pattern), got=f"{folder}, which is no folder", need=need
            )
        if (folder / self._pattern).is_dir():
            hint = f"{folder / self._pattern}/*.csv"
            raise SpecError(
                str(folder / self._pattern), got="a folder", need="the files in it", hint=hint
            )
