"""Carries the connections of a listener that was inherited to a Unix socket.

gRPC listens only where it has opened the address itself, so that a port would be anybody's from the
death of one master until the next one listens. Here the port is held by the process that starts
masters. It is no place for limits of what is known: the server behind the Unix socket closes what it
does not want, and so does this then. Of callers that have said nothing yet the oldest makes way.

Encryption ends here (TLS 1.3): a caller without a certificate of the run's authority reaches
nobody. asyncio's own TLS would do, but for a second flow control with buffers of its own, so that a
caller which reads nothing looks like one that reads slowly, and 256 KiB for each stranger.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import ssl
from collections.abc import Mapping

from brim.host.clock import monotonic
from brim.wire.run_identity import RunIdentity
from brim.wire.silence import give_up_after
from brim.wire.strangers import Strangers

_STUCK = 5.0  # seconds for which a caller may say nothing, and what is to be written not move
_STUCK_ON_DISK = 60.0  # and where it waits for the disk of another server
_UNANSWERED = 3.0  # seconds after which a host counts as gone whose kernel does not answer
_DECRYPT_BYTES = 1 << 16  # bytes that are decrypted at once
_STRANGERS = 64  # callers that have not said yet whom they want
_TELLING = 4  # bytes by which calls are told apart: gRPC's begin with "PRI "


class _End(asyncio.Protocol):
    """One end of a connection: its bytes go to the other, no faster than that takes them.

    But for its first bytes, it is not read before the other is there. The end of one direction is
    that of both: gRPC closes no half of a connection.
    """

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.peer: _End | None = None
        self.patience = 0.0  # of this connection; 0 for the usual
        self._due: asyncio.TimerHandle | None = None  # when it is let go, if nothing happens

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        assert self.peer is not None, "nothing is read before both ends are there"
        self.peer.write(data)

    def write(self, data: bytes) -> None:
        """Send it to this end."""
        self.transport.write(data)

    def pause_writing(self) -> None:
        """Stop reading from the other end, and expect progress in time.

        While the other end is not read, its closing is not seen.
        """
        if self.peer is not None:
            self.peer.transport.pause_reading()
        if not self.transport.is_closing():
            self._expect_progress()

    def resume_writing(self) -> None:
        if not self.transport.is_closing():
            self._expect_nothing()
        if self.peer is not None:
            self.peer.transport.resume_reading()

    def eof_received(self) -> None:
        self.close()

    def close(self) -> None:
        """Write the rest, for as long as that may take, and end."""
        self._expect_nothing()
        self._due = asyncio.get_running_loop().call_later(_STUCK, self.transport.abort)
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_nothing()
        if self.peer is not None:
            self.peer.peer = None
            self.peer.close()

    def _expect_progress(self) -> None:
        unsent = self.transport.get_write_buffer_size()
        wait = self.patience or _STUCK
        self._due = asyncio.get_running_loop().call_later(wait, self._look, unsent)

    def _expect_nothing(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def _look(self, unsent_before: int) -> None:
        if self.transport.get_write_buffer_size() < unsent_before:
            self._expect_progress()
        else:
            self.transport.abort()


class _CallerEnd(_End):
    """The end that called: by its first bytes the relay knows which server it means.

    Args:
        relay: that it called.
        context: of TLS, of the end that is called.
    """

    def __init__(self, relay: Relay, context: ssl.SSLContext) -> None:
        super().__init__()
        self._relay = relay
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._is_known = self._is_led = False
        self.first = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        give_up_after(transport.get_extra_info("socket"), _UNANSWERED)
        if self._relay.admit(self):
            self._due = asyncio.get_running_loop().call_later(_STUCK, self.transport.abort)
            self.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        try:
            plain, is_over = self._decrypt(data)
        except ssl.SSLError:  # it speaks no TLS, or has no certificate of this run
            plain, is_over = b"", True
        self._pass_on()
        if self.peer is not None and plain:
            super().data_received(plain)
        elif not self._is_led:
            self.first += plain
            if len(self.first) >= _TELLING and not is_over:
                self._is_led = True
                self._expect_nothing()
                self.transport.pause_reading()
                self._relay.lead(self)
        if is_over:
            self.close()

    def _decrypt(self, data: bytes) -> tuple[bytes, bool]:
        """Return the caller's bytes, and whether those were all.

        Raises:
            ssl.SSLError: this is no TLS, or the caller shows no certificate that is good here.
        """
        self._incoming.write(data)
        plain = bytearray()
        with contextlib.suppress(ssl.SSLWantReadError):  # until more comes
            if not self._is_known:
                self._tls.do_handshake()
                self._is_known = True
            while chunk := self._tls.read(_DECRYPT_BYTES):
                plain += chunk
            return bytes(plain), True
        return bytes(plain), False

    def write(self, data: bytes) -> None:
        """Send it to this end, encrypted."""
        view = memoryview(data)
        while view and not self.transport.is_closing():  # a record at a time
            view = view[self._tls.write(view) :]
        self._pass_on()

    def _pass_on(self) -> None:
        """Send the bytes of TLS, its own or the encrypted ones."""
        if (data := self._outgoing.read()) and not self.transport.is_closing():
            self.transport.write(data)

    def close(self) -> None:
        with contextlib.suppress(ssl.SSLError):  # it need not agree
            self._tls.unwrap()
        self._pass_on()
        super().close()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._relay.forget(self)


class Relay:
    """Carries the callers of a listener to one of the servers on Unix sockets.

    Args:
        listener: stays open for others that have it.
        path: of the Unix socket.
        other_paths: the Unix sockets of other servers, by the first bytes of calls that are for them.
        limit: connections at once of callers that have said whom they want; more are closed.
        identity: that callers are shown.

    Attributes:
        called_at: when a caller that is not for one of the others called for the last time.
    """

    def __init__(
        self,
        listener: socket.socket,
        path: str,
        *,
        other_paths: Mapping[bytes, str],
        limit: int,
        identity: RunIdentity,
    ) -> None:
        self._listener, self._path, self._other_paths, self._max_bytes = (
            listener,
            path,
            other_paths,
            limit,
        )
        self._identity = identity
        self._callers: set[_CallerEnd] = set()
        self._strangers = Strangers(_STRANGERS)
        self._reaching: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.called_at = -math.inf

    async def start(self) -> None:
        """Begin to accept connections."""
        await asyncio.to_thread(
            self._identity.make_ready
        )  # so that the first call waits for nothing
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _CallerEnd(self, self._identity.server), sock=self._listener
        )

    def admit(self, caller: _CallerEnd) -> bool:
        """Let a caller name its server, if there is room; return whether there is."""
        if len(self._callers) - len(self._strangers) >= self._max_bytes:
            caller.transport.abort()
            return False
        self._strangers.admit(caller.transport)
        self._callers.add(caller)
        return True

    def lead(self, caller: _CallerEnd) -> None:
        """Connect one that has called to the server that it wants."""
        self._strangers.forget(caller.transport)
        task = asyncio.create_task(self._reach(caller))
        self._reaching.add(task)
        task.add_done_callback(self._reaching.discard)

    async def _reach(self, caller: _CallerEnd) -> None:
        loop, end = asyncio.get_running_loop(), _End()
        try:
            path_of_other = self._other_paths.get(caller.first[:_TELLING])
            path = path_of_other or self._path
            if path_of_other is None:
                self.called_at = monotonic()
            caller.patience = end.patience = _STUCK_ON_DISK if path_of_other else 0.0
            await loop.create_unix_connection(lambda: end, path)
        except OSError:
            caller.transport.abort()
            return
        if caller.transport.is_closing():
            end.transport.abort()
            return
        caller.peer, end.peer = end, caller
        end.write(caller.first)
        for end_of_relay in (caller, end):
            end_of_relay.transport.resume_reading()

    def forget(self, caller: _CallerEnd) -> None:
        """Forget a caller that is gone."""
        self._strangers.forget(caller.transport)
        self._callers.discard(caller)

    def stop(self) -> None:
        """Accept nothing more, and close the connections.

        The listener stays open for its other holders.
        """
        if self._server is not None:
            self._server.close()
        for task in self._reaching:
            task.cancel()
        for caller in list(self._callers):
            caller.close()
