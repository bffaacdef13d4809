"""Trades slices of gradients between the hosts of a round, piece by piece, as they come to be.

The first worker of each host does it for all of them. A row is cut into pieces
(`Layout.pieces`). As soon as all workers of the host have one ready, it is folded here, and each
other host is sent the slice of it that it owns. Once all hosts' parts of an own slice are there, it
is folded along the same tree, and its sum sent to all. A thread does so while the backward pass
still computes the pieces behind; where nothing is ready early, everything happens at the end, in
the same order and with the same bits.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import inf
from queue import Empty, SimpleQueue

import torch
from torch import Tensor

from brim.coordination.membership import World
from brim.coordination.participant import Interrupted, PeerLost
from brim.coordination.reduction import Block, ReductionPlan, fold
from brim.tensors import memory_of
from brim.train.accumulate import Contribution, combine
from brim.train.layout import RowPiece
from brim.train.rows import GradientRows, fold_rows
from brim.train.shelf import ReadyPieces, Shelf
from brim.wire.peer import Cancelled, Listener, Traffic, swap

Pairs = Sequence[tuple[Block, Block]]  # additions, in order

_HEAD = struct.Struct("<QII")  # a step, the kind of what follows, and the number of its piece
_PART, _SUM, _VOID_PART = range(3)  # kinds; the last is a part that says: all of this once more
_LOOK = 0.0005  # seconds between looks at what other workers of this host have ready
_WAIT = 0.05  # seconds between looks at whether the wait has become pointless


class _PieceTrade:
    """One piece: what is folded of it here, what goes out, and what comes in.

    Rows of blocks are read and never written to: a piece can be traded once more.

    Args:
        piece: which part of a row.
        shelf: the rows of this host.
        spare: further rows, for all blocks but the first that this host folds.
        plan: who adds up what.
        me: this host.

    Attributes:
        outgoing: by host, its slice of each block of this host.
        incoming: by host, its part of the slice of this host.
        sum: of the slice of this host.
        sums: by host, the sum of its slice.
    """

    def __init__(
        self, piece: RowPiece, shelf: Shelf, spare: Sequence[Tensor], plan: ReductionPlan, me: int
    ) -> None:
        hosts, local, wanted = range(len(plan.hosts)), plan.local_blocks(me), plan.host_blocks(me)
        others = [host for host in hosts if host != me]
        rows = {block.start: shelf.row(1 + number) for number, block in enumerate(local)}
        self._rows = {start: piece.slices(row, 0, 1) for start, row in rows.items()}
        self._folds: list[tuple[Pairs, Contribution]] = []
        targets = iter([shelf.row(0), *spare])
        for want in wanted:
            target = next(targets)
            if pairs := fold(local_under(local, want), want, plan.parts):
                self._folds.append((pairs, piece.slices(target, 0, 1)))
                rows[want.start] = target
        self.outgoing = {
            host: _memory(t for w in wanted for t in piece.slices(rows[w.start], host, len(hosts)))
            for host in others
        }
        self._result = piece.slices(shelf.row(0), me, len(hosts))
        received = {
            host: {
                b.start: [torch.empty_like(t) for t in self._result] for b in plan.host_blocks(host)
            }
            for host in others
        }
        self.incoming = {
            host: _memory(t for each in blocks.values() for t in each)
            for host, blocks in received.items()
        }
        self._parts = {w.start: piece.slices(rows[w.start], me, len(hosts)) for w in wanted}
        for blocks in received.values():
            self._parts |= blocks
        have = [block for host in hosts for block in plan.host_blocks(host)]
        self._pairs = fold(have, plan.root, plan.parts)
        self.sum = _memory(self._result)
        self.sums = {host: _memory(piece.slices(shelf.row(0), host, len(hosts))) for host in others}

    def fold_here(self) -> None:
        """Fold what the workers of this host have left."""
        for pairs, target in self._folds:
            _fold_into(target, self._rows, pairs)

    def fold_slice(self) -> None:
        """Fold what all hosts have of this host's slice."""
        _fold_into(self._result, self._parts, self._pairs)


def _memory(tensors: Iterable[Tensor]) -> list[memoryview]:
    return [memory_of(tensor) for tensor in tensors]


