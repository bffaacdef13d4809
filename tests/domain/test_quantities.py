"""Durations and sizes as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.domain.quantities import format_bytes, format_duration, parse_bytes, parse_duration
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


@pytest.mark.parametrize(
    "text", ["", "s", "0", "0s", "-1s", "5 parsec", "1h30", "nan", "inf", "1e999", "५s"]
)
def test_anything_else_is_refused_with_its_field(text: str) -> None:
    with pytest.raises(SpecError) as raised:
        parse_duration(text, field="--for")
    assert (raised.value.field, raised.value.got) == ("--for", repr(text))
    assert raised.value.hint


@given(st.integers(1, 10**10))
def test_what_is_written_is_read_back(milliseconds: int) -> None:
    seconds = round(milliseconds / 1000, 3)
    assert parse_duration(format_duration(seconds), field="--for") == seconds


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4GiB", 4 << 30),
        ("1.5 GiB", 3 << 29),
        (" 500MB ", 500_000_000),
        ("2kB", 2000),
        ("1TiB", 1 << 40),
    ],
)
def test_a_size_is_bytes(text: str, size: int) -> None:
    assert parse_bytes(text, field="--memory") == size


@pytest.mark.parametrize(
    "text", ["", "4", "4G", "4 gib", "0GiB", "-1GiB", "0.0001KiB", "GiB", "nanGiB", "५GiB"]
)
def test_an_invalid_size_is_refused_with_its_field(text: str) -> None:
    with pytest.raises(SpecError) as raised:
        parse_bytes(text, field="--memory")
    assert (raised.value.field, raised.value.got) == ("--memory", repr(text))
    assert "GiB" in raised.value.hint


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 KiB"),
        (300 << 10, "300 KiB"),
        (500_000_000, "477 MiB"),
        (1 << 30, "1 GiB"),
        (8.04 * (1 << 30), "8 GiB"),
    ],
)
def test_sizes_as_people_read_them(size: float, text: str) -> None:
    assert format_bytes(size) == text
