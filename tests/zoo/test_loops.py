"""Loops that people bring along are exact, or refused with words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from zoo.exhibits import Zoo, check_exact, check_refused, exact_ones, refused_ones, zoo
from zoo.table import LOOPS, Case

__all__ = ["zoo"]
pytestmark = pytest.mark.e2e


@exact_ones(LOOPS)
def test_it_is_exact(zoo: Zoo, case: Case) -> None:
    check_exact(zoo, case)


@refused_ones(LOOPS)
def test_it_is_refused(zoo: Zoo, case: Case) -> None:
    check_refused(zoo, case)


TEACHER = next(case for case in LOOPS if case.name == "hidden_target")


@pytest.mark.parametrize(
    ("faults", "options", "message", "is_true"),
    [
        (("add 1 at step 7",), {}, "was turned away, and the run goes on with 1 worker", True),
        (("term rank 0 at step 7", ""), {}, "than before the job was suspended", False),
        (
            ("kill rank 0 at step 19",),  # a checkpoint is waited for: pace.py
            {"checkpoint_every": 4},
            "was repeated, and its loss is",
            False,
        ),
    ],
    ids=["joined", "suspended", "killed"],
)
def test_a_network_beside_the_model_is_noticed(
    zoo: Zoo, faults: tuple[str, ...], options: dict[str, Any], message: str, is_true: bool
) -> None:
    """A mean teacher that the script changes between steps, and that one worker trains."""
    slow = replace(TEACHER, arguments=("target", "0.1"), options=options)
    case = replace(slow, name=f"teacher-{faults[0][:4]}", faults=faults)
    ended = zoo.lives(replace(case, workers=(1,) * len(faults)))
    assert ended.done, ended.said
    assert message in ended.said
    assert (ended.digest == zoo.results(TEACHER)["alone"].digest) is is_true
