"""Trades slices of gradients between the hosts of a round, piece by piece, as they come to be.

The first worker of each host does it for all of them. A row is cut into pieces
(`Layout.pieces`). As soon as all workers of the host have one ready, it is folded here, and each
other host is sent the slice of it that it owns. Once all hosts' parts of an own slice are there, it
is folded along the same tree, and its sum sent to all. A thread does so while the backward pass
still computes the pieces behind; where nothing is ready early, everything happens at the end, in
the same order and with the same bits.

Hosts of one machine meet at its first (`ReductionPlan.route`), which alone trades slices with other
machines: it folds what the others send it, all of each piece, and sends them all of the sum.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import inf
from queue import Empty, SimpleQueue

import torch
from torch import Tensor

from brim.coordination.job.membership import World
from brim.coordination.job.participant import Interrupted, PeerLost
from brim.coordination.job.reduction import Block, ReductionPlan, Route, fold
from brim.embeddings.rows import GradientRows, fold_rows
from brim.tensors.raw import memory_of
from brim.train.exchange.accumulate import Contribution, combine
from brim.train.exchange.layout import RowPiece
from brim.train.exchange.shelf import ReadyPieces, Shelf
from brim.wire.identity import MOST_OF_A_CONNECTION
from brim.wire.peer import Cancelled, Listener, Traffic, swap

Pairs = Sequence[tuple[Block, Block]]  # additions, in order

_HEAD = struct.Struct("<QII")  # a step, the kind of what follows, and the number of its piece
_PART, _SUM = range(2)  # kinds
_VOID = 2  # marks a kind: all of this once more
_POLL_INTERVAL = 0.0005  # seconds between looks at what other workers of this host have ready
_WAIT = 0.05  # seconds between looks at whether the wait has become pointless


class _PieceTrade:
    """One piece: its local folding, its outgoing and its incoming parts.

    Rows of blocks are read and never written to: a piece can be traded once more.

    Args:
        piece: which part of a row.
        shelf: the rows of this host.
        spare: further rows, for all blocks but the first that this host folds.
        plan: who adds up what.
        me: this host.

    Attributes:
        outgoing: by host, what it gets of this host's part: its slice, or all.
        incoming: by host, what comes of its part.
        sum: by host, what it gets of the sum: the slice of this host, or all.
        sums: by host, what comes of the sum.
    """

    def __init__(
        self, piece: RowPiece, shelf: Shelf, spare: Sequence[Tensor], plan: ReductionPlan, me: int
    ) -> None:
        route, machines, total = plan.route(me), len(plan.machines), shelf.row(0)
        local, wanted_blocks = [*plan.local_blocks(me)], _blocks_wanted(plan, me)
        rows = {block.start: shelf.row(1 + number) for number, block in enumerate(local)}
        memory = iter(spare)
        targets = [total, *(next(memory) for _ in wanted_blocks[1:])]
        for host in route.below:
            local += plan.host_blocks(host)
            rows |= {block.start: next(memory) for block in plan.host_blocks(host)}

        def part(blocks: Iterable[Block], index: int, count: int) -> list[memoryview]:
            return _memory(t for b in blocks for t in piece.slices(rows[b.start], index, count))

        def result(index: int, count: int) -> list[memoryview]:
            return _memory(piece.slices(total, index, count))

        self.outgoing: dict[int, list[memoryview]] = {}
        self.incoming = {host: part(plan.host_blocks(host), 0, 1) for host in route.below}
        self.sum = {host: result(0, 1) for host in route.below}
        self.sums: dict[int, list[memoryview]] = {}
        self._rows = {start: piece.slices(row, 0, 1) for start, row in rows.items()}
        self._folds: list[tuple[Pairs, Contribution]] = []
        for want, target in zip(wanted_blocks, targets, strict=False):
            if pairs := fold(local_under(local, want), want, plan.parts):
                self._folds.append((pairs, piece.slices(target, 0, 1)))
                rows[want.start] = target
        own_machine = route.machine, machines
        self._result = piece.slices(total, *own_machine)
        self._parts = {w.start: piece.slices(rows[w.start], *own_machine) for w in wanted_blocks}
        received_blocks = [
            block for number in range(machines) for block in plan.machine_blocks(number)
        ]
        self._pairs = fold(received_blocks, plan.root, plan.parts)
        if route.above is not None:
            self.outgoing[route.above], self.sums[route.above] = (
                part(wanted_blocks, 0, 1),
                result(0, 1),
            )
        for host in route.across:
            machine = plan.machine_of(host)
            self.outgoing[host], self.sum[host] = (
                part(wanted_blocks, machine, machines),
                result(*own_machine),
            )
            self.sums[host] = result(machine, machines)
            blocks = plan.machine_blocks(machine)
            received = {b.start: [torch.empty_like(t) for t in self._result] for b in blocks}
            self.incoming[host] = _memory(
                t for tensors_of_block in received.values() for t in tensors_of_block
            )
            self._parts |= received

    def fold_here(self) -> None:
        """Fold the contributions of this host's workers, and those from below."""
        for pairs, target in self._folds:
            _fold_into(target, self._rows, pairs)

    def fold_slice(self) -> None:
        """Fold all machines' parts of the slice that is folded here."""
        _fold_into(self._result, self._parts, self._pairs)


