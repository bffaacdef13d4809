"""A hub is the root where all members are its own; else it passes complete arrivals on."""

import pytest

from brim.agent.hub import Hub, PassOn, is_commit
from brim.coordination.barrier import COMMIT, Point, Release
from brim.coordination.membership import Member, World
from brim.coordination.turns import TURN, Applied, Granted, Proceed, Turns
from brim.errors import ProtocolError


def world(round: int, **agents: str) -> World:
    members = tuple(
        Member(worker=worker, agent=agent, address="") for worker, agent in agents.items()
    )
    return World(round=round, members=members, donors={}, restore=False, shares=(1,) * len(members))


def test_alone_it_is_the_root() -> None:
    hub = Hub("A")
    hub.begin(world(1, w1="A", w2="A"))
    assert hub.arrive("w1", 1, Point(0, COMMIT), b"x") is None
    assert hub.arrive("w2", 1, Point(0, COMMIT), b"y") == Release(
        1, Point(0, COMMIT), False, (b"x", b"y")
    )


@pytest.mark.parametrize("phase", ["blocks", "folded"])
def test_what_concerns_one_host_is_released_here(phase: str) -> None:
    hub = Hub("A")
    hub.begin(world(1, w1="A", w2="B"))
    assert hub.members == ("w1",)
    assert hub.arrive("w1", 1, Point(0, phase), b"") == Release(1, Point(0, phase), False, (b"",))


@pytest.mark.parametrize("phase", [COMMIT, "gather", "end"])
def test_what_concerns_all_is_passed_on(phase: str) -> None:
    hub = Hub("A")
    hub.begin(world(1, w1="A", w2="A", w3="B"))
    assert hub.arrive("w2", 1, Point(0, phase), b"y") is None
    assert hub.arrive("w1", 1, Point(0, phase), b"x") == PassOn(1, Point(0, phase), (b"x", b"y"))
    assert is_commit(Point(0, phase)) == (phase == COMMIT)


def test_rounds_and_roots_change() -> None:
    hub = Hub("A")
    hub.begin(world(1, w1="A", w2="B"))
    hub.hold(1)
    hub.begin(world(2, w1="A"))
    assert hub.round == 2
    assert hub.arrive("w1", 1, Point(0, COMMIT), b"") is None
    assert hub.arrive("w1", 2, Point(0, COMMIT), b"") == Release(2, Point(0, COMMIT), False, (b"",))
    hub.hold(2)
    assert hub.arrive("w1", 2, Point(1, COMMIT), b"") == Release(2, Point(1, COMMIT), True, (b"",))


def test_a_stranger_is_refused() -> None:
    hub = Hub("A")
    hub.begin(world(1, w1="A", w2="B"))
    with pytest.raises(ProtocolError):
        hub.arrive("w2", 1, Point(0, COMMIT), b"")


def test_where_workers_take_turns_a_commit_is_one_members() -> None:
    hub = Hub("A")
    hub.turns = Turns(ahead=0)
    hub.begin(world(1, w1="A", w2="A"))
    assert hub.arrive("w1", 1, Point(4, TURN), b"") == [Granted("w1", 4)]
    assert hub.arrive("w1", 1, Point(4, COMMIT), b"x") == [Applied("w1", 4, b"x", False)]
    assert hub.arrive("w2", 1, Point(9, "epoch"), b"") == [Proceed("w1", 4, False)]
    assert hub.arrive("w1", 1, Point(9, "epoch"), b"") == Release(
        1, Point(9, "epoch"), False, (b"", b"")
    )
    hub.lose("w2")
    assert hub.arrive("w1", 1, Point(5, TURN), b"") == []
    hub.begin(world(2, w1="A"))
    assert hub.arrive("w1", 2, Point(5, COMMIT), b"y") == Release(
        2, Point(5, COMMIT), False, (b"y",)
    )
