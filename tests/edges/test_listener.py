"""A listener keeps the streams of the round that begins."""

import pytest

from brim.wire.peer import Interrupted, Listener, connect


def test_a_stream_accepted_before_its_round_began_is_kept() -> None:
    listener = Listener("127.0.0.1")
    old = connect(listener.address, "round 1 state for w2", timeout=5.0)
    new = connect(listener.address, "round 2 state for w3", timeout=5.0)
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
