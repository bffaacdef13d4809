"""The GPUs of a host: counted without CUDA, so that a process can still be forked, and shared out."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator, Mapping

import torch

from brim.host.gpus import VISIBLE, take_gpu

_BY_NVML = "PYTORCH_NVML_BASED_CUDA_CHECK"
_TO_TRY = 60  # seconds


@contextlib.contextmanager
def gpus_untouched() -> Iterator[None]:
    """Have torch count GPUs without CUDA meanwhile.

    Where CUDA was asked, no fork can use it.
    """
    with _environment({_BY_NVML: "1"}):
        yield


@contextlib.contextmanager
def gpus_hidden() -> Iterator[None]:
    """Have torch see no GPU meanwhile, and not look for one.

    Where it sees one, also work on the CPU asks CUDA: a step of Adam, whether CUDA is recording
    what it does; a backward pass starts a thread for each GPU.
    """
    with _environment({_BY_NVML: "1", VISIBLE: ""}):
        yield


def hide_gpus() -> None:
    """Have this process, and all that it starts, see no GPU."""
    os.environ[VISIBLE] = ""


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    previous = {name: os.environ.get(name) for name in variables}
    os.environ |= variables
    try:
        yield
    finally:
        for name, value in previous.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def forks_can_use_gpus() -> bool:
    """Return whether a fork of this process can use the host's GPUs, as far as there are any.

    One fork is made that tries: torch does not know of all that has asked CUDA before.
    """
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            signal.alarm(_TO_TRY)  # which ends it
            status = 0 if _can_compute() else 1
        finally:
            os._exit(status)
    return os.waitpid(pid, 0)[1] == 0


def _can_compute() -> bool:
    """Return whether this process can make a backward pass on a GPU, as far as there is any."""
    with gpus_untouched():
        if not torch.cuda.is_available():
            return True
    try:
        total = torch.ones(1, device="cuda", requires_grad=True).sum()
        total.backward()  # type: ignore[no-untyped-call]
    except RuntimeError:
        return False
    return True


def take_own_gpu(place: int) -> None:
    """Let this process, and all that it starts, see one GPU of those that it could see.

    Call it before anything has asked CUDA. With one GPU, and with none, nothing changes. Workers of
    other jobs on this host leave it alone, as far as there are others.

    Args:
        place: of this worker among those of its agent.
    """
    with gpus_untouched():
        count = torch.cuda.device_count()
    if count < 2:
        return
    gpus = [word_of(number, count, os.environ.get(VISIBLE)) for number in range(count)]
    os.environ[VISIBLE] = take_gpu(place, gpus)


def word_of(place: int, count: int, visible: str | None) -> str:
    """Return the word for CUDA that names one GPU.

    Args:
        place: whose.
        count: of GPUs that can be seen.
        visible: the word that names these; None where all can be seen.

    >>> word_of(1, 4, None), word_of(5, 4, None), word_of(1, 2, "GPU-8f1a, GPU-27cc")
    ('1', '1', 'GPU-27cc')
    """
    place %= count
    return str(place) if visible is None else visible.split(",")[place].strip()
