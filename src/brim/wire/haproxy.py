"""Asks a front, a process of haproxy, at the socket in its folder."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from brim.errors import EnvironmentFault

SOCKET = "front.sock"
_TO_ANSWER = 2.0  # seconds
_LARGEST_ANSWER = 8 << 20  # bytes


async def ask_front(folder: Path, commands: Sequence[str]) -> str:
    """Return the answer of a front to commands. No word of a user's may be in them.

    Raises:
        EnvironmentFault: none answers there.
    """
    line = ";".join(commands).encode() + b"\n"
    try:
        async with asyncio.timeout(_TO_ANSWER):
            return (await _ask(folder, line)).decode(errors="replace")
    except (OSError, TimeoutError) as error:
        raise EnvironmentFault(f"the front in {folder} does not answer: {error}") from error


async def _ask(folder: Path, line: bytes) -> bytes:
    with _path_in(folder) as path:
        reader, writer = await asyncio.open_unix_connection(path)
    try:
        writer.write(line)
        await writer.drain()
        answer = bytearray()
        while data := await reader.read(1 << 16):
            answer += data
            if len(answer) > _LARGEST_ANSWER:
                raise OSError("its answer is too large")
        return bytes(answer)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


@contextlib.contextmanager
def _path_in(folder: Path) -> Iterator[str]:
    """Yield a short path of the socket: the kernel takes no long ones, as state directories may have."""
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{SOCKET}"
    finally:
        os.close(directory)
