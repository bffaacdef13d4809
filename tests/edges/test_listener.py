"""A listener keeps the streams of the round that begins, and who calls hears the agent meanwhile."""

import contextlib
import socket
import time
from collections.abc import Iterator

import pytest

from brim.wire import peer as peers
from brim.wire.peer import Interrupted, Listener, PeerLost, connect, write_all


def never() -> bool:
    return False


def test_a_stream_accepted_before_its_round_began_is_kept() -> None:
    listener = Listener("127.0.0.1")
    old = connect(listener.address, "round 1 state for w2", timeout=5.0, cancelled=never)
    new = connect(listener.address, "round 2 state for w3", timeout=5.0, cancelled=never)
    with old, new:
        with pytest.raises(Interrupted):
            listener.accept(
                "round 1 state for w9", timeout=5.0, cancelled=lambda: len(listener._waiting) == 2
            )
        listener.drop_waiting(lambda greeting: greeting.startswith("round 1 "))
        assert old.recv(1) == b""
        with listener.accept("round 2 state for w3", timeout=5.0, cancelled=lambda: True) as peer:
            peer.sendall(b"x")
            assert new.recv(1) == b"x"
    listener.close()


@pytest.fixture
def deaf() -> Iterator[str]:
    """The address of a worker whose host answers no call: its queue of callers is full."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server, contextlib.ExitStack() as callers:
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
        connect(deaf, "round 1 state for w2", timeout=60.0, cancelled=spoke)
    assert looks[-1] - looks[0] < 10.0


def test_a_worker_that_does_not_answer_is_lost(deaf: str) -> None:
    with pytest.raises(PeerLost, match="does not answer: no answer in 0 s"):
        connect(deaf, "round 1 state for w2", timeout=0.1, cancelled=never)
    gone = Listener("127.0.0.1")
    gone.close()
    with pytest.raises(PeerLost, match="does not answer"):
        connect(gone.address, "round 1 state for w2", timeout=5.0, cancelled=never)


def test_a_worker_that_reads_nothing_is_waited_for_while_its_host_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may wait for one that hangs: the agent of that one ends the wait."""
    monkeypatch.setattr(peers, "_UNANSWERED", 0.1)
    listener = Listener("127.0.0.1")
    end = time.monotonic() + 0.5
    caller = connect(listener.address, "round 1 slices 1 0", timeout=5.0, cancelled=never)
    silent = listener.accept("round 1 slices 1 0", timeout=5.0, cancelled=never)
    with caller, silent:
        assert silent.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        much = [memoryview(bytes(64 << 20))]
        with pytest.raises(Interrupted):
            write_all(caller, much, timeout=60.0, cancelled=lambda: time.monotonic() > end)
    listener.close()
