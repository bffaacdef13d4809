"""Durations as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.domain.quantities import format_duration, parse_duration
from brim.errors import SpecError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2h", 7200.0),
        ("5s", 5.0),
        ("500ms", 0.5),
        ("1.5s", 1.5),
        ("1d 2h", 93600.0),
        ("10m", 600.0),
        ("3", 3.0),
    ],
)
def test_a_duration_is_seconds(text: str, seconds: float) -> None:
    assert parse_duration(text, field="--for") == seconds


@pytest.mark.parametrize("text", ["", "s", "0", "0s", "-1s", "5 parsec", "1h30", "nan", "inf", "1e999", "५s"])
def test_anything_else_is_refused_with_its_field(text: str) -> None:
    with pytest.raises(SpecError) as raised:
        parse_duration(text, field="--for")
    assert (raised.value.field, raised.value.got) == ("--for", repr(text))
    assert raised.value.hint


@given(st.integers(1, 10**10))
def test_what_is_written_is_read_back(milliseconds: int) -> None:
    seconds = round(milliseconds / 1000, 3)
    assert parse_duration(format_duration(seconds), field="--for") == seconds
