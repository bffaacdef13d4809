from __future__ import annotations

import random

import pytest

from brim.domain.cluster import Cluster
from brim.domain.resizing import OVERHEADS, Overheads
from brim.domain.scaling import ScalingCurve
from brim.domain.schedule import Decision, Policy, Snapshot
from brim.domain.workload import Job
from brim.errors import InternalError
from brim.policies.baselines.edf import admit_all, edf
from brim.policies.baselines.fifo_gang import fifo_gang
from brim.policies.brim import brim
from brim.simulator.courses import course_of
from brim.simulator.engine import Settings, simulate
from brim.simulator.generate import Recipe, generate
from brim.simulator.run import measure
from brim.user_code.policies import POLICIES
from brim_lab.experiments.simulated import around_a_service, two_jobs
from workloads import CONCAVE, random_jobs

CLUSTER = Cluster.parse("2x8")


def test_finish_times_are_exact_including_starts() -> None:
    job = Job(id="a", submitted=100.0, work=750.0, curve=CONCAVE, deadline=500.0)
    run = simulate([job], CLUSTER, edf, settings=Settings(overheads=OVERHEADS["published"]))
    # 16 workers at 7.5 steps/s, after 2 + 2 * 5 seconds
    assert run.outcomes[0].finished == pytest.approx(100.0 + 12.0 + 100.0)


def test_a_slot_delays_arrivals_but_not_finishes() -> None:
    jobs = [
        Job(id=name, submitted=submitted_at, work=75.0, curve=CONCAVE)
        for name, submitted_at in (("a", 0.0), ("b", 1.0))
    ]
    world = Settings(slot=60.0, overheads=OVERHEADS["none"])
    first, second = simulate(jobs, CLUSTER, edf, settings=world).outcomes
    assert first.finished == pytest.approx(10.0)
    assert second.started == pytest.approx(60.0)


@pytest.mark.parametrize(
    ("arrivals", "cycles_of_arrivals"),
    [
        ((0.0, 1.0), (0.0, 60.0)),
        ((0.0, 104.0), (0.0, 104.0)),  # behind an end at 100
        ((0.0, 104.0, 130.0), (0.0, 104.0, 164.0)),
        ((0.0, 59.0, 99.0, 125.0), (0.0, 60.0, 120.0, 180.0)),
    ],
)
def test_an_end_delays_no_arrival(
    arrivals: tuple[float, ...], cycles_of_arrivals: tuple[float, ...]
) -> None:
    found: dict[str, float] = {}

    def watched(snapshot: Snapshot) -> Decision:
        found.update(dict.fromkeys(snapshot.arrived, snapshot.now))
        return fifo_gang(snapshot)

    jobs = [
        Job(id=str(k), submitted=arrival, work=100.0, curve=CONCAVE)
        for k, arrival in enumerate(arrivals)
    ]
    simulate(jobs, CLUSTER, watched, settings=Settings(slot=60.0, overheads=OVERHEADS["none"]))
    assert tuple(found.values()) == cycles_of_arrivals


@pytest.mark.parametrize("policy", ["brim", "elasticflow"])
@pytest.mark.parametrize("end", [53.0, 70.0, 103.0])
def test_deadlines_depend_on_no_other_end(policy: str, end: float) -> None:
    """With 46 s to spare and a slot of 60 s, a job was late where another had just ended."""
    jobs = [
        Job(id="a", submitted=0.0, work=7.5 * end, curve=CONCAVE),
        Job(id="b", submitted=104.0, work=7.5 * 100.0, curve=CONCAVE, deadline=250.0),
    ]
    world = Settings(slot=60.0, overheads=OVERHEADS["none"])
    run = simulate(jobs, CLUSTER, POLICIES[policy], settings=world)
    assert measure(run).deadline_satisfactory_ratio == 1.0


def test_a_policy_that_overdraws_the_cluster_is_caught() -> None:
    def greedy(snapshot: Snapshot) -> Decision:
        return Decision(workers={s.job.id: 16 for s in snapshot.jobs}, verdicts=admit_all(snapshot))

    with pytest.raises(InternalError, match="used 32 of 16"):
        simulate(random_jobs(1, 2, spread=0.0), CLUSTER, greedy)


def test_a_starving_policy_is_caught() -> None:
    def idle(snapshot: Snapshot) -> Decision:
        return Decision(workers={}, verdicts=admit_all(snapshot))

    with pytest.raises(InternalError, match="waiting for ever"):
        simulate(random_jobs(1, 1), CLUSTER, idle)


def test_seeds_repeat_runs_and_failures_cost_time() -> None:
    jobs = random_jobs(3, 20)
    world = Settings(failures=3600.0, stragglers=0.3, profile_error=0.2, seed=7)
    once, second_run = (measure(simulate(jobs, CLUSTER, brim, settings=world)) for _ in range(2))
    calm = measure(simulate(jobs, CLUSTER, brim, settings=Settings()))
    assert once == second_run
    assert (once.average_jct_seconds or 0) > (calm.average_jct_seconds or 0)