def _memory(tensors: Iterable[Tensor]) -> list[memoryview]:
    return [memory_of(tensor) for tensor in tensors]


def _size(views: Iterable[memoryview]) -> int:
    return sum(view.nbytes for view in views)


def _fold_into(target: Contribution, parts: Mapping[int, Contribution], pairs: Pairs) -> None:
    """Fold these parts, which stay as they are, along the tree."""
    if not pairs:
        (part,) = parts.values()
        torch._foreach_copy_(target, part)
        return
    sums = dict(parts)
    for left, right in pairs[:-1]:
        sum_out = [torch.empty_like(tensor) for tensor in sums[left.start]]
        combine(sums[left.start], sums.pop(right.start), sum_out)
        sums[left.start] = sum_out
    left, right = pairs[-1]
    combine(sums[left.start], sums[right.start], target)


def local_under(local: Sequence[Block], want: Block) -> list[Block]:
    """Return the blocks that a larger one consists of."""
    return [block for block in local if want.start <= block.start < want.start + want.size]


def _blocks_wanted(plan: ReductionPlan, me: int) -> tuple[Block, ...]:
    """Return the blocks that a host folds by itself, with those from below."""
    route = plan.route(me)
    return plan.machine_blocks(route.machine) if route.above is None else plan.host_blocks(me)


def _spare_rows(plan: ReductionPlan, me: int) -> int:
    """Return how many rows a host needs beside those that its workers share."""
    counts = (len(plan.host_blocks(host)) for host in plan.route(me).below)
    return len(_blocks_wanted(plan, me)[1:]) + sum(counts)


