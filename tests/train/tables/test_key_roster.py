"""The owners of rows, against a model in plain Python: for any cut into owners and any deaths."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import pytest
import torch
from torch import Tensor

from brim.embeddings.tables.index import Index
from brim.embeddings.tables.key_roster import KeyRoster, KeyRosterChange, Rules

PARTITIONS = 64
Logged = tuple[
    range, KeyRosterChange, Tensor, Tensor | None
]  # the last: when candidates were counted before


class Died(Exception):
    pass


class Model:
    """The rules, key by key."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.rows: dict[int, int] = {}  # when they were updated last
        self.seen: dict[int, int] = {}
        self.full: set[int] = set()

    def is_there(self, key: int, step: int) -> bool:
        lifetime = self.rules.expire_after
        return key in self.rows and (lifetime is None or step - self.rows[key] <= lifetime)

    def step(self, step: int, keys: list[int]) -> int:
        rules, full = self.rules, self.full
        if rules.expire_after is not None and step % max(1, rules.expire_after // 4) == 0:
            self.rows = {key: last for key, last in self.rows.items() if self.is_there(key, step)}
        self.seen = {key: count for key, count in self.seen.items() if key >> 57 not in full}
        self.full = set()
        refused = 0
        for key in keys:
            if not self.is_there(key, step) and not self._admits(key):
                continue
            if key in self.rows or self._in(self.rows, key) < rules.shape.places:
                self.rows[key] = step
            else:
                refused += 1
        return refused

    def _admits(self, key: int) -> bool:
        threshold = self.rules.admit_after
        if threshold == 1:
            return True
        if key in self.seen:
            self.seen[key] = 1 if self.seen[key] == threshold else self.seen[key] + 1
            return self.seen[key] == threshold
        if self._in(self.seen, key) < self.rules.candidates.places:
            self.seen[key] = 1
        else:
            self.full.add(key >> 57)
        return False

    def _in(self, keys: Any, key: int) -> int:
        return sum(other_key >> 57 == key >> 57 for other_key in keys)


def tensor(keys: Any) -> Tensor:
    return torch.tensor(sorted(keys), dtype=torch.int64)


def cut(chance: random.Random) -> list[range]:
    """Owners, each with partitions that follow each other."""
    inner = sorted(chance.sample(range(1, PARTITIONS), chance.choice([0, 1, 3])))
    return [
        range(start, stop) for start, stop in zip([0, *inner], [*inner, PARTITIONS], strict=True)
    ]


def keys_of(keys: list[int], owner: range) -> Tensor:
    return tensor(key for key in keys if key >> 57 in owner)


def assert_same(roster: KeyRoster, model: Model, step: int) -> None:
    keys, places = roster.items(step)
    assert keys.tolist() == sorted(key for key in model.rows if model.is_there(key, step))
    assert torch.equal(roster.find(keys, step), places)
    assert len(places.unique()) == len(places)
    expired = tensor(key for key in model.rows if not model.is_there(key, step))
    assert (roster.find(expired, step) == -1).all()
    if roster.candidates is not None:
        waiting, counts, changed = roster.candidates.items(step)
        assert bool(((changed >= 1) & (changed <= step)).all())
        expected = {key: count for key, count in model.seen.items() if key >> 57 not in model.full}
        assert dict(zip(waiting.tolist(), counts.tolist(), strict=True)) == expected


RULES = [
    Rules(400),
    Rules(400, admit_after=2),
    Rules(400, expire_after=6),
    Rules(400, admit_after=3, expire_after=9),
    Rules(400, admit_after=2, expire_after=1),
]


@pytest.mark.parametrize("rules", RULES, ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_rows_follow_the_rules_through_deaths(
    rules: Rules, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    crowded = [9 << 57 | chance.getrandbits(57) for _ in range(60)]
    universe = crowded + [chance.getrandbits(63) for _ in range(60)]
    roster, model = KeyRoster(torch.zeros(rules.bytes, dtype=torch.uint8), rules), Model(rules)
    write, writes_left, refusals, deaths = Index._write, 1 << 60, 0, 0

    def mortal(index: Index, words: Any, values: Any) -> None:
        nonlocal writes_left
        if writes_left < len(words):
            write(
                index,
                words[:writes_left],
                values if isinstance(values, int) else values[:writes_left],
            )
            writes_left = 0
            raise Died
        writes_left -= len(words)
        write(index, words, values)

    monkeypatch.setattr(Index, "_write", mortal)

    def attempt(step: int, keys: list[int], logged: list[Logged]) -> int:
        refused = 0
        for owner in cut(chance):
            roster.begin(step, owner)
            change = roster.look(keys_of(keys, owner), step)
            seen = None
            if roster.candidates is not None and change.counted is not None:
                seen = roster.candidates.changed[change.counted.places]
            logged.append((owner, change, roster.changed[change.places], seen))
            roster.write(step, change)
            refused += change.refused
        return refused

    for step in range(60):
        keys = sorted(chance.sample(universe, chance.choice([0, 3, 25, 60])))
        for _ in range(chance.choice([0, 0, 1, 3])):
            logged: list[Logged] = []
            writes_left = chance.choice([0, 1, 5, 40, 200, 1000])
            with contextlib.suppress(Died):
                attempt(step, keys, logged)
            deaths += writes_left == 0
            for once_more in (0, 7, 1 << 60):  # who takes it back may die as well
                writes_left = once_more
                with contextlib.suppress(Died):
                    for owner, change, changed, seen in logged:
                        roster.take_back(change.created, change.places, changed)
                        if (
                            roster.candidates is not None
                            and change.counted is not None
                            and seen is not None
                        ):
                            counted = change.counted
                            roster.candidates.take_back(
                                step, owner, counted.new, counted.places, counted.before, seen
                            )
            assert_same(roster, model, step)
        refused = attempt(step, keys, [])
        assert refused == model.step(step, keys)
        assert_same(roster, model, step + 1)
        refusals += refused
    assert deaths >= 8
    assert rules.expire_after is not None or refusals > 0


def test_rows_live_a_number_of_steps() -> None:
    roster = KeyRoster(
        torch.zeros(Rules(10, expire_after=3).bytes, dtype=torch.uint8), Rules(10, expire_after=3)
    )
    keys = tensor([5])
    roster.write(7, roster.look(keys, 7))
    assert [int(roster.find(keys, step)) >= 0 for step in range(8, 13)] == [
        True,
        True,
        True,
        False,
        False,
    ]
    assert roster.look(keys, 10).is_fresh.tolist() == [False]
    assert roster.look(keys, 11).is_fresh.tolist() == [True]
    assert len(roster.look(keys, 11).created) == 0, "it takes its old place"


def test_candidates_restart_when_room_runs_out() -> None:
    rules = Rules(64, admit_after=2)
    room = rules.candidates.places
    roster = KeyRoster(torch.zeros(rules.bytes, dtype=torch.uint8), rules)
    for step, keys in enumerate([range(room + 1), range(room), range(room - 1)]):
        roster.begin(step, range(PARTITIONS))
        change = roster.look(tensor(keys), step)
        assert len(change.number) == (room - 1 if step == 2 else 0)
        roster.write(step, change)
