"""The server of a scheduler: it answers people, and lets them know where."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from pathlib import Path

from brim.host.clock import SystemClock
from brim.host.process import birth_of
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
from brim.wire.door import BACKLOG, Door, answering
from brim.wire.https import ALL_ADDRESSES
from brim.wire.identity import SCHEDULER
from brim.wire.listening import is_loopback, joined_address, listen_on
from brim.wire.renewed import RenewedCertificate

_RETRY_INTERVAL = 1.0  # seconds between two attempts to write where it is
_TO_END = 2  # seconds for requests that are under way when the scheduling ends

_log = logging.getLogger(__name__)


async def offer(
    lives: Lives,
    listener: socket.socket,
    state_dir: Path,
    *,
    authority: Authority,
    certificate: RenewedCertificate | None = None,
    nodes: str = "",
    scheduling: asyncio.Task[None],
) -> None:
    """Answer people until the scheduling has ended, and let them know where.

    Args:
        listener: where; it is closed at the end.
        authority: of the cluster, by which clients with a token know this scheduler.
        certificate: to show them; None: nothing is encrypted.
        nodes: `HOST:PORT` at which nodes of other hosts join; empty: none can.
    """
    keys = Keys(state_dir, authority.fingerprint, tenants=lambda: lives.now.declared)
    door = Door()
    host, port = listener.getsockname()[:2]
    pid = os.getpid()
    contact = SchedulerContact(
        host=host,
        port=port,
        token=keys.administrator,
        pid=pid,
        birth=birth_of(pid),
        authority=authority.certificate.decode() if certificate is not None else "",
        nodes=nodes,
    )
    api = application(lives, keys=keys, audit=Audit(state_dir, SystemClock()), door=door)
    context = certificate.context if certificate is not None else None
    background = [asyncio.create_task(_tell_where(state_dir, contact))]
    if certificate is not None:
        background.append(asyncio.create_task(certificate.keep()))
    async with answering(api, listener, door, context=context, to_end=_TO_END) as letting_in:
        try:
            await asyncio.wait([scheduling, letting_in], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in background:
                task.cancel()
            remove_scheduler_contact(state_dir, pid=os.getpid())
    if letting_in.done() and not letting_in.cancelled():
        await letting_in  # it ends by a fault alone
    if not scheduling.cancelled():
        await scheduling


async def _tell_where(state_dir: Path, contact: SchedulerContact) -> None:
    """Let callers know where it is, also where a full disk takes that only later."""
    is_reported = False
    while True:
        try:
            return write_scheduler_contact(state_dir, contact)
        except OSError as error:
            if not is_reported:
                address = joined_address(contact.host, contact.port)
                _log.warning(
                    "no client knows that the scheduler is at %s: %s; trying again", address, error
                )
            is_reported = True
            await asyncio.sleep(_RETRY_INTERVAL)


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
