"""Membership, event by event: what goes in, and exactly which commands come out."""

import copy

import pytest

from brim.coordination.membership import (
    AgentJoined,
    AgentLost,
    CheckpointWritten,
    Command,
    Committed,
    Completed,
    Dismiss,
    End,
    Event,
    Held,
    Hold,
    Install,
    Kill,
    Outcome,
    Resize,
    StartWorker,
    Stop,
    UserFailed,
    WorkerAsksToLeave,
    WorkerGone,
    WorkerInstalled,
    WorkerReady,
    WriteCheckpoint,
)
from brim.coordination.rendezvous import Phase, Rendezvous
from coordination.cluster import validate


def job(
    target: int = 2, *, minimum: int = 1, spares: int = 0, agents: int = 1, losses: int = 8
) -> Rendezvous:
    return Rendezvous(
        minimum=minimum, target=target, spares=spares, expected_agents=agents, most_losses=losses
    )


def tell(rendezvous: Rendezvous, *events: Event) -> list[str]:
    """The commands that these events bring about, in short."""
    commands = []
    for event in events:
        commands += [short(command) for command in rendezvous.handle(event)]
        validate(rendezvous)
    return commands


def short(command: Command) -> str:
    match command:
        case StartWorker(agent, worker):
            return f"start {worker} on {agent}"
        case Hold(round):
            return f"hold {round}"
        case Install(world, cause):
            donors = "".join(f", {donor} gives {needy}" for needy, donor in world.donors.items())
            restore = ", restore" if world.restore else ""
            named = " ".join(member.worker for member in world.members)
            return f"round {world.round}: {named}{donors}{restore} ({cause})"
        case WriteCheckpoint(worker):
            return f"write {worker}"
        case Dismiss(worker):
            return f"dismiss {worker}"
        case Kill(worker):
            return f"kill {worker}"
        case End(outcome, reason):
            return f"{outcome}: {reason}"


def ready(*numbers: int) -> list[Event]:
    return [WorkerReady(f"w{number}", f"h:{number}") for number in numbers]


def gone(*numbers: int) -> list[Event]:
    return [WorkerGone(f"w{number}", "signal 9") for number in numbers]


def installed(rendezvous: Rendezvous, step: int = 0) -> None:
    round = rendezvous.round
    tell(rendezvous, *(WorkerInstalled(member.id, round, step) for member in rendezvous.members))


def running(target: int = 2, *, spares: int = 0, losses: int = 8) -> Rendezvous:
    """A job in which all of so many workers have done a step in round 1."""
    rendezvous = job(target, minimum=target, spares=spares, losses=losses)
    tell(rendezvous, AgentJoined("A"), *ready(*range(1, target + 1)))
    installed(rendezvous)
    tell(rendezvous, Committed(1, 1))
    if spares:
        tell(rendezvous, *ready(*range(target + 1, target + spares + 1)))
    return rendezvous


# Starting -----------------------------------------------------------------------------------------------------


def test_a_gang_starts_once_its_minimum_is_ready() -> None:
    rendezvous = job(3, minimum=2)
    assert tell(rendezvous, AgentJoined("A")) == ["start w1 on A", "start w2 on A", "start w3 on A"]
    assert tell(rendezvous, *ready(2)) == []
    assert tell(rendezvous, *ready(1)) == ["round 1: w1 w2, w1 gives w2, restore (start)"]
    assert tell(rendezvous, *ready(3)) == ["hold 1"]
    installed(rendezvous)
    assert tell(rendezvous, Held(1, 1)) == ["round 2: w1 w2 w3, w1 gives w3 (w3 joins)"]


def test_workers_wait_for_all_agents_and_are_spread() -> None:
    rendezvous = job(3, minimum=3, agents=2)
    assert tell(rendezvous, AgentJoined("A")) == []
    assert tell(rendezvous, AgentJoined("B")) == ["start w1 on A", "start w2 on B", "start w3 on A"]
    assert tell(rendezvous, *ready(1, 2, 3)) == [
        "round 1: w1 w3 w2, w1 gives w3, w1 gives w2, restore (start)"
    ]


