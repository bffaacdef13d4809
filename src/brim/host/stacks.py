"""The Python stack of another process, also of one that hangs.

It may be in a loop, in C code, or hold Python's lock.

A process that is to be looked at is born with a descriptor of an anonymous file. It writes its
number there once a signal makes it write its stack behind that. The handler is faulthandler's, in
C: it needs neither Python's lock nor a line of Python to be executed.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import os
import re
import signal
from typing import NamedTuple

from brim.host.anonymous import anonymous_file

VARIABLE = "BRIM_STACKS_FD"  # has the descriptor, where a process is not forked
# One of the real-time signals, which nothing else uses; what hangs is often code that has plans for
# SIGUSR1.
_SIGNAL = getattr(signal, "SIGRTMIN", signal.SIGUSR2) + (9 if hasattr(signal, "SIGRTMIN") else 0)
_HEAD = 21  # bytes of the line with the number of the process
_TO_ANSWER = 1.0
_POLL_INTERVAL = 0.01
_QUIET = 0.05  # seconds without another byte, after which a stack is as long as it will be
_BEGIN = "(most recent call first):\n"  # the end of the line above a stack
_FRAME = re.compile(r'  File (?:"(?P<file>.*)"|\?\?\?), line .*')
_MAX_FRAMES = 60  # lines
_LARGEST_DUMP, _LARGEST_FILE = 1 << 18, 1 << 20  # bytes that are read at once, and kept
_IMPORTS = '  File "<frozen importlib'
_OWN_FOLDER = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")
_STANDARD = os.path.join(os.path.dirname(os.__file__), "")
_PACKAGE = re.compile(r"/(?:site|dist)-packages/([^/.]+)")


class Stack(NamedTuple):
    """The stack of a process, and its current import.

    Attributes:
        text: as in a traceback, the most recent call last; empty: it does not answer.
        imports: the package, or `libraries` where the stack does not show which; empty: it imports
            nothing now.
    """

    text: str = ""
    imports: str = ""


def show_when_asked(descriptor: int) -> None:
    """Have this process write its stack to a descriptor whenever it is asked to."""
    faulthandler.register(_SIGNAL, file=descriptor, all_threads=False)
    os.pwrite(descriptor, b"%20d\n" % os.getpid(), 0)


def show_no_more(descriptor: int) -> None:
    """Stop answering questions for the stack.

    Another program takes this process over, and a question would end it before it is ready.
    """
    os.pwrite(descriptor, b" " * 20, 0)
    signal.signal(_SIGNAL, signal.SIG_IGN)


class Stacks:
    """The stacks of one process, as somebody else reads them.

    `file` is the descriptor that the process is born with.
    """

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._unanswered: tuple[int, int] | None = (
            None  # process and size of the file, as it was asked
        )
        self.file = anonymous_file("brim-stack")
        os.write(self.file, b" " * 20 + b"\n")  # all who have the descriptor write behind this

    @property
    def pid(self) -> int:
        """The number of the process that shows its stack.

        0 where none does yet.
        """
        return int(os.pread(self.file, 20, 0).strip() or b"0")

    async def ask(self) -> Stack:
        """Return the stack of the process's main thread; one question at a time.

        A process that is stopped has one question in front of it at most, however often it is asked.
        """
        try:
            async with self._turn:
                return await self._ask()
        except (OSError, ValueError):  # it is gone, this is closed, or the number is none
            return Stack()

    async def _ask(self) -> Stack:
        pid, size_before, loop = self.pid, os.fstat(self.file).st_size, asyncio.get_running_loop()
        if pid <= 0 or not _catches(pid):
            return Stack()
        question = pid, size_before
        if self._unanswered != question:
            os.kill(pid, _SIGNAL)
        size, grown_at = size_before, loop.time()
        deadline = grown_at + _TO_ANSWER
        while loop.time() < deadline:
            await asyncio.sleep(_POLL_INTERVAL)
            size_now = os.fstat(self.file).st_size
            if size_now != size:
                size, grown_at = size_now, loop.time()
            elif size > size_before and loop.time() - grown_at >= _QUIET and self._is_at_line(size):
                break
        self._unanswered = question if size == size_before else None
        length = min(size - size_before, _LARGEST_DUMP)
        dump = os.pread(self.file, length, size_before).decode(errors="replace")
        if size > _LARGEST_FILE:
            self._forget()
        return Stack(readable(dump), imported(dump))

    def _is_at_line(self, size: int) -> bool:
        """Return whether a line ends there: else its writer was interrupted, and goes on."""
        return os.pread(self.file, 1, size - 1) == b"\n"

    def _forget(self) -> None:
        """Give the memory of earlier answers back: all who have the descriptor share its place."""
        os.ftruncate(self.file, _HEAD)
        os.lseek(self.file, _HEAD, os.SEEK_SET)

    def close(self) -> None:
        file, self.file = self.file, -1
        with contextlib.suppress(OSError):
            os.close(file)


def _catches(pid: int) -> bool:
    """Return whether a process catches the signal: one that has become another program dies of it."""
    with open(f"/proc/{pid}/status") as status:
        mask = next((line for line in status if line.startswith("SigCgt:")), "SigCgt: 0").split()[1]
    return bool(int(mask, 16) >> (_SIGNAL - 1) & 1)


def readable(dump: str) -> str:
    """Turn faulthandler's text into a Python traceback.

    Frames of brim at its beginning are left out, and those of the import system everywhere.

    >>> of = '  File "<frozen importlib._bootstrap>", line 4 in _load\\n'
    >>> print(readable(f'Stack:\\n  File "a.py", line 3 in f\\n{of}  File "a.py", line 9 in g\\n'))
      File "a.py", line 9, in g
      File "a.py", line 3, in f
    """
    frames = [frame for frame in _frames(dump) if not frame.startswith(_IMPORTS)][:_MAX_FRAMES]
    frames.reverse()
    first = next((index for index, frame in enumerate(frames) if not _is_ours(frame)), 0)
    return "\n".join(", in ".join(frame.rsplit(" in ", 1)) for frame in frames[first:])


def imported(dump: str) -> str:
    """Name the package that the import imports which is under way in faulthandler's text.

    An import is under way where no frame of the user's own code is within it: modules of the user
    are code that runs.

    >>> of = '  File "<frozen importlib._bootstrap>", line 4 in _load\\n'
    >>> torch = '  File "/x/site-packages/torch/hub.py", line 9 in <module>\\n'
    >>> mine = '  File "train.py", line 1 in <module>\\n'
    >>> [imported(dump) for dump in (torch + of + mine, of + mine, mine + of, torch + mine)]
    ['torch', 'libraries', '', '']
    """
    frames = _frames(dump)
    first_own = next((index for index, frame in enumerate(frames) if _is_users(frame)), len(frames))
    first = max(
        (index for index in range(first_own) if frames[index].startswith(_IMPORTS)), default=None
    )
    if first is None:
        return ""
    inner = [frame for frame in frames[:first] if not _is_ours(frame)]
    names = [found[1] for frame in inner if (found := _PACKAGE.search(frame))]
    return names[-1] if names else "libraries"


def _frames(dump: str) -> list[str]:
    """Return the frames of the last stack of a dump, the most recent first, as far as they are whole.

    What interrupts a process that writes its stack may last until it is read.

    >>> _frames('Stack (most recent call first):\\n  File "a.py", line 3 in f\\n  File ')
    ['  File "a.py", line 3 in f']
    """
    whole_lines = dump.rpartition("\n")[0] + "\n"
    return [line for line in whole_lines.rpartition(_BEGIN)[2].splitlines() if _FRAME.match(line)]


def _file_of(frame: str) -> str:
    """Return the file of a frame; empty where Python could not tell it."""
    found = _FRAME.match(frame)
    return (found["file"] or "") if found else ""


def _is_users(frame: str) -> bool:
    is_library = _file_of(frame).startswith(_STANDARD) or _PACKAGE.search(frame)
    return not (_is_ours(frame) or is_library)


def _is_ours(frame: str) -> bool:
    return _file_of(frame).startswith(("<frozen", _OWN_FOLDER))
