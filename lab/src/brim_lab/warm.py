"""Starts `python -m brim…` as a fork of a process that has imported torch and brim already.

Importing them takes seconds of processor time, a fork milliseconds, and tests start some thousand
such processes. Once `use` was called, `subprocess` has each command of brim forked from one warm
process, and what a fork starts in turn is forked from it, as long as it may fork. Everything else
is started as usual. From outside a fork looks as the program would: its parent, session,
descriptors, command line and environment (those in `/proc`, too) are what they would be, and so is
the way in which it ends.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import json
import logging
import os
import platform
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import types
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from brim.host.process import be_called
from brim_lab.chaos import entrance

_ROOM = 1 << 14  # bytes that a fork has for its command line, and as many for its environment
_MAX_REQUEST_BYTES = 1 << 17  # bytes of a request
_MOST_DESCRIPTORS = 32  # of a request
_TO_BE_ADOPTED = 30.0  # seconds
_TO_IMPORT = 120.0  # seconds for the warm process to be there
_LOOK = 1.0  # seconds between two looks whether the parent is there
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_MM = 35
_PR_SET_MM_ENDS = (9, 11)  # of the command line, of the environment
_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37
_ARG_START = 45  # of /proc/self/stat, behind the name: arg_start, arg_end, env_start, env_end
# Variables that the interpreter or a library reads once, as it starts.
_READ_ONCE = ("PYTHON", "LD_", "OMP_", "MKL_", "OPENBLAS_", "GRPC_", "CUDA_", "LC_", "LANG")
# Read as often as it is needed. A scheduler leaves it out of the environment of its jobs.
_READ_OFTEN = "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"
_MODULES = (
    "brim.agent.__main__",
    "brim.cli.__main__",
    "brim.cli.train",
    "brim.master.__main__",
    "brim.node.__main__",
    "brim.worker.template",
    "brim.worker.process",
    "brim.backends.up",
)
# Programs that start others where they cannot be forked any more.
_FORK_IN_LOOP = (("brim.backends.up",), ("brim.cli", "node"))
_AS_IMPORTED = dict(os.environ)  # the environment of the warm process
_PATH = sys.path[1:]  # without the folder in which the warm process was started
_start_new: Any = subprocess._fork_exec  # type: ignore[attr-defined]
_execute: Any = os.execvpe


@dataclass(frozen=True, slots=True, kw_only=True)
class _Program:
    """A program that is to be run.

    Args:
        words: of its command.
        environment: all of it.
        folder: that it is started in; empty for that of its parent.
        descriptors: that it has, by number; 0 to 2 among them.
        session: whether it begins a session of its own.
        group: whether it begins a process group of its own.
    """

    words: list[str]
    environment: dict[str, str]
    folder: str
    descriptors: dict[int, int]
    session: bool = False
    group: bool = False


class _WarmProcess:
    """The process that forks for this one, which becomes the parent of each fork.

    Args:
        requests: to it; it answers each with a process id.
        process: it, where somebody has to wait for its end.
    """

    def __init__(
        self, requests: socket.socket, process: subprocess.Popen[bytes] | None = None
    ) -> None:
        requests.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * _MAX_REQUEST_BYTES)
        requests.settimeout(_TO_IMPORT)
        self._socket, self._process = requests, process
        self._lock = threading.Lock()

    @classmethod
    def start(cls) -> _WarmProcess:
        """Start one that imports brim's modules."""
        own_end, child_end = _pair()
        environment = {**_AS_IMPORTED, "PYTHONHASHSEED": "0", "BRIM_ROOM": "x" * _ROOM}
        code = f"from brim_lab import warm; warm.serve({child_end.fileno()}, {os.getpid()})"
        command = [sys.executable, "-c", code, "x" * _ROOM]
        with child_end:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, pass_fds=[child_end.fileno()], env=environment
            )
        warm = cls(own_end, process)
        if not own_end.recv(1):
            raise RuntimeError(f"the warm process ended with {process.wait()}")
        return warm

    @classmethod
    def fork_from_here(cls) -> _WarmProcess:
        """Fork one from this process, which is warm itself and soon cannot be forked any more."""
        own_end, child_end = _pair()
        parent = os.getpid()
        if not os.fork():
            try:
                ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
                null = os.open(os.devnull, os.O_RDWR)
                _take({0: null, 1: null, 2: null, child_end.fileno(): child_end.fileno()})
                be_called("brim-warm")
                while os.getppid() == parent and _serve(child_end, parent):
                    pass
            finally:
                os._exit(0)
        child_end.close()
        return cls(own_end)

    def fork(self, program: _Program) -> int | None:
        """Have a program forked; its process id, or None where it is too large to be asked for."""
        numbers = sorted(program.descriptors)
        request = json.dumps(
            {
                "words": program.words,
                "environment": program.environment,
                "folder": program.folder or os.getcwd(),
                "numbers": numbers,
                "session": program.session,
                "group": program.group,
            }
        ).encode()
        if len(request) > _MAX_REQUEST_BYTES or len(numbers) > _MOST_DESCRIPTORS:
            return None
        with self._lock, _adopting():
            socket.send_fds(self._socket, [request], [program.descriptors[n] for n in numbers])
            answer = self._socket.recv(32)
        if not answer:
            raise RuntimeError("the warm process died")
        return int(answer)

    def end(self) -> None:
        """End it; its forks go on."""
        self._socket.close()
        if self._process is not None:
            self._process.wait(_TO_BE_ADOPTED)


