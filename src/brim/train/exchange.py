"""Moves slices of gradients between workers and folds them along the canonical tree.

Which blocks exist and how they fold is `coordination/reduction.py`; this only moves and adds. On
one host the blocks lie in memory that all its workers share: each rank folds its slice of them in
place, into a shared result. Between hosts, each host first folds what its own workers share; then
the first worker of every host trades slices with the others over TCP.
"""

from __future__ import annotations

import mmap
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Protocol

import torch
from torch import Tensor

from brim.coordination.membership import World
from brim.coordination.participant import PeerLost
from brim.coordination.reduction import Block, ReductionPlan, fold
from brim.errors import InternalError
from brim.tensors import memory_of
from brim.train.accumulate import combine
from brim.train.layout import Layout
from brim.train.memory import have_ready
from brim.train.paces import Paces
from brim.train.rows import GradientRows, OwnedRows, between, fold_rows
from brim.train.tables.keyed_table import partitions_of
from brim.train.tables.keys import BITS
from brim.wire.peer import Cancelled, Listener, swap

Contribution = list[Tensor]


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

        Only of a job that clips gradients or delays changes, and of one worker alone: nobody else
        needs all of them.
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
    def stages(self) -> Sequence[str]:
        """Points of a step at which all workers of a host stand before `add` is called for them."""
        ...

    def add(self, stage: str) -> None:
        """Add up what may be added up once all stand at this point.

        Raises:
            Interrupted, PeerLost: another member is gone, or the agent spoke.
        """
        ...

    def total(self, own: Contribution) -> Contribution:
        """The sum over all micro-batches; complete once all members have arrived at the commit.

        Args:
            own: this rank's only block, where blocks have no rows; else empty.

        Raises:
            Interrupted, PeerLost: as `add`.
        """
        ...

    def took(self, seconds: float) -> None:
        """Note how long this worker's part of the rows of a step took, before the commit."""
        ...

    def close(self) -> None: ...


class Alone:
    """The exchange of a world of one."""

    rows: dict[Block, list[Tensor]] = {}  # noqa: RUF012 - nothing is ever put in

    shares_result = False
    stages: Sequence[str] = ()

    def __init__(self) -> None:
        self._rows_total: Sequence[GradientRows] = ()

    def put_rows(self, blocks: Mapping[Block, Sequence[GradientRows]]) -> None:
        (self._rows_total,) = blocks.values()

    def rows_total(self) -> Sequence[GradientRows]:
        return self._rows_total

    def rows_owned(self) -> Sequence[OwnedRows]:
        return self.owned_of(self._rows_total)

    def owned_of(self, total: Sequence[GradientRows]) -> Sequence[OwnedRows]:
        return [OwnedRows(rows, owner=0, start=0) for rows in total]

    def add(self, stage: str) -> None:
        raise InternalError(f"nobody else stands at {stage!r}")

    def total(self, own: Contribution) -> Contribution:
        return own

    def took(self, seconds: float) -> None:
        pass

    def close(self) -> None:
        pass


