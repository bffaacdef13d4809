"""A master's records of a job are true to its workers,
also where they die between two messages.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import recorded_run
from brim.coordination.job.barrier import COMMIT
from brim.coordination.job.membership import RunOutcome
from brim.domain.faults import parse_faults
from brim.domain.job import WorkerRange
from brim.errors import InternalError
from brim.host.clock import VirtualClock
from brim.master.entries import Before, Began
from brim.master.loop import Master
from brim.master.records import JOURNAL, Records
from brim.telemetry.history import read_history
from brim.telemetry.record_files import EVENTS, STEPS
from brim.wire import messages as wire

REPORT = msgspec.msgpack.encode(wire.StepReport(epoch=0, parts=[], seconds={}))
FACTS = wire.Facts(
    samples=8,
    test_samples=0,
    steps=4,
    steps_per_epoch=2,
    global_batch_size=4,
    epochs=2,
    seed=0,
    clip_norm=None,
    on_nan="warn",
    block_size=1,
    order="shuffled",
    order_size=8,
    parameters=1,
    quarantined=0,
    quarantine_path="",
    versions={},
    start_method="fork",
    transport="shm",
)


class Desk:
    """A master with agents that say the words of the test."""

    def __init__(self, directory: Path, *, workers: int, agents: int, **options: Any) -> None:
        self.clock = VirtualClock(100.0)
        self.directory = directory
        self.spec = recorded_run.spec(
            workers=WorkerRange(minimum=workers, maximum=workers),
            agents=agents,
            **{"faults": (), **options},
        )
        self.heard: dict[str, list[wire.MasterMessage]] = {}
        self.lives: list[int] = []
        self._said: dict[str, asyncio.Queue[wire.FromAgent | None]] = {}
        self._numbers: dict[str, int] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self.start()

    def start(self, attempt: str = "1") -> None:
        """Start a master; where there was one, it is dead by now."""
        self.records_of_master = Records(self.directory)
        decisions = self.records_of_master.open(attempt, self._begin, self.clock)
        self.master = Master(decisions, self.records_of_master, clock=self.clock)

    def _begin(self, life: int, earlier_life: Before) -> Began:
        return Began(
            at=self.clock.wall(),
            now=self.clock.now(),
            attempt="1",
            life=life,
            spec=self.spec,
            run=str(self.directory),
            started=0.0,
            before=earlier_life,
        )

    def kill(self) -> None:
        """The master dies: only the end of the streams tells of it."""
        self.close()
        self.records_of_master.close()

    async def join(
        self,
        agent: str,
        *,
        session: str = "s",
        life: int = 0,
        unheard: tuple[wire.Unheard, ...] = (),
    ) -> None:
        """Join, or come back, with a new stream."""
        queue = self._said[agent] = asyncio.Queue()
        messages = self.heard.setdefault(agent, [])

        async def requests() -> AsyncIterator[wire.FromAgent]:
            while (parcel := await queue.get()) is not None:
                yield parcel

        async def reply(parcel: wire.FromMaster) -> None:
            if isinstance(parcel.message, wire.Configure):
                self.lives.append(parcel.message.life)
            elif isinstance(parcel.message, wire.Refused) or parcel.number == len(messages) + 1:
                messages.append(parcel.message)

        self._tasks.append(asyncio.create_task(self.master.converse(requests(), reply)))
        join = wire.JoinJob(
            agent=agent, session=session, host="h", life=life, heard=len(messages), unheard=unheard
        )
        await self._put(agent, wire.FromAgent(0, len(messages), join))

    async def leave(self, agent: str) -> None:
        """The stream breaks."""
        await self._put(agent, None)

    async def _put(self, agent: str, parcel: wire.FromAgent | None) -> None:
        self.clock.advance(1.0)
        self._said[agent].put_nowait(parcel)
        for _ in range(8):
            await asyncio.sleep(0)

    async def say(self, agent: str, *messages: wire.AgentMessage) -> None:
        for message in messages:
            number = self._numbers[agent] = self._numbers.get(agent, 0) + 1
            await self._put(agent, wire.FromAgent(number, len(self.heard[agent]), message))

    async def say_again(self, agent: str, number: int, message: wire.AgentMessage) -> None:
        await self._put(agent, wire.FromAgent(number, len(self.heard[agent]), message))

    async def beat(self, agent: str) -> None:
        await self._put(agent, wire.FromAgent(0, len(self.heard[agent]), wire.Beat()))

    async def hear(self, agent: str, worker: str, message: wire.WorkerMessage) -> None:
        await self.say(agent, wire.FromWorker(worker=worker, message=message))

    async def ready(self, agent: str, *workers: str) -> None:
        for worker in workers:
            await self.hear(agent, worker, wire.Hello(address="h:1", layout="", facts=FACTS))

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    def records(self, name: str) -> list[dict[str, Any]]:
        return [
            msgspec.json.decode(line) for line in (self.directory / name).read_bytes().splitlines()
        ]

    def restored(self) -> list[dict[str, Any]]:
        return [event for event in self.records(EVENTS) if event["kind"] == "restored"]


def play(desk: Desk, story: Callable[[Desk], Awaitable[None]]) -> None:
    async def to_the_end() -> None:
        try:
            await story(desk)
        finally:
            desk.close()

    asyncio.run(to_the_end())


def commit(round: int, step: int, at: float, *, is_held: bool = False) -> wire.Commits:
    return wire.Commits(
        records=[wire.CommitRecord(round=round, step=step, at=at, payloads=[REPORT], held=is_held)]
    )


def test_late_arrivals_commit_no_replaced_round(tmp_path: Path) -> None:
    desk = Desk(tmp_path, workers=2, agents=2)

    def arrival(round: int) -> wire.ArriveTogether:
        return wire.ArriveTogether(round=round, step=0, phase=COMMIT, payloads=[REPORT])

    async def story(desk: Desk) -> None:
        await desk.join("A")
        await desk.join("B")
        await desk.ready("A", "w1")
        await desk.ready("B", "w2")
        await desk.say("A", arrival(1), wire.LoseWorker(worker="w1", reason="signal 9"))
        await desk.say("B", arrival(1))  # it did not know yet that it is alone in round 2

    play(desk, story)
    assert desk.records(STEPS) == []


async def lose_everyone(desk: Desk, *workers: str) -> None:
    """A step is committed, then all workers die."""
    await desk.join("A")
    await desk.ready("A", *workers)
    for worker in workers:
        await desk.hear("A", worker, wire.Installed(round=1, step=0))
    await desk.say("A", commit(1, 1, desk.clock.wall()))
    for worker in workers:
        await desk.say("A", wire.LoseWorker(worker=worker, reason="signal 9"))


def test_a_restore_is_as_old_as_its_round(tmp_path: Path) -> None:
    desk = Desk(tmp_path, workers=2, agents=1)

    async def story(desk: Desk) -> None:
        await lose_everyone(desk, "w1", "w2")
        await desk.ready("A", "w3")
        first_commit = desk.clock.wall() + 0.5  # while the news of the installation is under way
        await desk.hear("A", "w3", wire.Installed(round=3, step=0))
        await desk.say("A", commit(3, 1, first_commit))

    play(desk, story)
    undone, lasting_step = desk.records(STEPS)
    (restored,) = desk.restored()
    assert undone["at"] <= restored["at"] < lasting_step["at"]
    assert restored["commits"] == 1
    rounds = [message for message in desk.heard["A"] if isinstance(message, wire.InstallRound)]
    # The first may restore whatever there is; who restores later goes back behind what was
    # committed, not beyond.
    assert [restored_event.recorded for restored_event in rounds] == [None, 1, 1]


def test_the_first_teller_of_a_restore_records_it(tmp_path: Path) -> None:
    desk = Desk(tmp_path, workers=3, agents=1)

    async def story(desk: Desk) -> None:
        await lose_everyone(desk, "w1", "w2", "w3")
        await desk.ready("A", "w4", "w5", "w6")
        await desk.say("A", wire.LoseWorker(worker="w4", reason="signal 9"))
        # Round 5: w5 restores and gives to w6; it may die before its own words are heard.
        await desk.hear("A", "w6", wire.Installed(round=5, step=0))

    play(desk, story)
    assert [event["step"] for event in desk.restored()] == [0]


def test_the_metrics_outlive_who_should_have_told_them(tmp_path: Path) -> None:
    desk = Desk(tmp_path, workers=2, agents=1)

    async def story(desk: Desk) -> None:
        await desk.join("A")
        await desk.ready("A", "w1", "w2")
        # w1, the first rank, died behind the evaluation of the last epoch and before its words.
        await desk.say("A", wire.LoseWorker(worker="w1", reason="signal 9"))
        await desk.hear("A", "w2", wire.Completed(weights_sha256="00", metrics={"auc": 0.75}))
        await desk.say("A", wire.LoseWorker(worker="w2", reason="exit status 0"))
        await desk.say("A", wire.LoseWorker(worker="w3", reason="exit status 0"))

    play(desk, story)
    (ended,) = (event for event in desk.records(EVENTS) if event["kind"] == "run_ended")
    assert ended["summary"]["metrics"] == {"auc": 0.75}


@pytest.mark.parametrize("record_name", [STEPS, EVENTS, JOURNAL])
def test_a_run_that_cannot_be_recorded_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_name: str
) -> None:
    desk = Desk(tmp_path, workers=1, agents=1)
    full = (tmp_path / record_name).stat().st_ino
    write = os.pwrite

    def no_space(file: int, data: bytes, place: int) -> int:
        if os.fstat(file).st_ino == full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, data, place)

    async def story(desk: Desk) -> None:
        await desk.join("A")
        await desk.ready("A", "w1")
        await desk.hear("A", "w1", wire.Installed(round=1, step=0))
        monkeypatch.setattr(os, "pwrite", no_space)
        await desk.say("A", commit(1, 1, desk.clock.wall()))
        await desk.say("A", wire.LoseWorker(worker="w1", reason="signal 9"))
        monkeypatch.undo()

    play(desk, story)
    assert desk.master.ended.is_set()
    assert desk.master.outcome is RunOutcome.FAILED
    failures = [event["message"] for event in desk.records(EVENTS) if event["kind"] == "failed"]
    assert record_name == EVENTS or (len(failures) == 1 and "No space left" in failures[0])


@pytest.mark.parametrize("broken", ["a disk that fails", "records that were cut short"])
def test_nothing_is_permitted_that_is_not_on_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    desk = Desk(tmp_path, workers=1, agents=1)

    def fail(file: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    async def story(desk: Desk) -> None:
        await desk.join("A")
        await desk.ready("A", "w1")
        await desk.hear("A", "w1", wire.Installed(round=1, step=0))
        if broken == "a disk that fails":
            monkeypatch.setattr(os, "fsync", fail)
        else:
            monkeypatch.setattr(desk.records_of_master._files[EVENTS], "size", 0)
            await desk.say("A", wire.Warn(message="this has no place"))
        await desk.hear("A", "w1", wire.CheckpointDrafted(step=0))
        monkeypatch.undo()

    play(desk, story)
    assert isinstance(desk.heard["A"][-1], wire.EndRun)
    assert not any(
        isinstance(message, wire.ToWorker) and isinstance(message.message, wire.Publish)
        for message in desk.heard["A"]
    )
    assert desk.master.ended.is_set()


def test_a_full_disk_report_does_not_block_retries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(tmp_path, workers=1, agents=1)
    write = os.pwrite

    def room_for_a_short_line(file: int, data: bytes, place: int) -> int:
        return write(file, data[:300] if data.startswith(b"{") else data, place)

    async def story(desk: Desk) -> None:
        await desk.join("A")
        monkeypatch.setattr(os, "pwrite", room_for_a_short_line)
        await desk.ready("A", "w1")  # the first long event
        monkeypatch.undo()
        desk.kill()
        desk.start("2")

    play(desk, story)
    assert [event["kind"] for event in desk.records(EVENTS)] == ["failed", "warning"]
    assert desk.master._decisions.state.life == 1


@pytest.mark.parametrize("longest", [1 << 30, 1], ids=["resumed", "snapshots"])
def test_journal_and_records_agree_after_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, longest: int
) -> None:
    monkeypatch.setattr("brim.master.records._MAX_JOURNAL_BYTES", longest)
    on_disk: dict[int, int] = {}
    sync = os.fsync

    def remember(file: int) -> None:
        sync(file)
        on_disk[os.fstat(file).st_ino] = os.fstat(file).st_size

    monkeypatch.setattr(os, "fsync", remember)
    desk = Desk(tmp_path, workers=1, agents=1)

    async def story(desk: Desk) -> None:
        await desk.join("A")
        await desk.ready("A", "w1")
        await desk.hear("A", "w1", wire.Installed(round=1, step=0))
        await desk.say("A", commit(1, 1, desk.clock.wall()))
        desk.kill()
        desk.start("2")
        desk.records_of_master.close()

    play(desk, story)
    for name in (EVENTS, STEPS):
        os.truncate(tmp_path / name, on_disk.get((tmp_path / name).stat().st_ino, 0))
    desk.start("3")
    assert [record["step"] for record in desk.records(STEPS)] == [1]
    assert not (tmp_path / f"{JOURNAL}.damaged").exists()


def test_an_unreadable_journal_stops_only_its_attempt(
    tmp_path: Path,
) -> None:
    desk = Desk(tmp_path, workers=1, agents=1)

    async def story(desk: Desk) -> None:
        await desk.join("A")
        await desk.ready("A", "w1")
        desk.kill()

    play(desk, story)
    recorded = (tmp_path / EVENTS).read_bytes()
    altered = recorded.replace(b"ready", b"READY")  # as another version would have told it
    (tmp_path / EVENTS).write_bytes(altered)
    with pytest.raises(InternalError, match="another record"):
        desk.start("1")
    desk.records_of_master.close()
    desk.start("2")
    assert (tmp_path / EVENTS).read_bytes().startswith(altered)
    assert "cannot be followed" in desk.records(EVENTS)[-1]["message"]
    assert (tmp_path / f"{JOURNAL}.damaged").exists()
    desk.kill()
    desk.start("3")
    assert desk.master._decisions.state.life == 2


def test_more_workers_than_micro_batches_are_not_added(tmp_path: Path) -> None:
    desk = Desk(tmp_path, workers=1, agents=1, faults=parse_faults("add 7 at step 1"))

    async def story(desk: Desk) -> None:
        await desk.join("A")
        await desk.ready("A", "w1")
        assert (
            await desk.master.answer(wire.Ask(verb="resize", workers=8))
        ).ok  # by hand, before the fault
        await desk.say("A", commit(1, 1, desk.clock.wall()))

    play(desk, story)
    (warning,) = (event["message"] for event in desk.records(EVENTS) if event["kind"] == "warning")
    assert warning == "add 7 at step 1: 15 workers are more than the 8 micro-batches of a step"


def test_micro_batches_of_a_script_bound_its_workers(tmp_path: Path) -> None:
    desk = Desk(tmp_path, workers=1, agents=1)

    async def story(desk: Desk) -> None:
        await desk.join("A")
        hello = wire.Hello(address="h:1", layout="", facts=FACTS, micro_batches=16)
        await desk.hear("A", "w1", hello)
        answer = await desk.master.answer(wire.Ask(verb="resize", workers=17))
        need = "workers: got 17, need 1 to 16, the micro-batches of a step"
        assert (answer.ok, answer.detail) == (False, need)
        assert (await desk.master.answer(wire.Ask(verb="resize", workers=12))).ok

    play(desk, story)
    (started,) = (event for event in desk.records(EVENTS) if event["kind"] == "run_started")
    assert started["spec"]["micro_batches"] == 16, "as a resumed run has them"


def test_a_run_that_stops_is_not_resized(tmp_path: Path) -> None:
    desk = Desk(tmp_path, workers=1, agents=1)

    async def story(desk: Desk) -> None:
        await desk.join("A")
        await desk.ready("A", "w1")
        desk.master.stop("brim suspend")
        answer = await desk.master.answer(wire.Ask(verb="resize", workers=2))
        assert (answer.ok, answer.detail) == (False, "it is stopping: nothing is resized any more")

    play(desk, story)


@pytest.mark.parametrize("own_loop", [True, False])
def test_a_script_may_continue_after_its_loop(tmp_path: Path, own_loop: bool) -> None:
    source = {"file": "", "command": ("python", "loop.py")} if own_loop else {}
    desk = Desk(tmp_path, workers=1, agents=1, **source)

    def killed() -> bool:
        return any(isinstance(message, wire.SignalWorker) for message in desk.heard["A"])

    async def story(desk: Desk) -> None:
        await desk.join("A")
        await desk.ready("A", "w1")
        await desk.hear("A", "w1", wire.Completed(weights_sha256="00"))
        for _ in range(3):
            desk.clock.advance(16.0)
            await desk.beat("A")
            desk.master.look()
        await asyncio.sleep(0)
        assert killed() is not own_loop
        desk.master.stop("brim suspend")
        for _ in range(3):
            await asyncio.sleep(0)
        assert killed()

    play(desk, story)
    warnings = [event["message"] for event in desk.records(EVENTS) if event["kind"] == "warning"]
    assert len(warnings) == own_loop


def test_scripts_failing_after_their_loop_fail(tmp_path: Path) -> None:
    desk = Desk(tmp_path, workers=1, agents=1, file="", command=("python", "loop.py"))

    async def story(desk: Desk) -> None:
        await desk.join("A")
        await desk.ready("A", "w1")
        await desk.hear("A", "w1", wire.Completed(weights_sha256="00"))
        await desk.hear(
            "A", "w1", wire.JobFailed(who="spec", message="another loop over a job that has ended")
        )
        await desk.say("A", wire.LoseWorker(worker="w1", reason="exit status 1"))

    play(desk, story)
    ended = next(event for event in desk.records(EVENTS) if event["kind"] == "run_ended")
    assert ended["summary"]["exit"] == "failed"


def test_a_moved_restore_is_recorded_by_its_teller(
    tmp_path: Path,
) -> None:
    """The checkpoints are elsewhere: nothing here knows that there were steps before."""
    desk = Desk(tmp_path, workers=2, agents=1)

    async def story(desk: Desk) -> None:
        await desk.join("A")
        await desk.ready("A", "w1", "w2")
        await desk.hear("A", "w2", wire.Installed(round=1, step=57))
        await desk.hear(
            "A", "w1", wire.Installed(round=1, step=57, restored_from="s3://b/step-00000057")
        )

    play(desk, story)
    assert [event["step"] for event in desk.restored()] == [57]


def test_protocol_breakers_are_gone_in_every_life(tmp_path: Path) -> None:
    desk = Desk(tmp_path, workers=1, agents=1)

    async def story(desk: Desk) -> None:
        await desk.join("A")
        await desk.join("B")
        await desk.hear(
            "A", "w1", wire.Arrive(round=1, step=0, phase=COMMIT)
        )  # is for its agent alone
        await desk.beat("A")
        await desk.say("A", wire.Warn(message="it goes on"))
        assert "A" not in desk.master._connections
        await desk.join("A", life=1)
        desk.kill()
        desk.start()

    play(desk, story)
    lost = [event["reason"] for event in desk.records(EVENTS) if event.get("state") == "lost"]
    assert lost == ["its agent is gone"]
    assert "it goes on" not in [event.get("message") for event in desk.records(EVENTS)]
    assert list(desk.master._decisions.agents) == ["B"]
    assert any(isinstance(message, wire.Refused) and message.lost for message in desk.heard["A"])


def test_a_killed_agent_hears_the_end_later(
    tmp_path: Path,
) -> None:
    """The process that takes its place, and keeps the next master, has heard none of the messages to
    it.
    """

    desk = Desk(tmp_path, workers=1, agents=1)

    async def story(desk: Desk) -> None:
        await desk.join("A")
        await desk.say("A", wire.AskToStop(reason="enough"))
        await desk.say("A", wire.LoseWorker(worker="w1", reason="signal 9"))
        assert desk.master.outcome is RunOutcome.SUSPENDED
        desk.kill()
        desk.heard.clear()
        desk.start()
        await desk.join("A", session="of another process")
        assert desk.heard["A"] == [wire.EndRun(well=True)]
        await desk.beat("A")
        assert not desk.master._decisions.agents["A"].outbox.unacknowledged

    play(desk, story)
    assert [event["kind"] for event in desk.records(EVENTS)].count("run_ended") == 1


def test_a_run_never_begins_after_its_failure(tmp_path: Path) -> None:
    """One worker's mistake may be heard before another is ready: a reader of the records must
    still see it.
    """
    desk = Desk(tmp_path, workers=2, agents=1)

    async def story(desk: Desk) -> None:
        await desk.join("A")
        await desk.hear("A", "w2", wire.JobFailed(who="user", message="theirs", trace="Traceback"))
        await desk.ready("A", "w1")

    play(desk, story)
    assert read_history(tmp_path).failed is not None


def test_the_final_records_are_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal of a run that is done is never replayed: a power cut behind it must not take its
    last lines.
    """
    synced: set[int] = set()
    monkeypatch.setattr(os, "fsync", lambda file: synced.add(os.fstat(file).st_ino))
    desk = Desk(tmp_path, workers=1, agents=1)

    async def story(desk: Desk) -> None:
        await desk.join("A")
        await desk.ready("A", "w1")
        synced.clear()

    play(desk, story)
    desk.kill()
    assert {(tmp_path / name).stat().st_ino for name in (EVENTS, STEPS)} <= synced