def _pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


_warm: _WarmProcess | None = None
_forks = False  # whether this process was forked from a warm one, and so forks by itself
_is_cold = False


def use() -> None:
    """Have `subprocess` fork the commands of brim from here on, in this process."""
    subprocess._fork_exec = _fork_exec  # type: ignore[attr-defined]


def end() -> None:
    """Start programs as usual again; forks go on."""
    global _warm
    subprocess._fork_exec = _start_new  # type: ignore[attr-defined]
    if _warm is not None:
        _warm.end()
    _warm = None


@contextlib.contextmanager
def cold() -> Iterator[None]:
    """Start programs as usual meanwhile: for measurements of a start, or of memory."""
    global _is_cold
    was_cold, _is_cold = _is_cold, True
    try:
        yield
    finally:
        _is_cold = was_cold


def _fork_exec(
    args: Sequence[Any],
    executables: Sequence[bytes],
    close_fds: bool,
    inherited: Sequence[int],
    folder: Any,
    environment: Sequence[bytes] | None,
    p2cread: int,
    p2cwrite: int,
    c2pread: int,
    c2pwrite: int,
    errread: int,
    errwrite: int,
    errpipe_read: int,
    errpipe_write: int,
    restore_signals: bool,
    session: bool,
    group: int,
    *rest: Any,
) -> int:
    """Stand in for `subprocess._fork_exec`."""
    global _warm
    words = [os.fsdecode(word) for word in args]
    variables = _variables(environment)
    plain = close_fds and group in (-1, 0) and list(rest[:5]) == [None, None, None, -1, None]
    if plain and not _is_cold and _is_ours(words, variables) and os.path.isdir(folder or "."):
        streams = (p2cread, c2pwrite, errwrite)
        descriptors = {
            n: n if descriptor == -1 else descriptor for n, descriptor in enumerate(streams)
        }
        descriptors |= {int(n): int(n) for n in inherited if n != errpipe_write}
        program = _Program(
            words=words,
            environment=variables,
            folder=os.fsdecode(folder or ""),
            descriptors=descriptors,
            session=session,
            group=group == 0,
        )
        if _forks and _may_fork():
            return _fork_here(program)
        if not _forks and _warm is None:
            _warm = _WarmProcess.start()
        if _warm is not None and (pid := _warm.fork(program)):
            return pid
    new: int = _start_new(
        args, executables, close_fds, inherited, folder, environment, p2cread, p2cwrite, c2pread,
        c2pwrite, errread, errwrite, errpipe_read, errpipe_write, restore_signals, session, group,
        *rest,
    )  # fmt: skip
    return new


def _variables(environment: Sequence[bytes] | None) -> dict[str, str]:
    if environment is None:
        return dict(os.environ)
    pairs = (os.fsdecode(variable).partition("=") for variable in environment)
    return {name: value for name, _, value in pairs}


def _is_ours(words: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Return whether a command is one of brim's, for an interpreter such as the warm one."""
    inner = words[6:] if _enters_host(words) else words
    return (
        len(inner) > 2
        and inner[0] == sys.executable
        and inner[_module_in(inner) - 1] == "-m"
        and inner[_module_in(inner)].partition(".")[0] == "brim"
        and _read_once(environment) == _read_once(_AS_IMPORTED)
    )


def _module_in(words: Sequence[str]) -> int:
    """The place of the module in `python -m module …` or `python -P -m module …`."""
    return 3 if words[1] == "-P" and len(words) > 3 else 2


def _forks_in_loop(words: Sequence[str]) -> bool:
    typed = words[_module_in(words) :]
    return any(tuple(typed[: len(known)]) == known for known in _FORK_IN_LOOP)


def _enters_host(words: Sequence[str]) -> bool:
    return list(words[:4]) == [sys.executable, "-I", "-S", entrance.__file__]


def _read_once(environment: Mapping[str, str]) -> dict[str, str]:
    found = {
        name: value
        for name, value in environment.items()
        if name.startswith(_READ_ONCE) and name != _READ_OFTEN
    }
    if found.get("PYTHONHASHSEED") == "0":  # as the warm process has it
        del found["PYTHONHASHSEED"]
    return found


def _may_fork() -> bool:
    """Return whether this process, without threads or an event loop, can be forked.

    A thread of numpy's OpenBLAS, which does without it in a fork, was there from the beginning.
    """
    return (
        threading.active_count() == 1
        and len(os.listdir("/proc/self/task")) <= _tasks
        and asyncio._get_running_loop() is None
    )


@contextlib.contextmanager
def _adopting() -> Iterator[None]:
    """Become the parent of a descendant's orphans meanwhile."""
    libc = ctypes.CDLL(None)
    old_setting = ctypes.c_int()
    libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(old_setting))
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, old_setting.value)


