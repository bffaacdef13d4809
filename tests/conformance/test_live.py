"""The further promises of a cluster of processes:
deaths, restarts, grace, and no device twice.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from brim.backends import live
from brim.backends.processes import Launch
from brim.coordination.cluster.reconcile import ByNode, Start
from brim.coordination.cluster.scheduled_jobs import Decided, Looked
from brim.coordination.cluster.sightings import NodeSeen, Reached
from brim.domain.cluster import Cluster
from brim.domain.lifecycle import Happening, Phase
from brim.domain.resizing import BELIEVED
from brim.domain.schedule import Admitted, Decision, Reason, Rejected, Snapshot, Standing
from brim.errors import SpecError
from brim.policies.brim import brim
from brim.policies.cycle import cycle
from brim.policies.placement import on_nodes
from brim.scheduler.cycles import decode_cycle, decode_memory, encode_cycle, encode_memory
from conformance.worlds import LiveWorld, measured, run
from submissions import submission

CLUSTER = Cluster.parse("1x8")


def decide(snapshot: Snapshot) -> Decision:
    return on_nodes(snapshot, cycle(snapshot, brim, placed=False))


@pytest.fixture
def world(tmp_path: Path) -> LiveWorld:
    return LiveWorld(CLUSTER, 2, tmp_path, grace=10.0)


def give(world: LiveWorld, **workers: int) -> None:
    """Apply a decision that names jobs as `job_1`."""
    snapshot = run(world.backend.observe())
    verdicts = tuple(
        Admitted(job=job, reason=Reason.NO_DEADLINE, promises=False) for job in snapshot.arrived
    )
    named = {job.replace("_", "-"): count for job, count in workers.items()}
    run(world.backend.apply(on_nodes(snapshot, Decision(workers=named, verdicts=verdicts))))


def phases(world: LiveWorld) -> list[str]:
    return [record.life.phase.value for record in world.book.jobs.values()]


def test_devices_are_anothers_only_once_they_are_free(world: LiveWorld) -> None:
    give(world, job_1=8)
    world.settle()
    give(world, job_1=3, job_2=5)
    assert world.processes.of("job-1").asked == ["start 8", "resize 3"]
    assert world.processes.of("job-2").asked == []  # job-1 still has 8 workers
    world.processes.of("job-1").workers = 4
    run(world.backend.look())
    assert world.processes.of("job-2").asked == []
    world.settle()
    assert world.processes.of("job-2").asked == ["start 5"]


UNFORESEEN = [
    ValueError("embedded null byte"),
    RuntimeError("Symlink loop from 'train.py'"),
    RecursionError("maximum recursion depth exceeded"),
    MemoryError(),
    SpecError("--include", got="'**x/*'", need="a glob"),
]


@pytest.mark.parametrize("error", UNFORESEEN, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("doing", ["start", "look"])
def test_what_a_job_raises_fails_that_job_alone(
    world: LiveWorld, monkeypatch: pytest.MonkeyPatch, doing: str, error: Exception
) -> None:
    real = getattr(world.processes, doing)

    def fail_at_the_first(launch: Launch, *arguments: Any) -> Any:
        if launch.job == "job-1":
            raise error
        return real(launch, *arguments)

    monkeypatch.setattr(world.processes, doing, fail_at_the_first)
    give(world, job_1=4, job_2=4)
    for _ in range(3):
        run(world.backend.look())
    assert phases(world) == ["failed", "running"]
    assert world.processes.of("job-2").asked == ["start 4"]
    assert world.processes.of("job-1").asked[-1] == "force 0"
    problem = world.book.jobs["job-1"].problem
    assert problem.startswith(f"the scheduler cannot {doing}")
    assert type(error).__name__ in problem


def test_what_a_master_raises_is_no_answer(
    world: LiveWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    give(world, job_1=8)
    world.settle()

    async def fail(*_: Any) -> None:
        raise OverflowError("a number of 200 digits")

    for verb in ("resize", "suspend", "force", "leave", "lose"):
        monkeypatch.setattr(world.processes, verb, fail)
    give(world, job_1=3, job_2=5)
    world.go_on(20.0)
    assert phases(world) == ["running", "admitted"]


def test_a_redundant_look_is_skipped(world: LiveWorld) -> None:
    give(world, job_1=8)
    world.settle()
    assert not world.backend._may_rest(), "processes of hosts may do anything at any time"
    world.backend._calm = lambda: True
    assert world.backend._may_rest()
    world.clock.advance(29.0)
    assert world.backend._may_rest()
    world.clock.advance(2.0)
    assert not world.backend._may_rest(), "what nobody thought of is seen some time"
    run(world.backend.look())
    assert world.backend._may_rest()
    looks = len(world.backend.looks)
    give(world, job_1=8)
    assert len(world.backend.looks) == looks, "the plan is what there is"
    world.backend.stir()
    assert not world.backend._may_rest()
    run(world.backend.look())
    give(world, job_1=3)
    assert not world.backend._may_rest(), "it is to give within its grace period"


def test_jobs_over_grace_period_are_forced(world: LiveWorld) -> None:
    give(world, job_1=8)
    world.settle()
    give(world, job_1=3)
    world.clock.advance(5.9)
    run(world.backend.look())
    assert world.processes.of("job-1").asked == ["start 8", "resize 3"]
    world.clock.advance(0.2)
    run(world.backend.look())
    assert world.processes.of("job-1").asked[-1] == "force 3"
    world.processes.say("job-1", step=1)
    run(world.backend.look())
    give(world)
    world.clock.advance(11.0)
    run(world.backend.look())
    assert world.processes.of("job-1").asked[-1] == "force 0"
    run(world.backend.look())
    assert phases(world)[0] == "suspended"
    event_names = [change.event for change in world.book.story(world.book.jobs["job-1"])]
    assert event_names.count("forced") == 2


def test_silent_jobs_are_forced_after_grace_period(world: LiveWorld) -> None:
    give(world, job_1=8)
    world.settle()
    world.processes.of("job-1").deaf = True
    give(world, job_1=2, job_2=6)
    world.clock.advance(7.9)
    run(world.backend.look())
    assert world.processes.of("job-1").asked == ["start 8", "resize 2", "resize 2"]
    world.clock.advance(0.2)
    run(world.backend.look())
    assert world.processes.of("job-1").asked[-1] == "force 0"
    run(world.backend.look())
    assert world.processes.of("job-2").asked == ["start 6"]  # 8.1 s after the plan that took them
    world.settle()
    assert [record.target for record in world.book.jobs.values()] == [2, 6]


def test_nothing_changes_while_the_node_agent_is_away(
    world: LiveWorld,
) -> None:
    give(world, job_1=2)
    world.settle()
    world.revive()
    world.processes.node = NodeSeen(up=False)  # the next scheduler has not called it yet
    give(world, job_1=2, job_2=2)
    assert phases(world) == ["running", "admitted"]
    assert world.processes.of("job-1").asked == ["start 2", "resize 2"]
    assert world.backend.problem == ""
    world.processes.node = NodeSeen(
        up=False, gone=True, lost=True, again=2.0, problem="its agent died"
    )
    world.processes.of("job-1").alive = False
    run(world.backend.look())
    last_event = world.book.story(world.book.jobs["job-1"])[-1]
    assert last_event.detail == "node node0: its agent died; it is started again in 2 s"
    assert phases(world) == ["suspended", "admitted"]
    world.processes.node = NodeSeen(up=True)
    run(world.backend.look())
    assert phases(world) == ["running", "running"]
    assert world.processes.of("job-1").asked[-1] == "start 2"


def test_a_delayed_restart_triggers_a_decision(
    world: LiveWorld,
) -> None:
    """Found by chaos: a policy that looked a moment after the job's time had come
    never decided about it.
    """
    world.cycle(decide)
    world.settle()
    for _ in range(2):
        for job in ("job-1", "job-2"):
            world.processes.of(job).alive = False
        run(world.backend.look())
    assert run(world.backend.wait(None))
    assert world.cycle(decide)[0].jobs == ()
    world.clock.advance(1.1)

    async def wait() -> bool:
        return await asyncio.wait_for(world.backend.wait(None), 5.0)

    assert run(wait())
    assert [state.job.id for state in run(world.backend.observe()).jobs] == ["job-1", "job-2"]


def test_steps_reset_the_restart_backoff(world: LiveWorld) -> None:
    give(world, job_1=2)
    for step in (10, 20, 30, 40, 50, 60):
        world.processes.say("job-1", step=step)
        run(world.backend.look())
        world.processes.end("job-1", "failed", who="environment", problem="no host is left")
        run(world.backend.look())
        assert world.book.jobs["job-1"].starts.setbacks == 1
    assert world.processes.of("job-1").starts == 7


def test_the_next_scheduler_adopts_running_jobs_once(world: LiveWorld) -> None:
    give(world, job_1=5, job_2=3)
    world.settle()
    world.revive()
    run(world.backend.look())
    snapshot = run(world.backend.observe())
    assert [state.workers for state in snapshot.jobs] == [5, 3]
    assert snapshot.arrived == ()
    assert world.processes.of("job-1").asked == [
        "start 5",
        "resize 5",
    ]  # whether it was heard is not known
    give(world, job_1=5, job_2=3)
    world.settle()
    assert world.processes.of("job-1").starts == 1


def test_another_life_finds_what_ended_meanwhile(world: LiveWorld) -> None:
    give(world, job_1=5, job_2=3)
    world.settle()
    world.processes.end("job-1", "done", summary={"exit": "done"})
    world.processes.end("job-2", "")
    world.revive()
    run(world.backend.look())
    assert phases(world) == ["done", "running"]
    assert world.processes.of("job-2").starts == 2
    assert world.book.jobs["job-1"].summary == {"exit": "done"}


def test_a_recorded_start_is_carried_out_after_restart(world: LiveWorld) -> None:
    """A scheduler that was killed between its note and the processes."""
    give(world)
    world.backend.handle(Decided(Decision(workers={"job-1": 4}, nodes={"job-1": {"node0": 4}})))
    steps = world.backend.handle(Looked({"node0": NodeSeen(up=True)}, {}))
    assert Start("job-1", {"node0": 4}) in steps
    world.revive()
    run(world.backend.look())
    assert phases(world)[0] == "running"
    assert world.processes.of("job-1").asked == ["start 4"]


def test_a_job_cancelled_while_asking_is_not_started(
    world: LiveWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    give(world, job_1=8)
    world.settle()
    answer = world.processes.resize

    async def cancel_meanwhile(launch: Launch, workers: ByNode) -> None:
        world.wish("job-2", Happening.CANCEL)
        await answer(launch, workers)

    monkeypatch.setattr(world.processes, "resize", cancel_meanwhile)
    give(world, job_1=2, job_2=2)
    world.settle()
    assert phases(world) == ["running", "cancelled"]
    assert world.processes.of("job-2").asked == []


def test_starts_are_carried_out_before_questions(
    world: LiveWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So no decision can change between the note of a start and the start."""
    give(world, job_1=4)
    world.settle()

    async def who_runs(launch: Launch, workers: ByNode) -> None:
        assert world.processes.of("job-2").asked == ["start 2"]

    monkeypatch.setattr(world.processes, "resize", who_runs)
    give(world, job_1=2, job_2=2)
    assert phases(world) == ["running", "running"]


