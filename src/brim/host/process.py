"""Requests of a process to the Linux kernel, for itself or about another process."""

from __future__ import annotations

import contextlib
import ctypes
import io
import math
import os
import resource
import select
import signal
import socket
import sys
import weakref
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from pathlib import Path

from brim.host.clock import monotonic, sleep
from brim.host.control_groups import files_about_us
from brim.host.procfs import read_proc

AGENT = "brim-agent"  # what an agent is called
MASTER = "brim-master"  # and a master
WORKER = (
    "BRIM_WORKER"  # the variable that has a worker's name, also for what its user's code starts
)

# Of brim, of torch's autograd, of an allocator and of CUDA's driver, which refuses work after a fork:
# no work waits for them.
_USUAL_THREADS = ("brim", "pt_", "jemalloc", "cuda")
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_SYS_PIDFD_GETFD = 438  # on all architectures; Linux 5.6
_TO_BE_ADOPTED = 10.0
_TURN = Path("/proc/self/oom_score_adj")
_GOES_FIRST = 500  # as if it had half of the host's memory besides
# Files and connections of an agent: by itself, and for each of its workers.
_FILES_OF_AGENT, _FILES_OF_WORKER = 64, 8
# Processes and threads that a run has at least: without its workers, and for each of them.
_TASKS_OF_RUN, _TASKS_OF_WORKER = 16, 3
_FD_SETSIZE = 1024  # `select` takes smaller descriptors only
_own_sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def run_module(module: str, *arguments: str, python: str = sys.executable) -> list[str]:
    """Return the command that runs a module of brim as a program.

    It starts in folders of others, where a file may be called `http.py`: `-P` leaves the folder out
    of the import path.

    >>> run_module("brim.backends.up", "state", python="python3")
    ['python3', '-P', '-m', 'brim.backends.up', 'state']
    """
    return [python, "-P", "-m", module, *arguments]


def be_called(name: str) -> None:
    """Give this process a name of at most 15 bytes.

    By it, `ps` and `top` tell one role, or worker, from another.
    """
    _prctl(_PR_SET_NAME, name.encode())


def print_by_line() -> None:
    """Write each line of output as it ends, also into a file.

    Python would keep the last 8 kB of a log back, and lose them with a process that is killed.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)


def open_many_files(count: int | None = None) -> None:
    """Let this process have as many files and connections open as it may.

    A thousand, which many hosts and containers give at first, are few for who serves as many jobs.

    Args:
        count: it needs no more; None: there may be any number.
    """
    limit, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    if count is None:
        limit = hard_limit
    elif 0 <= limit < count:  # less than 0: none
        limit = count if hard_limit < 0 else min(count, hard_limit)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard_limit))


def files_for(workers: int) -> int:
    """Return how many files and connections the agent of so many workers may have open at once."""
    return _FILES_OF_AGENT + _FILES_OF_WORKER * workers


def most_workers() -> int:
    """Return the most workers that this account can have on this host, by its limits."""
    largest_pid = int(Path("/proc/sys/kernel/pid_max").read_text())
    files, processes = (
        resource.getrlimit(limit)[1] for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC)
    )
    workers = -1 if files < 0 else max(0, files - _FILES_OF_AGENT) // _FILES_OF_WORKER
    limits = [largest_pid, workers, processes, *map(_workers_within, files_about_us("pids.max"))]
    return min(limit for limit in limits if limit >= 0)  # less than 0: none


def _workers_within(most: Path) -> int:
    """Return the most workers within the tasks of a control group, by the file of its limit; -1: any."""
    try:
        free = int(most.read_text()) - int(most.with_name("pids.current").read_text())
    except (OSError, ValueError):  # there is no limit: `max`
        return -1
    return max(0, free - _TASKS_OF_RUN) // _TASKS_OF_WORKER


def exit_on_sigterm(leave: Callable[[], object] = lambda: None) -> None:
    """End well, and at once, where this process is asked to leave before it has begun its work.

    The kernel has the first process of a container ignore signals without handler.

    Args:
        leave: is done first, so that nothing is left.
    """

    def end(*_: object) -> None:
        try:
            leave()
        finally:
            os._exit(0)

    signal.signal(signal.SIGTERM, end)


def adopt_orphans() -> None:
    """Become the parent of each descendant whose own parent dies, and so learn how it ends."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process once its parent is gone."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was gone before we asked
        os._exit(1)


