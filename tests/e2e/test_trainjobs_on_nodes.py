"""TrainJobs on real nodes, under the controllers and webhooks of Kubeflow Trainer and JobSet."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from brim.kubernetes.install.training_runtime import RUNS
from brim_lab.kubernetes.cluster import NodeCluster
from brim_lab.kubernetes.jobs import until
from brim_lab.kubernetes.trainjobs import KEPT, PEERS, TrainJobs, trainer_on
from clusters import image, namespace, node_cluster, real_kubeconfig
from e2e.running import DIGITS, JOB, undisturbed

__all__ = ["namespace", "node_cluster", "real_kubeconfig"]
pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(1_800)]
NAME = "digits"
ABSENT = [peer.name for peer in PEERS if not peer.program.exists()]


@pytest.fixture
def jobs(node_cluster: NodeCluster, namespace: str) -> Iterator[TrainJobs]:
    if ABSENT:
        build = f"python -m brim_lab.kubernetes build {' '.join(ABSENT)}"
        pytest.skip(f"{' and '.join(ABSENT)} not built; to build, in minutes: {build}")
    with trainer_on(node_cluster):
        trainjobs = TrainJobs(node_cluster, namespace, image=image())
        try:
            trainjobs.prepare()
            yield trainjobs
        finally:
            trainjobs.remove()


def until_gone(jobs: TrainJobs, pod: dict[str, Any]) -> None:
    """Wait until a pod does not run any more, or is not to."""

    def is_gone() -> bool:
        uids = {other["metadata"]["uid"] for other in jobs.pods_of(NAME).values()}
        return pod["metadata"]["uid"] not in uids

    until(is_gone, lambda: jobs.told_of(NAME))


def records(jobs: TrainJobs, file: str) -> list[dict[str, Any]]:
    """The lines of a file of the run in the first pod."""
    (first,) = (pod for index, pod in jobs.pods_of(NAME).items() if index == 0)
    words = ("sh", "-c", f"cat {RUNS}/*/{file}.jsonl")
    text = jobs.kubectl("exec", first["metadata"]["name"], "--", *words).rpartition("\n")[0]
    return [json.loads(line) for line in text.splitlines()]


def trains_on_both(jobs: TrainJobs, *, beyond: int = 0) -> int:
    """Wait until both pods train together, and a step is done; the step."""

    def look() -> int:
        if len(jobs.pods_of(NAME)) < 2:
            return 0
        rounds = [event for event in records(jobs, "events") if event["kind"] == "round"]
        steps = records(jobs, "steps")
        is_training = (
            bool(rounds)
            and len(rounds[-1]["workers"]) == 2
            and bool(steps)
            and steps[-1]["round"] == rounds[-1]["round"]
            and steps[-1]["step"] > beyond
        )
        return int(steps[-1]["step"]) if is_training else 0

    step: int = until(look, lambda: jobs.told_of(NAME))
    return step


def test_a_trainjob_outlives_pods_and_suspension(jobs: TrainJobs) -> None:
    slow = ("--set", "pause=0.4", "--set", f"hurry={KEPT}/hurry")
    jobs.submit_trainjob("impossible", 2, [DIGITS, "--workers", "3"])
    jobs.submit_trainjob(NAME, 2, [*JOB, *slow, "--checkpoints", f"{KEPT}/checkpoints"])
    step = trains_on_both(jobs)
    until(lambda: "Failed" in jobs.conditions("impossible"), lambda: jobs.told_of("impossible"))

    def reported() -> dict[str, str]:
        metrics = jobs.trainjob(NAME).get("trainerStatus", {}).get("metrics", [])
        return {metric["name"]: metric["value"] for metric in metrics}

    until(lambda: int(reported().get("current_step", 0)) >= step, lambda: jobs.told_of(NAME))
    assert reported()["workers"] == "2"

    for index in (1, 0):
        pod = jobs.pods_of(NAME)[index]
        assert jobs.kill("brim", "pod", pod=pod["metadata"]["uid"]) == 1
        until_gone(jobs, pod)
        step = trains_on_both(jobs, beyond=step)
        pod = jobs.pods_of(NAME)[index]
        jobs.kubectl("delete", "pod", pod["metadata"]["name"], "--wait=false")
        until_gone(jobs, pod)
        step = trains_on_both(jobs, beyond=step)

    suspend = '{"spec": {"suspend": %s}}'
    jobs.kubectl("patch", "trainjob", NAME, "--type=merge", "-p", suspend % "true")
    until(lambda: not jobs.pods_of(NAME), lambda: jobs.told_of(NAME))
    until(lambda: "Suspended" in jobs.conditions(NAME), lambda: jobs.told_of(NAME))
    jobs.kubectl("patch", "trainjob", NAME, "--type=merge", "-p", suspend % "false")
    trains_on_both(jobs, beyond=step)
    (restored,) = (event for event in records(jobs, "events") if event["kind"] == "restored")
    assert restored["step"] >= step

    (jobs.folder / "hurry").touch()
    until(lambda: "Complete" in jobs.conditions(NAME), lambda: jobs.told_of(NAME))
    status = jobs.trainjob(NAME)["trainerStatus"]
    assert status["progressPercentage"] == 100
    assert jobs.summary(NAME)["weights_sha256"] == undisturbed(*JOB)["weights_sha256"]