def test_deadlines_are_judged_after_measurement(world: LiveWorld) -> None:
    late = world.submit("1:8", deadline=world.clock.wall() + 1000.0, fingerprint="other")
    snapshot, _ = world.cycle(decide)
    assert late.id not in snapshot.arrived
    assert snapshot.jobs[-1].job.deadline is None
    world.settle()
    assert late.running  # the surplus measures it
    rates = {1: 2.0, 2: 3.0, 4: 4.0, 8: 5.0}
    world.processes.say(
        late.id, steps=900, step=20, first_step=world.clock.wall(), measured=measured(rates)
    )
    run(world.backend.look())
    run(world.backend.look())
    snapshot, decision = world.cycle(decide)
    assert snapshot.arrived == (late.id,)
    assert late.promised
    assert late.judgement.standing is Standing.ADMITTED
    assert [type(verdict) for verdict in decision.verdicts] == [Admitted]
    twin = world.submit("1:8", deadline=world.clock.wall() + 1.0, fingerprint="other")
    snapshot, decision = world.cycle(decide)  # known from its twin, before it has run
    assert snapshot.arrived == (twin.id,)
    assert [type(verdict) for verdict in decision.verdicts] == [Rejected]
    assert (twin.promised, twin.life.phase) == (False, Phase.ADMITTED)


