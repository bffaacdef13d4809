"""Bytes to messages and back: every type is checked, and a misfit is a `ProtocolError`."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

from brim.decoding import UNDECODABLE
from brim.errors import ProtocolError

T = TypeVar("T")


class Codec(Generic[T]):
    """Bytes to a message of one conversation and back.

    >>> from brim.wire.messages import Ask
    >>> codec = Codec(Ask)
    >>> codec.decode(codec.encode(Ask(verb="resize", workers=3))).workers
    3
    """

    def __init__(self, kind: Any) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(kind)

    def encode(self, message: T) -> bytes:
        return self._encoder.encode(message)

    def decode(self, data: bytes | memoryview) -> T:
        """Raises ProtocolError where the bytes are no message of this conversation."""
        try:
            return self._decoder.decode(data)
        except UNDECODABLE as error:
            raise ProtocolError(f"not a message of this version: {error}") from error
