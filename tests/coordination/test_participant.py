"""A worker's protocol, flow by flow: its inputs, its needs, and its messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from brim.coordination.job.membership import Member, World
from brim.coordination.job.participant import (
    AgentGone,
    AskedToLeave,
    BeHeir,
    CatchUp,
    EnterRound,
    FetchState,
    Flow,
    GiveState,
    LeaveState,
    Participant,
    PeerLost,
    Receive,
    RestoreState,
    RoundChanged,
    WriteState,
    round_of,
    state_greeting,
)
from brim.errors import EnvironmentFault, ProtocolError
from brim.wire.messages import (
    Arrive,
    CutOff,
    Dismissed,
    DropStep,
    Idle,
    Installed,
    InstallRound,
    LeaveAsked,
    Made,
    NowWritten,
    Released,
    Warn,
    WriteNow,
)

NEXT, LOOK = Receive(), Receive(within=0.0)
REPORT = b"report"


def member(name: str) -> Member:
    return Member(worker=name, agent="A", address=f"at {name}")


def named(
    round: int,
    *names: str,
    donors: dict[str, str] | None = None,
    restore: bool = False,
    still: bool = False,
) -> InstallRound:
    world = World(
        round=round,
        members=tuple(map(member, names)),
        donors=donors or {},
        restore=restore,
        shares=(1,) * len(names),
    )
    return InstallRound(world=world, recorded=7, still=still)


def follow(flow: Flow[Any], *answers: Any) -> tuple[list[Any], Any]:
    """The needs of a flow as it gets these answers, and its result; "waits" where it needs more."""
    needs: list[Any] = []
    result: Any = "waits"
    try:
        needs.append(next(flow))
        for answer in answers:
            is_error = isinstance(answer, Exception)
            needs.append(flow.throw(answer) if is_error else flow.send(answer))
    except StopIteration as end:
        result = end.value
    except (RoundChanged, SystemExit, EnvironmentFault, ProtocolError) as error:
        result = type(error)
    return needs, result


def in_round(*names: str, company: float = 0.0) -> Participant:
    """The first of these, in round 1, with the state."""
    worker = Participant(names[0], company=company)
    _, exchange = follow(worker.next_round(), named(1, *names), 0, False, "exchange")
    assert exchange == "exchange"
    assert worker.outgoing() == [Installed(round=1, step=0)]
    return worker


def released(step: int, *, round: int = 1, phase: str = "commit", hold: bool = False) -> Released:
    return Released(round=round, step=step, phase=phase, hold=hold)


# Rounds -------------------------------------------------------------------------------------------


def test_the_first_worker_restores_a_missing_state() -> None:
    worker = Participant("w1")
    round = named(3, "w1", "w2", donors={"w2": "w1"}, restore=True)
    needs, _ = follow(worker.next_round(), round, ("a place", 5), None)
    assert needs == [NEXT, RestoreState(7), GiveState("w2", state_greeting(3, "w2")), BeHeir(True)]
    assert worker.outgoing() == [Installed(round=3, step=5, restored_from="a place")]


def test_a_newcomer_reports_after_fetching_the_state() -> None:
    worker = Participant("w2")
    flow = worker.next_round()
    needs, _ = follow(flow, named(3, "w1", "w2", donors={"w2": "w1"}))
    assert needs == [NEXT, FetchState(member("w1"), state_greeting(3, "w2"))]
    assert worker.outgoing() == []
    assert flow.send(5) == BeHeir(False)
    assert worker.outgoing() == [Installed(round=3, step=5)]


def test_a_donor_gives_the_state_to_all_recipients() -> None:
    worker = Participant("w1")
    donors = {"w3": "w1", "w2": "w1", "w4": "w5"}
    needs, result = follow(
        worker.next_round(),
        named(2, "w1", "w2", "w3", "w4", "w5", donors=donors),
        5,
        None,
        None,
        False,
        "exchange",
    )
    recipients = [need.worker for need in needs if isinstance(need, GiveState)]
    assert (needs[1], recipients, result) == (CatchUp(7), ["w2", "w3"], "exchange")
    assert isinstance(needs[-1], EnterRound)


def test_a_round_without_steps_waits_for_the_next() -> None:
    worker = Participant("w1")
    flow = worker.next_round()
    needs, result = follow(flow, named(2, "w1", still=True), 5, named(3, "w1"))
    assert (needs, result) == ([NEXT, CatchUp(7), NEXT, CatchUp(7)], "waits")


def test_losing_a_donor_waits_for_another_round() -> None:
    worker = Participant("w2")
    lost, next_round = PeerLost("w1"), named(4, "w2", restore=True)
    needs, _ = follow(
        worker.next_round(), named(3, "w1", "w2", donors={"w2": "w1"}), lost, next_round
    )
    assert needs[2:] == [Receive(within=2.0), RestoreState(7)]


def test_a_broken_stream_without_deaths_is_reported() -> None:
    worker = in_round("w1", "w2")
    flow = worker.await_replacement()
    assert follow(flow)[0] == [Receive(within=2.0)]
    assert worker.outgoing() == []
    assert flow.send(None) == Receive(within=60.0)
    assert worker.outgoing() == [CutOff(round=1)]
    assert follow(worker.await_replacement(), None, named(2, "w1", "w2"))[1] is None
    assert follow(worker.await_replacement(), None, None)[1] is EnvironmentFault


def test_a_write_is_reported_after_it_is_done() -> None:
    worker = in_round("w1", "w2")
    flow = worker.next_round()
    assert follow(flow, WriteNow(recorded=9))[0] == [NEXT, WriteState(9)]
    assert worker.outgoing() == []
    assert flow.send(None) == NEXT
    assert worker.outgoing() == [NowWritten()]


@pytest.mark.parametrize(
    ("greeting", "round"),
    [(state_greeting(12, "w1"), 12), ("round 3 slices 0 1", 3), ("hello", 0), ("round x", 0)],
)
def test_a_greeting_says_its_round(greeting: str, round: int) -> None:
    assert round_of(greeting) == round


# Among others -------------------------------------------------------------------------------------


def test_arrivals_wait_for_all_members() -> None:
    worker = in_round("w1", "w2")
    old, current = released(3, round=0), released(3, phase="blocks")
    needs, result = follow(worker.arrive(3, "blocks", b"x"), old, current)
    assert (needs, result) == ([NEXT, NEXT], current)
    assert worker.outgoing() == [Arrive(round=1, step=3, phase="blocks", payload=b"x")]


@pytest.mark.parametrize(
    ("message", "result"),
    [
        (named(2, "w1"), RoundChanged),
        (WriteNow(), RoundChanged),
        (Dismissed(), SystemExit),
        (AgentGone(), EnvironmentFault),
        (released(0, round=2), ProtocolError),
    ],
)
def test_what_ends_a_wait(message: Any, result: type) -> None:
    worker = in_round("w1", "w2")
    assert follow(worker.arrive(3, "blocks"), message)[1] is result
    assert follow(worker.poll(), message)[1] is result


def test_death_ends_steps_and_no_wait_for_dismissal() -> None:
    """Else the last rank 0 would leave without the lines of its script behind the loop."""
    worker, drop = in_round("w1", "w2"), DropStep(round=1)
    assert follow(worker.arrive(3, "blocks"), drop)[1] is RoundChanged
    assert follow(worker.await_dismissal(), drop, Dismissed()) == ([NEXT] * 2, None)
    assert follow(worker.await_dismissal(), drop, named(2, "w1"))[1] is RoundChanged


def test_leave_requests_are_forwarded_once_without_ending_waits() -> None:
    worker = in_round("w1", "w2")
    needs, result = follow(worker.poll(), AskedToLeave(), AskedToLeave(), None)
    assert (needs, result) == ([LOOK] * 3, None)
    assert worker.outgoing() == [LeaveAsked()]


@pytest.mark.parametrize("hold", [False, True])
def test_the_commit_of_several_is_waited_for(hold: bool) -> None:
    worker = in_round("w1", "w2")
    assert follow(worker.commit(3, REPORT, now=1.0), released(3, hold=hold)) == ([NEXT], hold)


# Alone --------------------------------------------------------------------------------------------


def made(worker: Participant, steps: Sequence[int], *, now: float = 1.0) -> None:
    for step in steps:
        assert follow(worker.commit(step, REPORT, now=now)) == ([], False)


def told(*steps: int, step_time: float = 1.0) -> Arrive:
    return Arrive(
        round=1,
        step=steps[-1],
        phase="commit",
        made=[Made(step, step_time, REPORT) for step in steps],
    )


def test_batched_steps_are_reported_before_other_messages() -> None:
    worker = in_round("w1", company=5.0)
    made(worker, [0, 1])
    assert worker.outgoing() == []
    worker.say(Warn(message="x"))
    assert worker.outgoing() == [told(0, 1), Warn(message="x")]


def test_no_step_is_made_before_an_answer() -> None:
    worker = in_round("w1", company=5.0)
    made(worker, [0], now=6.0)
    assert worker.outgoing() == [told(0, step_time=6.0)]
    assert follow(worker.commit(1, REPORT, now=7.0)) == ([NEXT], "waits")
    assert follow(worker.commit(1, REPORT, now=7.0), released(0)) == ([NEXT], False)
    assert worker.outgoing() == []
    assert follow(worker.settle(), released(1, hold=True)) == ([NEXT], RoundChanged)


def test_an_answer_may_be_left_for_later() -> None:
    worker = in_round("w1")
    assert follow(worker.settle(0.1)) == ([], None)
    made(worker, [0])
    assert follow(worker.settle(0.1), None) == ([Receive(within=0.1)], None)
    assert follow(worker.settle(0.1), released(0)) == ([Receive(within=0.1)], None)
    assert follow(worker.settle()) == ([], None)


@pytest.mark.parametrize("message", [named(2, "w1"), WriteNow()])
def test_an_uncertain_step_is_given_to_nobody(message: Any) -> None:
    for company in (0.0, 5.0):
        worker = in_round("w1", company=company)
        made(worker, [0])
        assert follow(worker.poll(), message)[1] is ProtocolError


def test_an_idle_worker_reports_once_then_commits_normally() -> None:
    worker = in_round("w1", company=5.0)
    assert follow(worker.wait_for_data(0, 0.9)) == ([], None)
    made(worker, [0])
    assert follow(worker.wait_for_data(1, 1.0), released(0)) == ([NEXT], None)
    assert worker.outgoing() == [told(0), Idle(round=1)]
    assert follow(worker.wait_for_data(1, 2.0)) == ([], None)
    assert worker.outgoing() == []
    assert follow(worker.commit(1, REPORT, now=9.0), released(1, hold=True)) == ([NEXT], True)


def test_a_dismissed_worker_leaves_no_state() -> None:
    worker = in_round("w1")
    worker.is_heir = True
    with pytest.raises(SystemExit):
        worker.take(Dismissed())
    with pytest.raises(EnvironmentFault):
        worker.take(AgentGone())
    assert not worker.is_orphan


def test_an_heir_drops_its_step_and_leaves_state() -> None:
    worker = in_round("w1")
    worker.is_heir = True
    assert follow(worker.poll(), AgentGone())[1] is RoundChanged
    assert worker.is_orphan
    assert follow(worker.next_round(), None) == ([LeaveState()], SystemExit)
