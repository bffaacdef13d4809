"""`python -m brim.scheduler STATE_DIR`: the scheduler of one cluster; its jobs outlive it."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import resource
import signal
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import uvicorn

from brim.backends.live import LiveBackend
from brim.backends.nodes import Nodes
from brim.backends.runs import RunProcesses
from brim.clock import SystemClock
from brim.domain.cluster import ClusterSpec
from brim.errors import BrimError, EnvironmentFault
from brim.process import be_called
from brim.scheduler.api import application
from brim.scheduler.audit import Audit
from brim.scheduler.door import BACKLOG, LARGEST_HEADERS, Door, protocol_behind, tell_seldom
from brim.scheduler.keys import Keys
from brim.scheduler.loop import CLUSTER, Scheduler
from brim.storage.book import Book
from brim.storage.contact import (
    SCHEDULER,
    SCHEDULER_LOCK,
    SchedulerContact,
    write_scheduler_contact,
)
from brim.storage.database import Database
from brim.storage.files import lock

__all__ = ["listen", "main", "offer"]

_QUESTIONS = 64  # to masters, at once


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What a scheduler is started with.

    Args:
        state_dir: has its database, the jobs' run directories, and how to reach it.
        host, port: where it listens; port 0 picks one.
    """

    state_dir: Path
    host: str
    port: int


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are ours."""
        yield


async def serve(settings: Settings) -> None:
    """Schedule until everything is suspended, or SIGTERM: that leaves the jobs training."""
    state_dir, clock = settings.state_dir.resolve(), SystemClock()
    database = Database(state_dir / "scheduler.db")
    book = Book(database)
    described = database.get(CLUSTER)
    if described is None:
        raise EnvironmentFault(f"{state_dir} has no cluster: brim up makes one")
    spec = msgspec.json.decode(described, type=ClusterSpec)
    nodes = Nodes(state_dir / "nodes", clock)
    backend = LiveBackend(book, RunProcesses(state_dir / "jobs", nodes), spec, clock=clock)
    scheduler = Scheduler(book, database, backend, jobs_folder=state_dir / "jobs", clock=clock)
    listener = listen(settings.host, settings.port)
    # A question to a master that hangs holds a thread until it is given up.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_QUESTIONS))
    scheduling = asyncio.create_task(scheduler.run())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, scheduling.cancel)
    try:
        await offer(scheduler, listener, state_dir, until=scheduling)
        if not scheduling.cancelled():
            await nodes.end()
    finally:
        database.close()


async def offer(
    scheduler: Scheduler, listener: socket.socket, state_dir: Path, *, until: asyncio.Task[None]
) -> None:
    """Answer people until the scheduling has ended, and let them know where.

    Args:
        listener: where; it is closed at the end.
    """
    keys = Keys(state_dir, tenants=lambda: scheduler.declared)
    door = Door()
    tell_seldom(asyncio.get_running_loop())
    config = uvicorn.Config(
        application(scheduler, keys=keys, audit=Audit(state_dir, SystemClock()), door=door),
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
    write_scheduler_contact(
        state_dir, SchedulerContact(host=host, port=port, token=keys.administrator, pid=os.getpid())
    )
    try:
        await asyncio.wait([until, serving], return_when=asyncio.FIRST_COMPLETED)
    finally:
        (state_dir / SCHEDULER).unlink(missing_ok=True)
        server.should_exit = True
        await serving
    if not until.cancelled():
        await until


def listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
        hint = "brim up --listen HOST:0 lets the system choose a port"
        raise EnvironmentFault(f"cannot listen on {host}:{port}: {why}; {hint}") from error


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m brim.scheduler", description=__doc__)
    parser.add_argument("state_dir", type=Path)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    settings = msgspec.convert(vars(parser.parse_args()), Settings)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if os.geteuid() == 0:
        os.setgroups([])  # what is done with the rights of a tenant's account is not done with our groups'
    be_called("brim-scheduler")
    # Everyone who waits holds a connection, and a thousand descriptors, which many hosts give at first, are few.
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    held = lock(settings.state_dir / SCHEDULER_LOCK)
    if held is None:
        sys.exit(f"another scheduler runs in {settings.state_dir}")
    try:
        asyncio.run(serve(settings))
    except BrimError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
