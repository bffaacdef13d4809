"""The answers of a service that is being broken, and the judgement of them. Pure."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from brim_lab.chaos.judging import Span

_TOLERANCE = 1.0  # seconds between a death and the note of it, and until a front knows of a replica
_LONG_WAIT = 8.0  # seconds that a front has a request wait while no replica is up: about ten
_BETWEEN_TRIES = 1.0  # seconds after which a front tries again to find a replica for a request
_NO_REPLICA = 0.3  # seconds in which a front comes to know that all its replicas have died
_MOST_SHOWN = 5


class TryOutcome(enum.StrEnum):
    """The result of one try of a request."""

    RIGHT = "answered"
    WRONG = "answered wrongly"
    UNAVAILABLE = "answered with status 503"
    CUT = "cut, or not connected"
    SILENT = "not answered"


class Attempt(NamedTuple):
    """One try of a request; times are seconds since 1970.

    Attributes:
        request: the number of the request.
        note: the replica that answered; of a wrong answer, its beginning.
    """

    request: int
    begin: float
    end: float
    outcome: TryOutcome
    note: str = ""


def requests_are_answered(
    attempts: Iterable[Attempt],
    losses: Iterable[Span],
    pauses: Iterable[Span] = (),
    deaths: Sequence[float] = (),
) -> list[str]:
    """Check that each request was answered, and that no try failed without a reason.

    A try may be cut while the front is gone, and get status 503 where no replica is left: it waited
    for long and no other request was answered meanwhile, but by a replica that was killed before the
    front's next try; or all died just now, so that no other one was answered for a moment; or the
    service is suspended.

    Args:
        losses: when the front was killed or had to end, and from when on it could be started.
        pauses: when the service was suspended, and when it was resumed.
        deaths: when replicas were killed.

    >>> first, again = Attempt(1, 5.0, 5.1, TryOutcome.CUT), Attempt(1, 5.2, 5.3, TryOutcome.RIGHT)
    >>> requests_are_answered([first, again], [(5.0, 5.0)]), requests_are_answered([first, again], [])
    ([], ['request 1 was cut, or not connected at 5.1, after 0.1 s'])
    """
    tries = sorted(attempts, key=lambda attempt: attempt.end)
    rights = [attempt for attempt in tries if attempt.outcome is TryOutcome.RIGHT]
    missing = {attempt.request for attempt in tries} - {right.request for right in rights}
    spans = [(begin - _TOLERANCE, _first_answer(rights, end) + _TOLERANCE) for begin, end in losses]
    empty = [(begin, _first_answer(rights, end)) for begin, end in pauses]
    broken = [f"request {number} was never answered" for number in sorted(missing)]
    broken += [
        f"request {attempt.request} was {attempt.outcome}{attempt.note and f' ({attempt.note})'} "
        f"at {attempt.end:.1f}, after {attempt.end - attempt.begin:.1f} s"
        for attempt in tries
        if attempt.outcome is not TryOutcome.RIGHT
        and not _is_excused(attempt, rights, spans, empty, deaths)
    ]
    rest = len(broken) - _MOST_SHOWN
    return [*broken[:_MOST_SHOWN], f"and {rest} more requests"] if rest > 0 else broken


def before_a_front(attempts: Iterable[Attempt], absences: Iterable[Span]) -> list[Span]:
    """Return the absences of a scheduler in which the front of a new service was not up yet.

    A service is acknowledged before its front listens: who starts the front may die between them.

    >>> tries = [Attempt(1, 5.0, 5.0, TryOutcome.CUT), Attempt(1, 9.2, 9.3, TryOutcome.RIGHT)]
    >>> before_a_front(tries, [(4.9, 9.0), (9.8, 11.0)])
    [(4.9, 9.0)]
    """
    up_at = min(
        (attempt.begin for attempt in attempts if attempt.outcome is not TryOutcome.CUT),
        default=math.inf,
    )
    return [(begin, end) for begin, end in absences if begin < up_at]


def _first_answer(rights: Iterable[Attempt], moment: float) -> float:
    """Return when the first request was answered that began at a moment or later."""
    return min((right.end for right in rights if right.begin >= moment), default=math.inf)


def _is_excused(
    attempt: Attempt,
    rights: Sequence[Attempt],
    losses: Iterable[Span],
    pauses: Iterable[Span],
    deaths: Iterable[float],
) -> bool:
    if attempt.outcome is TryOutcome.CUT:
        return any(begin <= attempt.end <= end for begin, end in losses)
    waited = attempt.end - attempt.begin
    if attempt.outcome is TryOutcome.UNAVAILABLE and any(
        begin <= attempt.end <= end for begin, end in pauses
    ):
        return True
    if attempt.outcome is not TryOutcome.UNAVAILABLE or _TOLERANCE < waited < _LONG_WAIT:
        return False
    first, last = attempt.begin + _TOLERANCE, attempt.end - _TOLERANCE
    if waited <= _TOLERANCE:
        first, last, deaths = attempt.end, attempt.end + _NO_REPLICA, ()
    answers = [right.end for right in rights if first < right.end < last]
    return not answers or any(
        death - _BETWEEN_TRIES < answers[0] <= answers[-1] < death + _NO_REPLICA for death in deaths
    )
