"""On every schedule a job outlives its master's host, by the copies of agents; and bugs show."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from itertools import chain

import pytest

from brim.coordination.job.messages.agents import JournalPlace
from brim.errors import ProtocolError
from brim.master.copying import CopyFeed
from brim.master.decisions import Decisions
from brim.master.state import State
from brim.wire import messages as wire
from coordination import moving
from coordination.moving import NoCopyLeft, at_random

SCHEDULES = int(os.environ.get("BRIM_SCHEDULES", "1000")) // 5
_ENOUGH = 200  # schedules in which everything happens
MOST = 300  # schedules in which a bug must show
Patch = pytest.MonkeyPatch


@pytest.mark.parametrize("batch", range(4))
def test_any_schedule_with_a_dying_master_host(batch: int) -> None:
    takeovers = displaced = nothing_left = 0
    for seed in range(batch * SCHEDULES // 4, (batch + 1) * SCHEDULES // 4):
        job = at_random(seed)
        try:
            job.run()
        except NoCopyLeft:
            nothing_left += 1
        except AssertionError as error:
            raise AssertionError(f"schedule {seed}: {error}") from error
        takeovers += job.takeovers
        displaced += job.displaced
    assert 2 * takeovers > SCHEDULES // 4, "hardly a master took over"
    if SCHEDULES >= _ENOUGH:  # it is rare: `make core` tries a few schedules
        assert displaced, "nobody came late with more than the copies that were there"
    assert 10 * nothing_left < SCHEDULES // 4


def a_copy_lacks_the_entry_behind_the_words_that_it_goes_with(patch: Patch) -> None:
    usual = CopyFeed.part

    def part(self: CopyFeed) -> wire.CopyPart | None:
        state = self._decisions.state
        if self._position is not None and self._position == state.entries - 1:
            return None
        return usual(self)

    patch.setattr(CopyFeed, "part", part)


def a_copy_lacks_records(patch: Patch) -> None:
    usual = CopyFeed._base

    def base(self: CopyFeed) -> wire.CopyPart:
        self._is_complete = True
        for file in self._places:
            self._places[file] = self._decisions.state.sizes.get(file, 0)
        return usual(self)

    patch.setattr(CopyFeed, "_base", base)


def an_agent_that_was_told_more_is_let_in(patch: Patch) -> None:
    def is_behind(self: State, place: JournalPlace) -> bool:
        return True

    patch.setattr(State, "is_behind", is_behind)


def a_master_forgets_where_it_took_over(patch: Patch) -> None:
    usual = Decisions._move

    def move(self: Decisions, origin: str, run: str) -> None:
        usual(self, origin, run)
        self.state.line[-1] = JournalPlace(origin, self.state.entries + 50)

    patch.setattr(Decisions, "_move", move)


def the_shortest_copy_is_taken(patch: Patch) -> None:
    def age(join: wire.JoinJob) -> tuple[int, int]:
        return (-join.life, -join.copy.place.number) if join.copy is not None else (0, 0)

    patch.setattr(moving, "age_of_copy", age)


# each with a schedule in which it shows: a hint, so that few have to be tried
BUGS: list[tuple[Callable[[Patch], None], int]] = [
    (a_copy_lacks_the_entry_behind_the_words_that_it_goes_with, 1),
    (a_copy_lacks_records, 0),
    (an_agent_that_was_told_more_is_let_in, 9),
    (a_master_forgets_where_it_took_over, 9),
    (the_shortest_copy_is_taken, 1),
]


def first_that_breaks(hint: int) -> int | None:
    for seed in chain([hint], range(MOST)):
        try:
            with contextlib.suppress(NoCopyLeft):
                at_random(seed).run()
        except (AssertionError, ProtocolError):
            return seed
    return None


@pytest.mark.exhaustive
@pytest.mark.parametrize(("bug", "hint"), BUGS, ids=lambda bug: getattr(bug, "__name__", ""))
def test_schedules_find(bug: Callable[[Patch], None], hint: int, monkeypatch: Patch) -> None:
    bug(monkeypatch)
    assert first_that_breaks(hint) is not None, f"in {MOST} schedules nothing shows"


def test_without_a_bug_those_schedules_break_nothing() -> None:
    for _, hint in BUGS:
        with contextlib.suppress(NoCopyLeft):
            at_random(hint).run()
