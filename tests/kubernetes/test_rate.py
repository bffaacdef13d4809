"""The rate at which a client sends requests."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from brim.kubernetes.client.rate import RateLimit


@given(
    st.floats(0.5, 100.0),
    st.integers(1, 20),
    st.lists(st.floats(0.0, 2.0), min_size=1, max_size=60),
)
def test_the_rate_limit_holds_with_bursts(per_second: float, burst: int, gaps: list[float]) -> None:
    limit, now, sent = RateLimit(per_second=per_second, burst=burst), 0.0, []
    for gap in gaps:
        now += gap
        sent.append(limit.turn(now))
        assert sent[-1] >= now
    assert sent == sorted(sent)
    for first in range(len(sent)):
        for last in range(first, len(sent)):
            upper_limit = burst + (sent[last] - sent[first]) * per_second
            assert last - first + 1 <= upper_limit + 1e-6
