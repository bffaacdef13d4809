"""A listener keeps the streams of the round that begins, and a caller hears the agent meanwhile.

All of it holds within a host, where streams are plain, and between hosts, where they are encrypted.
"""

import contextlib
import fcntl
import random
import select
import socket
import ssl
import struct
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from brim.coordination.job.participant import Interrupted, PeerLost
from brim.wire import peer as peers
from brim.wire.authority import Authority
from brim.wire.identity import Identity, client_context, server_context, server_name
from brim.wire.peer import Listener, Traffic, connect, read_exactly, swap, write_all
from brim.wire.proofs import proof
from brim.wire.run_identity import WORKER, RunIdentity, run_identity

SECRET = b"of this run"
STATE = "round 1 state for w2"


BETWEEN_HOSTS = "between hosts"


def never() -> bool:
    return False


@pytest.fixture(autouse=True, params=["within a host", BETWEEN_HOSTS])
def placement(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The addresses of tests are loopback ones: one kind of them counts as another host's."""
    found: str = request.param
    if found == BETWEEN_HOSTS:
        monkeypatch.setattr("brim.wire.run_identity.is_loopback", lambda _: False)
        assert run_identity(SECRET, WORKER).server  # no test measures how long it takes
    return found


between_hosts = pytest.mark.parametrize("placement", [BETWEEN_HOSTS], indirect=True)


def call(
    address: str,
    greeting: str = STATE,
    *,
    secret: bytes = SECRET,
    timeout: float = 60.0,
    patience: float = 60.0,
    cancelled: Callable[[], bool] = never,
) -> socket.socket:
    peer = connect(
        address, greeting, secret, timeout=timeout, patience=patience, cancelled=cancelled
    )
    peer.settimeout(60.0)
    return peer


@pytest.fixture
def listener() -> Iterator[Listener]:
    with contextlib.closing(Listener("127.0.0.1", SECRET)) as listener:
        yield listener


@pytest.fixture
def calling() -> Iterator[Callable[..., Future[socket.socket]]]:
    """Begins a call that another worker makes."""
    with ThreadPoolExecutor() as pool:
        yield lambda *words, **named: pool.submit(call, *words, **named)


def test_an_early_stream_waits_for_its_round(
    listener: Listener, calling: Callable[..., Future[socket.socket]]
) -> None:
    calls = [calling(listener.address, greeting) for greeting in (STATE, "round 2 state for w3")]
    with pytest.raises(Interrupted):
        listener.accept(
            "round 1 state for w9", timeout=60.0, cancelled=lambda: len(listener._waiting) == 2
        )
    with calls[0].result() as old, calls[1].result() as new:
        listener.drop_waiting(lambda greeting: greeting.startswith("round 1 "))
        assert old.recv(1) == b""
        with listener.accept("round 2 state for w3", timeout=60.0, cancelled=lambda: True) as peer:
            peer.sendall(b"x")
            assert new.recv(1) == b"x"


def greeting_of(proven: bytes, text: bytes = STATE.encode()) -> bytes:
    return struct.pack("<H32s", len(text), proven) + text


# of TLS: this is no version of it
ALERTS = (b"\x15\x03\x01\x00\x02\x02\x46", b"\x15\x03\x03\x00\x02\x02\x46")
STRANGERS = {
    "no proof": greeting_of(bytes(32)),
    "the words of another version": struct.pack("<I", len(STATE)) + STATE.encode(),
    "the proof of another listener": greeting_of(
        proof(SECRET, b"call", b"127.0.0.1:1", STATE.encode())
    ),
    "the answer in place of the call": greeting_of(
        proof(SECRET, b"answer", b"127.0.0.1:1", STATE.encode())
    ),
    "a greeting without end": struct.pack("<H32s", 65_535, bytes(32)),
}


@pytest.mark.parametrize("greeting", STRANGERS.values(), ids=STRANGERS)
def test_a_stranger_gets_nothing(
    listener: Listener, greeting: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "_TO_GREET", 0.2)
    host, _, port = listener.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=5.0) as stranger:
        stranger.sendall(greeting)
        with pytest.raises(PeerLost, match="no worker called"):
            listener.accept(STATE, timeout=0.3, cancelled=never)
        with contextlib.suppress(ConnectionError):  # where it had more to say
            assert stranger.recv(1000) in (b"", *ALERTS)


