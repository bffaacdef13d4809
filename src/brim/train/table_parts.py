"""Parts of tables in storage: written from the rows that a checkpoint takes, and read back one file after the other."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from brim.domain.table_parts import Part, PartFile, StoredTable
from brim.errors import EnvironmentFault
from brim.storage.checkpoints import Store
from brim.train.table_file import LARGEST, Chunk, NumberedRows, RowTable, from_bytes, to_bytes

__all__ = [
    "Taken",
    "given_up",
    "new_files",
    "put_table",
    "read_table",
    "rows_of_file",
    "store_taken",
    "take",
    "whole_of",
    "write_part",
]


def rows_of_file(table: RowTable) -> int:
    """How many rows of a table make a file."""
    return max(1, LARGEST // table.row_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A table as it was at a step.

    Args:
        count: its rows.
        chain: the parts that it builds upon; none where it is a base itself.
        rows: a copy of those that are not in the chain.
        removed: keys that are, and are no more.
    """

    table: RowTable
    step: int
    count: int
    chain: tuple[Part, ...]
    rows: Sequence[Chunk]
    removed: Tensor | None

    def store(self, store: Store, *, writer: str) -> StoredTable:
        """Write what is not in storage yet; raises as `write_part` does."""
        parts = self.chain
        if not parts or self.removed is not None or any(len(each.keys) for each in self.rows):
            most = rows_of_file(self.table)
            pieces = (
                each.rows(start, start + most)
                for each in self.rows
                for start in range(0, len(each.keys), most)
            )
            since = parts[-1].step if parts else None
            own = write_part(store, pieces, since=since, step=self.step, removed=self.removed, writer=writer)
            parts = (*parts, own)
        return StoredTable(name=self.table.name, rows=self.count, parts=parts)


def take(table: RowTable, chain: tuple[Part, ...], *, step: int) -> Taken:
    """Copy what changed in a table since a chain of parts; all of it where there is none.

    Args:
        step: committed steps; nobody may write to the table meanwhile.
    """
    rows: list[Chunk] = []
    removed = None
    if chain:
        rows.append(table.changed_since(chain[-1].step))
        gone = table.removed_since(chain[-1].step)
        removed = gone if len(gone) else None
    else:
        rows += map(_copy, table.chunks(rows_of_file(table)))
    return Taken(table=table, step=step, count=table.count, chain=chain, rows=rows, removed=removed)


def _copy(chunk: Chunk) -> Chunk:
    fields = {name: each.detach().clone() for name, each in chunk.fields.items()}
    return Chunk(chunk.keys.clone(), fields, chunk.changed.clone())


def store_taken(store: Store, taken: Sequence[Taken], *, writer: str) -> tuple[StoredTable, ...]:
    """Write all tables of a checkpoint, or nothing of them; raises as `write_part` does."""
    stored: list[StoredTable] = []
    with given_up(store) as files:
        for each in taken:
            stored.append(each.store(store, writer=writer))
            files += new_files(stored[-1], each.chain)
    return tuple(stored)


def new_files(stored: StoredTable, chain: Sequence[Part]) -> list[PartFile]:
    """The files of a table that are not in the chain it builds upon."""
    return [file for part in stored.parts[len(chain) :] for file in part.files]


@contextlib.contextmanager
def given_up(store: Store) -> Iterator[list[PartFile]]:
    """Remove the files of a list again where what is within fails; a store that is away takes no orders."""
    files: list[PartFile] = []
    try:
        yield files
    except BaseException as error:
        is_away = isinstance(error, EnvironmentFault) and error.retryable
        with contextlib.suppress(EnvironmentFault):
            store.give_up(files, remove=not is_away)
        raise


def write_part(
    store: Store,
    rows: Iterable[Chunk],
    *,
    since: int | None,
    step: int,
    writer: str,
    removed: Tensor | None = None,
    look: Callable[[], None] = lambda: None,
) -> Part:
    """Write a part; there is nothing of it where that fails.

    Args:
        rows: of each of its files.
        look: is called behind each file, and may raise to end it.

    Raises:
        EnvironmentFault: the place did not take it.
    """
    with given_up(store) as files:
        if removed is not None:
            files.append(store.write_part(to_bytes(removed), rows=0, writer=writer))
        for each in rows:
            files.append(store.write_part(to_bytes(each), rows=len(each.keys), writer=writer))
            look()
    return Part(
        since=since,
        step=step,
        rows=sum(each.rows for each in files),
        removed=0 if removed is None else len(removed),
        files=tuple(files),
    )


def put_table(store: Store, stored: StoredTable, table: RowTable) -> None:
    """Read a table into place; raises as `read_table` does, and then it is neither what it was nor what was stored."""
    table.clear()
    for content in read_table(store, stored):
        if isinstance(content, Chunk):
            table.put(content)
        else:
            table.remove(content)


def whole_of(store: Store, stored: StoredTable) -> NumberedRows:
    """Read the table of an ordinary embedding into memory of its own; raises as `read_table` does."""
    table: NumberedRows | None = None
    for content in read_table(store, stored):
        if not isinstance(content, Chunk):
            raise EnvironmentFault(f"{stored.name} is no ordinary embedding: rows of it were removed")
        if table is None:
            fields = {
                name: each.new_empty((stored.rows, *each.shape[1:])) for name, each in content.fields.items()
            }
            table = NumberedRows(stored.name, fields, torch.empty(stored.rows, dtype=torch.int64))
        table.put(content)
    if table is None:
        raise EnvironmentFault(f"{stored.name} has no rows")
    return table


def read_table(store: Store, stored: StoredTable) -> Iterator[Chunk | Tensor]:
    """Read the files of a table, base first: rows, which replace those of files before, or keys that were removed.

    One file is at hand and one is being read.

    Raises:
        EnvironmentFault: a file is missing or damaged; the message names it.
    """
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="brim-read") as reader:
        coming = [(file, reader.submit(store.read_part, file)) for file in stored.files[:1]]
        for following in (*stored.files[1:], None):
            if not coming:
                return
            file, data = coming.pop()
            content = data.result()
            if following is not None:
                coming.append((following, reader.submit(store.read_part, following)))
            yield from_bytes(content, where=f"{file.name}, of {stored.name}")
