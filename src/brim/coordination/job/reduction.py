"""Canonical reduction: which partial sums exist and in which order they fold. Pure.

Floating-point addition commutes but does not associate. The gradient of a step is therefore always
summed along one fixed binary tree over its micro-batches: node `(start, size)` covers micro-batches
`[start, start + size)`, its children are its halves, and leaves past the last micro-batch do not
exist. A worker adds up the whole subtrees ("blocks") inside its own contiguous range; the rank that
owns a slice of the parameters folds the blocks of all workers along the same tree. So the bits
depend on the number of micro-batches alone, never on the workers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple


class Block(NamedTuple):
    """A subtree of micro-batches, `[start, start + size)`, clipped at the last one.

    `size` is a power of two.
    """

    start: int
    size: int


def share(parts: int, world_size: int, rank: int) -> range:
    """The contiguous micro-batches that a rank computes.

    Empty where there are more ranks than parts.

    >>> [list(share(8, 3, rank)) for rank in range(3)]
    [[0, 1], [2, 3, 4], [5, 6, 7]]
    """
    return range(parts * rank // world_size, parts * (rank + 1) // world_size)


def even_shares(parts: int, world_size: int) -> tuple[int, ...]:
    """Return how many micro-batches each rank computes if all are assumed to be equally fast.

    >>> even_shares(8, 3)
    (2, 3, 3)
    """
    return tuple(len(share(parts, world_size, rank)) for rank in range(world_size))


def blocks_of(micro_batches: range, parts: int) -> tuple[Block, ...]:
    """Return the fewest whole subtrees that cover a contiguous range, in order.

    The tree has `parts` leaves.

    >>> blocks_of(range(2, 5), 8)
    (Block(start=2, size=2), Block(start=4, size=1))
    >>> blocks_of(range(4, 6), 6)  # leaves 6 and 7 do not exist
    (Block(start=4, size=2),)
    """
    capacity = 1 << (parts - 1).bit_length()
    start, stop = micro_batches.start, micro_batches.stop
    if not micro_batches:
        return ()
    if stop == parts:
        stop = capacity
    blocks = []
    while start < stop:
        size = start & -start or capacity
        while start + size > stop:
            size //= 2
        blocks.append(Block(start, size))
        start += size
    return tuple(_tighten(block, parts) for block in blocks if block.start < parts)


def _tighten(block: Block, parts: int) -> Block:
    """The same micro-batches under the one name that every rank gives them.

    No half of the block is missing.
    """
    start, size = block
    while size > 1 and start + size // 2 >= parts:
        size //= 2
    return Block(start, size)


def fold(blocks: Iterable[Block], want: Block, parts: int) -> tuple[tuple[Block, Block], ...]:
    """The additions `left += right`, in order, that turn the present blocks into the block wanted.

    After them the sum stands where the first block under `want` stood.

    Raises:
        ValueError: the present blocks do not cover the one wanted.

    >>> fold([Block(0, 2), Block(2, 1), Block(3, 1)], Block(0, 4), 4)
    ((Block(start=2, size=1), Block(start=3, size=1)), (Block(start=0, size=2), Block(start=2, size=1)))
    """
    at_hand = set(blocks)
    additions: list[tuple[Block, Block]] = []

    def place(block: Block) -> Block:
        block = _tighten(block, parts)
        if block in at_hand:
            return block
        start, half = block.start, block.size // 2
        if half == 0:
            raise ValueError(f"no block covers micro-batch {start}")
        first_half = place(Block(start, half))
        right = place(Block(start + half, half))
        additions.append((first_half, right))
        return first_half

    place(want)
    return tuple(additions)


@dataclass(frozen=True, slots=True)
class ReductionPlan:
    """The parts that each rank sums.

    It holds for one number of micro-batches and one arrangement of ranks on hosts.

    Args:
        parts: micro-batches of a step.
        hosts: ranks on each host, in rank order; ranks of one host are contiguous.
        shares: micro-batches of each rank; left out, they are as even as can be. They decide who
            adds up what, never in which order: the bits do not depend on them.
        machines: hosts on each machine, in order; left out, each host is a machine of its own.
    """

    parts: int
    hosts: tuple[int, ...]
    shares: tuple[int, ...] = ()
    machines: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.shares:
            object.__setattr__(self, "shares", even_shares(self.parts, self.world_size))
        if not self.machines:
            object.__setattr__(self, "machines", (1,) * len(self.hosts))
        if sum(self.machines) != len(self.hosts):
            raise ValueError(f"machines {self.machines} of {len(self.hosts)} hosts")
        if len(self.shares) != self.world_size or sum(self.shares) != self.parts:
            raise ValueError(
                f"shares {self.shares} of {self.parts} micro-batches for {self.world_size} ranks"
            )

    @property
    def world_size(self) -> int:
        return sum(self.hosts)

    @property
    def root(self) -> Block:
        return _tighten(Block(0, 1 << (self.parts - 1).bit_length()), self.parts)

    def micro_batches(self, rank: int) -> range:
        first = sum(self.shares[:rank])
        return range(first, first + self.shares[rank])

    def rank_blocks(self, rank: int) -> tuple[Block, ...]:
        """Return the parts that the rank leaves for others to fold."""
        return blocks_of(self.micro_batches(rank), self.parts)

    def host_of(self, rank: int) -> int:
        if rank >= self.world_size:
            raise ValueError(f"no rank {rank} in a world of {self.world_size}")
        return _group_of(rank, self.hosts)

    def ranks_on(self, host: int) -> range:
        return _members_of(host, self.hosts)

    def owners_on(self, host: int) -> tuple[int, ...]:
        """Return the ranks of a host that own its tables.

        They are those without micro-batches, if any, else all.

        >>> ReductionPlan(8, (3,), (4, 4, 0)).owners_on(0), ReductionPlan(8, (3,)).owners_on(0)
        ((2,), (0, 1, 2))
        """
        ranks = self.ranks_on(host)
        return tuple(rank for rank in ranks if not self.shares[rank]) or tuple(ranks)

    def local_blocks(self, host: int) -> tuple[Block, ...]:
        """The blocks of all ranks of a host, in order: the rows of the memory that they share."""
        return tuple(block for rank in self.ranks_on(host) for block in self.rank_blocks(rank))

    def host_blocks(self, host: int) -> tuple[Block, ...]:
        """Return the parts that remain once the host has folded all it can by itself."""
        return self._blocks_of_hosts(range(host, host + 1))

    def machine_of(self, host: int) -> int:
        return _group_of(host, self.machines)

    def machine_blocks(self, machine: int) -> tuple[Block, ...]:
        """Return the parts that remain once the hosts of a machine have folded all they can."""
        return self._blocks_of_hosts(_members_of(machine, self.machines))

    def _blocks_of_hosts(self, hosts: range) -> tuple[Block, ...]:
        first, last = self.ranks_on(hosts[0])[0], self.ranks_on(hosts[-1])[-1]
        covered = range(self.micro_batches(first).start, self.micro_batches(last).stop)
        return blocks_of(covered, self.parts)

    def route(self, host: int) -> Route:
        """Return the way of a host's sums to all others, and of the result to it.

        >>> plan = ReductionPlan(8, (1, 1, 1), machines=(2, 1))
        >>> [(each.above, each.below, each.across) for each in map(plan.route, range(3))]
        [(None, (1,), (2,)), (0, (), ()), (None, (), (0,))]
        """
        machine = self.machine_of(host)
        first, *rest = _members_of(machine, self.machines)
        if host != first:
            return Route(machine, above=first)
        firsts = (_members_of(number, self.machines).start for number in range(len(self.machines)))
        other_firsts = tuple(first for first in firsts if first != host)
        return Route(machine, below=tuple(rest), across=other_firsts)


@dataclass(frozen=True, slots=True)
class Route:
    """The hosts with which one exchanges sums.

    The hosts of a machine meet at its first: it folds what they have, trades slices with the first
    hosts of the other machines, and gives the result to those of its own.

    Attributes:
        machine: of this host.
        above: the host that takes all it has, and gives it the result; None where it is the first
            of its machine.
        below: hosts that give it all they have, and get the result from it.
        across: the first hosts of the other machines.
    """

    machine: int
    above: int | None = None
    below: tuple[int, ...] = ()
    across: tuple[int, ...] = ()

    @property
    def peers(self) -> tuple[int, ...]:
        """Return all hosts with which this one exchanges sums, in order."""
        parents = () if self.above is None else (self.above,)
        return tuple(sorted((*parents, *self.below, *self.across)))


def _group_of(member: int, sizes: Sequence[int]) -> int:
    """Return the group of a member, where groups follow each other."""
    stops = accumulate(sizes)
    return next(group for group, stop in enumerate(stops) if member < stop)


def _members_of(group: int, sizes: Sequence[int]) -> range:
    first = sum(sizes[:group])
    return range(first, first + sizes[group])
