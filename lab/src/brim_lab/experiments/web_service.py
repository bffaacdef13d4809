"""Experiment 2 with a service that answers: training has the slots that a web service leaves.

The service's load follows a day's curve of minutes. It is run for a day alone, a day beside training, a day
beside training in which its replicas follow the load and nothing is foreseen, and a day of fixed parts, in
which the service has all the time what it needs at most and training the rest.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from brim.domain.job import WorkerRange
from brim.domain.quantities import counted
from brim.domain.services import ReplicaRule, ReplicaScale, rescaled, stay_of
from brim.errors import EnvironmentFault
from brim.runs.services import service_request
from brim.wire.cluster import JobView, ServiceView
from brim.wire.listening import split_address, take_port
from brim_lab.experiments import claims
from brim_lab.experiments.claims import Claim
from brim_lab.experiments.cluster import DemoCluster, Tell, calm_run, demo_cluster
from brim_lab.experiments.course import TrainingCourse, Workers, count_at, use_of, waits
from brim_lab.experiments.measure import measure
from brim_lab.experiments.prediction import Learnt, predict
from brim_lab.experiments.requests import Day, TimedAnswer, quantile
from brim_lab.experiments.scale import Scale

PER_REPLICA = 30.0  # requests a second
_NOTICE = 2.0  # seconds that a replica is believed to take at first
# The part of a replica's load that an autoscaler aims at which follows the load: the usual one.
_TARGET = 0.8
_BETWEEN_SCALES = 1.0  # seconds, as brim has it
_POLL_INTERVAL = 0.1
_LIMIT = 900.0  # seconds for one job
_TO_BEGIN = 60.0  # seconds for the first replicas
_TO_ANSWER = 60.0  # seconds behind a day for its last answers


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredRequests:
    """The answers of one day.

    Args:
        made, lost: requests.
        problems: of the lost ones, each kind once.
        median, slowest: latency in seconds; of the slowest hundredth the quickest.
    """

    made: int
    lost: int
    problems: tuple[str, ...]
    median: float
    slowest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DayCourse:
    """One day of the service. Times are seconds since its begin.

    Args:
        wanted: replicas that the service was to have.
        ready: replicas that answered.
        held: slots of the service.
        training: workers; empty where none was there.
        steps: that training made in the day.
    """

    requests: AnsweredRequests
    wanted: Workers
    ready: Workers
    held: Workers
    training: Workers = ()
    steps: int = 0

    @property
    def waited(self) -> list[float]:
        """Seconds that each rise of the wanted replicas has waited for them."""
        return waits(self.wanted, self.ready)

    def use(self, slots: int, seconds: float) -> float:
        """Return the part of the slots that had a worker or a replica in it."""
        return use_of([self.held, self.training], slots, begin=0.0, end=seconds)

    def late(self, day: Day) -> float:
        """Return the part of the load that came while the replicas that answered were too few for it."""
        rates = [(tenth / 10.0, day.rate(tenth / 10.0)) for tenth in range(int(10 * day.seconds))]
        late = [rate for moment, rate in rates if count_at(self.ready, moment) * PER_REPLICA < rate]
        return sum(late) / sum(rate for _, rate in rates)

    def replicas(self, seconds: float) -> float:
        """Return how many slots the service had, on average."""
        return use_of([self.held], 1, begin=0.0, end=seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class WebService:
    """The findings of experiment 2 with a service that answers.

    Args:
        learnt: of the job before, for the prediction.
        alone: the day without training.
        beside: the day beside training, with the job's whole course.
        following: the day beside training without foresight: the replicas follow the load.
        fixed: the day with fixed parts.
        predicted: the part of the slots that the simulator uses, with the service's slots as they were.
        launches: starts of the job beside the service.
        calm: the digest of an undisturbed run.
    """

    scale: Scale
    day: Day
    learnt: Learnt
    alone: DayCourse
    beside: DayCourse
    course: TrainingCourse
    following: DayCourse
    fixed: DayCourse
    predicted: float
    launches: int
    calm: str

    @property
    def use(self) -> float:
        """The part of the slots that was used beside training."""
        return self.beside.use(self.scale.slots, self.day.seconds)

    @property
    def claims(self) -> list[Claim]:
        """The claims, each with whether it held."""
        return claims.beside_web_service(
            self.course,
            lost=[
                day.requests.lost for day in (self.alone, self.beside, self.following, self.fixed)
            ],
            slowest=(self.fixed.requests.slowest, self.beside.requests.slowest),
            waited=self.beside.waited,
            use=self.use,
            predicted=self.predicted,
            steps=(self.fixed.steps, self.beside.steps),
            launches=self.launches,
            calm=self.calm,
        )


def beside_web_service(scale: Scale, day: Day, folder: Path, tell: Tell) -> WebService:
    """Run it.

    Args:
        scale: of the training job, which has to last longer than a day.
        folder: for everything that it leaves.
    """
    most = replicas_at_most(day)
    with demo_cluster(scale, folder, tell) as cluster:
        tell("measuring the job alone, for the prediction")
        learnt = measure(cluster, tell)
        service = _serve(cluster, folder, f"1:{scale.slots - 1}", day)
        tell(f"a day of {day.seconds:.0f} s: the service alone")
        alone = _day(cluster, service, None, day)
        job = _begin(cluster, "elastic", WorkerRange(minimum=1, maximum=scale.workers))
        tell("the next day: beside training")
        beside = _day(cluster, service, job, replace(day, seed=day.seed + 1))
        (course,) = cluster.ended([job], timeout=_LIMIT, origin=job.submitted)
        launches = cluster.client.job(job.job).launches
        _end(cluster, service)
        tell("the next day: beside training, the replicas follow the load")
        service = _serve(cluster, folder, "1", day)
        job = _begin(cluster, "following", WorkerRange(minimum=1, maximum=scale.workers))
        follower = _LoadFollower(cluster, service, most=scale.slots - 1)
        following = _day(cluster, service, job, replace(day, seed=day.seed + 1), follower.look)
        _end(cluster, job)
        _end(cluster, service)
        replicas, workers = counted(most, "replica"), counted(scale.slots - most, "worker")
        tell(f"the next day: {replicas} and {workers}, fixed")
        service = _serve(cluster, folder, str(most), day)
        count = scale.slots - most
        job = _begin(cluster, "fixed", WorkerRange(minimum=count, maximum=count))
        fixed = _day(cluster, service, job, replace(day, seed=day.seed + 1))
        _end(cluster, job)
        _end(cluster, service)
    tell("an undisturbed run, for the digest")
    calm = calm_run(scale, folder / "calm", "fixed", workers=scale.fixed[0]).digest
    return WebService(
        scale=scale,
        day=day,
        learnt=learnt,
        alone=alone,
        beside=beside,
        course=course,
        following=following,
        fixed=fixed,
        predicted=_predicted_use(beside, learnt, scale, day),
        launches=launches,
        calm=calm,
    )


def a_day(*, quick: bool) -> Day:
    """Return the day of the experiment, of which six replicas bear the busiest moment."""
    return Day(seconds=40.0 if quick else 120.0, calm=10.0, busy=165.0)


def replicas_at_most(day: Day) -> int:
    """Return the replicas that a day takes at its busiest.

    >>> replicas_at_most(Day(seconds=60.0, calm=10.0, busy=100.0))
    4
    """
    return -int(-day.busy // PER_REPLICA)


def _predicted_use(beside: DayCourse, learnt: Learnt, scale: Scale, day: Day) -> float:
    """Return the part of the slots that the simulator uses in a day."""
    capacity = tuple((moment, scale.slots - count) for moment, count in beside.held)
    simulated = predict(
        {"elastic": 0.0},
        policy="brim",
        steps=10_000,  # more than a day has
        workers=WorkerRange(minimum=1, maximum=scale.workers),
        scale=scale,
        learnt=replace(learnt, overheads=replace(learnt.overheads, start=0.0)),
        capacity=capacity,
    )
    workers = simulated.workers["elastic"]
    return use_of([workers, beside.held], scale.slots, begin=0.0, end=day.seconds)


def _serve(cluster: DemoCluster, folder: Path, replicas: str, day: Day) -> JobView:
    """Submit the service, and wait for the first replica."""
    with take_port("127.0.0.1") as listener:
        port = listener.getsockname()[1]
    file = folder / "service.yaml"
    lines = {
        "name": "web",
        "command": [sys.executable, "-m", "brim_lab.experiments.web"],
        "port": port,
        "replicas": replicas,
        "per-replica": PER_REPLICA,
        "notice": f"{_NOTICE:g}s",
        "day": f"{day.seconds:.0f}s",
    }
    file.write_text(json.dumps(lines) + "\n")  # JSON is YAML
    view = cluster.client.submit(service_request(file, tenant="default", warn=lambda _: None))
    return _until(cluster, view, lambda view: _ready(view) >= 1)


def _begin(cluster: DemoCluster, name: str, workers: WorkerRange) -> JobView:
    """Submit a training job, and wait for its first step."""
    view = cluster.submit(name, workers)
    return _until(cluster, view, lambda view: view.started is not None)


def _until(cluster: DemoCluster, job: JobView, holds: Callable[[JobView], bool]) -> JobView:
    end = cluster.wall() + _TO_BEGIN
    while not holds(view := cluster.client.job(job.job)):
        if view.has_ended or cluster.wall() > end:
            raise EnvironmentFault(f"{job.job} has not begun: {view.problem or view.state}")
        cluster.pause(_POLL_INTERVAL, origin=cluster.wall())
    return view


def _end(cluster: DemoCluster, job: JobView) -> None:
    cluster.client.cancel(job.job)
    end = cluster.wall() + _TO_BEGIN
    while not cluster.client.job(job.job).has_ended:
        if cluster.wall() > end:
            raise EnvironmentFault(f"{job.job} does not end")
        cluster.pause(_POLL_INTERVAL, origin=cluster.wall())


def _service(view: JobView) -> ServiceView:
    assert view.service is not None, f"{view.job} is a service"
    return view.service


def _ready(view: JobView) -> int:
    return _service(view).ready or 0


# A day --------------------------------------------------------------------------------------------


def _day(
    cluster: DemoCluster,
    service: JobView,
    job: JobView | None,
    day: Day,
    scale: Callable[[float], None] = lambda moment: None,
) -> DayCourse:
    """Have requests made for a day, and watch the service and training meanwhile.

    Args:
        scale: is called all the time, with the seconds since the day's begin.
    """
    host, port = split_address(_service(service).address)
    seen = _Seen(cluster, service, job)
    generator = _Generator(host, port, day)
    try:
        begin = cluster.wall()
        while not generator.has_ended and cluster.wall() < begin + day.seconds:
            seen.look(cluster.wall() - begin)
            scale(cluster.wall() - begin)
            cluster.pause(_POLL_INTERVAL, origin=cluster.wall())
        return seen.course(_summary(generator.answers()), day.seconds)
    finally:
        generator.end()


class _Seen:
    """The numbers of a day, as they were seen by looks."""

    def __init__(self, cluster: DemoCluster, service: JobView, job: JobView | None) -> None:
        self._cluster, self._service, self._job = cluster, service, job
        self._points: dict[str, list[tuple[float, int]]] = {
            name: [] for name in ("wanted", "ready", "held", "training")
        }
        self._steps: list[int] = []

    def look(self, moment: float) -> None:
        client = self._cluster.client
        service = client.job(self._service.job)
        self._note("wanted", moment, _service(service).wanted)
        self._note("ready", moment, _ready(service))
        self._note("held", moment, service.workers)
        if self._job is not None:
            job = client.job(self._job.job)
            self._note("training", moment, job.workers)
            self._steps.append(job.step)

    def _note(self, name: str, moment: float, count: int) -> None:
        points = self._points[name]
        if not points or points[-1][1] != count:
            points.append((moment if points else 0.0, count))

    def course(self, requests: AnsweredRequests, seconds: float) -> DayCourse:
        points = {name: tuple(found) for name, found in self._points.items()}
        ended = {name: (*found, (seconds, 0)) if found else () for name, found in points.items()}
        steps = self._steps[-1] - self._steps[0] if self._steps else 0
        return DayCourse(requests=requests, steps=steps, **ended)


class _LoadFollower:
    """Gives a service the replicas that its present load needs, by `brim resize`.

    So do autoscalers. The load, and how long fewer must be enough before one goes, are as brim has them.
    """

    def __init__(self, cluster: DemoCluster, service: JobView, *, most: int) -> None:
        self._cluster, self._job = cluster, service.job
        self._rule = ReplicaRule(maximum=most, per_replica=PER_REPLICA * _TARGET, notice=_NOTICE)
        self._scale = ReplicaScale(1)
        self._next_look = 0.0

    def look(self, moment: float) -> None:
        """Resize the service if its load has changed, once a second."""
        if moment < self._next_look:
            return
        self._next_look = moment + _BETWEEN_SCALES
        load, before = _service(self._cluster.client.job(self._job)).current, self._scale.target
        if load is None:
            return
        stay = stay_of(_NOTICE)
        self._scale = rescaled(self._scale, self._rule, foreseen=load, stay=stay, now=moment)
        count = self._scale.target
        if count != before:
            self._cluster.client.resize(self._job, WorkerRange(minimum=count, maximum=count))


class _Generator:
    """The process that makes the requests of a day."""

    def __init__(self, host: str, port: int, day: Day) -> None:
        self._day = day
        self._process = subprocess.Popen(
            [sys.executable, "-m", "brim_lab.experiments.requests"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode((host, port, day)))
        self._process.stdin.close()
        self._process.stdin = None

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def answers(self) -> list[TimedAnswer]:
        """Wait for the last answers, and return all."""
        try:
            output, _ = self._process.communicate(timeout=_TO_ANSWER)
        except subprocess.TimeoutExpired:
            raise EnvironmentFault("the requests of the day have no answers") from None
        if self._process.returncode:
            raise EnvironmentFault("the process that makes requests has failed")
        return msgspec.json.decode(output, type=list[TimedAnswer])

    def end(self) -> None:
        """End the process, if it still runs."""
        self._process.kill()
        self._process.communicate()


def _summary(answers: Sequence[TimedAnswer]) -> AnsweredRequests:
    latencies = [answer.latency for answer in answers if not answer.problem]
    problems = [answer.problem for answer in answers if answer.problem]
    return AnsweredRequests(
        made=len(answers),
        lost=len(problems),
        problems=tuple(dict.fromkeys(problems)),
        median=quantile(latencies, 0.5),
        slowest=quantile(latencies, 0.99),
    )
