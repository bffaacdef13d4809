"""transformers' Trainer with brim's loop inside is exact, or refused with words."""

from __future__ import annotations

import pytest

from zoo.exhibits import Zoo, check_exact, check_refused, exact_ones, refused_ones, zoo
from zoo.table import TRAINERS, Case

__all__ = ["zoo"]
pytestmark = pytest.mark.e2e
IMPORTS = ("brim.transformers", "transformers.models.gpt2.modeling_gpt2")


@exact_ones(TRAINERS)
def test_it_is_exact(zoo: Zoo, case: Case) -> None:
    check_exact(zoo, case)


@refused_ones(TRAINERS)
def test_it_is_refused(zoo: Zoo, case: Case) -> None:
    check_refused(zoo, case)
