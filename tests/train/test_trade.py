"""Hosts trade pieces to the bits of one worker, whenever the pieces are ready."""

from __future__ import annotations

import os
import random
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from brim.coordination.job.membership import Member, World
from brim.coordination.job.participant import Interrupted, PeerLost
from brim.coordination.job.reduction import Block, ReductionPlan, fold
from brim.train.exchange.accumulate import combine
from brim.train.exchange.folding import SharedMemory
from brim.train.exchange.layout import Layout
from brim.train.exchange.shelf import ReadyPieces, Shelf
from brim.train.exchange.trade import Trade
from brim.wire.peer import Listener, connect
from tiers import LONG

SECRET = b"of this run"
DEADLINE = 30.0
LIKE = [
    *(torch.zeros(n) for n in (7, 300, 1, 1000)),
    torch.zeros(90, dtype=torch.float64),
    torch.zeros(33),  # from here on no gradients
    torch.zeros(2, dtype=torch.float64),
    torch.zeros(9, dtype=torch.int64),
]
LAYOUT = Layout(LIKE, gradients=5)


class OnADevice(Layout):
    """Of a network that is not where the workers' shared memory is."""

    is_on_host = False


PLANS = [
    ReductionPlan(8, (2, 2)),
    ReductionPlan(8, (1, 1, 1, 1)),
    ReductionPlan(8, (1, 1)),
    ReductionPlan(7, (3, 2), (1, 0, 3, 2, 1)),
    ReductionPlan(2, (2, 2), (1, 0, 1, 0)),
    ReductionPlan(3, (1, 2, 1), (0, 1, 2, 0)),
    ReductionPlan(5, (2, 1), (2, 3, 0)),
    ReductionPlan(8, (1, 1, 1, 1), machines=(2, 2)),
    ReductionPlan(7, (2, 1, 1), (1, 0, 3, 3), machines=(1, 2)),
    ReductionPlan(9, (1, 1, 1, 1, 1), (0, 3, 3, 2, 1), machines=(3, 1, 1)),
    ReductionPlan(3, (1, 1, 1), (3, 0, 0), machines=(1, 2)),
]


def contribution(chance: random.Random) -> list[Tensor]:
    """Values of which sums round, differently in every other order."""
    drawn = [
        torch.tensor(
            [
                chance.choice([1e8, 1.0, -1e8, 1e-3]) * chance.random()
                if like.is_floating_point()
                else chance.randrange(9)
                for _ in range(like.numel())
            ]
        )
        for like in LIKE
    ]
    return [tensor_drawn.to(like.dtype) for tensor_drawn, like in zip(drawn, LIKE, strict=True)]


def folded(leaves: list[list[Tensor]], want: Block, parts: int) -> list[Tensor]:
    micros = range(want.start, min(want.start + want.size, parts))
    sums = {micro: [leaf.clone() for leaf in leaves[micro]] for micro in micros}
    for left, right in fold([Block(micro, 1) for micro in micros], want, parts):
        combine(sums[left.start], sums[right.start], sums[left.start])
    return sums[want.start]


