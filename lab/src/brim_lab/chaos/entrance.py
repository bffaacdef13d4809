"""Runs a command in a host, and is its stand-in outside.

What it is sent the command gets, how the command ends it ends, and where it is killed the command
is, too. A file of its own that needs nothing but Python: `python entrance.py INIT FOLDER WORDS...`.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_NAMESPACES = ("net", "ipc", "uts", "pid", "mnt")
_PR_SET_PDEATHSIG = 1
_PASSED_ON = {
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
}
_HOST_GONE = 126


_libc = ctypes.CDLL(None, use_errno=True)


def enter(door: int) -> None:
    """Enter the namespace that a descriptor is of. Raises OSError."""
    if _libc.setns(door, 0):
        raise OSError(ctypes.get_errno(), "setns")


def main() -> int:
    """Run the command; its exit status."""
    init, folder, command = sys.argv[1], sys.argv[2], sys.argv[3:]
    try:
        doors = [os.open(f"/proc/{init}/ns/{namespace}", os.O_RDONLY) for namespace in _NAMESPACES]
    except OSError:
        print(f"there is no host any more whose first process is {init}", file=sys.stderr)  # noqa: T201
        return _HOST_GONE
    for door in doors:
        enter(door)
        os.close(door)
    old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
    child = os.fork()
    if not child:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == 1:  # the stand-in is gone already
            return _HOST_GONE
        signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)
        os.chdir(folder)
        own_variables = {
            "HOME": f"{folder}/home",
            "TMPDIR": "/tmp",
            "TORCHINDUCTOR_CACHE_DIR": f"{folder}/torch",
        }
        remaining = {key: value for key, value in os.environ.items() if not key.startswith("XDG_")}
        os.execvpe(command[0], command, {**remaining, **own_variables})
    for passed in _PASSED_ON:
        signal.signal(passed, lambda number, _: os.kill(child, number))
    signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        number = signal.Signals(os.WTERMSIG(status))
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    sys.exit(main())
