"""Length-prefixed frames on a stream: four bytes of length, then the message."""

from __future__ import annotations

import struct

from brim.errors import ProtocolError

_LENGTH = struct.Struct("<I")
HEAD_BYTES = _LENGTH.size
LARGEST = 1 << 30
READ_BYTES = 1 << 16  # at once: memory for more than 128 KiB comes from the kernel, and goes back


def frame(payload: bytes) -> bytes:
    """One frame.

    >>> frame(b"abc")
    b'\\x03\\x00\\x00\\x00abc'
    """
    return _LENGTH.pack(len(payload)) + payload


def length_of(head: bytes | bytearray | memoryview, *, limit: int = LARGEST) -> int:
    """Return the length of the message behind the first `HEAD_BYTES` of a frame.

    Raises:
        ProtocolError: it cannot be meant.
    """
    (length,) = _LENGTH.unpack_from(head)
    if length > limit:
        raise ProtocolError(f"a frame of {length} bytes is larger than any message")
    return int(length)


class FrameBuffer:
    """Collects bytes as they come and gives out whole frames.

    >>> buffer = FrameBuffer()
    >>> buffer.feed(frame(b"abc")[:5]), buffer.feed(b"bc" + frame(b"d"))
    ([], [b'abc', b'd'])
    """

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes | memoryview) -> list[bytes]:
        """Raises ProtocolError where a length cannot be meant."""
        if (
            not self._bytes
            and len(data) >= HEAD_BYTES
            and length_of(data) == len(data) - HEAD_BYTES
        ):
            return [bytes(data[HEAD_BYTES:])]  # one whole frame, as nearly always
        self._bytes += data
        frames, offset, size = [], 0, len(self._bytes)
        while size - offset >= HEAD_BYTES:
            start = offset + HEAD_BYTES
            end = start + length_of(self._bytes[offset:start])
            if end > size:
                break
            frames.append(bytes(self._bytes[start:end]))
            offset = end
        del self._bytes[:offset]
        return frames
