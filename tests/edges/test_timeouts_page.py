"""The page of timeouts has every constant that is a duration, and is as the code is."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "docs" / "reference" / "make_timeouts.py"
PAGE = runpy.run_path(str(SCRIPT))


def names(code: str) -> list[str]:
    return [constant.name for constant in PAGE["durations"](code)]


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("_TO_ANSWER = 20.0  # seconds until an answer", ["_TO_ANSWER"]),
        ("# Seconds between two looks.\n_LOOK = 3", ["_LOOK"]),
        ("_TO_MEET = datetime.timedelta(seconds=60)", ["_TO_MEET"]),
        ("_POLL_INTERVAL = 0.05", ["_POLL_INTERVAL"]),
        ("_FOR_EVER = 365 * 86400.0", ["_FOR_EVER"]),
        ("_FIRST, _LONGEST = 1.0, 60.0  # seconds; doubled", ["_FIRST", "_LONGEST"]),
        ("_FIRST = 1.0  # seconds, at first\n_NEXT = 9.0  # and later", ["_FIRST", "_NEXT"]),
        ("_FIRST = 1.0  # seconds, at first\n_MOST = 9  # and how many", ["_FIRST"]),
        ("# A pattern without seconds.\nSIZE_PATTERN = _A_SIZE", []),
        ("_PATTERN = 'seconds'  # of seconds", []),
        ("_GAIN = 1.05  # times as fast", []),
        ("_BYTES = 1 << 20  # bytes: some hundredths of a second", []),
        ("_TRIES = 3", []),
        ("_WEIGHTS = (0.8, 0.2)", []),
    ],
)
def test_durations_are_found(code: str, found: list[str]) -> None:
    assert names(code) == found


def test_page_is_as_generated() -> None:
    assert PAGE["PAGE"].read_text(encoding="utf-8") == PAGE["render"]()