@pytest.fixture(autouse=True, params=["plain", "encrypted"])
def streams(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Streams of workers, which are encrypted where the addresses of tests are no loopback ones."""
    kind: str = request.param
    if kind == "encrypted":
        monkeypatch.setattr("brim.wire.run_identity.is_loopback", lambda _: False)
    return kind


class Hosts:
    """The hosts of a round, with a thread for each worker."""

    def __init__(self, plan: ReductionPlan, size: int) -> None:
        self.plan, self.pieces, self.layout = plan, LAYOUT.pieces(size), LAYOUT
        self.called = threading.Event()  # the agents have something to say
        self.calls: list[str] = []  # what each call of a host by another was about
        self.memories = [os.memfd_create("test") for _ in plan.hosts]
        self.listeners = [Listener("127.0.0.1", SECRET) for _ in range(plan.world_size)]
        members = tuple(
            Member(worker=f"w{rank}", agent=f"a{plan.host_of(rank)}", address=listener.address)
            for rank, listener in enumerate(self.listeners)
        )
        self.world = World(round=3, members=members, donors={}, restore=False, shares=plan.shares)

    def exchange(self, rank: int) -> SharedMemory:
        plan, host = self.plan, self.plan.host_of(rank)
        shelf = Shelf(self.memories[host], self.layout, 1 + plan.parts)
        ready, trade = ReadyPieces(shelf.ready, self.world.round), None
        if rank == plan.ranks_on(host).start:
            trade = Trade(
                shelf,
                self.pieces,
                ready,
                plan,
                self.world,
                rank=rank,
                patience=DEADLINE,
                call=self.call,
                listener=self.listeners[rank],
                cancelled=self.called.is_set,
            )
        return SharedMemory(shelf, plan, rank=rank, pieces=self.pieces, ready=ready, trade=trade)

    def call(self, address: str, greeting: str) -> socket.socket:
        self.calls.append(greeting)
        return connect(
            address,
            greeting,
            SECRET,
            timeout=DEADLINE,
            patience=DEADLINE,
            cancelled=self.called.is_set,
        )

    def each(self, work: Callable[[int], list[Tensor] | None]) -> list[list[Tensor] | None]:
        with ThreadPoolExecutor(self.plan.world_size) as pool:
            return list(pool.map(work, range(self.plan.world_size), timeout=DEADLINE))

    def close(self) -> None:
        for listener in self.listeners:
            listener.close()
        for memory in self.memories:
            os.close(memory)


@pytest.fixture
def hosts(request: pytest.FixtureRequest) -> Iterator[Hosts]:
    hosts_made = Hosts(*request.param)
    yield hosts_made
    hosts_made.close()


def fill(exchange: SharedMemory, blocks: dict[Block, list[Tensor]], pieces: range) -> None:
    """Write some pieces of these blocks into the shared memory."""
    for block, values in blocks.items():
        for number in pieces:
            for index in exchange.pieces[number].tensors:
                exchange.rows[block][index].copy_(values[index])


@pytest.mark.parametrize(
    "hosts",
    [
        pytest.param((plan, size), marks=[] if size == 256 or plan in PLANS[::7] else [LONG])
        for plan in PLANS
        for size in (256, 1 << 20)
    ],
    indirect=True,
)
@pytest.mark.parametrize("way", ["late", "early", "void", "with worn keys", "on a device"])
def test_pieces_come_to_the_bits_of_one_worker(
    hosts: Hosts, way: str, streams: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "with worn keys":  # after each step
        monkeypatch.setattr("brim.train.exchange.trade.MOST_OF_A_CONNECTION", 0)
    if way == "on a device":
        hosts.layout = OnADevice(LIKE, gradients=5)
    chance, plan = random.Random(5), hosts.plan
    steps = [[contribution(chance) for _ in range(plan.parts)] for _ in range(3)]
    meet = threading.Barrier(plan.world_size, timeout=DEADLINE)  # as the agents' barriers are
    barriers = [threading.Barrier(ranks, timeout=DEADLINE) for ranks in plan.hosts]

    def work(rank: int) -> list[Tensor]:
        exchange = hosts.exchange(rank)
        piece_count, totals = len(exchange.pieces), []
        for step, leaves in enumerate(steps):
            exchange.begin(step)
            blocks = {b: folded(leaves, b, plan.parts) for b in plan.rank_blocks(rank)}
            is_void = (
                way == "void" and rank == plan.world_size - 1 and step == 1 and piece_count > 1
            )
            for number in range(0 if way in ("late", "on a device") else piece_count):
                values = {
                    b: [2 * t for t in tensors_of_block] for b, tensors_of_block in blocks.items()
                }
                fill(exchange, values if is_void else blocks, range(number, number + 1))
                exchange.have_ready(step, number + (number < piece_count - 1))
            fill(exchange, blocks, range(piece_count))
            exchange.have_ready(step, piece_count, void=is_void)
            barriers[plan.host_of(rank)].wait()
            exchange.add("blocks", step)
            meet.wait()
            totals += [
                tensor_fetched.clone() for tensor_fetched in exchange.fetch(exchange.total([]))
            ]
            meet.wait()
        exchange.close()
        return totals

    expected_sums = [
        sum_folded for leaves in steps for sum_folded in folded(leaves, plan.root, plan.parts)
    ]
    for totals in hosts.each(work):
        assert totals is not None
        assert all(torch.equal(a, b) for a, b in zip(totals, expected_sums, strict=True))
    anew = len(steps) if way == "with worn keys" and streams == "encrypted" else 0
    assert set(Counter(hosts.calls).values()) == {1 + anew}


@pytest.mark.parametrize("hosts", [(ReductionPlan(8, (1, 1)), 256)], indirect=True)
@pytest.mark.parametrize("ends", ["peer", "agent"])
def test_broken_trades_write_nothing(hosts: Hosts, ends: str) -> None:
    leaves = [contribution(random.Random(micro)) for micro in range(8)]
    is_begun = threading.Event()

    def work(rank: int) -> None:
        exchange = hosts.exchange(rank)
        exchange.begin(0)
        blocks = {b: folded(leaves, b, 8) for b in hosts.plan.rank_blocks(rank)}
        fill(exchange, blocks, range(len(exchange.pieces)))
        exchange.have_ready(0, 2 if rank else len(exchange.pieces))
        if rank:  # it dies with a part of its pieces gone out
            is_begun.wait(DEADLINE)
            if ends == "agent":
                hosts.called.set()
            exchange.close()
            return
        is_begun.set()
        with pytest.raises(PeerLost if ends == "peer" else (Interrupted, PeerLost)):
            exchange.add("blocks", 0)
        exchange.close()

    hosts.each(work)
    assert not [t for t in threading.enumerate() if t.name == "trade" and t.is_alive()]


@pytest.mark.parametrize(
    "hosts", [(ReductionPlan(8, (1, 1, 1, 1), machines=(2, 2)), 256)], indirect=True
)
@pytest.mark.parametrize("dead", range(4))
def test_a_death_ends_all_trades(hosts: Hosts, dead: int) -> None:
    leaves = [contribution(random.Random(micro)) for micro in range(8)]

    def work(rank: int) -> None:
        exchange = hosts.exchange(rank)
        exchange.begin(0)
        blocks = {b: folded(leaves, b, 8) for b in hosts.plan.rank_blocks(rank)}
        fill(exchange, blocks, range(len(exchange.pieces)))
        exchange.have_ready(0, 2 if rank == dead else len(exchange.pieces))
        if rank != dead:
            with pytest.raises(PeerLost):
                exchange.add("blocks", 0)
        exchange.close()  # its streams, as a death does

    hosts.each(work)
    assert not [t for t in threading.enumerate() if t.name == "trade" and t.is_alive()]


def test_messages_of_other_rounds_are_ignored() -> None:
    words = torch.zeros(8, dtype=torch.int64)
    ReadyPieces(words, 3).tell(0, 7, 5)
    ReadyPieces(words, 3).tell(1, 7, 4, void=True)
    assert ReadyPieces(words, 3).count([0], 7) == (5, False)
    assert ReadyPieces(words, 3).count([0, 1], 7) == (4, True)
    assert ReadyPieces(words, 4).count([0, 1], 7) == (0, False)
    assert ReadyPieces(words, 3).count([0, 1], 8) == (0, False)
    assert ReadyPieces(words, 3).count([0, 1, 2], 7) == (0, False)
