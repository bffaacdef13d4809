"""Models that people bring along are exact, or refused with words."""

from __future__ import annotations

import pytest

from zoo.exhibits import Zoo, check_exact, check_refused, exact_ones, refused_ones, zoo
from zoo.table import GROWN, MODELS, PUBLIC, Case

__all__ = ["zoo"]
pytestmark = pytest.mark.e2e
CASES = [*PUBLIC, *MODELS, *GROWN]


@exact_ones(CASES)
def test_it_is_exact(zoo: Zoo, case: Case) -> None:
    check_exact(zoo, case)


@refused_ones(CASES)
def test_it_is_refused(zoo: Zoo, case: Case) -> None:
    check_refused(zoo, case)