def _fold_into(target: Contribution, parts: Mapping[int, Contribution], pairs: Pairs) -> None:
    """Fold these parts, which stay as they are, along the tree."""
    if not pairs:
        (only,) = parts.values()
        torch._foreach_copy_(target, only)
        return
    sums = dict(parts)
    for left, right in pairs[:-1]:
        out = [torch.empty_like(tensor) for tensor in sums[left.start]]
        combine(sums[left.start], sums.pop(right.start), out)
        sums[left.start] = out
    left, right = pairs[-1]
    combine(sums[left.start], sums[right.start], target)


def local_under(local: Sequence[Block], want: Block) -> list[Block]:
    """Return the blocks that a larger one consists of."""
    return [block for block in local if want.start <= block.start < want.start + want.size]


class _StepTrade:
    """The trade of one step.

    Args:
        step: its number.
        pieces: of a row.
        peers: the streams to the other hosts.
        traffic: on them.

    Attributes:
        is_void: pieces were changed after they had gone out, on this host or on another.
    """

    def __init__(
        self,
        step: int,
        pieces: Sequence[_PieceTrade],
        peers: Mapping[int, socket.socket],
        traffic: Traffic,
    ) -> None:
        self._step, self._pieces, self._peers, self._traffic = step, pieces, peers, traffic
        self.is_void = False
        self._given = 0  # pieces of this host that are on their way
        self._came = [0] * len(pieces)  # hosts whose part of each piece is there
        self._heads = {host: bytearray(_HEAD.size) for host in peers}
        self._in_body: dict[int, tuple[int, int]] = {}  # of each host, what is coming in
        self._left = dict.fromkeys(peers, 2 * len(pieces))  # parts and sums that are to come
        for host in peers:
            self._expect(host)

    def run(self, ready: Callable[[], tuple[int, bool]], check: Callable[[bool], None]) -> None:
        """Give away what is ready, and take what comes, until all sums are there.

        Args:
            ready: how many pieces are, and whether one was changed since.
            check: raises where this has become pointless; it is told whether anything moves.
        """
        count, void = 0, False
        while True:
            if count < len(self._pieces):
                count, void = ready()
            if self._given < count:
                self._give(void and count == len(self._pieces))
            elif self._given == count == len(self._pieces) and self._traffic.is_done:
                return
            waits = _WAIT if self._given == len(self._pieces) else _LOOK
            moved = self._traffic.move(0.0 if self._given < count else waits)
            for host, peer in self._peers.items():
                while self._left[host] and self._traffic.is_filled(peer):
                    self._take(host)
            check(moved)

    def _give(self, void: bool) -> None:
        """Give away the next piece."""
        number = self._given
        self._given += 1
        self._pieces[number].fold_here()
        self.is_void |= void
        for host in self._peers:
            kind = _VOID_PART if void else _PART
            self._send(host, kind, number, self._pieces[number].outgoing[host])
        self._sum(number)

    def _send(self, host: int, kind: int, number: int, views: Sequence[memoryview]) -> None:
        head = memoryview(_HEAD.pack(self._step, kind, number))
        self._traffic.send(self._peers[host], [head, *views])

    def _sum(self, number: int) -> None:
        """Fold the own slice of a piece and give it to all, once all parts of it are there."""
        if number >= self._given or self._came[number] < len(self._peers):
            return
        self._pieces[number].fold_slice()
        for host in self._peers:
            self._send(host, _SUM, number, self._pieces[number].sum)

    def _expect(self, host: int) -> None:
        self._traffic.fill(self._peers[host], [memoryview(self._heads[host])])

    def _take(self, host: int) -> None:
        """Take what has come in from a host: the words in front of something, or all of it."""
        if host not in self._in_body:
            step, kind, number = _HEAD.unpack(self._heads[host])
            if step != self._step or kind > _VOID_PART or number >= len(self._pieces):
                raise PeerLost(f"a worker sends what is no part of step {self._step + 1}")
            self._in_body[host] = kind, number
            piece = self._pieces[number]
            views = piece.sums[host] if kind == _SUM else piece.incoming[host]
            self._traffic.fill(self._peers[host], views)
            return
        kind, number = self._in_body.pop(host)
        self._left[host] -= 1
        if self._left[host]:
            self._expect(host)
        if kind != _SUM:
            self.is_void |= kind == _VOID_PART
            self._came[number] += 1
            self._sum(number)


