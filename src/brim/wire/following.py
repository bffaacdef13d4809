"""Follows the records of a run whose host has no disk in common with this one.

One connection per run, to the port on which its agents call, and no thread: a scheduler follows all
its runs in one event loop. What comes is written to a mirror (`storage/mirror.py`), so that who reads
a run's directory reads that.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from brim.domain.followed import Mark, Part
from brim.errors import BrimError, EnvironmentFault, ProtocolError
from brim.host.clock import monotonic, wall
from brim.wire.frames import frame
from brim.wire.identity import server_name
from brim.wire.listening import split_address
from brim.wire.proofs import PROOF_BYTES, is_proof, proof, workers_secret
from brim.wire.run_files import (
    CALLER,
    GREETING,
    KEEPER,
    NONCE_BYTES,
    FileRequest,
    frame_from,
    replies,
    requests,
)
from brim.wire.run_identity import MASTER, WORKER, RunIdentity, stranger_of

_TO_CONNECT = 10.0  # seconds until a master has shown that it is of this run
_WAIT = 20.0  # seconds for which a master may have nothing to say
_TO_ANSWER = 15.0  # and that it may be late with saying so
_AGAIN, _LONGEST_PAUSE = 0.2, 5.0  # seconds between two calls in vain: at first, and at last
_TO_NOTE = 15.0  # seconds after which it is noted again that the run is followed
_MAX_ANSWER_BYTES = 32 << 20  # bytes of one answer


class Mirrored(Protocol):
    """The mirror that is written; see `brim.storage.mirror.RecordsMirror`."""

    def marks(self, *, proved: bool) -> Mapping[str, Mark]: ...

    def add(self, parts: Sequence[Part], data: bytes) -> None: ...

    def note_alive(self, now: float) -> None: ...


class RecordsFollower:
    """Brings a mirror of a run up to date for as long as it is wanted.

    Args:
        mirror: what is written.
        address: `HOST:PORT` of the run's master; a name is looked up for each call.
        token: of the run.
        steps_at_most: bytes of steps that are of use; where more are new, older ones are left out.
            None: all.
        linger: seconds that steps and logs may wait for company; events come at once.
        longest_pause: seconds between two calls in vain at most.
        on_change: called in the event loop when something was written.

    Attributes:
        is_connected: a master of this run has answered on the connection there is.
        problem: why the last call ended; empty where it goes on.
    """

    def __init__(
        self,
        mirror: Mirrored,
        address: str,
        *,
        token: str,
        steps_at_most: int | None = None,
        linger: float = 0.5,
        longest_pause: float = _LONGEST_PAUSE,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._mirror, self._address, self._secret = mirror, address, workers_secret(token)
        self._identity = RunIdentity(self._secret, WORKER)
        self._steps_at_most, self._linger, self._on_change = steps_at_most, linger, on_change
        self._longest_pause = longest_pause
        self._noted = 0.0
        self.is_connected = False
        self.problem = ""

    async def run(self) -> None:
        """Follow the run until the call is cancelled: a master that is gone may come back.

        Raises:
            EnvironmentFault: the disk does not take it, or it is more than a run may bring.
        """
        pause = _AGAIN
        while True:
            try:
                await self._follow()
            except EnvironmentFault as fault:
                if not fault.retryable:
                    raise
                self.problem = str(fault)
            except (OSError, EOFError, BrimError) as error:
                self.problem = stranger_of(error) or str(error) or type(error).__name__
            pause = _AGAIN if self.is_connected else min(2 * pause, self._longest_pause)
            self.is_connected = False
            await asyncio.sleep(pause)

    async def _follow(self) -> None:
        """Follow it on one connection, until that ends.

        Raises:
            OSError, EOFError, BrimError: it has.
        """
        async with asyncio.timeout(_TO_CONNECT):
            reader, writer = await self._call()
        try:
            while True:
                if self.is_connected:
                    marks = self._mirror.marks(proved=True)
                else:
                    marks = await asyncio.to_thread(self._mirror.marks, proved=False)
                request = FileRequest(
                    verb="follow",
                    marks=dict(marks),
                    steps_at_most=self._steps_at_most,
                    wait=_WAIT,
                    linger=self._linger if self.is_connected else 0.0,
                )
                writer.write(frame(requests.encode(request)))
                async with asyncio.timeout(_WAIT + _TO_ANSWER):
                    await writer.drain()
                    reply = replies.decode(await frame_from(reader))
                    size = sum(part.size for part in reply.parts)
                    if reply.problem or size > _MAX_ANSWER_BYTES:
                        raise ProtocolError(reply.problem or f"{size:,} bytes are no answer")
                    data = await reader.readexactly(size)
                self.is_connected, self.problem = True, ""
                self._note()
                if reply.parts:
                    self._mirror.add(reply.parts, data)
                    self._on_change()
        finally:
            writer.transport.abort()

    async def _call(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Call the master.

        Raises:
            OSError: it does not answer.
            PermissionError: the listener there is not of this run.
        """
        host, port = split_address(self._address)
        context = await asyncio.to_thread(lambda: self._identity.client)
        reader, writer = await asyncio.open_connection(
            host, port, ssl=context, server_hostname=server_name(MASTER)
        )
        try:
            nonce = secrets.token_bytes(NONCE_BYTES)
            writer.write(GREETING + nonce)
            greeting = await reader.readexactly(PROOF_BYTES + NONCE_BYTES)
            proof_given, challenge = greeting[:PROOF_BYTES], greeting[PROOF_BYTES:]
            if not is_proof(proof_given, self._secret, KEEPER, nonce, challenge):
                raise PermissionError(f"what listens at {self._address} is not of this run")
            writer.write(proof(self._secret, CALLER, nonce, challenge))
        except BaseException:
            writer.transport.abort()
            raise
        return reader, writer

    def _note(self) -> None:
        if monotonic() - self._noted > _TO_NOTE or not self._noted:
            self._noted = monotonic()
            self._mirror.note_alive(wall())
