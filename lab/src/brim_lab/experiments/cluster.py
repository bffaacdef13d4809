"""A scheduler of an experiment's own: started, handed jobs, watched and ended.

Its slots are on its own host, or on other hosts (`joined.py`). Plain runs beside it are here too.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from brim.client import Client
from brim.domain.cluster import Cluster, ClusterSpec, Node
from brim.domain.job import JobSpec, WorkerRange
from brim.domain.quantities import counted
from brim.domain.submission import Submission, fingerprint
from brim.errors import EnvironmentFault
from brim.host.clock import SystemClock
from brim.storage.bundles import digest_of, pack
from brim.storage.job_file import code_of
from brim.telemetry.events import RoundFormed
from brim.telemetry.history import RunHistory, read_history
from brim.wire.cluster import JobView, Submit
from brim_lab.driver import MARK, Driver
from brim_lab.experiments.course import TrainingCourse, Workers, left_for
from brim_lab.experiments.scale import Scale

_POLL_INTERVAL = 0.2
_NODE, _METRIC = "demo", "auc"
_TO_TELL = 10.0  # seconds until the end of a job that has ended is told
_TO_ANSWER = 180.0  # seconds that a first step may take

Tell = Callable[[str], None]
"""Says to people what happens."""

MakeCluster = Callable[[Scale, Path, Tell], AbstractContextManager["DemoCluster"]]
"""Makes the cluster of an experiment, with all that it leaves in a folder."""


@contextlib.contextmanager
def demo_cluster(scale: Scale, folder: Path, tell: Tell) -> Iterator[DemoCluster]:
    """Start a scheduler with its state in `folder`.

    The scheduler and its jobs end with the context, however that ends.
    """
    described = folder / "cluster.yaml"
    nodes = [{"name": _NODE, "workers": scale.slots}]
    described.write_text(json.dumps({"nodes": nodes, "policy": "brim"}) + "\n")  # JSON is YAML
    state = folder / "state"
    driver = Driver()
    driver.call("up", "--cluster", str(described), "--state", str(state), "--env", MARK)
    tell(f"a scheduler of {scale.slots} slots; its state is in {state}")
    try:
        own_cluster = Cluster(nodes=(Node(id=_NODE, devices=scale.slots),))
        cluster = DemoCluster(scale, Client(state), tell, own_cluster)
        cluster.warm_up()
        yield cluster
    finally:
        try:
            driver.call("down", "--kill", "--state", str(state))
        finally:
            driver.end()


class DemoCluster:
    """The scheduler of an experiment, with the experiment's questions to it.

    Args:
        client: of the scheduler.
        described: the nodes of its own host; where these have no devices, jobs run on other hosts,
            and their code is sent with them.
    """

    def __init__(self, scale: Scale, client: Client, tell: Tell, described: Cluster) -> None:
        self.scale, self.client, self._tell = scale, client, tell
        self._described = described
        self._clock = SystemClock()

    def configure(self, *, policy: str = "brim", headroom: int = 0) -> None:
        """Set the policy, and the number of slots that no job may have."""
        spec = ClusterSpec(cluster=self._described, policy=policy, headroom=headroom)
        self.client.apply(spec)

    def serve(self, slots: int) -> None:
        """Have an online service, which comes first, take so many slots."""
        self.configure(headroom=slots)

    def until_served(self, slots: int) -> None:
        """Wait until the service has so many otherwise free slots."""

    def served(self, demand: Workers, course: TrainingCourse, origin: float) -> Workers:
        """Return the slots that the service had: its demand, without one job's workers.

        Args:
            origin: where the times of the course begin, seconds since 1970.
        """
        return left_for(demand, course.workers, self.scale.slots)

    def serve_until_ended(self, job: JobView, *, timeout: float) -> tuple[TrainingCourse, Workers]:
        """Have the service of the experiment come and go until a job has ended.

        Returns:
            The job's course, and the slots that the service wanted, in seconds since the job's
            submission.

        Raises:
            EnvironmentFault: the job failed, or it took longer than `timeout` seconds.
        """
        demand = [(0.0, 0)]
        for moment, slots in self.scale.capacity(end=timeout)[1:]:
            self.pause(moment, origin=job.submitted)
            if self.client.job(job.job).has_ended:
                break
            taken_slots = self.scale.slots - slots
            self._tell(f"the service takes {taken_slots} slots")
            demand.append((self.wall() - job.submitted, taken_slots))
            self.serve(taken_slots)
        else:
            raise EnvironmentFault(f"{job.job} has not ended after {timeout:.0f} s")
        (course,) = self.ended([job], timeout=_TO_TELL, origin=job.submitted)
        return course, (*demand, (course.ended, 0))

    def submit(
        self,
        name: str,
        workers: WorkerRange,
        *,
        seed: int = 0,
        epochs: int = 0,
        env: Mapping[str, str] | None = None,
    ) -> JobView:
        """Hand in a job of the experiment, with these variables of its own."""
        scale = self.scale
        spec = JobSpec(
            file=str(scale.file),
            parameters={**scale.parameters, "wait": repr(scale.wait)},
            workers=workers,
            epochs=epochs or scale.epochs,
            global_batch_size=scale.global_batch_size,
            micro_batches=scale.micro_batches,
            seed=seed,
            directory=os.getcwd(),
            env=dict(env or {}),
        )
        code = None if self._described.devices else code_of(spec)
        bundle = pack(code.files) if code else b""
        spec = replace(spec, bundle=digest_of(bundle) if bundle else "")
        submission = Submission(spec=spec, fingerprint=fingerprint(spec, scale.file.read_bytes()))
        view = self.client.submit(Submit(submission=submission, name=name, bundle=bundle))
        self._tell(f"submitted {view.job}, for {workers} workers")
        return view

    def warm_up(self, workers: int = 1) -> None:
        """Run a job to its first step, and cancel it.

        The first job of a new node's agent waits until that agent has imported torch.

        Args:
            workers: as many as are on all nodes.

        Raises:
            EnvironmentFault: it does not come to it.
        """
        self.begin_and_cancel(
            self.submit("warm-up", WorkerRange(minimum=workers, maximum=workers), epochs=1)
        )

    def begin_and_cancel(self, job: JobView) -> float:
        """Wait for a job's first step, which was made at the time that is returned, and cancel it.

        Raises:
            EnvironmentFault: it does not come to it.
        """
        end = self._clock.now() + _TO_ANSWER
        while (view := self.client.job(job.job)).started is None:
            if view.has_ended or self._clock.now() > end:
                raise EnvironmentFault(f"{job.job} made no step: {view.problem or view.state}")
            time.sleep(_POLL_INTERVAL)
        self.client.cancel(job.job)
        while not self.client.job(job.job).has_ended and self._clock.now() < end:
            time.sleep(_POLL_INTERVAL)
        return view.started

    def pause(self, seconds: float, *, origin: float) -> None:
        """Wait until so many seconds have passed since a time of the wall clock."""
        time.sleep(max(0.0, origin + seconds - self._clock.wall()))

    def wall(self) -> float:
        """Seconds since 1970."""
        return self._clock.wall()

    def ended(self, jobs: list[JobView], *, timeout: float, origin: float) -> list[TrainingCourse]:
        """Watch jobs to their ends, tell their progress, and return their courses.

        Times in the courses are seconds since `origin`.

        Raises:
            EnvironmentFault: one failed, or it took longer than `timeout` seconds.
        """
        end, last_text = self._clock.now() + timeout, ""
        while True:
            views = [self.client.job(job.job) for job in jobs]
            for view in views:
                if view.state in ("failed", "cancelled", "refused"):
                    raise EnvironmentFault(
                        f"{view.job} {view.state}: {view.problem or view.detail}"
                    )
            line = " · ".join(f"{view.job} {_standing(view)}" for view in views)
            if line != last_text:
                self._tell(line)
                last_text = line
            if all(view.has_ended for view in views):
                return [_course(view, origin) for view in views]
            if self._clock.now() > end:
                raise EnvironmentFault(f"no end within {timeout:.0f} s: {line}")
            time.sleep(_POLL_INTERVAL)


def _standing(view: JobView) -> str:
    if view.has_ended:
        return view.state
    if not view.workers:
        return "waits"
    tenth = 10 * view.step // view.steps if view.steps else 0
    return f"{counted(view.workers, 'worker')}, {tenth * 10} %"


def _course(view: JobView, origin: float) -> TrainingCourse:
    history = read_history(Path(view.run))
    assert view.ended is not None, "it was waited for"
    name = view.job.rpartition("-")[0]
    return _course_of(history, name, submitted=view.submitted, ended=view.ended, origin=origin)


def _course_of(
    history: RunHistory, name: str, *, submitted: float, ended: float, origin: float = 0.0
) -> TrainingCourse:
    """A run's records as a course."""
    rounds = [event for event in history.events if isinstance(event, RoundFormed)]
    summary = history.ended.summary if history.ended else {}
    return TrainingCourse(
        name=name,
        submitted=submitted - origin,
        ended=ended - origin,
        steps=tuple(step.at - origin for step in history.steps),
        workers=(*((event.at - origin, event.world_size) for event in rounds), (ended - origin, 0)),
        metric=tuple(
            (event.step, event.metrics[_METRIC] or 0.0)
            for event in history.epochs.values()
            if _METRIC in event.metrics
        ),
        digest=str(summary.get("weights_sha256", "")),
        redone=int(summary.get("steps_redone", 0)),
    )


def calm_run(
    scale: Scale, folder: Path, name: str, *, workers: int, seed: int = 0
) -> TrainingCourse:
    """Run the same job undisturbed, by `brim train`.

    No step of it waits, since waiting changes no bit.
    """
    run = folder / name
    parameters = [
        f"--set={key}={value}" for key, value in {**scale.parameters, "wait": "0"}.items()
    ]
    words = ["train", str(scale.file), *parameters, "--run-dir", str(run), "--json"]
    words += ["--workers", str(workers), "--epochs", str(scale.epochs), "--seed", str(seed)]
    words += ["--spares", "0", "--global-batch-size", str(scale.global_batch_size)]
    words += ["--micro-batches", str(scale.micro_batches)]
    Driver().call(*words, timeout=None)
    history = read_history(run)
    assert history.started is not None
    assert history.ended is not None
    return _course_of(history, name, submitted=history.started.at, ended=history.ended.at)