def test_newcomers_are_shared_among_donors() -> None:
    rendezvous = running(2)
    assert tell(rendezvous, Resize(4)) == ["start w3 on A", "start w4 on A"]
    assert tell(rendezvous, *ready(3, 4)) == ["hold 1"]
    assert tell(rendezvous, Held(1, 2)) == [
        "round 2: w1 w2 w3 w4, w1 gives w3, w2 gives w4 (resize to 4, w3 joins, w4 joins)"
    ]


def test_an_agent_that_was_here_is_not_waited_for() -> None:
    rendezvous = job(2, minimum=2, agents=2)
    tell(rendezvous, AgentJoined("A"), AgentJoined("B"), *ready(1))
    assert tell(rendezvous, AgentLost("B", "cut off")) == ["start w3 on A"]


def test_a_smaller_target_makes_a_smaller_gang() -> None:
    rendezvous = job(3, minimum=3)
    tell(rendezvous, AgentJoined("A"), *ready(1, 2))
    assert tell(rendezvous, Resize(2))[0].startswith("round 1: w1 w2")
    assert tell(rendezvous, *ready(3)) == ["dismiss w3"]


def test_spares_are_started_behind_the_first_step() -> None:
    rendezvous = job(1, spares=1)
    assert tell(rendezvous, AgentJoined("A")) == ["start w1 on A"]
    assert tell(rendezvous, *ready(1)) == ["round 1: w1, restore (start)"]
    assert tell(rendezvous, Committed(1, 1)) == ["start w2 on A"]
    assert tell(rendezvous, *ready(2), Committed(1, 2)) == []


# Losses -------------------------------------------------------------------------------------------------------


def test_a_loss_without_a_spare() -> None:
    rendezvous = running(2)
    assert tell(rendezvous, *gone(1)) == ["round 2: w2 (w1 lost (signal 9))", "start w3 on A"]
    assert tell(rendezvous, *ready(3)) == ["hold 2"]
    assert tell(rendezvous, Held(2, 2)) == ["round 3: w2 w3, w2 gives w3 (w3 joins)"]


def test_a_loss_with_a_spare() -> None:
    rendezvous = running(2, spares=1)
    assert tell(rendezvous, *gone(1)) == ["round 2: w2 w3, w2 gives w3 (w1 lost (signal 9), w3 joins)"]
    assert tell(rendezvous, Committed(2, 2)) == ["start w4 on A"]


def test_a_newcomer_counts_as_a_source_only_once_it_has_the_state() -> None:
    rendezvous = running(1)
    tell(rendezvous, Resize(2), *ready(2), Held(1, 2))
    assert tell(rendezvous, WorkerInstalled("w2", 1, 2), *gone(1))[0] == (
        "round 3: w2, restore (w1 lost (signal 9))"
    )


def test_a_newcomer_that_has_the_state_gives_it_on() -> None:
    rendezvous = running(1)
    tell(rendezvous, Resize(2), *ready(2), Held(1, 2), WorkerInstalled("w2", 2, 2))
    assert tell(rendezvous, *gone(1))[0] == "round 3: w2 (w1 lost (signal 9))"


def test_everyone_lost_gathers_and_restores() -> None:
    rendezvous = running(2)
    tell(rendezvous, *gone(1))
    assert tell(rendezvous, *gone(2)) == ["start w4 on A"]
    assert rendezvous.phase is Phase.GATHERING
    assert tell(rendezvous, *gone(3)) == ["start w5 on A"]
    assert tell(rendezvous, *ready(4))[0].startswith("round 3: w4, restore")


def test_a_crash_loop_is_given_up_and_a_step_forgives() -> None:
    rendezvous = running(1, losses=2)
    tell(rendezvous, *gone(1, 2))
    tell(rendezvous, *ready(3), Committed(2, 2))
    tell(rendezvous, *gone(3), *ready(4), *gone(4))
    assert tell(rendezvous, *gone(5)) == [
        "failed: 3 workers in a row died before a step was done; the last: signal 9"
    ]


