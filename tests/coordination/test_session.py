"""For any breaks between two ends of a session, every message arrives once and in order."""

from __future__ import annotations

import random

import pytest

from brim.coordination.job.session import Outbox, is_new
from brim.errors import ProtocolError


def test_a_gap_is_refused() -> None:
    assert is_new(3, last_number=2)
    assert not is_new(2, last_number=2)
    with pytest.raises(ProtocolError, match="message 4 came after message 2"):
        is_new(4, last_number=2)


def test_what_was_never_said_cannot_be_acknowledged() -> None:
    outbox = Outbox[str]()
    outbox.put("a")
    with pytest.raises(ProtocolError, match="message 2 was acknowledged, the last one is 1"):
        outbox.acknowledge(2)


def test_an_old_acknowledgement_says_nothing_new() -> None:
    outbox = Outbox[str]()
    for letter in "abc":
        outbox.put(letter)
    outbox.acknowledge(2)
    outbox.acknowledge(1)
    assert outbox.messages_after(0) == [(3, "c")]


@pytest.mark.parametrize("seed", range(200))
def test_streams_may_break_and_listeners_may_fall_back(seed: int) -> None:
    """A stream delivers a prefix of its input.

    The listener writes down some of it.
    """
    rng = random.Random(seed)
    outbox, last_number = Outbox[int](), 0
    written: list[int] = []
    while len(written) < 50:
        received = len(written)  # a new stream: the listener is as its journal has it
        outbox.acknowledge(received)
        stream = outbox.messages_after(received)
        sent = outbox.last
        for _ in range(rng.randrange(8)):
            outbox.put(last_number := last_number + 1)
        stream += outbox.messages_after(sent)
        for number, message in stream[: rng.randrange(len(stream) + 1)]:
            if is_new(number, last_number=len(written)):
                written.append(message)
            if rng.random() < 0.3:
                outbox.acknowledge(len(written))
    assert written == list(range(1, len(written) + 1))
