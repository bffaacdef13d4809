"""The driver of brim waits for its verbs, and for nothing that these leave behind."""

from __future__ import annotations

import time

import pytest

from brim.errors import EnvironmentFault
from brim_lab.driver import Driver


def test_a_stuck_verb_is_killed_despite_children() -> None:
    driver = Driver().with_prefix(("sh", "-c", "echo stuck >&2; sleep 60 & sleep 60"))
    started = time.monotonic()
    try:
        with pytest.raises(EnvironmentFault, match=r"did not end within 0\.5 s"):
            driver.call("jobs", timeout=0.5)
        assert time.monotonic() - started < 30.0, "it waited for the child"
    finally:
        driver.end()
    assert driver.mark.left_after(5.0) == {}
