"""Carries packets between hosts, as a switch does, and loses or delays them where it is told to.

It is a process of its own, so that nothing which its user does slows packets down, and a file of
its own that needs nothing but Python. Each line that it reads is a command, and each is answered
with a line once it is carried out; it ends with its standard input.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import selectors
import socket
import sys
import time
from dataclasses import dataclass

VIRTIO_HEADER = 10  # bytes in front of each packet: how it is to be cut into segments, if at all
_TARGETS = {
    4: slice(VIRTIO_HEADER + 16, VIRTIO_HEADER + 20),
    6: slice(VIRTIO_HEADER + 24, VIRTIO_HEADER + 40),
}  # by the version of IP
_MAX_PACKET_BYTES = 1 << 17
_PACKETS_PER_TURN = 32  # packets of one host before the others have their turn


@dataclass
class _Port:
    """One host's end of its cable."""

    descriptor: int
    loses_from: bool = False
    loses_to: bool = False
    delay: float = 0.0


class _Switch:
    """Carries packets between these ports.

    Args:
        ports: in the order of their hosts.
        addresses: that packets are sent to, and whose port that is.
    """

    def __init__(self, ports: list[_Port], addresses: dict[bytes, _Port]) -> None:
        self._ports, self._addresses = ports, addresses
        self._numbers = itertools.count()
        self._waiting: list[tuple[float, int, int, bytes]] = []

    def carry(self) -> None:
        """Carry packets until there are no commands any more."""
        with selectors.DefaultSelector() as selector:
            for port in self._ports:
                os.set_blocking(port.descriptor, False)
                selector.register(port.descriptor, selectors.EVENT_READ, port)
            selector.register(sys.stdin, selectors.EVENT_READ)
            while True:
                wait = max(0.0, self._waiting[0][0] - time.monotonic()) if self._waiting else None
                for key, _ in selector.select(wait):
                    if key.data is not None:
                        self._take(key.data)
                    elif command := sys.stdin.readline():
                        self._obey(command)
                    else:
                        return
                self._deliver()

    def _obey(self, command: str) -> None:
        number, loses_from, loses_to, delay = command.split()
        port = self._ports[int(number) - 1]
        port.loses_from, port.loses_to = loses_from == "True", loses_to == "True"
        port.delay = float(delay)
        print("done", flush=True)  # noqa: T201

    def _take(self, source: _Port) -> None:
        for _ in range(_PACKETS_PER_TURN):
            try:
                packet = os.read(source.descriptor, _MAX_PACKET_BYTES)
            except OSError:  # nothing more
                return
            port = _TARGETS.get(packet[VIRTIO_HEADER] >> 4)
            target = self._addresses.get(packet[port]) if port else None
            if target is None or source.loses_from or target.loses_to:
                continue
            delay = source.delay + target.delay
            if not delay:
                _write(target.descriptor, packet)
                continue
            due = time.monotonic() + delay
            heapq.heappush(self._waiting, (due, next(self._numbers), target.descriptor, packet))

    def _deliver(self) -> None:
        while self._waiting and self._waiting[0][0] <= time.monotonic():
            _write(*heapq.heappop(self._waiting)[2:])


def _write(descriptor: int, packet: bytes) -> None:
    with contextlib.suppress(OSError):  # that host is gone: its packets are lost
        os.write(descriptor, packet)


def _main() -> None:
    ports, addresses = [], {}
    for word in sys.argv[1:]:  # ADDRESS,ADDRESS=DESCRIPTOR
        named, _, descriptor = word.partition("=")
        ports.append(_Port(int(descriptor)))
        for address in named.split(","):
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            addresses[socket.inet_pton(family, address)] = ports[-1]
    print("ready", flush=True)  # noqa: T201
    _Switch(ports, addresses).carry()


if __name__ == "__main__":
    _main()