def test_dearer_recovery_makes_elasticity_worth_less() -> None:
    jobs = random_jobs(5, 30)
    jct = {
        name: measure(
            simulate(
                jobs,
                CLUSTER,
                brim,
                settings=Settings(overheads=OVERHEADS[name], failures=3600.0, seed=1),
            )
        ).average_jct_seconds
        or 0.0
        for name in ("brim", "torchrun", "restart")
    }
    assert jct["brim"] < jct["torchrun"] < jct["restart"]


def test_elasticdl_experiment_1_two_jobs_share_a_cluster() -> None:
    gang, elastic = two_jobs(fifo_gang, overheads=OVERHEADS["none"]), two_jobs(brim)
    assert gang.makespan == pytest.approx(1300.0)
    assert gang.second_waited == pytest.approx(350.0)
    assert elastic.makespan <= 1015.0
    assert elastic.second_waited == 0.0


def test_elasticdl_training_fills_in_around_services() -> None:
    day = around_a_service(brim)
    assert day.utilisation > 0.98
    assert day.shortest >= 0.0
    assert day.service_alone == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("arrivals", ["poisson", "diurnal", "bursty"])
def test_the_generator_is_seeded_and_keeps_its_rate(arrivals: str) -> None:
    recipe = Recipe(jobs=2000, interarrival=100.0, arrivals=arrivals, seed=4, best_effort=0.25)
    profiles = {("m", 64): CONCAVE}
    lines = list(generate(recipe, profiles))
    assert lines == list(generate(recipe, profiles))
    rows = [line.split(",") for line in lines[1:]]
    assert float(rows[-1][1]) / 2000 == pytest.approx(100.0, rel=0.15)
    assert sum(int(row[8]) for row in rows) / 2000 == pytest.approx(0.25, abs=0.05)
    assert all(int(row[4]) >= int(row[1]) for row in rows)


@pytest.mark.parametrize("policy", [fifo_gang, brim])
def test_an_end_that_takes_time_holds_the_devices(policy: Policy) -> None:
    curve = ScalingCurve(points=((8, 1.0),))
    jobs = [
        Job(id=name, submitted=0.0, work=10.0, curve=curve, requested=8, minimum=8) for name in "ab"
    ]
    costs = Overheads(name="measured", start=2.0, end=0.5)
    run = simulate(jobs, Cluster.parse("1x8"), policy, settings=Settings(overheads=costs))
    assert [outcome.finished for outcome in run.outcomes] == [
        pytest.approx(12.5),
        pytest.approx(25.0),
    ]


def test_patient_jobs_are_not_replanned_repeatedly() -> None:
    curve = ScalingCurve(points=((1, 1.5), (2, 2.9), (4, 5.7), (8, 10.8)))
    rng, submitted_at, jobs = random.Random(1), 0.0, []
    for k in range(16):
        work = float(rng.randint(20, 60))
        deadline = submitted_at + 1.0 + work / 10.8 * rng.uniform(1.5, 8.0)
        jobs.append(
            Job(id=f"{k:02}", submitted=submitted_at, work=work, curve=curve, deadline=deadline)
        )
        submitted_at += rng.expovariate(0.25)
    world = Settings(overheads=Overheads(name="live", fixed=0.06, start=0.7, end=1.2))
    assert simulate(jobs, Cluster.parse("1x8"), brim, settings=world).cycles < 10 * len(jobs)


@pytest.mark.parametrize("name", ["brim", "edf", "elasticflow", "edf-admission"])
def test_simulated_courses_match_their_figures(name: str) -> None:
    jobs = random_jobs(5, 25)
    world = Settings(record=True, failures=40_000.0, overheads=OVERHEADS["published"])
    run = simulate(jobs, CLUSTER, POLICIES[name], settings=world)
    course = course_of(run, subject="random", policy=name)
    figures = measure(run)
    outcomes = {outcome.job.id: outcome for outcome in run.outcomes}
    assert [job.submitted for job in course.jobs] == sorted(job.submitted for job in jobs)
    for job in course.jobs:
        outcome = outcomes[job.job]
        assert job.attained == pytest.approx(outcome.attained)
        assert (job.kept(course.end) is True) == outcome.met
        assert (job.first_worker, job.promised) == (outcome.started, outcome.admitted)
        assert [a.end for a in job.holdings[:-1]] == [b.start for b in job.holdings[1:]]
        times = [line.at for line in job.story]
        assert times == sorted(times)
        assert [line.after for line in job.story if line.event == "workers"][-1:] in ([0], [])
    assert course.makespan == pytest.approx(figures.makespan_seconds)
    counts = dict(course.held())
    waiting = dict(course.waiting())
    for moment, used, idle in run.usage:
        assert counts.get(moment, used) == used
        assert waiting.get(moment, idle) == idle
    assert max(counts.values()) == max(used for _, used, _ in run.usage)


def test_an_unrecorded_run_has_only_ends() -> None:
    job = Job(id="a", submitted=100.0, work=750.0, curve=CONCAVE, deadline=500.0)
    run = simulate([job], CLUSTER, edf, settings=Settings())
    (found,) = course_of(run, subject="one", policy="edf").jobs
    assert (found.holdings, found.ended, found.kept(9e9)) == ([], run.outcomes[0].finished, True)
