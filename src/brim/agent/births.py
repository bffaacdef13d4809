"""Starts modules of brim as processes of their own or as forks of a warm process.

A warm process has imported the modules already.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import NoReturn, Protocol

from brim.host.process import readable, run_module, with_equal_hashes


class Process(Protocol):
    """The methods of a child that an agent needs; `subprocess.Popen` has them."""

    @property
    def pid(self) -> int: ...

    @property
    def returncode(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int:
        """Raises subprocess.TimeoutExpired."""
        ...

    def kill(self) -> None: ...


class StartProcess(Protocol):
    """Starts `python -P -m module arguments…`."""

    def __call__(
        self,
        module: str,
        arguments: Sequence[str],
        *,
        stdin: int,
        output: int,
        keep: Sequence[int] = (),
    ) -> Process:
        """A child that has these descriptors and no others.

        Args:
            stdin, output: its standard input; its standard output and error.
            keep: descriptors that it has besides, under the same numbers.

        Raises:
            OSError: it cannot be started.
        """
        ...


def start_anew(
    module: str, arguments: Sequence[str], *, stdin: int, output: int, keep: Sequence[int] = ()
) -> Process:
    """See `StartProcess`: by another interpreter, which imports everything."""
    command = run_module(module, *arguments)
    environment = with_equal_hashes(os.environ)
    return subprocess.Popen(
        command, stdin=stdin, stdout=output, stderr=output, pass_fds=keep, env=environment
    )


def fork(
    module: str, arguments: Sequence[str], *, stdin: int, output: int, keep: Sequence[int] = ()
) -> Process:
    """See `StartProcess`: as a copy of this process, which must have neither threads nor an event loop."""
    pid = os.fork()
    if pid:
        return Forked(pid)
    perform(lambda: _run(module), [module, *arguments], stdin=stdin, output=output, keep=keep)


def _run(module: str) -> None:
    """Run a module as `python -m module` does."""
    found = importlib.import_module(module)
    main = getattr(found, "main", None) or importlib.import_module(f"{module}.__main__").main
    main()


def perform(
    work: Callable[[], None],
    argv: Sequence[str],
    *,
    stdin: int,
    output: int,
    keep: Sequence[int],
    tell_status: int | None = None,
) -> NoReturn:
    """Do this work in a forked child as a program of its own would, and end.

    Args:
        argv: of that program.
        stdin, output, keep: see `StartProcess`.
        tell_status: one of these that the exit status is written to, as a byte, for a reader that is
            not the parent; nothing comes from a child that is killed.
    """
    status = 1
    try:
        os.dup2(stdin, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        _close_all_but(keep)
        sys.argv = list(argv)
        work()
        status = 0
    except SystemExit as leaving:
        if isinstance(leaving.code, str):
            print(leaving.code, file=sys.stderr)  # noqa: T201 as the interpreter does
        status = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:  # noqa: BLE001 the outermost frame of a process
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        if tell_status is not None:
            with contextlib.suppress(OSError):
                os.write(tell_status, bytes([status & 0xFF]))
        os._exit(status)


def _close_all_but(descriptors: Sequence[int]) -> None:
    limits = [2, *sorted(descriptors), os.sysconf("SC_OPEN_MAX")]
    for last, following in itertools.pairwise(limits):
        if following > last + 1:  # Python takes an empty range for one without end
            os.closerange(last + 1, following)


class Forked:
    """A child that this process forked.

    Raises:
        OSError: there is no descriptor left to watch it by; it is gone then.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        try:
            self._end = os.pidfd_open(pid)
        except OSError:  # nobody would hear of its end
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise

    def fileno(self) -> int:
        """Readable once it has ended."""
        return self._end

    def wait(self, timeout: float | None = None) -> int:
        """Return the child's exit status, as `subprocess.Popen.wait` does.

        Raises subprocess.TimeoutExpired where the child does not end in time.
        """
        if self.returncode is None:
            if not readable([self._end], timeout):
                raise subprocess.TimeoutExpired("a fork", timeout or 0.0)
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            os.close(self._end)
        return self.returncode

    def kill(self) -> None:
        if self.returncode is not None:
            return  # the descriptor may be another's by now
        with contextlib.suppress(OSError):  # it has ended
            signal.pidfd_send_signal(self._end, signal.SIGKILL)