def test_last_words_of_killed_agents_count_once(
    tmp_path: Path,
) -> None:
    """Some of it was heard, some was not; the worker that outlived it left the last
    commit as well.
    """
    desk = Desk(tmp_path, workers=1, agents=1)
    logged = wire.FromWorker(worker="w1", message=wire.Logged(epoch=0, step=4, values={"x": 1.0}))

    def unheard_message(number: int, message: wire.AgentMessage) -> wire.Unheard:
        return wire.Unheard(session="s" if number else "", number=number, message=message)

    async def story(desk: Desk) -> None:
        await desk.join("A")
        await desk.ready("A", "w1")
        await desk.hear("A", "w1", wire.Installed(round=1, step=0))
        await desk.say("A", commit(1, 1, 1.0))
        number_said = desk._numbers["A"]
        unheard = (
            unheard_message(number_said, commit(1, 1, 1.0)),
            unheard_message(number_said + 1, commit(1, 2, 2.0)),
            unheard_message(number_said + 2, commit(1, 3, 3.0)),
            unheard_message(0, commit(1, 3, 3.1)),
            unheard_message(0, commit(1, 4, 4.0)),
            unheard_message(0, logged),
        )
        for session in (
            "of another process",
            "of a third",
        ):  # the one was killed as soon as it was let in
            desk.kill()
            desk.heard.clear()
            desk.start()
            await desk.join("A", session=session, unheard=unheard)
        desk._numbers.clear()
        await desk.ready("A", "w4")  # w2 was to be the spare
        (second_round,) = [
            message for message in desk.heard["A"] if isinstance(message, wire.InstallRound)
        ]
        assert second_round.recorded == 4
        assert second_round.world.restore

    play(desk, story)
    assert [step["step"] for step in desk.records(STEPS)] == [1, 2, 3, 4]
    assert [event["values"] for event in desk.records(EVENTS) if event["kind"] == "logged"] == [
        {"x": 1.0}
    ]


