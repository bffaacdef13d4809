"""Length-prefixed frames on a stream: four bytes of length, then the message."""

from __future__ import annotations

import struct

from brim.errors import ProtocolError

_LENGTH = struct.Struct("<I")
LARGEST = 1 << 30


def frame(payload: bytes) -> bytes:
    """One frame.

    >>> frame(b"abc")
    b'\\x03\\x00\\x00\\x00abc'
    """
    return _LENGTH.pack(len(payload)) + payload


class FrameBuffer:
    """Collects bytes as they come and gives out whole frames.

    >>> buffer = FrameBuffer()
    >>> buffer.feed(frame(b"abc")[:5]), buffer.feed(b"bc" + frame(b"d"))
    ([], [b'abc', b'd'])
    """

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Raises ProtocolError where a length cannot be meant."""
        self._bytes += data
        frames, at = [], 0
        while len(self._bytes) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._bytes, at)
            if length > LARGEST:
                raise ProtocolError(f"a frame of {length} bytes is larger than any message")
            if len(self._bytes) - at - _LENGTH.size < length:
                break
            start = at + _LENGTH.size
            frames.append(bytes(self._bytes[start : start + length]))
            at = start + length
        del self._bytes[:at]
        return frames
