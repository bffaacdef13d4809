"""A master beside workers that hang, end by themselves, or sit on hosts that cannot take part."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from brim.coordination.job.membership import RunOutcome
from brim.wire import messages as wire
from edges.test_master import Desk

HANG = wire.Hang(round=1, step=1, stack='  File "train.py", line 3, in loss')


def play(tmp_path: Path, story: Callable[[Desk], Awaitable[None]], **options: int) -> Desk:
    async def live() -> Desk:
        desk = Desk(tmp_path, **{"workers": 2, "agents": 1, **options})
        try:
            await story(desk)
        finally:
            desk.close()
        return desk

    return asyncio.run(live())


async def begin(desk: Desk, *agents: str) -> None:
    """Round 1 is under way: w1 and w2 have the state."""
    for agent in agents:
        await desk.join(agent)
    agents_of = {"w1": agents[0], "w2": agents[-1]}
    for worker, agent in agents_of.items():
        await desk.ready(agent, worker)
    for worker, agent in agents_of.items():
        await desk.hear(agent, worker, wire.Installed(round=1, step=0))


def warnings(desk: Desk) -> list[str]:
    return [
        event["message"] for event in desk.records("events.jsonl") if event["kind"] == "warning"
    ]


def to_worker(desk: Desk, agent: str, kind: type) -> list[str]:
    return [
        message.worker
        for message in desk.heard[agent]
        if isinstance(message, wire.ToWorker) and isinstance(message.message, kind)
    ]


def holds(desk: Desk) -> int:
    return sum(isinstance(message, wire.HoldRound) for message in desk.heard["A"])


def signals(desk: Desk, agent: str) -> list[tuple[str, str]]:
    return [(m.worker, m.reason) for m in desk.heard[agent] if isinstance(m, wire.SignalWorker)]


LATE = wire.Late(worker="w2", doing="in step 1", seconds=8.0, limit=1800.0, stack=HANG.stack)


def test_awaited_workers_are_described_fully(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        await begin(desk, "A")
        await desk.say("A", LATE)

    (warning,) = warnings(play(tmp_path, story))
    assert warning.startswith(
        "waiting for w2 (rank 1), which has been in step 1 for 8 s and is given up at 30m"
    )
    assert warning.endswith(HANG.stack)


@pytest.mark.parametrize("late", [True, False])
def test_a_stopping_run_skips_late_workers(tmp_path: Path, late: bool) -> None:
    async def story(desk: Desk) -> None:
        await begin(desk, "A")
        await desk.say("A", LATE)
        if not late:
            await desk.say("A", wire.OnTime(worker="w2"))
        desk.master.stop("asked")
        desk.clock.advance(9.0)
        desk.master.look()
        await desk.beat("A")
        assert signals(desk, "A") == []
        desk.clock.advance(2.0)
        desk.master.look()
        await desk.beat("A")
        assert signals(desk, "A") == ([("w2", "in step 1 when the run was to end")] if late else [])
        if late:
            await desk.say(
                "A", wire.LoseWorker(worker="w2", reason="in step 1 when the run was to end")
            )
            assert to_worker(desk, "A", wire.WriteNow) == ["w1"]
            await desk.hear("A", "w1", wire.NowWritten())
            await desk.say("A", wire.LoseWorker(worker="w1", reason="exit status 0"))
            assert desk.master.outcome is RunOutcome.SUSPENDED

    play(tmp_path, story)


@pytest.mark.parametrize("dies", [False, True])
def test_newcomers_wait_half_a_second_for_others(tmp_path: Path, dies: bool) -> None:
    """Also behind a master that has taken over."""

    async def story(desk: Desk) -> None:
        await begin(desk, "A")
        assert (await desk.master.answer(wire.Ask(verb="resize", workers=4))).ok
        await desk.ready("A", "w3")
        desk.master.look()
        await desk.beat("A")
        assert holds(desk) == 0
        if dies:
            desk.kill()
            desk.start()
            await desk.join("A", life=1)
        desk.clock.advance(0.6)
        desk.master.look()
        await desk.beat("A")
        assert holds(desk) == 1

    play(tmp_path, story)


@pytest.mark.parametrize(("round", "fails"), [(1, False), (2, True)])
def test_the_second_hang_of_a_step_is_fatal(tmp_path: Path, round: int, fails: bool) -> None:
    async def story(desk: Desk) -> None:
        await begin(desk, "A")
        for worker, number in (("w1", 1), ("w2", round)):
            hang = wire.Hang(round=number, step=1, stack=HANG.stack)
            await desk.say(
                "A", wire.LoseWorker(worker=worker, reason="no progress for 5.0 s", hang=hang)
            )

    failed = [e for e in play(tmp_path, story).records("events.jsonl") if e["kind"] == "failed"]
    assert bool(failed) is fails
    if fails:
        assert failed[0]["who"] == "user"
        assert "hangs: no progress for 5.0 s" in failed[0]["message"]
        assert HANG.stack in failed[0]["trace"]


def test_self_ending_workers_fail_the_run_at_second(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        await begin(desk, "A")
        for worker in ("w1", "w2"):
            await desk.say(
                "A", wire.LoseWorker(worker=worker, reason="exit status 0", by_itself=True)
            )

    events = play(tmp_path, story).records("events.jsonl")
    words = "ended by itself with exit status 0 at step 0, before the job was done"
    assert [e["reason"] for e in events if e["kind"] == "worker" and e["state"] == "lost"] == [
        words
    ]
    (failed,) = [e for e in events if e["kind"] == "failed"]
    assert failed["who"] == "user"
    assert f"w2 (rank 0) {words}" in failed["message"]


@pytest.mark.parametrize("under_way", [True, False])
def test_an_unsuitable_host_is_left_out(tmp_path: Path, under_way: bool) -> None:
    failure = wire.JobFailed(who="spec", message="train.py: got no such file on this host")

    async def story(desk: Desk) -> None:
        if under_way:
            await begin(desk, "A")
        else:
            await desk.join("A")
        await desk.join("B")
        await desk.say("B", wire.Decline(failure=failure))

    desk = play(tmp_path, story)
    failed = [e["message"] for e in desk.records("events.jsonl") if e["kind"] == "failed"]
    assert failed == ([] if under_way else [failure.message])
    assert any("cannot take part" in text for text in warnings(desk)) is under_way


@pytest.mark.parametrize(
    ("agents", "is_elsewhere", "delay", "lost"),
    [
        ("AB", True, 0.05, False),
        ("AB", True, 0.2, True),
        ("AB", False, 0.2, False),
        ("AB", False, 0.4, True),
        ("BB", True, 0.4, False),
        ("BB", True, 1.9, False),
        ("BB", True, 2.1, True),
    ],
)
def test_a_needed_agent_is_awaited(
    tmp_path: Path, agents: str, is_elsewhere: bool, delay: float, lost: bool
) -> None:
    """One that lives calls again at once; one that is started again may have commits to tell that
    no other has. On the master's host, the command starts another in its place.
    """

    async def story(desk: Desk) -> None:
        await begin(desk, *agents)
        desk.master._decisions.agents["B"].keeps = is_elsewhere
        await desk.leave("B")
        desk.clock.advance(delay)
        desk.master.look()
        if lost and "A" in agents:
            await desk.hear("A", "w1", wire.Installed(round=2, step=0))

    desk = play(tmp_path, story, agents=len(set(agents)))
    events = desk.records("events.jsonl")
    states = [event["state"] for event in events if event.get("worker") == "w2"]
    assert ("lost" in states) == lost
    if lost and "A" in agents:
        assert [event["seconds"] for event in events if event["kind"] == "re_formed"] == [1.0]


def test_callers_are_awaited_although_others_continue(tmp_path: Path) -> None:
    """On a busy host seconds pass from its call until it has said its name."""

    async def story(desk: Desk) -> None:
        await begin(desk, *"AB")
        await desk.leave("B")
        called = desk.clock.now() + 0.01
        desk.master.called_at = lambda: called
        for seconds, lost in ((0.2, False), (1.7, False), (0.2, True)):
            desk.clock.advance(seconds)
            desk.master.look()
            assert ("B" not in desk.master._decisions.agents) is lost

    play(tmp_path, story, agents=2)


@pytest.mark.parametrize(("agents", "patience"), [("AB", 0.1), ("BB", 12.0)])
def test_a_needed_disconnected_host_is_awaited(
    tmp_path: Path, agents: str, patience: float
) -> None:
    async def story(desk: Desk) -> None:
        await begin(desk, *agents)
        desk.master._decisions.agents["B"].keeps = True
        desk.clock.advance(2.0)
        await desk.leave("B")  # 3 s behind its last word
        for seconds, lost in ((patience - 0.05, False), (0.1, True)):
            desk.clock.advance(seconds)
            desk.master.look()
            assert ("B" not in desk.master._decisions.agents) is lost

    play(tmp_path, story, agents=len(set(agents)))


def test_agents_ahead_of_the_master_are_rejected(
    tmp_path: Path,
) -> None:
    """It followed a master that was lost with all copies: steps that only it knows are no more."""

    async def story(desk: Desk) -> None:
        await begin(desk, "A")
        place = wire.JournalPlace("of another master", 9)
        join = wire.JoinJob(agent="B", session="b", host="h", life=3, keeps=True, told=place)
        for _ in range(3):
            refused = desk.master._admit(join)
            assert refused is not None
            assert refused.lost

    (warning,) = warnings(play(tmp_path, story))
    assert warning.startswith("agent B was turned away: it knows of what is in no copy")


def test_a_run_without_hosts_says_it_waits(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        await begin(desk, "A")
        desk.master._decisions._rendezvous.stands_alone = True
        desk.master._lose("A", "gone")
        assert desk.master.outcome is RunOutcome.FAILED, "it has none yet"
        assert not desk.master.ended.is_set()

    assert "no host is left: the run waits at step 0" in warnings(play(tmp_path, story))[-1]


def test_masters_after_handover_tell_nothing(tmp_path: Path) -> None:
    """While it sees off followers of the run, its port is open and its records are about to be
    closed: an agent that it let in again would hear that the run has failed.
    """

    async def story(desk: Desk) -> None:
        await begin(desk, "A", "B")
        desk.master.leave()
        for agent in ("A", "B"):
            await desk.leave(agent)
        counts_heard = {agent: len(desk.heard[agent]) for agent in ("A", "B")}
        lives = len(desk.lives)
        await desk.join("A", life=1)
        desk.records_of_master.close()
        await desk.say("A", wire.LoseWorker(worker="w1", reason="signal 9"))
        assert len(desk.lives) == lives
        assert {agent: len(desk.heard[agent]) for agent in ("A", "B")} == counts_heard

    play(tmp_path, story)


def test_a_master_that_stood_still_loses_nobody(tmp_path: Path) -> None:
    """The words of its agents are still to be read."""

    async def story(desk: Desk) -> None:
        await begin(desk, "A", "B")
        ticking = asyncio.create_task(desk.master.tick())
        await asyncio.sleep(0.01)
        desk.clock.advance(60.0)
        await asyncio.sleep(0.3)
        ticking.cancel()

    desk = play(tmp_path, story, agents=2)
    assert not [event for event in desk.records("events.jsonl") if event.get("state") == "lost"]
