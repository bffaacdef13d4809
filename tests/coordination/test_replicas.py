"""Members that keep replicas: no change touches the others, and leavers have their devices for a while."""

from __future__ import annotations

from brim.coordination.job.membership import (
    AgentJoined,
    ResizeRequested,
    WorkerGone,
    WorkerIdle,
    WorkerInstalled,
)
from brim.coordination.job.rendezvous import Rendezvous
from coordination.test_rendezvous import gone, installed, ready, tell


def serving(places: dict[str, int]) -> Rendezvous:
    """A service of so many replicas on each agent, all of which wait."""
    count = sum(places.values())
    rendezvous = Rendezvous(minimum=count, target=count, lingers=True)
    for agent in places:
        tell(rendezvous, AgentJoined(agent))
    tell(rendezvous, ResizeRequested(count, places), *ready(*range(1, count + 1)))
    idle(rendezvous)
    return rendezvous


def idle(rendezvous: Rendezvous) -> None:
    installed(rendezvous)
    members = [member.id for member in rendezvous.roster.members]
    tell(rendezvous, *(WorkerIdle(member, rendezvous.round) for member in members))


def stand(rendezvous: Rendezvous) -> list[str]:
    """Have all members leave a step that nobody makes; returns the commands that follow."""
    round = rendezvous.round
    members = [member.id for member in rendezvous.roster.members]
    return tell(rendezvous, *(WorkerInstalled(member, round, 0) for member in members))


def test_death_ends_no_other_replica() -> None:
    rendezvous = serving({"A": 2})
    named, started = tell(rendezvous, *gone(2))
    assert named.startswith("round 2: w1 ")
    assert started == "start w3 on A"
    idle(rendezvous)
    (calm,) = tell(rendezvous, *ready(3))
    assert calm.startswith("still round 3: w1")
    assert stand(rendezvous)[0].startswith("round 4: w1 w3")


def test_device_is_reused_once_its_leaver_is_gone() -> None:
    rendezvous = serving({"A": 2})
    assert tell(rendezvous, ResizeRequested(1, {"A": 1})) == ["still round 2: w1 w2 (resize to 1)"]
    assert "dismiss w2" in stand(rendezvous)
    idle(rendezvous)
    assert tell(rendezvous, ResizeRequested(2, {"A": 2})) == []  # its requests are under way
    assert tell(rendezvous, WorkerGone("w2", "exit status 0")) == ["start w3 on A"]


def test_other_agents_do_not_wait_for_a_leaver() -> None:
    rendezvous = serving({"A": 1})
    tell(rendezvous, AgentJoined("B"))
    assert tell(rendezvous, ResizeRequested(1, {"B": 1})) == ["start w2 on B"]
    tell(rendezvous, *ready(2))
    stand(rendezvous)
    idle(rendezvous)  # both serve until the next boundary
    assert "dismiss w1" in stand(rendezvous)


def test_starting_replica_gives_back_its_device() -> None:
    rendezvous = serving({"A": 1})
    assert tell(rendezvous, ResizeRequested(3, {"A": 3})) == ["start w2 on A", "start w3 on A"]
    assert tell(rendezvous, ResizeRequested(2, {"A": 2})) == ["dismiss w3"]
    tell(rendezvous, *ready(2))
    assert stand(rendezvous)[0].startswith("round 3: w1 w2")
    assert tell(rendezvous, WorkerGone("w3", "exit status 0")) == []


def test_leaver_stays_until_its_successor_is_ready() -> None:
    rendezvous = serving({"A": 1})
    tell(rendezvous, AgentJoined("B"))
    assert tell(rendezvous, ResizeRequested(1, {"B": 1})) == ["start w2 on B"]
    (calm,) = tell(rendezvous, *ready(2))
    assert calm.startswith("still round 2: w1")