class Shelf:
    """Rows of contributions in memory that all workers of a host share.

    Row 0 holds the result, the rows behind it the blocks. Of large rows only those that are used
    take up memory.

    Args:
        descriptor: of an anonymous file; the first worker to come makes it large enough.
        layout: what lies in a row.
        rows: how many.

    Attributes:
        seconds: where the owners of rows tell how long they take, float64.
    """

    def __init__(self, descriptor: int, layout: Layout, rows: int) -> None:
        self.layout, self._row_bytes = layout, -(-layout.row_bytes // 4096) * 4096 or 4096
        size = self._row_bytes * rows + 4096
        if _size_of(descriptor) < size:
            os.ftruncate(descriptor, size)
        mapped = mmap.mmap(descriptor, size)
        have_ready(mapped)
        self._memory = torch.frombuffer(mapped, dtype=torch.uint8)
        self.seconds = self._memory[-4096:].view(torch.float64)
        self._views: dict[int, list[Tensor]] = {}
        self.rows = rows

    def row(self, index: int) -> Tensor:
        start = index * self._row_bytes
        return self._memory[start : start + self.layout.row_bytes]

    def views(self, index: int) -> list[Tensor]:
        if index not in self._views:  # rounds come and go, and rows stay
            self._views[index] = self.layout.views(self.row(index))
        return self._views[index]

    def slices(self, index: int, part: int, parts: int) -> list[Tensor]:
        return self.layout.slices(self.row(index), part, parts)


def _size_of(descriptor: int) -> int:
    return os.fstat(descriptor).st_size


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
            self._shelf.layout.put_rows(self._shelf.row(0), sums, slice=self._owner, at=starts)

    def _fold(self, blocks: Mapping[Block, Sequence[GradientRows]], want: Block) -> list[OwnedRows]:
        mine: dict[Block, list[GradientRows]] = {block: [] for block in blocks}
        starts = []
        layout = self._shelf.layout
        for table, (count, partitions) in enumerate(
            zip(layout.counts, layout.partitions, strict=True)
        ):
            rows = [tables[table] for tables in blocks.values()]
            start, stop = self._range(rows, count, partitions)
            for block, tables in blocks.items():
                mine[block].append(between(tables[table], start, stop))
            starts.append(
                sum(int((each.ids < start).sum()) for each in rows) if partitions else start
            )
        sums = fold_rows(mine, want, self._plan.parts)
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
            own = partitions_of(partitions, self._owner, self._owners)
            size = (1 << BITS) // partitions
            return own.start * size, own.stop * size
        bounds = _bounds(blocks, self.paces.parts, count)
        return bounds[self._owner], bounds[self._owner + 1]

    def owned(self) -> list[OwnedRows]:
        """Return the sums of the ids that this worker owns."""
        return self.owned_of(self.total()) if self._is_total_there else self._owned

    def owned_of(self, total: Sequence[GradientRows]) -> list[OwnedRows]:
        """Return what this worker owns of other rows, which all workers of the host have alike."""
        root = self._plan.root
        return self._fold({root: total}, root)

    def put_total(self, tables: Sequence[GradientRows]) -> None:
        """Leave the total, which another way was found to, for the workers of this host."""
        self._shelf.layout.put_rows(self._shelf.row(0), tables)

    def total(self) -> list[GradientRows]:
        """Return all sums, once they were left for all."""
        return self._shelf.layout.rows(self._shelf.row(0), slices=self._slices)


def _bounds(blocks: Sequence[GradientRows], parts: Sequence[float], count: int) -> list[int]:
    """Ids that cut the work of a fold into about such parts, the same for all who ask.

    >>> rows = GradientRows(torch.tensor([1, 2, 3, 70]), torch.zeros(4, 1))
    >>> _bounds([rows], [0.5, 0.5], 100), _bounds([rows], [0.75, 0.25], 100)
    ([0, 3, 100], [0, 70, 100])
    """
    ids = max((rows.ids for rows in blocks), key=len)
    places = (min(int(len(ids) * part), len(ids) - 1) for part in accumulate(parts[:-1]))
    return [0, *(int(ids[place]) if len(ids) else 0 for place in places), count]


Operation = tuple[Contribution, Contribution, Contribution]  # left, right, and where their sum goes


def _combine_slices(operations: Sequence[Operation]) -> None:
    for left, right, out in operations:
        combine(left, right, out)


class SharedMemory:
    """The exchange of workers on one host, or on several with one memory each.

    Args:
        shelf: the rows of this host.
        plan: who adds up what.
        rank: of this worker.
        trade: joins the hosts, on the first worker of each; None on the others and where there is
            one host.
        keeps_total: leaves the rows of all embeddings for all, and not only to their owners.
    """

    shares_result = True

    def __init__(
        self,
        shelf: Shelf,
        plan: ReductionPlan,
        *,
        rank: int,
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
        self.stages = plan.stages
        self._trade = trade
        self._several = len(plan.hosts) > 1
        self._shared_rows = (
            SharedRows(shelf, index, plan, rank=rank, keeps_total=keeps_total)
            if shelf.layout.counts
            else None
        )
        self.rows = {block: shelf.views(index[block]) for block in plan.rank_blocks(rank)}
        self._result = shelf.views(0)
        wanted = plan.host_blocks(host) if self._several else (plan.root,)
        self._operations: list[Operation] = []
        for want in wanted:
            for left, right in fold(local, want, plan.parts):
                a, b = (shelf.slices(_row_of(block, index), part, parts) for block in (left, right))
                self._operations.append((a, b, a))
        if not self._several:
            self._send_last_to(shelf.slices(0, part, parts), shelf.slices(1, part, parts))

    def _send_last_to(self, result: list[Tensor], only: list[Tensor]) -> None:
        """Let the last sum go to the result.

        Where there is only one block, it is copied there.
        """
        if self._operations:
            left, right, _ = self._operations[-1]
            self._operations[-1] = (left, right, result)
        self._copy = None if self._operations else (result, only)

    def add(self, stage: str) -> None:
        match stage:
            case "blocks":
                self._add_up_here()
            case "folded" if self._trade is not None:
                self._trade.run()
                if self._shared_rows is not None:
                    self._shared_rows.put_total(self._trade.run_rows(self._shared_rows.of_host()))

    def _add_up_here(self) -> None:
        """Fold this worker's slice of what all workers of the host have left."""
        if self._shared_rows is not None:
            self._shared_rows.paces.look()
        _combine_slices(self._operations)
        if self._several:
            return
        if self._shared_rows is not None:
            self._shared_rows.fold()
        if self._copy is not None:
            torch._foreach_copy_(*self._copy)

    def total(self, own: Contribution) -> Contribution:
        return self._result

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
    return next(row for have, row in index.items() if have.start == block.start)


class Trade:
    """Joins the hosts of a round: each owns one slice of everything, folds it, and hands it to all.

    Args:
        shelf: the rows of this host.
        plan: who adds up what.
        world: the round.
        rank: of this worker, the first of its host.
        patience: seconds that another host is waited for which sends nothing.
        call: calls the worker at an address, with what the call is about.
        listener: where the others call this worker.
        cancelled: whether the agent has something to say.

    Raises:
        Interrupted, PeerLost: a host is gone, or the agent spoke.
    """

    def __init__(
        self,
        shelf: Shelf,
        plan: ReductionPlan,
        world: World,
        *,
        rank: int,
        patience: float,
        call: Callable[[str, str], socket.socket],
        listener: Listener,
        cancelled: Cancelled,
    ) -> None:
        self._patience, self._cancelled = patience, cancelled
        self._plan, self._like = plan, shelf.layout.rows(shelf.row(0))
        self._counts = shelf.layout.counts
        me = self._me = plan.host_of(rank)
        self._peers: dict[int, socket.socket] = {}
        hosts = range(len(plan.hosts))
        greeting = "round {} slices {} {}"
        for host in hosts[:me]:
            address = world.members[plan.ranks_on(host).start].address
            self._peers[host] = call(address, greeting.format(world.round, me, host))
        for host in hosts[me + 1 :]:
            expected = greeting.format(world.round, host, me)
            self._peers[host] = listener.accept(expected, timeout=patience, cancelled=cancelled)
        local = plan.local_blocks(me)
        mine = {block: 1 + local.index(_at(block, local)) for block in plan.host_blocks(me)}
        self._outgoing = {
            peer: [
                memory_of(t) for row in mine.values() for t in shelf.slices(row, host, len(hosts))
            ]
            for host, peer in self._peers.items()
        }
        received = {
            host: {
                block: [torch.empty_like(t) for t in shelf.slices(0, me, len(hosts))]
                for block in plan.host_blocks(host)
            }
            for host in self._peers
        }
        self._incoming = {
            peer: [memory_of(t) for slices in received[host].values() for t in slices]
            for host, peer in self._peers.items()
        }
        slices = {block.start: shelf.slices(row, me, len(hosts)) for block, row in mine.items()}
        for blocks in received.values():
            slices |= {block.start: tensors for block, tensors in blocks.items()}
        have = [block for host in hosts for block in plan.host_blocks(host)]
        pairs = fold(have, plan.root, plan.parts)
        self._operations: list[Operation] = [
            (slices[left.start], slices[right.start], slices[left.start]) for left, right in pairs
        ]
        self._root = slices[0]
        self._result = shelf.slices(0, me, len(hosts))
        done = [memory_of(t) for t in self._result]
        self._handed = dict.fromkeys(self._peers.values(), done)
        self._gathered = {
            peer: [memory_of(t) for t in shelf.slices(0, host, len(hosts))]
            for host, peer in self._peers.items()
        }

    def run(self) -> None:
        swap(self._outgoing, self._incoming, timeout=self._patience, cancelled=self._cancelled)
        _combine_slices(self._operations)
        torch._foreach_copy_(self._result, self._root)
        swap(self._handed, self._gathered, timeout=self._patience, cancelled=self._cancelled)

    def run_rows(self, local: Mapping[Block, Sequence[GradientRows]]) -> list[GradientRows]:
        """Give all hosts the embeddings' rows of this host's blocks, and return the sum of all.

        Raises:
            PeerLost: as `run`, and where another host sends more rows than there are.
        """
        plan, tables = self._plan, len(self._counts)
        blocks: dict[Block, Sequence[GradientRows]] = {
            block: fold_rows(_parts_of(local, block), block, plan.parts)
            for block in plan.host_blocks(self._me)
        }
        own = [rows for each in blocks.values() for rows in each]
        sizes = torch.tensor([len(rows.ids) for rows in own])
        theirs = {
            host: torch.zeros(len(plan.host_blocks(host)) * tables, dtype=torch.int64)
            for host in self._peers
        }
        self._swap(
            {host: [sizes] for host in theirs}, {host: [each] for host, each in theirs.items()}
        )
        room = {host: self._room(each.tolist()) for host, each in theirs.items()}
        sent = [part.contiguous() for rows in own for part in rows]
        self._swap(
            dict.fromkeys(room, sent),
            {host: [part for rows in each for part in rows] for host, each in room.items()},
        )
        for host, received in room.items():
            for number, block in enumerate(plan.host_blocks(host)):
                blocks[block] = received[number * tables : (number + 1) * tables]
        return fold_rows(blocks, plan.root, plan.parts)

    def _room(self, sizes: Sequence[int]) -> list[GradientRows]:
        """Room for so many rows of each embedding, of one block after the other."""
        room = []
        for number, size in enumerate(sizes):
            table = number % len(self._counts)
            if not 0 <= size <= self._counts[table]:
                raise PeerLost(
                    f"a worker sends {size} rows of an embedding of {self._counts[table]}"
                )
            values = self._like[table].values
            room.append(
                GradientRows(
                    torch.empty(size, dtype=torch.int64), values.new_empty((size, values.shape[1]))
                )
            )
        return room

    def _swap(
        self, outgoing: Mapping[int, Sequence[Tensor]], incoming: Mapping[int, Sequence[Tensor]]
    ) -> None:
        """Trade tensors with other hosts, by their numbers."""
        ways = (
            {self._peers[host]: [memory_of(t) for t in each] for host, each in way.items()}
            for way in (outgoing, incoming)
        )
        swap(*ways, timeout=self._patience, cancelled=self._cancelled)

    def close(self) -> None:
        for peer in self._peers.values():
            peer.close()


def _at(block: Block, blocks: Sequence[Block]) -> Block:
    return next(have for have in blocks if have.start == block.start)


def _parts_of(
    local: Mapping[Block, Sequence[GradientRows]], want: Block
) -> dict[Block, Sequence[GradientRows]]:
    """Return a host's part of a block."""
    stop = want.start + want.size
    return {block: tables for block, tables in local.items() if want.start <= block.start < stop}
