"""Hosts made of network namespaces at one switch, over cables of a given speed.

The switch is a bridge in a namespace of its own, and each cable a veth pair. `tc tbf` at both ends
lets through no more than a network card of that speed would, in either direction.
"""

from __future__ import annotations

import contextlib
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

DEVICE = "eth0"
_BURST, _LATENCY = "256kb", "50ms"  # of tbf: what goes out at once, and what may wait


@dataclass(frozen=True, slots=True)
class Place:
    """A host: a command behind `prefix` runs on it."""

    namespace: str
    address: str

    @property
    def prefix(self) -> tuple[str, ...]:
        return ("ip", "netns", "exec", self.namespace)

    def bytes_sent(self) -> int:
        """All that has left the host by its cable."""
        return self._counter("tx_bytes")

    def bytes_received(self) -> int:
        return self._counter("rx_bytes")

    def _counter(self, name: str) -> int:
        path = f"/sys/class/net/{DEVICE}/statistics/{name}"
        found = subprocess.run(
            [*self.prefix, "cat", path], check=True, capture_output=True, text=True
        )
        return int(found.stdout)


@contextlib.contextmanager
def hosts(count: int, *, mbit: int | None) -> Iterator[list[Place]]:
    """So many hosts, 10.79.0.1 and so on; gone at the end.

    Args:
        mbit: of each cable, 10^6 bits/s in either direction; None sets no limit.

    Raises:
        subprocess.CalledProcessError: `ip` or `tc` fails, as without root.
    """
    tag = uuid.uuid4().hex[:6]
    switch = f"brim-{tag}-switch"
    with contextlib.ExitStack() as undo:
        _namespace(switch, undo)
        _ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", switch, "link", "set", "bridge", "up")
        places = []
        for number in range(1, count + 1):
            place = Place(f"brim-{tag}-{number}", f"10.79.0.{number}")
            _namespace(place.namespace, undo)
            _plug_in(place, switch, f"port{number}", mbit)
            places.append(place)
        yield places


def _namespace(name: str, undo: contextlib.ExitStack) -> None:
    _ip("netns", "add", name)
    undo.callback(_ip, "netns", "del", name)
    _ip("-n", name, "link", "set", "lo", "up")


def _plug_in(place: Place, switch: str, port: str, mbit: int | None) -> None:
    host = place.namespace
    _ip("-n", switch, "link", "add", port, "type", "veth", "peer", "name", DEVICE, "netns", host)
    _ip("-n", switch, "link", "set", port, "master", "bridge", "up")
    _ip("-n", host, "addr", "add", f"{place.address}/24", "dev", DEVICE)
    _ip("-n", host, "link", "set", DEVICE, "up")
    if mbit is not None:
        limit = ("tbf", "rate", f"{mbit}mbit", "burst", _BURST, "latency", _LATENCY)
        for namespace, device in ((host, DEVICE), (switch, port)):
            _run("tc", "-n", namespace, "qdisc", "add", "dev", device, "root", *limit)


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
