"""Puts bytes of its own into a connection under way, from a host on its way.

`python -m e2e.forger DEVICE SOURCE TARGET PORT` waits on the network device until a connection from
one address to the other is quiet: one to PORT, or with -PORT one to any other. It then sends a
segment as the source would send the next one, and prints the ports of both ends.
"""

from __future__ import annotations

import select
import socket
import struct
import sys
import time
from typing import NamedTuple

from e2e.wiretap import ends_of

_ALL = socket.htons(3)  # protocols: ETH_P_ALL
_LARGEST = 1 << 17
_PUSH_ACK = 0x18
_ENDS = 0x07  # of the flags: it begins or ends
_QUIET = 0.01  # seconds without a packet: shorter than the pause between two steps
_FEWEST = 20  # segments with data, after which it is the connection of a trade, and no call
_DEADLINE = 60.0  # seconds
_FORGED = b"\x17\x03\x03\x00\x40" + bytes(64)  # as a record of TLS begins


class _Next(NamedTuple):
    """The next message of the source."""

    ports: tuple[int, int]
    number: int
    acknowledged: int
    window: int


def _wait(device: str, source: str, target: str, port: int) -> _Next:
    """Wait until a connection with data says nothing for a moment."""
    seen: dict[tuple[int, int], int] = {}
    last: _Next | None = None
    end = time.monotonic() + _DEADLINE
    with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, _ALL) as tap:
        tap.bind((device, 3))
        while time.monotonic() < end:
            if not select.select([tap], [], [], _QUIET)[0]:
                if last is not None and seen[last.ports] >= _FEWEST:
                    return last
                continue
            found = ends_of(tap.recv(_LARGEST))
            if found is None or found[:2] != (source, target):
                continue
            segment = found[2]
            from_port, to_port, number, acknowledged = struct.unpack_from(">HHII", segment)
            if (port not in (from_port, to_port)) if port > 0 else (-port in (from_port, to_port)):
                continue
            ports, size = (from_port, to_port), len(segment) - 4 * (segment[12] >> 4)
            if segment[13] & _ENDS:
                last = None
                continue
            seen[ports] = seen.get(ports, 0) + (size > 0)
            (window,) = struct.unpack_from(">H", segment, 14)
            if last is None or last.ports == ports or seen[ports] >= _FEWEST:
                last = _Next(ports, (number + size) % (1 << 32), acknowledged, window)
    raise SystemExit("no such connection")


def _sum(data: bytes) -> int:
    """The checksum of the Internet."""
    total: int = sum(struct.unpack(f">{(len(data) + 1) // 2}H", data + bytes(len(data) % 2)))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def _forged(source: str, target: str, next_segment: _Next) -> bytes:
    """A packet with a segment of the connection."""
    ends = socket.inet_aton(source) + socket.inet_aton(target)
    words = struct.pack(
        ">HHIIBBH",
        *next_segment.ports,
        next_segment.number,
        next_segment.acknowledged,
        5 << 4,
        _PUSH_ACK,
        next_segment.window,
    )
    size = len(words) + 4 + len(_FORGED)
    pseudo = ends + struct.pack(">BBH", 0, socket.IPPROTO_TCP, size)
    check = _sum(pseudo + words + bytes(4) + _FORGED)
    segment = words + struct.pack(">HH", check, 0) + _FORGED
    head = struct.pack(">BBHHHBBH", 0x45, 0, 20 + size, 0, 0, 64, socket.IPPROTO_TCP, 0)
    return head + ends + segment


def main(device: str, source: str, target: str, port: str) -> None:
    next_segment = _wait(device, source, target, int(port))
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW) as line:
        line.sendto(_forged(source, target, next_segment), (target, 0))
    print(*next_segment.ports, flush=True)  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
