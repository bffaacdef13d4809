"""Writes checkpoints behind the training loop's back.

One at a time, official once the master permits it.

A draft is stored first. Then the master is asked, and it answers once it has every commit that led
there: so no checkpoint is ahead of the records, whichever process dies in between. Only then the
draft becomes official.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from brim.domain.job import JobSpec
from brim.domain.table_parts import StoredFile, StoredTable
from brim.embeddings.table_parts import TableCopy, given_up, new_files, store_taken
from brim.errors import EnvironmentFault
from brim.host.clock import monotonic
from brim.storage.checkpoints import Checkpoint, Draft, Store
from brim.train.state.checkpoint import StateCopy
from brim.wire.messages import (
    CheckpointDrafted,
    CheckpointMade,
    Publish,
    Warn,
    WorkerMessage,
    failure_of,
)

_ASK_AGAIN = 20.0  # seconds without an answer
_NICENESS = 10  # training goes first


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenTables:
    """The tables of a checkpoint.

    Args:
        copies: of each, what is not in storage.
        new: files that were written for these, and that nothing else names.
        on_end: is told by the writer's thread what they consist of, once the checkpoint is
            official; None: it failed.
    """

    copies: Sequence[TableCopy] = ()
    new: Sequence[StoredFile] = ()
    on_end: Callable[[tuple[StoredTable, ...] | None], None] = lambda tables: None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    checkpoint: Checkpoint
    copy: StateCopy
    tables: TakenTables
    needed: bool
    unsound_since: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenDraft:
    """A draft, the checkpoint that it has, and the shared files that were written for it."""

    draft: Draft
    checkpoint: Checkpoint
    new: Sequence[StoredFile]


def write_draft(
    store: Store, checkpoint: Checkpoint, *, copy: StateCopy, tables: TakenTables, writer: str
) -> WrittenDraft:
    """Store a checkpoint with its tables and frozen tensors, or nothing of it.

    Args:
        store: takes it.
        checkpoint: without tensors.
        copy: of these.
        tables: that are not among them.
        writer: in whose name.

    Raises:
        EnvironmentFault: the place did not take it.
    """
    data = copy.data()
    with given_up(store) as new:
        new += tables.new
        stored = store_taken(store, tables.copies, writer=writer)
        for table, copied in zip(stored, tables.copies, strict=True):
            new += new_files(table, copied.chain)
        frozen = copy.frozen.store(store, writer=writer, new=new)
        whole = replace(checkpoint, data=data, tables=stored, frozen=frozen)
        return WrittenDraft(draft=store.draft(whole, writer=writer), checkpoint=whole, new=new)


class Writer:
    """The writer of one worker; its thread starts with the first checkpoint.

    Args:
        store: of the job's checkpoints.
        name: of the worker.
        spec: says which checkpoints are kept.
        tell: sends a message to the master; safe from any thread.
    """

    def __init__(
        self, store: Store, *, name: str, spec: JobSpec, tell: Callable[[WorkerMessage], None]
    ) -> None:
        self._store, self._name, self._spec, self._tell = store, name, spec, tell
        self._orders: queue.SimpleQueue[_Order] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Publish | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self.in_flight: int | None = None  # the step of the checkpoint that is being written
        self.official: int | None = (
            None  # the step of the last one that this worker knows to be official
        )
        self.fault: EnvironmentFault | None = None  # why the last one was not

    def start(
        self,
        checkpoint: Checkpoint,
        *,
        copy: StateCopy,
        tables: TakenTables | None = None,
        needed: bool,
        unsound_since: int | None = None,
    ) -> None:
        """Begin to write; its bytes must stay as they are until `in_flight` is None.

        Args:
            copy: of the tensors; it may be under way.
            tables: that are not among these tensors.
            needed: the caller looks at `fault`; else a failure is a warning.
            unsound_since: the step since which losses are no numbers: the newest checkpoint before
                it is kept.
        """
        assert self.in_flight is None, "one at a time"
        self.in_flight, self.fault = checkpoint.step, None
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="brim-checkpoint", daemon=True)
            self._thread.start()
        self._orders.put(
            _Order(
                checkpoint=checkpoint,
                copy=copy,
                tables=tables or TakenTables(),
                needed=needed,
                unsound_since=unsound_since,
            )
        )

    def permit(self, answer: Publish) -> None:
        """The master's answer to a draft."""
        self._answers.put(answer)

    def give_up(self) -> None:
        """Leave the unfinished write a draft: no permission comes any more."""
        self._answers.put(None)

    def _run(self) -> None:
        with contextlib.suppress(
            OSError, AttributeError
        ):  # a thread has a priority of its own on Linux
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        while True:
            order = self._orders.get()
            try:
                self._write(order)
            except EnvironmentFault as fault:
                self.fault = fault
                order.copy.frozen.end(None)
                order.tables.on_end(None)
                if not order.needed:
                    self._tell(Warn(message=f"{fault}; training goes on without it"))
            except Exception as error:
                self._tell(failure_of(error))  # or everyone would wait for what is in flight
                raise
            del order  # with the rows that were taken for it
            self.in_flight = None

    def _write(self, order: _Order) -> None:
        order.copy.data()  # may take long, and is no part of the write
        started = monotonic()
        written = write_draft(
            self._store, order.checkpoint, copy=order.copy, tables=order.tables, writer=self._name
        )
        draft, checkpoint, new = written.draft, written.checkpoint, written.new
        try:
            answer = self._permission(draft)
            path = self._store.publish(draft)
        except EnvironmentFault:
            self._store.give_up(new, remove=False)  # it may be official: nobody can tell
            raise
        named: set[StoredFile] = {file for table in checkpoint.tables for file in table.files}
        named |= {part.file for part in checkpoint.frozen}
        with contextlib.suppress(EnvironmentFault):  # the next checkpoint removes them
            self._store.give_up(file for file in new if file not in named)
        self.official = draft.step
        order.copy.frozen.end(checkpoint.frozen)
        order.tables.on_end(checkpoint.tables)
        self._tell(
            CheckpointMade(
                step=draft.step,
                path=path,
                size_bytes=len(checkpoint.data) + sum(file.size_bytes for file in new),
                seconds=monotonic() - started,
                pause=order.copy.pause,
            )
        )
        try:
            rivals = set(answer.writers) - {self._name}
            keep, best = self._spec.keep, self._spec.keep_best
            self._store.prune(
                keep=keep,
                best=best,
                writers=rivals,
                newest=draft.step,
                unsound_since=order.unsound_since,
            )
        except EnvironmentFault as fault:
            self._tell(Warn(message=f"old checkpoints are not removed: {fault}"))

    def _permission(self, draft: Draft) -> Publish:
        while True:
            self._tell(CheckpointDrafted(step=draft.step))
            with contextlib.suppress(queue.Empty):
                while True:
                    answer = self._answers.get(timeout=_ASK_AGAIN)
                    if answer is None:
                        raise EnvironmentFault("the agent of this worker is gone")
                    if answer.step == draft.step:  # else it was asked for twice
                        return answer
