"""A listener keeps the streams of the round that begins,
and who calls hears the agent meanwhile.
"""

import contextlib
import socket
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from brim.coordination.participant import Interrupted, PeerLost
from brim.wire import peer as peers
from brim.wire.peer import Listener, connect, write_all
from brim.wire.proofs import proof

SECRET = b"of this run"
STATE = "round 1 state for w2"


def never() -> bool:
    return False


def call(
    address: str,
    greeting: str = STATE,
    *,
    secret: bytes = SECRET,
    timeout: float = 5.0,
    cancelled: Callable[[], bool] = never,
) -> socket.socket:
    peer = connect(address, greeting, secret, timeout=timeout, patience=10.0, cancelled=cancelled)
    peer.settimeout(5.0)
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


def test_a_stream_accepted_before_its_round_began_is_kept(
    listener: Listener, calling: Callable[..., Future[socket.socket]]
) -> None:
    calls = [calling(listener.address, greeting) for greeting in (STATE, "round 2 state for w3")]
    with pytest.raises(Interrupted):
        listener.accept(
            "round 1 state for w9", timeout=5.0, cancelled=lambda: len(listener._waiting) == 2
        )
    with calls[0].result() as old, calls[1].result() as new:
        listener.drop_waiting(lambda greeting: greeting.startswith("round 1 "))
        assert old.recv(1) == b""
        with listener.accept("round 2 state for w3", timeout=5.0, cancelled=lambda: True) as peer:
            peer.sendall(b"x")
            assert new.recv(1) == b"x"


def greeting_of(proven: bytes, text: bytes = STATE.encode()) -> bytes:
    return struct.pack("<H32s", len(text), proven) + text


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


@pytest.mark.parametrize("said", STRANGERS.values(), ids=STRANGERS)
def test_a_stranger_gets_nothing(
    listener: Listener, said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "_TO_GREET", 0.2)
    host, _, port = listener.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=5.0) as stranger:
        stranger.sendall(said)
        with pytest.raises(PeerLost, match="no worker called"):
            listener.accept(STATE, timeout=0.3, cancelled=never)
        with contextlib.suppress(ConnectionError):  # where it had more to say
            assert stranger.recv(1) == b""


def test_strangers_who_are_slow_hold_up_nobody(
    listener: Listener,
    calling: Callable[..., Future[socket.socket]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peers, "_TO_GREET", 0.5)
    host, _, port = listener.address.rpartition(":")
    with contextlib.ExitStack() as strangers:
        slow = [
            strangers.enter_context(socket.create_connection((host, int(port)), timeout=5.0))
            for _ in range(60)
        ]
        for each in slow:
            each.sendall(b"\x14")
        began = time.monotonic()
        worker = calling(listener.address)
        with listener.accept(STATE, timeout=5.0, cancelled=never), worker.result():
            assert time.monotonic() - began < 0.4
        for each in slow:
            each.sendall(b"\x00")  # another byte does not buy them more time
        with pytest.raises(PeerLost):
            listener.accept(STATE, timeout=0.6, cancelled=never)
        assert not listener._callers


def test_more_strangers_than_are_listened_to_hold_up_nobody(
    listener: Listener, calling: Callable[..., Future[socket.socket]]
) -> None:
    host, _, port = listener.address.rpartition(":")
    with contextlib.ExitStack() as strangers, ThreadPoolExecutor() as pool:

        def crowd() -> None:
            for _ in range(300):
                strangers.enter_context(socket.create_connection((host, int(port)), timeout=5.0))

        crowding, worker = pool.submit(crowd), calling(listener.address)
        with listener.accept(STATE, timeout=5.0, cancelled=never), worker.result():
            assert len(listener._callers) <= 64
        with pytest.raises(Interrupted):
            listener.accept("round 1 state for w9", timeout=10.0, cancelled=crowding.done)


def test_a_listener_that_is_not_of_this_run_is_told_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as impostor, ThreadPoolExecutor() as pool:
        address = f"127.0.0.1:{impostor.getsockname()[1]}"
        calling = pool.submit(call, address)
        peer, _ = impostor.accept()
        with peer:
            peer.settimeout(5.0)
            said = peer.recv(4096)
            assert SECRET not in said
            peer.sendall(said[2:34])  # what it has just heard is no answer
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
    gone = Listener("127.0.0.1", SECRET)
    gone.close()
    with pytest.raises(PeerLost, match="does not answer"):
        call(gone.address)


def test_a_worker_that_reads_nothing_is_waited_for_while_its_host_answers(
    listener: Listener,
    calling: Callable[..., Future[socket.socket]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may wait for one that hangs: the agent of that one ends the wait."""
    monkeypatch.setattr(peers, "_UNANSWERED", 0.1)
    worker = calling(listener.address)
    silent = listener.accept(STATE, timeout=5.0, cancelled=never)
    end = time.monotonic() + 0.5
    with worker.result() as caller, silent:
        assert silent.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        much = [memoryview(bytes(64 << 20))]
        with pytest.raises(Interrupted):
            write_all(caller, much, timeout=60.0, cancelled=lambda: time.monotonic() > end)
