"""Stored rows of large tables that the next checkpoint builds on.

Parts of the last one, new bases, and later changes.

All of it is found, or written, while training goes on. A part may have rows that were read while a
step wrote to them. Each of these is in the next delta: that has all rows which changed since the
part was begun, if that step counts. If it does not, since its round ended over it, the part is
given up with the round. So the parts and the delta that is taken on top of them are the table as it
was then.
"""

from __future__ import annotations

import contextlib
import functools
import os
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import TypeVar

from brim.domain.table_parts import Lineage, StoredFile, StoredTable, TablePart, outweighs
from brim.embeddings.table_file import RowTable
from brim.embeddings.table_parts import given_up, rows_of_file, write_part
from brim.errors import EnvironmentFault
from brim.storage.checkpoints import Store

T = TypeVar("T")
Chains = dict[str, StoredTable]  # by its name
_NICENESS = 10  # training goes first


class _NotNeededError(Exception):
    """A write that is no longer needed."""


class Bases:
    """The chains of parts that deltas are put on top of, as far as the present round knows them.

    Args:
        store: of the job's checkpoints.
        writer: the name of this worker.

    Attributes:
        fault: why the last attempt to write bases failed.
        files: how many were written.
    """

    def __init__(self, store: Store, *, writer: str) -> None:
        self._store, self._writer = store, writer
        self._chains: Chains | None = None  # None: nobody has looked in this round
        self._new: list[StoredFile] = []  # files that no checkpoint was begun on yet
        self._coming: Future[tuple[Chains, list[StoredFile]]] | None = None
        self._is_over = threading.Event()  # for what is coming
        self._round = 0
        self._background = _Background()
        self._lock = threading.Lock()  # the writer's thread tells what became official
        self.fault: EnvironmentFault | None = None
        self.files = 0

    def chain(self, table: RowTable) -> tuple[TablePart, ...]:
        """The parts of a table that a delta can be put on top of; none where there are no such."""
        chain = (self._chains or {}).get(table.name)
        return () if chain is None else chain.parts

    def oldest(self, table: RowTable) -> tuple[int, ...]:
        """Return the rows of a table's chain that are there, as `StoredTable` has it."""
        chain = (self._chains or {}).get(table.name)
        return () if chain is None else chain.oldest

    def are_there(self, tables: Sequence[RowTable]) -> bool:
        """Return whether each of these tables has a chain."""
        return all(self.chain(table) for table in tables)

    def are_light(self, tables: Sequence[RowTable]) -> bool:
        """Return whether each table has a chain whose base is new or outweighs the deltas."""
        chains = [self.chain(table) for table in tables]
        return all(chain and (_is_of(chain, self._new) or not outweighs(chain)) for chain in chains)

    # Coming ---------------------------------------------------------------------------------------

    @property
    def are_coming(self) -> bool:
        """True while chains are being looked for, or bases written.

        It stays so until `look` has seen that they are there.

        True until `look` has seen that they are there.
        """
        return self._coming is not None

    def begin(self, tables: Sequence[RowTable], *, step: int, lineage: Lineage) -> None:
        """Look for chains of tables that have none, and bring them up to date.

        Does nothing while that is under way.

        A table without a chain, or with a heavy one, gets a base; another a delta.

        Args:
            step: committed steps, none of which is being applied.
            lineage: of the state.
        """
        if self._coming is None:
            self.fault, self._is_over = None, threading.Event()
            for table in tables:
                table.follow(step)
            self._coming = self._background.begin(
                functools.partial(
                    self._find, tables, step, lineage, self._chains, tuple(self._new), self._is_over
                )
            )

    def _find(
        self,
        tables: Sequence[RowTable],
        step: int,
        lineage: Lineage,
        chains_before: Chains | None,
        recent: Sequence[StoredFile],
        is_over: threading.Event,
    ) -> tuple[Chains, list[StoredFile]]:
        def look() -> None:
            self.files += 1
            if is_over.is_set():
                raise _NotNeededError

        if chains_before is None:
            found = self._store.tables_of(lineage, at_most=step)
            return self._with_bases(tables, {table.name: table for table in found}, (), step, look)
        with given_up(self._store) as new:
            chains, of_bases = self._with_bases(tables, chains_before, recent, step, look)
            new += of_bases
            for table in tables:
                previous = chains[table.name]
                last = previous.parts[-1].step
                if last < step:
                    rows = table.chunks(rows_of_file(table), since=last)
                    delta = write_part(
                        self._store,
                        rows,
                        base_step=last,
                        step=step,
                        writer=self._writer,
                        look=look,
                    )
                    if delta.files:
                        chains[table.name] = replace(previous, parts=(*previous.parts, delta))
                        new += delta.files
        return chains, new

    def _with_bases(
        self,
        tables: Sequence[RowTable],
        chains_before: Chains,
        recent: Sequence[StoredFile],
        step: int,
        look: Callable[[], None],
    ) -> tuple[Chains, list[StoredFile]]:
        """Return chains, with new bases where a table has none, or deltas outweigh it.

        A base that is recent stays.
        """
        chains = dict(chains_before)
        with given_up(self._store) as new:
            for table in tables:
                previous = chains.get(table.name) or StoredTable(
                    name=table.name, rows=table.count, parts=()
                )
                chain = previous.parts
                if chain and _is_of(chain, recent):
                    continue
                changed = table.row_bytes * table.count_since(chain[-1].step) if chain else 0
                if not chain or outweighs(chain, changed):
                    rows = table.chunks(rows_of_file(table))
                    base = write_part(
                        self._store, rows, base_step=None, step=step, writer=self._writer, look=look
                    )
                    chains[table.name] = replace(previous, parts=(base,))
                    new += base.files
        return chains, new

    def look(self) -> bool:
        """Take the results of the search and the writes, if they are there.

        It may not be called while a step is applied, or a checkpoint written.

        A step that wrote to rows while they were read counts by now; and rows undone from here on
        were not read.
        """
        if self._coming is None or not self._coming.done():
            return False
        coming, self._coming = self._coming, None
        try:
            self._chains, new = coming.result()
            self._new += new
        except EnvironmentFault as fault:
            self.fault = fault
        return True

    # Beginning and end ----------------------------------------------------------------------------

    def know(self, tables: Sequence[StoredTable] | None, *, round: int | None = None) -> None:
        """Learn the official state.

        Args:
            tables: None where a checkpoint failed: its base may be gone.
            round: in which that was so: see `hand_over`; None: this one.
        """
        with self._lock:
            if round is None or round == self._round:
                self._chains = None if tables is None else {table.name: table for table in tables}

    def hand_over(self) -> tuple[int, list[StoredFile]]:
        """Begin a checkpoint on the chains.

        Return the number of the round, and the files that are its own to give up.
        """
        new, self._new = self._new, []
        return self._round, new

    def forget(self) -> None:
        """End the round.

        Others may write checkpoints now, and remove files that one from here would build on.
        """
        with self._lock:
            self._round += 1
            self._chains = None
        coming, self._coming = self._coming, None
        self._is_over.set()
        if coming is not None:
            self._background.begin(lambda: self._drop_what_comes(coming))
        if self._new:
            _, new = self.hand_over()
            self._background.begin(lambda: self._drop(new))

    def _drop_what_comes(self, coming: Future[tuple[Chains, list[StoredFile]]]) -> None:
        if coming.exception() is None:
            self._drop(coming.result()[1])

    def _drop(self, files: Sequence[StoredFile]) -> None:
        with contextlib.suppress(EnvironmentFault):  # they are drafts then
            self._store.give_up(files)

    def close(self, timeout: float) -> None:
        """Forget all, and wait until nothing is left to remove."""
        self.forget()
        with contextlib.suppress(TimeoutError):  # it is left as drafts are
            self._background.begin(lambda: None).result(timeout)


def _is_of(chain: Sequence[TablePart], files: Sequence[StoredFile]) -> bool:
    """Return whether the base of a chain is among these files."""
    return any(file in files for file in chain[0].files[:1])


class _Background:
    """A thread of low priority for one task after the other.

    The process's end does not wait for it.
    """

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def begin(self, task: Callable[[], T]) -> Future[T]:
        """Begin a task, behind those that were begun before."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(task())
            except Exception as error:  # noqa: BLE001 - it is for the caller
                future.set_exception(error)

        self._tasks.put(run)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="brim-base", daemon=True)
            self._thread.start()
        return future

    def _run(self) -> None:
        with contextlib.suppress(
            OSError, AttributeError
        ):  # a thread has a priority of its own on Linux
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        while True:
            self._tasks.get()()
