"""The stored form of a large table: a base, which has every row, and deltas on it. Pure.

A delta has the rows that changed since the part before it. Rows that are gone are in no list: a row
goes when no step has written to it for long, so a checkpoint only says of which steps rows are
still there. Several checkpoints may name the same part; so a file of a part may go once nobody
names it any more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

FOLDER = "tables"  # where the files of parts lie, beside the folders of checkpoints
_MOST_OF_BASE = 0.5  # what deltas may weigh together


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """A file that several checkpoints may name, by its name in the place of checkpoints."""

    name: str
    sha256: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartFile(StoredFile):
    """A file of a part."""

    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePart:
    """A base or a delta.

    Args:
        since: the step of the part that a delta builds on; None: a base.
        step: committed steps. Its rows are as of that step; those of a base that was read while
            training went on may be newer, and then the next part has them too.
        rows: how many it has.
        files: with the rows, by ascending keys.
    """

    since: int | None
    step: int
    rows: int
    files: tuple[PartFile, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Bytes of the part's files."""
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTable:
    """A table in a checkpoint.

    Args:
        name: of the parameter.
        rows: that the table had; some of those in its parts may be gone.
        parts: the base, then deltas, each built on the one before.
        oldest: of each of so many even ranges of keys, a power of two, the first step whose rows
            are still there: those that earlier steps wrote last are gone. None where none ever
            goes.
    """

    name: str
    rows: int
    parts: tuple[TablePart, ...]
    oldest: tuple[int, ...] = ()

    @property
    def files(self) -> tuple[PartFile, ...]:
        """Files of all parts."""
        return tuple(file for part in self.parts for file in part.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """The history that a state has behind it: a worker that restores a checkpoint begins a new one.

    Rows that changed since a checkpoint can be put on top of it only by a state that once equalled
    it. A worker that was cut off may publish one of a history that the others have left.

    Args:
        id: told apart from all others; empty before anybody began one.
        parent: that of the checkpoint that was restored.
        parent_step: the step of that checkpoint.
    """

    id: str = ""
    parent: str = ""
    parent_step: int = 0

    def includes(self, id: str, step: int) -> bool:
        """Return whether this lineage contains the checkpoint of another one.

        >>> [Lineage(id="b", parent="a", parent_step=20).includes(*each) for each in [("b", 50), ("a", 20), ("a", 50)]]
        [True, True, False]
        """
        return bool(id) and (id == self.id or (id, step) == (self.parent, self.parent_step))


def is_chain(parts: Sequence[TablePart]) -> bool:
    """Return whether parts are a base, and deltas of which each builds on the one before.

    >>> base, delta = TablePart(since=None, step=10, rows=5), TablePart(since=10, step=20, rows=1)
    >>> [is_chain(parts) for parts in ([base], [base, delta], [], [delta], [base, base], [base, delta, delta])]
    [True, True, False, False, False, False]
    """
    return (
        bool(parts)
        and parts[0].since is None
        and all(delta.since == base.step <= delta.step for base, delta in pairwise(parts))
    )


def outweighs(parts: Sequence[TablePart], coming: int = 0) -> bool:
    """Return whether the deltas weigh more than half of the base.

    If so, the next checkpoint begins a new base.

    Args:
        parts: a base, and deltas.
        coming: bytes of one more delta.

    So a restore reads at most about one and a half times the table and one delta, and beside the
    deltas one base is written for as many bytes of them as half of it.
    """
    base, *deltas = parts
    return coming + sum(delta.size_bytes for delta in deltas) > _MOST_OF_BASE * base.size_bytes


def oldest_of_both(first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...]:
    """Return which rows are there where both say that they are, as `StoredTable.oldest` has it.

    >>> oldest_of_both((), (5,)), oldest_of_both((3, 7), (5,)), oldest_of_both((3, 7), (1, 2, 3, 9))
    ((5,), (5, 7), (3, 3, 7, 9))
    """
    if not first or not second:
        return first or second
    count = max(len(first), len(second))
    return tuple(
        max(first[index * len(first) // count], second[index * len(second) // count])
        for index in range(count)
    )


def disused(
    files: Iterable[str],
    *,
    named: Collection[str],
    dropped: Collection[str] = (),
    writers: Collection[str] = (),
    at_hand: Collection[str] = (),
) -> list[str]:
    """Return the files of parts that may go, in order.

    Args:
        files: that there are; the name of each begins with its writer's.
        named: by official checkpoints and drafts.
        dropped: what checkpoints named that are gone now: their files are no drafts, whichever
            worker wrote them.
        writers: those that may be about to name their files.
        at_hand: files that this process is about to name.

    >>> there = [f"tables/{name}.safetensors" for name in ("w1-a", "w1-b", "w2-c", "w2-d")]
    >>> disused(there, named=there[:1], dropped=there[2:3], writers=["w2"])
    ['tables/w1-b.safetensors', 'tables/w2-c.safetensors']
    """
    return sorted(
        name
        for name in files
        if name not in named
        and name not in at_hand
        and (name in dropped or _writer_of(name) not in writers)
    )


def _writer_of(name: str) -> str:
    return name.rpartition("/")[2].partition("-")[0]
