from __future__ import annotations

import itertools

import pytest

from brim.domain.lifecycle import ENDED, Happening, Life, Phase, Wish, next_life

H, P, W = Happening, Phase, Wish


@pytest.mark.parametrize(
    ("life", "happenings", "end"),
    [
        ("a calm job", [H.ADMIT, H.START, H.FINISH], Life(P.DONE)),
        ("measured first", [H.START, H.ADMIT, H.FINISH], Life(P.DONE)),
        ("refused", [H.REFUSE], Life(P.REFUSED)),
        ("refused once measured", [H.START, H.STOP, H.REFUSE], Life(P.REFUSED)),
        (
            "suspended and resumed by plans",
            [H.ADMIT, H.START, H.STOP, H.START, H.FINISH],
            Life(P.DONE),
        ),
        ("its own code fails", [H.ADMIT, H.START, H.FAIL], Life(P.FAILED)),
        ("held before it ran", [H.ADMIT, H.HOLD, H.RELEASE, H.START], Life(P.RUNNING)),
        ("held while it ran", [H.START, H.HOLD, H.STOP], Life(P.SUSPENDED, W.HOLD)),
        (
            "held, and judged again",
            [H.START, H.HOLD, H.STOP, H.RELEASE, H.ADMIT],
            Life(P.SUSPENDED),
        ),
        ("cancelled before it ran", [H.ADMIT, H.CANCEL], Life(P.CANCELLED, W.CANCEL)),
        ("cancelled while it ran", [H.START, H.CANCEL, H.STOP], Life(P.CANCELLED, W.CANCEL)),
        ("done before it heard of it", [H.START, H.CANCEL, H.FINISH], Life(P.DONE, W.CANCEL)),
        (
            "cancelled while it was held",
            [H.START, H.HOLD, H.STOP, H.CANCEL],
            Life(P.CANCELLED, W.CANCEL),
        ),
    ],
)
def test_lives(life: str, happenings: list[Happening], end: Life) -> None:
    now = Life()
    for happening in happenings:
        next_life_expected = next_life(now, happening)
        assert next_life_expected is not None, (life, now, happening)
        now = next_life_expected
    assert now == end


@pytest.mark.parametrize(
    ("life", "happening"),
    [
        (Life(P.SUBMITTED), H.FINISH),
        (Life(P.ADMITTED), H.STOP),
        (Life(P.RUNNING), H.START),  # no job is started twice
        (Life(P.RUNNING), H.REFUSE),
        (Life(P.ADMITTED, W.HOLD), H.START),
        (Life(P.SUSPENDED, W.HOLD), H.START),
        (Life(P.RUNNING, W.CANCEL), H.RELEASE),  # there is no way back from it
        (Life(P.RUNNING, W.CANCEL), H.HOLD),
        (Life(P.RUNNING, W.HOLD), H.HOLD),
        (Life(P.RUNNING), H.RELEASE),
    ],
)
def test_what_cannot_happen(life: Life, happening: Happening) -> None:
    assert next_life(life, happening) is None


def test_the_whole_table() -> None:
    for phase, wish, happening in itertools.product(Phase, Wish, Happening):
        following = next_life(Life(phase, wish), happening)
        if phase in ENDED:
            assert following is None  # an end is for good
            continue
        if following is None or (
            wish is W.CANCEL and phase is not P.RUNNING
        ):  # the latter has ended
            continue
        assert following != Life(phase, wish) or happening is H.ADMIT
        if happening is not H.CANCEL:
            assert (following.phase is P.CANCELLED) == (wish is W.CANCEL and happening is H.STOP)
        if following.phase is P.RUNNING and phase is not P.RUNNING:
            assert wish is W.RUN
