"""Members that begin anew in each round: a change waits for all who are on their way to it."""

from __future__ import annotations

import random

import pytest

from brim.coordination.job.attempts import Attempts
from brim.coordination.job.launches import seat_of, size_of, variables_of
from brim.coordination.job.membership import (
    AgentJoined,
    CommandAdvanced,
    Dismiss,
    End,
    Install,
    Kill,
    Member,
    PatienceOver,
    RendezvousPhase,
    ResizeRequested,
    StartWorker,
    Stop,
    WorkerAsksToLeave,
    WorkerGone,
    WorkerIdle,
    WorkerInstalled,
    WorkerReady,
    World,
)
from brim.coordination.job.rendezvous import Rendezvous
from coordination.test_rendezvous import gone, installed, ready, tell


def job(target: int, *, minimum: int = 1, spares: int = 0, most: int = 1000) -> Rendezvous:
    return Rendezvous(
        minimum=minimum,
        target=target,
        spares=spares,
        attempts=Attempts(young=3, limit=most),
        restarts=True,
    )


def running(target: int, *, minimum: int = 1, spares: int = 0, most: int = 1000) -> Rendezvous:
    """A job of so many workers, all of which have started the command."""
    rendezvous = job(target, minimum=minimum, spares=spares, most=most)
    tell(rendezvous, AgentJoined("A"), *ready(*range(1, target + 1)))
    installed(rendezvous)
    tell(rendezvous, *idle(rendezvous))
    return rendezvous


def idle(rendezvous: Rendezvous) -> list[WorkerIdle]:
    return [WorkerIdle(member.id, rendezvous.round) for member in rendezvous.roster.members]


def test_first_round_awaits_all_wanted() -> None:
    rendezvous = job(3)
    tell(rendezvous, AgentJoined("A"))
    assert tell(rendezvous, *ready(1)) == ["await others in 0"]
    assert tell(rendezvous, *ready(2)) == []
    assert tell(rendezvous, *ready(3)) == [
        "round 1: w1 w2 w3, w1 gives w2, w1 gives w3, restore (start)"
    ]


def test_patience_starts_fewer() -> None:
    rendezvous = job(3, minimum=2)
    tell(rendezvous, AgentJoined("A"), *ready(1))
    assert tell(rendezvous, PatienceOver(0)) == []  # fewer than the minimum never begin
    assert tell(rendezvous, *ready(2)) == ["round 1: w1 w2, w1 gives w2, restore (start)"]


def test_death_is_one_restart() -> None:
    rendezvous = running(2)
    assert tell(rendezvous, *gone(2)) == ["still round 2: w1 (w2 lost (signal 9))", "start w3 on A"]
    assert tell(rendezvous, WorkerInstalled("w1", 2, 0)) == ["await others in 2"]
    (named,) = tell(rendezvous, *ready(3))
    assert named == "round 3: w1 w3, w1 gives w3 (w2 lost (signal 9), w3 joins)"


def test_death_with_spare_waits_for_nobody() -> None:
    rendezvous = running(2, spares=1)
    tell(rendezvous, CommandAdvanced(1), *ready(3))
    tell(rendezvous, *gone(2))
    assert tell(rendezvous, WorkerInstalled("w1", 2, 0)) == [
        "round 3: w1 w3, w1 gives w3 (w2 lost (signal 9), w3 joins)"
    ]


def test_second_death_while_others_are_awaited() -> None:
    rendezvous = running(3)
    tell(rendezvous, *gone(3), WorkerInstalled("w1", 2, 0), WorkerInstalled("w2", 2, 0))
    assert tell(rendezvous, *gone(2)) == [
        "still round 3: w1 (w3 lost (signal 9), w2 lost (signal 9))",
        "start w5 on A",
    ]
    tell(rendezvous, WorkerInstalled("w1", 3, 0), *ready(4))
    assert tell(rendezvous, *ready(5))[0].startswith("round 4: w1 w4 w5,")


def test_last_death_gathers() -> None:
    rendezvous = running(1)
    assert tell(rendezvous, *gone(1)) == ["start w2 on A"]
    assert tell(rendezvous, *ready(2)) == ["round 2: w2, restore (w1 lost (signal 9), w2 joins)"]


def test_growth_is_one_restart() -> None:
    rendezvous = running(1)
    assert tell(rendezvous, ResizeRequested(3)) == ["start w2 on A", "start w3 on A"]
    assert tell(rendezvous, *ready(2)) == ["await others in 1"]
    assert tell(rendezvous, *ready(3)) == ["still round 2: w1 (resize to 3)"]
    assert tell(rendezvous, WorkerInstalled("w1", 2, 0))[0].startswith("round 3: w1 w2 w3,")


def test_late_newcomer_is_not_awaited_twice() -> None:
    rendezvous = running(1)
    tell(rendezvous, ResizeRequested(3), *ready(2))
    assert tell(rendezvous, PatienceOver(1)) == ["still round 2: w1 (resize to 3)"]
    assert tell(rendezvous, WorkerInstalled("w1", 2, 0))[0].startswith("round 3: w1 w2,")


def test_shrinking_waits_for_nobody() -> None:
    rendezvous = running(3)
    assert tell(rendezvous, ResizeRequested(2)) == ["still round 2: w1 w2 w3 (resize to 2)"]
    installed(rendezvous)
    assert rendezvous.round == 3
    assert [member.id for member in rendezvous.roster.members] == ["w1", "w2"]


