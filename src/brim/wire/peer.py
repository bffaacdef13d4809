"""Streams between workers: state for a newcomer, slices of gradients between hosts.

Blocking TCP straight from and into arrays. Every wait has a deadline and ends early once the agent
has something to say (a new round, usually): a worker never waits for a dead neighbour. One that is
there and sends nothing may hang, and that is for its own agent to end; a host that does not answer
is lost after 3 s, which its kernel tells.

Between hosts all of it is encrypted (TLS 1.3), and both ends show certificates of the run's
authority first. Within a host, and where the run is `--insecure`, it is plain. Either way both ends
prove that they are of the same run before anything else is said. A caller that does not is a
stranger: it gets nothing, and delays no other.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import ssl
import struct
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Self

from brim.coordination.job.participant import Interrupted, PeerLost
from brim.host.clock import monotonic
from brim.host.process import close_in_children
from brim.wire.identity import server_name
from brim.wire.listening import family_of, joined_address, split_address, take_port
from brim.wire.proofs import PROOF_BYTES, is_proof, proof
from brim.wire.run_identity import WORKER, RunIdentity, is_encrypted, run_identity, stranger_of
from brim.wire.silence import ask_while_idle
from brim.wire.strangers import first_of_crowd

_GREETING = struct.Struct(
    f"<H{PROOF_BYTES}s"
)  # how long the greeting is that follows, and its proof
_MAX_GREETING_BYTES = 512  # bytes of a greeting
_TO_GREET = 5.0  # seconds that a caller has for its greeting, all of it
_UNDISTURBED = 0.1  # seconds after its call in which no other caller takes its place
_MOST_CALLERS = 64  # that have not greeted yet; with more, one of the host with the most has to go
# Connections that the kernel keeps for the listener. A call beyond them is not refused but dropped, and
# made again only after 1 s, 3 s, 7 s: one worker would wait so long for a crowd of strangers.
_BACKLOG = 1024
_SLICE = 0.05  # seconds between looks at whether the wait has become pointless
# seconds without an answer of the other host's kernel after which its worker counts as lost
_UNANSWERED = 3.0
_RETRANSMITS = 2  # the place of tcpi_retransmits in the kernel's struct tcp_info
_SEND_BYTES = 1 << 18  # bytes that a stream is given at once, which may encrypt them
_WORTH = 1 << 18  # bytes that are worth waking up for, where so many are to come from a peer
_BUFFERED_BYTES = (
    1 << 15
)  # bytes, and more, that encryption may keep until all of a record is there
# what a stream says that cannot go on now
_NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)

_STRANGER = "the process that listens there is not a worker of this run"
_CALL, _ANSWER = b"call", b"answer"  # who says it: one end's proof is of no use to the other

Cancelled = Callable[[], bool]


@dataclass(slots=True)
class _PendingCaller:
    """One that has not said all of its greeting.

    Args:
        host: the address from which it calls.
        deadline: by the time that the listener has listened.
        is_known: it has shown its certificate, where it needs one.
    """

    host: str
    deadline: float
    is_known: bool
    said: bytearray = field(default_factory=bytearray)

    @property
    def missing(self) -> int:
        """Bytes of its greeting; negative where it says more than a worker would."""
        if len(self.said) < _GREETING.size:
            return _GREETING.size - len(self.said)
        length, _ = _GREETING.unpack_from(self.said)
        return _GREETING.size + length - len(self.said) if length <= _MAX_GREETING_BYTES else -1


class Listener:
    """The address at which other workers reach this one.

    Args:
        host: address of this host that the others can reach.
        secret: that all workers of the run have, and nobody else.
        insecure: nothing is encrypted, also between hosts.
    """

    def __init__(self, host: str, secret: bytes, *, insecure: bool = False) -> None:
        self._socket = take_port(host, backlog=_BACKLOG)
        self._socket.setblocking(False)
        close_in_children(self._socket)
        self._secret = secret
        self._identity = _identity_for(host, secret, insecure=insecure)
        self._callers: dict[socket.socket, _PendingCaller] = {}
        self._waiting: dict[str, socket.socket] = {}
        self._listened = 0.0  # seconds that it has; meanwhile its worker computes
        self.address = joined_address(host, self._socket.getsockname()[1])

    def accept(self, greeting: str, *, timeout: float, cancelled: Cancelled) -> socket.socket:
        """Return the stream of the worker that sends this greeting.

        Others that call meanwhile are kept for their turn.

        Raises:
            Interrupted: the agent spoke first.
            PeerLost: no worker greeted so in time.
        """
        deadline = monotonic() + timeout
        while greeting not in self._waiting:
            if cancelled():
                raise Interrupted
            if monotonic() > deadline:
                raise PeerLost(
                    f"no worker called with {greeting!r} in {timeout:.0f} s", retryable=True
                )
            self._look()
        return self._waiting.pop(greeting)

    def _look(self) -> None:
        """Hear callers, for a moment: a slow one delays no other."""
        started = monotonic()
        with selectors.DefaultSelector() as selector:
            for watched in (*([self._socket] if self._has_room() else ()), *self._callers):
                selector.register(watched, selectors.EVENT_READ, watched)
            ready: list[socket.socket] = [key.data for key, _ in selector.select(_SLICE)]
        for watched in ready:
            if watched is self._socket:
                self._admit()
            elif watched in self._callers:
                self._hear(watched, self._callers[watched])
        self._listened += monotonic() - started
        late = [peer for peer, caller in self._callers.items() if self._listened > caller.deadline]
        for peer in late:
            self._dismiss(peer)

    def _has_room(self) -> bool:
        if len(self._callers) < _MOST_CALLERS:
            return True
        came = self._callers[self._next_to_go()].deadline - _TO_GREET
        return self._listened - came >= _UNDISTURBED

    def _admit(self) -> None:
        try:
            peer, (host, *_) = self._socket.accept()
        except (BlockingIOError, ConnectionError):  # it is gone again
            return
        peer.setblocking(False)
        if self._identity is not None:
            try:
                peer = self._identity.server.wrap_socket(
                    peer, server_side=True, do_handshake_on_connect=False
                )
            except OSError:  # it is gone again, and had said something
                peer.close()
                return
        close_in_children(peer)
        if len(self._callers) == _MOST_CALLERS:
            self._dismiss(self._next_to_go())
        is_known = self._identity is None
        self._callers[peer] = _PendingCaller(host, self._listened + _TO_GREET, is_known)

    def _next_to_go(self) -> socket.socket:
        """Return the first of the host with the most, of those without a certificate if there are any.

        So a crowd on one host pushes out no worker of another.
        """
        callers = self._callers.items()
        unknown = {peer: caller.host for peer, caller in callers if not caller.is_known}
        return first_of_crowd(unknown or {peer: caller.host for peer, caller in callers})

    def _hear(self, peer: socket.socket, caller: _PendingCaller) -> None:
        """Hear all available bytes: decrypted ones end no wait."""
        try:
            if not caller.is_known:
                assert isinstance(peer, ssl.SSLSocket)
                peer.do_handshake()
                caller.is_known = True
            while peer in self._callers:
                data = peer.recv(caller.missing)
                caller.said += data
                if not data or caller.missing < 0:
                    self._dismiss(peer)
                elif caller.missing == 0:
                    self._answer(peer, bytes(caller.said))
        except _NOT_NOW:
            pass
        except (OSError, UnicodeDecodeError):  # a stranger, or a worker that died while calling
            self._dismiss(peer)

    def _answer(self, peer: socket.socket, greeting_bytes: bytes) -> None:
        _, secret_given = _GREETING.unpack_from(greeting_bytes)
        words = (self.address.encode(), greeting_bytes[_GREETING.size :])
        if not is_proof(secret_given, self._secret, _CALL, *words):
            self._dismiss(peer)
            return
        greeting = words[-1].decode()
        peer.send(proof(self._secret, _ANSWER, *words))  # the first bytes: there is room for them
        _make_ready(peer)
        del self._callers[peer]
        if greeting in self._waiting:  # of an attempt that its worker has given up
            self._waiting[greeting].close()
        self._waiting[greeting] = peer

    def _dismiss(self, peer: socket.socket) -> None:
        del self._callers[peer]
        peer.close()

    def drop_waiting(self, is_over: Callable[[str], bool] = lambda _: True) -> None:
        """Close unclaimed streams: those whose greeting says so.

        A stream of the round that begins may have been accepted already, while this worker waited
        in the last.
        """
        for greeting in [
            greeting_waiting for greeting_waiting in self._waiting if is_over(greeting_waiting)
        ]:
            self._waiting.pop(greeting).close()

    def close(self) -> None:
        self.drop_waiting()
        for peer in list(self._callers):
            self._dismiss(peer)
        self._socket.close()


def connect(
    address: str,
    greeting: str,
    secret: bytes,
    *,
    timeout: float,
    patience: float,
    cancelled: Cancelled,
    insecure: bool = False,
) -> socket.socket:
    """Call another worker.

    Args:
        address: of its `Listener`.
        greeting: what this call is about: of at most 512 bytes.
        secret: that all workers of the run have.
        timeout: seconds until its host must have answered.
        patience: seconds until the worker itself must have, which may have something else to do.
        cancelled: whether the agent has something to say.
        insecure: as its `Listener` has it.

    Raises:
        Interrupted: the agent spoke first.
        PeerLost: it does not answer in time, or is not of this run.
    """
    try:
        target = host, _ = split_address(address)
        identity = _identity_for(host, secret, insecure=insecure)
        peer = socket.socket(family_of(host), socket.SOCK_STREAM)
        close_in_children(peer)
    except (OSError, ValueError) as error:
        raise PeerLost(f"worker at {address} cannot be called: {error}", retryable=True) from error
    try:
        peer.setblocking(False)
        _await_connection(peer, peer.connect_ex(target), timeout=timeout, cancelled=cancelled)
        _make_ready(peer)
        if identity is not None:
            name = server_name(WORKER)
            peer = shaking = identity.client.wrap_socket(
                peer, server_hostname=name, do_handshake_on_connect=False
            )
            close_in_children(peer)
            started = monotonic()
            _shake_hands(shaking, timeout=patience, cancelled=cancelled)
            patience = max(0.0, patience - (monotonic() - started))
        _greet(
            peer, secret, address.encode(), greeting.encode(), timeout=patience, cancelled=cancelled
        )
    except BaseException as error:
        peer.close()
        if reason := stranger_of(error):
            raise PeerLost(f"{_STRANGER}: {reason}", retryable=True) from error
        if isinstance(error, OSError):
            raise PeerLost(
                f"worker at {address} does not answer: {error}", retryable=True
            ) from error
        raise
    return peer


def _identity_for(host: str, secret: bytes, *, insecure: bool) -> RunIdentity | None:
    """Return the identity of both ends of a stream whose listener has this address.

    None: the stream is plain.
    """
    return run_identity(secret, WORKER) if is_encrypted(host, insecure=insecure) else None


def _shake_hands(peer: ssl.SSLSocket, *, timeout: float, cancelled: Cancelled) -> None:
    """Have both ends show their certificates.

    The other one may have something else to do first.

    Raises:
        OSError: it shows none of this run, or none in time.
        Interrupted: the agent spoke first.
    """
    deadline = monotonic() + timeout
    with selectors.DefaultSelector() as selector:
        selector.register(peer, selectors.EVENT_READ)
        while True:
            try:
                return peer.do_handshake()
            except ssl.SSLWantWriteError:
                selector.modify(peer, selectors.EVENT_WRITE)
            except ssl.SSLWantReadError:
                selector.modify(peer, selectors.EVENT_READ)
            while not selector.select(_SLICE):
                if cancelled():
                    raise Interrupted
                if monotonic() > deadline:
                    raise TimeoutError(f"no certificate in {timeout:.0f} s")


def _greet(
    peer: socket.socket, secret: bytes, *words: bytes, timeout: float, cancelled: Cancelled
) -> None:
    """Send the subject of a call, and hear that the other end is of this run as well."""
    call = _GREETING.pack(len(words[-1]), proof(secret, _CALL, *words)) + words[-1]
    write_all(peer, [memoryview(call)], timeout=timeout, cancelled=cancelled)
    answer = bytearray(PROOF_BYTES)
    read_exactly(peer, [memoryview(answer)], timeout=timeout, cancelled=cancelled)
    if not is_proof(bytes(answer), secret, _ANSWER, *words):
        raise PeerLost(_STRANGER, retryable=True)


def _make_ready(peer: socket.socket) -> None:
    """Set options: send at once, and probe whether the other host is there while idle."""
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    ask_while_idle(peer, _UNANSWERED)


def _is_unanswered(peer: socket.socket) -> bool:
    """Return whether the kernel resends data, since the other host does not answer.

    Where only the worker does not read, the other host answers, and nothing is resent.
    """
    if not hasattr(socket, "TCP_INFO"):
        return False
    return peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RETRANSMITS + 1)[_RETRANSMITS] > 0


def _await_connection(
    peer: socket.socket, status: int, *, timeout: float, cancelled: Cancelled
) -> None:
    """Wait until a connection under way (`status` is the result of `connect_ex`) is there."""
    if status not in (0, errno.EINPROGRESS):
        raise OSError(status, os.strerror(status))
    deadline = monotonic() + timeout
    with selectors.DefaultSelector() as selector:
        selector.register(peer, selectors.EVENT_WRITE)
        while not selector.select(_SLICE):
            if cancelled():
                raise Interrupted
            if monotonic() > deadline:
                raise TimeoutError(f"no answer in {timeout:.0f} s")
    if status := peer.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
        raise OSError(status, os.strerror(status))


def write_all(
    peer: socket.socket, data: Sequence[memoryview], *, timeout: float, cancelled: Cancelled
) -> None:
    """Send all of it; raises as `swap` does."""
    swap({peer: data}, {}, timeout=timeout, cancelled=cancelled)


def read_exactly(
    peer: socket.socket, buffers: Sequence[memoryview], *, timeout: float, cancelled: Cancelled
) -> None:
    """Fill all of it; raises as `swap` does."""
    swap({}, {peer: buffers}, timeout=timeout, cancelled=cancelled)


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
        timeout: seconds without a byte moved after which the peers count as lost, also where their
            hosts answer.

    Raises:
        Interrupted: the agent spoke first.
        PeerLost: a peer is gone or silent.
    """
    with Traffic({**outgoing, **incoming}) as traffic:
        for peer, views in outgoing.items():
            traffic.send(peer, views)
        for peer, views in incoming.items():
            traffic.fill(peer, views)
        while not traffic.is_done:
            if traffic.move(_SLICE):
                continue
            if cancelled():
                raise Interrupted
            traffic.check(timeout)


