"""Streams between workers: state for a newcomer, slices of gradients between hosts.

Blocking TCP straight from and into arrays. Every wait has a deadline and ends early once the agent has something
to say (a new round, usually): a worker never waits for a dead neighbour. One that is there and sends nothing may hang,
and that is for its own agent to end; a host that does not answer is lost after a minute, which its kernel tells.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import struct
import time
from collections.abc import Callable, Mapping, Sequence

from brim.errors import EnvironmentFault
from brim.process import close_in_children

__all__ = ["Interrupted", "Listener", "PeerLost", "connect", "read_exactly", "swap", "write_all"]

_GREETING = struct.Struct("<I")
_SLICE = 0.05  # seconds between looks at whether the wait has become pointless
_UNANSWERED = (
    60.0  # seconds without an answer of the other host's kernel after which its worker counts as lost
)
_KEEP_ALIVE = (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 9))  # 60 s in all
_RETRANSMITS = 2  # the place of tcpi_retransmits in the kernel's struct tcp_info

Cancelled = Callable[[], bool]


class Interrupted(Exception):
    """The agent has a message: whatever this stream was for may be moot."""


class PeerLost(EnvironmentFault):
    """Another worker is gone or silent; the agent will name a round without it."""


class Listener:
    """Where other workers reach this one.

    Args:
        host: address of this host that the others can reach.
    """

    def __init__(self, host: str) -> None:
        self._socket = socket.create_server((host, 0), backlog=64)
        close_in_children(self._socket)
        self._waiting: dict[str, socket.socket] = {}
        self.address = f"{host}:{self._socket.getsockname()[1]}"

    def accept(self, greeting: str, *, timeout: float, cancelled: Cancelled) -> socket.socket:
        """The stream of the worker that greets so; others that call meanwhile are kept for their turn.

        Raises:
            Interrupted: the agent spoke first.
            PeerLost: nobody greeted so in time.
        """
        deadline = time.monotonic() + timeout
        while greeting not in self._waiting:
            if cancelled():
                raise Interrupted
            if time.monotonic() > deadline:
                raise PeerLost(f"no worker called with {greeting!r} in {timeout:.0f} s", retryable=True)
            self._socket.settimeout(_SLICE)
            with contextlib.suppress(TimeoutError):
                peer, _ = self._socket.accept()
                self._greeted(peer)
        return self._waiting.pop(greeting)

    def _greeted(self, peer: socket.socket) -> None:
        peer.settimeout(5.0)
        close_in_children(peer)
        try:
            (length,) = _GREETING.unpack(_exactly(peer, _GREETING.size))
            if length > 4096:
                raise ConnectionError("not a greeting")
            self._waiting[_exactly(peer, length).decode()] = peer
            _make_ready(peer)
        except (OSError, UnicodeDecodeError):
            peer.close()  # a stranger, or a worker that died while calling

    def drop_waiting(self, is_over: Callable[[str], bool] = lambda _: True) -> None:
        """Close the streams that nobody will ask for any more: those whose greeting says so.

        A stream of the round that begins may have been accepted already, while this worker waited in the last.
        """
        for greeting in [each for each in self._waiting if is_over(each)]:
            self._waiting.pop(greeting).close()

    def close(self) -> None:
        self.drop_waiting()
        self._socket.close()


def _exactly(peer: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = peer.recv(size - len(data))
        if not more:
            raise ConnectionError("closed")
        data += more
    return data


def connect(address: str, greeting: str, *, timeout: float, cancelled: Cancelled) -> socket.socket:
    """Call another worker.

    Raises:
        Interrupted: the agent spoke first.
        PeerLost: it does not answer in time.
    """
    host, _, port = address.rpartition(":")
    try:
        target = (host, int(port))
        peer = socket.socket(socket.AF_INET, socket.SOCK_STREAM)  # as a Listener has it
        close_in_children(peer)
    except OSError as error:
        raise PeerLost(f"worker at {address} cannot be called: {error}", retryable=True) from error
    try:
        peer.setblocking(False)
        _await_connection(peer, peer.connect_ex(target), timeout=timeout, cancelled=cancelled)
        _make_ready(peer)
        text = greeting.encode()
        write_all(peer, [memoryview(_GREETING.pack(len(text)) + text)], timeout=timeout, cancelled=cancelled)
        peer.setblocking(True)
    except BaseException as error:
        peer.close()
        if isinstance(error, OSError):
            raise PeerLost(f"worker at {address} does not answer: {error}", retryable=True) from error
        raise
    return peer


def _make_ready(peer: socket.socket) -> None:
    """Send at once, and have the kernel find out whether the other host is there while nothing is sent."""
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE:
        if hasattr(socket, name):
            peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _is_unanswered(peer: socket.socket) -> bool:
    """Whether the kernel says the same thing again and again: one whose worker only does not read would answer it."""
    if not hasattr(socket, "TCP_INFO"):
        return False
    return peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RETRANSMITS + 1)[_RETRANSMITS] > 0


def _await_connection(peer: socket.socket, status: int, *, timeout: float, cancelled: Cancelled) -> None:
    """Wait until a connection under way (`status` is what `connect_ex` gave) is there."""
    if status not in (0, errno.EINPROGRESS):
        raise OSError(status, os.strerror(status))
    deadline = time.monotonic() + timeout
    with selectors.DefaultSelector() as selector:
        selector.register(peer, selectors.EVENT_WRITE)
        while not selector.select(_SLICE):
            if cancelled():
                raise Interrupted
            if time.monotonic() > deadline:
                raise TimeoutError(f"no answer in {timeout:.0f} s")
    if status := peer.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
        raise OSError(status, os.strerror(status))


def write_all(
    peer: socket.socket, data: Sequence[memoryview], *, timeout: float, cancelled: Cancelled
) -> None:
    """Send all of it; raises as `swap` does."""
    swap({peer: data}, {}, timeout=timeout, cancelled=cancelled)


def read_exactly(
    peer: socket.socket, into: Sequence[memoryview], *, timeout: float, cancelled: Cancelled
) -> None:
    """Fill all of it; raises as `swap` does."""
    swap({}, {peer: into}, timeout=timeout, cancelled=cancelled)


def swap(
    outgoing: Mapping[socket.socket, Sequence[memoryview]],
    incoming: Mapping[socket.socket, Sequence[memoryview]],
    *,
    timeout: float,
    cancelled: Cancelled,
) -> None:
    """Send and receive with many peers at once, so that no two wait for each other.

    Args:
        outgoing: what to send to each peer, in order; memoryviews of bytes.
        incoming: what to fill from each peer, in order.
        timeout: seconds without a byte moved after which the peers count as lost, also where their hosts answer.

    Raises:
        Interrupted: the agent spoke first.
        PeerLost: a peer is gone or silent.
    """
    to_send = {peer: _chunks(views) for peer, views in outgoing.items()}
    to_fill = {peer: _chunks(views) for peer, views in incoming.items()}
    with selectors.DefaultSelector() as selector:
        for each in {**outgoing, **incoming}:
            each.setblocking(False)
            _watch(selector, each, to_send, to_fill)
        last_moved = time.monotonic()
        while selector.get_map():
            ready = selector.select(_SLICE)
            for key, events in ready:
                peer: socket.socket = key.data
                try:
                    if events & selectors.EVENT_WRITE:
                        _advance(to_send, peer, peer.send)
                    if events & selectors.EVENT_READ:
                        _advance(to_fill, peer, lambda view, peer=peer: _receive(peer, view))  # type: ignore[misc]
                except OSError as error:
                    raise PeerLost(f"a worker went away: {error}", retryable=True) from error
                _watch(selector, peer, to_send, to_fill)
            if ready:
                last_moved = time.monotonic()
            elif cancelled():
                raise Interrupted
            silent = time.monotonic() - last_moved
            if silent > timeout:
                raise PeerLost(f"a worker sent nothing for {timeout:.0f} s", retryable=True)
            if silent > _UNANSWERED and any(_is_unanswered(key.data) for key in selector.get_map().values()):
                raise PeerLost(f"a host has not answered for {_UNANSWERED:.0f} s", retryable=True)


_Todo = dict[socket.socket, list[memoryview]]


def _chunks(views: Sequence[memoryview]) -> list[memoryview]:
    return [view.cast("B") for view in reversed(views) if view.nbytes]


def _receive(peer: socket.socket, view: memoryview) -> int:
    count = peer.recv_into(view)
    if count == 0:
        raise ConnectionError("closed")
    return count


def _advance(todo: _Todo, peer: socket.socket, move: Callable[[memoryview], int]) -> None:
    views = todo[peer]
    with contextlib.suppress(BlockingIOError):
        while views:
            moved = move(views[-1])
            if moved == len(views[-1]):
                views.pop()
            else:
                views[-1] = views[-1][moved:]


def _watch(selector: selectors.BaseSelector, peer: socket.socket, to_send: _Todo, to_fill: _Todo) -> None:
    events = (selectors.EVENT_WRITE if to_send.get(peer) else 0) | (
        selectors.EVENT_READ if to_fill.get(peer) else 0
    )
    known = peer in selector.get_map()
    if events and known:
        selector.modify(peer, events, data=peer)
    elif events:
        selector.register(peer, events, data=peer)
    elif known:
        selector.unregister(peer)
