from __future__ import annotations

import pytest

from brim.domain.resizing import clocks_agree


@pytest.mark.parametrize(
    ("clock_reading", "agree"),
    [
        (100.1, True),  # between the looks
        (99.2, True),  # its record took a while
        (100.9, True),  # a clock that is nearly right
        (98.5, False),
        (101.5, False),
        (100.1 - 28_800.0, False),
        (100.1 + 28_800.0, False),
    ],
)
def test_adjusted_clocks_are_recognized(clock_reading: float, agree: bool) -> None:
    assert clocks_agree(clock_reading, unseen=100.0, seen=100.2) is agree
