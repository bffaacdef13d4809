"""The errors that mean that bytes cannot be decoded."""

from __future__ import annotations

import msgspec

# What decoders raise, of JSON and of msgpack, where bytes from anywhere are no value: text that is
# no text, and nesting without end, among them.
UNDECODABLE = (msgspec.MsgspecError, ValueError, RecursionError)
