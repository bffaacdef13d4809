"""Slots that come free one after the other count together."""

from __future__ import annotations

import pytest

from brim.coordination.cluster.sightings import NodeSeen
from brim.domain.cluster import Node
from brim.kubernetes.nodes.freed_slots import FreedSlots


def counted(slots: FreedSlots, now: float, **devices: int) -> dict[str, int]:
    """The devices that count, by node."""
    nodes = {
        name: NodeSeen(up=True, brings=Node(id=name, devices=count))
        for name, count in devices.items()
    }
    found = slots.counted(nodes, now)
    return {name: seen.brings.devices for name, seen in found.items() if seen.brings}


def test_slots_freed_within_a_second_count_together() -> None:
    slots = FreedSlots()
    assert counted(slots, 0.0, a=1, b=1) == {"a": 1, "b": 1}
    assert counted(slots, 1.0, a=2, b=1) == {"a": 1, "b": 1}
    assert counted(slots, 1.9, a=2, b=3) == {"a": 1, "b": 1}
    assert counted(slots, 2.8, a=2, b=3) == {"a": 1, "b": 1}
    assert counted(slots, 2.95, a=2, b=3) == {"a": 2, "b": 3}
    assert counted(slots, 3.0, a=2, b=3) == {"a": 2, "b": 3}


def test_slots_count_soon_however_many_follow() -> None:
    slots = FreedSlots()
    counted(slots, 0.0, a=0)
    counts = [counted(slots, 1.0 + 0.5 * k, a=1 + k)["a"] for k in range(7)]
    assert counts == [0, 0, 0, 0, 0, 0, 7]


@pytest.mark.parametrize("moment", [1.1, 1.5])
def test_slots_that_are_taken_are_gone_at_once(moment: float) -> None:
    slots = FreedSlots()
    counted(slots, 0.0, a=2, b=2)
    assert counted(slots, 1.0, a=3, b=2) == {"a": 2, "b": 2}
    assert counted(slots, moment, a=1, b=0) == {"a": 1, "b": 0}
    assert counted(slots, moment + 0.1, a=3, b=0) == {"a": 1, "b": 0}
    assert counted(slots, moment + 1.1, a=3, b=0) == {"a": 3, "b": 0}


def test_a_node_that_is_new_counts_at_once() -> None:
    slots = FreedSlots()
    counted(slots, 0.0, a=2)
    assert counted(slots, 1.0, a=2, b=4) == {"a": 2, "b": 4}
    assert counted(slots, 2.0, b=4) == {"b": 4}
