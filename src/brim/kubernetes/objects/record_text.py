"""The record of a scheduled job as a text in the status of its object. Pure.

Its only reader is an operator. It is whole or it is none: a damaged text, or one of a later version
of brim, is an error of the environment, and no reason to begin a job from scratch.
"""

from __future__ import annotations

import base64
import zlib
from dataclasses import replace
from typing import Any

import msgspec

from brim.decoding import UNDECODABLE
from brim.domain.scheduled_job import ScheduledJob
from brim.errors import BrimError, EnvironmentFault

LARGEST = 512 << 10  # characters: a server takes objects of 1.5 MiB
_VERSION = "1"
_LARGEST_UNPACKED = 8 << 20  # bytes
_LONGEST_PROBLEM = 8_192  # characters
_LONGEST_WORD = 256
_LARGEST_NUMBER = 2**63

_decode = msgspec.msgpack.Decoder(ScheduledJob).decode


def pack_record(job: ScheduledJob) -> str:
    """Return a job's record as text; its last words are cut where they are too long.

    Only the last words of its processes have no limit of their own, and may be no value of ours.
    """
    try:
        text = _packed(job)
    except (OverflowError, ValueError):  # numbers beyond 64 bits, halves of characters
        text = ""
    if text and len(text) <= LARGEST:
        return text
    plain = {
        name: value for name, value in job.summary.items() if _is_plain(name) and _is_plain(value)
    }
    problem = job.problem[:_LONGEST_PROBLEM].encode(errors="replace").decode()
    return _packed(replace(job, summary=plain, problem=problem))


def _packed(job: ScheduledJob) -> str:
    packed = zlib.compress(msgspec.msgpack.encode(job))
    return f"{_VERSION}.{base64.b64encode(packed).decode()}"


def _is_plain(value: Any) -> bool:
    if isinstance(value, int):
        return -_LARGEST_NUMBER < value < _LARGEST_NUMBER
    is_text = isinstance(value, str) and len(value) <= _LONGEST_WORD and value.isprintable()
    return is_text or isinstance(value, float)


def unpack_record(text: object, *, uid: str) -> ScheduledJob:
    """Return the job that `pack_record` was given.

    Args:
        uid: of the object that has it.

    Raises:
        EnvironmentFault: it is damaged, of a later version, or of another object.
    """
    version, dot, packed = text.partition(".") if isinstance(text, str) else ("", "", "")
    if not dot or len(packed) > LARGEST:
        raise EnvironmentFault("the record of this job is damaged")
    if version != _VERSION:
        raise EnvironmentFault(
            f"the record of this job is of version {version[:20]!r}: an operator of another version "
            "of brim wrote it"
        )
    try:
        job = _decode(_unzipped(base64.b64decode(packed, validate=True)))
    except (BrimError, zlib.error, *UNDECODABLE) as error:  # a spec in it checks itself
        raise EnvironmentFault(f"the record of this job is damaged: {error}") from error
    if job.key != uid:
        raise EnvironmentFault("the record of this job is that of another object")
    return job


def _unzipped(packed: bytes) -> bytes:
    unzip = zlib.decompressobj()
    content = unzip.decompress(packed, _LARGEST_UNPACKED)
    if not unzip.eof or unzip.unused_data:
        raise EnvironmentFault("it has another length")
    return content