class Trade:
    """Joins the hosts of a round: each owns one slice of everything, folds it, and hands it to all.

    Args:
        shelf: the rows of this host.
        pieces: that a row is cut into.
        ready: how many of them the workers of this host have.
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
        pieces: Sequence[RowPiece],
        ready: ReadyPieces,
        plan: ReductionPlan,
        world: World,
        *,
        rank: int,
        patience: float,
        call: Callable[[str, str], socket.socket],
        listener: Listener,
        cancelled: Cancelled,
    ) -> None:
        self._patience, self._cancelled, self._ready = patience, cancelled, ready
        self._plan, self._like = plan, shelf.layout.rows(shelf.row(0))
        self._counts = shelf.layout.counts
        me = self._me = plan.host_of(rank)
        self._places = range(len(plan.ranks_on(me)))
        self._peers: dict[int, socket.socket] = {}
        hosts = range(len(plan.hosts))
        greeting = "round {} slices {} {}"
        for host in hosts[:me]:
            address = world.members[plan.ranks_on(host).start].address
            self._peers[host] = call(address, greeting.format(world.round, me, host))
        for host in hosts[me + 1 :]:
            expected = greeting.format(world.round, host, me)
            self._peers[host] = listener.accept(expected, timeout=patience, cancelled=cancelled)
        spare = [torch.empty_like(shelf.row(0)) for _ in plan.host_blocks(me)[1:]]
        self._pieces = [_PieceTrade(piece, shelf, spare, plan, me) for piece in pieces]
        self._traffic = Traffic(self._peers.values())
        self._is_waited_for = False  # by the main thread, which has nothing else to do
        self._is_over = threading.Event()
        self._steps: SimpleQueue[int | None] = SimpleQueue()
        self._results: SimpleQueue[_StepTrade | BaseException] = SimpleQueue()
        self._thread: threading.Thread | None = None
        if len(pieces) > 1:
            self._thread = threading.Thread(target=self._serve, name="trade", daemon=True)
            self._thread.start()

    def begin(self, step: int) -> None:
        """Trade what is ready of a step from now on, beside whatever the caller does."""
        if self._thread is not None:
            self._is_waited_for = False
            self._steps.put(step)

    def finish(self, step: int) -> None:
        """Return when the sums are there; all workers of this host have everything ready."""
        if self._thread is None:
            is_void = self._run(step, self._all).is_void
        else:
            self._traffic.begin()  # while the main thread computed, nobody had to say anything
            self._is_waited_for = True
            is_void = self._await_thread().is_void
        if is_void:
            self._run(step, self._all)

    def _all(self) -> tuple[int, bool]:
        return len(self._pieces), False

    def _run(self, step: int, ready: Callable[[], tuple[int, bool]]) -> _StepTrade:
        trade = _StepTrade(step, self._pieces, self._peers, self._traffic)
        self._traffic.begin()
        trade.run(ready, self._check)
        return trade

    def _check(self, moved: bool) -> None:
        """Check that the trade is still of use, and that the other hosts are there."""
        in_thread = threading.current_thread() is self._thread
        if self._is_over.is_set():
            raise Interrupted
        if moved:
            return
        if not in_thread and self._cancelled():
            raise Interrupted
        self._traffic.check(self._patience if self._is_waited_for or not in_thread else inf)

    def _serve(self) -> None:
        while (step := self._steps.get()) is not None:
            try:
                ready = partial(self._ready.count, self._places, step)
                self._results.put(self._run(step, ready))
            except BaseException as error:  # noqa: BLE001 - the main thread raises it
                self._results.put(error)
                return

    def _await_thread(self) -> _StepTrade:
        while True:
            with contextlib.suppress(Empty):
                result = self._results.get(timeout=_WAIT)
                if isinstance(result, BaseException):
                    raise result
                return result
            if self._cancelled():
                raise Interrupted

    def run_rows(self, local: Mapping[Block, Sequence[GradientRows]]) -> list[GradientRows]:
        """Give all hosts the embeddings' rows of this host's blocks, and return the sum of all.

        Raises:
            PeerLost: as `run`, and where another host sends more rows than there are.
        """
        plan, tables = self._plan, len(self._counts)
        blocks: dict[Block, Sequence[GradientRows]] = {
            block: fold_rows(
                {each: local[each] for each in local_under(list(local), block)}, block, plan.parts
            )
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
        """End the trade: when this returns, nothing is written to any more."""
        self._is_over.set()
        if self._thread is not None:
            self._steps.put(None)
            self._thread.join()
        self._traffic.close()
        for peer in self._peers.values():
            peer.close()
