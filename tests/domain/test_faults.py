"""The fault language reads its own output, and says which clause it cannot read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.domain.faults import Fault, FaultKind, describe, parse_faults
from brim.errors import SpecError

numbers = st.integers(0, 10**6)
natural = st.integers(1, 99)
spans = st.integers(1, 10**7).map(lambda ms: round(ms / 1000, 3))
jumps = st.one_of(spans, spans.map(lambda seconds: -seconds))
FIELDS: dict[FaultKind, dict[str, st.SearchStrategy[float]]] = {
    **{key: {"rank": numbers} for key in (FaultKind.KILL, FaultKind.TERM)},
    FaultKind.STOP: {"rank": numbers, "seconds": st.one_of(spans, st.just(0.0))},
    **{key: {"count": natural} for key in (FaultKind.ADD, FaultKind.REMOVE)},
    **{
        key: {"seconds": spans}
        for key in (FaultKind.STOP_MASTER, FaultKind.STOP_AGENT, FaultKind.FILL_DISK)
    },
    **{
        key: {"host": natural}
        for key in (FaultKind.KILL_AGENT, FaultKind.TERM_AGENT, FaultKind.KILL_HOST)
    },
    **{
        key: {"host": natural, "seconds": spans}
        for key in (FaultKind.CUT, FaultKind.CUT_FROM, FaultKind.CUT_TO)
    },
    FaultKind.DELAY: {"host": natural, "by": spans, "seconds": spans},
    FaultKind.SLOW: {"rank": numbers, "by": spans, "seconds": spans},
    FaultKind.JUMP_CLOCK: {"by": jumps},
}
faults = st.one_of(
    *(
        st.builds(Fault, kind=st.just(kind), step=numbers, **FIELDS.get(kind, {}))
        for kind in FaultKind
    )
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("kill rank 1 at step 40", Fault(kind=FaultKind.KILL, rank=1, step=40)),
        ("add 2 at step 60", Fault(kind=FaultKind.ADD, count=2, step=60)),
        ("stop rank 0 for 5s at step 80", Fault(kind=FaultKind.STOP, rank=0, seconds=5.0, step=80)),
        (
            "stop rank 0 for 1m 30s at step 8",
            Fault(kind=FaultKind.STOP, rank=0, seconds=90.0, step=8),
        ),
        ("stop rank 0 for ever at step 8", Fault(kind=FaultKind.STOP, rank=0, step=8)),
        ("kill master at step 8", Fault(kind=FaultKind.KILL_MASTER, step=8)),
        (
            "cut from host 2 for 1s at step 8",
            Fault(kind=FaultKind.CUT_FROM, host=2, seconds=1.0, step=8),
        ),
        ("jump clock by -1h at step 8", Fault(kind=FaultKind.JUMP_CLOCK, by=-3600.0, step=8)),
        ("  TERM  rank 2\tat step 90 ", Fault(kind=FaultKind.TERM, rank=2, step=90)),
    ],
)
def test_a_clause_is_one_fault(text: str, expected: Fault) -> None:
    assert parse_faults(text) == (expected,)


@pytest.mark.parametrize("text", ["", " ", ";", " ; ; "])
def test_nothing_is_no_fault(text: str) -> None:
    assert parse_faults(text) == ()


@given(st.lists(faults, max_size=5))
def test_what_is_described_is_parsed_back(several_faults: list[Fault]) -> None:
    assert parse_faults("; ".join(map(describe, several_faults))) == tuple(several_faults)


@pytest.mark.parametrize(
    ("text", "actual", "hint"),
    [
        (
            "kill rank 1 at step 4; explode",
            "'explode'",
            "known: add, cut, delay, fill, interrupt, jump, kill, remove",
        ),
        ("kil rank 1 at step 4", "'kil rank 1 at step 4'", "did you mean 'kill'?"),
        ("kill rank one at step 4", "'kill rank one at step 4'", "kill rank 1 at step 40"),
        ("kill rank -1 at step 4", "'kill rank -1 at step 4'", "kill rank 1 at step 40"),
        ("add 0 at step 4", "'add 0 at step 4'", "add 2 at step 40"),
        ("stop rank 0 at step 4", "'stop rank 0 at step 4'", "stop rank 1 for 5s at step 40"),
        (
            "cut host 0 for 1s at step 4",
            "'cut host 0 for 1s at step 4'",
            "cut host 2 for 5s at step 40",
        ),
        ("fill disk for ever at step 4", "'ever'", "units: ms, s"),
        ("delay host 2 by -1s for 1s at step 4", "'-1s'", "units: ms, s"),
    ],
)
def test_the_message_quotes_the_bad_clause(text: str, actual: str, hint: str) -> None:
    with pytest.raises(SpecError) as raised:
        parse_faults(text)
    assert raised.value.field.startswith("--faults")
    assert raised.value.got == actual
    assert hint in raised.value.hint
