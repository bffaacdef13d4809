"""A hub is the root where all members are its own; else it passes complete arrivals on."""

from collections.abc import Sequence

import pytest

from brim.coordination.job.barrier import COMMIT
from brim.coordination.job.hub import Count, Expect, Flush, Hub, HubCommand, Stands
from brim.coordination.job.membership import Member, World
from brim.coordination.job.turns import TURN, Turns
from brim.errors import ProtocolError
from brim.wire.messages import (
    Arrive,
    ArriveTogether,
    CommitRecord,
    DropStep,
    InstallRound,
    Made,
    Released,
    ReleaseTogether,
    ToWorker,
    WriteNow,
)

NOW, WALL = 100.0, 1_000_100.0


def named(round: int, **agents: str) -> InstallRound:
    members = tuple(
        Member(worker=worker, agent=agent, address="") for worker, agent in agents.items()
    )
    shares = (1,) * len(members)
    return InstallRound(
        world=World(round=round, members=members, donors={}, restore=False, shares=shares)
    )


def hub_in(round: int, **agents: str) -> Hub:
    hub = Hub("A")
    hub.begin(named(round, **agents))
    return hub


def arrive(
    hub: Hub,
    worker: str,
    step: int,
    phase: str,
    payload: bytes = b"",
    *,
    round: int = 1,
    records: Sequence[Made] = (),
) -> list[HubCommand]:
    """The hub's commands, but for those on expected workers."""
    arrival = Arrive(round=round, step=step, phase=phase, payload=payload, made=list(records))
    commands = hub.arrived(worker, arrival, now=NOW, wall=WALL)
    return [command for command in commands if not isinstance(command, Expect)]


def released(
    *workers: str, step: int, phase: str, round: int = 1, hold: bool = False, payloads: object = ()
) -> list[ToWorker]:
    message = Released(round=round, step=step, phase=phase, hold=hold, payloads=list(payloads))  # type: ignore[call-overload]
    return [ToWorker(worker=worker, message=message) for worker in workers]


def counted(
    step: int, *payloads: bytes, round: int = 1, commit_time: float = WALL, is_held: bool = False
) -> Count:
    return Count(
        CommitRecord(round=round, step=step, at=commit_time, payloads=list(payloads), held=is_held)
    )


def test_a_lone_hub_records_commits_before_telling_workers() -> None:
    hub = hub_in(1, w1="A", w2="A")
    assert arrive(hub, "w1", 0, COMMIT, b"x") == []
    assert arrive(hub, "w2", 0, COMMIT, b"y") == [
        counted(1, b"x", b"y"),
        *released("w1", "w2", step=0, phase=COMMIT),
    ]


@pytest.mark.parametrize("phase", ["blocks"])
def test_what_concerns_one_host_is_released_here(phase: str) -> None:
    hub = hub_in(1, w1="A", w2="B")
    assert hub.members == ("w1",)
    assert arrive(hub, "w1", 0, phase) == released("w1", step=0, phase=phase, payloads=[b""])


@pytest.mark.parametrize("phase", [COMMIT, "gather", "end"])
def test_what_concerns_all_is_passed_on(phase: str) -> None:
    hub = hub_in(1, w1="A", w2="A", w3="B")
    assert arrive(hub, "w2", 0, phase, b"y") == []
    arrival = ArriveTogether(round=1, step=0, phase=phase, payloads=[b"x", b"y"])
    assert arrive(hub, "w1", 0, phase, b"x") == [arrival]


def test_releases_are_passed_on_within_their_round() -> None:
    hub = hub_in(2, w1="A", w2="A", w3="B")
    release = ReleaseTogether(round=2, step=3, phase="gather", hold=False, payloads=[b"x"])
    sent = [message for message in hub.release(release) if isinstance(message, ToWorker)]
    assert sent == released("w1", "w2", step=3, phase="gather", round=2, payloads=[b"x"])
    old = ReleaseTogether(round=1, step=3, phase="gather", hold=False, payloads=[b"x"])
    assert hub.release(old) == []


def test_rounds_and_roots_change() -> None:
    hub = hub_in(1, w1="A", w2="B")
    hub.hold(1)
    hub.begin(named(2, w1="A"))
    assert hub.round == 2
    assert arrive(hub, "w1", 0, COMMIT) == []
    assert arrive(hub, "w1", 0, COMMIT, round=2) == [
        counted(1, b"", round=2),
        *released("w1", step=0, phase=COMMIT, round=2),
    ]
    hub.hold(2)
    assert arrive(hub, "w1", 1, COMMIT, round=2) == [
        counted(2, b"", round=2, is_held=True),
        *released("w1", step=1, phase=COMMIT, round=2, hold=True),
        Flush(),
    ]


def test_a_new_round_is_announced_to_local_members() -> None:
    hub, message = Hub("A"), named(3, w1="A", w2="B", w3="A")
    sent = [message for message in hub.begin(message) if isinstance(message, ToWorker)]
    assert sent == [ToWorker(worker=worker, message=message) for worker in ("w1", "w3")]


