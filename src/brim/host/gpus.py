"""The GPUs that this process can see, without asking CUDA, and one of them for each worker."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from brim.host.clock import monotonic, sleep

VISIBLE = "CUDA_VISIBLE_DEVICES"
_GPUS = Path("/proc/driver/nvidia/gpus")
# seconds for the kernel to clear a dead worker away, which it does behind all who compute
_TO_BE_FREED = 3.0
_POLL_INTERVAL = 0.02
_names_taken: list[socket.socket] = []  # names that are this process's as long as it lives


def visible_gpus(environment: Mapping[str, str]) -> list[str]:
    """Return the words by which CUDA is told of the GPUs that can be seen.

    >>> visible_gpus({"CUDA_VISIBLE_DEVICES": "GPU-8f1a, GPU-27cc"})
    ['GPU-8f1a', 'GPU-27cc']
    """
    visible = environment.get(VISIBLE)
    if visible is not None:
        return [word.strip() for word in visible.split(",") if word.strip()]
    with contextlib.suppress(OSError):
        return [str(number) for number, _ in enumerate(_GPUS.iterdir())]
    return []


def take_gpu(place: int, gpus: Sequence[str]) -> str:
    """Take a GPU until this process ends; workers of other jobs on this host leave it alone.

    Args:
        place: of a worker among those of its agent: it takes the GPU of this place, or the next
            that nobody has; where all are taken, it shares that of its place. If there are as many
            GPUs as places, one may be a dead worker's: it is waited for.
        gpus: that can be seen, at least one.
    """
    first = place % len(gpus)
    candidates = [*gpus[first:], *gpus[:first]]
    deadline = monotonic() + (_TO_BE_FREED if place < len(gpus) else 0.0)
    while True:
        for gpu in candidates:
            if _take(gpu):
                return gpu
        if monotonic() >= deadline:
            return candidates[0]
        sleep(_POLL_INTERVAL)


def _take(gpu: str) -> bool:
    """Take a GPU until this process ends; False where another has it.

    A name in the kernel says so, which all users of a host see, and containers do not share.
    """
    mark = socket.socket(socket.AF_UNIX)
    try:
        mark.bind(f"\0brim-gpu-{gpu}")
    except OSError:
        mark.close()
        return False
    _names_taken.append(mark)
    return True
