"""Parts of tables in storage.

Written from the rows that a checkpoint takes, and read back one file after the other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from brim.domain.table_parts import (
    PartFile,
    StoredFile,
    StoredTable,
    TablePart,
    oldest_of_both,
)
from brim.embeddings.table_file import (
    LARGEST,
    Chunk,
    NumberedRows,
    RowTable,
    are_there,
    from_bytes,
    to_bytes,
)
from brim.errors import EnvironmentFault
from brim.storage.checkpoints import Store


def rows_of_file(table: RowTable) -> int:
    """Return how many rows of a table make a file."""
    return max(1, LARGEST // table.row_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCopy:
    """A table as it was at a step.

    Args:
        count: its rows.
        chain: the parts that it builds on; none where it is a base itself.
        rows: a copy of those that are not in the chain.
        oldest: see `StoredTable`.
    """

    table: RowTable
    step: int
    count: int
    chain: tuple[TablePart, ...]
    rows: Sequence[Chunk]
    oldest: tuple[int, ...] = ()

    def store(self, store: Store, *, writer: str) -> StoredTable:
        """Write the parts that are not in storage yet; raises as `write_part` does."""
        parts = self.chain
        if not parts or any(len(chunk.keys) for chunk in self.rows):
            chunk_rows = rows_of_file(self.table)
            pieces = (
                chunk.rows(start, start + chunk_rows)
                for chunk in self.rows
                for start in range(0, max(1, len(chunk.keys)), chunk_rows)
            )
            base_step = parts[-1].step if parts else None
            delta = write_part(store, pieces, base_step=base_step, step=self.step, writer=writer)
            parts = (*parts, delta)
        return StoredTable(name=self.table.name, rows=self.count, parts=parts, oldest=self.oldest)


def take(
    table: RowTable, chain: tuple[TablePart, ...], *, step: int, oldest: tuple[int, ...] = ()
) -> TableCopy:
    """Copy the changes of a table since a chain of parts; all of it where there is none.

    Args:
        step: committed steps; the table is not written to meanwhile.
        oldest: as the chain has it: rows gone there stay gone.
    """
    chunks = table.chunks(rows_of_file(table))
    rows = [table.changed_since(chain[-1].step)] if chain else list(map(_copy, chunks))
    oldest = oldest_of_both(oldest, table.oldest)
    return TableCopy(
        table=table, step=step, count=table.count, chain=chain, rows=rows, oldest=oldest
    )


def _copy(chunk: Chunk) -> Chunk:
    fields = {name: tensor.detach().clone() for name, tensor in chunk.fields.items()}
    return Chunk(chunk.keys.clone(), fields, chunk.changed.clone())


def store_taken(
    store: Store, copies: Sequence[TableCopy], *, writer: str
) -> tuple[StoredTable, ...]:
    """Write all tables of a checkpoint, or nothing of them; raises as `write_part` does."""
    stored: list[StoredTable] = []
    with given_up(store) as files:
        for copied in copies:
            stored.append(copied.store(store, writer=writer))
            files += new_files(stored[-1], copied.chain)
    return tuple(stored)


def new_files(stored: StoredTable, chain: Sequence[TablePart]) -> list[PartFile]:
    """The files of a table that are not in the chain it builds on."""
    return [file for part in stored.parts[len(chain) :] for file in part.files]


@contextlib.contextmanager
def given_up(store: Store) -> Iterator[list[StoredFile]]:
    """Remove the files of a list again where the block fails.

    A store that is away takes no orders.
    """
    files: list[StoredFile] = []
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
    base_step: int | None,
    step: int,
    writer: str,
    look: Callable[[], None] = lambda: None,
) -> TablePart:
    """Write a part; there is nothing of it where that fails.

    Args:
        rows: of each of its files.
        look: is called behind each file, and may raise to end it.

    Raises:
        EnvironmentFault: the place did not take it.
    """
    files: list[PartFile] = []
    with given_up(store) as new:
        for chunk in rows:
            files.append(store.write_part(to_bytes(chunk), rows=len(chunk.keys), writer=writer))
            new.append(files[-1])
            look()
    return TablePart(
        since=base_step,
        step=step,
        rows=sum(file.rows for file in files),
        files=tuple(files),
    )


def put_table(store: Store, stored: StoredTable, table: RowTable) -> None:
    """Read a table into an empty one; raises as `read_table` does, and then there is some of it."""
    for rows in read_table(store, stored):
        table.put(rows)


def whole_of(store: Store, stored: StoredTable) -> NumberedRows:
    """Read the table of an ordinary embedding into memory of its own.

    Raises as `read_table` does.
    """
    table: NumberedRows | None = None
    for rows in read_table(store, stored):
        if table is None:
            fields = {
                name: tensor.new_empty((stored.rows, *tensor.shape[1:]))
                for name, tensor in rows.fields.items()
            }
            table = NumberedRows(stored.name, fields, torch.empty(stored.rows, dtype=torch.int64))
        table.put(rows)
    if table is None:
        raise EnvironmentFault(f"{stored.name} has no rows")
    return table


def latest(store: Store, stored: StoredTable, field: str) -> tuple[Tensor, Tensor]:
    """Read one field of a table whose keys may be anything; raises as `read_table` does.

    Returns:
        The keys, ascending, and the field's value of each.
    """
    pieces = [(rows.keys, rows.fields[field]) for rows in read_table(store, stored)]
    if not pieces:
        raise EnvironmentFault(f"{stored.name} has no files")
    keys, order = torch.cat([keys for keys, _ in pieces]).sort(stable=True)
    is_last = torch.ones(len(keys), dtype=torch.bool)
    is_last[:-1] = keys[1:] != keys[:-1]
    return keys[is_last], torch.cat([values for _, values in pieces])[order[is_last]]


def read_table(store: Store, stored: StoredTable) -> Iterator[Chunk]:
    """Read the files of a table, base first.

    Rows of later files replace those of earlier ones; rows that have gone are left out.

    One file is in memory and one is being read.

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
            rows = from_bytes(content, path=f"{file.name}, of {stored.name}")
            yield rows.masked(are_there(rows, stored.oldest)) if stored.oldest else rows