def test_strangers_who_are_slow_hold_up_nobody(
    listener: Listener,
    calling: Callable[..., Future[socket.socket]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peers, "_TO_GREET", 60.0)
    host, _, port = listener.address.rpartition(":")
    with contextlib.ExitStack() as strangers:
        slow = [
            strangers.enter_context(socket.create_connection((host, int(port)), timeout=5.0))
            for _ in range(60)
        ]
        for caller in slow:
            caller.sendall(b"\x14")
        started = time.monotonic()
        worker = calling(listener.address)
        with listener.accept(STATE, timeout=60.0, cancelled=never), worker.result():
            assert time.monotonic() - started < 30.0
        for caller in slow:
            caller.sendall(b"\x00")  # another byte does not buy them more time
        listener._listened += 60.0
        with pytest.raises(PeerLost):
            listener.accept(STATE, timeout=0.6, cancelled=never)
        assert not listener._callers


def test_excess_strangers_hold_up_nobody(
    listener: Listener, calling: Callable[..., Future[socket.socket]]
) -> None:
    """The kernel keeps the calls of a crowd while the worker computes, and those behind them."""
    host, _, port = listener.address.rpartition(":")
    with contextlib.ExitStack() as strangers, ThreadPoolExecutor() as pool:

        def crowd(count: int) -> None:
            for _ in range(count):
                strangers.enter_context(socket.create_connection((host, int(port)), timeout=0.9))

        crowd(200)
        crowding, worker = pool.submit(crowd, 200), calling(listener.address, timeout=30.0)
        with listener.accept(STATE, timeout=30.0, cancelled=never), worker.result():
            assert len(listener._callers) <= 64
        with pytest.raises(Interrupted):
            listener.accept("round 1 state for w9", timeout=30.0, cancelled=crowding.done)


def test_a_crowd_leaves_callers_time_to_greet(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "_UNDISTURBED", 60.0)
    monkeypatch.setattr(peers, "_TO_GREET", 600.0)
    host, _, port = listener.address.rpartition(":")
    with contextlib.ExitStack() as strangers:
        for _ in range(200):
            strangers.enter_context(socket.create_connection((host, int(port)), timeout=5.0))
        for _ in range(64):
            listener._look()
        first = next(iter(listener._callers))
        listener._look()
        assert first in listener._callers
        listener._listened += 60.0
        until = time.monotonic() + 10.0
        while first in listener._callers and time.monotonic() < until:
            listener._look()
        assert first not in listener._callers


def test_crowd_of_one_host_spares_workers_of_another(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even one that is slow, and called before all of them."""
    monkeypatch.setattr(peers, "_TO_GREET", 600.0)
    host, _, port = listener.address.rpartition(":")
    with contextlib.ExitStack() as callers:

        def come(source: str) -> str:
            line = socket.create_connection((host, int(port)), 5.0, source_address=(source, 0))
            return "{}:{}".format(*callers.enter_context(line).getsockname())

        def is_in(name: str) -> bool:
            return name in {"{}:{}".format(*caller.getpeername()) for caller in listener._callers}

        worker = come("127.0.0.2")
        for _ in range(100):
            last = come("127.0.0.1")
            with pytest.raises(Interrupted):
                listener.accept(STATE, timeout=60.0, cancelled=lambda last=last: is_in(last))  # type: ignore[misc]
        assert is_in(worker)
        assert len(listener._callers) == 64


def test_listener_of_another_run_learns_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as impostor, ThreadPoolExecutor() as pool:
        address = f"127.0.0.1:{impostor.getsockname()[1]}"
        calling = pool.submit(call, address)
        peer, _ = impostor.accept()
        with peer:
            peer.settimeout(60.0)
            received = peer.recv(4096)
            assert SECRET not in received
            peer.sendall(received[2:34])  # what it has just heard is no answer
            with pytest.raises(PeerLost, match="not a worker of this run"):
                calling.result()


@pytest.fixture
def deaf() -> Iterator[str]:
    """The address of a worker whose host answers no call: its queue of callers is full."""
    with (
        socket.create_server(("127.0.0.1", 0), backlog=0) as server,
        contextlib.ExitStack() as callers,
    ):
        for _ in range(3):
            caller = callers.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex(server.getsockname())
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_who_waits_for_an_answer_hears_the_agent(deaf: str) -> None:
    looks: list[float] = []

    def spoke() -> bool:
        looks.append(time.monotonic())
        return len(looks) == 3

    with pytest.raises(Interrupted):
        call(deaf, timeout=60.0, cancelled=spoke)
    assert looks[-1] - looks[0] < 10.0


def test_a_worker_that_does_not_answer_is_lost(deaf: str) -> None:
    with pytest.raises(PeerLost, match="does not answer: no answer in 0 s"):
        call(deaf, timeout=0.1)
    closed_listener = Listener("127.0.0.1", SECRET)
    closed_listener.close()
    with pytest.raises(PeerLost, match="does not answer"):
        call(closed_listener.address)


def test_hanging_peers_are_awaited_while_hosts_answer(
    listener: Listener,
    calling: Callable[..., Future[socket.socket]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may wait for one that hangs: the agent of that one ends the wait."""
    monkeypatch.setattr(peers, "_UNANSWERED", 0.1)
    worker = calling(listener.address)
    silent = listener.accept(STATE, timeout=60.0, cancelled=never)
    end = time.monotonic() + 0.5
    with worker.result() as caller, silent:
        assert silent.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        large_content = [memoryview(bytes(64 << 20))]
        with pytest.raises(Interrupted):
            write_all(caller, large_content, timeout=60.0, cancelled=lambda: time.monotonic() > end)


def without_certificate() -> ssl.SSLContext:
    return client_context(Authority.derived_from(SECRET).certificate)


def of_another_run() -> ssl.SSLContext:
    return showing(Authority.derived_from(b"of another run").issue(WORKER))


def expired() -> ssl.SSLContext:
    return showing(Authority.derived_from(SECRET).issue(WORKER, for_s=-3600.0))


def showing(identity: Identity) -> ssl.SSLContext:
    return client_context(Authority.derived_from(SECRET).certificate, identity)


@between_hosts
@pytest.mark.parametrize("make_context", [without_certificate, of_another_run, expired])
def test_who_shows_no_good_certificate_is_not_answered(
    make_context: Callable[[], ssl.SSLContext], listener: Listener
) -> None:
    """Not even one that has the secret, by some chance."""
    words = listener.address.encode(), STATE.encode()
    greeting = greeting_of(proof(SECRET, b"call", *words))
    host, _, port = listener.address.rpartition(":")

    def calls() -> bytes:
        with (
            socket.create_connection((host, int(port)), timeout=5.0) as line,
            contextlib.suppress(OSError),  # the refusal
            make_context().wrap_socket(line, server_hostname=server_name(WORKER)) as stranger,
        ):
            stranger.sendall(greeting)
            return stranger.recv(100)
        return b""

    with ThreadPoolExecutor() as pool:
        answer = pool.submit(calls)
        with pytest.raises(Interrupted):
            listener.accept(STATE, timeout=60.0, cancelled=answer.done)
        assert answer.result() == b""


@between_hosts
@pytest.mark.parametrize("kind", ["another run's", "expired", "another role's"])
def test_listener_with_a_bad_certificate_learns_nothing(kind: str) -> None:
    own_authority = Authority.derived_from(SECRET)
    contexts = {
        "another run's": RunIdentity(b"of another run", WORKER).server,
        "expired": server_context(own_authority.issue(WORKER, for_s=-3600.0)),
        "another role's": RunIdentity(SECRET, "agent").server,
    }
    with socket.create_server(("127.0.0.1", 0)) as impostor, ThreadPoolExecutor() as pool:
        calling = pool.submit(call, f"127.0.0.1:{impostor.getsockname()[1]}")
        peer, _ = impostor.accept()
        peer.settimeout(60.0)
        with pytest.raises(ssl.SSLError):
            contexts[kind].wrap_socket(peer, server_side=True).recv(1)
        with pytest.raises(PeerLost, match="not a worker of this run"):
            calling.result()


class Wire:
    """Carries the bytes to and from a listener's address, and keeps all of them.

    Args:
        listener: it tells this address as its own from now on.
        changes: the place of a byte that it changes on its way to the listener; -1: none.
    """

    def __init__(self, listener: Listener, changes: int = -1) -> None:
        host, _, port = listener.address.rpartition(":")
        self._target, self._changes = (host, int(port)), changes
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._socket.settimeout(10.0)
        listener.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self.there, self.back = bytearray(), bytearray()
        self._thread = threading.Thread(target=self._carry)
        self._thread.start()

    def _carry(self) -> None:
        caller, _ = self._socket.accept()
        called = socket.create_connection(self._target)
        back = threading.Thread(target=self._copy, args=(called, caller, self.back))
        back.start()
        self._copy(caller, called, self.there)
        back.join()
        caller.close()
        called.close()

    def _copy(self, source: socket.socket, target: socket.socket, copied: bytearray) -> None:
        with contextlib.suppress(OSError):
            while data := bytearray(source.recv(1 << 16)):
                place = self._changes - len(copied)
                copied += data
                if copied is self.there and 0 <= place < len(data):
                    data[place] ^= 1
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._thread.join(10.0)
        self._socket.close()


Calling = Callable[..., Future[socket.socket]]
WEIGHTS = random.Random(0).randbytes(1 << 20)


def test_between_hosts_nobody_on_the_way_reads_anything(
    listener: Listener, calling: Calling, placement: str
) -> None:
    with contextlib.closing(Wire(listener)) as wire:
        worker = calling(listener.address)
        with (
            listener.accept(STATE, timeout=60.0, cancelled=never) as peer,
            worker.result() as other_end,
        ):
            data = bytearray(len(WEIGHTS))
            swap({peer: [memoryview(WEIGHTS)]}, {}, timeout=60.0, cancelled=never)
            read_exactly(other_end, [memoryview(data)], timeout=60.0, cancelled=never)
            write_all(other_end, [memoryview(WEIGHTS)], timeout=60.0, cancelled=never)
            read_exactly(peer, [memoryview(data)], timeout=60.0, cancelled=never)
    assert data == WEIGHTS
    is_read = placement != BETWEEN_HOSTS
    assert (STATE.encode() in wire.there) is is_read
    for seen in (wire.there, wire.back):
        assert len(seen) > len(WEIGHTS)
        assert (
            any(WEIGHTS[offset : offset + 8] in seen for offset in range(0, 1 << 14, 16)) is is_read
        )


@between_hosts
@pytest.mark.parametrize("offset", [10_000, 100_000, 1_000_000])
def test_data_altered_in_transit_is_refused(
    offset: int, listener: Listener, calling: Calling
) -> None:
    with contextlib.closing(Wire(listener, changes=offset)):
        worker = calling(listener.address)
        with (
            listener.accept(STATE, timeout=60.0, cancelled=never) as peer,
            worker.result() as other_end,
        ):
            data = bytearray(len(WEIGHTS))
            ways = {other_end: [memoryview(WEIGHTS)]}, {peer: [memoryview(data)]}
            with pytest.raises(PeerLost, match="went away"):
                swap(*ways, timeout=60.0, cancelled=never)


@between_hosts
def test_replayed_handshake_opens_nothing(listener: Listener, calling: Calling) -> None:
    with contextlib.closing(Wire(listener)) as wire:
        worker = calling(listener.address)
        with listener.accept(STATE, timeout=60.0, cancelled=never), worker.result() as other_end:
            write_all(other_end, [memoryview(WEIGHTS)], timeout=60.0, cancelled=never)
    with socket.create_connection(wire._target, timeout=5.0) as stranger:
        stranger.setblocking(False)
        with contextlib.suppress(OSError):
            stranger.send(wire.there)
        with pytest.raises(PeerLost, match="no worker called"):
            listener.accept(STATE, timeout=0.3, cancelled=never)


def test_one_arrival_may_be_taken_in_pieces(listener: Listener, calling: Calling) -> None:
    """The kernel reports no bytes that a stream has already decrypted."""
    worker = calling(listener.address)
    with (
        listener.accept(STATE, timeout=60.0, cancelled=never) as peer,
        worker.result() as other_end,
    ):
        other_end.sendall(WEIGHTS[:16_000])
        received = bytearray()
        for size in (1, 7, 8_000, 992, 7_000):
            part = bytearray(size)
            read_exactly(peer, [memoryview(part)], timeout=60.0, cancelled=never)
            received += part
        assert received == WEIGHTS[:16_000]


def test_much_goes_both_ways_at_once(listener: Listener, calling: Calling) -> None:
    """More than all buffers take: sending waits, and goes on where it was."""
    worker = calling(listener.address)
    with (
        listener.accept(STATE, timeout=60.0, cancelled=never) as peer,
        worker.result() as other_end,
        ThreadPoolExecutor() as pool,
    ):
        for end in (peer, other_end):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 14)
        sizes = random.Random(1)
        cuts = sorted(sizes.randrange(16 << 20) for _ in range(50))
        large_content = WEIGHTS * 16
        pieces = [
            memoryview(large_content)[a:b]
            for a, b in zip([0, *cuts], [*cuts, len(large_content)], strict=True)
        ]
        came = [bytearray(len(large_content)), bytearray(len(large_content))]

        def trade(stream: socket.socket, received: bytearray) -> None:
            swap({stream: pieces}, {stream: [memoryview(received)]}, timeout=10.0, cancelled=never)

        trades = [pool.submit(trade, peer, came[0]), pool.submit(trade, other_end, came[1])]
        for done in trades:
            done.result()
        assert came[0] == came[1] == large_content


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere each packet ends a wait")
def test_small_packets_of_large_messages_end_no_wait(listener: Listener, calling: Calling) -> None:
    worker = calling(listener.address)
    with (
        listener.accept(STATE, timeout=60.0, cancelled=never) as peer,
        worker.result() as other_end,
        ThreadPoolExecutor() as pool,
        Traffic([peer]) as traffic,
    ):
        came = bytearray(len(WEIGHTS))
        traffic.fill(peer, [memoryview(came)])
        other_end.sendall(WEIGHTS[:1000])
        until(lambda: arrived(peer) >= 1000)
        assert not select.select([peer], [], [], 0.0)[0]
        until(lambda: traffic.move(0.01))
        assert came[:1000] == WEIGHTS[:1000]
        rest = pool.submit(other_end.sendall, WEIGHTS[1000:])
        until(lambda: traffic.move(0.01) and traffic.is_done)
        rest.result()
        assert came == WEIGHTS
        assert peer.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) == 1


