"""Early notice of a process's death, before the kernel has cleared its memory.

Clearing takes the longer, the more memory there is.

Of a killed process the kernel ends the threads one by one. The last one clears the memory, a fifth
of a microsecond for each page; only behind that it closes descriptors and tells the parent. A
thread that is not the last closes at once what it alone holds. So one thread that holds a pipe of
its own, and does nothing else, is enough: either it ends before the last one and closes the pipe,
or all others end before it and close everything else.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import threading

from brim.host.procfs import read_proc

_CLOSE_RANGE_UNSHARE = 2
_LAST = 0xFFFFFFFF
_PF_EXITING = 4  # of a thread that executes no more line of its program
_BEHIND_OTHERS = 10  # niceness, with which others get ten times as much of a processor
_FLAGS, _EXIT_CODE = 6, 49  # among the fields of `stat` behind the name


def give_notice(pipe: int) -> None:
    """Hand over the writing end of a pipe, which closes once this process is dead.

    A byte in it says that it will.

    Where the kernel cannot do that (Linux before 5.9), it closes now, without a byte.
    """
    has_table = threading.Event()
    threading.Thread(
        target=_hold, args=(pipe, has_table), name="brim-death-notice", daemon=True
    ).start()
    has_table.wait()
    os.close(pipe)


def _hold(pipe: int, has_table: threading.Event) -> None:
    """Hold the pipe in a table of descriptors that belongs to this thread alone.

    The table has nothing else.
    """
    try:
        signal.pthread_sigmask(
            signal.SIG_BLOCK, signal.valid_signals()
        )  # handlers need the other descriptors
        close_range = getattr(ctypes.CDLL(None), "close_range", None)
        if close_range is None or close_range(pipe + 1, _LAST, _CLOSE_RANGE_UNSHARE) != 0:
            return
        close_range(0, pipe - 1, 0)
        os.write(pipe, b"\0")
    finally:
        has_table.set()
    signal.pause()


def signal_that_ended(pid: int) -> int | None:
    """Return the signal that has ended a process.

    None where there is none yet. No line of such a process is executed any more.

    Its memory, and its files, may not have been cleared away. A process that ends by itself is none
    of these.
    """
    with contextlib.suppress(OSError, ValueError, IndexError):  # it is gone, or this is no Linux
        threads = [
            _stat_of(f"/proc/{pid}/task/{thread}/stat")
            for thread in os.listdir(f"/proc/{pid}/task")
        ]
        if threads and all(int(thread[_FLAGS]) & _PF_EXITING for thread in threads):
            return int(_stat_of(f"/proc/{pid}/stat")[_EXIT_CODE]) & 0x7F or None
    return None


def clear_away_behind_others(pid: int) -> None:
    """Have the kernel clear a dead process away behind all who compute.

    That is 20 ms of work for a worker with torch, on a processor that those who go on need now. It
    ends even where they never rest, so that the memory is free in the end.
    """
    with contextlib.suppress(OSError):  # it is gone
        niceness = max(_BEHIND_OTHERS, os.getpriority(os.PRIO_PROCESS, 0))
        for thread in os.listdir(f"/proc/{pid}/task"):
            os.setpriority(os.PRIO_PROCESS, int(thread), niceness)


def _stat_of(path: str) -> list[str]:
    return read_proc(path).rpartition(")")[2].split()
