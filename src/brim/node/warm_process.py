"""`python -m brim.node.warm_process`: has imported torch, and forks agents of runs for its account.

It outlives the run that it was started for, so that the next one begins without imports. It never
runs code of a user, nor reads a request: its forks do. It starts no thread and touches no GPU, so
that forking it is safe.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import selectors
import socket
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from brim.agent.births import Forked, perform
from brim.errors import BrimError
from brim.host.clock import monotonic
from brim.host.process import (
    be_called,
    go_first_when_memory_is_short,
    take_turn,
    with_equal_hashes,
)
from brim.host.procfs import read_proc
from brim.node.warm_up import shuffle, warm_up
from brim.wire.warm_forks import has_hung_up, is_own_account, read_request, say_begun, say_ready

_LOOK = 2.0  # seconds between looks at the memory of the host, and at the time
_MOST_FORKS = 64  # at a time; who calls besides starts as usual
_LEAST_FREE = 0.1  # of the host's memory


class WarmProcess:
    """Forks as long as it is of use.

    Args:
        listener: where commands call.
        path: of that socket, by which they find it.
        idle_time: seconds without a run after which it ends.
    """

    def __init__(self, listener: socket.socket, path: Path, *, idle_time: float) -> None:
        self._listener: socket.socket | None = listener
        self._path, self._idle_time = path, idle_time
        self._identity = _identity(path)
        self._forks: set[Forked] = set()
        self._turn = ""  # of its forks, where memory runs out
        self._files: dict[str, tuple[int, int, int]] = {}
        self._watch = selectors.DefaultSelector()
        self._can_fork = False

    def run(self) -> None:
        """Serve until it is of no use any more."""
        be_called("brim-warm")
        listener = self._listener
        assert listener is not None
        self._can_fork = warm_up()
        self._turn = go_first_when_memory_is_short()
        self._files = {path: _identity(Path(path)) for path in files_in_use()}
        listener.setblocking(False)
        self._watch.register(listener, selectors.EVENT_READ)
        idle_since = monotonic()
        while self._listener is not None or self._forks:
            for key, _ in self._watch.select(_LOOK):
                if isinstance(key.fileobj, Forked):
                    self._watch.unregister(key.fileobj)
                    key.fileobj.wait()
                    self._forks.discard(key.fileobj)
                else:
                    self._accept(listener)
            if self._forks:
                idle_since = monotonic()
            if (
                monotonic() - idle_since > self._idle_time
                or memory_is_short()
                or not self._is_found()
            ):
                self._retire()

    def _is_found(self) -> bool:
        """Return whether a command that looks for a warm process still finds this one."""
        return any(self._identity) and _identity(self._path) == self._identity

    def _retire(self) -> None:
        """Serve no caller any more; the forks that there are have a parent until their end."""
        if self._listener is None:
            return
        if self._is_found():
            with contextlib.suppress(OSError):
                self._path.unlink()
        self._watch.unregister(self._listener)
        self._listener.close()  # who has called and was not accepted starts as usual
        self._listener = None

    def _accept(self, listener: socket.socket) -> None:
        try:
            line, _ = listener.accept()
        except OSError:  # it has hung up
            return
        with line:
            is_full = len(self._forks) >= _MOST_FORKS
            if is_full or not self._can_fork or not is_own_account(line) or has_hung_up(line):
                return  # by the end of its connection the caller hears that it is to start as usual
            if any(_identity(Path(path)) != old for path, old in self._files.items()):
                self._retire()  # it has what was there before
                return
            line.setblocking(True)
            try:
                pid = os.fork()
            except OSError:
                return
            if pid == 0:
                self._be_fork(line)
            with contextlib.suppress(OSError):  # it is killed: there is no descriptor left
                forked = Forked(pid)
                self._forks.add(forked)
                self._watch.register(forked, selectors.EVENT_READ)

    def _be_fork(self, line: socket.socket) -> NoReturn:
        """Wait for the request to this process, and obey it."""
        status = 1
        try:
            self._watch.close()
            if self._listener is not None:
                self._listener.close()
            take_turn(self._turn)
            say_ready(line)
            received = read_request(line)
            if received is None:
                os._exit(0)  # the command has found a mistake, or was ended
            request, (stdin, output, status_pipe, *others) = received
            os.setsid()  # Ctrl-C reaches the foreground command alone
            os.chdir(request.directory)
            say_begun(line)
            line.close()
            listener = [f"--listener={descriptor}" for descriptor in others]
            perform(
                lambda: _be_agent(request.environment),
                ["brim.agent", *listener, *request.arguments],
                stdin=stdin,
                output=output,
                keep=[status_pipe, *others],
                tell_status=status_pipe,
            )
        except (BrimError, OSError, ValueError):
            os._exit(status)  # the caller hears that it is gone
        finally:
            os._exit(status)


def _be_agent(environment: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ |= with_equal_hashes(environment)
    tempfile.tempdir = None
    shuffle()
    from brim.agent.__main__ import main
    from brim.agent.births import fork

    main(fork)


def files_in_use() -> set[str]:
    """Return the files that this process has read its code from, and the folders of packages.

    Where one of them has changed, another process would not be as this one is: a folder changes with
    the version of a package in it.
    """
    modules = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    mapped = [line.split(maxsplit=5)[-1].strip() for line in _lines_of("/proc/self/maps")]
    folders = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    libraries = [path for path in mapped if path.startswith("/")]
    return {path for path in (*modules, *libraries, *folders) if path}


def memory_is_short() -> bool:
    """Return whether hardly any of the host's memory is free; False where the kernel does not tell."""
    sizes = {line.partition(":")[0]: line.split()[1] for line in _lines_of("/proc/meminfo")}
    total, free = int(sizes.get("MemTotal", 0)), int(sizes.get("MemAvailable", 0))
    return bool(total) and free < _LEAST_FREE * total


def _lines_of(path: str) -> list[str]:
    try:
        return read_proc(path).splitlines()
    except OSError:
        return []


def _identity(path: Path) -> tuple[int, int, int]:
    """Return what differs between two files at a path; zeros where there is none."""
    try:
        found = path.stat()
    except OSError:
        return 0, 0, 0
    return found.st_ino, found.st_mtime_ns, found.st_size


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m brim.node.warm_process", description=__doc__)
    parser.add_argument("--listener", type=int, required=True, help="descriptor of its socket")
    parser.add_argument("--socket", type=Path, required=True, help="the path of that socket")
    parser.add_argument(
        "--idle-time", type=float, required=True, help="seconds without a run after which it ends"
    )
    arguments = parser.parse_args()
    listener = socket.socket(fileno=arguments.listener)
    os.set_inheritable(arguments.listener, False)
    WarmProcess(listener, arguments.socket, idle_time=arguments.idle_time).run()


if __name__ == "__main__":
    main()
