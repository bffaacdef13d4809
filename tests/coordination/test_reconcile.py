from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from brim.coordination.reconcile import Action, Force, Holding, Resize, Start, Suspend, reconcile

CAPACITY, GRACE = 12, 30.0


def perform(actions: list[Action], rows: dict[str, Holding], now: float) -> None:
    for action in actions:
        row = rows[action.job]
        match action:
            case Start(workers=workers):
                assert not row.alive
                rows[action.job] = row._replace(alive=True, workers=0, target=workers, since=None)
            case Resize(workers=workers):
                asked = now if workers < row.target else row.since
                rows[action.job] = row._replace(target=workers, since=asked)
            case Suspend():
                rows[action.job] = row._replace(target=0, since=now)
            case Force(workers=workers):
                rows[action.job] = row._replace(workers=workers, alive=workers > 0, since=None)


def move(rows: dict[str, Holding], rng: random.Random, stubborn: str) -> None:
    """Some of the workers do what was asked of them."""
    for name, row in rows.items():
        if not row.alive or name == stubborn:
            continue
        step = rng.randint(0, 3)
        if row.workers < row.target:
            row = row._replace(workers=min(row.target, row.workers + step))
        elif row.workers > row.target:
            row = row._replace(workers=max(row.target, row.workers - step))
        if row.workers == row.target:
            row = row._replace(since=None, alive=row.target > 0)
        rows[name] = row


@given(st.integers(0, 10_000))
def test_no_device_is_held_twice_and_every_plan_comes_to_be(seed: int) -> None:
    rng = random.Random(seed)
    names = [f"job-{k}" for k in range(4)]
    rows = {name: Holding(name, False, 0, 0) for name in names}
    now = 0.0
    for _ in range(3):
        left, desired = CAPACITY, {}
        for name in rng.sample(names, len(names)):
            desired[name] = rng.randint(0, left)
            left -= desired[name]
        stubborn = rng.choice([*names, ""])  # gives nothing but by force
        for _ in range(60):
            now += 2.0
            actions = reconcile(list(rows.values()), desired, capacity=CAPACITY, now=now, grace=GRACE)
            perform(actions, rows, now)
            held = sum(max(row.workers, row.target) for row in rows.values() if row.alive)
            assert held <= CAPACITY
            move(rows, rng, stubborn)
            # Who is asked to stop and would not start again until then is asked once.
        stubborn = ""
        for _ in range(20):
            now += 2.0
            perform(
                reconcile(list(rows.values()), desired, capacity=CAPACITY, now=now, grace=GRACE), rows, now
            )
            move(rows, rng, stubborn)
        got = {name: row.target if row.alive else 0 for name, row in rows.items()}
        assert got == desired
        assert reconcile(list(rows.values()), desired, capacity=CAPACITY, now=now, grace=GRACE) == []


def test_a_job_on_its_way_to_its_end_is_not_asked_again_but_started_from_there() -> None:
    leaving = Holding("a", True, 3, 0, since=0.0)
    assert reconcile([leaving], {"a": 4}, capacity=4, now=1.0, grace=GRACE) == []
    assert reconcile([leaving], {"a": 4}, capacity=4, now=31.0, grace=GRACE) == [Force("a", 0)]
    gone = leaving._replace(alive=False, workers=0)
    assert reconcile([gone], {"a": 4}, capacity=4, now=31.0, grace=GRACE) == [Start("a", 4)]


def test_growing_counts_what_leavers_of_the_same_job_still_hold() -> None:
    rows = [Holding("a", True, 4, 2, since=0.0), Holding("b", True, 2, 2)]
    assert reconcile(rows, {"a": 2, "b": 4}, capacity=6, now=1.0, grace=GRACE) == []
    assert reconcile(rows, {"a": 4, "b": 2}, capacity=6, now=1.0, grace=GRACE) == [Resize("a", 4)]