def test_a_killed_protocol_breaker_stays_gone(tmp_path: Path) -> None:
    desk = Desk(tmp_path, workers=1, agents=1)

    async def story(desk: Desk) -> None:
        await desk.join("A")
        await desk.ready("A", "w1")
        desk.kill()
        desk.heard.clear()
        desk.start()
        gap = tuple(wire.Unheard(session="s", number=n, message=commit(1, n, 1.0)) for n in (8, 9))
        await desk.join("A", session="of another process", unheard=gap)
        assert desk.master.outcome is RunOutcome.FAILED

    play(desk, story)


@pytest.mark.parametrize(("agents", "lost"), [("A", []), ("AB", ["w1"])])
def test_only_agent_may_be_silent(tmp_path: Path, agents: str, lost: list[str]) -> None:
    """It was stopped, as its master, whose parent it is, sees: no process could go on without it."""
    desk = Desk(tmp_path, workers=len(agents), agents=len(agents))

    async def story(desk: Desk) -> None:
        for number, agent in enumerate(agents, start=1):
            await desk.join(agent)
            await desk.ready(agent, f"w{number}")
        desk.clock.advance(20.0)
        for agent in agents[1:]:
            await desk.beat(agent)
        desk.master.look()
        if agents == "A":
            await desk.hear("A", "w1", wire.Installed(round=1, step=0))
            await desk.say("A", commit(1, 1, desk.clock.wall()))

    play(desk, story)
    events = [e for e in desk.records(EVENTS) if e["kind"] == "worker" and e["state"] == "lost"]
    assert [event["worker"] for event in events] == lost
    assert len(desk.records(STEPS)) == (not lost)
    assert not desk.master.ended.is_set()


def test_early_news_of_lost_nodes_continues_the_run(tmp_path: Path) -> None:
    """Its connection stands, and 15 s would pass before its silence is one."""
    desk = Desk(tmp_path, workers=2, agents=2)

    async def story(desk: Desk) -> None:
        await desk.join("A")
        await desk.join("B")
        await desk.ready("A", "w1")
        await desk.ready("B", "w2")
        lose = wire.Ask(verb="lose", agent="B", reason="its node is lost")
        assert (await desk.master.answer(lose)).ok
        await desk.beat("A")
        rounds = [message for message in desk.heard["A"] if isinstance(message, wire.InstallRound)]
        assert [member.worker for member in rounds[-1].world.members] == ["w1"]
        assert (await desk.master.answer(lose)).ok  # it is gone already
        await desk.say("B", wire.LoseWorker(worker="w1", reason="what it says has no effect"))
        await desk.join("B", life=1)
        refused = desk.heard["B"][-1]
        assert isinstance(refused, wire.Refused)
        assert refused.lost

    play(desk, story)
    (lost,) = [e for e in desk.records(EVENTS) if e["kind"] == "worker" and e["state"] == "lost"]
    assert (lost["worker"], lost["agent"]) == ("w2", "B")
