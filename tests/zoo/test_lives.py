"""Runs under any faults, and runs of Lightning and Keras, are exact, or refused with words."""

from __future__ import annotations

import pytest

from zoo.exhibits import Zoo, check_exact, check_refused, exact_ones, refused_ones, zoo
from zoo.table import KERAS, LIGHTNING, LIVES, Case

__all__ = ["zoo"]
pytestmark = pytest.mark.e2e
CASES = [*LIVES, *LIGHTNING, *KERAS]


@exact_ones(CASES)
def test_it_is_exact(zoo: Zoo, case: Case) -> None:
    check_exact(zoo, case)


@refused_ones(CASES)
def test_it_is_refused(zoo: Zoo, case: Case) -> None:
    check_refused(zoo, case)
