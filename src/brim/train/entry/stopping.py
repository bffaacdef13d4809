"""`brim.stopping`: one answer, in all processes of a command, to whether it is time to leave."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType

import torch
import torch.distributed as dist

_has_term = False
_listens = False
_group: dist.ProcessGroup | None = None


def stopping() -> bool:
    """Return whether this command is to save a checkpoint and leave: the same in all processes.

    Call it once a step, in every process and as often in each, where torch.distributed may add up
    something anyway. Processes hear SIGTERM at moments of their own. So each call asks all whether
    one of them has heard it: they answer together, and stop at the same step. In a process without
    a process group it answers for that process alone.

    From its first call on SIGTERM ends the process no more by itself; a handler of the script is
    called as before. The first call makes a group of gloo, which needs no device: a call costs a
    small message to the other processes, and waits until they have called, too.

    Example:
        >>> import brim
        >>> brim.stopping()    # once a step: if brim.stopping(): save(); break
        False
    """
    global _group
    _listen()
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return _has_term
    if _group is None:
        _group = (
            dist.group.WORLD if dist.get_backend() == "gloo" else dist.new_group(backend="gloo")
        )
    flag = torch.tensor([_has_term], dtype=torch.int32)
    dist.all_reduce(flag, dist.ReduceOp.MAX, group=_group)
    return bool(flag)


def _listen() -> None:
    """Note SIGTERM, and let a handler hear it that was there before."""
    global _listens
    if _listens:
        return
    _listens = True
    before = signal.getsignal(signal.SIGTERM)
    others: Callable[[int, FrameType | None], object] | None = before if callable(before) else None

    def note(number: int, frame: FrameType | None) -> None:
        global _has_term
        _has_term = True
        if others is not None:
            others(number, frame)

    signal.signal(signal.SIGTERM, note)
