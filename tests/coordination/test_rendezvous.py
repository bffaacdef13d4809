"""Membership, event by event: the input, and exactly which commands come out."""

import copy

import pytest

from brim.coordination.job.attempts import Attempts
from brim.coordination.job.membership import (
    AgentDeparts,
    AgentJoined,
    AgentLost,
    AgentReplaced,
    AllHeld,
    AwaitOthers,
    CheckpointCompleted,
    Command,
    Committed,
    Dismiss,
    End,
    Event,
    GiveUpOn,
    Hold,
    Hurry,
    Install,
    JobCompleted,
    Kill,
    LetGo,
    Member,
    PatienceOver,
    RendezvousPhase,
    ResizeRequested,
    RunOutcome,
    StartWorker,
    Stop,
    Straggling,
    UserFailed,
    WorkerAsksToLeave,
    WorkerCutOff,
    WorkerDisagrees,
    WorkerGone,
    WorkerIdle,
    WorkerInstalled,
    WorkerReady,
    World,
    WriteCheckpoint,
)
from brim.coordination.job.rendezvous import Rendezvous
from coordination.cluster import validate


def job(
    target: int = 2,
    *,
    minimum: int = 1,
    servers: int = 0,
    spares: int = 0,
    agents: int = 1,
    parts: int = 0,
    most: int = 1000,
) -> Rendezvous:
    return Rendezvous(
        minimum=minimum,
        target=target,
        servers=servers,
        spares=spares,
        expected_agents=agents,
        parts=parts,
        attempts=Attempts(young=3, limit=most),
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
        case StartWorker(agent, worker, delay):
            return f"start {worker} on {agent}" + (f" in {delay:.0f} s" if delay else "")
        case Hold(round):
            return f"hold {round}"
        case AwaitOthers(round):
            return f"await others in {round}"
        case Install(world, cause, is_still):
            donors = "".join(f", {donor} gives {needy}" for needy, donor in world.donors.items())
            restore = ", restore" if world.restore else ""
            named = " ".join(
                member.worker if share else f"+{member.worker}"
                for member, share in zip(world.members, world.shares, strict=True)
            )
            return (
                f"{'still ' if is_still else ''}round {world.round}: {named}{donors}{restore} "
                f"({cause})"
            )
        case WriteCheckpoint(worker):
            return f"write {worker}"
        case Dismiss(worker):
            return f"dismiss {worker}"
        case Kill(worker, reason):
            return f"kill {worker}" + (f" ({reason})" if reason else "")
        case GiveUpOn(agent, deaths, reason, target):
            return f"give up on {agent} after {deaths} ({reason}), go on with {target}"
        case LetGo(agent, well):
            return f"let {agent} go" + ("" if well else " as failed")
        case End(outcome, reason):
            return f"{outcome}: {reason}"


def ready(*numbers: int) -> list[Event]:
    return [WorkerReady(f"w{number}", f"h:{number}") for number in numbers]


def gone(*numbers: int) -> list[Event]:
    return [WorkerGone(f"w{number}", "signal 9") for number in numbers]


def installed(rendezvous: Rendezvous, step: int = 0) -> None:
    round = rendezvous.round
    tell(
        rendezvous,
        *(WorkerInstalled(member.id, round, step) for member in rendezvous.roster.members),
    )


def running(
    target: int = 2, *, servers: int = 0, spares: int = 0, parts: int = 0, maximum: int = 1000
) -> Rendezvous:
    """A job in which all of so many workers, and servers behind them,
    have done a step in round 1.
    """
    rendezvous = job(
        target, minimum=target, servers=servers, spares=spares, parts=parts, most=maximum
    )
    first = target + servers
    tell(rendezvous, AgentJoined("A"), *ready(*range(1, first + 1)))
    installed(rendezvous)
    tell(rendezvous, Committed(1, 1))
    if spares:
        tell(rendezvous, *ready(*range(first + 1, first + spares + 1)))
    return rendezvous


# Starting -----------------------------------------------------------------------------------------


def test_a_gang_starts_once_its_minimum_is_ready() -> None:
    rendezvous = job(3, minimum=2)
    assert tell(rendezvous, AgentJoined("A")) == ["start w1 on A", "start w2 on A", "start w3 on A"]
    assert tell(rendezvous, *ready(2)) == []
    assert tell(rendezvous, *ready(1)) == ["round 1: w1 w2, w1 gives w2, restore (start)"]
    assert tell(rendezvous, *ready(3)) == ["hold 1"]
    installed(rendezvous)
    assert tell(rendezvous, AllHeld(1, 1)) == ["round 2: w1 w2 w3, w1 gives w3 (w3 joins)"]


def test_workers_wait_for_all_agents_and_are_spread() -> None:
    rendezvous = job(3, minimum=3, agents=2)
    assert tell(rendezvous, AgentJoined("A")) == []
    assert tell(rendezvous, AgentJoined("B")) == ["start w1 on A", "start w2 on B", "start w3 on A"]
    assert tell(rendezvous, *ready(1, 2, 3)) == [
        "round 1: w1 w3 w2, w1 gives w3, w1 gives w2, restore (start)"
    ]


def test_newcomers_are_shared_among_donors() -> None:
    rendezvous = running(2)
    assert tell(rendezvous, ResizeRequested(4)) == ["start w3 on A", "start w4 on A"]
    assert tell(rendezvous, *ready(3, 4)) == ["await others in 1", "hold 1"]
    assert tell(rendezvous, AllHeld(1, 2)) == [
        "round 2: w1 w2 w3 w4, w1 gives w3, w2 gives w4 (resize to 4, w3 joins, w4 joins)"
    ]


def test_a_departed_agent_is_not_awaited() -> None:
    rendezvous = job(2, minimum=2, agents=2)
    tell(rendezvous, AgentJoined("A"), AgentJoined("B"), *ready(1))
    assert tell(rendezvous, AgentLost("B", "cut off")) == ["start w3 on A"]


def test_a_replaced_agent_loses_only_its_own_workers() -> None:
    rendezvous = job(2, minimum=2, agents=2)
    tell(rendezvous, AgentJoined("A"), AgentJoined("B"), *ready(1, 2))
    installed(rendezvous)
    assert tell(rendezvous, AgentReplaced("A")) == [
        "round 2: w2 (agent A was killed)",
        "start w3 on A",
    ]
    installed(rendezvous)
    assert tell(rendezvous, *ready(3)) == ["hold 2"]
    assert tell(rendezvous, AllHeld(2, 5)) == ["round 3: w3 w2, w2 gives w3 (w3 joins)"]


def test_replacing_the_only_agent_keeps_the_job_going() -> None:
    rendezvous = running(2)
    assert tell(rendezvous, AgentReplaced("A")) == ["start w3 on A", "start w4 on A"]
    assert tell(rendezvous, *ready(3))[0].startswith(
        "round 2: w3, restore (agent A was killed, w3 joins)"
    )


def test_agents_may_be_replaced_while_a_job_ends() -> None:
    rendezvous = running(2)
    tell(rendezvous, JobCompleted("w1"))
    assert rendezvous.handle(AgentReplaced("A")) == [
        End(RunOutcome.DONE, "all steps are committed")
    ]


def test_a_smaller_target_makes_a_smaller_gang() -> None:
    rendezvous = job(3, minimum=3)
    tell(rendezvous, AgentJoined("A"), *ready(1, 2))
    assert tell(rendezvous, ResizeRequested(2))[0].startswith("round 1: w1 w2")
    assert tell(rendezvous, *ready(3)) == ["dismiss w3"]


def test_spares_are_started_behind_the_first_step() -> None:
    rendezvous = job(1, spares=1)
    assert tell(rendezvous, AgentJoined("A")) == ["start w1 on A"]
    assert tell(rendezvous, *ready(1)) == ["round 1: w1, restore (start)"]
    assert tell(rendezvous, Committed(1, 1)) == ["start w2 on A"]
    assert tell(rendezvous, *ready(2), Committed(1, 2)) == []


# Losses -------------------------------------------------------------------------------------------


def test_a_loss_without_a_spare() -> None:
    rendezvous = running(2)
    assert tell(rendezvous, *gone(1)) == ["round 2: w2 (w1 lost (signal 9))", "start w3 on A"]
    assert tell(rendezvous, *ready(3)) == ["hold 2"]
    assert tell(rendezvous, AllHeld(2, 2)) == ["round 3: w2 w3, w2 gives w3 (w3 joins)"]


def test_a_loss_with_a_spare() -> None:
    rendezvous = running(2, spares=1)
    assert tell(rendezvous, *gone(1)) == [
        "round 2: w2 w3, w2 gives w3 (w1 lost (signal 9), w3 joins)"
    ]
    assert tell(rendezvous, Committed(2, 2)) == ["start w4 on A"]


def test_newcomers_become_donors_after_receiving_the_state() -> None:
    rendezvous = running(1)
    tell(rendezvous, ResizeRequested(2), *ready(2), AllHeld(1, 2))
    assert tell(rendezvous, WorkerInstalled("w2", 1, 2), *gone(1))[0] == (
        "round 3: w2, restore (w1 lost (signal 9))"
    )


def test_a_newcomer_passes_the_state_on() -> None:
    rendezvous = running(1)
    tell(rendezvous, ResizeRequested(2), *ready(2), AllHeld(1, 2), WorkerInstalled("w2", 2, 2))
    assert tell(rendezvous, *gone(1))[0] == "round 3: w2 (w1 lost (signal 9))"


def test_everyone_lost_gathers_and_restores() -> None:
    rendezvous = running(2)
    tell(rendezvous, *gone(1))
    assert tell(rendezvous, *gone(2)) == ["start w4 on A"]
    assert rendezvous.phase is RendezvousPhase.GATHERING
    assert tell(rendezvous, *gone(3)) == ["start w5 on A in 1 s"]
    assert tell(rendezvous, *ready(4))[0].startswith("round 3: w4, restore")


# Hosts on which workers die young -----------------------------------------------------------------


def steps(rendezvous: Rendezvous, first: int, count: int) -> list[str]:
    return tell(
        rendezvous, *(Committed(rendezvous.round, first + number) for number in range(count))
    )


def test_repeated_early_deaths_delay_then_exclude_a_host() -> None:
    rendezvous = job(1, most=6)
    tell(rendezvous, AgentJoined("A"))
    for number, start in enumerate(["", " in 1 s", " in 2 s", " in 4 s", " in 8 s"], start=1):
        assert tell(rendezvous, *gone(number)) == [f"start w{number + 1} on A{start}"]
    assert tell(rendezvous, *gone(6)) == ["failed: 6 in a row died young on A, the last: signal 9"]


def test_repeated_deaths_after_few_steps_count_as_early() -> None:
    rendezvous = running(1, maximum=3)
    tell(rendezvous, *gone(1))
    for number in (2, 3):
        tell(rendezvous, *ready(number))
        installed(rendezvous, 1)
        steps(rendezvous, 1, 2)
        commands = tell(rendezvous, *gone(number))
    assert commands[0] == "failed: 3 in a row died young on A, the last: signal 9"


def test_a_long_life_clears_the_host_record() -> None:
    rendezvous = running(2, maximum=2)
    for number in range(1, 20):
        steps(rendezvous, 1, 3)
        assert tell(rendezvous, *gone(number))[1:] == [f"start w{number + 2} on A"]
        tell(rendezvous, *ready(number + 2), AllHeld(rendezvous.round, 9))
        installed(rendezvous, 9)


def test_simultaneous_deaths_count_once() -> None:
    rendezvous = running(4, spares=1, maximum=2)
    assert tell(rendezvous, *gone(1, 2, 3, 4, 5))[-1] == "start w9 on A"
    assert tell(rendezvous, *gone(6))[-1] == "give up on A after 2 (signal 9), go on with 3"


def test_the_missing_are_started_elsewhere() -> None:
    rendezvous = job(2, minimum=2, agents=2, most=2)
    tell(rendezvous, AgentJoined("A"), AgentJoined("B"), *ready(1, 2))
    installed(rendezvous)
    assert tell(rendezvous, *gone(2)) == ["round 2: w1 (w2 lost (signal 9))", "start w3 on B"]
    assert tell(rendezvous, *gone(3)) == [
        "start w4 on A",
        "give up on B after 2 (signal 9), go on with 2",
    ]
    tell(rendezvous, *ready(4), AllHeld(2, 1))
    installed(rendezvous, 1)
    assert tell(rendezvous, *gone(4))[-1] == "start w5 on A"


def test_excluding_every_host_shrinks_the_job_until_resized() -> None:
    rendezvous = running(2, maximum=2)
    tell(rendezvous, *gone(2))
    assert tell(rendezvous, *gone(3)) == ["give up on A after 2 (signal 9), go on with 1"]
    installed(rendezvous, 1)
    assert steps(rendezvous, 2, 2) == []
    assert rendezvous.target == 1
    assert tell(rendezvous, ResizeRequested(2)) == ["start w4 on A"]


def test_excluded_hosts_replace_long_lived_last_workers() -> None:
    rendezvous = running(2, maximum=2)
    steps(rendezvous, 2, 3)
    tell(rendezvous, *gone(2))
    installed(rendezvous, 4)
    assert tell(rendezvous, *gone(3)) == ["start w4 on A"]
    assert tell(rendezvous, *gone(4)) == ["give up on A after 2 (signal 9), go on with 1"]
    assert tell(rendezvous, *gone(1)) == ["start w5 on A"]
    assert tell(rendezvous, *gone(5)) == ["start w6 on A"]
    assert tell(rendezvous, *gone(6)) == ["failed: 2 in a row died young on A, the last: signal 9"]


def test_a_commit_after_the_end_clears_no_host() -> None:
    rendezvous = running(1, servers=1, maximum=1)
    steps(rendezvous, 2, 1)
    assert tell(rendezvous, *gone(1))[0] == "kill w2"
    steps(rendezvous, 1, 3)
    assert rendezvous.attempts.given_up("A")


def test_a_spare_that_cannot_be_had_shrinks_nothing() -> None:
    rendezvous = running(2, spares=1, maximum=2)
    assert tell(rendezvous, *gone(3)) == ["start w4 on A"]
    assert tell(rendezvous, *gone(4)) == ["give up on A after 2 (signal 9), go on with 2"]


def test_surplus_workers_of_excluded_hosts_are_released() -> None:
    """Seed 13715: a surplus server was kept, and was of no use."""
    rendezvous = job(2, servers=2, most=1)
    tell(rendezvous, AgentJoined("A"), ResizeRequested(2, servers=1), ResizeRequested(3))
    tell(rendezvous, *ready(3, 1), *ready(2, 4))
    commands = tell(rendezvous, *gone(2))
    assert commands == ["dismiss w4", "give up on A after 1 (signal 9), go on with 1"]


def test_the_first_round_needs_its_minimum() -> None:
    rendezvous = job(3, minimum=2, most=1)
    tell(rendezvous, AgentJoined("A"), *ready(1))
    assert tell(rendezvous, *gone(2))[-1] == "give up on A after 1 (signal 9), go on with 2"
    assert tell(rendezvous, *ready(3)) == ["round 1: w1 w3, w1 gives w3, restore (start)"]
    rendezvous = job(2, minimum=2, most=1)
    tell(rendezvous, AgentJoined("A"), *ready(1))
    assert tell(rendezvous, *gone(2))[0] == "kill w1"


def test_workers_asked_to_leave_do_not_die_early() -> None:
    rendezvous = running(2, maximum=1)
    tell(rendezvous, WorkerAsksToLeave("w2"))
    assert tell(rendezvous, *gone(2)) == ["round 2: w1 (w2 leaves, w2 lost (signal 9))"]


# Newcomers that do not agree ----------------------------------------------------------------------


def newcomers_of(commands: list[Command]) -> tuple[str, ...]:
    (world,) = (command.world for command in commands if isinstance(command, Install))
    return world.newcomers


def test_disagreeing_newcomers_are_rejected_without_replacement() -> None:
    rendezvous = running(1)
    tell(rendezvous, ResizeRequested(3), *ready(2, 3))
    assert newcomers_of(rendezvous.handle(AllHeld(1, 2))) == ("w2", "w3")
    installed(rendezvous, 2)
    assert tell(rendezvous, WorkerDisagrees("w2"), WorkerDisagrees("w3")) == [
        "kill w2 (it does not agree with the others)",
        "kill w3 (it does not agree with the others)",
    ]
    commands = tell(rendezvous, *gone(2, 3))
    assert commands[-1] == "round 4: w1 (w3 lost (signal 9))"
    assert rendezvous.target == 1
    # Whoever asks again gets another try.
    assert tell(rendezvous, ResizeRequested(2))[-1] == "start w4 on A"


def test_the_place_of_a_disagreeing_newcomer_stays_empty() -> None:
    rendezvous = running(1)
    tell(rendezvous, ResizeRequested(2, {"A": 2}), *ready(2), AllHeld(1, 2))
    installed(rendezvous, 2)
    tell(rendezvous, WorkerDisagrees("w2"))
    assert tell(rendezvous, *gone(2)) == ["round 3: w1 (w2 lost (signal 9))"]
    assert (rendezvous.target, rendezvous.roster.places.wanted) == (1, {"A": 1})


@pytest.mark.parametrize("worker", ["w1", "w2"])
def test_a_job_whose_old_members_disagree_fails(worker: str) -> None:
    rendezvous = running(2)
    assert not rendezvous.can_do_without(worker)
    assert tell(rendezvous, WorkerDisagrees(worker)) == ["kill w1", "kill w2"]


def test_a_job_whose_first_members_disagree_fails() -> None:
    rendezvous = job(2)
    tell(rendezvous, AgentJoined("A"), *ready(1, 2))
    installed(rendezvous)
    assert not rendezvous.can_do_without("w2")


# Shares -------------------------------------------------------------------------------------------


def shares_of(command: Command) -> tuple[int, ...]:
    assert isinstance(command, Install)
    return command.world.shares


def test_shares_follow_speed_at_a_boundary() -> None:
    rendezvous = running(4, parts=8)
    slow = Straggling(tuple((f"w{n}", 3.0 if n == 4 else 1.0) for n in (1, 2, 3, 4)), "w4 is slow")
    assert tell(rendezvous, slow) == ["hold 1"]
    commands = rendezvous.handle(AllHeld(1, 2))
    assert [short(command) for command in commands] == ["round 2: w1 w2 w3 w4 (w4 is slow)"]
    assert shares_of(commands[0]) == (3, 2, 2, 1)
    # Of a newcomer nothing is known; who is gone is forgotten.
    assert shares_of(rendezvous.handle(WorkerGone("w1", "signal 9"))[0]) == (4, 3, 1)
    tell(rendezvous, *ready(5))
    assert shares_of(rendezvous.handle(AllHeld(3, 2))[0]) == (3, 2, 1, 2)
    assert shares_of(rendezvous.handle(WorkerGone("w4", "signal 9"))[0]) == (3, 3, 2)


def test_shares_stay_even_without_known_stragglers() -> None:
    for parts, want in ((8, (2, 3, 3)), (0, (1, 1, 1))):
        rendezvous = job(3, minimum=3, parts=parts)
        tell(rendezvous, AgentJoined("A"), *ready(1, 2))
        assert shares_of(rendezvous.handle(WorkerReady("w3", "h:3"))[0]) == want


def test_a_job_that_stops_shares_nothing_out() -> None:
    rendezvous = running(2, parts=8)
    tell(rendezvous, Stop("asked"))
    assert tell(rendezvous, Straggling((("w1", 1.0), ("w2", 9.0)), "w2 is slow")) == []


# One host of several ------------------------------------------------------------------------------


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


# Leaving ------------------------------------------------------------------------------------------


def test_sigterm_leaves_at_a_boundary() -> None:
    rendezvous = running(2)
    assert tell(rendezvous, WorkerAsksToLeave("w1"), WorkerAsksToLeave("w1")) == ["hold 1"]
    assert tell(rendezvous, AllHeld(1, 2)) == ["round 2: w2 (w1 leaves)", "dismiss w1"]
    assert tell(rendezvous, *gone(1)) == []
    assert rendezvous.target == 1


def test_leavers_stay_after_losses_within_steps() -> None:
    rendezvous = running(3)
    assert tell(rendezvous, WorkerAsksToLeave("w1")) == ["hold 1"]
    assert tell(rendezvous, *gone(2))[:2] == [
        "round 2: w1 w3 (w1 leaves, w2 lost (signal 9))",
        "hold 2",
    ]
    assert tell(rendezvous, AllHeld(2, 2)) == ["round 3: w3 (change of members)", "dismiss w1"]


def test_the_last_worker_leaves_a_checkpoint() -> None:
    rendezvous = running(1)
    assert tell(rendezvous, WorkerAsksToLeave("w1")) == ["hold 1"]
    assert tell(rendezvous, AllHeld(1, 2)) == ["write w1"]
    assert tell(rendezvous, CheckpointCompleted("w1")) == ["dismiss w1"]
    assert tell(rendezvous, *gone(1)) == ["suspended: its last worker, w1, was asked to leave"]


def test_only_leavers_have_the_state() -> None:
    rendezvous = running(1)
    tell(rendezvous, ResizeRequested(2))
    assert tell(rendezvous, WorkerAsksToLeave("w1")) == ["hold 1"]
    assert tell(rendezvous, AllHeld(1, 2)) == ["round 2: w1 (resize to 2, w1 leaves)", "hold 2"]
    assert tell(rendezvous, *ready(2)) == []
    assert tell(rendezvous, AllHeld(2, 3)) == ["round 3: w1 w2, w1 gives w2 (w2 joins)", "hold 3"]
    installed(rendezvous, 3)
    assert tell(rendezvous, AllHeld(3, 4)) == ["round 4: w2 (change of members)", "dismiss w1"]


def test_a_leaving_spare_joins_no_round() -> None:
    rendezvous = running(2, spares=1)
    assert tell(rendezvous, WorkerAsksToLeave("w3")) == ["dismiss w3"]
    assert tell(rendezvous, *gone(1)) == ["round 2: w2 (w1 lost (signal 9))", "start w4 on A"]
    assert tell(rendezvous, *gone(3)) == []


# Resizing -----------------------------------------------------------------------------------------


def test_resize_down() -> None:
    rendezvous = running(3)
    assert tell(rendezvous, ResizeRequested(1)) == ["hold 1"]
    assert tell(rendezvous, AllHeld(1, 2)) == [
        "round 2: w1 (resize to 1)",
        "dismiss w2",
        "dismiss w3",
    ]
    assert tell(rendezvous, *gone(2, 3), Committed(2, 3)) == []


def test_resize_down_lets_go_who_is_not_needed() -> None:
    rendezvous = running(1, spares=1)
    tell(rendezvous, ResizeRequested(3), *ready(3))
    assert tell(rendezvous, ResizeRequested(1)) == ["dismiss w3"]


@pytest.mark.parametrize("count", [1, 4])
def test_nothing_is_resized_once_the_job_stops(count: int) -> None:
    rendezvous = running(2)
    tell(rendezvous, Stop("asked"))
    assert tell(rendezvous, ResizeRequested(count), AllHeld(1, 2), ResizeRequested(count)) == [
        "write w1"
    ]


# Places -------------------------------------------------------------------------------------------


def placed(a: int, b: int, *, maximum: int = 1000) -> Rendezvous:
    """A job with so many workers on two agents, each of which has done a step in round 1."""
    rendezvous = job(a + b, minimum=a + b, most=maximum)
    rendezvous.roster.places.wanted = {"A": a, "B": b}
    tell(rendezvous, AgentJoined("A"), AgentJoined("B"), *ready(*range(1, a + b + 1)))
    installed(rendezvous)
    tell(rendezvous, Committed(1, 1))
    return rendezvous


def test_agents_have_their_assigned_number_of_workers() -> None:
    rendezvous = job(3, minimum=3)
    rendezvous.roster.places.wanted = {"A": 1, "B": 2}
    assert tell(rendezvous, AgentJoined("B")) == ["start w1 on B", "start w2 on B"]
    assert tell(rendezvous, *ready(1, 2)) == []  # the first round waits for the other agent
    assert tell(rendezvous, AgentJoined("A")) == ["start w3 on A"]
    assert tell(rendezvous, *ready(3))[0].startswith("round 1: w1 w2 w3")
    assert tell(rendezvous, *gone(2)) == [
        "round 2: w1 w3, w1 gives w3, restore (w2 lost (signal 9))",
        "start w4 on B",
    ]


def test_the_first_round_ignores_lost_agents() -> None:
    rendezvous = job(3, minimum=3)
    rendezvous.roster.places.wanted = {"A": 1, "B": 2}
    tell(rendezvous, AgentJoined("A"), AgentJoined("B"), *ready(1))
    commands = tell(rendezvous, AgentLost("B", "its connection closed"))
    assert commands == ["round 1: w1, restore (start)"]
    assert tell(rendezvous, AgentJoined("B")) == ["start w4 on B", "start w5 on B"]


def test_resizing_by_agent_moves_workers_between_agents() -> None:
    rendezvous = placed(2, 1)
    assert tell(rendezvous, ResizeRequested(2, {"A": 1, "B": 1})) == ["hold 1"]
    assert tell(rendezvous, AllHeld(1, 2)) == ["round 2: w1 w3 (resize to 2)", "dismiss w2"]
    assert tell(rendezvous, ResizeRequested(3, {"A": 1, "B": 2})) == ["start w4 on B"]


def test_moving_workers_train_until_replacements_are_ready() -> None:
    rendezvous = placed(1, 1)
    tell(rendezvous, AgentJoined("C"))
    assert tell(rendezvous, ResizeRequested(1, {"C": 1})) == ["start w3 on C"]
    assert tell(rendezvous, *ready(3)) == ["hold 1"]
    assert tell(rendezvous, AllHeld(1, 2)) == [
        "round 2: w1 w2 w3, w1 gives w3 (resize to 1, w3 joins)",
        "hold 2",
    ]
    installed(rendezvous, 2)
    assert tell(rendezvous, AllHeld(2, 3)) == [
        "round 3: w3 (change of members)",
        "dismiss w1",
        "dismiss w2",
    ]


def test_a_leaver_wanted_again_stays_without_replacement() -> None:
    rendezvous = placed(1, 1)
    tell(rendezvous, AgentJoined("C"))
    assert tell(rendezvous, ResizeRequested(2, {"C": 2})) == ["start w3 on C", "start w4 on C"]
    assert tell(rendezvous, ResizeRequested(3, {"A": 1, "C": 2})) == ["hold 1"]  # for w2 alone
    assert tell(rendezvous, AllHeld(1, 2)) == [
        "round 2: w1 (resize to 2, resize to 3)",
        "dismiss w2",
    ]
    assert tell(rendezvous, *ready(3, 4)) == ["await others in 2", "hold 2"]


def test_a_leaver_keeps_its_device_until_gone() -> None:
    rendezvous = placed(1, 2)
    tell(rendezvous, ResizeRequested(2, {"A": 1, "B": 1}))
    assert tell(rendezvous, AllHeld(1, 2)) == ["round 2: w1 w2 (resize to 2)", "dismiss w3"]
    assert tell(rendezvous, ResizeRequested(3, {"A": 1, "B": 2})) == []
    assert tell(rendezvous, *gone(3)) == ["start w4 on B"]


def test_who_asked_to_leave_is_not_called_back() -> None:
    rendezvous = placed(1, 2)
    assert tell(rendezvous, WorkerAsksToLeave("w3")) == ["hold 1"]
    assert tell(rendezvous, ResizeRequested(3, {"A": 1, "B": 2})) == []
    assert tell(rendezvous, AllHeld(1, 2))[-1] == "dismiss w3"
    assert tell(rendezvous, *gone(3)) == ["start w4 on B"]


def test_a_leaver_replaces_a_dead_worker() -> None:
    rendezvous = placed(1, 2)
    tell(rendezvous, ResizeRequested(2, {"A": 1, "B": 1}))
    assert tell(rendezvous, *gone(2)) == ["round 2: w1 w3 (resize to 2, w2 lost (signal 9))"]


def test_places_of_an_abandoned_agent_are_removed() -> None:
    rendezvous = placed(1, 1, maximum=1)
    rendezvous.attempts.forgive()
    tell(rendezvous, ResizeRequested(3, {"A": 1, "B": 2}))
    assert tell(rendezvous, WorkerGone("w3", "signal 9")) == [
        "give up on B after 1 (signal 9), go on with 2"
    ]
    assert rendezvous.roster.places.wanted == {"A": 1, "B": 1}


def test_an_emptied_place_is_refilled_after_total_loss() -> None:
    rendezvous = placed(1, 2)
    tell(rendezvous, WorkerAsksToLeave("w1"), AllHeld(1, 2), *gone(1))
    installed(rendezvous, 2)
    assert tell(rendezvous, AgentLost("B", "its connection closed")) == ["start w4 on A"]
    assert tell(rendezvous, AgentJoined("B")) == ["start w5 on B", "start w6 on B"]


# Hosts that have room, and hosts that are to be free ------------------------------------------------


def two_hosts(*, room: int | None = None) -> Rendezvous:
    """Two workers on A and one on B, which have done a step in round 1."""
    rendezvous = job(3, minimum=3, agents=2)
    tell(rendezvous, AgentJoined("A"), AgentJoined("B", room), *ready(1, 2, 3))
    installed(rendezvous)
    tell(rendezvous, Committed(1, 1))
    return rendezvous


def test_workers_are_started_where_there_is_room() -> None:
    rendezvous = job(4, minimum=1, agents=2)
    started = tell(rendezvous, AgentJoined("A", 1), AgentJoined("B", 2))
    assert started == ["start w1 on A", "start w2 on B", "start w3 on B"]
    assert tell(rendezvous, AgentJoined("C", 0)) == []
    assert tell(rendezvous, AgentJoined("D")) == ["start w4 on D"]


def test_a_job_waits_for_a_host_with_room() -> None:
    rendezvous = job(2, minimum=2)
    assert tell(rendezvous, AgentJoined("A", 0)) == []
    assert rendezvous.lacks_room == 2
    assert tell(rendezvous, AgentJoined("B", 1)) == ["start w1 on B"]
    assert rendezvous.lacks_room == 1
    assert tell(rendezvous, *ready(1)) == []
    assert tell(rendezvous, AgentJoined("C", 5)) == ["start w2 on C"]
    assert rendezvous.lacks_room == 0


def test_room_of_a_lost_host_is_not_transferred() -> None:
    rendezvous = two_hosts(room=1)
    assert tell(rendezvous, AgentLost("A", "cut off")) == ["round 2: w2 (agent A lost (cut off))"]


def test_a_drained_host_leaves_at_a_boundary() -> None:
    rendezvous = two_hosts()
    assert tell(rendezvous, AgentDeparts("B")) == ["start w4 on A", "hold 1"]
    assert tell(rendezvous, AgentDeparts("B")) == []
    assert tell(rendezvous, AllHeld(1, 2)) == ["round 2: w1 w3 (agent B leaves)", "dismiss w2"]
    assert tell(rendezvous, *gone(2)) == ["let B go"]
    assert tell(rendezvous, AgentLost("B", "its connection closed")) == []
    installed(rendezvous, 2)
    assert tell(rendezvous, *ready(4)) == ["hold 2"]


def test_workers_train_until_their_replacement_is_ready() -> None:
    rendezvous = job(1, agents=2)
    tell(rendezvous, AgentJoined("A"), AgentJoined("B"), *ready(1))
    installed(rendezvous)
    tell(rendezvous, Committed(1, 1))
    assert tell(rendezvous, AgentDeparts("A")) == ["start w2 on B"]
    assert tell(rendezvous, *ready(2)) == ["hold 1"]
    assert tell(rendezvous, AllHeld(1, 4)) == [
        "round 2: w1 w2, w1 gives w2 (agent A leaves, w2 joins)",
        "hold 2",
    ]
    installed(rendezvous, 4)
    assert tell(rendezvous, AllHeld(2, 5)) == ["round 3: w2 (change of members)", "dismiss w1"]
    assert tell(rendezvous, *gone(1)) == ["let A go"]


def test_who_has_only_just_started_there_is_ended() -> None:
    rendezvous = job(2, minimum=2, agents=2)
    tell(rendezvous, AgentJoined("A"), AgentJoined("B"), *ready(1))
    assert tell(rendezvous, AgentDeparts("B")) == ["dismiss w2", "kill w2", "start w3 on A"]
    assert tell(rendezvous, *gone(2)) == ["let B go"]


def test_draining_the_last_host_ends_with_a_checkpoint() -> None:
    rendezvous = two_hosts()
    tell(rendezvous, AgentDeparts("B"))
    assert tell(rendezvous, AgentDeparts("A"), AllHeld(1, 2)) == [
        "dismiss w4",
        "kill w4",
        "write w1",
    ]
    assert tell(rendezvous, CheckpointCompleted("w1"), *gone(1, 2, 3, 4))[-1] == (
        "suspended: its last host was asked to leave"
    )


def test_a_durable_job_waits_after_its_checkpoint() -> None:
    rendezvous = running(1)
    rendezvous.stands_alone = True
    assert tell(rendezvous, AgentDeparts("A"), AllHeld(1, 2)) == ["hold 1", "write w1"]
    assert tell(rendezvous, AgentJoined("B")) == []
    assert tell(rendezvous, CheckpointCompleted("w1")) == ["dismiss w1", "start w2 on B"]
    assert tell(rendezvous, *ready(2)) == [], "who wrote may still be making it official"
    assert tell(rendezvous, *gone(1)) == [
        "round 2: w2, restore (agent A leaves, w2 joins)",
        "let A go",
    ]


def test_a_durable_job_waits_when_its_host_dies() -> None:
    rendezvous = running(1)
    rendezvous.stands_alone = True
    tell(rendezvous, AgentDeparts("A"), AllHeld(1, 2))
    assert tell(rendezvous, AgentLost("A", "gone")) == []
    assert tell(rendezvous, AgentJoined("B"), *ready(2)) == [
        "start w2 on B",
        "round 2: w2, restore (agent A leaves, agent A lost (gone), w2 joins)",
    ]


def test_a_waiting_job_releases_a_new_leaver() -> None:
    rendezvous = job(2, minimum=2)
    rendezvous.stands_alone = True
    assert tell(rendezvous, AgentJoined("A", 1), AgentDeparts("A")) == [
        "start w1 on A",
        "dismiss w1",
        "kill w1",
    ]
    assert tell(rendezvous, *gone(1)) == ["let A go"]
    assert tell(rendezvous, AgentJoined("B", 1), AgentJoined("C", 1), *ready(2, 3)) == [
        "start w2 on B",
        "start w3 on C",
        "round 1: w2 w3, w2 gives w3, restore (start)",
    ]


def test_suspending_during_the_last_departure_ends_the_job() -> None:
    rendezvous = running(1)
    rendezvous.stands_alone = True
    tell(rendezvous, AgentDeparts("A"), Stop("asked"), AllHeld(1, 2), CheckpointCompleted("w1"))
    assert tell(rendezvous, *gone(1)) == ["suspended: asked"]


def in_pods(target: int, *agents: str, maximum: int = 1000, room: int = 1) -> Rendezvous:
    """A job that outlives its hosts, each of which takes so many workers."""
    rendezvous = job(target, most=maximum)
    rendezvous.stands_alone = True
    tell(rendezvous, *(AgentJoined(agent, room) for agent in agents))
    tell(rendezvous, *ready(*range(1, room * len(agents) + 1)))
    while rendezvous.workers and any(w.state.value == "ready" for w in rendezvous.workers.values()):
        tell(rendezvous, AllHeld(rendezvous.round, 0))
    installed(rendezvous, 1)
    tell(rendezvous, Committed(rendezvous.round, 1))
    return rendezvous


@pytest.mark.parametrize("target", [2, 8])
def test_a_one_worker_host_leaves_with_its_worker(
    target: int,
) -> None:
    """Without workers, it would be a pod that is never ready, in place of one that is made again."""
    rendezvous = in_pods(target, "A", "B")
    round_before = rendezvous.round
    assert tell(rendezvous, WorkerAsksToLeave("w1")) == [f"hold {round_before}"]
    assert tell(rendezvous, AllHeld(round_before, 2)) == [
        f"round {round_before + 1}: w2 (agent A leaves)",
        "dismiss w1",
    ]
    assert tell(rendezvous, *gone(1)) == ["let A go"]
    assert rendezvous.target == target
    assert tell(rendezvous, AgentJoined("C", 1)) == ["start w3 on C"]


def test_a_job_waits_when_its_only_worker_leaves() -> None:
    rendezvous = in_pods(1, "A")
    tell(
        rendezvous, WorkerAsksToLeave("w1"), AllHeld(rendezvous.round, 2), CheckpointCompleted("w1")
    )
    assert tell(rendezvous, AgentJoined("B", 1), *gone(1)) == ["start w2 on B", "let A go"]


def test_an_empty_one_worker_host_ends_as_failed() -> None:
    rendezvous = in_pods(8, "A", "B", maximum=1)
    assert tell(rendezvous, *gone(1))[-2:] == [
        "give up on A after 1 (signal 9), go on with 8",
        "let A go as failed",
    ]
    assert tell(rendezvous, AgentJoined("C", 1)) == ["start w3 on C"]


def test_a_multi_worker_host_fails_after_its_last() -> None:
    rendezvous = in_pods(8, "A", "B", maximum=1, room=2)
    on_a = rendezvous.roster.workers_of("A")
    first, last = (int(worker.id[1:]) for worker in on_a)
    assert tell(rendezvous, *gone(first))[-1] == "give up on A after 1 (signal 9), go on with 8"
    assert "let A go as failed" in tell(rendezvous, *gone(last))
    assert tell(rendezvous, AgentJoined("C", 1)) == ["start w5 on C"]


def test_a_multi_worker_host_replaces_a_leaver() -> None:
    rendezvous = in_pods(8, "A", "B", room=2)
    leaver = rendezvous.roster.workers_of("A")[0].id
    tell(rendezvous, WorkerAsksToLeave(leaver), AllHeld(rendezvous.round, 2))
    assert "start w5 on A" in tell(rendezvous, *gone(int(leaver[1:])))


def test_hosts_without_room_for_workers_are_unusable() -> None:
    rendezvous = job(1, agents=2)
    tell(rendezvous, AgentJoined("A", 0), AgentJoined("B"), *ready(1))
    installed(rendezvous)
    tell(rendezvous, Committed(1, 1))
    assert tell(rendezvous, AgentDeparts("B"), AllHeld(1, 2)) == ["hold 1", "write w1"]


def test_leaving_before_the_first_step_ends_nothing() -> None:
    rendezvous = job(1, agents=2)
    tell(rendezvous, AgentJoined("A", 0), AgentJoined("B"))
    assert tell(rendezvous, AgentDeparts("B"), *gone(1))[-1] == "let B go"
    assert tell(rendezvous, AgentJoined("C")) == ["start w2 on C"]


def test_workers_of_excluded_hosts_outlive_other_departures() -> None:
    rendezvous = job(2, minimum=2, agents=2, most=1)
    tell(rendezvous, AgentJoined("A"), AgentJoined("B"), *ready(1, 2))
    installed(rendezvous)
    tell(rendezvous, Committed(1, 1), ResizeRequested(3))
    tell(rendezvous, *gone(3))
    assert rendezvous.attempts.given_up("A")
    assert tell(rendezvous, AgentDeparts("B")) == ["dismiss w4", "kill w4", "hold 1"]
    assert not rendezvous.is_stopping


def test_places_only_on_a_leaving_host_change_nothing() -> None:
    rendezvous = placed(1, 1)
    tell(rendezvous, AgentDeparts("B"))
    assert tell(rendezvous, ResizeRequested(2, {"B": 2})) == []
    assert rendezvous.roster.places.wanted == {"A": 1}


def test_workers_placed_on_a_leaving_host_move() -> None:
    rendezvous = placed(1, 2)
    tell(rendezvous, AgentDeparts("B"))
    assert rendezvous.target == 1
    tell(rendezvous, ResizeRequested(3, {"A": 2, "B": 1}))
    assert rendezvous.roster.places.wanted == {"A": 2}
    assert rendezvous.target == 2


def test_emptied_agent_takes_over_from_those_given_up() -> None:
    """Seed 7991 where streams break: the job waited for an agent that was lost, for ever."""
    rendezvous = job(3, minimum=3, agents=3, most=1)
    rendezvous.roster.places.wanted = {"A": 1, "B": 1, "C": 1}
    tell(rendezvous, *map(AgentJoined, "ABC"), *ready(1, 2, 3))
    installed(rendezvous)
    leaver, last = rendezvous.roster.workers_of("B")[0], rendezvous.roster.workers_of("C")[0]
    tell(rendezvous, WorkerAsksToLeave(leaver.id), AllHeld(1, 1), *gone(leaver.number))
    tell(rendezvous, AgentLost("A", "cut off"))
    assert tell(rendezvous, *gone(last.number)) == [
        "start w4 on B",
        "give up on C after 1 (signal 9), go on with 2",
    ]


# Newcomers that come together ---------------------------------------------------------------------


def growing() -> Rendezvous:
    """A job of two that is to have four: its spare is ready, and another worker is being started."""
    rendezvous = running(2, spares=1)
    assert tell(rendezvous, ResizeRequested(4)) == ["start w4 on A", "await others in 1"]
    return rendezvous


def test_a_spare_waits_for_a_fork_beside_it() -> None:
    rendezvous = growing()
    assert tell(rendezvous, Committed(1, 2)) == []  # and no other spare is in the way
    assert tell(rendezvous, *ready(4)) == ["hold 1"]
    assert tell(rendezvous, AllHeld(1, 2)) == [
        "round 2: w1 w2 w3 w4, w1 gives w3, w2 gives w4 (resize to 4, w3 joins, w4 joins)"
    ]
    assert tell(rendezvous, Committed(2, 3)) == ["start w5 on A"]


def test_patience_with_others_ends() -> None:
    rendezvous = growing()
    assert tell(rendezvous, PatienceOver(1)) == ["hold 1"]
    assert tell(rendezvous, PatienceOver(1)) == []
    assert tell(rendezvous, AllHeld(1, 2))[0].startswith("round 2: w1 w2 w3,")
    installed(rendezvous, 2)
    assert tell(rendezvous, PatienceOver(1), *ready(4)) == ["hold 2"]


WAIT_ENDS = {
    "a leaver needs a boundary": (WorkerAsksToLeave("w1"), ["hold 1"]),
    "a stop needs one": (Stop("asked"), ["hold 1"]),
    "who is slow needs one": (Straggling((("w1", 2.0), ("w2", 1.0)), "w1 is slow"), ["hold 1"]),
    "a smaller target has room for one": (ResizeRequested(3), ["hold 1"]),
    "the other dies, and another is started": (*gone(4), ["start w5 on A"]),
    "who was ready dies": (*gone(3), ["start w5 on A"]),
    "a death ends the round, and the spare comes in": (
        *gone(1),
        [
            "round 2: w2 w3, w2 gives w3 (resize to 4, w1 lost (signal 9), w3 joins)",
            "start w5 on A",
        ],
    ),
}


@pytest.mark.parametrize(("event", "commands"), WAIT_ENDS.values(), ids=WAIT_ENDS)
def test_what_ends_a_wait_for_others(event: Event, commands: list[str]) -> None:
    assert tell(growing(), event) == commands


def test_patience_without_anybody_ready_starts_spares() -> None:
    rendezvous = growing()
    tell(rendezvous, *gone(3))
    assert tell(rendezvous, PatienceOver(1)) == ["start w6 on A"]


def test_others_of_a_dead_round_are_awaited_again() -> None:
    rendezvous = growing()
    tell(rendezvous, *gone(1))
    installed(rendezvous, 2)
    assert tell(rendezvous, *ready(4)) == ["await others in 2"]
    assert tell(rendezvous, PatienceOver(1)) == []
    assert tell(rendezvous, PatienceOver(2)) == ["hold 2"]


# Stopping and ending ------------------------------------------------------------------------------


def test_the_last_worker_may_leave_after_other_losses() -> None:
    """Seed 8526: no worker was started any more, and the job waited for ever."""
    rendezvous = placed(1, 1)
    tell(rendezvous, AgentLost("B", "gone"))
    installed(rendezvous, 1)
    assert tell(rendezvous, WorkerAsksToLeave("w1")) == ["hold 2"]
    assert tell(rendezvous, AllHeld(2, 2)) == ["write w1"]
    tell(rendezvous, CheckpointCompleted("w1"))
    assert tell(rendezvous, *gone(1)) == ["suspended: its last worker, w1, was asked to leave"]


def test_stop_before_the_first_round() -> None:
    rendezvous = job(2, minimum=2)
    tell(rendezvous, AgentJoined("A"), *ready(1))
    assert tell(rendezvous, Stop("asked")) == ["dismiss w1", "dismiss w2", "kill w2"]
    assert tell(rendezvous, *gone(1), *ready(2)) == ["dismiss w2"]
    assert tell(rendezvous, *gone(2)) == ["suspended: asked"]


def test_a_late_worker_is_killed_and_another_writes() -> None:
    rendezvous = running(3)
    assert tell(rendezvous, Hurry({"w1": "in step 2"})) == []
    assert tell(rendezvous, Stop("asked")) == ["hold 1"]
    late = Hurry({"w1": "in step 2", "w2": "in step 2"})
    assert tell(rendezvous, late) == [
        "kill w1 (in step 2 when the run was to end)",
        "kill w2 (in step 2 when the run was to end)",
    ]
    assert tell(rendezvous, *gone(2)) == []
    assert tell(rendezvous, *gone(1)) == ["write w3"]
    assert tell(rendezvous, CheckpointCompleted("w3")) == ["dismiss w3"]
    assert tell(rendezvous, *gone(3)) == ["suspended: asked"]


def test_a_late_arrival_is_removed_before_writing() -> None:
    rendezvous = running(2)
    tell(rendezvous, Stop("asked"), Hurry({"w1": "in step 2"}))
    assert tell(rendezvous, AllHeld(1, 2)) == []
    assert tell(rendezvous, *gone(1)) == ["write w2"]


def test_when_all_are_late_the_last_checkpoint_remains() -> None:
    rendezvous = running(2)
    tell(rendezvous, Stop("asked"), Hurry({"w1": "in step 2", "w2": "in step 2"}))
    assert tell(rendezvous, *gone(1, 2)) == [
        "suspended: asked; its last members died before the checkpoint"
    ]


def test_a_writer_that_hangs_is_replaced_by_another() -> None:
    rendezvous = running(2)
    assert tell(rendezvous, Stop("asked"), AllHeld(1, 2)) == ["hold 1", "write w1"]
    assert tell(rendezvous, Hurry({"w1": "writing"})) == [
        "kill w1 (writing when the run was to end)"
    ]
    assert tell(rendezvous, *gone(1)) == ["write w2"]


def test_stop_before_any_agent() -> None:
    assert tell(job(), Stop("asked")) == ["suspended: asked"]


def test_stop_while_running_survives_a_loss() -> None:
    rendezvous = running(2)
    assert tell(rendezvous, Stop("asked"), Stop("again")) == ["hold 1"]
    assert tell(rendezvous, *gone(1)) == ["round 2: w2 (w1 lost (signal 9))", "hold 2"]
    assert tell(rendezvous, AllHeld(2, 2), CheckpointCompleted("w2"), *gone(2)) == [
        "write w2",
        "dismiss w2",
        "suspended: asked",
    ]


def test_a_loss_while_writing_asks_another() -> None:
    rendezvous = running(2)
    assert tell(rendezvous, Stop("asked"), AllHeld(1, 2)) == ["hold 1", "write w1"]
    assert tell(rendezvous, *gone(1)) == ["write w2"]
    assert tell(rendezvous, *gone(2)) == [
        "suspended: asked; its last members died before the checkpoint"
    ]


def test_completion_dismisses_everyone() -> None:
    rendezvous = running(2, spares=1)
    assert tell(rendezvous, JobCompleted("w1")) == ["dismiss w1", "dismiss w2", "dismiss w3"]
    assert tell(rendezvous, Stop("late"), *gone(2, 3)) == []
    assert tell(rendezvous, *gone(1)) == ["done: all steps are committed"]


def test_never_started_workers_are_released_at_the_end() -> None:
    """It would hear of it only once it is ready, and it has nothing to finish."""
    rendezvous = running(1)
    ending = ["dismiss w1", "dismiss w2", "kill w2"]
    assert tell(rendezvous, ResizeRequested(2), JobCompleted("w1")) == ["start w2 on A", *ending]
    assert tell(rendezvous, *gone(1), *ready(2)) == ["dismiss w2"]
    assert tell(rendezvous, *gone(2)) == ["done: all steps are committed"]


def test_user_failures_kill_everyone_and_stay_failures() -> None:
    rendezvous = running(2)
    assert tell(rendezvous, UserFailed("w2")) == ["kill w1", "kill w2"]
    assert tell(rendezvous, JobCompleted("w1"), UserFailed("w1")) == []
    assert tell(rendezvous, *gone(1, 2)) == ["failed: w2 failed"]
    assert rendezvous.phase is RendezvousPhase.ENDED


def test_the_last_agent_may_leave_an_ending_job() -> None:
    rendezvous = running(2)
    tell(rendezvous, JobCompleted("w1"))
    assert rendezvous.handle(AgentLost("A", "cut off")) == [
        End(RunOutcome.DONE, "all steps are committed")
    ]


# What has no effect -------------------------------------------------------------------------------

LATE: list[Event] = [
    WorkerReady("w1", "h:1"),
    WorkerInstalled("w1", 2, 1),
    WorkerInstalled("w2", 1, 1),
    WorkerAsksToLeave("w1"),
    WorkerGone("w1", "signal 9"),
    AllHeld(1, 1),
    AgentLost("Z", "never seen"),
    CheckpointCompleted("w1"),
]


@pytest.mark.parametrize("event", LATE, ids=str)
def test_the_dead_and_past_rounds_have_no_effect(event: Event) -> None:
    rendezvous = running(2)
    tell(rendezvous, *gone(1))
    copy_before = copy.deepcopy(rendezvous)
    assert tell(rendezvous, event) == []
    assert rendezvous == copy_before


@pytest.mark.parametrize(
    "event",
    [*LATE, AgentJoined("B"), Stop("late"), ResizeRequested(3), JobCompleted("w1")],
    ids=str,
)
def test_nothing_happens_after_the_end(event: Event) -> None:
    rendezvous = running(1)
    tell(rendezvous, JobCompleted("w1"), *gone(1))
    copy_before = copy.deepcopy(rendezvous)
    assert tell(rendezvous, event) == []
    assert rendezvous == copy_before


# Restoring ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_round", [False, True])
def test_restores_wait_for_a_leavers_checkpoint(in_round: bool) -> None:
    """It would be official behind the back of workers that went back to an older one."""
    rendezvous = running(2)
    assert tell(rendezvous, WorkerAsksToLeave("w1"), ResizeRequested(2)) == [
        "hold 1",
        "start w3 on A",
    ]
    assert tell(rendezvous, AllHeld(1, 5)) == ["round 2: w2 (w1 leaves, resize to 2)", "dismiss w1"]
    installed(rendezvous, 5)
    if in_round:  # named, but without the state yet
        tell(rendezvous, *ready(3), AllHeld(2, 6))
    assert tell(rendezvous, *gone(2))[0].startswith("start")
    assert rendezvous.phase is RendezvousPhase.GATHERING
    assert tell(rendezvous, *([] if in_round else ready(3))) == []
    commands = tell(rendezvous, WorkerGone("w1", "exit status 0"))
    assert commands[0].startswith(f"round {4 if in_round else 3}: w3, restore")


def test_the_previous_state_owner_is_the_donor() -> None:
    """Its word comes when its donor is dead, and the worker to be overtaken is still at its
    checkpoint.
    """
    rendezvous = running(2)
    tell(rendezvous, WorkerAsksToLeave("w1"), ResizeRequested(2), AllHeld(1, 5))
    installed(rendezvous, 5)
    tell(rendezvous, *ready(3), AllHeld(2, 6), *gone(2))
    assert rendezvous.phase is RendezvousPhase.GATHERING
    assert tell(rendezvous, WorkerInstalled("w3", 3, 6)) == [
        "round 4: w3 (w2 lost (signal 9), w3 joins)"
    ]


def test_stopping_during_a_leavers_checkpoint_ends_the_job() -> None:
    rendezvous = running(2)
    tell(rendezvous, WorkerAsksToLeave("w1"), AllHeld(1, 5))
    installed(rendezvous, 5)
    tell(rendezvous, *gone(2))
    assert rendezvous.phase is RendezvousPhase.GATHERING
    commands = tell(rendezvous, Stop("asked"), *gone(1))
    assert "dismiss w1" in commands


def test_a_world_groups_ranks_by_host() -> None:
    agents = {"w1": "a", "w2": "a", "w5": "b", "w3": "c", "w4": "c"}
    members = tuple(
        Member(worker=worker, agent=agent, address="") for worker, agent in agents.items()
    )
    world = World(round=1, members=members, donors={}, restore=False, shares=(1,) * 5)
    assert {worker: world.ranks_beside(worker) for worker in agents} == {
        "w1": range(2), "w2": range(2), "w5": range(2, 3), "w3": range(3, 5), "w4": range(3, 5)
    }  # fmt: skip


def on_machines(*names: str) -> Rendezvous:
    """A job with a worker on each of the agents A, B and so on, which are on these machines."""
    rendezvous = job(len(names), minimum=len(names))
    rendezvous.roster.places.wanted = dict.fromkeys("ABCDE"[: len(names)], 1)
    joined = [AgentJoined(agent, machine=name) for agent, name in zip("ABCDE", names, strict=False)]
    tell(rendezvous, *joined)
    return rendezvous


def world_named(rendezvous: Rendezvous, *events: Event) -> World:
    """The world of the last round that these bring."""
    commands = [command for event in events for command in rendezvous.handle(event)]
    return [command.world for command in commands if isinstance(command, Install)][-1]


def test_agents_of_one_machine_follow_each_other() -> None:
    rendezvous = on_machines("m1", "m2", "", "m1", "m2")
    world = world_named(rendezvous, *ready(1, 2, 3, 4, 5))
    assert "".join(member.agent for member in world.members) == "ADBEC"
    assert world.machines == (2, 2, 1)


def test_machines_get_a_new_speaker_after_a_loss() -> None:
    rendezvous = on_machines("m1", "m2", "m1", "m2", "m1")
    world_named(rendezvous, *ready(1, 2, 3, 4, 5))
    installed(rendezvous)
    tell(rendezvous, Committed(1, 1))
    world = world_named(rendezvous, AgentLost("A", "gone"))
    assert "".join(member.agent for member in world.members) == "BDCE"
    assert world.machines == (2, 2)
    joined = rendezvous.handle(AgentJoined("A", machine="m2"))  # of the same name, elsewhere
    assert not [command for command in joined if isinstance(command, Install)]
    assert rendezvous.roster.machines == dict(
        zip("BCDEA", ["m2", "m1", "m2", "m1", "m2"], strict=False)
    )


@pytest.mark.parametrize(
    ("names", "machines"),
    [
        (("", "", ""), (1, 1, 1)),
        (("m", "m", "m"), (1, 1, 1)),  # nothing crosses a network: all fold
        (("m", "m", ""), (2, 1)),
        (("m", "", "m"), (2, 1)),
        (("A", "", ""), (1, 1, 1)),  # as an agent is called
    ],
)
def test_agents_are_alone_unless_they_say_otherwise(
    names: tuple[str, ...], machines: tuple[int, ...]
) -> None:
    assert world_named(on_machines(*names), *ready(1, 2, 3)).machines == machines


# Servers ------------------------------------------------------------------------------------------


def test_the_first_round_waits_for_servers() -> None:
    rendezvous = job(2, minimum=1, servers=1)
    assert tell(rendezvous, AgentJoined("A")) == ["start w1 on A", "start w2 on A", "start w3 on A"]
    assert tell(rendezvous, *ready(1, 2)) == []
    assert tell(rendezvous, *ready(3)) == [
        "round 1: w1 w2 +w3, w1 gives w2, w1 gives w3, restore (start)"
    ]


def test_servers_never_replace_first_round_workers() -> None:
    rendezvous = job(2, minimum=2, servers=1)
    tell(rendezvous, AgentJoined("A"))
    assert tell(rendezvous, *ready(3, 1)) == []
    assert tell(rendezvous, *ready(2)) == [
        "round 1: w1 w2 +w3, w1 gives w2, w1 gives w3, restore (start)"
    ]


def test_servers_are_spread_and_follow_workers() -> None:
    rendezvous = job(1, servers=2, agents=2)
    tell(rendezvous, AgentJoined("A"))
    assert tell(rendezvous, AgentJoined("B")) == ["start w1 on A", "start w2 on A", "start w3 on B"]
    tell(rendezvous, *ready(1, 2, 3))
    installed(rendezvous)
    assert tell(rendezvous, ResizeRequested(1, {"B": 1})) == ["start w4 on B", "start w5 on B"]
    assert tell(rendezvous, *ready(4), PatienceOver(1)) == ["await others in 1", "hold 1"]
    assert tell(rendezvous, AllHeld(1, 1)) == [
        "round 2: w4 +w3, w3 gives w4 (resize to 1, w4 joins)",
        "dismiss w1",
        "dismiss w2",
    ]


def test_an_agent_of_servers_comes_last() -> None:
    rendezvous = job(1, servers=2, agents=2)
    tell(rendezvous, AgentJoined("A"), AgentJoined("B"), *ready(1, 2, 3))
    installed(rendezvous)
    tell(rendezvous, Committed(1, 1), *gone(1), *ready(4))
    assert [member.id for member in rendezvous.roster.members] == ["w4", "w2", "w3"]
    tell(rendezvous, AgentLost("A", "cut off"), *ready(5))
    assert [member.id for member in rendezvous.roster.members] == ["w5", "w3"]
    installed(rendezvous, 1)
    tell(rendezvous, AgentJoined("A"), *ready(6))
    assert tell(rendezvous, AllHeld(rendezvous.round, 2)) == [
        f"round {rendezvous.round}: w5 +w3 +w6, w5 gives w6 (w6 joins)"
    ]


def test_a_dead_server_is_replaced_without_waiting() -> None:
    rendezvous = running(2, servers=1)
    assert tell(rendezvous, *gone(3)) == ["round 2: w1 w2 (w3 lost (signal 9))", "start w4 on A"]
    assert tell(rendezvous, *ready(4)) == ["hold 2"]
    assert tell(rendezvous, AllHeld(2, 2)) == ["round 3: w1 w2 +w4, w1 gives w4 (w4 joins)"]


def test_a_spare_becomes_a_server() -> None:
    rendezvous = running(1, servers=1, spares=1)
    assert tell(rendezvous, *gone(2)) == [
        "round 2: w1 +w3, w1 gives w3 (w2 lost (signal 9), w3 joins)",
    ]
    installed(rendezvous, 1)
    assert tell(rendezvous, Committed(2, 2)) == ["start w4 on A"]
    assert tell(rendezvous, *ready(4), *gone(1)) == [
        "round 3: w4 +w3, w3 gives w4 (w1 lost (signal 9), w4 joins)"
    ]


def test_servers_alone_wait_with_the_state() -> None:
    rendezvous = running(2, servers=2)
    tell(rendezvous, *gone(1))
    installed(rendezvous, 1)
    assert tell(rendezvous, *gone(2)) == ["start w6 on A"]
    assert rendezvous.phase is RendezvousPhase.GATHERING
    assert tell(rendezvous, *ready(5)) == [
        "round 3: w5 +w3 +w4, w3 gives w5 (w2 lost (signal 9), w5 joins)"
    ]


def test_a_waiting_server_that_dies_is_replaced() -> None:
    rendezvous = running(1, servers=1)
    assert tell(rendezvous, *gone(1)) == ["start w3 on A"]
    assert tell(rendezvous, *gone(2)) == ["start w4 on A"]
    assert tell(rendezvous, *ready(3)) == [
        "round 2: w3, restore (w1 lost (signal 9), w2 lost (signal 9), w3 joins)"
    ]


def test_a_leaving_server_is_replaced() -> None:
    rendezvous = running(1, servers=1)
    assert tell(rendezvous, WorkerAsksToLeave("w2")) == ["start w3 on A", "hold 1"]
    assert tell(rendezvous, AllHeld(1, 2)) == ["round 2: w1 (w2 leaves)", "dismiss w2"]
    assert rendezvous.target == 1
    assert tell(rendezvous, *gone(2), *ready(3)) == ["hold 2"]
    assert tell(rendezvous, WorkerAsksToLeave("w1")) == []  # with its last worker the job stops


def test_servers_are_resized_at_a_boundary() -> None:
    rendezvous = running(2, servers=1)
    assert tell(rendezvous, ResizeRequested(2, {}, 2)) == ["start w4 on A"]
    assert tell(rendezvous, *ready(4)) == ["hold 1"]
    assert tell(rendezvous, AllHeld(1, 2)) == [
        "round 2: w1 w2 +w3 +w4, w1 gives w4 (resize to 2 and 2 servers, w4 joins)"
    ]
    installed(rendezvous, 2)
    assert tell(rendezvous, ResizeRequested(1, {}, 1)) == ["hold 2"]
    assert tell(rendezvous, AllHeld(2, 3)) == [
        "round 3: w1 +w3 (resize to 1 and 1 server)",
        "dismiss w2",
        "dismiss w4",
    ]
    assert tell(rendezvous, ResizeRequested(1, {})) == []
    assert rendezvous.servers == 1


def test_an_ending_job_uses_a_servers_state() -> None:
    rendezvous = running(1, servers=2)
    assert tell(rendezvous, Stop("asked")) == ["hold 1"]
    reason = "the job ends with the state of another server, and no worker is left"
    assert tell(rendezvous, *gone(1)) == [f"kill w3 ({reason})"]  # it may be writing to the tables
    assert tell(rendezvous, *gone(3)) == ["write w2"]
    assert tell(rendezvous, CheckpointCompleted("w2")) == ["dismiss w2"]


def test_waiting_servers_keep_state_on_stop() -> None:
    rendezvous = running(1, servers=1)
    assert tell(rendezvous, *gone(1)) == ["start w3 on A"]
    assert tell(rendezvous, Stop("asked")) == ["write w2"]


def test_a_server_has_no_pace() -> None:
    rendezvous = running(2, servers=1, parts=8)
    assert tell(rendezvous, Straggling((("w1", 3.0), ("w2", 1.0)), "w1 is slow")) == ["hold 1"]
    (command,) = rendezvous.handle(AllHeld(1, 2))
    assert isinstance(command, Install)
    assert command.world.shares == (2, 6, 0)
    assert (command.world.workers, command.world.servers) == ((0, 1), (2,))


def test_rank_0_has_work_despite_surplus_workers() -> None:
    rendezvous = job(2, minimum=2, agents=2, parts=2)
    tell(rendezvous, AgentJoined("A"), AgentJoined("B"), *ready(1, 2))
    installed(rendezvous)
    tell(rendezvous, AgentJoined("C"), ResizeRequested(2, {"C": 2}), *ready(3, 4))
    (command, *_) = rendezvous.handle(AllHeld(1, 1))
    assert isinstance(command, Install)
    assert command.world.shares == (1, 1, 0, 0)


@pytest.mark.parametrize(
    ("agents", "has_state", "givers"),
    [
        ("a", [True], {}),
        ("aabb", [True, False, False, False], {2: 0}),
        ("aabb", [False, True, True, True], {}),
        ("aabbc", [False, False, False, True, False], {0: 2, 4: 2}),
        ("ab", [False, False], {0: None, 1: None}),
    ],
)
def test_the_first_owning_host_gives_to_others(
    agents: str, has_state: list[bool], givers: dict[int, int | None]
) -> None:
    members = tuple(
        Member(worker=f"w{rank}", agent=agent, address="") for rank, agent in enumerate(agents)
    )
    world = World(round=1, members=members, donors={}, restore=False, shares=(1,) * len(members))
    assert world.givers(has_state) == givers


# Waiting for data ---------------------------------------------------------------------------------


@pytest.mark.parametrize("idle_first", [True, False])
def test_a_job_waiting_for_data_ends_at_once(idle_first: bool) -> None:
    """All leave the step that one has no data for; the first that has the state writes it when all
    have.
    """
    rendezvous = running(2)
    suspended_round = "still round 2: w1 w2 (brim suspend)"
    if idle_first:
        assert tell(rendezvous, WorkerIdle("w2", 1)) == []
        assert tell(rendezvous, Stop("brim suspend")) == [suspended_round]
    else:
        assert tell(rendezvous, Stop("brim suspend")) == ["hold 1"]
        assert tell(rendezvous, WorkerIdle("w2", 1)) == [suspended_round]
    assert tell(rendezvous, WorkerInstalled("w2", 2, 1)) == []
    assert tell(rendezvous, WorkerInstalled("w1", 2, 1)) == ["write w1"]
    assert tell(rendezvous, CheckpointCompleted("w1")) == ["dismiss w1", "dismiss w2"]


def test_an_idle_worker_may_leave_or_gain_peers() -> None:
    rendezvous = running(2)
    tell(rendezvous, WorkerIdle("w1", 1))
    assert tell(rendezvous, WorkerAsksToLeave("w1")) == ["still round 2: w1 w2 (w1 leaves)"]
    installed(rendezvous)
    assert rendezvous.round == 3
    assert [member.id for member in rendezvous.roster.members] == ["w2"]
    tell(
        rendezvous,
        WorkerInstalled("w2", 3, 1),
        Committed(3, 2),
        ResizeRequested(2),
        WorkerIdle("w2", 3),
    )
    assert tell(rendezvous, *ready(3)) == ["still round 4: w2 (resize to 2)"]
    assert tell(rendezvous, WorkerInstalled("w2", 4, 2)) == [
        "round 5: w2 w3, w2 gives w3 (resize to 2, w3 joins)"
    ]


def test_a_step_with_broken_stream_is_repeated() -> None:
    rendezvous = running(3)
    re_formed = "round 2: w1 w2 w3 (w2 lost its connection to another)"
    assert tell(rendezvous, WorkerCutOff("w2", 1)) == [re_formed]
    assert tell(rendezvous, WorkerCutOff("w3", 1)) == [], "the other end of it"
    tell(rendezvous, *(WorkerInstalled(f"w{n}", 2, 1) for n in (1, 2, 3)))
    assert tell(rendezvous, WorkerCutOff("w2", 2)) == [], "no step was made: they cannot meet"
    tell(rendezvous, Committed(2, 2), Stop("brim suspend"))
    assert tell(rendezvous, WorkerCutOff("w2", 2)) == [
        "round 3: w1 w2 w3 (w2 lost its connection to another)",
        "hold 3",
    ]


def test_data_that_came_is_waited_for_no_more() -> None:
    rendezvous = running(2)
    tell(rendezvous, WorkerIdle("w1", 1), Committed(1, 2))
    assert tell(rendezvous, Stop("brim suspend")) == ["hold 1"]
    assert tell(rendezvous, WorkerIdle("w1", 0)) == [], "of a round that is over"


def test_deaths_during_a_standstill_start_ordinary_rounds() -> None:
    rendezvous = running(3)
    tell(rendezvous, WorkerIdle("w1", 1), Stop("brim suspend"), WorkerInstalled("w1", 2, 1))
    assert tell(rendezvous, *gone(2)) == ["round 3: w1 w3 (w2 lost (signal 9))", "hold 3"]
    tell(rendezvous, WorkerInstalled("w1", 3, 1), WorkerInstalled("w3", 3, 1))
    assert tell(rendezvous, WorkerIdle("w3", 3)) == ["still round 4: w1 w3 (brim suspend)"]
    assert tell(rendezvous, WorkerInstalled("w1", 4, 1), WorkerInstalled("w3", 4, 1)) == [
        "write w1"
    ]
