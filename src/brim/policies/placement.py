"""Placement of workers: buddy blocks of devices.

Unchanged jobs stay, and migrations are a last resort.

Pure. Devices are numbered along nodes, and nodes along switches, so that an aligned block of 2^k
devices is as close together as 2^k devices can be. Any number of workers is placed as the powers of
two of its binary form.

A request that fits by count always fits, after at most the migrations that `place` plans. Proof:
requests are placed from the largest block to the smallest. When a block of size s is due, all that
is placed and not movable is of size s or more, thus fills whole aligned regions of size s, and the
cluster's trees hold as many such regions as their devices allow (trees below s add up to less than
s). With s devices free by count some region is free of blocks of size s or more; what sits in it is
smaller, is moved, and is due later in the same order. (Jobs that are pinned can break the second
sentence; then the block is halved, and the job sits apart.)

Source: ElasticFlow, section 4.3 (buddy allocation); the choice of moves is ours.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from brim.domain.cluster import Cluster
from brim.domain.schedule import Decision, Snapshot
from brim.policies.kinds import on_some_nodes

_MISSING_DEVICES = ""  # holds the places of devices that nodes do not have


class DeviceBlock(NamedTuple):
    """Devices `start` to `start + size`, with `start` a multiple of `size`, a power of two."""

    start: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Blocks by job.

    Args:
        moved: jobs that keep their number of workers but sit elsewhere now.
        scattered: jobs whose block had to be halved because pinned jobs were in the way.
    """

    blocks: Mapping[str, tuple[DeviceBlock, ...]]
    moved: frozenset[str] = frozenset()
    scattered: frozenset[str] = frozenset()

    def nodes(self, cluster: Cluster) -> dict[str, dict[str, int]]:
        """Workers by node id, by job."""
        size = cluster.node_size
        found: dict[str, dict[str, int]] = {}
        for job, blocks in self.blocks.items():
            counts: dict[str, int] = {}
            for block in blocks:
                for first in range(block.start, block.start + block.size, min(size, block.size)):
                    node = cluster.nodes[first // size].id
                    counts[node] = counts.get(node, 0) + min(size, block.size)
            found[job] = counts
        return found


def _halves(total: int) -> list[int]:
    """The powers of two of `total`, largest first."""
    return [1 << k for k in range(total.bit_length() - 1, -1, -1) if total >> k & 1]


class _Trees:
    """Free blocks by size, and their holders."""

    def __init__(self, devices: int) -> None:
        self.free: dict[int, list[int]] = {}
        start = 0
        for size in _halves(devices):
            self.free[size] = [start]
            start += size
        self.trees = [(block[0], size) for size, block in self.free.items()]
        self.blocks: dict[int, tuple[int, str]] = {}  # start -> (size, job)
        self.starts: list[int] = []

    def take(self, block: DeviceBlock, job: str) -> bool:
        """Hold exactly `block` if all of it is free."""
        size, start = block.size, block.start
        while not self._is_free(size, start):
            size *= 2
            start -= start % size
            if size > self.trees[0][1]:
                return False
        self._drop(size, start)
        while size > block.size:
            size //= 2
            end = start + size if block.start < start + size else start
            insort(self.free.setdefault(size, []), end)
            start = block.start - block.start % size
        self.blocks[block.start] = (block.size, job)
        insort(self.starts, block.start)
        return True

    def release(self, block: DeviceBlock) -> None:
        """Give `block` back and join buddies."""
        del self.blocks[block.start]
        del self.starts[bisect_left(self.starts, block.start)]
        start, size = block
        while not self._is_tree(start, size) and self._is_free(size, start ^ size):
            self._drop(size, start ^ size)
            start = min(start, start ^ size)
            size *= 2
        insort(self.free.setdefault(size, []), start)

    def best(self, size: int) -> DeviceBlock | None:
        """The start of the smallest free block that holds `size`; the first of several."""
        fitting = [s for s, starts in self.free.items() if s >= size and starts]
        return DeviceBlock(self.free[min(fitting)][0], size) if fitting else None

    def regions(self, size: int) -> list[tuple[int, int]]:
        """Return (start, devices in use) of aligned regions of `size`.

        Their blocks are all smaller than that.
        """
        used: dict[int, int] = {}
        for start, (block_size, _) in self.blocks.items():
            region = start - start % size
            used[region] = used.get(region, 0) + (block_size if block_size < size else 1 << 60)
        return sorted(
            (
                (region, count)
                for region, count in used.items()
                if count < size and self._overlaps(region, size)
            ),
            key=lambda entry: (entry[1], entry[0]),
        )

    def blocks_in(self, start: int, size: int) -> list[tuple[DeviceBlock, str]]:
        """Blocks held within the region."""
        first, last = bisect_left(self.starts, start), bisect_left(self.starts, start + size)
        return [
            (DeviceBlock(s, self.blocks[s][0]), self.blocks[s][1]) for s in self.starts[first:last]
        ]

    def _is_free(self, size: int, start: int) -> bool:
        starts = self.free.get(size, [])
        place = bisect_left(starts, start)
        return place < len(starts) and starts[place] == start

    def _drop(self, size: int, start: int) -> None:
        starts = self.free[size]
        del starts[bisect_left(starts, start)]

    def _is_tree(self, start: int, size: int) -> bool:
        return (start, size) in self.trees

    def _overlaps(self, start: int, size: int) -> bool:
        return any(tree <= start and start + size <= tree + whole for tree, whole in self.trees)


def place(
    placed_before: Mapping[str, tuple[DeviceBlock, ...]],
    demand: Mapping[str, int],
    *,
    devices: int,
    pinned: frozenset[str] = frozenset(),
) -> Placement:
    """Place `demand` workers by job, given where jobs sit.

    Jobs of unchanged size stay; a job that shrinks stays on a part of its blocks; one that grows
    takes the block around its own if that is free, else the smallest free one that fits. If none
    fits, the region with the fewest devices in use is cleared and those in it move.

    Args:
        devices: in all; the sum of `demand` must not exceed it.
        pinned: jobs that must not be moved.
    """
    assert sum(demand.values()) <= devices, "more workers than devices"
    work = _Placing(devices, pinned)
    for job in sorted(placed_before):
        if demand.get(job) and sum(block.size for block in placed_before[job]) >= demand[job]:
            work.keep(job, placed_before[job], demand[job])
    for job in sorted(demand):
        if demand[job] and job not in work.blocks:
            work.ask(job, demand[job], placed_before.get(job, ()))
    work.settle()
    moved = frozenset(
        job
        for job, blocks in work.blocks.items()
        if job in placed_before
        and sum(b.size for b in placed_before[job]) == demand[job]
        and sorted(placed_before[job]) != sorted(blocks)
    )
    blocks = {job: tuple(sorted(work.blocks[job])) for job in sorted(work.blocks)}
    return Placement(blocks=blocks, moved=moved, scattered=frozenset(work.scattered))


class _Placing:
    """Blocks that are due, largest first, and the placed ones."""

    def __init__(self, devices: int, pinned: frozenset[str]) -> None:
        self.trees = _Trees(devices)
        self.pinned = pinned
        self.blocks: dict[str, list[DeviceBlock]] = {}
        self.due: list[tuple[int, str, int, int]] = []
        self.scattered: set[str] = set()
        self.count = 0

    def keep(self, job: str, blocks: tuple[DeviceBlock, ...], workers: int) -> None:
        """Stay on `blocks`, or on the parts of them that `workers` need."""
        own_blocks = sorted(blocks, key=lambda block: (-block.size, block.start))
        unchanged = sum(block.size for block in own_blocks) == workers
        due = [block.size for block in own_blocks] if unchanged else _halves(workers)
        while due:
            size = due.pop(0)
            fitting = [k for k, block in enumerate(own_blocks) if block.size >= size]
            if not fitting:  # it sits apart: two halves do as well
                due = sorted([*due, size // 2, size // 2], reverse=True)
                continue
            chosen = own_blocks.pop(fitting[-1])
            while chosen.size > size:
                half = chosen.size // 2
                own_blocks.append(DeviceBlock(chosen.start + half, half))
                chosen = DeviceBlock(chosen.start, half)
            is_taken = self.trees.take(chosen, job)
            assert is_taken, "what a job holds is its own"
            self.blocks.setdefault(job, []).append(chosen)
            own_blocks.sort(key=lambda block: (-block.size, block.start))

    def ask(self, job: str, workers: int, near: tuple[DeviceBlock, ...]) -> None:
        """Queue the blocks of `job`; the first one would like to be around `near`."""
        self.blocks[job] = []
        hint = near[0].start if near else -1
        for size in _halves(workers):
            self._push(size, job, hint)

    def _push(self, size: int, job: str, hint: int) -> None:
        self.count += 1
        largest = self.trees.trees[0][1]
        for _ in range(max(size // largest, 1)):
            heapq.heappush(self.due, (-min(size, largest), job, self.count, hint))

    def settle(self) -> None:
        """Place all that is due."""
        while self.due:
            size, job, _, hint = heapq.heappop(self.due)
            size = -size
            if hint >= 0 and self._take(DeviceBlock(hint - hint % size, size), job):
                continue
            block = self.trees.best(size) or self._clear(size)
            if block is None:
                self.scattered.add(job)
                self._push(size // 2, job, hint)
                self._push(size // 2, job, -1)
                continue
            self._take(block, job)

    def _take(self, block: DeviceBlock, job: str) -> bool:
        if not self.trees.take(block, job):
            return False
        self.blocks[job].append(block)
        return True

    def _clear(self, size: int) -> DeviceBlock | None:
        """Move all jobs out of the region of `size` with the fewest devices in use.

        None if that is not allowed.
        """
        for start, _ in self.trees.regions(size):
            jobs_inside = self.trees.blocks_in(start, size)
            if any(job in self.pinned for _, job in jobs_inside):
                continue
            for block, job in jobs_inside:
                self.trees.release(block)
                self.blocks[job].remove(block)
                self._push(block.size, job, -1)
            return DeviceBlock(start, size)
        return None


# A live cluster: nodes of different sizes, which are lost and come back ---------------------------


def on_nodes(snapshot: Snapshot, decision: Decision) -> Decision:
    """The decision with its workers placed on nodes, given on which they are now.

    Every node has as many places as the next power of two that holds the largest, so that each is a
    whole block; nobody sits on those that it has no devices for. Places within a node mean nothing,
    so nothing is remembered: what jobs hold on a node is packed again each time, from the largest
    block to the smallest, which always fits. Jobs that cannot be on all nodes are placed first.
    """
    cluster = snapshot.cluster
    width = 1 << (max(node.devices for node in cluster.nodes) - 1).bit_length()
    demand = {job: count for job, count in decision.workers.items() if count}
    current = {state.job.id: state.nodes for state in snapshot.jobs if state.nodes}
    staying = {job: _remaining(current[job], demand.get(job, 0)) for job in current}
    pinned = decision.pinned | {state.job.id for state in snapshot.jobs if state.anywhere}
    if restricted := on_some_nodes(snapshot, demand, staying, pinned=pinned):
        unrestricted = sorted(
            staying.keys() - restricted.keys(), key=lambda job: (job not in pinned, job)
        )
        staying = {
            **_kept_by_others(restricted, {job: staying[job] for job in unrestricted}, cluster),
            **restricted,
        }
        demand |= {job: sum(nodes.values()) for job, nodes in restricted.items()}
    workers = {**decision.workers, **{job: demand[job] for job in restricted}}
    demand = {job: count for job, count in demand.items() if count}
    missing_devices = sum(width - node.devices for node in cluster.nodes)
    placement = place(
        _packed(cluster, width, staying),
        {**demand, _MISSING_DEVICES: missing_devices},
        devices=width * len(cluster.nodes),
        pinned=pinned | {_MISSING_DEVICES, *restricted},
    )
    nodes = {job: _by_node(cluster, width, placement.blocks[job]) for job in demand}
    moved = frozenset(
        job
        for job in demand
        if job in current
        and sum(current[job].values()) == demand[job]
        and current[job] != nodes[job]
    )
    return replace(decision, workers=workers, nodes=nodes, moved=moved)


def _kept_by_others(
    restricted: Mapping[str, Mapping[str, int]],
    staying: Mapping[str, Mapping[str, int]],
    cluster: Cluster,
) -> dict[str, dict[str, int]]:
    """Return the devices that others can keep beside those that have their nodes already."""
    free = {node.id: node.devices for node in cluster.nodes}
    found: dict[str, dict[str, int]] = {}
    for job, nodes in {**restricted, **staying}.items():
        found[job] = {node: min(count, free.get(node, 0)) for node, count in nodes.items()}
        for node, count in found[job].items():
            free[node] = free.get(node, 0) - count
    return {job: found[job] for job in staying}


def _remaining(nodes: Mapping[str, int], count: int) -> dict[str, int]:
    """Return the remaining workers of a job that shrinks.

    It leaves the nodes where it has the fewest workers, of equal ones the last.
    """
    remaining, surplus, order = dict(nodes), sum(nodes.values()) - count, list(nodes)
    for node in sorted(order, key=lambda node: (nodes[node], -order.index(node))):
        dropped = min(remaining[node], max(surplus, 0))
        remaining[node] -= dropped
        surplus -= dropped
    return remaining


def _packed(
    cluster: Cluster, width: int, current: Mapping[str, Mapping[str, int]]
) -> dict[str, tuple[DeviceBlock, ...]]:
    """The blocks of jobs by the nodes that they are on, and of those places that are no devices."""
    blocks: dict[str, list[DeviceBlock]] = {}
    by_node: dict[str, list[tuple[int, str]]] = {node.id: [] for node in cluster.nodes}
    for job, nodes in current.items():
        for name, count in nodes.items():
            if name in by_node:  # the others are gone
                by_node[name] += [(size, job) for size in _halves(count)]
    for index, node in enumerate(cluster.nodes):
        start, end = index * width, index * width + node.devices
        pieces = by_node[node.id]
        # Behind larger powers of two, each is where a multiple of its size begins.
        for size, job in sorted(pieces, key=lambda piece: (-piece[0], piece[1])):
            if start + size <= end:  # else the node has fewer devices than it had
                blocks.setdefault(job, []).append(DeviceBlock(start, size))
                start += size
        node_end = (index + 1) * width
        for size in _halves(width - node.devices):
            node_end -= size
            blocks.setdefault(_MISSING_DEVICES, []).append(DeviceBlock(node_end, size))
    return {job: tuple(job_blocks) for job, job_blocks in blocks.items()}


def _by_node(cluster: Cluster, width: int, blocks: tuple[DeviceBlock, ...]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for block in sorted(blocks):
        size = min(width, block.size)
        for first in range(block.start, block.start + block.size, size):
            node = cluster.nodes[first // width].id
            counts[node] = counts.get(node, 0) + size
    return counts
