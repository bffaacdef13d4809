"""Answers of a service under faults: what is excused, and what breaks a promise."""

from __future__ import annotations

import math
import socket
import threading
from collections.abc import Callable

import pytest

from brim.host.clock import SystemClock
from brim_lab.chaos.answering import answer_to
from brim_lab.chaos.answers import Attempt, TryOutcome, requests_are_answered
from brim_lab.chaos.judging import Span
from brim_lab.chaos.load import ServiceLoad
from e2e.running import until

RIGHT, WRONG, CUT = TryOutcome.RIGHT, TryOutcome.WRONG, TryOutcome.CUT
DOWN = Attempt(1, 5.0, 15.2, TryOutcome.UNAVAILABLE)
ANSWERED = Attempt(1, 15.4, 15.5, RIGHT)

# by name: (tries, losses of the front, words of what is broken)
CASES: dict[str, tuple[list[Attempt], list[Span], str]] = {
    "answered": ([Attempt(1, 5.0, 5.1, RIGHT)], [], ""),
    "never answered": ([Attempt(1, 5.0, 5.1, CUT)], [(5.1, 5.1)], "request 1 was never answered"),
    "wrong": (
        [Attempt(1, 5.0, 5.1, WRONG, "w1 3"), ANSWERED],
        [(5.0, 5.0)],
        "answered wrongly (w1 3)",
    ),
    "silent": ([Attempt(1, 5.0, 35.0, TryOutcome.SILENT), ANSWERED], [(5.0, 5.0)], "not answered"),
    "cut with its front": ([Attempt(1, 5.0, 5.1, CUT), ANSWERED], [(5.1, 5.1)], ""),
    "cut without a reason": ([Attempt(1, 5.0, 5.1, CUT), ANSWERED], [(9.0, 9.0)], "cut"),
    "refused until it is back": (
        [Attempt(1, 8.0, 8.0, CUT), Attempt(2, 4.0, 4.9, RIGHT), ANSWERED],
        [(5.0, 5.0)],
        "",
    ),
    "refused after it was back": (
        [Attempt(2, 5.5, 5.6, RIGHT), Attempt(1, 8.0, 8.0, CUT), ANSWERED],
        [(5.0, 5.0)],
        "cut",
    ),
    "refused while it may not be started": (
        [Attempt(2, 5.5, 5.6, RIGHT), Attempt(1, 8.0, 8.0, CUT), ANSWERED],
        [(5.0, 9.0)],
        "",
    ),
    "no replica for ten seconds": ([DOWN, ANSWERED], [], ""),
    "others were answered meanwhile": (
        [DOWN, ANSWERED, Attempt(2, 9.0, 9.1, RIGHT)],
        [],
        "answered with status 503",
    ),
    "given up at once": ([DOWN._replace(begin=14.0), ANSWERED], [], "status 503"),
    "all replicas died just now": (
        [Attempt(2, 13.8, 13.9, RIGHT), DOWN._replace(begin=14.0, end=14.0), ANSWERED],
        [],
        "",
    ),
    "another replica lives": (
        [DOWN._replace(begin=14.0, end=14.0), Attempt(2, 13.9, 14.01, RIGHT), ANSWERED],
        [],
        "status 503",
    ),
    "not yet back": ([Attempt(1, 8.0, 8.0, CUT), ANSWERED], [(5.0, math.inf)], ""),
}


@pytest.mark.parametrize("name", CASES)
def test_tries_fail_only_with_a_reason(name: str) -> None:
    attempts, losses, words = CASES[name]
    broken = requests_are_answered(attempts, losses)
    assert len(broken) == bool(words)
    assert words in "".join(broken)


def test_requests_fail_while_their_service_is_suspended() -> None:
    """Others were answered just before that, and once a replica was back."""
    tries = [Attempt(2, 7.4, 7.6, RIGHT), DOWN._replace(end=13.2), Attempt(1, 13.2, 13.5, RIGHT)]
    assert requests_are_answered(tries, [], [(7.7, 11.7)]) == []
    assert len(requests_are_answered(tries, [], [(2.0, 7.3)])) == 1
    back = Attempt(3, 12.0, 12.1, RIGHT)
    assert len(requests_are_answered([*tries, back], [], [(7.7, 11.7)])) == 1


def test_front_may_miss_short_lived_replica() -> None:
    """It tries once a second to find one for a request that waits."""
    tries = [DOWN, ANSWERED, Attempt(2, 8.5, 8.6, RIGHT), Attempt(3, 8.9, 9.0, RIGHT)]
    assert requests_are_answered(tries, [], deaths=[9.1]) == []
    assert len(requests_are_answered(tries, [], deaths=[7.9, 9.7])) == 1
    later = Attempt(4, 9.5, 9.6, RIGHT)
    assert len(requests_are_answered([*tries, later], [], deaths=[9.1])) == 1


def test_many_broken_requests_are_counted() -> None:
    broken = requests_are_answered([Attempt(n, 5.0, 5.1, CUT) for n in range(20)], [(5.0, 5.0)])
    assert broken[-1] == "and 15 more requests"


def _begin_server(answer: Callable[[int], bytes]) -> socket.socket:
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                number = connection.recv(4096).split()[1].decode().removeprefix("/")
                connection.sendall(answer(int(number)))

    threading.Thread(target=serve, daemon=True).start()
    return listener


def test_load_tries_until_it_has_the_right_answer() -> None:
    answers = {
        1: [b"", b"HTTP/1.1 503 No\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\nw1-1 7"],
        2: [b"HTTP/1.1 502 Bad\r\n\r\nsorry"],
    }

    def answer(number: int) -> bytes:
        wrong_answers = answers.get(number, [])
        right = f"HTTP/1.1 200 OK\r\n\r\nw2-1 {answer_to(number)}".encode()
        return wrong_answers.pop(0) if wrong_answers else right

    with _begin_server(answer) as listener:
        load = ServiceLoad(listener.getsockname()[1], SystemClock())
        load.rate = 20.0
        until(
            lambda: len({found.request for found in load.attempts if found.outcome is RIGHT}) > 3,
            "answers",
        )
        load.close()
        listener.shutdown(socket.SHUT_RDWR)
    tries = [
        [attempt.outcome for attempt in load.attempts if attempt.request == number]
        for number in (1, 2, 3)
    ]
    assert tries == [[CUT, TryOutcome.UNAVAILABLE, WRONG, RIGHT], [WRONG, RIGHT], [RIGHT]]
    notes = {(attempt.outcome, attempt.note) for attempt in load.attempts}
    assert notes >= {(RIGHT, "w2-1"), (WRONG, "HTTP/1.1 502 Bad: 'sorry'")}
