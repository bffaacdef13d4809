"""The worker's end of its socket to the agent: blocking, with a deadline on every wait."""

from __future__ import annotations

import collections
import socket
import threading
from collections.abc import Callable

from brim.coordination.job.participant import AgentGone
from brim.errors import EnvironmentFault
from brim.host.clock import monotonic
from brim.host.process import readable
from brim.wire.frames import READ_BYTES, FrameBuffer, frame
from brim.wire.messages import Codec, Publish, WorkerBound, WorkerMessage


class WorkerLink:
    """Messages to and from the agent. Sending is safe from any thread, receiving from one.

    A permission to publish concerns no wait of the training loop: it goes to `on_publish` as soon
    as it is heard, is never pending and never received.

    Args:
        link: one end of a Unix socket pair; the agent has the other.
        wakeup: readable once a signal has come, or None.
    """

    def __init__(self, link: socket.socket, wakeup: socket.socket | None = None) -> None:
        self._socket = link
        self._wakeup = wakeup
        self._sending = threading.Lock()
        self._frames = FrameBuffer()
        self._inbox: collections.deque[WorkerBound] = collections.deque()
        self.is_over = False  # the agent has ended; what it had said may still have to be received
        self._encode: Codec[WorkerMessage] = Codec(WorkerMessage)
        self._decode: Codec[WorkerBound] = Codec(WorkerBound)
        self.on_publish: Callable[[Publish], None] = lambda _: None

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: WorkerMessage) -> None:
        """Raises EnvironmentFault where the agent is gone."""
        data = frame(self._encode.encode(message))
        try:
            with self._sending:
                self._socket.sendall(data)
        except OSError as error:
            raise EnvironmentFault(f"the agent of this worker is gone: {error}") from error

    def pending(self) -> bool:
        """Return whether a message is here, or the end."""
        if not self._inbox:
            self._read(0.0)
        return bool(self._inbox) or self.is_over

    def receive(self, timeout: float, *, waker: int = -1) -> WorkerBound | AgentGone | None:
        """The next message, or None when a signal, the waker or the timeout came first.

        Args:
            timeout: seconds.
            waker: descriptor that is readable once another worker has woken this one; -1: none.
        """
        deadline = monotonic() + timeout
        while not (self._inbox or self.is_over):
            remaining = deadline - monotonic()
            if remaining < 0 or self._read(remaining, waker):
                break
        if self._inbox:
            return self._inbox.popleft()
        return AgentGone() if self.is_over else None

    def listen(self, seconds: float) -> None:
        """Hear messages, and keep them for `receive`."""
        self._read(seconds)

    def _read(self, timeout: float, waker: int = -1) -> bool:
        """Wait once; True when a signal or the waker ended the wait."""
        wakeup = self._wakeup if timeout else None
        link = None if self.is_over else self._socket
        sources = [source.fileno() for source in (link, wakeup) if source]
        ready = readable([*sources, waker] if waker >= 0 else sources, timeout)
        if link and link.fileno() in ready:
            try:
                data = self._socket.recv(READ_BYTES)
            except ConnectionResetError:
                data = b""
            self.is_over = not data
            for message in map(self._decode.decode, self._frames.feed(data)):
                if isinstance(message, Publish):
                    self.on_publish(message)
                else:
                    self._inbox.append(message)
        if wakeup and wakeup.fileno() in ready:
            wakeup.recv(64)
            return True
        return waker in ready

    def close(self) -> None:
        self._socket.close()
