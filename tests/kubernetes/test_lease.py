"""The rules of a Lease: at no moment do two processes hold it, despite delays and losses."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.kubernetes.client.lease import (
    Candidate,
    LeaseSeen,
    LeaseStep,
    LeaseTerms,
    LookAtLease,
    WaitForLease,
    WriteLease,
)

TERMS = LeaseTerms()


@dataclass
class Store:
    """The object, as the API server keeps it."""

    lease: LeaseSeen | None = None
    version: int = 0

    def take(self, write: WriteLease) -> LeaseSeen | None:
        """Return the object as written; None: it has changed since it was read."""
        if write.version != (self.lease.version if self.lease else ""):
            return None
        self.version += 1
        self.lease = LeaseSeen(
            version=str(self.version),
            holder=write.holder,
            duration=TERMS.duration,
            transitions=write.transitions,
            acquired=write.acquired or f"at {self.version}",
            renewed=str(self.version),
        )
        return self.lease


@dataclass
class Process:
    """A candidate with its own clock, and its request that is under way."""

    candidate: Candidate
    ahead: float  # seconds of its clock
    asked: LeaseStep | None = None  # sent, and not with the server yet
    sent: float = 0.0
    answers: list[LeaseSeen | None] = field(default_factory=list)  # on the way back

    def move(self, store: Store, now: float, *, lost: bool) -> None:
        """Send the next request; or have the server get it; or the answer come, or be lost."""
        now += self.ahead
        if self.asked is None:
            step = self.candidate.step(now)
            if not isinstance(step, WaitForLease):
                self.asked, self.sent = step, now
        elif lost:
            self.asked, self.answers = None, []
            self.candidate.failed(now, changed=False)
        elif not self.answers:
            is_look = isinstance(self.asked, LookAtLease)
            self.answers = [store.lease if is_look else store.take(self._write)]
        else:
            answer = self.answers.pop()
            if isinstance(self.asked, LookAtLease):
                self.candidate.looked(now, answer)
            elif answer is None:
                self.candidate.failed(now, changed=True)
            else:
                self.candidate.written(self.sent, answer)
            self.asked = None

    @property
    def _write(self) -> WriteLease:
        assert isinstance(self.asked, WriteLease)
        return self.asked

    def holds(self, now: float) -> bool:
        return self.candidate.holds(now + self.ahead)


def processes() -> list[Process]:
    return [
        Process(Candidate(name, TERMS), clock_offset)
        for name, clock_offset in (("a", 0.0), ("b", 777.0))
    ]


def holders(all_: list[Process], now: float) -> list[int]:
    return [number for number, process in enumerate(all_) if process.holds(now)]


# Mostly what lets a Lease be had and be let go: with less of it few histories come to the point.
actions = st.lists(
    st.sampled_from(
        [
            *(("wait", seconds) for seconds in (0.5, 2.0, 5.0, 15.0)),
            *(("round", number) for number in (0, 1, 0, 1)),
            *(("move", number) for number in (0, 1)),
            *(("lose", number) for number in (0, 1)),
        ]
    ),
    min_size=20,
    max_size=60,
)


@settings(max_examples=500)
@given(actions)
def test_never_do_two_hold_it(history: list[tuple[str, float]]) -> None:
    store, all_, now = Store(), processes(), 1000.0
    for action, argument in history:
        if action == "wait":
            now += argument
        else:
            process_struck = all_[int(argument)]
            for _ in range(6 if action == "round" else 1):
                process_struck.move(store, now, lost=action == "lose")
        assert len(holders(all_, now)) <= 1
    # And where nothing is lost any more, one holds it in the end, and keeps it.
    for _ in range(80):
        now += 0.5
        for process_struck in all_:
            for _ in range(3):
                process_struck.move(store, now, lost=False)
    holder_numbers = holders(all_, now)
    assert len(holder_numbers) == 1
    for _ in range(40):
        now += 0.5
        for process_struck in all_:
            for _ in range(3):
                process_struck.move(store, now, lost=False)
        assert holders(all_, now) == holder_numbers


def held(now: float) -> tuple[Candidate, LeaseSeen]:
    """A candidate that got the Lease by a write that it sent at `now`."""
    candidate = Candidate("a", TERMS)
    candidate.looked(now, None)
    assert candidate.step(now) == WriteLease(version="", holder="a", transitions=0)
    lease = LeaseSeen(
        version="1", holder="a", duration=15, transitions=0, acquired="t0", renewed="t0"
    )
    candidate.written(now, lease)
    return candidate, lease


def test_the_holder_counts_from_when_it_sent() -> None:
    candidate, _ = held(100.0)
    assert candidate.holds(109.99)
    assert not candidate.holds(110.0)


def test_the_holder_renews_without_reading() -> None:
    candidate, _ = held(100.0)
    assert candidate.step(101.0) == WaitForLease(102.0)
    renewal = WriteLease(version="1", holder="a", transitions=0, acquired="t0")
    assert candidate.step(102.0) == renewal


def test_renewals_are_retried_until_expiry() -> None:
    candidate, lease = held(100.0)
    candidate.failed(102.5, changed=False)
    assert candidate.step(103.0) == WaitForLease(104.5)
    assert candidate.step(104.5) == LookAtLease()
    # The write was taken, and its answer was lost: nothing was gained by it.
    candidate.looked(105.0, replace(lease, version="2", renewed="t1"))
    assert candidate.holds_until == 110.0
    assert candidate.step(105.0) == replace(held_write(lease), version="2")


def held_write(lease: LeaseSeen) -> WriteLease:
    return WriteLease(
        version=lease.version,
        holder=lease.holder,
        transitions=lease.transitions,
        acquired=lease.acquired,
    )


def test_expiry_is_judged_by_the_own_clock() -> None:
    candidate = Candidate("b", TERMS)
    lease = LeaseSeen(version="7", holder="a", duration=15, transitions=3, renewed="long ago")
    candidate.looked(1000.0, lease)  # whatever time is written in it
    assert candidate.step(1000.0) == WaitForLease(1002.0)
    candidate.looked(1002.0, replace(lease, version="8"))  # a label has changed, and nothing else
    candidate.looked(1014.0, replace(lease, version="8"))
    assert candidate.step(1014.0) == WaitForLease(1015.0)
    candidate.looked(1015.0, replace(lease, version="8"))
    assert candidate.step(1015.0) == WriteLease(version="8", holder="b", transitions=4)


def test_each_renewal_begins_its_time_from_scratch() -> None:
    candidate = Candidate("b", TERMS)
    lease = LeaseSeen(version="7", holder="a", duration=15, renewed="t0")
    candidate.looked(1000.0, lease)
    candidate.looked(1014.0, replace(lease, version="8", renewed="t1"))
    candidate.looked(1028.9, replace(lease, version="8", renewed="t1"))
    assert isinstance(candidate.step(1028.9), WaitForLease)


def test_what_was_released_is_taken_at_once() -> None:
    candidate, lease = held(100.0)
    release = candidate.release(replace(lease, version="5"))
    assert release == WriteLease(version="5", holder="", transitions=0)
    assert not candidate.holds(100.0)
    other_candidate = Candidate("b", TERMS)
    other_candidate.looked(50.0, LeaseSeen(version="6", holder="", duration=1))
    assert other_candidate.step(50.0) == WriteLease(version="6", holder="b", transitions=1)


def test_what_is_anothers_is_not_released() -> None:
    candidate, lease = held(100.0)
    assert candidate.release(replace(lease, holder="b")) is None


@pytest.mark.parametrize("found", [None, LeaseSeen(version="9", holder="b", duration=15)])
def test_who_finds_it_gone_holds_it_no_longer(found: LeaseSeen | None) -> None:
    candidate, _ = held(100.0)
    candidate.failed(102.0, changed=True)
    assert candidate.step(102.0) == LookAtLease()
    candidate.looked(102.1, found)
    assert not candidate.holds(102.1)


@pytest.mark.parametrize("times", [(15.0, 15.0, 2.0), (15.0, 10.0, 10.0), (15.0, 10.0, 0.0)])
def test_times_that_cannot_be(times: tuple[float, float, float]) -> None:
    duration, renew_within, retry = times
    with pytest.raises(AssertionError):
        LeaseTerms(duration=duration, renew_within=renew_within, retry=retry)