def arrived(stream: socket.socket) -> int:
    """Return how many bytes of a stream its kernel has."""
    return struct.unpack("i", fcntl.ioctl(stream, termios.FIONREAD, bytes(4)))[0]  # type: ignore[no-any-return]


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10.0
    while not true():
        assert time.monotonic() < deadline


def test_calls_during_computation_are_answered_later(
    listener: Listener, calling: Calling, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Strangers have as long as the listener listens, and not as its worker computes."""
    monkeypatch.setattr(peers, "_TO_GREET", 60.0)
    worker = calling(listener.address, patience=7200.0)
    with pytest.raises(Interrupted):
        listener.accept("another", timeout=60.0, cancelled=lambda: bool(listener._callers))
    # It computes for an hour.
    monkeypatch.setattr(peers, "monotonic", lambda: time.monotonic() + 3600.0)
    with listener.accept(STATE, timeout=60.0, cancelled=never), worker.result():
        pass


def test_a_worker_that_dies_is_noticed_at_once(
    listener: Listener, calling: Calling, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "_UNANSWERED", 60.0)
    worker = calling(listener.address)
    with (
        listener.accept(STATE, timeout=60.0, cancelled=never) as peer,
        ThreadPoolExecutor() as pool,
    ):
        data = bytearray(100)
        read = pool.submit(read_exactly, peer, [memoryview(data)], timeout=60.0, cancelled=never)
        started = time.monotonic()
        _die(worker.result())
        with pytest.raises(PeerLost, match="went away"):
            read.result(timeout=60.0)
        # Sooner than its host would count as lost.
        assert time.monotonic() - started < peers._UNANSWERED


def _die(peer: socket.socket) -> None:
    """Close a connection as the kernel does for a process that was killed: without a word."""
    socket.close(peer.detach())


@pytest.mark.parametrize("host", ["::1"])
def test_a_worker_may_listen_on_ipv6(host: str) -> None:
    with (
        contextlib.closing(Listener(host, SECRET)) as listener,
        ThreadPoolExecutor() as pool,
    ):
        assert listener.address.startswith("[::1]:")
        worker = pool.submit(call, listener.address)
        with (
            listener.accept(STATE, timeout=60.0, cancelled=never) as peer,
            worker.result() as other_end,
        ):
            peer.sendall(b"x")
            assert other_end.recv(1) == b"x"


@between_hosts
def test_who_is_insecure_is_so_on_both_ends() -> None:
    with (
        contextlib.closing(Listener("127.0.0.1", SECRET, insecure=True)) as listener,
        ThreadPoolExecutor() as pool,
    ):
        worker = pool.submit(
            connect,
            listener.address,
            STATE,
            SECRET,
            timeout=60.0,
            patience=60.0,
            cancelled=never,
            insecure=True,
        )
        with (
            listener.accept(STATE, timeout=60.0, cancelled=never) as peer,
            worker.result() as other_end,
        ):
            assert not isinstance(peer, ssl.SSLSocket)
            assert not isinstance(other_end, ssl.SSLSocket)