# The warm process ---------------------------------------------------------------------------------


def serve(descriptor: int, parent: int) -> None:
    """Import brim's modules, and fork until the parent is gone.

    The kernel would tell of the end of the thread that started this process, which may be a short one.
    """
    global _forks
    signal.signal(signal.SIGINT, lambda *_: None)  # the parent decides
    os.environ.pop("BRIM_ROOM")
    with socket.socket(fileno=descriptor) as requests:
        _import_all()
        _forks = True
        use()
        os.execvpe = _execute_here  # type: ignore[assignment]
        requests.send(b"+")
        requests.settimeout(_LOOK)
        goes_on = True
        while goes_on and os.getppid() == parent:
            with contextlib.suppress(TimeoutError):
                goes_on = _serve(requests, parent)


def _import_all() -> None:
    gc.disable()
    from brim.worker import warm

    global _tasks, _threads
    import torch

    _tasks, _threads = len(os.listdir("/proc/self/task")), torch.get_num_threads()
    warm.import_torch()
    for name in _MODULES:
        importlib.import_module(name)
    if not warm.forking_is_safe() or not _may_fork():
        raise SystemExit("what brim imports has started threads: nothing can be forked")
    gc.collect()
    gc.freeze()
    gc.enable()


def _serve(requests: socket.socket, parent: int) -> bool:
    request, descriptors, _, _ = socket.recv_fds(requests, _MAX_REQUEST_BYTES, _MOST_DESCRIPTORS)
    if not request:
        return False
    reader, tell = os.pipe()
    intermediate = os.fork()
    if not intermediate:
        os.close(reader)
        pid = os.fork()
        if pid:
            os.write(tell, str(pid).encode())
            os._exit(0)
        _wait_for_adoption(parent)
        fork_request = json.loads(request)
        numbers = fork_request.pop("numbers")
        _begin(_Program(descriptors=dict(zip(numbers, descriptors, strict=True)), **fork_request))
    os.close(tell)
    os.waitpid(intermediate, 0)  # from here on the fork is the parent's child
    answer = os.read(reader, 32)
    os.read(reader, 1)  # closed: it is what it stands for
    requests.send(answer)
    for descriptor in (reader, *descriptors):
        os.close(descriptor)
    return True


def _wait_for_adoption(parent: int) -> None:
    deadline = time.monotonic() + _TO_BE_ADOPTED
    while os.getppid() != parent:
        if time.monotonic() > deadline:
            os._exit(1)
        time.sleep(0.0002)


# A fork -------------------------------------------------------------------------------------------

_tasks = 1  # of the warm process
_threads = 1  # that torch uses where nobody says anything else
# What earlier programs of this process were is still in use.
_earlier_mains: list[types.ModuleType] = []


def _fork_here(program: _Program) -> int:
    reader, tell = os.pipe()
    pid = os.fork()
    if not pid:
        _begin(program)
    os.close(tell)
    os.read(reader, 1)  # closed: it is what it stands for
    os.close(reader)
    return pid


def _execute_here(file: Any, args: Any, environment: Any) -> NoReturn:
    """Stand in for `os.execvpe`."""
    words, variables = [os.fsdecode(word) for word in args], dict(environment)
    if _is_ours(words, variables) and _may_fork():
        descriptors = {number: number for number in _inheritable()}
        _begin(_Program(words=words, environment=variables, folder="", descriptors=descriptors))
    _execute(file, args, environment)
    raise AssertionError("the program was replaced")


def _inheritable() -> set[int]:
    """The descriptors that another program would have in this process."""
    found = {0, 1, 2}
    for number in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # that of the list itself
            if os.get_inheritable(number):
                found.add(number)
    return found


