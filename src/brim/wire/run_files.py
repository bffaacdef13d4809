"""Files of a run, kept by the host that keeps its records, for workers of other hosts.

A worker there has no disk in common with that host. It writes its checkpoints over the port on
which its agent calls the master, so that there is no other to open. Its agent reads the code of the
job there.

Callers come by TLS, which ends at the port. Both ends prove that they are of the same run before
anything else is said. Then a caller asks, and
is answered, as often as it likes: a header in a frame, and as many bytes behind it as the header
says.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, TypeVar

import msgspec

from brim.domain.followed import EVENTS, Mark, Part
from brim.errors import ProtocolError
from brim.host.clock import monotonic
from brim.host.process import close_in_children
from brim.wire.frames import HEAD_BYTES, frame, length_of
from brim.wire.identity import MOST_OF_A_CONNECTION, server_name
from brim.wire.listening import split_address
from brim.wire.messages import Codec
from brim.wire.proofs import PROOF_BYTES, is_proof, proof
from brim.wire.run_identity import MASTER, WORKER, run_identity, stranger_of

T = TypeVar("T")

GREETING = b"brim files\n"  # the first bytes of a call, by which a port tells it from others
KEEPER, CALLER = b"keeper of files", b"caller for files"  # whose proof it is
NONCE_BYTES = 16
_LONGEST_HEADER = 1 << 24  # bytes: the names of all files of a run
_CHUNK = 1 << 20
_TO_PROVE = 5.0  # seconds that a stranger may take
_TO_ANSWER = 30.0  # seconds without a byte after which the other end is given up
_TO_CONNECT = 10.0  # seconds until a host has taken a call
_IDLE = 60.0  # seconds after which a call without a request is ended
_TO_BE_KEPT = 300.0  # seconds until a file that was sent must be on disk
_MOST_CALLS = 64
_LARGEST_BUNDLE = 1 << 24  # bytes, of which it takes as many as it is said to have
_LONGEST_WAIT = 30.0  # seconds for which a follower may be told nothing
_TO_SEE_OFF = 10.0  # seconds that followers have for the last words of a run
_POLL_INTERVAL = 0.05  # seconds between two looks for what is new
_THREADS = 8  # that wait for the disk


class FileRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request of a worker.

    Args:
        verb: `names`, `read`, `write` or `remove`; `bundle` for the code of the job; `follow` for
            what is new in its records.
        name: of the file, relative to the place.
        size: bytes that follow, to be written.
        marks: the follower's places in the records.
        steps_at_most: bytes of steps that it has a use for; None: all.
        wait: seconds for which there may be nothing new.
        linger: seconds that new parts may wait for more, where they are no event.
    """

    verb: Literal["names", "read", "write", "remove", "bundle", "follow"]
    name: str = ""
    size: Annotated[int, msgspec.Meta(ge=0)] = 0
    marks: dict[str, Mark] = {}
    steps_at_most: Annotated[int, msgspec.Meta(ge=0)] | None = None
    wait: float = 0.0
    linger: float = 0.0