@pytest.mark.parametrize(("to_spare", "promised"), [(0.0, False), (0.02, False), (0.05, True)])
def test_promises_include_the_end_and_a_margin(
    tmp_path: Path, to_spare: float, promised: bool
) -> None:
    world = LiveWorld(CLUSTER, 0, tmp_path)
    steps, rate = 900, 5.0
    world.book.learn(submission("8", fingerprint="known"), measured({8: rate}), steps)
    shortest = BELIEVED.cost(0, 8) + steps / rate * (1.0 + to_spare) + BELIEVED.end + BELIEVED.doubt
    job = world.submit("8", deadline=world.clock.wall() + shortest, fingerprint="known")
    world.cycle(decide)
    assert (job.judgement.judged, job.promised) == (True, promised)


def test_a_promise_survives_expected_start_and_end_costs(tmp_path: Path) -> None:
    world = LiveWorld(CLUSTER, 0, tmp_path)
    world.book.learn(submission("8", fingerprint="known"), measured({8: 1e6}), 900)
    in_time = BELIEVED.cost(0, 8) + BELIEVED.end + BELIEVED.doubt
    for deadline, promised in ((in_time - 0.1, False), (in_time + 0.1, True)):
        job = world.submit("8", deadline=world.clock.wall() + deadline, fingerprint="known")
        world.cycle(decide)
        assert job.promised == promised
        world.wish(job.id, Happening.CANCEL)


