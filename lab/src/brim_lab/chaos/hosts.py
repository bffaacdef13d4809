"""Hosts made of network namespaces, joined by a cable that can be cut and delayed.

The cable is two TUN devices and a thread that carries packets between them. A veth pair with `tc
netem` would do the same in the kernel, but many kernels have no netem, and a link that is set down
is noticed by both ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import itertools
import os
import selectors
import shutil
import struct
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_DEVICE = Path("/dev/net/tun")
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_MTU = 9000


@dataclass(frozen=True, slots=True)
class Host:
    """A network namespace; a command behind `prefix` runs in it."""

    number: int
    namespace: str
    address: str

    @property
    def prefix(self) -> tuple[str, ...]:
        return ("ip", "netns", "exec", self.namespace)


@dataclass(slots=True)
class _Direction:
    """One direction of the cable: what happens to packets from one end to the other."""

    source: int
    target: int
    cut: bool = False
    delay: float = 0.0
    waiting: list[tuple[float, int, bytes]] = field(default_factory=list)


class Cable:
    """Carries packets between two hosts until it is closed.

    Args:
        first, second: file descriptors of the ends.
    """

    def __init__(self, first: int, second: int) -> None:
        # Host 2's packets go out by the second end. `cut to host 2` loses what comes in by it.
        self._to_second, self._from_second = _Direction(first, second), _Direction(second, first)
        self._numbers = itertools.count()
        self._closing, self._closed = os.pipe()
        self._thread = threading.Thread(target=self._carry, name="cable", daemon=True)
        self._thread.start()

    def cut(self, *, to_second: bool = True, from_second: bool = True) -> None:
        """Lose packets of these directions from now on."""
        self._to_second.cut, self._from_second.cut = to_second, from_second

    def delay(self, seconds: float) -> None:
        """Packets of both directions take so long from now on."""
        self._to_second.delay = self._from_second.delay = seconds

    def mend(self) -> None:
        """Lose and delay nothing any more."""
        self.cut(to_second=False, from_second=False)
        self.delay(0.0)

    def close(self) -> None:
        os.close(self._closed)
        self._thread.join()
        for descriptor in (self._to_second.source, self._from_second.source, self._closing):
            os.close(descriptor)

    def _carry(self) -> None:
        directions = (self._to_second, self._from_second)
        with selectors.DefaultSelector() as selector:
            for way in directions:
                selector.register(way.source, selectors.EVENT_READ, way)
            selector.register(self._closing, selectors.EVENT_READ)
            while True:
                due = min((way.waiting[0][0] for way in directions if way.waiting), default=None)
                wait = None if due is None else max(0.0, due - time.monotonic())
                for key, _ in selector.select(wait):
                    if key.data is None:
                        return
                    self._take(key.data)
                for way in directions:
                    _deliver(way)

    def _take(self, way: _Direction) -> None:
        packet = os.read(way.source, 1 << 16)
        if not way.cut:
            heapq.heappush(way.waiting, (time.monotonic() + way.delay, next(self._numbers), packet))


def _deliver(way: _Direction) -> None:
    while way.waiting and way.waiting[0][0] <= time.monotonic():
        _, _, packet = heapq.heappop(way.waiting)
        with contextlib.suppress(OSError):  # the other host is gone: its packets are lost
            os.write(way.target, packet)


def can_make_hosts() -> bool:
    """Return whether this process may make network namespaces and devices."""
    return (
        os.geteuid() == 0
        and shutil.which("ip") is not None
        and os.access(_DEVICE, os.R_OK | os.W_OK)
    )


@contextlib.contextmanager
def two_hosts() -> Iterator[tuple[tuple[Host, Host], Cable]]:
    """Host 1 and host 2, 10.77.0.1 and 10.77.0.2, and the cable between them; gone at the end.

    Raises:
        OSError: this process may not (see `can_make_hosts`).
        subprocess.CalledProcessError: `ip` does not do what it is told.
    """
    tag = uuid.uuid4().hex[:6]
    hosts = tuple(Host(n, f"brim-{tag}-{n}", f"10.77.0.{n}") for n in (1, 2))
    ends: list[int] = []
    with contextlib.ExitStack() as undo:
        for host in hosts:
            _ip("netns", "add", host.namespace)
            undo.callback(_ip, "netns", "del", host.namespace)
            ends.append(_end(host, f"brim{tag}{host.number}"))
        cable = Cable(*ends)
        undo.callback(cable.close)
        yield (hosts[0], hosts[1]), cable


def _end(host: Host, device: str) -> int:
    """Make one end of the cable, and return its file descriptor.

    What the host sends by the device can be read there, and what is written there reaches the host.
    """
    descriptor = os.open(_DEVICE, os.O_RDWR | os.O_CLOEXEC)
    fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH", device.encode(), _IFF_TUN | _IFF_NO_PI))
    inside = ("-n", host.namespace)
    _ip("link", "set", device, "netns", host.namespace)
    _ip(*inside, "addr", "add", f"{host.address}/24", "dev", device)
    _ip(*inside, "link", "set", device, "mtu", str(_MTU), "up")
    _ip(*inside, "link", "set", "lo", "up")
    return descriptor


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
