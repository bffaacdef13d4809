"""Moves slices of gradients between workers and folds them along the canonical tree.

Which blocks exist and how they fold is `coordination/job/reduction.py`; this only moves and adds. On
one host the blocks lie in memory that all its workers share: each rank folds its slice of them in
place, into a shared result. Between hosts, each host first folds what its own workers share; then
the first worker of every host trades slices with the others over TCP (`train/exchange/trade.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Protocol

import torch
from torch import Tensor

from brim.coordination.job.reduction import Block, ReductionPlan, fold
from brim.embeddings.paces import Paces
from brim.embeddings.rows import GradientRows, OwnedRows, fold_rows, rows_between
from brim.embeddings.tables.keyed_table import partitions_of
from brim.embeddings.tables.keys import BITS
from brim.errors import InternalError
from brim.train.exchange.accumulate import Contribution, combine
from brim.train.exchange.layout import RowPiece
from brim.train.exchange.shelf import ReadyPieces, Shelf
from brim.train.exchange.trade import Trade


class Exchange(Protocol):
    """The way in which the members of one round combine their contributions."""

    @property
    def rows(self) -> dict[Block, list[Tensor]]:
        """Return the memory of this rank's blocks.

        Empty where they need not go anywhere.
        """
        ...

    @property
    def shares_result(self) -> bool:
        """True if others read the result too, so that it must not be written to."""
        ...

    def put_rows(self, blocks: Mapping[Block, Sequence[GradientRows]]) -> None:
        """Take the embeddings' rows that this rank's blocks have, before the step is reduced."""
        ...

    def rows_total(self) -> Sequence[GradientRows]:
        """Return the rows of each embedding, summed over all micro-batches.

        Call it once all members have passed the last of `stages`.

        Only of a job that clips gradients or delays changes, and of one worker alone: others do not
        need all of them.
        """
        ...

    def rows_owned(self) -> Sequence[OwnedRows]:
        """Return the rows of each embedding that this worker applies, out of these.

        Call it when `rows_total` may be called.
        """
        ...

    def owned_of(self, total: Sequence[GradientRows]) -> Sequence[OwnedRows]:
        """Return the part that this worker applies of other rows, which all members have alike."""
        ...

    @property
    def pieces(self) -> Sequence[RowPiece]:
        """Return the pieces that may be reported ready one by one; empty where unused."""
        ...

    def begin(self, step: int) -> None:
        """Begin a step: pieces may be taken from now on as they are ready."""
        ...

    def have_ready(self, step: int, count: int, *, void: bool = False) -> None:
        """Say that the first so many pieces of this rank's blocks are in their rows.

        Args:
            step: that they are of.
            count: how many.
            void: some were changed after they had been said to be ready; then all are.
        """
        ...

    @property
    def stages(self) -> Sequence[str]:
        """Points of a step at which all workers of a host stand before `add` is called for them.

        Before the first of them, each has said that all of its pieces are ready.
        """
        ...

    def add(self, stage: str, step: int) -> None:
        """Add up the available sums once all stand at this point of a step.

        Raises:
            Interrupted, PeerLost: another member is gone, or the agent spoke.
        """
        ...

    def total(self, contribution: Contribution) -> Contribution:
        """The sum over all micro-batches; complete once all members have arrived at the commit.

        Args:
            contribution: this rank's only block, where blocks have no rows; else empty.

        Raises:
            Interrupted, PeerLost: as `add`.
        """
        ...

    def fetch(self, total: Contribution) -> Contribution:
        """Return the total on the network's device, once all members have arrived at the commit."""
        ...

    def took(self, seconds: float) -> None:
        """Note how long this worker's part of the rows of a step took, before the commit."""
        ...

    def close(self) -> None: ...


class LocalExchange:
    """The exchange of a world of one."""

    rows: dict[Block, list[Tensor]] = {}  # noqa: RUF012 - nothing is ever put in

    shares_result = False
    stages: Sequence[str] = ()
    pieces: Sequence[RowPiece] = ()

    def __init__(self) -> None:
        self._rows_total: Sequence[GradientRows] = ()

    def begin(self, step: int) -> None:
        pass

    def have_ready(self, step: int, count: int, *, void: bool = False) -> None:
        pass

    def put_rows(self, blocks: Mapping[Block, Sequence[GradientRows]]) -> None:
        (self._rows_total,) = blocks.values()

    def rows_total(self) -> Sequence[GradientRows]:
        return self._rows_total

    def rows_owned(self) -> Sequence[OwnedRows]:
        return self.owned_of(self._rows_total)

    def owned_of(self, total: Sequence[GradientRows]) -> Sequence[OwnedRows]:
        return [OwnedRows(rows, owner=0, start=0) for rows in total]

    def add(self, stage: str, step: int) -> None:
        raise InternalError(f"a lone worker has no stage {stage!r}")

    def total(self, contribution: Contribution) -> Contribution:
        return contribution

    def fetch(self, total: Contribution) -> Contribution:
        return total

    def took(self, seconds: float) -> None:
        pass

    def close(self) -> None:
        pass


