"""The ledger counts applied samples, believes no worker, and finds everything planted in a
record.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.domain.accounting import (
    Ledger,
    as_plain,
    audit,
    sample_checksum,
    throughput,
    time_breakdown,
)
from brim.domain.step_records import CommittedPart, Restore, Session, StepRecord, lasting

SIZE, BATCH, MICRO = 20, 8, 2
PER_EPOCH = 3


def order(epoch: int, start: int, stop: int) -> npt.NDArray[np.int64]:
    return np.random.default_rng(epoch).permutation(SIZE).astype(np.int64)[start:stop]


def commit(step: int, *, at: float, size: int = SIZE, batch: int = BATCH) -> StepRecord:
    """The record of an honest step: number `step`, from 1."""
    per_epoch = -(-size // batch)
    epoch, step_of_epoch = divmod(step - 1, per_epoch)
    first, last = step_of_epoch * batch, min(step_of_epoch * batch + batch, size)
    edges = [first + (last - first) * micro // MICRO for micro in range(MICRO + 1)]
    parts = tuple(
        CommittedPart(micro, micro, start, stop, sample_checksum(order(epoch, start, stop)))
        for micro, (start, stop) in enumerate(itertools.pairwise(edges))
    )
    return StepRecord(
        at=at,
        round=1,
        step=step,
        epoch=epoch,
        loss=0.5,
        samples=last - first,
        parts=parts,
        seconds={},
    )


def run(*numbers: int) -> list[StepRecord]:
    return [commit(number, at=float(second)) for second, number in enumerate(numbers)]


def account(
    steps: list[StepRecord], restores: list[Restore] | None = None, *, epochs: int = 2
) -> Ledger:
    return audit(steps, restores or [], samples_per_epoch=SIZE, epochs=epochs, order=order)


def counts(ledger: Ledger) -> list[tuple[int, int, int]]:
    return [(epoch.applied_once, epoch.missing, epoch.repeated) for epoch in ledger.epochs]


@pytest.mark.parametrize(
    ("steps", "restores", "expected", "exact"),
    [
        (run(1, 2, 3, 4, 5, 6), [], [(20, 0, 0), (20, 0, 0)], True),
        (run(), [], [(0, 20, 0), (0, 20, 0)], False),
        (run(1, 2, 3), [], [(20, 0, 0), (0, 20, 0)], False),
        (run(1, 3, 4, 5, 6), [], [(12, 8, 0), (20, 0, 0)], False),
        (run(1, 2, 2, 3, 4, 5, 6), [], [(12, 0, 8), (20, 0, 0)], False),
        (run(1, 2, 2, 3, 4, 5, 6), [Restore(1, 2)], [(20, 0, 0), (20, 0, 0)], True),
        (run(1, 2, 3, 4, 2, 3, 4, 5, 6), [Restore(1, 4)], [(20, 0, 0), (20, 0, 0)], True),
        (run(1, 2, 3, 1, 2, 1, 2, 3, 4, 5, 6), [Restore(0, 3), Restore(0, 5)], [(20, 0, 0)] * 2, True),
        (run(1, 2, 3, 4, 3, 4, 5, 6), [Restore(1, 4)], [(12, 8, 0), (20, 0, 0)], False),
        (run(1, 2, 3, 4, 2, 3, 4, 5, 6), [Restore(1, 3)], [(20, 0, 0), (12, 0, 8)], False),
        (run(1, 2, 3, 4, 2, 3, 4, 5, 6), [Restore(3, 4), Restore(1, 4)], [(20, 0, 0)] * 2, True),
        (run(1, 2, 3, 4, 5, 6), [Restore(4, 6)], [(20, 0, 0), (8, 12, 0)], False),
    ],
    ids=[
        "whole", "nothing", "half", "a step missing", "a step twice", "a step redone after a "
                                                                      "restore",
        "back over an epoch's end", "back twice", "a restore to elsewhere", "a restore at another "
                                                                            "place",
        "back twice with nothing between", "restored and never redone",
    ],
)  # fmt: skip
def test_every_use_of_every_sample_is_counted(
    steps: list[StepRecord],
    restores: list[Restore],
    expected: list[tuple[int, int, int]],
    exact: bool,
) -> None:
    ledger = account(steps, restores)
    assert counts(ledger) == expected
    assert ledger.exact is exact


def test_a_worker_that_fed_other_samples_is_found() -> None:
    steps = run(1, 2, 3, 4, 5, 6)
    first, second = steps[1].parts
    steps[1] = replace(
        steps[1], parts=(first, msgspec.structs.replace(second, crc32=second.crc32 ^ 1))
    )
    ledger = account(steps)
    assert counts(ledger)[0] == (20, 0, 0)
    assert ledger.epochs[0].mismatched == 1
    assert not ledger.exact
    assert ledger.problems == (
        "epoch 1, step 2, micro-batch 1 of rank 1: fed other samples than the epoch's order says",
    )


@pytest.mark.parametrize(("start", "stop"), [(-1, 4), (12, 24), (9, 8)])
def test_positions_outside_the_epoch_are_found(start: int, stop: int) -> None:
    steps = run(1, 2, 3, 4, 5, 6)
    steps[0] = replace(steps[0], parts=(CommittedPart(0, 0, start, stop, 0),))
    ledger = account(steps)
    assert not ledger.exact
    assert f"positions {start} to {stop} of {SIZE}" in ledger.problems[0]
    assert ledger.epochs[0].missing == 8


def test_an_epoch_beyond_the_plan_is_a_problem() -> None:
    ledger = account(run(1, 2, 3, 4, 5, 6), epochs=1)
    assert not ledger.exact
    assert ledger.problems == ("epoch 2: applied, but the run has 1 epoch",)


def test_the_ledger_as_json_has_the_public_names() -> None:
    plain = as_plain(account(run(1, 2, 3), epochs=1))
    assert plain == {
        "exact": True,
        "counted": "samples",
        "epochs": [
            {
                "epoch": 1,
                "samples": 20,
                "applied_once": 20,
                "missing": 0,
                "repeated": 0,
                "mismatched": 0,
            }
        ],
        "problems": [],
    }


@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 5)), max_size=6),
    st.lists(st.floats(-1e6, 1e6), min_size=50, max_size=50),
)
def test_each_sample_lasts_once_whatever_the_clocks(
    deaths: list[tuple[int, int]], clocks: list[float]
) -> None:
    """A run may go on a while and be thrown back any number of times,
    and its clock may be set meanwhile.
    """
    times, step = iter(clocks), 0
    steps: list[StepRecord] = []
    restores: list[Restore] = []
    for forward, back in [*deaths, (2 * PER_EPOCH, 0)]:
        for _ in range(min(forward, 2 * PER_EPOCH - step)):
            step += 1
            steps.append(commit(step, at=next(times)))
        assert [record.step for record in lasting(steps, restores)] == list(range(1, step + 1))
        step = max(0, step - back)
        restores.append(Restore(step, len(steps)))
        assert [record.step for record in lasting(steps, restores)] == list(range(1, step + 1))
    assert account(steps, restores).exact


@given(st.lists(st.integers(1, 6), max_size=12))
def test_once_missing_and_repeated_add_up(numbers: list[int]) -> None:
    ledger = account(run(*numbers))
    for epoch in ledger.epochs:
        assert epoch.applied_once + epoch.missing + epoch.repeated == SIZE
    assert ledger.exact is (sorted(numbers) == [1, 2, 3, 4, 5, 6])


@given(st.lists(st.floats(0, 10), max_size=30), st.integers(1, 20))
def test_throughput_loses_no_sample(times: list[float], buckets: int) -> None:
    steps = [commit(1, at=time) for time in sorted(times)]
    rates = throughput(steps, start=0.0, end=10.0, buckets=buckets)
    assert len(rates) == buckets
    assert sum(rate for _, rate in rates) * 10.0 / buckets == pytest.approx(8 * len(steps))


def test_throughput_of_no_time_is_nothing() -> None:
    assert throughput([commit(1, at=1.0)], start=1.0, end=1.0, buckets=5) == []


def test_the_breakdown_adds_up_to_the_sessions() -> None:
    phases = {"data": 0.1, "compute": 0.5, "reduce": 0.2, "wait": 0.1, "apply": 0.1}
    steps = [
        replace(commit(number, at=second), seconds=phases)
        for second, number in ((3, 1), (4, 2), (13, 2), (14, 3))
    ]
    sessions = [Session(0.0, 5.0), Session(11.0, 15.0)]
    parts = time_breakdown(sessions, steps, [Restore(1, 2)], re_forming=0.25)
    assert parts["start"] == pytest.approx(2.0 + 1.0)
    assert parts["compute"] == pytest.approx(1.5)
    assert parts["redone"] == pytest.approx(1.0)
    assert parts["re_forming"] == 0.25
    assert sum(parts.values()) == pytest.approx(9.0)


def test_time_awaiting_a_silent_worker_is_a_stall() -> None:
    steps = [
        replace(commit(number, at=second), seconds={"compute": 1.0})
        for second, number in ((2, 1), (7, 2), (8, 3))
    ]
    parts = time_breakdown([Session(0.0, 8.5)], steps, re_forming=0.5, rounds=[5.9])
    assert parts["stalled"] == pytest.approx(3.5)
    assert parts["other"] == pytest.approx(0.5)
