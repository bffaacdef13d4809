"""Hears the packets of a network device of a host, and puts the streams of TCP together again.

`python wiretap.py DEVICE FILE` writes down every packet until its standard input ends.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from brim_lab.chaos.hosts import DEVICE, Host

_ALL = socket.htons(3)  # protocols: ETH_P_ALL
_RCVBUFFORCE = 33  # SO_RCVBUFFORCE
_LARGEST = 1 << 17
_SYN = 2
Stream = tuple[str, int, str, int]  # from whom to whom


@contextlib.contextmanager
def tapped(host: Host, path: Path) -> Iterator[Callable[[], dict[Stream, bytes]]]:
    """Hear the packets on the cable of a host; all streams are there once it is asked for them."""
    command = ("ip", "netns", "exec", host.namespace, sys.executable, __file__, DEVICE, str(path))
    tap = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def streams_so_far() -> dict[Stream, bytes]:
        tap.communicate(timeout=30.0)
        return streams(path)

    try:
        assert tap.stdout is not None
        assert tap.stdout.readline() == b"ready\n"
        yield streams_so_far
    finally:
        tap.kill()
        tap.communicate()


def streams(path: Path) -> dict[Stream, bytes]:
    """The bytes of each end of each connection, of those that were begun while we heard."""
    begins: dict[Stream, int] = {}
    found: dict[Stream, bytearray] = {}
    for packet in _packets(path.read_bytes()):
        ends = ends_of(packet)
        if ends is None:
            continue
        source, target, segment = ends
        source_port, target_port, number = struct.unpack_from(">HHI", segment)
        stream = source, source_port, target, target_port
        if segment[13] & _SYN:
            begins[stream], found[stream] = number + 1, bytearray()
        if stream not in begins:
            continue
        data = segment[4 * (segment[12] >> 4) :]
        offset = (number - begins[stream]) % (1 << 32)
        if data and offset < 1 << 31 and not segment[13] & _SYN:
            content_of_end = found[stream]
            content_of_end.extend(bytes(max(0, offset + len(data) - len(content_of_end))))
            content_of_end[offset : offset + len(data)] = data
    return {stream: bytes(content_of_end) for stream, content_of_end in found.items()}


def calls(streams_heard: dict[Stream, bytes]) -> list[Stream]:
    """Those streams whose end has called the other, which answered later."""
    order = list(streams_heard)
    back = [(*stream[2:], *stream[:2]) for stream in order]
    return [s for index, s in enumerate(order) if back[index] not in order[:index]]


def _packets(content: bytes) -> Iterator[bytes]:
    offset = 0
    while offset < len(content):
        (length,) = struct.unpack_from("<I", content, offset)
        yield content[offset + 4 : offset + 4 + length]
        offset += 4 + length


def ends_of(packet: bytes) -> tuple[str, str, bytes] | None:
    """Source, target and TCP segment of a packet; None: it has none."""
    if packet[0] >> 4 == 4 and packet[9] == socket.IPPROTO_TCP:
        ends = [
            socket.inet_ntop(socket.AF_INET, packet[offset : offset + 4]) for offset in (12, 16)
        ]
        length = struct.unpack_from(">H", packet, 2)[0]
        return ends[0], ends[1], packet[4 * (packet[0] & 15) : length or len(packet)]
    if packet[0] >> 4 == 6 and packet[6] == socket.IPPROTO_TCP:
        ends = [
            socket.inet_ntop(socket.AF_INET6, packet[offset : offset + 16]) for offset in (8, 24)
        ]
        return ends[0], ends[1], packet[40:]
    return None


def _write(device: str, path: str) -> None:
    with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, _ALL) as tap, open(path, "wb") as file:
        tap.setsockopt(socket.SOL_SOCKET, _RCVBUFFORCE, 64 << 20)
        tap.bind((device, 3))
        print("ready", flush=True)  # noqa: T201
        while True:
            ready, _, _ = select.select([tap, sys.stdin], [], [])
            if tap in ready:
                packet = tap.recv(_LARGEST)
                file.write(struct.pack("<I", len(packet)) + packet)
            elif not os.read(sys.stdin.fileno(), 1):
                return


if __name__ == "__main__":
    _write(*sys.argv[1:])
