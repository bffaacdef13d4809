"""The pure parts of the live experiments: lessons, predictions and claims."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from brim.domain.job import WorkerRange
from brim.domain.resizing import Overheads
from brim.errors import EnvironmentFault
from brim_lab.experiments import claims
from brim_lab.experiments.beside_service import BesideService, FilledOnce
from brim_lab.experiments.changing_workers import ChangingWorkers
from brim_lab.experiments.course import (
    Request,
    TrainingCourse,
    Workers,
    makespan,
    overheads_of,
)
from brim_lab.experiments.figures import (
    beside_service_figure,
    draw_changing_workers,
    draw_two_jobs,
    draw_web_service,
)
from brim_lab.experiments.outcome import numbers_of, sentence_of, table_of
from brim_lab.experiments.prediction import Learnt, predict
from brim_lab.experiments.requests import Day
from brim_lab.experiments.scale import BESIDE_SERVICE, CHANGING_WORKERS, TWO_JOBS, Scale
from brim_lab.experiments.two_jobs import TwoJobs
from brim_lab.experiments.web_service import AnsweredRequests, DayCourse, WebService

LEARNT = Learnt(
    rates={1: 1.0, 3: 3.0, 5: 5.0}, overheads=Overheads(name="measured", fixed=0.1, start=1.5)
)
CALM = {"first": "aa", "second": "bb"}


def _steps(begin: float, pieces: list[tuple[int, float]]) -> tuple[float, ...]:
    """So many steps at so many a second, one piece after the other."""
    found, now = [], begin
    for count, rate in pieces:
        for _ in range(count):
            now += 1.0 / rate
            found.append(now)
    return tuple(found)


def _course(
    name: str, submitted: float, pieces: list[tuple[int, int]], *, lost: float = 1.5
) -> TrainingCourse:
    """A job that has n steps on w workers, one piece after the other, as LEARNT says."""
    begin = submitted + lost
    steps = _steps(begin, [(count, float(workers)) for count, workers in pieces])
    starts = [
        begin,
        *(steps[sum(count for count, _ in pieces[: k + 1]) - 1] for k in range(len(pieces))),
    ]
    worlds = tuple((start, workers) for start, (_, workers) in zip(starts, pieces, strict=False))
    return TrainingCourse(
        name=name, submitted=submitted, ended=steps[-1], steps=steps, workers=(*worlds, (steps[-1], 0)),
        metric=((len(steps), 0.7),), digest=CALM.get(name, "cc"),
    )  # fmt: skip


GANG = (_course("first", 0.0, [(100, 5)]), _course("second", 10.0, [(100, 5)], lost=13.0))
ELASTIC = (_course("first", 0.0, [(100, 5)]), _course("second", 10.0, [(30, 3), (70, 5)]))


def _two(**changes: object) -> TwoJobs:
    two = {"first": 0.0, "second": 10.0}
    predicted = {
        side: predict(
            two,
            policy=policy,
            steps=100,
            workers=WorkerRange.parse(worker_words),
            scale=TWO_JOBS,
            learnt=LEARNT,
        )
        for side, policy, worker_words in (("gang", "fifo-gang", "5"), ("elastic", "brim", "1:5"))
    }
    found = TwoJobs(
        scale=TWO_JOBS,
        learnt=LEARNT,
        rounds=[{"gang": GANG, "elastic": ELASTIC}],
        predicted=predicted,
        calm=CALM,
    )
    return replace(found, **changes)  # type: ignore[arg-type]


def test_experiment_1_holds_as_predicted() -> None:
    found = _two()
    assert [claim.claim for claim in found.claims if not claim.held] == []
    assert makespan(GANG) == pytest.approx(43.0)
    assert found.predicted["gang"].makespan == pytest.approx(43.0)
    times, sizes = zip(*found.predicted["elastic"].workers["second"][:2], strict=True)
    assert times == pytest.approx((10.0, 21.5))
    assert sizes == (3, 5)
    assert "both are done after 36 s instead of 43 s (-17%)" in sentence_of(found)


@pytest.mark.parametrize(
    ("elastic", "broken"),
    [
        ((ELASTIC[0], _course("second", 10.0, [(30, 3), (70, 5)], lost=2.1)), "first step"),
        ((ELASTIC[0], replace(ELASTIC[1], digest="cc")), "weights"),
        ((ELASTIC[0], replace(ELASTIC[1], ended=ELASTIC[1].ended * 1.06)), "makespan of elastic"),
        (GANG, "sooner"),
    ],
)
def test_experiment_1_says_what_did_not_hold(
    elastic: tuple[TrainingCourse, TrainingCourse], broken: str
) -> None:
    found = _two(rounds=[{"gang": GANG, "elastic": elastic}])
    assert broken in " / ".join(claim.claim for claim in found.claims if not claim.held)
    assert sentence_of(found).startswith("It does not show what it claims")
    assert numbers_of(found)["held"] is False


def test_claims_must_hold_in_every_repetition() -> None:
    good, late = ELASTIC, (ELASTIC[0], _course("second", 10.0, [(30, 3), (70, 5)], lost=2.1))
    found = _two(
        rounds=[{"gang": GANG, "elastic": elastic_course} for elastic_course in (late, good)]
    )
    (broken,) = [claim for claim in found.claims if not claim.held]
    assert broken.got == "2.4 s; 1.8 s"


def test_costs_are_read_off_a_course() -> None:
    steps = _steps(2.0, [(10, 5.0)])  # 0.2 s each, from 2 s on
    late = _steps(steps[-1] + 0.3, [(10, 1.0)])  # a change that costs 0.3 s
    course = TrainingCourse(
        name="measure", submitted=0.0, ended=late[-1] + 0.5, steps=(*steps, *late),
        workers=((2.0, 5), (steps[-1] + 0.1, 1), (late[-1], 0)),
    )  # fmt: skip
    found = overheads_of(course, [Request(0.0, 5), Request(steps[-1], 1)], LEARNT.rates)
    assert found.cost(5, 1) == pytest.approx(0.3)
    assert found.cost(0, 5) == pytest.approx(2.0)
    assert found.end == pytest.approx(0.5)
    with pytest.raises(EnvironmentFault, match="never had 3 workers"):
        overheads_of(course, [Request(0.0, 5), Request(4.0, 3)], LEARNT.rates)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_costs_are_read_off_few_last_steps(count: int) -> None:
    steps = _steps(2.0, [(10, 5.0)])
    late = _steps(steps[-1] + 0.3, [(count, 1.0)]) if count else ()
    course = TrainingCourse(
        name="measure", submitted=0.0, ended=20.0, steps=(*steps, *late),
        workers=((2.0, 5), (steps[-1] + 0.1, 1), (20.0, 0)),
    )  # fmt: skip
    requests = [Request(0.0, 5), Request(steps[-1], 1)]
    if count:
        assert overheads_of(course, requests, LEARNT.rates).cost(5, 1) == pytest.approx(0.3)
        return
    with pytest.raises(EnvironmentFault, match="ended as soon as it was resized to 1"):
        overheads_of(course, requests, LEARNT.rates)


def test_the_service_takes_its_turns() -> None:
    assert CHANGING_WORKERS.capacity(end=9.0) == ((0.0, 8), (4.0, 4), (8.0, 6))


def _changing(elastic: TrainingCourse, fixed: TrainingCourse) -> ChangingWorkers:
    scale = replace(CHANGING_WORKERS, fixed=(5,))
    capacity = scale.capacity(end=900.0)
    predicted = predict(
        {"elastic": 0.0}, policy="brim", steps=100, workers=WorkerRange.parse("1:8"), scale=scale, learnt=LEARNT,
        capacity=capacity,
    )  # fmt: skip
    return ChangingWorkers(
        scale=scale, learnt=LEARNT, rounds=[elastic], predicted=predicted, fixed=[fixed]
    )


UNSTEADY = _course("elastic", 0.0, [(35, 5), (20, 3), (5, 1), (40, 5)])
STEADY = _course("fixed-5", 0.0, [(100, 5)])


def test_experiment_3_holds_with_equal_workers() -> None:
    found = _changing(UNSTEADY, STEADY)
    assert all(claim.held for claim in found.claims)
    assert "3 changes of workers leave no trace" in sentence_of(found)


@pytest.mark.parametrize(
    ("elastic", "broken"),
    [
        (STEADY, "all the time"),
        (replace(UNSTEADY, redone=1), "twice"),
        (replace(UNSTEADY, metric=((100, 0.7000001),)), "AUC"),
        (replace(UNSTEADY, digest="dd"), "weights"),
    ],
)
def test_experiment_3_says_what_did_not_hold(elastic: TrainingCourse, broken: str) -> None:
    claims_made = claims.changing_workers(elastic, [STEADY])
    assert broken in " / ".join(claim.claim for claim in claims_made if not claim.held)


BESIDE = replace(BESIDE_SERVICE, every=10.0)
WANTED = ((0.0, 0), (10.0, 4), (20.0, 2), (30.0, 6))


def _beside(served: float, **changes: object) -> BesideService:
    """A job whose workers leave as soon as a service has its devices, so many seconds later."""
    had = tuple((moment + served * (count > 2), count) for moment, count in WANTED)
    rates = {count: float(count) for count in range(1, 9)}
    pieces = [(int((8 - count) * 10), 8 - count) for _, count in WANTED]
    course = _course("elastic", 0.0, pieces, lost=0.0)
    course = replace(course, **changes)  # type: ignore[arg-type]
    demand = (*WANTED, (course.ended, 0))
    learnt = Learnt(rates=rates, overheads=Overheads(name="none"))
    predicted = predict(
        {"elastic": 0.0}, policy="brim", steps=len(course.steps), workers=WorkerRange.parse("1:8"),
        scale=BESIDE, learnt=learnt, capacity=BESIDE.capacity(end=900.0),
    )  # fmt: skip
    return BesideService(
        scale=BESIDE,
        learnt=learnt,
        alone=1.0,
        rounds=[FilledOnce(course=course, wanted=demand, had=had, launches=1)],
        predicted=predicted,
        calm="cc",
    )


def test_experiment_2_holds_when_training_yields() -> None:
    found = _beside(0.5)
    (run,) = found.rounds
    assert [claim.claim for claim in found.claims if not claim.held] == []
    assert run.waited == pytest.approx([0.5, 0.5])
    assert run.use(8) == pytest.approx(1.0 - 0.5 * (4 + 4) / (8 * 40.0), abs=0.005)
    assert run.use_of_service(8) == pytest.approx((4 * 9.5 + 2 * 10 + 6 * 9.5 + 1) / 320, abs=0.005)
    assert found.predicted_use == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize(
    ("found", "broken"),
    [
        (_beside(2.5), "soon"),
        (_beside(9.5), "used"),
        (_beside(0.5, redone=1), "goes on"),
        (_beside(0.5, digest="dd"), "weights"),
    ],
)
def test_experiment_2_says_what_did_not_hold(found: BesideService, broken: str) -> None:
    assert broken in " / ".join(claim.claim for claim in found.claims if not claim.held)
    assert numbers_of(found)["held"] is False


def _web(**changes: object) -> WebService:
    """A day of ten seconds, in which the service takes 2, 5 and 2 of 8 slots, and training the rest."""

    def day(steps: int, wanted: Workers, held: Workers, training: Workers) -> DayCourse:
        requests = AnsweredRequests(made=100, lost=0, problems=(), median=0.02, slowest=0.05)
        return DayCourse(
            requests=requests, wanted=wanted, ready=held, held=held, training=training, steps=steps
        )

    wanted, held = (
        ((0.0, 2), (4.0, 5), (7.0, 2), (10.0, 0)),
        ((0.0, 2), (4.5, 5), (7.0, 2), (10.0, 0)),
    )
    training = ((0.0, 6), (4.2, 3), (7.3, 6), (10.0, 0))
    fixed = ((0.0, 5), (10.0, 0))
    found = WebService(
        scale=BESIDE,
        day=Day(seconds=10.0, calm=10.0, busy=150.0),
        learnt=LEARNT,
        alone=day(0, wanted, held, ()),
        beside=day(50, wanted, held, training),
        course=_course("elastic", 0.0, [(10, 5), (10, 3)]),
        following=day(48, wanted, ((0.0, 2), (5.5, 5), (7.0, 2), (10.0, 0)), training),
        fixed=day(30, fixed, fixed, ((0.0, 3), (10.0, 0))),
        predicted=0.99,
        launches=1,
        calm="cc",
    )
    return replace(found, **changes)  # type: ignore[arg-type]


def test_a_web_service_leaves_training_its_slots() -> None:
    found = _web()
    assert [claim.claim for claim in found.claims if not claim.held] == []
    assert found.beside.waited == pytest.approx([0.5])
    assert found.use == pytest.approx(1.0 - (0.3 * 3 + 0.3 * 3) / 80, abs=0.01)
    assert found.fixed.use(8, 10.0) == pytest.approx(1.0)
    assert found.fixed.late(found.day) == 0.0
    assert 0.0 < found.beside.late(found.day) < found.following.late(found.day) < 1.0
    assert found.fixed.replicas(10.0) == pytest.approx(5.0)
    assert found.following.replicas(10.0) == pytest.approx((2 * 8.5 + 5 * 1.5) / 10)
    assert "50 steps in the day in place of 30" in sentence_of(found)


@pytest.mark.parametrize(
    ("changes", "broken"),
    [
        ({"requests": {"lost": 1}}, "no request is lost"),
        ({"requests": {"slowest": 0.06}}, "requests are answered as soon"),
        ({"steps": 30}, "training makes more steps"),
        ({"ready": ((0.0, 2), (7.0, 5), (10.0, 0))}, "has what it wants soon"),
        ({"held": ((0.0, 1), (10.0, 0))}, "the simulator predicts the use"),
    ],
)
def test_a_web_service_says_what_did_not_hold(changes: dict[str, Any], broken: str) -> None:
    beside = _web().beside
    if "requests" in changes:
        changes = {"requests": replace(beside.requests, **changes["requests"])}
    found = _web(beside=replace(beside, **changes))
    assert broken in " / ".join(claim.claim for claim in found.claims if not claim.held)
    assert broken in sentence_of(found)
    assert numbers_of(found)["held"] is False


def test_requests_come_by_the_curve_of_the_day() -> None:
    day = Day(seconds=60.0, calm=10.0, busy=100.0, days=2.0, seed=3)
    due = list(day.due())
    assert due == sorted(due)
    assert due == list(day.due())  # a seed is a day
    assert max(due) < 120.0
    for begin in (0.0, 30.0, 70.0):
        made = sum(begin <= moment < begin + 10.0 for moment in due)
        expected = sum(day.rate(begin + tenth / 10) for tenth in range(100)) / 10
        assert made == pytest.approx(expected, abs=4.0 * expected**0.5)


def test_a_job_started_twice_did_not_continue() -> None:
    (run,) = _beside(0.5).rounds
    found = replace(_beside(0.5), rounds=[replace(run, launches=2)])
    assert [claim.got for claim in found.claims if not claim.held] == ["2 start(s), 0 steps redone"]


def test_figures_tables_and_numbers_are_made_of_all(tmp_path: Path) -> None:
    two, changing = _two(), _changing(UNSTEADY, STEADY)
    draw_two_jobs(two, tmp_path / "1.png")
    beside_service_figure(_beside(0.5)).savefig(tmp_path / "2.png")
    draw_changing_workers(changing, tmp_path / "3.png")
    draw_web_service(_web(), tmp_path / "4.png")
    assert all((tmp_path / f"{number}.png").stat().st_size > 10_000 for number in range(1, 5))
    assert [row[0] for row in table_of(_web())[1]] == [
        "service alone",
        "beside training",
        "the same, following",
        "fixed parts",
    ]
    assert [row[0] for row in table_of(two)[1]] == ["gang", "elastic"]
    assert [row[:3] for row in table_of(changing)[1]] == [
        ["elastic", "3", "1 3 5"],
        ["5", "0", "5"],
    ]
    for found in (two, _beside(0.5), _web(), changing):
        assert json.loads(json.dumps(numbers_of(found)))["held"] is True


def test_scales_divide_by_their_workers() -> None:
    def parts(scale: Scale) -> set[int]:
        return {scale.micro_batches % workers for workers in (*scale.sizes, *scale.fixed)}

    assert parts(TWO_JOBS) == parts(CHANGING_WORKERS) == parts(BESIDE_SERVICE) == {0}