def die_with_adopter(adopter: int) -> None:
    """Have the kernel kill this process with its next parent.

    As `die_with_parent`, where the parent is about to end and leave it to `adopter`.
    """
    deadline = monotonic() + _TO_BE_ADOPTED
    while os.getppid() != adopter and monotonic() < deadline:
        sleep(0.0005)
    die_with_parent(adopter)


class Orphans:
    """Processes that this one has adopted, unawaited.

    What is started in a container and left alone becomes the first process's, and stays in the table
    of processes until that has taken note of its end.
    """

    def __init__(self) -> None:
        self._ended: set[int] = set()  # at the last look

    def clear_away(self, *, awaited: Container[int] = ()) -> None:
        """Take note of the end of those that had ended at the last look as well.

        Args:
            awaited: children that are waited for.
        """
        children = [pid for pid in children_of(os.getpid()) if pid not in awaited]
        ended = {pid for pid in children if state_of(pid) == "Z"}
        for pid in ended & self._ended:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        self._ended = ended


def end_family(pids: Iterable[int]) -> bool:
    """Kill processes and their descendants.

    The children of a process that is killed become those of whatever adopts them (see
    `adopt_orphans`), so that a process that is forked meanwhile is found by the next call.

    Returns:
        Whether there was one that had not ended.
    """
    found, waiting = False, list(pids)
    while waiting:
        pid = waiting.pop()
        waiting += children_of(pid)
        found = found or state_of(pid) not in ("", "Z", "X")
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    return found


def children_of(pid: int) -> list[int]:
    """Return the children of a process; none where the kernel does not tell.

    Each thread has those that it started, the first one those that were adopted.
    """
    children: list[int] = []
    with contextlib.suppress(OSError):  # it has ended
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                children += map(int, read_proc(f"/proc/{pid}/task/{thread}/children").split())
    return children


def outlive_parent() -> None:
    """Take `die_with_parent` back: from here on this process sees to its end itself."""
    _prctl(_PR_SET_PDEATHSIG, 0)


def with_equal_hashes(environment: Mapping[str, str]) -> dict[str, str]:
    """Return variables by which sets of strings have the same order in all processes of a job.

    Python seeds its hashes at random, and a vocabulary is often made of a set. What the user sets
    stays.

    >>> with_equal_hashes({"HOME": "/"}), with_equal_hashes({"PYTHONHASHSEED": "random"})
    ({'PYTHONHASHSEED': '0', 'HOME': '/'}, {'PYTHONHASHSEED': 'random'})
    """
    return {"PYTHONHASHSEED": "0", **environment}


def name_of(pid: int) -> str:
    """Return a process's name, as `be_called` set it, for people to read.

    Empty where it is gone.
    """
    try:
        return os.fsencode(read_proc(f"/proc/{pid}/comm")).decode(errors="replace").strip()
    except OSError:
        return ""


def variable_of(pid: int, name: str) -> str:
    """Return a variable of the environment that a process's program was started with.

    Empty where it has none, or is gone.
    """
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return ""
    return next(
        (
            variable.partition(b"=")[2].decode(errors="replace")
            for variable in variables
            if variable.startswith(f"{name}=".encode())
        ),
        "",
    )


def state_of(pid: int) -> str:
    """The kernel's letter for a process's state.

    `R`, `S`, `D`, `T` (stopped), `Z`; empty where it is gone.
    """
    return _facts_of(pid)[0]


def work_of(pid: int) -> str:
    """Return a measure of a process's computation so far; empty where unknown."""
    return " ".join(_facts_of(pid)[11:13]).strip()  # ticks in its own code and in the kernel


def named_threads() -> list[str]:
    """Return the names of the threads of this process that a library has named, each once."""
    names = dict.fromkeys(map(name_of, map(int, os.listdir("/proc/self/task"))))
    own = name_of(os.getpid())  # which threads of Python have, too
    return [name for name in names if name and name != own and not name.startswith(_USUAL_THREADS)]