class SharedRows:
    """The rows of embeddings in the memory that the workers of a host share.

    Each of its owners folds the rows of some ids.

    Args:
        shelf: the rows of this host.
        index: where each block of this host lies.
        plan: who adds up what.
        rank: of this worker.
        keeps_total: leaves all sums for all, and not only to their owners.
    """

    def __init__(
        self,
        shelf: Shelf,
        index: Mapping[Block, int],
        plan: ReductionPlan,
        *,
        rank: int,
        keeps_total: bool,
    ) -> None:
        owners = plan.owners_on(plan.host_of(rank))
        self._shelf, self._index, self._plan = shelf, index, plan
        self._owner, self._owners = owners.index(rank) if rank in owners else None, len(owners)
        self.paces = Paces(shelf.seconds, self._owners, self._owner)
        self._keeps_total, self._is_total_there = keeps_total, len(plan.hosts) > 1
        self._slices = 1 if self._is_total_there else self._owners
        self._owned: list[OwnedRows] = []

    def put(self, blocks: Mapping[Block, Sequence[GradientRows]]) -> None:
        """Leave this rank's blocks for the others."""
        for block, tables in blocks.items():
            self._shelf.layout.put_rows(self._shelf.row(self._index[block]), tables)

    def of_host(self) -> dict[Block, list[GradientRows]]:
        """Return the blocks of all workers of this host."""
        return {
            block: self._shelf.layout.rows(self._shelf.row(row))
            for block, row in self._index.items()
        }

    def fold(self) -> None:
        """Fold the ids that this worker owns."""
        self._owned = self._fold(self.of_host(), self._plan.root)
        if self._keeps_total and self._owner is not None:
            sums, starts = [part.rows for part in self._owned], [part.start for part in self._owned]
            self._shelf.layout.put_rows(self._shelf.row(0), sums, slice=self._owner, offsets=starts)

    def _fold(self, blocks: Mapping[Block, Sequence[GradientRows]], want: Block) -> list[OwnedRows]:
        local: dict[Block, list[GradientRows]] = {block: [] for block in blocks}
        starts = []
        layout = self._shelf.layout
        for table, (count, partitions) in enumerate(
            zip(layout.counts, layout.partitions, strict=True)
        ):
            rows = [tables[table] for tables in blocks.values()]
            start, stop = self._range(rows, count, partitions)
            for block, tables in blocks.items():
                local[block].append(rows_between(tables[table], start, stop))
            starts.append(
                sum(int((part.ids < start).sum()) for part in rows) if partitions else start
            )
        sums = fold_rows(local, want, self._plan.parts)
        owner, owners = (0, 0) if self._owner is None else (self._owner, self._owners)
        return [
            OwnedRows(rows, owner=owner, start=start, owners=owners)
            for rows, start in zip(sums, starts, strict=True)
        ]

    def _range(
        self, blocks: Sequence[GradientRows], count: int, partitions: int
    ) -> tuple[int, int]:
        """The ids that this worker owns in this step: from the first to before the second."""
        if self._owner is None:
            return count, count
        if partitions:  # ids are keys, whose highest bits are the partition
            owned = partitions_of(partitions, self._owner, self._owners)
            size = (1 << BITS) // partitions
            return owned.start * size, owned.stop * size
        bounds = _bounds(blocks, self.paces.parts, count)
        return bounds[self._owner], bounds[self._owner + 1]

    def owned(self) -> list[OwnedRows]:
        """Return the sums of the ids that this worker owns."""
        return self.owned_of(self.total()) if self._is_total_there else self._owned

    def owned_of(self, total: Sequence[GradientRows]) -> list[OwnedRows]:
        """Return this worker's share of other rows, which all workers of the host have alike."""
        root = self._plan.root
        return self._fold({root: total}, root)

    def put_total(self, tables: Sequence[GradientRows]) -> None:
        """Leave the total, which another way was found to, for the workers of this host."""
        self._shelf.layout.put_rows(self._shelf.row(0), tables)

    def total(self) -> list[GradientRows]:
        """Return all sums, once they were left for all."""
        return self._shelf.layout.rows(self._shelf.row(0), slices=self._slices)


def _bounds(blocks: Sequence[GradientRows], parts: Sequence[float], count: int) -> list[int]:
    """Ids that cut the work of a fold into about such parts, the same for all callers.

    >>> rows = GradientRows(torch.tensor([1, 2, 3, 70]), torch.zeros(4, 1))
    >>> _bounds([rows], [0.5, 0.5], 100), _bounds([rows], [0.75, 0.25], 100)
    ([0, 3, 100], [0, 70, 100])
    """
    ids = max((rows.ids for rows in blocks), key=len)
    places = (min(int(len(ids) * part), len(ids) - 1) for part in accumulate(parts[:-1]))
    return [0, *(int(ids[place]) if len(ids) else 0 for place in places), count]


Operation = tuple[Contribution, Contribution, Contribution]  # left, right, and where their sum goes


def _combine_slices(operations: Sequence[Operation]) -> None:
    for left, right, target in operations:
        combine(left, right, target)