def test_cycles_and_their_memory_survive_as_bytes(world: LiveWorld) -> None:
    world.submit("1:8", deadline=world.clock.wall() + 1000.0)
    world.cycle(decide)
    world.processes.say("job-1", steps=900)
    run(world.backend.look())
    memory_before = world.backend.memory
    snapshot, decision = world.cycle(decide)
    assert any(isinstance(verdict, Admitted) and verdict.promises for verdict in decision.verdicts)
    saw, decided = decode_cycle(encode_cycle(snapshot, decision))
    assert isinstance(saw, Snapshot)
    assert encode_cycle(saw, decided) == encode_cycle(snapshot, decision)
    memory = decode_memory(encode_memory(decision.memory, policy="brim"), policy="brim")
    assert memory == decision.memory
    from dataclasses import replace

    replayed = decide(replace(saw, memory=memory_before))
    assert encode_cycle(saw, replayed) == encode_cycle(snapshot, decision)
    assert replayed.memory == memory


def test_an_unresponsive_master_blocks_no_other_job(
    world: LiveWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    give(world, job_1=3, job_2=3)
    world.settle()
    resize = world.processes.resize

    async def only_the_second(launch: Launch, workers: ByNode) -> None:
        if launch.job == "job-1":
            await asyncio.sleep(3600.0)
        await resize(launch, workers)

    async def story() -> None:
        started = asyncio.get_running_loop().time()
        snapshot = await world.backend.observe()
        await world.backend.apply(on_nodes(snapshot, Decision(workers={"job-1": 4, "job-2": 4})))
        await world.backend.apply(on_nodes(snapshot, Decision(workers={"job-1": 3, "job-2": 5})))
        assert asyncio.get_running_loop().time() - started < 10.0
        assert [state.workers for state in snapshot.jobs] == [3, 3]

    monkeypatch.setattr(world.processes, "resize", only_the_second)
    run(story())
    # The fourth device of job-1 is nobody else's: it may have heard.
    assert world.processes.of("job-2").asked == ["start 3", "resize 4"]


def test_stuck_masters_of_a_tenant_leave_others_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "_MOST_QUESTIONS", 2)
    world = LiveWorld(Cluster.parse("1x8"), 0, tmp_path)
    for tenant in ("ads", "ads", "ads", "web"):
        world.submit(tenant=tenant)
    give(world, job_1=1, job_2=1, job_3=1, job_4=1)
    world.settle()
    resize, questions = world.processes.resize, list[str]()

    async def only_of_web(launch: Launch, workers: ByNode) -> None:
        questions.append(launch.job)
        if launch.job != "job-4":
            await asyncio.sleep(3600.0)
        await resize(launch, workers)

    async def story() -> None:
        snapshot = await world.backend.observe()
        plan = {f"job-{k}": 2 for k in (1, 2, 3, 4)}
        await world.backend.apply(on_nodes(snapshot, Decision(workers=plan)))

    monkeypatch.setattr(world.processes, "resize", only_of_web)
    run(story())
    assert questions == ["job-1", "job-2", "job-4"]
    assert world.processes.of("job-4").asked == ["start 1", "resize 2"]