def processor_seconds(pid: int) -> float:
    """Return the seconds that a process, and its descendants of now, have computed."""
    words = _facts_of(pid)[11:15]  # of itself, and of children whose end it has taken note of
    ticks = sum(map(int, filter(None, words)))
    return ticks / os.sysconf("SC_CLK_TCK") + sum(map(processor_seconds, children_of(pid)))


def descriptor_of(pid: int, number: int) -> int | None:
    """Return a copy of another process's descriptor; None where the kernel does not give it.

    It gives those of processes that this one may trace: root may, and others where Yama lets them.
    """
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return None
    try:
        found: int = ctypes.CDLL(None).syscall(_SYS_PIDFD_GETFD, handle, number, 0)
    finally:
        os.close(handle)
    return found if found >= 0 else None


def birth_of(pid: int) -> str:
    """Return the start time of a process, as the kernel counts.

    With it a number is never another process's. Empty where the process is gone.
    """
    return _facts_of(pid)[19]


def memory_of(pid: int) -> int | None:
    """Return the bytes of a process in memory and swap, with all pages that it shares.

    None where the kernel does not tell.
    """
    return _sum_of(f"/proc/{pid}/status", "VmRSS:", "VmSwap:")


def own_memory_of(pid: int) -> int | None:
    """Return a process's memory, where a page that n processes share counts 1/n.

    None where the kernel does not tell.

    The kernel looks at every page for it, up to 0.2 s for each GiB.
    """
    return _sum_of(f"/proc/{pid}/smaps_rollup", "Pss:", "SwapPss:")


def _sum_of(path: str, *names: str) -> int | None:
    """The sum of these lines, which are in kB."""
    try:
        lines = [
            line.split() for line in read_proc(path).split("\n")
        ]  # a name may have other ends of lines in it
    except OSError:  # it is gone, or another account's, or this is no Linux
        return None
    found = [int(words[1]) << 10 for words in lines if words and words[0] in names]
    return sum(found) if found else None


def go_first_when_memory_is_short() -> str:
    """Have the kernel kill this process before others where the host's memory runs out.

    The same holds for its child processes.

    Returns:
        The turn that it had before, for `take_turn`.
    """
    turn = ""
    with contextlib.suppress(OSError, ValueError):
        turn = _TURN.read_text().strip()
        _TURN.write_text(str(max(_GOES_FIRST, int(turn))))
    return turn


def take_turn(turn: str) -> None:
    """Take a turn again, among the processes that are killed where the host's memory runs out."""
    with contextlib.suppress(OSError):
        _TURN.write_text(turn)


def _facts_of(pid: int) -> Sequence[str]:
    """Return the kernel's facts of a process, those behind its name."""
    try:
        return read_proc(f"/proc/{pid}/stat").rpartition(")")[2].split()
    except OSError:
        return [""] * 20


def readable(descriptors: Iterable[int], timeout: float | None) -> set[int]:
    """Return the descriptors that can be read, or have closed.

    Wait at most so many seconds (None: for ever) for the first.

    Any descriptor will do, also in a process with more than 1,024 open files. `select` takes none
    of those, but waits for microseconds; `poll` waits for whole milliseconds, longer than some
    steps take.
    """
    watched = list(descriptors)
    if max(watched, default=0) < _FD_SETSIZE:
        return set(select.select(watched, [], [], timeout)[0])
    poll = select.poll()
    for descriptor in watched:
        poll.register(descriptor, select.POLLIN)
    return {ready for ready, _ in poll.poll(None if timeout is None else math.ceil(timeout * 1000))}


def close_in_children(*sockets: socket.socket) -> None:
    """Close these sockets in every process that is forked from this one.

    So our end of them ends with us.
    """
    _own_sockets.update(sockets)


def _close_ours() -> None:
    for descriptor in list(_own_sockets):
        descriptor.close()
    _own_sockets.clear()


os.register_at_fork(after_in_child=_close_ours)


def _prctl(option: int, value: object) -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value)