def _begin(program: _Program) -> NoReturn:
    """Be a program, in a process of its own, and end as it does."""
    global _warm
    status, _warm = 1, None
    try:
        if program.session:
            os.setsid()
        if program.group:
            os.setpgid(0, 0)
        if program.folder:
            os.chdir(program.folder)
        _be_seen_as(program.words, program.environment)
        _take(program.descriptors)
        _be_new(program.environment)
        if _forks_in_loop(program.words):
            _warm = _WarmProcess.fork_from_here()
        status = _run(program.words)
    except BaseException:  # noqa: BLE001 the outermost frame of a process
        traceback.print_exc()
    finally:
        os._exit(status)


def _take(descriptors: Mapping[int, int]) -> None:
    """Have these descriptors under their numbers, and no others."""
    first_free = max(descriptors) + 1
    moved = {
        number: fcntl.fcntl(target_of, fcntl.F_DUPFD_CLOEXEC, first_free)
        for number, target_of in descriptors.items()
        if _is_open(target_of)
    }
    for number, target_of in moved.items():
        os.dup2(target_of, number)
    last = -1
    for number in [*sorted(descriptors), os.sysconf("SC_OPEN_MAX")]:
        if number > last + 1:
            os.closerange(last + 1, number)
        last = number


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _be_seen_as(words: Sequence[str], environment: Mapping[str, str]) -> None:
    """Show this command line and environment in `/proc`."""
    lines = [os.fsencode(f"{name}={value}") for name, value in environment.items()]
    commands = [os.fsencode(word) for word in words]
    prctl = ctypes.CDLL(None).prctl
    places = zip(_area[::2], _area[1::2], (commands, lines), _PR_SET_MM_ENDS, strict=True)
    for start, end, content, limit in places:
        room = end - start
        text = b"".join(line + b"\0" for line in content)[: room - 1]
        ctypes.memset(start, 0, room)
        ctypes.memmove(start, text, len(text))
        # Only root may do this: others see zeros behind the text.
        prctl(_PR_SET_MM, limit, ctypes.c_ulong(start + len(text)), 0, 0)
    name = os.path.basename(os.path.realpath(sys.executable))
    prctl(_PR_SET_NAME, name.encode()[:15])


def _area_of_words() -> tuple[int, ...]:
    """Return the addresses at which the kernel finds a command line and an environment."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return tuple(map(int, fields[_ARG_START : _ARG_START + 4]))


_area = _area_of_words()


def _be_new(environment: Mapping[str, str]) -> None:
    """Forget everything that a fresh interpreter does not know."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if signal.getsignal(number) not in (signal.SIG_DFL, signal.SIG_IGN):
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    tempfile.tempdir = None
    platform._uname_cache = None  # type: ignore[attr-defined]  # the name of a host
    weakref.finalize._registry.clear()  # type: ignore[attr-defined]  # files of the parent's
    logging.root.handlers.clear()
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        stream = _stream(descriptor)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    import numpy
    import torch

    numpy.random.seed()
    torch.set_num_threads(_threads)


def _stream(number: int) -> Any:
    try:
        if not number:
            return open(0, closefd=False)
        lines = 1 if number == 2 or os.isatty(number) else -1
        errors = "backslashreplace" if number == 2 else "strict"
        return open(number, "w", buffering=lines, errors=errors, closefd=False)
    except OSError:  # closed, as it may be
        return None


def _run(words: Sequence[str]) -> int:
    """Run the program of these words in this interpreter; its exit status."""
    _earlier_mains.append(sys.modules["__main__"])
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        if _enters_host(words):
            sys.argv = list(words[3:])
            status: Any = entrance.main()
        else:
            module_index = _module_in(words)
            sys.path[:] = [*([] if words[1] == "-P" else [os.getcwd()]), *_PATH]
            sys.argv = ["-m", *words[module_index + 1 :]]
            for name in (words[module_index], f"{words[module_index]}.__main__"):
                if not hasattr(sys.modules.get(name), "__path__"):
                    sys.modules.pop(name, None)  # it runs as `__main__`, and is no module so far
            runpy._run_module_as_main(words[module_index])  # type: ignore[attr-defined]
            status = 0
    except SystemExit as leaving:
        status = leaving.code
    except KeyboardInterrupt:
        traceback.print_exc()
        status = -signal.SIGINT
    except BaseException:  # noqa: BLE001 the outermost frame of a program
        sys.excepthook(*sys.exc_info())
        status = 1
    if isinstance(status, str):
        print(status, file=sys.stderr)  # noqa: T201 as the interpreter does
        status = 1
    with contextlib.suppress(SystemExit, KeyboardInterrupt):
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    if status == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    return int(status or 0)
