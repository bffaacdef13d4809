"""The decisions of a job as bytes: a long journal is replaced by one of these, so that its replay stays short."""

from __future__ import annotations

import io
import pickle
import pickletools
from typing import Any

import brim
from brim.errors import EnvironmentFault
from brim.master.decisions import Decisions

__all__ = ["freeze", "thaw"]

# What decisions are made of; nothing else is looked up, so bytes of another origin cannot have anything run.
_MODULES = (
    "brim.coordination.",
    "brim.domain.",
    "brim.master.decisions",
    "brim.master.effects",
    "brim.master.progress",
    "brim.master.root",
    "brim.master.rounds",
    "brim.master.strikes",
    "brim.master.telling",
    "brim.wire.messages",
)
# `freeze` never writes these: they give a number to a place in memory, and a damaged number asks for all there is.
_NUMBERED = {"PUT", "BINPUT", "LONG_BINPUT"}
_OTHERS = {("collections", "deque"), ("builtins", "set"), ("msgspec._utils", "rebuild")}


def freeze(decisions: Decisions) -> bytes:
    return pickle.dumps((brim.__version__, decisions), protocol=5)


def thaw(data: bytes) -> Decisions:
    """The decisions that `freeze` was given.

    Raises:
        EnvironmentFault: the bytes are not of this version of brim.
    """
    try:
        if any(opcode.name in _NUMBERED for opcode, _, _ in pickletools.genops(data)):
            raise pickle.UnpicklingError("it numbers its memo")
        version, decisions = _Reader(io.BytesIO(data)).load()
    except Exception as error:
        raise EnvironmentFault(f"the journal's snapshot cannot be read: {error}") from error
    if version != brim.__version__ or not isinstance(decisions, Decisions):
        raise EnvironmentFault(f"the journal's snapshot is of brim {version}, this is {brim.__version__}")
    return decisions


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _OTHERS or (module.startswith(_MODULES) and "." not in name):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} has no place in a snapshot")