def test_answers_of_ended_processes_are_ignored(
    world: LiveWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    give(world, job_1=8)
    world.settle()

    async def answers_late(launch: Launch, workers: ByNode) -> None:
        await asyncio.sleep(0.2)

    async def story() -> None:
        snapshot = await world.backend.observe()
        await world.backend.apply(on_nodes(snapshot, Decision(workers={"job-1": 2})))
        world.processes.end("job-1", "")
        await world.backend.look()  # started again, on the 2 workers of the plan
        await asyncio.sleep(0.2)
        await world.backend.look()

    monkeypatch.setattr(world.processes, "resize", answers_late)
    run(story())
    assert world.processes.of("job-1").asked == ["start 8", "start 2"]
    assert (world.book.jobs["job-1"].target, world.book.jobs["job-1"].starts.launches) == (2, 2)


def test_a_new_model_is_profiled_then_judged(tmp_path: Path) -> None:
    world = LiveWorld(CLUSTER, 0, tmp_path)
    new = world.submit("1:8", deadline=world.clock.wall() + 1000.0, fingerprint="new")
    taught: dict[int, float] = {}
    step = 0
    for size, rate in ((1, 10.0), (2, 18.0), (4, 30.0), (8, 45.0)):
        world.cycle(decide)
        world.settle()
        assert (new.target, new.judgement.judged) == (size, False)
        taught[size], step = rate, step + 20
        looks = {"step": step, "steps": 9000, "measured": measured(taught, 60)}
        world.processes.say(new.id, first_step=world.clock.wall(), **looks)
        run(world.backend.look())
        world.clock.advance(5.0)
        run(world.backend.look())
    assert new.profile is None
    world.cycle(decide)
    assert new.promised
    assert new.starts.launches == 1
    details = [change.detail for change in world.book.story(new) if change.event == "measured"]
    assert details == [
        f"at {n} worker{'s' * (n > 1)}: {rate:.3g} steps/s" for n, rate in taught.items()
    ]
    twin = world.submit("1:8", deadline=world.clock.wall() + 1000.0, fingerprint="new")
    world.cycle(decide)
    assert twin.judgement.judged  # the profile was kept


def test_a_needed_profile_size_is_given_up(
    world: LiveWorld,
) -> None:
    new = world.submit("1:8", fingerprint="new")
    give(world, job_1=4, job_2=3, job_3=1)
    world.settle()
    world.processes.say(new.id, first_step=world.clock.wall(), measured=measured({1: 10.0}))
    run(world.backend.look())
    run(world.backend.look())
    assert new.profile is not None
    assert new.profile.size == 2
    assert run(world.backend.observe()).jobs[-1].job.maximum == 2
    world.revive()  # the profile outlives the scheduler
    world.clock.advance(21.0)
    run(world.backend.look())
    assert world.book.jobs[new.id].profile is None
    assert run(world.backend.observe()).jobs[-1].job.maximum == 8
    gang = world.submit("1:8", fingerprint="another")
    give(world, job_4=8)
    world.settle()
    assert gang.target == 8
    world.processes.say(gang.id, first_step=world.clock.wall())
    run(world.backend.look())
    assert gang.profile is None


def test_a_suspended_profile_is_judged_by_its_measurements(world: LiveWorld) -> None:
    new = world.submit("1:8", deadline=world.clock.wall() + 1000.0, fingerprint="new")
    give(world, job_3=1)
    world.settle()
    world.processes.say(
        new.id, first_step=world.clock.wall(), step=30, steps=900, measured=measured({1: 10.0})
    )
    run(world.backend.look())
    assert run(world.backend.observe()).arrived == ()
    give(world)
    world.settle()
    assert new.life.phase is Phase.SUSPENDED
    assert run(world.backend.observe()).arrived == (new.id,)


def test_steps_that_are_counted_in_place_are_noticed(world: LiveWorld) -> None:
    """As `RunWatch` does: the value that was seen last is the one that grows."""
    new = world.submit("4", deadline=world.clock.wall() + 1000.0, fingerprint="new")
    world.cycle(decide)
    world.settle()
    counted = measured({4: 10.0}, steps=2)
    world.processes.say(new.id, first_step=world.clock.wall(), steps=900, measured=counted)
    run(world.backend.look())
    assert run(world.backend.observe()).arrived == ()
    run(world.backend.wait(None))
    for _ in range(5):
        counted.add(4, 0.1)
    assert run(
        world.backend.wait(world.clock.wall() + 1e6)
    )  # at once: nobody waits for the next plan
    assert run(world.backend.observe()).arrived == (new.id,)


def test_what_starts_resizes_and_ends_cost_is_measured(world: LiveWorld) -> None:
    assert run(world.backend.observe()).overheads == BELIEVED.paid_ahead
    looks: dict[str, Any] = {"steps": 900, "measured": measured({2: 10.0, 4: 20.0})}
    for done in (0, 6, 12):
        give(world, job_1=2)
        world.settle()
        world.clock.advance(2.1)
        started = world.clock.wall()
        world.processes.say(
            "job-1",
            reached=Reached(2, started, done + 1),
            last_step=started,
            step=done + 1,
            **looks,
        )
        run(world.backend.look())
        give(world, job_1=4)
        world.settle()
        # 0.5 s pass: 4 steps on 2 workers, and the first on 4, for which 4 workers would have taken
        # 0.25 s.
        world.clock.advance(0.5)
        world.processes.say(
            "job-1",
            reached=Reached(4, started + 0.5, done + 6),
            last_step=started + 0.5,
            step=done + 6,
            **looks,
        )
        run(world.backend.look())
        world.processes.say("job-1", reached=None)
        give(world)
        world.settle()
    overheads = run(world.backend.observe()).overheads
    assert overheads.cost(0, 4) == pytest.approx(2.0 + BELIEVED.end)
    assert overheads.cost(2, 4) == pytest.approx(0.25 + BELIEVED.end)
    assert overheads.end == BELIEVED.end
    world.revive()
    assert run(world.backend.observe()).overheads == overheads


def test_device_handover_time_is_measured(world: LiveWorld) -> None:
    assert run(world.backend.observe()).overheads.doubt == BELIEVED.doubt
    give(world, job_1=8)
    world.settle()
    for number, waited in enumerate((0.7, 0.0, 1.9, 0.4)):
        job, other_job = ("job-2", "job-1") if number % 2 == 0 else ("job-1", "job-2")
        world.processes.say(other_job, step=number + 1)
        run(world.backend.look())
        give(world, **{job.replace("-", "_"): 8})
        world.clock.advance(waited)
        world.settle()
        assert world.processes.of(job).alive
    overheads = run(world.backend.observe()).overheads
    assert overheads.doubt == pytest.approx(0.7)  # the longest but one; nobody waited 0 s for
    world.revive()
    assert run(world.backend.observe()).overheads == overheads