STOPS = {
    "while it runs": [],
    "while others are awaited": [*gone(2), WorkerInstalled("w1", 2, 0)],
    "while one leaves": [WorkerAsksToLeave("w2")],
}


@pytest.mark.parametrize("before", STOPS.values(), ids=STOPS)
def test_stop_comes_to_its_end(before: list[object]) -> None:
    rendezvous = running(2)
    tell(rendezvous, *before)  # type: ignore[arg-type]
    tell(rendezvous, Stop("asked"))
    installed(rendezvous)
    assert rendezvous.phase is RendezvousPhase.WRITING


def test_starts_in_vain_end_the_job() -> None:
    rendezvous = running(2, minimum=2, most=3)
    for number in (2, 3, 4):
        last = tell(rendezvous, *gone(number))
        installed(rendezvous)
        tell(rendezvous, *ready(number + 1))
        installed(rendezvous)
    assert "3 starts in a row failed on A" in rendezvous._last_straw
    assert "kill w1" in last


def test_progress_gives_another_try() -> None:
    rendezvous = running(2, minimum=2, most=2)
    for number in (2, 3, 4):
        tell(rendezvous, CommandAdvanced(rendezvous.round), *gone(number))
        installed(rendezvous)
        tell(rendezvous, *ready(number + 1))
        installed(rendezvous)
    assert rendezvous.phase is RendezvousPhase.RUNNING


@pytest.mark.parametrize("seed", range(100))
def test_quiet_after_chaos_has_all_at_work(seed: int) -> None:
    """Deaths, leavers, resizes and late starts in any order: then the last size asked for runs."""
    chance = random.Random(seed)
    rendezvous = job(chance.randint(1, 4), spares=chance.randint(0, 1))
    starting: list[str] = []
    standing: dict[str, int] = {}  # by member, the round that it is to install
    waits: set[int] = set()

    def take(event: object) -> None:
        for command in rendezvous.handle(event):  # type: ignore[arg-type]
            match command:
                case StartWorker(_, worker, _):
                    starting.append(worker)
                case Install(world):
                    standing.clear()
                    standing.update(dict.fromkeys((m.worker for m in world.members), world.round))
                case Dismiss(worker) | Kill(worker):
                    take(WorkerGone(worker, "dismissed"))
                case End():
                    raise AssertionError(command)
                case _:
                    waits.add(getattr(command, "round", -1))

    def quiet(size: int) -> None:
        while starting or standing or waits:
            if standing:
                worker, round = standing.popitem()
                take(WorkerInstalled(worker, round, 0))
                take(WorkerIdle(worker, round))
            elif starting:
                take(WorkerReady(starting.pop(0), "h:1"))
            else:
                take(PatienceOver(waits.pop()))
        assert len(rendezvous.roster.members) == size

    take(AgentJoined("A"))
    quiet(rendezvous.target)
    for _ in range(30):
        members = [member.id for member in rendezvous.roster.members]
        match chance.randrange(6):
            case 0 if members:
                take(WorkerGone(chance.choice(members), "signal 9"))
            case 1 if starting:
                take(WorkerReady(starting.pop(0), "h:1"))
            case 2 if standing:
                worker, round = standing.popitem()
                take(WorkerInstalled(worker, round, 0))
                take(WorkerIdle(worker, round))
            case 3:
                take(ResizeRequested(chance.randint(1, 4)))
            case 4 if waits:
                take(PatienceOver(waits.pop()))
            case 5 if len(members) > 1 and rendezvous.target > 1:
                take(WorkerAsksToLeave(chance.choice(members)))
            case _:
                pass
    quiet(rendezvous.target)


# The command of a round ---------------------------------------------------------------------------


def world(*agents: str) -> World:
    members = tuple(
        Member(worker=f"w{rank}", agent=agent, address=f"10.0.0.{agent}:0")
        for rank, agent in enumerate(agents)
    )
    shares = (1,) * len(agents)
    return World(round=1, members=members, donors={}, restore=False, shares=shares)


def test_seats_of_two_hosts() -> None:
    seats = [seat_of(world("1", "1", "2", "2"), f"w{rank}", 4) for rank in range(4)]
    assert [
        (seat.rank, seat.local_rank, seat.local_size, seat.group_rank, seat.groups)
        for seat in seats
        if seat is not None
    ] == [(0, 0, 2, 0, 2), (1, 1, 2, 0, 2), (2, 0, 2, 1, 2), (3, 1, 2, 1, 2)]


def test_surplus_worker_has_no_seat() -> None:
    assert size_of(3, 4) == 2
    assert seat_of(world("1", "2", "2"), "w2", 4) is None
    second = seat_of(world("1", "2", "2"), "w1", 4)
    assert second is not None
    assert (second.size, second.local_size, second.groups) == (2, 1, 2)


def test_launchers_on_nodes_find_each_other() -> None:
    seat = seat_of(world("1", "1", "2"), "w2", 3)
    assert seat is not None
    found = variables_of(
        seat,
        ["10.0.0.1:41", "10.0.0.1:42", "10.0.0.2:43"],
        host="10.0.0.1",
        port=41,
        start=2,
        maximum=3,
        run="r",
    )
    names = (
        "PET_NNODES",
        "PET_NODE_RANK",
        "PET_NPROC_PER_NODE",
        "PET_MASTER_ADDR",
        "PET_MASTER_PORT",
    )
    assert [found[name] for name in names] == ["2", "1", "1", "10.0.0.1", "41"]
    assert '"index": 2' in found["TF_CONFIG"]
