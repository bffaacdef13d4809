"""Slots that come free one after the other, and count together. Pure.

A service that shrinks gives the slots of its pods within a second or two. Who grew a job by the first
of them would have nothing for the others: a job that has just changed is not soon changed again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from brim.coordination.cluster.sightings import NodeSeen

_SETTLE_SECONDS = 1.0  # seconds without another slot after which those that came free count
_MAX_SETTLE_SECONDS = 3.0  # seconds after which they count in any case


class FreedSlots:
    """Nodes as they are seen, without the slots that have just come free."""

    def __init__(self) -> None:
        self._free: dict[str, int] = {}  # devices by node, as they are
        self._counted: dict[str, int] = {}  # as they count
        self._first: float | None = None  # since when some do not count
        self._last = 0.0  # when one came free

    @property
    def is_calm(self) -> bool:
        """False while there are slots that will count once time has passed."""
        return self._first is None

    def counted(self, nodes: Mapping[str, NodeSeen], now: float) -> Mapping[str, NodeSeen]:
        """Return these nodes with the devices that count.

        Args:
            now: monotonic seconds.
        """
        free = {name: _devices(seen) for name, seen in nodes.items()}
        if any(count > self._free.get(name, count) for name, count in free.items()):
            self._first, self._last = now if self._first is None else self._first, now
        self._free = free
        if self._first is not None and (
            now - self._last >= _SETTLE_SECONDS or now - self._first >= _MAX_SETTLE_SECONDS
        ):
            self._first = None
        if self._first is None:
            self._counted = free
            return nodes
        self._counted = {
            name: min(count, self._counted.get(name, count)) for name, count in free.items()
        }
        return {name: _with_devices(seen, self._counted[name]) for name, seen in nodes.items()}


def _devices(seen: NodeSeen) -> int:
    return seen.brings.devices if seen.brings is not None else 0


def _with_devices(seen: NodeSeen, devices: int) -> NodeSeen:
    if seen.brings is None or seen.brings.devices == devices:
        return seen
    return seen._replace(brings=replace(seen.brings, devices=devices))
