"""The pseudo-terminal of an interactive job's program, and the line to the person at it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pty
import select
import signal
import socket
import ssl
import struct
import termios

from brim.errors import ProtocolError
from brim.host.clock import monotonic
from brim.wire.frames import FrameBuffer, frame
from brim.wire.messages import Exited, FromProgram, Shown, Sized, Typed
from brim.wire.terminals import LARGEST_PART, from_person, from_program

_MOST_TYPED = (
    1 << 20
)  # bytes that a program has not read; what comes then is lost, as on any terminal
_MOST_UNSENT = 4 * LARGEST_PART  # bytes; the program waits where it has printed more
_TO_SEND = 5.0  # seconds for the last words of a program that has ended
_LOOK = 0.1  # seconds between looks at a person who takes nothing
_LARGEST_SIDE = 0xFFFF  # characters of a window
_NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Terminal:
    """A terminal, made once its person's window is known.

    Nothing in here waits but `finish`: `turn` does all that is possible now, and `descriptor` is
    readable when more is.

    Args:
        line: to the person; it does not block.

    Attributes:
        is_closed: the person is gone.
    """

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._poll = select.epoll()
        self._poll.register(line, select.EPOLLIN)
        self._frames = FrameBuffer()
        self._typed, self._unsent = bytearray(), bytearray()
        self._size: Sized | None = None
        self._pty = -1
        self._is_watched = self._is_left = False  # the pseudo-terminal; by all that had it open
        self.is_closed = False

    @property
    def descriptor(self) -> int:
        """A descriptor that is readable when `turn` has something to do."""
        return self._poll.fileno()

    @property
    def is_attended(self) -> bool:
        """Return whether a person has come."""
        return self._size is not None

    def open(self) -> int:
        """Make the pseudo-terminal; return the program's end of it, for the caller to close."""
        self._pty, program_end = pty.openpty()
        os.set_blocking(self._pty, False)
        self._poll.register(self._pty, 0)
        self._is_watched = True
        self._apply_size()
        self._watch()
        return program_end

    def turn(self) -> None:
        """Carry bytes either way, as many as each end takes now."""
        self._hear()
        self._pass_on_typed()
        self._read_shown()
        self._send()
        self._watch()

    def finish(self, status: int) -> None:
        """Send the rest of the program's output, and its end, if the person is there."""
        deadline = monotonic() + _TO_SEND
        while self._read_shown() or self._unsent:
            if not self._flush(deadline):
                return
        self._queue(Exited(status=status))
        self._flush(deadline)

    def hang_up(self, program: int) -> None:
        """Tell the program, and its foreground processes, that the person is gone.

        Args:
            program: the first process of the terminal's session.
        """
        groups = {program}
        with contextlib.suppress(OSError):
            groups.add(os.tcgetpgrp(self._pty))
        for group in groups:
            for number in (signal.SIGHUP, signal.SIGCONT):  # one that is stopped hears nothing
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(group, number)

    def close(self) -> None:
        """End the line; the kernel hangs up what still has the terminal."""
        self.is_closed = True
        self._poll.close()
        self._line.close()
        if self._pty >= 0:
            os.close(self._pty)
            self._pty = -1

    def _hear(self) -> None:
        while not self.is_closed:
            try:
                data = self._line.recv(LARGEST_PART)
            except _NOT_NOW:
                return
            except OSError:
                data = b""
            try:
                messages = [from_person.decode(message) for message in self._frames.feed(data)]
            except ProtocolError:
                data, messages = b"", []
            for message in messages:
                if isinstance(message, Sized):
                    self._size = message
                    self._apply_size()
                elif isinstance(message, Typed) and len(self._typed) < _MOST_TYPED:
                    self._typed += message.data
            if not data:
                self._leave()

    def _leave(self) -> None:
        """Note that the person is gone."""
        if not self.is_closed:
            self.is_closed = True
            self._unsent.clear()
            self._poll.unregister(self._line)

    def _apply_size(self) -> None:
        if self._pty >= 0 and self._size is not None:
            sides = self._size.rows, self._size.columns
            packed = struct.pack("HHHH", *(min(max(n, 0), _LARGEST_SIDE) for n in sides), 0, 0)
            with contextlib.suppress(OSError):
                fcntl.ioctl(self._pty, termios.TIOCSWINSZ, packed)

    def _pass_on_typed(self) -> None:
        while self._typed and self._pty >= 0:
            try:
                count = os.write(self._pty, self._typed[:LARGEST_PART])
            except BlockingIOError:
                return
            except OSError:  # nobody has the other end any more
                count = len(self._typed)
            del self._typed[:count]

    def _read_shown(self) -> bool:
        """Queue new output of the program, many small writes as one part; False: there is none."""
        output = bytearray()
        while self._pty >= 0 and len(output) < LARGEST_PART and len(self._unsent) < _MOST_UNSENT:
            try:
                data = os.read(self._pty, LARGEST_PART - len(output))
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                self._is_left = True
                break
            output += data
        if output and not self.is_closed:
            self._queue(Shown(data=bytes(output)))
        return bool(output)

    def _queue(self, message: FromProgram) -> None:
        self._unsent += frame(from_program.encode(message))

    def _send(self) -> None:
        while self._unsent and not self.is_closed:
            try:
                count = self._line.send(self._unsent[: 2 * LARGEST_PART])
            except _NOT_NOW:
                return
            except OSError:
                self._leave()
                return
            del self._unsent[:count]

    def _flush(self, deadline: float) -> bool:
        """Send all that is queued; False: the person is gone, or does not take it in time."""
        while self._unsent and not self.is_closed and monotonic() < deadline:
            self._send()
            if self._unsent:
                select.select([], [self._line], [], _LOOK)
        return not (self._unsent or self.is_closed)

    def _watch(self) -> None:
        """Watch for news that `turn` can do something about."""
        if not self.is_closed:
            writes = select.EPOLLOUT if self._unsent else 0
            self._poll.modify(self._line, select.EPOLLIN | writes)
        if self._is_left and self._is_watched:  # the kernel would say so all the time
            self._poll.unregister(self._pty)
            self._is_watched = False
        elif self._is_watched:
            reads = select.EPOLLIN if len(self._unsent) < _MOST_UNSENT else 0
            self._poll.modify(self._pty, reads | (select.EPOLLOUT if self._typed else 0))
