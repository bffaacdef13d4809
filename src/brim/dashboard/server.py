"""The process of a dashboard: one listener on loopback, one client of a scheduler, and its pages."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from fastapi import FastAPI
from nicegui import ui

from brim.client import Client
from brim.dashboard.desk import Desk
from brim.dashboard.following import Following
from brim.dashboard.guard import ENTER, LARGEST_FRAME, Guard
from brim.dashboard.pages import add_pages
from brim.dashboard.sessions import Sessions
from brim.errors import EnvironmentFault
from brim.runs.times import clock_time
from brim.wire.door import BACKLOG, Door, answering
from brim.wire.listening import listen_on

_TO_SAY_WHY = 0.5  # seconds for pages to show that the scheduler refuses the token
_TO_END = 2  # seconds for what is under way in the end
_NAME_BYTES = 5  # of the name that no other dashboard has
_ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><path d="M5 6h22l-3 21H8z" '
    'fill="#2257c9"/><path d="M7 12h18l-2 13H9z" fill="#8db0ff"/></svg>'
)


def serve(client: Client, *, port: int, folder: Path, opens: Callable[[str], None]) -> None:
    """Serve one person's dashboard until SIGINT or SIGTERM.

    Args:
        port: on loopback; 0: any that is free.
        folder: jobs are submitted from files in it.
        opens: is called with each address that opens the dashboard once.

    Raises:
        EnvironmentFault: the port is taken, or the scheduler refuses the token.
    """
    asyncio.run(_serve(client, port=port, folder=folder, opens=opens))


async def _serve(client: Client, *, port: int, folder: Path, opens: Callable[[str], None]) -> None:
    listener = listen_on("127.0.0.1", port, backlog=BACKLOG, hint="brim dashboard --port 0")
    host = f"brim-{secrets.token_hex(_NAME_BYTES)}.localhost:{listener.getsockname()[1]}"
    sessions, door = Sessions(), Door()
    loop = asyncio.get_running_loop()
    refused = asyncio.Event()

    def on_refused() -> None:
        loop.call_later(_TO_SAY_WHY, refused.set)

    following = Following(client, looked_at=lambda: sessions.streams > 0, refused=on_refused)
    desk = Desk(client, following, folder=folder, clock=clock_time, sign_out=sessions.end)
    add_pages(desk)
    application = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    ui.run_with(
        application,
        title="brim",
        favicon=_ICON,
        dark=None,
        language="en-US",
        tailwind=False,
        binding_refresh_interval=None,
        gzip_middleware_factory=None,
        show_welcome_message=False,
    )
    guard = Guard(application, host=host, sessions=sessions, door=door)
    ending = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ending.set)

    def give_address() -> None:
        opens(f"http://{host}{ENTER}?code={sessions.give_code(loop.time())}")

    async with (
        application.router.lifespan_context(application),
        answering(guard, listener, door, largest_frame=LARGEST_FRAME, to_end=_TO_END) as letting_in,
        _in_background(following),
    ):
        give_address()
        with _at_each_line(give_address):
            waits = [asyncio.create_task(event.wait()) for event in (ending, refused)]
            await asyncio.wait([*waits, letting_in], return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
        sessions.end_all()
    if refused.is_set():
        raise EnvironmentFault(following.sight.problem)


@contextlib.asynccontextmanager
async def _in_background(following: Following) -> AsyncIterator[None]:
    task = asyncio.create_task(following.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@contextlib.contextmanager
def _at_each_line(action: Callable[[], None]):  # type: ignore[no-untyped-def]
    """Call `action` each time that Enter is pressed where this runs, if that is a terminal."""
    if not sys.stdin or not sys.stdin.isatty():
        yield
        return
    loop = asyncio.get_running_loop()

    def on_line() -> None:
        if not sys.stdin.readline():
            loop.remove_reader(sys.stdin)
            return
        action()

    loop.add_reader(sys.stdin, on_line)
    try:
        yield
    finally:
        loop.remove_reader(sys.stdin)