def test_one_agent_of_two_is_lost() -> None:
    rendezvous = job(2, minimum=2, agents=2)
    tell(rendezvous, AgentJoined("A"), AgentJoined("B"), *ready(1, 2))
    installed(rendezvous)
    assert tell(rendezvous, AgentLost("A", "silent")) == [
        "round 2: w2 (agent A lost (silent))",
        "start w3 on B",
    ]
    assert tell(rendezvous, AgentLost("A", "silent")) == []
    assert tell(rendezvous, AgentLost("B", "silent")) == [
        "failed: the last agent of this run is gone: silent"
    ]


# Leaving ------------------------------------------------------------------------------------------------------


def test_sigterm_leaves_at_a_boundary() -> None:
    rendezvous = running(2)
    assert tell(rendezvous, WorkerAsksToLeave("w1"), WorkerAsksToLeave("w1")) == ["hold 1"]
    assert tell(rendezvous, Held(1, 2)) == ["round 2: w2 (w1 leaves)", "dismiss w1"]
    assert tell(rendezvous, *gone(1)) == []
    assert rendezvous.target == 1


def test_a_leaver_stays_through_a_loss_in_mid_step() -> None:
    rendezvous = running(3)
    assert tell(rendezvous, WorkerAsksToLeave("w1")) == ["hold 1"]
    assert tell(rendezvous, *gone(2))[:2] == ["round 2: w1 w3 (w1 leaves, w2 lost (signal 9))", "hold 2"]
    assert tell(rendezvous, Held(2, 2)) == ["round 3: w3 (change of members)", "dismiss w1"]


def test_the_last_worker_leaves_a_checkpoint() -> None:
    rendezvous = running(1)
    assert tell(rendezvous, WorkerAsksToLeave("w1")) == ["hold 1"]
    assert tell(rendezvous, Held(1, 2)) == ["write w1"]
    assert tell(rendezvous, CheckpointWritten("w1")) == ["dismiss w1"]
    assert tell(rendezvous, *gone(1)) == ["suspended: its last worker, w1, was asked to leave"]


def test_only_leavers_have_the_state() -> None:
    rendezvous = running(1)
    tell(rendezvous, Resize(2))
    assert tell(rendezvous, WorkerAsksToLeave("w1")) == ["hold 1"]
    assert tell(rendezvous, Held(1, 2)) == ["round 2: w1 (resize to 2, w1 leaves)", "hold 2"]
    assert tell(rendezvous, *ready(2)) == []
    assert tell(rendezvous, Held(2, 3)) == ["round 3: w1 w2, w1 gives w2 (w2 joins)", "hold 3"]
    installed(rendezvous, 3)
    assert tell(rendezvous, Held(3, 4)) == ["round 4: w2 (change of members)", "dismiss w1"]


def test_a_spare_that_leaves_is_named_in_no_round() -> None:
    rendezvous = running(2, spares=1)
    assert tell(rendezvous, WorkerAsksToLeave("w3")) == ["dismiss w3"]
    assert tell(rendezvous, *gone(1)) == ["round 2: w2 (w1 lost (signal 9))", "start w4 on A"]
    assert tell(rendezvous, *gone(3)) == []


# Resizing -----------------------------------------------------------------------------------------------------


def test_resize_down() -> None:
    rendezvous = running(3)
    assert tell(rendezvous, Resize(1)) == ["hold 1"]
    assert tell(rendezvous, Held(1, 2)) == ["round 2: w1 (resize to 1)", "dismiss w2", "dismiss w3"]
    assert tell(rendezvous, *gone(2, 3), Committed(2, 3)) == []


def test_resize_down_lets_go_who_is_not_needed() -> None:
    rendezvous = running(1, spares=1)
    tell(rendezvous, Resize(3), *ready(3))
    assert tell(rendezvous, Resize(1)) == ["dismiss w3"]


@pytest.mark.parametrize("count", [1, 4])
def test_nothing_is_resized_once_the_job_stops(count: int) -> None:
    rendezvous = running(2)
    tell(rendezvous, Stop("asked"))
    assert tell(rendezvous, Resize(count), Held(1, 2), Resize(count)) == ["write w1"]


# Stopping and ending ------------------------------------------------------------------------------------------


