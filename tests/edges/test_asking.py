"""Impossible requests to a job that is alive are refused in words."""

from __future__ import annotations

from typing import Any

import pytest

import recorded_run
from brim.master.decisions import refusal
from brim.wire.messages import Ask

PLACES = "at least 1 on each"


@pytest.mark.parametrize(
    ("fields", "is_stopping", "message"),
    [
        ({"verb": "suspend"}, False, ""),
        ({"verb": "suspend"}, True, ""),
        ({"verb": "resize", "workers": 8}, False, ""),
        ({"verb": "resize", "workers": 3, "places": {"a": 1, "b": 2}}, False, ""),
        ({"verb": "evict"}, False, "unknown question 'evict'"),
        ({"verb": "resize", "workers": 0}, False, "workers: got 0, need 1 to 8"),
        ({"verb": "resize", "workers": 9}, False, "workers: got 9, need 1 to 8"),
        ({"verb": "resize", "workers": 3, "places": {"a": 1, "b": 1}}, False, PLACES),
        ({"verb": "resize", "workers": 1, "places": {"a": -1, "b": 2}}, False, PLACES),
        ({"verb": "resize", "workers": 2}, True, "it is stopping"),
    ],
)
def test_what_cannot_be_is_refused_in_words(
    fields: dict[str, Any], is_stopping: bool, message: str
) -> None:
    spec = recorded_run.spec(micro_batches=8)
    answer = refusal(Ask(**fields), spec, maximum=8, is_stopping=is_stopping)
    assert message in answer
    assert bool(message) == bool(answer)
