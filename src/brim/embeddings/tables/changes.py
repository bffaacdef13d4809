"""The rows of a table that the steps since some moment wrote.

A worker that makes all steps knows them.

A table says of each row which step wrote it last. Asking that of all rows takes the longer the more
there are; the worker that writes checkpoints takes each step's rows from the step's log instead.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_MIN_ENTRIES = 1 << 16
_TIMES = 32  # sorting a key takes as long as looking at so many rows
_Keys = NDArray[np.int64]


class Changes:
    """The keys that steps wrote to, each step after the one before.

    Args:
        rows: that the table has room for. Once so many keys are known that a look at all rows is
            quicker, none is.

    >>> changes = Changes(rows=100)
    >>> changes.begin(4)
    >>> changes.add(5, np.array([7, 9]))
    >>> changes.add(6, np.array([3]))
    >>> changes.keys_since(4), changes.keys_since(3)
    (array([3, 7, 9]), None)
    >>> changes.reach(8)
    >>> changes.keys_since(4) is None
    True
    """

    def __init__(self, *, rows: int) -> None:
        self._max_entries = max(_MIN_ENTRIES, rows // _TIMES)
        self._first: int | None = None
        self._last = self._count = 0
        self._keys: list[_Keys] = []

    @property
    def first(self) -> int | None:
        """The step since which all is known; None where nothing is."""
        return self._first

    def begin(self, step: int) -> None:
        """Forget earlier changes, if any; steps after this one come."""
        if self._first is not None and self._last == step and not self._keys:
            return
        self._first = self._last = step
        self._keys, self._count = [], 0

    def forget(self) -> None:
        """Know nothing."""
        self._first, self._keys, self._count = None, [], 0

    def add(self, step: int, keys: _Keys) -> None:
        """Take the keys of a step, if it is the next one; else nothing is known any more.

        Args:
            step: from 1.
            keys: those are enough that no step since `first` wrote to.
        """
        if self._first is None:
            return
        if step != self._last + 1:
            self.forget()
            return
        self._last = step
        self._count += len(keys)
        if self._count > self._max_entries:
            self.forget()
        elif len(keys):
            self._keys.append(keys)

    def reach(self, step: int) -> None:
        """Forget earlier changes where others made some up to this step."""
        if self._last != step:
            self.forget()

    def keys_since(self, step: int) -> _Keys | None:
        """Return a superset of the keys written since the step: ascending, each once.

        None where unknown.
        """
        if self._first is None or step < self._first:
            return None
        return np.unique(np.concatenate([np.empty(0, np.int64), *self._keys]))
