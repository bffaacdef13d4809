"""A worker's checkpoints: when one is due, the copy that is taken for it, and resuming.

Training sees the copy and nothing else: storing, the master's permission and tidying up are the
writer's.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor, nn

import brim
from brim.domain.job import JobSpec
from brim.domain.table_parts import Lineage, StoredTable
from brim.embeddings.bases import Bases
from brim.embeddings.table_file import NumberedRows, RowTable
from brim.embeddings.table_parts import put_table, take, whole_of
from brim.embeddings.tables.tree import PLACES, TABLES
from brim.errors import EnvironmentFault, SpecError
from brim.host.clock import SystemClock, monotonic
from brim.storage.checkpoints import Checkpoint, Store
from brim.storage.file_stores import FileStore, Remote, location_of, open_place
from brim.storage.heir import succession
from brim.train.asynchronous.turn import Asynchrony
from brim.train.context import WorkerContext
from brim.train.membership import LookAhead
from brim.train.state.checkpoint import Image, StateCopy, state_of
from brim.train.state.flattening import flatten
from brim.train.state.frozen import FrozenCopy, FrozenTensors, candidates_of
from brim.train.state.job_state import TrainingState
from brim.train.state.writer import TakenTables, Writer, write_draft
from brim.wire.messages import Publish, Warn, WorkerMessage
from brim.wire.run_files import SCHEME, RunFiles, split_place

_SHORT, _LONG = (
    2.0,
    90.0,
)  # seconds that a write under way is waited for: at the end of an epoch, of the job
_POLL_INTERVAL = 0.01
_TO_DIE = 10.0  # seconds until the kernel has ended the others of an heir's host
_SMALL = 64 << 20  # bytes of a table that is copied whole, as all else is
_MAX_SMALL_ROWS = 1 << 16  # rows of one that is, where each must be looked for
_MAX_DELTA_BYTES = 16 << 20  # bytes of changed rows that training waits for
# how often what changed meanwhile is written in the background before training waits for the rest
_PASSES = 3


class Checkpoints:
    """The checkpoints of a job as one of its workers takes part in them.

    Args:
        state: of the job on this worker.
        spec: of the job.
        context: the worker's place among others; a process by itself leaves checkpoints to its
            script.
        tell: sends a message to the master, from any thread.
        listen: hears the master for so many seconds, without leaving what this thread is at.

    Attributes:
        asynchrony: this worker's part in asynchronous training, or None.
        wants_ahead: what comes next can be noted in the state before that is written, and is not.
    """

    def __init__(
        self,
        state: TrainingState,
        spec: JobSpec,
        *,
        context: WorkerContext | None,
        tell: Callable[[WorkerMessage], None],
        listen: Callable[[float], None],
    ) -> None:
        self.state, self._spec, self._tell, self._listen = state, spec, tell, listen
        self._image = Image()
        self._frozen = FrozenTensors()
        self._copy: StateCopy | None = None
        self._last = monotonic()
        self._warned_of: int | None = None
        self._store: Store | None = None
        self._writer: Writer | None = None
        self._bases: Bases | None = None  # where there is a writer
        self._is_owed = False  # a checkpoint that was due before its bases were there
        self._passes = 0  # for the next checkpoint
        self.asynchrony: Asynchrony | None = None
        self.wants_ahead = False
        self._secret = context.secret if context is not None else b""
        if context is not None:
            self.keep_in(location_of(spec.checkpoints, context.run_dir), writer=context.worker)

    def keep_in(self, location: str, *, writer: str) -> None:
        """Set the place of checkpoints, and this worker's name."""
        place = self._open(location)
        self._store = Store(place)
        self._writer = Writer(self._store, name=writer, spec=self._spec, tell=self._tell)
        self._bases = Bases(self._store, writer=writer)
        self._frozen = FrozenTensors()

    def _open(self, location: str) -> FileStore:
        def warn(text: str) -> None:
            self._tell(Warn(message=text))

        if not location.startswith(SCHEME):
            return open_place(location, warn=warn)
        address, path = split_place(location)
        return Remote(RunFiles(address, self._secret), "", path, warn=warn)

    def catch_up(self, recorded: int) -> None:
        """Restore the state after the last step on record, where another worker made it."""
        if self.asynchrony is not None:
            self.asynchrony.catch_up(recorded)

    def permit(self, answer: Publish) -> None:
        """The master's answer to a draft."""
        assert self._writer is not None, "who has no writer has no drafts"
        self._writer.permit(answer)

    # Writing --------------------------------------------------------------------------------------

    def is_due(self, step: int) -> bool:
        """Return whether a checkpoint is due behind this step, by this worker's clock."""
        if self._writer is None:
            return False
        self._look_at_bases()
        if self._is_owed and self._bases is not None:
            return not self._bases.are_coming
        return self._spec.checkpoint_every.is_due(step, monotonic() - self._last)

    def is_due_at_epochs_end(self) -> bool:
        """True if the end of each epoch has a checkpoint.

        Its metrics are those of that state.
        """
        interval = self._spec.checkpoint_every
        return bool(self._spec.keep_best) or not (interval.steps or interval.seconds)

    def begin(self, *, ends_epoch: bool) -> None:
        """Copy the state and have it written.

        At an epoch's end, wait for a short time for another write to end.

        The copy goes on beside what follows. Who changes parameters, or what an optimizer keeps of
        them, calls `await_copy` before.
        """
        self._begin(
            patience=_SHORT if ends_epoch else 0.0, exact=ends_epoch and bool(self._spec.keep_best)
        )

    def _begin(self, *, patience: float, needed: bool = False, exact: bool = False) -> None:
        """Copy the state and have it written.

        Leave the checkpoint out where another write is under way for too long.

        Args:
            needed: nothing goes on before it is written.
            exact: one of a later step will not do.
        """
        if self._writer is None:
            return
        self._settle(patience)
        step, busy = self.state.committed, self._writer.in_flight
        if busy is not None:
            if busy != self._warned_of:
                self._warned_of = busy
                text = f"no checkpoint at step {step}: that of step {busy} is still being written"
                self._tell(Warn(message=text))
            return
        if not self._has_bases(patience, needed=needed, exact=exact):
            self._is_owed = self._bases is not None and self._bases.are_coming
            return
        self._is_owed, self._passes = False, 0
        self._last = monotonic()
        checkpoint, self._copy, tables = self._take()
        self._writer.start(
            checkpoint,
            copy=self._copy,
            tables=tables,
            needed=needed,
            unsound_since=self.state.unsound_since,
        )

    def _take(self) -> tuple[Checkpoint, StateCopy, TakenTables]:
        """Begin to copy the state.

        Return a checkpoint without its tensors, these once they are copied, and its tables.
        """
        started, step = monotonic(), self.state.committed
        tables = self._take_tables(step)
        state = self.state.get()
        frozen = FrozenCopy(self._frozen, candidates_of(state["model"]))
        tree, copied = self._image.begin(state, steady=_steady(state), frozen=frozen)
        checkpoint = Checkpoint(
            step=step,
            tree=tree,
            versions={"brim": brim.__version__, "torch": str(torch.__version__)},
            data=b"",  # comes with the copy
            written_at=SystemClock().wall(),
            metrics=self.state.metrics if self.state.measured == step else {},
            lineage=self.state.lineage.id,
        )
        copy = StateCopy(copied, frozen=frozen, pause=monotonic() - started)
        return checkpoint, copy, tables

    # Tables ---------------------------------------------------------------------------------------

    def _take_tables(self, step: int) -> TakenTables:
        """Copy the changes of the tables since storage; all of those that are small."""
        bases = self._bases
        assert bases is not None, "who has no writer takes nothing"
        copies = []
        for table in self.state.tables:
            if _is_small(table):
                copies.append(take(table, (), step=step))
            else:
                copies.append(
                    take(table, bases.chain(table), step=step, oldest=bases.oldest(table))
                )
                table.follow(step)
        round, new = bases.hand_over()
        return TakenTables(
            copies=copies, new=new, on_end=lambda tables: bases.know(tables, round=round)
        )

    def _has_bases(self, patience: float, *, needed: bool, exact: bool) -> bool:
        """Return whether the large tables' chains are there for a checkpoint; else begin them.

        Raises:
            EnvironmentFault: it is needed, and the place did not take it.
        """
        assert self._bases is not None, "who has no writer has no checkpoints"
        bases, large = self._bases, [table for table in self.state.tables if not _is_small(table)]
        self._look_at_bases()
        for _ in range(
            2 if needed else 1
        ):  # first to look for chains, then to bring them up to date
            if self._is_ready(large, needed=needed, exact=exact):
                break
            self._passes += not bases.are_coming
            bases.begin(large, step=self.state.committed, lineage=self.state.lineage)
            # Nothing is written meanwhile where it is needed: so the wait is for as long as files
            # come.
            self._await_bases(patience, renewed=needed)
        if needed and bases.fault is not None and not bases.are_there(large):
            raise bases.fault
        return bases.are_there(large) and (needed or exact or not bases.are_coming)

    def _is_ready(self, tables: Sequence[RowTable], *, needed: bool, exact: bool) -> bool:
        """Return whether a checkpoint should be taken on top of the chains that are there."""
        assert self._bases is not None, "who has no writer has no checkpoints"
        if exact or not tables:
            return self._bases.are_light(tables)
        if not (self._bases.are_there(tables) if needed else self._bases.are_light(tables)):
            return False
        if self._passes >= _PASSES and not needed:
            return True  # as much changes as is written
        chains = [(table, self._bases.chain(table)[-1].step) for table in tables]
        if not needed and not all(table.follows(step) for table, step in chains):
            return False  # looking through all rows would take the longer the more there are
        return (
            sum(table.row_bytes * table.count_since(step) for table, step in chains)
            <= _MAX_DELTA_BYTES
        )

    def _await_bases(self, patience: float, *, renewed: bool) -> None:
        assert self._bases is not None, "who has no writer has no checkpoints"
        files, deadline = -1, 0.0
        while self._bases.are_coming and not self._look_at_bases():
            if files < 0 or (renewed and files != self._bases.files):
                files, deadline = self._bases.files, monotonic() + patience
            if monotonic() >= deadline:
                return
            self._listen(_POLL_INTERVAL)

    def _look_at_bases(self) -> bool:
        """Return whether bases for checkpoints have just come, or have failed."""
        assert self._writer is not None, "who has no writer has no checkpoints"
        if self._bases is None or self._writer.in_flight is not None or not self._bases.look():
            return False
        if (
            self._bases.fault is not None
        ):  # as one that cannot be written: the next is tried when it is due
            self._is_owed, self._last = False, monotonic()
            self._tell(Warn(message=f"{self._bases.fault}; training goes on without a checkpoint"))
        return True

    def end_round(self) -> None:
        """Others may write checkpoints from here on, and steps may be undone."""
        self._passes = 0
        if self._bases is not None:
            self._bases.forget()

    def await_copy(self) -> None:
        """The state is about to change: wait until a checkpoint that was begun has all of it."""
        if self._copy is not None:
            self._copy.wait()
            self._copy = None

    def _settle(self, patience: float) -> bool:
        """Wait until nothing is being written, and hear the master meanwhile; whether it is so."""
        deadline = monotonic() + patience
        while self._writer is not None and self._writer.in_flight is not None:
            if monotonic() >= deadline:
                return False
            self._listen(_POLL_INTERVAL)
        return True

    def now(self, *, ahead: bool = False) -> None:
        """Write a checkpoint of this very state.

        It is official when this returns.

        Args:
            ahead: what comes next is noted in it first, where that can be.

        Raises:
            LookAhead: that is to be done now.
            EnvironmentFault: the place did not take it, or the master did not permit it.
        """
        if self._writer is None or self._has_this_state():
            return
        if ahead and self.wants_ahead:
            raise LookAhead
        self._take_back()
        self._begin(patience=_LONG, needed=True)
        self.await_copy()
        self._settle(_LONG)
        if not self._has_this_state():
            raise self._writer.fault or EnvironmentFault(
                f"no checkpoint at step {self.state.committed}: it was not written in {_LONG:.0f} s"
            )

    def _take_back(self) -> None:
        """Undo the writes to tables for a step that does not count.

        A reader may have read it.
        """
        if self._bases is not None and self._bases.are_coming:
            self._bases.forget()
        self.state.take_back()

    def _has_this_state(self) -> bool:
        """Return whether the present state was made official here, or is being so."""
        self._settle(_LONG)
        return self._writer is not None and self._writer.official == self.state.committed

    def leave(self) -> None:
        """Store this very state as the draft of an heir.

        `restore` of the next life may go on from it.

        Raises:
            EnvironmentFault: the place did not take it.
        """
        if self._writer is None or self._store is None:
            return
        self._writer.give_up()
        # All others are being killed, maybe in the midst of an update: this one is the first to
        # hear of the end.
        self.state.be_alone(_TO_DIE)
        if (
            self._settle(_LONG) and not self._has_this_state()
        ):  # else it looks at what would be written over
            self._take_back()
            if not self._has_bases(_LONG, needed=True, exact=False):
                raise EnvironmentFault(f"the tables of step {self.state.committed} are not written")
            checkpoint, copy, tables = self._take()
            write_draft(self._store, checkpoint, copy=copy, tables=tables, writer=_heir())

    def drain(self) -> None:
        """Finish the writes under way, before this worker leaves."""
        if not self._settle(_LONG):
            assert self._writer is not None
            self._tell(Warn(message=f"the checkpoint of step {self._writer.in_flight} is given up"))
        if self._bases is not None:
            self._bases.close(_LONG)

    # Restoring ------------------------------------------------------------------------------------

    def restore(self, recorded: int | None = None) -> tuple[str, list[str]]:
        """Take the newest sound checkpoint, or stay as at the start where there never was one.

        The worker that restores is the only writer: the master names such a round when all who had
        the state are gone. So every draft that is found is a dead writer's; that of an heir has
        nobody's permission, and needs none.

        Args:
            recorded: the last step that is on record, which this must not go beyond; None where
                nothing is.

        Returns:
            Where the checkpoint is, or nothing; and the problems of newer ones.

        Raises:
            SpecError: there are checkpoints, and all are damaged.
            EnvironmentFault: the place does not answer.
        """
        if self._store is None or self._writer is None:
            self.state.start()
            return "", []
        if recorded is not None and succession():
            self._store.adopt(_heir(), at_most=recorded)
        found, problems = self._store.newest_sound(at_most=recorded, take=self._put_tables)
        if found is None and problems:
            raise SpecError(
                self._store.location(),
                got="only damaged checkpoints: " + "; ".join(problems),
                need="an intact one",
                hint="restore the files, or start again in another --run-dir",
            )
        with contextlib.suppress(
            EnvironmentFault
        ):  # they only take space, and go with the next write
            self._store.tidy()
        assert self._bases is not None, "who has a writer has bases"
        if found is None:
            self.state.start()
            self._bases.know(())
            self.state.lineage = Lineage(id=uuid.uuid4().hex)
            return "", []
        lineage = Lineage(id=uuid.uuid4().hex, parent=found.lineage, parent_step=found.step)
        tree = {**state_of(found), "lineage": asdict(lineage)}
        if not self._has_tables_of(found):
            tree[TABLES] = self._read_tables(found, tree.get(PLACES, {}))
        self.state.put(tree)
        self.state.keep_tables()
        self._bases.know(found.tables)
        self._frozen.know(found.frozen)
        self._writer.official = found.step
        return self._store.location(found.step), problems

    def _of_networks(self, checkpoint: Checkpoint) -> list[StoredTable]:
        """The tables of a checkpoint that a network without tables would have as weights."""
        keyed = {table.name for table in self.state.tables if not isinstance(table, NumberedRows)}
        return [
            table for table in checkpoint.tables if table.name not in keyed and not table.oldest
        ]

    def _has_tables_of(self, checkpoint: Checkpoint) -> bool:
        """Return whether this job has the same tables as a checkpoint.

        Only those count that could be weights.
        """
        names = {table.name for table in self.state.tables if isinstance(table, NumberedRows)}
        return {table.name for table in self._of_networks(checkpoint)} == names

    def _put_tables(self, checkpoint: Checkpoint) -> None:
        """Read the rows of tables into place, file by file.

        Where one is damaged, those of an older one follow.
        """
        assert self._store is not None, "what is read comes from there"
        missing = sorted(self.state.keyed - {table.name for table in checkpoint.tables})
        if missing:
            raise SpecError(
                f"embedding {', '.join(repr(name.removesuffix('.weight')) for name in missing)}",
                got=f"no rows in {self._store.location(checkpoint.step)}",
                need="the embeddings that the run began with",
                hint="start again in another --run-dir",
            )
        self.state.clear_tables()
        tables: dict[str, RowTable] = {table.name: table for table in self.state.tables}
        # Where it was made by other options, or an older brim, what are weights there or here goes
        # through a state.
        as_weights = [] if self._has_tables_of(checkpoint) else self._of_networks(checkpoint)
        for stored in checkpoint.tables:
            if stored.name in tables and stored not in as_weights:
                put_table(self._store, stored, tables[stored.name])
        self._store.check(replace(checkpoint, tables=tuple(as_weights)))

    def _read_tables(self, checkpoint: Checkpoint, places: Mapping[str, Any]) -> dict[str, Any]:
        """Read those tables of a checkpoint that could be weights, whole, as a part of a state."""
        assert self._store is not None, "what is read comes from there"
        found = {}
        for stored in self._of_networks(checkpoint):
            table = whole_of(self._store, stored)
            found[stored.name] = {
                "at": places[stored.name],
                "fields": table.fields,
                "changed": table.changed,
            }
        return found


def _is_small(table: RowTable) -> bool:
    is_few = isinstance(table, NumberedRows) or table.count < _MAX_SMALL_ROWS
    return is_few and table.count * table.row_bytes < _SMALL


def _heir() -> str:
    """The name by which heirs of this start of the run write."""
    return f"heir_{succession()}"


def _steady(state: Mapping[str, Any]) -> list[Tensor]:
    """Return the tensors that only a step's end changes: parameters and optimizers' states.

    Forward changes buffers.
    """
    optimizers = (
        state["optimizer"] if isinstance(state["optimizer"], list) else [state["optimizer"]]
    )
    tensors = flatten([optimizer.get("state", {}) for optimizer in optimizers])[1]
    return [value for value in state["model"].values() if isinstance(value, nn.Parameter)] + tensors
