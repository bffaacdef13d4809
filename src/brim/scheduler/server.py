"""The server of a scheduler: it answers people, and lets them know where."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import uvicorn

from brim.clock import SystemClock
from brim.process import birth_of
from brim.scheduler.api import application
from brim.scheduler.audit import Audit
from brim.scheduler.keys import Keys
from brim.scheduler.lives import Lives
from brim.storage.contact import (
    SchedulerContact,
    remove_scheduler_contact,
    write_scheduler_contact,
)
from brim.wire.door import BACKLOG, LARGEST_HEADERS, Door, protocol_behind, tell_seldom
from brim.wire.listening import listen_on

_AGAIN = 1.0  # seconds between two attempts to write where it is

_log = logging.getLogger(__name__)


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are ours."""
        yield


async def offer(
    lives: Lives, listener: socket.socket, state_dir: Path, *, until: asyncio.Task[None]
) -> None:
    """Answer people until the scheduling has ended, and let them know where.

    Args:
        listener: where; it is closed at the end.
    """
    keys = Keys(state_dir, tenants=lambda: lives.now.declared)
    door = Door()
    tell_seldom(asyncio.get_running_loop())
    config = uvicorn.Config(
        application(lives, keys=keys, audit=Audit(state_dir, SystemClock()), door=door),
        http=protocol_behind(door),
        ws="none",
        backlog=BACKLOG,
        h11_max_incomplete_event_size=LARGEST_HEADERS,
        log_level="warning",
        lifespan="off",
        timeout_graceful_shutdown=2,
    )
    server = _Server(config)
    host, port = listener.getsockname()[:2]
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    pid = os.getpid()
    contact = SchedulerContact(
        host=host, port=port, token=keys.administrator, pid=pid, birth=birth_of(pid)
    )
    telling = asyncio.create_task(_tell_where(state_dir, contact))
    try:
        await asyncio.wait([until, serving], return_when=asyncio.FIRST_COMPLETED)
    finally:
        telling.cancel()
        remove_scheduler_contact(state_dir, pid=os.getpid())
        server.should_exit = True
        await serving
    if not until.cancelled():
        await until


async def _tell_where(state_dir: Path, contact: SchedulerContact) -> None:
    """Let callers know where it is, also where a full disk takes that only later."""
    said = False
    while True:
        try:
            return write_scheduler_contact(state_dir, contact)
        except OSError as error:
            if not said:
                where = f"{contact.host}:{contact.port}"
                _log.warning(
                    "no client knows that the scheduler is at %s: %s; trying again", where, error
                )
            said = True
            await asyncio.sleep(_AGAIN)


def listen(host: str, port: int) -> socket.socket:
    hint = "brim up --listen HOST:0 lets the system choose a port"
    return listen_on(host, port, backlog=BACKLOG, hint=hint)