class Traffic:
    """Bytes on their way to and from some peers, all at once; more may be added while they move.

    Args:
        peers: their streams.
    """

    def __init__(self, peers: Iterable[socket.socket]) -> None:
        self._to_send: _Todo = {}
        self._to_fill: _Todo = {}
        self._encrypted: list[ssl.SSLSocket] = []
        self._min_bytes: dict[socket.socket, int] = {}  # bytes from it that end a wait
        self._selector = selectors.DefaultSelector()
        self._last_moved = self._answered = self._looked = monotonic()
        for peer in peers:
            peer.setblocking(False)
            self._to_send[peer], self._to_fill[peer], self._min_bytes[peer] = deque(), deque(), 1
            if isinstance(peer, ssl.SSLSocket):
                self._encrypted.append(peer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, peer: socket.socket, views: Iterable[memoryview]) -> None:
        """Send these behind all other bytes for this peer."""
        self._to_send[peer].extend(_chunks(views))
        self._watch(peer)

    def fill(self, peer: socket.socket, views: Iterable[memoryview]) -> None:
        """Fill these from this peer, behind all other buffers."""
        self._to_fill[peer].extend(_chunks(views))
        self._watch(peer)

    def is_filled(self, peer: socket.socket) -> bool:
        """Return whether nothing is to come from this peer any more."""
        return not self._to_fill[peer]

    @property
    def is_done(self) -> bool:
        """Return whether nothing is on its way."""
        return not self._selector.get_map()

    def begin(self) -> None:
        """Count silence from now on: before, there was nothing to say."""
        self._last_moved = self._answered = monotonic()

    def move(self, timeout: float) -> bool:
        """Move as much as possible, and return whether anything was; wait so many seconds for that.

        Raises:
            PeerLost: a peer is gone.
        """
        untold: list[socket.socket] = [
            peer for peer in self._encrypted if self._to_fill[peer] and peer.pending()
        ]
        found = self._selector.select(0.0 if untold else timeout)
        ready: dict[socket.socket, int] = {key.data: events for key, events in found}
        if ready:
            self._looked = monotonic()
        elif not untold and monotonic() - self._looked > _SLICE:  # less may be there
            self._looked = monotonic()
            untold = [peer for peer, minimum in self._min_bytes.items() if minimum > 1]
        for watched_peer in untold:  # of which no wait would tell
            ready[watched_peer] = ready.get(watched_peer, 0) | selectors.EVENT_READ
        moved = 0
        for peer, events in ready.items():
            try:
                if events & selectors.EVENT_WRITE:
                    moved += _advance(self._to_send[peer], partial(_send, peer))
                if events & selectors.EVENT_READ:
                    moved += _advance(self._to_fill[peer], partial(_receive, peer))
            except OSError as error:
                raise PeerLost(f"a worker went away: {error}", retryable=True) from error
            self._watch(peer)
        if found or moved:
            self._last_moved = self._answered = monotonic()
        return bool(found or moved)

    def check(self, timeout: float) -> None:
        """Check, where nothing moves, that something did in so many seconds, and that hosts answer.

        Raises:
            PeerLost: they do not.
        """
        now = monotonic()
        if now - self._last_moved > timeout:
            raise PeerLost(f"a worker sent nothing for {timeout:.0f} s", retryable=True)
        if not any(_is_unanswered(key.data) for key in self._selector.get_map().values()):
            self._answered = now
        elif now - self._answered > _UNANSWERED:
            raise PeerLost(f"a host has not answered for {_UNANSWERED:.0f} s", retryable=True)

    def close(self) -> None:
        """Stop watching the streams, which stay open."""
        self._selector.close()

    def _watch(self, peer: socket.socket) -> None:
        events = (selectors.EVENT_WRITE if self._to_send[peer] else 0) | (
            selectors.EVENT_READ if self._to_fill[peer] else 0
        )
        registered = self._selector.get_map().get(peer)
        if registered is None and events:
            self._selector.register(peer, events, data=peer)
        elif registered is not None and not events:
            self._selector.unregister(peer)
        elif registered is not None and events != registered.events:
            self._selector.modify(peer, events, data=peer)
        minimum = _least_of(self._to_fill[peer], peer)
        if minimum != self._min_bytes[peer]:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, minimum)
            self._min_bytes[peer] = minimum


