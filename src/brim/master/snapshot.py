"""The decisions of a job as bytes: a long journal is replaced by one of these, so that its replay
stays short.
"""

from __future__ import annotations

import msgspec

import brim
from brim.decoding import UNDECODABLE
from brim.errors import EnvironmentFault
from brim.master.decisions import Decisions
from brim.master.entries import Began
from brim.master.state import State


class _Version(msgspec.Struct, frozen=True, kw_only=True):
    """What can be read of every snapshot."""

    version: str


class _Snapshot(_Version, frozen=True, kw_only=True):
    began: Began
    state: State


_encoder = msgspec.msgpack.Encoder()
_versions = msgspec.msgpack.Decoder(_Version)
_snapshots = msgspec.msgpack.Decoder(_Snapshot)


def freeze(decisions: Decisions) -> bytes:
    return _encoder.encode(
        _Snapshot(version=brim.__version__, began=decisions.began, state=decisions.state)
    )


def thaw(data: bytes) -> Decisions:
    """The decisions that `freeze` was given.

    Raises:
        EnvironmentFault: the bytes are not of this version of brim.
    """
    try:
        version = _versions.decode(data).version
        if version != brim.__version__:
            raise EnvironmentFault(
                f"the journal's snapshot is of brim {version}, this is {brim.__version__}"
            )
        snapshot = _snapshots.decode(data)
    except UNDECODABLE as error:
        raise EnvironmentFault(f"the journal's snapshot cannot be read: {error}") from error
    return Decisions(snapshot.began, snapshot.state)