class FileReply(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a request.

    Args:
        problem: why it was not done; empty where it was.
        is_missing: there is no such file.
        names: all files, with their sizes in bytes.
        size: bytes that follow: what was read.
        parts: of the records, whose bytes follow.
    """

    problem: str = ""
    is_missing: bool = False
    names: dict[str, int] = {}
    size: int = 0
    parts: list[Part] = []


requests: Codec[FileRequest] = Codec(FileRequest)
replies: Codec[FileReply] = Codec(FileReply)


class IncomingFile(Protocol):
    """A file that is being written, and is not there yet."""

    def write(self, data: bytes) -> None: ...

    def keep(self) -> None:
        """Have it there, whole and on disk."""
        ...

    def drop(self) -> None:
        """Forget it, unless it was kept."""
        ...


class KeptFolder(Protocol):
    """The folder whose files are kept. Every method raises OSError."""

    def names(self) -> dict[str, int]: ...

    def open(self, name: str) -> tuple[int, Iterator[bytes]]:
        """Return the size of a file, and its bytes in chunks."""
        ...

    def draft(self, name: str) -> IncomingFile: ...

    def remove(self, name: str) -> None: ...


class RecordsToFollow(Protocol):
    """The records of the run, for one follower; see `brim.storage.followed.FollowedRecords`."""

    def sizes(self, marks: Mapping[str, Mark]) -> dict[str, int]: ...

    def read(
        self, marks: Mapping[str, Mark], *, steps_at_most: int | None
    ) -> list[tuple[Part, bytes]]: ...


# The end that keeps the files ---------------------------------------------------------------------


class RunFileServer:
    """Serves the files of a place on a Unix socket, to callers that have the secret.

    Args:
        place: where they are; None: workers have another place for them.
        path: of the socket.
        secret: of the run's workers.
        bundle: the code of the job.
        records: makes what one follower reads; None: nobody can follow.
    """

    def __init__(
        self,
        place: KeptFolder | None,
        path: str,
        secret: bytes,
        bundle: bytes = b"",
        records: Callable[[], RecordsToFollow] | None = None,
    ) -> None:
        self._kept, self._path, self._secret, self.bundle = place, path, secret, bundle
        self._records = records
        self._ending = False
        # what each follower has, by its call, since it asked for more
        self._followers: dict[asyncio.Task[None], tuple[RecordsToFollow, Mapping[str, Mark]]] = {}
        self._server: asyncio.Server | None = None
        self._calls: set[asyncio.Task[None]] = set()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="files")

    async def start(self) -> None:
        """Begin to accept calls. Raises OSError."""
        self._server = await asyncio.start_unix_server(self._take, self._path)

    async def see_followers_off(self) -> None:
        """Wait, not for ever, until all followers have the records to their end."""
        self._ending, deadline = True, monotonic() + _TO_SEE_OFF
        while monotonic() < deadline and any(
            _lacks(records, marks) for records, marks in self._followers.values()
        ):
            await asyncio.sleep(_POLL_INTERVAL)

    def stop(self) -> None:
        """Accept nothing more, and end the calls that are under way."""
        if self._server is not None:
            self._server.close()
        for call in self._calls:
            call.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        call = asyncio.current_task()
        assert call is not None
        try:
            if len(self._calls) < _MOST_CALLS:
                self._calls.add(call)
                with contextlib.suppress(OSError, EOFError, ProtocolError, asyncio.CancelledError):
                    await self._serve(reader, writer)
        finally:
            self._calls.discard(call)
            self._followers.pop(call, None)
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(_TO_PROVE):
            if not await self._is_of_run(reader, writer):
                return
        records = self._records() if self._records is not None else None
        while True:
            async with asyncio.timeout(_IDLE):
                request = requests.decode(await frame_from(reader))
            if request.verb == "write":
                await _answer(writer, await self._write(request, reader))
            elif request.verb == "read":
                await self._read(request, writer)
            elif request.verb == "follow":
                await self._follow(request, records, writer)
            elif request.verb == "bundle":
                await _answer(writer, FileReply(size=len(self.bundle)))
                await _send(writer, self.bundle)
            else:
                await _answer(writer, await self._in_thread(self._perform, request))

    async def _is_of_run(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        greeting = await reader.readexactly(len(GREETING) + NONCE_BYTES)
        if not greeting.startswith(GREETING):
            return False
        nonce, challenge = greeting[len(GREETING) :], secrets.token_bytes(NONCE_BYTES)
        writer.write(proof(self._secret, KEEPER, nonce, challenge) + challenge)
        proof_given = await reader.readexactly(PROOF_BYTES)
        return is_proof(proof_given, self._secret, CALLER, nonce, challenge)

    @property
    def _place(self) -> KeptFolder:
        """The place. Raises FileNotFoundError where there is none."""
        if self._kept is None:
            raise FileNotFoundError("this run keeps no files for other hosts")
        return self._kept

    def _perform(self, request: FileRequest) -> FileReply:
        try:
            if request.verb == "names":
                return FileReply(names=self._place.names())
            self._place.remove(_checked(request.name))
        except OSError as error:
            return _reply_of(error)
        return FileReply()

    async def _write(self, request: FileRequest, reader: asyncio.StreamReader) -> FileReply:
        """Write the data of a request; where that cannot be, read it all the same.

        Raises:
            EOFError, TimeoutError: it does not come.
        """
        problem: OSError | None = None
        file: IncomingFile | None = None
        try:
            place = self._place
            file = await self._in_thread(place.draft, _checked(request.name))
        except OSError as error:
            problem = error
        try:
            remaining = request.size
            while remaining:
                async with asyncio.timeout(_TO_ANSWER):
                    data = await reader.readexactly(min(remaining, _CHUNK))
                remaining -= len(data)
                if file is not None and problem is None:
                    problem = await self._tried(file.write, data)
            if file is not None and problem is None:
                problem = await self._tried(file.keep)
        finally:
            if file is not None:
                file.drop()
        return FileReply() if problem is None else _reply_of(problem)

    async def _tried(self, function: Callable[..., None], *arguments: Any) -> OSError | None:
        """Do something with the disk; the error that it ended with, or None."""
        try:
            await self._in_thread(function, *arguments)
        except OSError as error:
            return error
        return None

    async def _in_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        """Wait for the disk, which holds up no other work of this process."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, function, *arguments)

    async def _read(self, request: FileRequest, writer: asyncio.StreamWriter) -> None:
        try:
            place = self._place
            size, chunks = await self._in_thread(place.open, _checked(request.name))
        except OSError as error:
            await _answer(writer, _reply_of(error))
            return
        await _answer(writer, FileReply(size=size))
        while data := await self._in_thread(next, chunks, b""):
            await _send(writer, data)

    async def _follow(
        self, request: FileRequest, records: RecordsToFollow | None, writer: asyncio.StreamWriter
    ) -> None:
        """Answer with new parts, or after a while that there are none. Raises OSError."""
        if records is None:
            await _answer(writer, FileReply(problem="this run cannot be followed"))
            return
        call = asyncio.current_task()
        assert call is not None
        self._followers[call] = records, request.marks
        found = await self._news(records, request)
        await _answer(writer, FileReply(parts=[part for part, _ in found]))
        for _, data in found:
            await _send(writer, data)

    async def _news(
        self, records: RecordsToFollow, request: FileRequest
    ) -> list[tuple[Part, bytes]]:
        """Return the missing parts of a follower once there are some; nothing after a while."""
        read = partial(records.read, request.marks, steps_at_most=request.steps_at_most)
        if any(mark.tail for mark in request.marks.values()):  # what it has is to be proved
            return await self._in_thread(read)
        started, found = monotonic(), list[tuple[Part, bytes]]()
        while not found:
            if not await self._until_news(records, request, started):
                return []
            found = await self._in_thread(read)
            if not found:  # a line, and not all of it yet
                await asyncio.sleep(_POLL_INTERVAL)
        return found

    async def _until_news(
        self, records: RecordsToFollow, request: FileRequest, started: float
    ) -> bool:
        """Wait until there is an event that a follower lacks, or anything else once that is due.

        False: there is nothing for as long as it waits.
        """
        while (waited := monotonic() - started) < min(request.wait, _LONGEST_WAIT):
            new = _lacks(records, request.marks)
            if EVENTS in new or (new and (self._ending or waited >= request.linger)):
                return True
            await asyncio.sleep(_POLL_INTERVAL)
        return False


def _lacks(records: RecordsToFollow, marks: Mapping[str, Mark]) -> set[str]:
    """Return the files of which a follower lacks something."""
    had = {name: mark.place for name, mark in marks.items()}
    return {name for name, size in records.sizes(marks).items() if size != had.get(name, 0)}


async def frame_from(reader: asyncio.StreamReader) -> bytes:
    """The next frame.

    Raises:
        EOFError: there is none.
        ProtocolError: no header is so long.
    """
    length = length_of(await reader.readexactly(HEAD_BYTES), limit=_LONGEST_HEADER)
    async with asyncio.timeout(_TO_ANSWER):
        return await reader.readexactly(length)


async def _answer(writer: asyncio.StreamWriter, reply: FileReply) -> None:
    await _send(writer, frame(replies.encode(reply)))


async def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Send data, in chunks: the time of a call is that of a chunk."""
    for offset in range(0, len(data), _CHUNK):
        writer.write(data[offset : offset + _CHUNK])
        async with asyncio.timeout(_TO_ANSWER):
            await writer.drain()


def _reply_of(error: OSError) -> FileReply:
    return FileReply(
        problem=error.strerror or str(error) or type(error).__name__,
        is_missing=isinstance(error, FileNotFoundError),
    )


def _checked(name: str) -> str:
    """Return a name that leads to a file below the place.

    Raises:
        PermissionError: it might lead elsewhere.
    """
    parts = name.split("/")
    if not name or "\0" in name or any(part in ("", ".", "..") for part in parts):
        raise PermissionError(f"{name!r} is not the name of a file of this run")
    return name


# The end that has them kept -----------------------------------------------------------------------


class RunFiles:
    """The files of a run that another host keeps, with the methods that a file system of fsspec has.

    Calls are made as they are needed, from any thread, one at a time.

    Args:
        address: `HOST:PORT` of the run's master; several, with commas between them, where it may be
            at any of these.
        secret: of the run's workers.
    """

    def __init__(self, address: str, secret: bytes) -> None:
        self._address, self._secret = address, secret
        self._lock = threading.Lock()
        self._line: socket.socket | None = None
        self._idle_since, self._carried = 0.0, 0

    def invalidate_cache(self) -> None:
        """Forget nothing: this end keeps no cache."""

    def find(self, _: str, *, detail: bool) -> dict[str, dict[str, int]]:
        """Return all files with their sizes. Raises OSError."""
        assert detail
        reply, _data = self._ask(FileRequest(verb="names"))
        return {f"/{name}": {"size": size} for name, size in reply.names.items()}

    def cat_file(self, path: str) -> bytearray:
        """Return the bytes of a file. Raises OSError."""
        return self._ask(FileRequest(verb="read", name=_name(path)))[1]

    def pipe_file(self, path: str, data: bytes | bytearray) -> None:
        """Have a file written, whole or not at all. Raises OSError."""
        self._ask(FileRequest(verb="write", name=_name(path), size=len(data)), data)

    def bundle(self) -> bytes:
        """Return the code of the job. Raises OSError."""
        return bytes(self._ask(FileRequest(verb="bundle"))[1])

    def rm_file(self, path: str) -> None:
        """Have a file removed. Raises OSError."""
        self._ask(FileRequest(verb="remove", name=_name(path)))

    def _ask(
        self, request: FileRequest, data: bytes | bytearray = b""
    ) -> tuple[FileReply, bytearray]:
        with self._lock:
            if self._idle_since < monotonic() - _IDLE / 2:
                self.close()  # the other end may have ended it
            if self._carried > MOST_OF_A_CONNECTION:
                self.close()
            try:
                line = self._line = self._line or self._call()
                line.sendall(frame(requests.encode(request)))
                view = memoryview(data)
                for offset in range(0, len(view), _CHUNK):  # the time of a call is that of a chunk
                    line.sendall(view[offset : offset + _CHUNK])
                line.settimeout(_TO_BE_KEPT if request.verb == "write" else _TO_ANSWER)
                reply = replies.decode(_next_frame(line))
                line.settimeout(_TO_ANSWER)
                if request.verb == "bundle" and reply.size > _LARGEST_BUNDLE:
                    raise ProtocolError(f"no bundle of code has {reply.size:,} bytes")
                content = _exactly(line, reply.size)
                self._carried += len(data) + len(content)
                self._idle_since = monotonic()
            except (OSError, ProtocolError):
                self.close()
                raise
        if reply.is_missing:
            raise FileNotFoundError(reply.problem)
        if reply.problem:
            raise OSError(reply.problem)
        return reply, content

    def close(self) -> None:
        """End the call that is under way."""
        if self._line is not None:
            self._line.close()
            self._line, self._carried = None, 0

    def _call(self) -> socket.socket:
        """Call the host that keeps the files.

        Raises:
            OSError: it does not answer.
            PermissionError: the listener there is not of this run.
        """
        *earlier_addresses, last = self._address.split(",")
        for address in earlier_addresses:
            with contextlib.suppress(OSError):  # the master may be at any of them by now
                return self._call_at(address)
        return self._call_at(last)

    def _call_at(self, address: str) -> socket.socket:
        line = socket.create_connection(split_address(address), timeout=_TO_CONNECT)
        try:
            line.settimeout(_TO_ANSWER)
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            context = run_identity(self._secret, WORKER).client
            line = context.wrap_socket(line, server_hostname=server_name(MASTER))
            close_in_children(line)
            nonce = secrets.token_bytes(NONCE_BYTES)
            line.sendall(GREETING + nonce)
            greeting = bytes(_exactly(line, PROOF_BYTES + NONCE_BYTES))
            proof_given, challenge = greeting[:PROOF_BYTES], greeting[PROOF_BYTES:]
            if not is_proof(proof_given, self._secret, KEEPER, nonce, challenge):
                raise PermissionError(f"what listens at {address} is not of this run")
            line.sendall(proof(self._secret, CALLER, nonce, challenge))
        except BaseException as error:
            line.close()
            if stranger_of(error):
                raise PermissionError(f"what listens at {address} is not of this run") from error
            raise
        return line


def _name(path: str) -> str:
    return path.removeprefix("/")


def _next_frame(line: socket.socket) -> bytes:
    length = length_of(_exactly(line, HEAD_BYTES), limit=_LONGEST_HEADER)
    return bytes(_exactly(line, length))


def _exactly(line: socket.socket, size: int) -> bytearray:
    """Read so many bytes. Raises ConnectionError where fewer come."""
    data = bytearray(size)
    view = memoryview(data)
    while view:
        count = line.recv_into(view)
        if not count:
            raise ConnectionError("the host that keeps the run's files has closed the connection")
        view = view[count:]
    return data


SCHEME = "brim://"  # of a place that another host keeps: brim://HOST:PORT/PATH


def place_at(address: str, path: str | Path) -> str:
    """Return the URL of a folder that a run's master keeps.

    >>> place_at("10.0.0.7:4000", "/runs/a/checkpoints")
    'brim://10.0.0.7:4000/runs/a/checkpoints'
    """
    return f"{SCHEME}{address}{path}"


def split_place(url: str) -> tuple[str, str]:
    """Return the address and the path of a place that `place_at` made.

    >>> split_place("brim://10.0.0.7:4000/runs/a/checkpoints")
    ('10.0.0.7:4000', '/runs/a/checkpoints')
    """
    address, slash, path = url.removeprefix(SCHEME).partition("/")
    return address, slash + path