class SharedMemory:
    """The exchange of workers on one host, or on several with one memory each.

    Where the network is on another device, a row there stands beside each of this rank's rows of
    the shelf, and one beside the result.

    Args:
        shelf: the rows of this host.
        plan: who adds up what.
        rank: of this worker.
        ready: what the workers of this host say of their pieces; None where there is one host.
        trade: joins the hosts, on the first worker of each; None on the others and where there is
            one host.
        keeps_total: leaves the rows of all embeddings for all, and not only to their owners.

    Attributes:
        pieces: see `Exchange.pieces`.
        stages: see `Exchange.stages`.
    """

    stages: Sequence[str] = ("blocks",)

    def __init__(
        self,
        shelf: Shelf,
        plan: ReductionPlan,
        *,
        rank: int,
        pieces: Sequence[RowPiece] = (),
        ready: ReadyPieces | None = None,
        trade: Trade | None = None,
        keeps_total: bool = False,
    ) -> None:
        host = plan.host_of(rank)
        local = plan.local_blocks(host)
        index = {block: 1 + row for row, block in enumerate(local)}
        if len(index) >= shelf.rows:
            raise InternalError(f"{len(index)} blocks do not fit on a shelf of {shelf.rows} rows")
        ranks = plan.ranks_on(host)
        part, parts = rank - ranks.start, len(ranks)
        self.pieces, self._ready, self._place, self._trade = pieces, ready, part, trade
        self._shared_rows = (
            SharedRows(shelf, index, plan, rank=rank, keeps_total=keeps_total)
            if shelf.layout.counts
            else None
        )
        self.shares_result = shelf.layout.is_on_host
        self._shelf, self._result = shelf, shelf.views(0)
        self._staged: list[tuple[Tensor, Tensor]] = []  # on the device, and its row of the shelf
        self.rows = {}
        for block in plan.rank_blocks(rank):
            if shelf.layout.is_on_host:
                self.rows[block] = shelf.views(index[block])
            else:
                staged = shelf.layout.new_row()
                self._staged.append((staged, shelf.row(index[block])))
                self.rows[block] = shelf.layout.views(staged)
        self._operations: list[Operation] = []
        self._copy: tuple[list[Tensor], list[Tensor]] | None = None
        if ready is None:
            for left, right in fold(local, plan.root, plan.parts):
                a, b = (shelf.slices(_row_of(block, index), part, parts) for block in (left, right))
                self._operations.append((a, b, a))
            self._send_last_to(shelf.slices(0, part, parts), shelf.slices(1, part, parts))

    def _send_last_to(self, result: list[Tensor], blocks_only: list[Tensor]) -> None:
        """Let the last sum go to the result.

        Where there is only one block, it is copied there.
        """
        if self._operations:
            left, right, _ = self._operations[-1]
            self._operations[-1] = (left, right, result)
        self._copy = None if self._operations else (result, blocks_only)

    def begin(self, step: int) -> None:
        if self._trade is not None:
            self._trade.begin(step)

    def have_ready(self, step: int, count: int, *, void: bool = False) -> None:
        for staged, row in self._staged:
            row.copy_(staged)
        if self._ready is not None:
            self._ready.tell(self._place, step, count, void=void)

    def add(self, stage: str, step: int) -> None:
        if self._shared_rows is not None:
            self._shared_rows.paces.look()
        if self._ready is None:
            self._add_up_here()
        elif self._trade is not None:
            self._trade.finish(step)
            if self._shared_rows is not None:
                self._shared_rows.put_total(self._trade.run_rows(self._shared_rows.of_host()))

    def _add_up_here(self) -> None:
        """Fold this worker's slice of the contributions of all workers of the host."""
        _combine_slices(self._operations)
        if self._shared_rows is not None:
            self._shared_rows.fold()
        if self._copy is not None:
            torch._foreach_copy_(*self._copy)

    def total(self, contribution: Contribution) -> Contribution:
        return self._result

    def fetch(self, total: Contribution) -> Contribution:
        if self._shelf.layout.is_on_host:
            return total
        row = self._shelf.layout.new_row()
        row.copy_(self._shelf.row(0))
        return self._shelf.layout.views(row)

    def put_rows(self, blocks: Mapping[Block, Sequence[GradientRows]]) -> None:
        if self._shared_rows is not None:
            self._shared_rows.put(blocks)

    def rows_total(self) -> Sequence[GradientRows]:
        return () if self._shared_rows is None else self._shared_rows.total()

    def rows_owned(self) -> Sequence[OwnedRows]:
        return () if self._shared_rows is None else self._shared_rows.owned()

    def owned_of(self, total: Sequence[GradientRows]) -> Sequence[OwnedRows]:
        return () if self._shared_rows is None else self._shared_rows.owned_of(total)

    def took(self, seconds: float) -> None:
        if self._shared_rows is not None:
            self._shared_rows.paces.took(seconds)

    def close(self) -> None:
        if self._trade is not None:
            self._trade.close()


def _row_of(block: Block, index: dict[Block, int]) -> int:
    """A sum stands where its first block stood."""
    return next(row for block_below, row in index.items() if block_below.start == block.start)
