"""Turns are granted one at a time, commits are numbered in their order, and no worker runs too
far ahead.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from brim.coordination.job.turns import Allotment, Answer, Applied, Granted, Proceed, Turns
from brim.errors import ProtocolError


def turns(*members: str, limit: int = 9) -> Turns:
    turns_made = Turns(ahead=limit)
    turns_made.begin(1, members)
    return turns_made


def test_turns_come_in_the_order_of_asking() -> None:
    turns_of_two = turns("a", "b", "c")
    assert turns_of_two.ask("b", 1, 5) == [Granted("b", 5)]
    assert turns_of_two.ask("c", 1, 5) == turns_of_two.ask("a", 1, 5) == []
    assert turns_of_two.commit("b", 1, 5, b"x") == [
        Applied("b", 5, b"x", False),
        Proceed("b", 5, False),
        Granted("c", 6),
    ]
    assert turns_of_two.commit("c", 1, 6, b"y")[-1] == Granted("a", 7)


@pytest.mark.parametrize("limit", [0, 2])
def test_a_worker_too_far_ahead_waits(limit: int) -> None:
    turns_of_two = turns("fast", "slow", limit=limit)
    for step in range(limit):
        turns_of_two.ask("fast", 1, step)
        assert Proceed("fast", step, False) in turns_of_two.commit("fast", 1, step, b"")
    turns_of_two.ask("fast", 1, limit)
    assert turns_of_two.commit("fast", 1, limit, b"") == [Applied("fast", limit, b"", False)]
    turns_of_two.ask("slow", 1, 0)
    answers = turns_of_two.commit("slow", 1, limit + 1, b"")
    assert answers[1:] == [Proceed("fast", limit, False), Proceed("slow", limit + 1, False)]


def test_nobody_waits_for_who_has_no_batches() -> None:
    turns_of_two = turns("a", "b", limit=0)
    turns_of_two.ask("a", 1, 0)
    turns_of_two.commit("a", 1, 0, b"")
    assert turns_of_two.rest("b", 1) == [Proceed("a", 0, False)]
    turns_of_two.level()
    turns_of_two.ask("a", 1, 1)
    assert turns_of_two.commit("a", 1, 1, b"") == [Applied("a", 1, b"", False)]


def test_a_hold_ends_with_the_next_commit() -> None:
    turns_of_two = turns("a", "b")
    turns_of_two.ask("a", 1, 0)
    turns_of_two.ask("b", 1, 0)
    turns_of_two.hold(0)
    turns_of_two.hold(1)
    assert turns_of_two.commit("a", 1, 0, b"") == [
        Applied("a", 0, b"", True),
        Proceed("a", 0, True),
    ]
    assert turns_of_two.ask("a", 1, 1) == []


def test_only_a_members_death_ends_the_round() -> None:
    turns_of_two = turns("a", "b")
    turns_of_two.ask("a", 1, 0)
    turns_of_two.lose("c")
    assert turns_of_two.commit("a", 1, 0, b"")
    turns_of_two.ask("a", 1, 1)
    turns_of_two.lose("b")
    assert (
        turns_of_two.commit("a", 1, 1, b"")
        == turns_of_two.ask("b", 1, 0)
        == turns_of_two.rest("b", 1)
        == []
    )
    turns_of_two.begin(2, ["a"])
    assert turns_of_two.commit("a", 1, 1, b"") == []
    assert turns_of_two.ask("a", 2, 1) == [Granted("a", 1)]


@pytest.mark.parametrize(
    ("member", "verb", "step"),
    [("c", "ask", 0), ("a", "ask", 0), ("b", "ask", 3), ("b", "commit", 0), ("a", "commit", 1)],
)
def test_what_is_illegal_is_refused(member: str, verb: str, step: int) -> None:
    turns_of_two = turns("a", "b")
    turns_of_two.ask("a", 1, 0)
    with pytest.raises(ProtocolError):
        turns_of_two.ask(member, 1, step) if verb == "ask" else turns_of_two.commit(
            member, 1, step, b""
        )
    assert turns_of_two.commit("a", 1, 0, b"")[0] == Applied("a", 0, b"", False)


class Schedule:
    """Workers, a hub and the state, in an order that chance chooses; some die, in their turn too,
    and others come.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.batches, self.ahead = self.random.randrange(0, 25), self.random.randrange(0, 4)
        self.turns, self.round, self.born = Turns(ahead=self.ahead), 0, 0
        self.committed: list[int] = []  # the batch of each step
        self.names = [self._name() for _ in range(self.random.randrange(2, 6))]
        self.begin()

    def _name(self) -> str:
        self.born += 1
        return f"w{self.born}"

    def begin(self) -> None:
        """A round: uncommitted batches are free, whichever worker had them."""
        self.round += 1
        self.turns.begin(self.round, self.names)
        free_batches = sorted(set(range(self.batches)) - set(self.committed))
        base = len(self.committed)
        self.allotment = Allotment(free=free_batches, members=len(self.names), base=base)
        self.batch = {name: self.allotment.first(rank) for rank, name in enumerate(self.names)}
        self.state = dict.fromkeys(self.names, "computing")
        self.seen = dict.fromkeys(self.names, base)
        self.counts: Counter[str] = Counter()
        self.held = False

    def run(self) -> None:
        for _ in range(2000):
            if set(self.state.values()) == {"resting"}:
                assert sorted(self.committed) == list(range(self.batches))
                return
            if self.held or self.random.random() < 0.02:
                self._change_members()
                continue
            ready = [
                name for name, state in self.state.items() if state in ("computing", "holding")
            ]
            assert ready, f"nobody can go on: {self.state}"
            self._act(self.random.choice(ready))
        raise AssertionError("it does not end")

    def _change_members(self) -> None:
        if not self.held:
            dead = self.random.choice(self.names)
            self.turns.lose(dead)
            holder = next((name for name, state in self.state.items() if state == "holding"), None)
            if holder not in (None, dead):  # its commit comes too late
                assert not self.turns.commit(holder, self.round, len(self.committed), b"")
            self.names.remove(dead)
        while len(self.names) < 2 or self.random.random() < 0.3:
            self.names.append(self._name())
        self.begin()

    def _act(self, name: str) -> None:
        if self.random.random() < 0.01:
            self.turns.hold(self.round)
        batch = self.batch[name]
        if batch is None:
            self.state[name] = "resting"
            self._take(self.turns.rest(name, self.round))
        elif self.state[name] == "computing":
            self.state[name] = "asking"
            self._take(self.turns.ask(name, self.round, self.seen[name]))
        else:
            step = len(self.committed)
            self.batch[name] = self.allotment.next(step)
            self.state[name] = "waiting"
            self._take(self.turns.commit(name, self.round, step, str(batch).encode()))

    def _take(self, answers: list[Answer]) -> None:
        for answer in answers:
            match answer:
                case Granted(name, step):
                    assert "holding" not in self.state.values()
                    assert step == len(self.committed)
                    self.state[name], self.seen[name] = "holding", step
                case Applied(name, step, payload, hold):
                    assert step == len(self.committed)
                    self.committed.append(int(payload))
                    self.counts[name] += 1
                    self.seen[name], self.held = step + 1, hold
                case Proceed(name, _, hold):
                    self.state[name] = "computing"
                    slowest = min(
                        self.counts[name] for name in self.names if self.state[name] != "resting"
                    )
                    assert hold or self.counts[name] - slowest <= self.ahead


@pytest.mark.parametrize("part", range(10))
def test_every_batch_counts_once_in_any_order(part: int) -> None:
    for seed in range(100):
        Schedule(100 * part + seed).run()
