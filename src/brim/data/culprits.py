"""Finds the sample that kills the process that reads it, as a damaged image does in some decoders."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from brim.errors import UserCodeError
from brim.host.clock import monotonic
from brim.host.inherited import Inherited, inherited_by_forks
from brim.host.process import be_called, die_with_parent

_SEARCH_TIMEOUT = 60.0  # seconds for all of them
_NO_SAMPLE = -1  # where none was read, and the process ended before
_POLL_INTERVAL = 0.2  # seconds between looks at something else
_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_fork = multiprocessing.get_context("fork")


def find_deadly_sample(
    dataset: Any, indices: Sequence[int], *, tick: Callable[[], None] = lambda: None
) -> UserCodeError | None:
    """Read samples one by one in a process of their own; return the error that names the deadly one.

    None where all can be read, or where it is not a sample that ended the process.

    Args:
        dataset: map-style.
        indices: of the samples that somebody died over.
        tick: called now and then; may raise.
    """
    index = _fork.RawValue("q", _NO_SAMPLE)
    inherited = inherited_by_forks()
    process = _fork.Process(
        target=_read_each, args=(dataset, indices, index, inherited, os.getpid()), daemon=True
    )
    with warnings.catch_warnings():  # of forking beside threads, as where loaders are
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()
    end = monotonic() + _SEARCH_TIMEOUT
    try:
        while process.exitcode is None and monotonic() < end:
            process.join(_POLL_INTERVAL)
            tick()
    finally:
        process.kill()
        process.join()
    status = process.exitcode or 0
    if status == 0 or -status in _FROM_OUTSIDE or index.value == _NO_SAMPLE:
        return None
    return _named(type(dataset).__name__, index.value, status)


def _read_each(
    dataset: Any, indices: Sequence[int], index: Any, inherited: Inherited, parent: int
) -> None:
    die_with_parent(parent)
    be_called("brim-culprits")
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    inherited.make_own()
    torch.set_num_threads(1)
    for sample in indices:
        index.value = sample
        with contextlib.suppress(Exception):  # what it raises is told where it is read
            dataset[sample]
    os._exit(0)


def _named(dataset: str, index: int, status: int) -> UserCodeError:
    ending = f"signal {-status}, {signal.Signals(-status).name}" if status < 0 else f"exit {status}"
    return UserCodeError(
        f"sample {index} of {dataset} kills the process that reads it ({ending})\n"
        f"  hint: repair it, or leave it out: torch.utils.data.Subset(dataset, "
        f"[i for i in range(len(dataset)) if i != {index}])"
    )
