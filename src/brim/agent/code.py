"""Keeps the code of a scheduled job: its agent does, with the rights of the job's account.

A scheduler reads no code of its tenants. Code can be written so that reading it takes any time and
memory, so that is done in a fork, which has only so much of both.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

from brim.agent.births import Forked
from brim.errors import BrimError
from brim.host.process import die_with_parent
from brim.host.procfs import read_proc
from brim.storage.job_file import keep_code, read_job

_MEMORY = 512 << 20  # bytes that reading and parsing may take
_SECONDS = 20  # of processor time
_TO_COLLECT = 30.0  # seconds


def keep_code_apart(
    run_dir: Path, *, memory: int = _MEMORY, seconds: int = _SECONDS, patience: float = _TO_COLLECT
) -> None:
    """Keep the code of a run as it is now; one whose code cannot be kept is run all the same.

    This process must have neither threads nor an event loop.

    Args:
        run_dir: has the job.
        memory: bytes that this may take.
        seconds: of processor time that it may take.
        patience: seconds that it may take.
    """
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        die_with_parent(parent)
        _keep(run_dir, memory, seconds)
    child = Forked(pid)
    try:
        child.wait(patience)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    if child.returncode:
        print("brim: the code of this run could not be kept", file=sys.stderr, flush=True)  # noqa: T201


def _keep(run_dir: Path, memory: int, seconds: int) -> None:
    """Keep the code, in the fork, and end."""
    status = 1
    try:
        used = resource.getrusage(resource.RUSAGE_SELF)
        _limit(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime) + seconds)
        _limit(resource.RLIMIT_DATA, _data() + memory)
        keep_code(run_dir, read_job(run_dir))
        status = 0
    except (BrimError, MemoryError, OSError) as error:
        print(f"brim: {type(error).__name__}: {error}", file=sys.stderr, flush=True)  # noqa: T201
    finally:
        os._exit(status)


def _limit(size: int, maximum: int) -> None:
    hard = resource.getrlimit(size)[1]
    maximum = maximum if hard == resource.RLIM_INFINITY else min(maximum, hard)
    resource.setrlimit(size, (maximum, maximum))


def _data() -> int:
    """The bytes of private memory that this process has already."""
    for line in read_proc("/proc/self/status").splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) << 10
    return 0