def test_steps_reported_together_are_counted_singly() -> None:
    hub = hub_in(1, w1="A")
    hub.hold(1)
    records = [Made(4, NOW - 2.0, b"x"), Made(5, NOW - 1.0, b"y")]
    assert arrive(hub, "w1", 5, COMMIT, records=records) == [
        counted(5, b"x", commit_time=WALL - 2.0),
        counted(6, b"y", commit_time=WALL - 1.0, is_held=True),
        *released("w1", step=5, phase=COMMIT, hold=True),
        Flush(),
    ]


def test_the_times_of_commits_never_go_back() -> None:
    hub = hub_in(1, w1="A")
    arrive(hub, "w1", 0, COMMIT)
    first, *_ = arrive(hub, "w1", 1, COMMIT, records=[Made(1, NOW - 5.0, b"x")])
    assert first == counted(2, b"x", commit_time=WALL)


def test_behind_the_last_write_nobody_is_released() -> None:
    hub = hub_in(1, w1="A")
    request = WriteNow(recorded=3)
    assert ToWorker(worker="w1", message=request) in hub.write("w1", request)
    assert arrive(hub, "w1", 3, COMMIT) == []


def test_awaited_workers_are_reported_with_their_activity() -> None:
    hub = hub_in(1, w1="A", w2="A")
    arrival = Arrive(round=1, step=4, phase="blocks")
    hub.arrived("w1", arrival, now=NOW, wall=WALL)
    commands = hub.arrived("w2", arrival, now=NOW, wall=WALL)
    words = [command.doing.words for command in commands if isinstance(command, Expect)]
    assert words == ["adding up in step 5"] * 2
    (expected,) = hub.installed("w1", 1, 4)
    assert isinstance(expected, Expect)
    assert expected.doing.words == "in step 5"
    assert hub.installed("w1", 0, 4) == []


def test_behind_a_death_nobody_is_released() -> None:
    """Not even where the dead stands there: another host may tell of the step before this one."""
    hub = hub_in(1, w1="A", w2="A")
    assert arrive(hub, "w2", 4, COMMIT) == []
    hub.lose("w2")
    assert arrive(hub, "w1", 4, COMMIT) == []
    hub.begin(named(2, w1="A"))
    assert arrive(hub, "w1", 4, COMMIT, round=2) == [
        counted(5, b"", round=2),
        *released("w1", step=4, phase=COMMIT, round=2),
    ]


def test_survivors_of_a_death_drop_their_step_once() -> None:
    hub = hub_in(1, w1="A", w2="A", w3="A")
    drop = DropStep(round=1)
    assert hub.lose("w2") == [
        ToWorker(worker="w1", message=drop),
        Stands("w1"),
        ToWorker(worker="w3", message=drop),
        Stands("w3"),
    ]
    assert hub.lose("w3") == []
    hub.begin(named(2, w1="A", w4="A"))
    assert hub.lose("w4") == [ToWorker(worker="w1", message=DropStep(round=2)), Stands("w1")]


def test_steps_of_several_hosts_are_not_dropped() -> None:
    assert hub_in(1, w1="A", w2="A", w3="B").lose("w2") == []


def test_the_last_writer_is_left_alone() -> None:
    """It may compute a micro-batch ahead, which is no step of the round."""
    hub = hub_in(1, w1="A", w2="A")
    hub.write("w1", WriteNow(recorded=3))
    assert hub.lose("w2") == []


def test_members_without_steps_drop_none() -> None:
    hub = hub_in(1, w1="A", w2="A")
    hub.drops_steps = False
    assert hub.lose("w2") == []


def test_the_death_of_no_member_closes_nothing() -> None:
    hub = hub_in(1, w1="A")
    assert hub.lose("w2") == []
    assert arrive(hub, "w1", 4, COMMIT)[0] == counted(5, b"")


def test_the_dead_are_not_waited_for() -> None:
    """A master that has not heard of a death may name the dead again."""
    hub = hub_in(1, w1="A", w2="A")
    hub.lose("w2")

    def expected(commands: list[HubCommand]) -> list[str]:
        return [command.worker for command in commands if isinstance(command, Expect)]

    assert expected(hub.begin(named(2, w1="A", w2="A"))) == ["w1"]
    assert expected(hub.write("w2", WriteNow(recorded=3))) == []


def test_a_stranger_is_refused() -> None:
    hub = hub_in(1, w1="A", w2="B")
    with pytest.raises(ProtocolError):
        arrive(hub, "w2", 0, COMMIT)


def test_turn_commits_concern_one_member() -> None:
    hub = Hub("A")
    hub.turns = Turns(ahead=0)
    hub.begin(named(1, w1="A", w2="A"))
    assert arrive(hub, "w1", 4, TURN) == released("w1", step=4, phase=TURN)
    assert arrive(hub, "w1", 4, COMMIT, b"x") == [counted(5, b"x")]
    assert arrive(hub, "w2", 9, "epoch") == released("w1", step=4, phase=COMMIT)
    assert arrive(hub, "w1", 9, "epoch") == released(
        "w1", "w2", step=9, phase="epoch", payloads=[b"", b""]
    )
    hub.lose("w2")
    assert arrive(hub, "w1", 5, TURN) == []
    hub.begin(named(2, w1="A"))
    assert arrive(hub, "w1", 5, COMMIT, b"y", round=2) == [
        counted(6, b"y", round=2),
        *released("w1", step=5, phase=COMMIT, round=2),
    ]
