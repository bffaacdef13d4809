"""A replica of the experiment's online service: it answers each request after a fixed time of work.

As a model server has it, one replica works on a few requests at once, and others wait: so there is a load
that it can bear. It waits in place of computing, so that eight replicas fit beside training on few cores.
"""

from __future__ import annotations

import asyncio
import os
import signal

WORK = 0.02  # seconds of one request
AT_ONCE = 2  # requests
_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nok\n"


async def serve() -> None:
    """Answer until SIGTERM, and then those that have begun."""
    at_once, ended = asyncio.Semaphore(AT_ONCE), asyncio.Event()
    open_requests: set[object] = set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_requests.add(writer)
        try:
            if await reader.readline():
                while (await reader.readline()).strip():
                    pass
                async with at_once:
                    await asyncio.sleep(WORK)
                writer.write(_ANSWER)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()
            open_requests.discard(writer)

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    host, port = os.environ.get("HOST", "127.0.0.1"), int(os.environ["PORT"])
    server = await asyncio.start_server(answer, host, port)
    await ended.wait()
    server.close()
    while open_requests:
        await asyncio.sleep(WORK / 4)


if __name__ == "__main__":
    asyncio.run(serve())