_Todo = dict[socket.socket, deque[memoryview]]


def _least_of(views: Iterable[memoryview], peer: socket.socket) -> int:
    """Return how many bytes from a peer end a wait: no more than are still to come in.

    A cable brings a packet at a time, and to wake up for each takes more time than it saves.
    """
    if sys.platform != "linux":  # elsewhere fewer could not even be read
        return 1
    count = 0
    for view in views:
        count += len(view)
        if count >= _WORTH:
            break
    buffered = _BUFFERED_BYTES if isinstance(peer, ssl.SSLSocket) else 0
    return max(1, min(count, _WORTH) - buffered)


def _chunks(views: Iterable[memoryview]) -> Iterator[memoryview]:
    return (view.cast("B") for view in views if view.nbytes)


def _send(peer: socket.socket, view: memoryview) -> int:
    """Send some of it; encrypted and unsent bytes are to be given to it again."""
    return peer.send(view[:_SEND_BYTES])


def _receive(peer: socket.socket, view: memoryview) -> int:
    count = peer.recv_into(view)
    if count == 0:
        raise ConnectionError("closed")
    return count


def _advance(views: deque[memoryview], move: Callable[[memoryview], int]) -> int:
    """Move as much as possible, and return the number of bytes."""
    count = 0
    with contextlib.suppress(*_NOT_NOW):
        while views:
            moved = move(views[0])
            count += moved
            if moved == len(views[0]):
                views.popleft()
            else:
                views[0] = views[0][moved:]
    return count