def test_stop_before_the_first_round() -> None:
    rendezvous = job(2, minimum=2)
    tell(rendezvous, AgentJoined("A"), *ready(1))
    assert tell(rendezvous, Stop("asked")) == ["dismiss w1", "dismiss w2"]
    assert tell(rendezvous, *gone(1), *ready(2)) == ["dismiss w2"]
    assert tell(rendezvous, *gone(2)) == ["suspended: asked"]


def test_stop_before_any_agent() -> None:
    assert tell(job(), Stop("asked")) == ["suspended: asked"]


def test_stop_while_running_survives_a_loss() -> None:
    rendezvous = running(2)
    assert tell(rendezvous, Stop("asked"), Stop("again")) == ["hold 1"]
    assert tell(rendezvous, *gone(1)) == ["round 2: w2 (w1 lost (signal 9))", "hold 2"]
    assert tell(rendezvous, Held(2, 2), CheckpointWritten("w2"), *gone(2)) == [
        "write w2",
        "dismiss w2",
        "suspended: asked",
    ]


def test_a_loss_while_writing_asks_another() -> None:
    rendezvous = running(2)
    assert tell(rendezvous, Stop("asked"), Held(1, 2)) == ["hold 1", "write w1"]
    assert tell(rendezvous, *gone(1)) == ["write w2"]
    assert tell(rendezvous, *gone(2)) == ["suspended: asked; its last members died before the checkpoint"]


def test_completion_dismisses_everyone() -> None:
    rendezvous = running(2, spares=1)
    assert tell(rendezvous, Completed("w1")) == ["dismiss w1", "dismiss w2", "dismiss w3"]
    assert tell(rendezvous, Stop("late"), *gone(2, 3)) == []
    assert tell(rendezvous, *gone(1)) == ["done: all steps are committed"]


def test_who_never_started_is_let_go_before_the_end() -> None:
    rendezvous = running(1)
    assert tell(rendezvous, Resize(2), Completed("w1")) == ["start w2 on A", "dismiss w1", "dismiss w2"]
    assert tell(rendezvous, *gone(1), *ready(2)) == ["dismiss w2"]
    assert tell(rendezvous, *gone(2)) == ["done: all steps are committed"]


def test_a_failure_of_the_user_kills_everyone_and_stays_a_failure() -> None:
    rendezvous = running(2)
    assert tell(rendezvous, UserFailed("w2")) == ["kill w1", "kill w2"]
    assert tell(rendezvous, Completed("w1"), UserFailed("w1")) == []
    assert tell(rendezvous, *gone(1, 2)) == ["failed: w2 failed"]
    assert rendezvous.phase is Phase.ENDED


def test_the_last_agent_may_go_while_the_job_ends() -> None:
    rendezvous = running(2)
    tell(rendezvous, Completed("w1"))
    assert rendezvous.handle(AgentLost("A", "cut off")) == [End(Outcome.DONE, "all steps are committed")]


# What has no effect -------------------------------------------------------------------------------------------

LATE: list[Event] = [
    WorkerReady("w1", "h:1"),
    WorkerInstalled("w1", 2, 1),
    WorkerInstalled("w2", 1, 1),
    WorkerAsksToLeave("w1"),
    WorkerGone("w1", "signal 9"),
    Held(1, 1),
    AgentLost("Z", "never seen"),
    CheckpointWritten("w1"),
]


@pytest.mark.parametrize("event", LATE, ids=str)
def test_the_dead_and_past_rounds_have_no_effect(event: Event) -> None:
    rendezvous = running(2)
    tell(rendezvous, *gone(1))
    before = copy.deepcopy(rendezvous)
    assert tell(rendezvous, event) == []
    assert rendezvous == before


@pytest.mark.parametrize(
    "event", [*LATE, AgentJoined("B"), Stop("late"), Resize(3), Completed("w1")], ids=str
)
def test_nothing_happens_after_the_end(event: Event) -> None:
    rendezvous = running(1)
    tell(rendezvous, Completed("w1"), *gone(1))
    before = copy.deepcopy(rendezvous)
    assert tell(rendezvous, event) == []
    assert rendezvous == before
