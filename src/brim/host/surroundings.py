"""The traits of a process that are its parent's and cannot be given later: limits, rights, namespaces.

A fork of another process stands for a new one only where both have the same of these.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import resource
from collections.abc import Mapping
from pathlib import Path

_OWN = Path("/proc/self")
# Of /proc/self/status: accounts, the mask of new files, signals that are blocked or ignored, rights,
# filters of system calls, the parts of the host that it may use.
_STATUS = (
    *("Uid", "Gid", "Groups", "Umask", "SigBlk", "SigIgn", "CapInh", "CapPrm", "CapEff", "CapBnd"),
    *("CapAmb", "NoNewPrivs", "Seccomp", "Seccomp_filters", "Cpus_allowed", "Mems_allowed"),
)
_FILES = ("cgroup", "oom_score_adj", "personality", "attr/current")


def surroundings(variables: Mapping[str, str]) -> str:
    """Return a digest of the traits that each new process would have from this one.

    Args:
        variables: of its environment, those that count.
    """
    limits = [resource.getrlimit(getattr(resource, name)) for name in _limits()]
    found = [
        sorted(variables.items()),
        limits,
        os.getpriority(os.PRIO_PROCESS, 0),
        (os.sched_getscheduler(0), os.sched_getparam(0).sched_priority),
        _link(_OWN / "root"),
        [(name, _link(_OWN / "ns" / name)) for name in _names_in(_OWN / "ns")],
        [_text(_OWN / name) for name in _FILES],
        _of_status(_text(_OWN / "status")),
    ]
    return hashlib.sha256(repr(found).encode()).hexdigest()[:32]


def _limits() -> list[str]:
    return sorted(name for name in dir(resource) if name.startswith("RLIMIT_"))


def _of_status(text: str) -> list[str]:
    """Return the lines that count.

    >>> _of_status("Name:\\tbrim\\nUmask:\\t0022\\nState:\\tR (running)\\n")
    ['Umask:\\t0022']
    """
    return [line for line in text.splitlines() if line.partition(":")[0] in _STATUS]


def _names_in(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _link(path: Path) -> str:
    with contextlib.suppress(OSError):
        return os.readlink(path)
    return ""


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_bytes().decode(errors="surrogateescape")
    return ""
