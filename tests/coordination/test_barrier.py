"""A barrier releases all or none, and refusals leave it as it was."""

import pytest

from brim.coordination.job.barrier import COMMIT, Barrier, Point, Release
from brim.errors import ProtocolError

BLOCKS, DONE = Point(0, "blocks"), Point(0, COMMIT)


@pytest.fixture
def barrier() -> Barrier:
    barrier = Barrier()
    barrier.begin(1, ["a", "b"])
    return barrier


def test_payloads_come_in_the_order_of_the_members(barrier: Barrier) -> None:
    assert barrier.arrive("b", 1, DONE, b"y") is None
    assert list(barrier.late) == ["a"]
    assert barrier.arrive("a", 1, DONE, b"x") == Release(1, DONE, False, (b"x", b"y"))
    assert list(barrier.late) == []


def test_points_follow_each_other(barrier: Barrier) -> None:
    for point in (BLOCKS, DONE, Point(1, "blocks")):
        assert barrier.arrive("a", 1, point) is None
        assert barrier.arrive("b", 1, point) is not None


def test_hold_waits_for_the_commit(barrier: Barrier) -> None:
    barrier.hold(1)
    holds = []
    for point in (BLOCKS, DONE):
        barrier.arrive("a", 1, point)
        release = barrier.arrive("b", 1, point)
        assert release is not None
        holds.append(release.hold)
    assert holds == [False, True]


@pytest.mark.parametrize("round", [0, 2])
def test_hold_of_another_round_has_no_effect(barrier: Barrier, round: int) -> None:
    barrier.hold(round)
    barrier.arrive("a", 1, DONE)
    assert barrier.arrive("b", 1, DONE) == Release(1, DONE, False, (b"", b""))


def test_a_new_round_forgets_arrivals_and_hold(barrier: Barrier) -> None:
    barrier.hold(1)
    barrier.arrive("a", 1, DONE)
    barrier.begin(2, ["a", "b"])
    assert barrier.arrive("b", 1, DONE) is None
    assert barrier.late == ()
    assert barrier.arrive("b", 2, DONE) is None
    assert barrier.arrive("a", 2, DONE) == Release(2, DONE, False, (b"", b""))


@pytest.mark.parametrize("round", [0, 1])
def test_rounds_only_grow(barrier: Barrier, round: int) -> None:
    with pytest.raises(ProtocolError):
        barrier.begin(round, ["c"])
    barrier.arrive("a", 1, DONE)
    assert barrier.arrive("b", 1, DONE) is not None


@pytest.mark.parametrize(
    ("member", "point"), [("c", DONE), ("a", DONE), ("b", BLOCKS), ("b", Point(1, COMMIT))]
)
def test_an_illegal_event_leaves_the_barrier_unchanged(
    barrier: Barrier, member: str, point: Point
) -> None:
    barrier.arrive("a", 1, DONE, b"x")
    with pytest.raises(ProtocolError):
        barrier.arrive(member, 1, point, b"bad")
    assert barrier.late == ("b",)
    assert barrier.arrive("b", 1, DONE, b"y") == Release(1, DONE, False, (b"x", b"y"))


def test_a_stranger_that_comes_first_sets_no_point(barrier: Barrier) -> None:
    with pytest.raises(ProtocolError):
        barrier.arrive("c", 1, BLOCKS)
    assert barrier.arrive("a", 1, DONE) is None
    assert barrier.arrive("b", 1, DONE) is not None
