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
from uvicorn.protocols.http.h11_impl import H11Protocol

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
from brim.wire.authority import Authority
from brim.wire.door import (
    BACKLOG,
    LARGEST_HEADERS,
    Door,
    in_pieces,
    let_in,
    protocol_behind,
    tell_seldom,
)
from brim.wire.https import ALL_ADDRESSES
from brim.wire.identity import SCHEDULER
from brim.wire.listening import is_loopback, joined_address, listen_on
from brim.wire.renewed import RenewedCertificate

_AGAIN = 1.0  # seconds between two attempts to write where it is

_log = logging.getLogger(__name__)


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are ours."""
        yield


async def offer(
    lives: Lives,
    listener: socket.socket,
    state_dir: Path,
    *,
    authority: Authority,
    certificate: RenewedCertificate | None = None,
    until: asyncio.Task[None],
) -> None:
    """Answer people until the scheduling has ended, and let them know where.

    Args:
        listener: where; it is closed at the end.
        authority: of the cluster, by which clients with a token know this scheduler.
        certificate: to show them; None: nothing is encrypted.
    """
    keys = Keys(state_dir, authority.fingerprint, tenants=lambda: lives.now.declared)
    door = Door()
    tell_seldom(asyncio.get_running_loop())
    protocol = protocol_behind(door)
    config = uvicorn.Config(
        in_pieces(application(lives, keys=keys, audit=Audit(state_dir, SystemClock()), door=door)),
        http=protocol,
        ws="none",
        # A header does not say whose connection it is: the door could not count it.
        proxy_headers=False,
        backlog=BACKLOG,
        h11_max_incomplete_event_size=LARGEST_HEADERS,
        log_level="warning",
        lifespan="off",
        timeout_graceful_shutdown=2,
    )
    server = _Server(config)
    host, port = listener.getsockname()[:2]
    pid = os.getpid()
    contact = SchedulerContact(
        host=host,
        port=port,
        token=keys.administrator,
        pid=pid,
        birth=birth_of(pid),
        authority=authority.certificate.decode() if certificate is not None else "",
    )

    def make() -> H11Protocol:
        return protocol(config=config, server_state=server.server_state, app_state={})

    context = certificate.context if certificate is not None else None
    serving = asyncio.create_task(server.serve(sockets=[]))
    letting_in = asyncio.create_task(let_in(listener, door, make, context))
    beside = [asyncio.create_task(_tell_where(state_dir, contact))]
    if certificate is not None:
        beside.append(asyncio.create_task(certificate.keep()))
    try:
        await asyncio.wait([until, serving, letting_in], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in (letting_in, *beside):
            each.cancel()
        remove_scheduler_contact(state_dir, pid=os.getpid())
        server.should_exit = True
        await serving
    if letting_in.done() and not letting_in.cancelled():
        await letting_in  # it ends by a fault alone
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
                where = joined_address(contact.host, contact.port)
                _log.warning(
                    "no client knows that the scheduler is at %s: %s; trying again", where, error
                )
            said = True
            await asyncio.sleep(_AGAIN)


def certificate_for(
    listener: socket.socket, authority: Authority, *, named: str
) -> RenewedCertificate | None:
    """Return the certificate of a scheduler that other hosts can call; None for this host alone.

    Args:
        named: the host as it was named for the listener.
    """
    host = str(listener.getsockname()[0])
    if is_loopback(host):
        return None
    names = {host, named, os.uname().nodename, "localhost"} - {"", *ALL_ADDRESSES}
    addresses = tuple(sorted(name for name in names if name.isascii()))
    return RenewedCertificate(authority, SCHEDULER, addresses=addresses)


def listen(host: str, port: int) -> socket.socket:
    hint = "brim up --listen HOST:0 lets the system choose a port"
    return listen_on(host, port, backlog=BACKLOG, hint=hint)