class _StepTrade:
    """The trade of one step.

    Args:
        step: its number.
        pieces: of a row.
        route: of this host.
        peers: the streams to the hosts that it names.
        traffic: on them.

    Attributes:
        is_void: pieces were changed after they had gone out, on this host or on another.
        carried: bytes that each stream has, both ways; its ends count alike.
    """

    def __init__(
        self,
        step: int,
        pieces: Sequence[_PieceTrade],
        route: Route,
        peers: Mapping[int, socket.socket],
        traffic: Traffic,
    ) -> None:
        self._step, self._pieces, self._peers, self._traffic = step, pieces, peers, traffic
        self._route = route
        self.is_void, self.carried = False, Counter[int]()
        self._sent = self._summed = self._passed_on = 0  # pieces, from the first
        givers = () if route.above is None else (route.above,)
        self._parts = dict.fromkeys((*route.below, *route.across), 0)  # of each, that have come
        self._sums = dict.fromkeys((*givers, *route.across), 0)
        self._heads = {host: bytearray(_HEAD.size) for host in peers}
        self._in_body: dict[int, int] = {}  # of each host, the kind of what is coming in
        self._outstanding = {  # parts and sums that are to come
            host: len(pieces) * ((host in self._parts) + (host in self._sums)) for host in peers
        }
        for host in peers:
            self._expect(host)

    def run(self, ready: Callable[[], tuple[int, bool]], check: Callable[[bool], None]) -> None:
        """Give away ready pieces, and take incoming ones, until all sums are there.

        Args:
            ready: how many pieces are, and whether one was changed since.
            check: raises where this has become pointless; it is told whether anything moves.
        """
        count, void = 0, False
        while True:
            if count < len(self._pieces):
                count, void = ready()
            ready_parts = min([count, *(self._parts[host] for host in self._route.below)])
            if self._sent < ready_parts:
                self._give(void and count == len(self._pieces))
            elif self._sent == count == len(self._pieces) and self._traffic.is_done:
                return
            waits = _WAIT if count == len(self._pieces) else _POLL_INTERVAL
            moved = self._traffic.move(0.0 if self._sent < ready_parts else waits)
            for host, peer in self._peers.items():
                while self._outstanding[host] and self._traffic.is_filled(peer):
                    self._take(host)
            check(moved)

    def _give(self, void: bool) -> None:
        """Give away the next piece."""
        number = self._sent
        self._sent += 1
        self._pieces[number].fold_here()
        self.is_void |= void
        for host, part in self._pieces[number].outgoing.items():
            self._send(host, _PART, number, part)
        self._sum()

    def _send(self, host: int, kind: int, number: int, views: Sequence[memoryview]) -> None:
        head = _HEAD.pack(self._step, kind | (_VOID if self.is_void else 0), number)
        self.carried[host] += _size(views)
        self._traffic.send(self._peers[host], [memoryview(head), *views])

    def _sum(self) -> None:
        """Fold the slices whose parts are there, give their sums away, and pass on whole sums."""
        route = self._route
        if route.above is not None:
            return
        while self._summed < min([self._sent, *(self._parts[host] for host in route.across)]):
            piece = self._pieces[self._summed]
            piece.fold_slice()
            for host in route.across:
                self._send(host, _SUM, self._summed, piece.sum[host])
            self._summed += 1
        while self._passed_on < min([self._summed, *self._sums.values()]):
            for host in route.below:
                self._send(host, _SUM, self._passed_on, self._pieces[self._passed_on].sum[host])
            self._passed_on += 1

    def _expect(self, host: int) -> None:
        self._traffic.fill(self._peers[host], [memoryview(self._heads[host])])

    def _take(self, host: int) -> None:
        """Take an arrival from a host: the words in front of something, or all of it."""
        if host not in self._in_body:
            self._fill(host)
            return
        kind = self._in_body.pop(host)
        self._pieces_of(kind)[host] += 1
        self.is_void |= bool(kind & _VOID)
        self._outstanding[host] -= 1
        if self._outstanding[host]:
            self._expect(host)
        self._sum()

    def _fill(self, host: int) -> None:
        """Have an announced part of a host filled; each sends pieces in their order."""
        step, kind, number = _HEAD.unpack(self._heads[host])
        is_known = step == self._step and kind <= _SUM | _VOID and number < len(self._pieces)
        if not is_known or self._pieces_of(kind).get(host) != number:
            raise PeerLost(f"a worker sends what is no part of step {self._step + 1}")
        self._in_body[host] = kind
        piece = self._pieces[number]
        views = (piece.sums if kind & _SUM else piece.incoming)[host]
        self.carried[host] += _size(views)
        self._traffic.fill(self._peers[host], views)

    def _pieces_of(self, kind: int) -> dict[int, int]:
        return self._sums if kind & _SUM else self._parts


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
        self._route, self._world, self._call, self._listener = plan.route(me), world, call, listener
        self._peers = {host: self._open(host) for host in self._route.peers}
        self._carried = Counter[int]()  # by each stream, since it was opened
        spare = [torch.empty_like(shelf.row(0)) for _ in range(_spare_rows(plan, me))]
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

    def _open(self, host: int) -> socket.socket:
        """Open a stream to another host, which does so too: the later one calls the earlier."""
        accepting, calling = max(host, self._me), min(host, self._me)
        greeting = f"round {self._world.round} slices {accepting} {calling}"
        if host == calling:
            return self._call(
                self._world.members[self._plan.ranks_on(host).start].address, greeting
            )
        return self._listener.accept(greeting, timeout=self._patience, cancelled=self._cancelled)

    def begin(self, step: int) -> None:
        """Trade the ready pieces of a step from now on, beside the caller's work."""
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
        self._renew()

    def _renew(self) -> None:
        """Open those streams again whose keys have encrypted enough.

        Both ends of a stream have counted the same when a step is over.
        """
        worn = [
            host
            for host, peer in self._peers.items()
            if self._carried[host] > MOST_OF_A_CONNECTION and isinstance(peer, ssl.SSLSocket)
        ]
        for host in worn:
            previous, self._peers[host] = self._peers[host], self._open(host)
            previous.close()  # the other end has all of it, or it would not be here
            del self._carried[host]
        if worn:
            self._traffic.close()
            self._traffic = Traffic(self._peers.values())

    def _all(self) -> tuple[int, bool]:
        return len(self._pieces), False

    def _run(self, step: int, ready: Callable[[], tuple[int, bool]]) -> _StepTrade:
        trade = _StepTrade(step, self._pieces, self._route, self._peers, self._traffic)
        self._traffic.begin()
        trade.run(ready, self._check)
        self._carried += trade.carried
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

    def run_rows(self, local: Mapping[Block, Sequence[GradientRows]]) -> Sequence[GradientRows]:
        """Give all hosts the embeddings' rows of this host's blocks, and return the sum of all.

        Raises:
            PeerLost: as `run`, and where another host sends more rows than there are.
        """
        route, plan = self._route, self._plan
        blocks = dict(local)
        blocks |= self._swap_rows({}, {host: plan.host_blocks(host) for host in route.below})
        sums = {b: self._folded_rows(blocks, b) for b in _blocks_wanted(plan, self._me)}
        if route.above is not None:
            self._swap_rows({route.above: sums}, {})
            return self._swap_rows({}, {route.above: (plan.root,)})[plan.root]
        machine_blocks = {host: plan.machine_blocks(plan.machine_of(host)) for host in route.across}
        received = self._swap_rows(dict.fromkeys(machine_blocks, sums), machine_blocks)
        total = fold_rows(sums | received, plan.root, plan.parts)
        self._swap_rows({host: {plan.root: total} for host in route.below}, {})
        return total

    def _folded_rows(
        self, blocks: Mapping[Block, Sequence[GradientRows]], want: Block
    ) -> Sequence[GradientRows]:
        blocks_below = {block: blocks[block] for block in local_under(list(blocks), want)}
        return fold_rows(blocks_below, want, self._plan.parts)

    def _swap_rows(
        self,
        outgoing: Mapping[int, Mapping[Block, Sequence[GradientRows]]],
        incoming: Mapping[int, Sequence[Block]],
    ) -> dict[Block, Sequence[GradientRows]]:
        """Trade the rows of blocks with other hosts, by their numbers; return the received ones."""
        if not outgoing and not incoming:
            return {}
        tables = len(self._counts)
        sent = {
            host: [rows for block in blocks.values() for rows in block]
            for host, blocks in outgoing.items()
        }
        sizes = {
            host: [torch.tensor([len(rows.ids) for rows in tables])]
            for host, tables in sent.items()
        }
        rooms = {
            host: torch.zeros(len(blocks) * tables, dtype=torch.int64)
            for host, blocks in incoming.items()
        }
        self._swap(sizes, {host: [table_sizes] for host, table_sizes in rooms.items()})
        room = {host: self._room(counts.tolist()) for host, counts in rooms.items()}
        self._swap(
            {
                h: [part.contiguous() for rows in tables for part in rows]
                for h, tables in sent.items()
            },
            {host: [part for rows in tables for part in rows] for host, tables in room.items()},
        )
        return {
            block: room[host][number * tables : (number + 1) * tables]
            for host, blocks in incoming.items()
            for number, block in enumerate(blocks)
        }

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
        ways = [
            {host: _memory(tensors) for host, tensors in way.items()}
            for way in (outgoing, incoming)
        ]
        for way in ways:
            self._carried.update({host: _size(views) for host, views in way.items()})
        streams = ({self._peers[host]: views for host, views in way.items()} for way in ways)
        swap(*streams, timeout=self._patience, cancelled=self._cancelled)

    def close(self) -> None:
        """End the trade: when this returns, nothing is written to any more."""
        self._is_over.set()
        if self._thread is not None:
            self._steps.put(None)
            self._thread.join()
        self._traffic.close()
        for peer in self._peers.values():
            peer.close()
