"""The line of an interactive job: a person at a terminal at one end, the program at the other.

They meet at the job's master: the scheduler calls for the person, the program's worker for the
program, and both prove that they have the run's secret. From then on the bytes of each go to the
other as fast as that takes them, and the end of one is that of both. A job has one such line in its
life, so that nobody else comes to a terminal that a person has left.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from pathlib import Path

from brim.host.account import acting_as
from brim.wire.frames import HEAD_BYTES, length_of
from brim.wire.identity import server_name
from brim.wire.listening import split_address
from brim.wire.messages import Codec, FromPerson, FromProgram
from brim.wire.private import PrivateFolder, control_folder
from brim.wire.proofs import PROOF_BYTES, is_proof, proof
from brim.wire.run_identity import MASTER, WORKER, run_identity

GREETING = b"terminal\n"  # the first bytes of a call, by which a port tells it from others
LARGEST_PART = 32 << 10  # bytes that are typed, or shown, at once
SOCKET = "terminal"  # its name in the folder of the run's sockets

_LARGEST_FRAME = LARGEST_PART + (1 << 10)
_KEEPER, _PERSON, _PROGRAM = b"keeper", b"person", b"program"  # whose proof it is
_NONCE_BYTES = 16
_TO_PROVE = 5.0  # seconds that a caller may take to prove that it is of the run
_TO_CONNECT = 10.0  # seconds until a master on another host has taken a call
_MOST_CALLS = 8  # that have not proved it yet

from_person: Codec[FromPerson] = Codec(FromPerson)
from_program: Codec[FromProgram] = Codec(FromProgram)


class TerminalServer:
    """The meeting place of a run's person and program, on a Unix socket.

    Args:
        path: of the socket.
        secret: of the run's workers.
    """

    def __init__(self, path: str, secret: bytes) -> None:
        self._path, self._secret = path, secret
        self._server: asyncio.Server | None = None
        self._calls: set[asyncio.Task[None]] = set()
        self._ends: dict[bytes, tuple[asyncio.StreamReader, asyncio.StreamWriter]] = {}
        self._met = asyncio.Event()

    async def start(self) -> None:
        """Begin to accept calls. Raises OSError."""
        self._server = await asyncio.start_unix_server(self._take, self._path)

    def stop(self) -> None:
        """Accept nothing more, and end the calls that are under way."""
        if self._server is not None:
            self._server.close()
        for call in self._calls:
            call.cancel()

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        call = asyncio.current_task()
        assert call is not None
        try:
            if len(self._calls) < _MOST_CALLS:
                self._calls.add(call)
                with contextlib.suppress(OSError, EOFError, asyncio.CancelledError):
                    await self._serve(reader, writer)
        finally:
            self._calls.discard(call)
            writer.close()  # what it has not read yet is still written

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(_TO_PROVE):
            end = await self._end_of(reader, writer)
        if end is None or end in self._ends:
            return
        self._ends[end] = reader, writer
        if len(self._ends) > 1:
            self._met.set()
        await self._met.wait()
        other = self._ends[_PERSON if end is _PROGRAM else _PROGRAM][1]
        try:
            while data := await reader.read(LARGEST_PART):
                other.write(data)
                await other.drain()
        finally:
            other.close()

    async def _end_of(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bytes | None:
        """Return the end that a caller is; None: it is not of this run."""
        greeting = await reader.readexactly(len(GREETING) + _NONCE_BYTES)
        if not greeting.startswith(GREETING):
            return None
        nonce, challenge = greeting[len(GREETING) :], secrets.token_bytes(_NONCE_BYTES)
        writer.write(proof(self._secret, _KEEPER, nonce, challenge) + challenge)
        proof_given = await reader.readexactly(PROOF_BYTES)
        for end in (_PERSON, _PROGRAM):
            if is_proof(proof_given, self._secret, end, nonce, challenge):
                return end
        return None


def call_for_program(run_dir: Path, secret: bytes, *, address: str) -> socket.socket:
    """Return the program's end of the line, once the master has taken the call.

    Args:
        run_dir: of the run, where its master is on this host.
        secret: of the run's workers.
        address: `HOST:PORT` of a master on another host; empty: it is on this one.

    Raises:
        OSError: it does not answer, or is not of this run.
        EnvironmentFault: another user may listen there.
    """
    line = _call_far(address, secret) if address else _call_near(run_dir)
    try:
        line.settimeout(_TO_PROVE)
        nonce = secrets.token_bytes(_NONCE_BYTES)
        line.sendall(GREETING + nonce)
        greeting = b""
        while len(greeting) < PROOF_BYTES + _NONCE_BYTES:
            data = line.recv(PROOF_BYTES + _NONCE_BYTES - len(greeting))
            if not data:
                raise ConnectionError("the master has closed the line")
            greeting += data
        line.sendall(_answer_to(greeting, secret, nonce, _PROGRAM))
        line.setblocking(False)
    except BaseException:
        line.close()
        raise
    return line


async def call_for_person(
    run_dir: Path, secret: bytes, *, user: str
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Return the person's end of the line, once the master on this host has taken the call.

    Args:
        run_dir: of the run.
        secret: of the run's workers.
        user: the account of the run's directory; empty: this one.

    Raises:
        OSError, EOFError: the master does not answer, or is not of this run.
        EnvironmentFault: another user may listen there.
    """
    with acting_as(user):
        line = _call_near(run_dir, blocking=False)  # one that takes no calls must not hold us up
    reader, writer = await asyncio.open_connection(sock=line, limit=2 * _LARGEST_FRAME)
    try:
        async with asyncio.timeout(_TO_PROVE):
            nonce = secrets.token_bytes(_NONCE_BYTES)
            writer.write(GREETING + nonce)
            greeting = await reader.readexactly(PROOF_BYTES + _NONCE_BYTES)
            writer.write(_answer_to(greeting, secret, nonce, _PERSON))
    except BaseException:
        writer.transport.abort()
        raise
    return reader, writer


async def shown_by(reader: asyncio.StreamReader) -> FromProgram | None:
    """Return the next message of a program; None where the line has ended.

    Raises:
        ProtocolError: this is none.
        OSError: the line is broken.
    """
    try:
        length = length_of(await reader.readexactly(HEAD_BYTES), limit=_LARGEST_FRAME)
        return from_program.decode(await reader.readexactly(length))
    except EOFError:
        return None


def _answer_to(greeting: bytes, secret: bytes, nonce: bytes, end: bytes) -> bytes:
    """Return the proof for a master that has given its own. Raises PermissionError otherwise."""
    proof_given, challenge = greeting[:PROOF_BYTES], greeting[PROOF_BYTES:]
    if not is_proof(proof_given, secret, _KEEPER, nonce, challenge):
        raise PermissionError("what listens there is not the master of this run")
    return proof(secret, end, nonce, challenge)


def _call_near(run_dir: Path, *, blocking: bool = True) -> socket.socket:
    line = socket.socket(socket.AF_UNIX)
    try:
        if blocking:
            line.settimeout(_TO_CONNECT)
        else:
            line.setblocking(False)
        with PrivateFolder(control_folder(run_dir), called=True) as folder:
            line.connect(folder.path(SOCKET))
    except BaseException:
        line.close()
        raise
    return line


def _call_far(address: str, secret: bytes) -> socket.socket:
    line = socket.create_connection(split_address(address), timeout=_TO_CONNECT)
    try:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        context = run_identity(secret, WORKER).client
        return context.wrap_socket(line, server_hostname=server_name(MASTER))
    except BaseException:
        line.close()
        raise
