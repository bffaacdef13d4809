"""A real job under preemption on real nodes of Kubernetes, with losses: it ends as a calm run does."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from brim.kubernetes.client.amounts import asked_by, parse_amount, total
from brim.kubernetes.client.kube_types import KubeNode, KubePod
from brim.storage.files import write_whole
from brim_lab.driver import Driver
from brim_lab.kubernetes.cluster import NodeCluster
from brim_lab.kubernetes.jobs import GPU, JobsOnNodes, until
from clusters import image, namespace, no_cluster, node_cluster, real_kubeconfig
from e2e.running import FILES, ROOT, lines, train
from example_data import write_clicks

__all__ = ["namespace", "node_cluster", "real_kubeconfig"]
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1_200)]
ROWS = 3_000
CODE = {
    "clicks.py": (FILES / "clicks.py").read_bytes(),
    "criteo.py": (ROOT / "examples" / "01-first-job" / "criteo.py").read_bytes(),
}
SLOT = {"cpu": "100m", "memory": "1Gi", GPU: "8"}  # one worker on each node
SMALL_SLOT = SLOT | {GPU: "4"}  # two
JOB: dict[str, Any] = {
    "epochs": 25,
    "globalBatchSize": 96,
    "microBatches": 3,
    "checkpointEvery": "20",
    "workers": {"min": 1, "max": 3},
}


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "criteo.tsv"
    write_clicks(path, ROWS)
    return path


def calm_run(rows: Path, folder: Path, *, parts: int) -> str:
    """Run the same job by `brim train`, in so many micro-batches; return its digest."""
    for name, content in CODE.items():
        (folder / name).write_bytes(content)
    job = ("--epochs", "25", "--global-batch-size", "96", "--micro-batches", str(parts))
    words = (str(folder / "clicks.py"), *job, "--workers", "1", "--set", f"path={rows}")
    return str(train(folder / "run", *words)["weights_sha256"])


@pytest.fixture(scope="module")
def calm(rows: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    return calm_run(rows, tmp_path_factory.mktemp("calm"), parts=3)


@pytest.fixture
def jobs(node_cluster: NodeCluster, namespace: str, rows: Path) -> Iterator[JobsOnNodes]:
    if len(node_cluster.nodes) < 3:
        no_cluster("this takes three nodes: make cluster-down cluster NODES=3")
    test_jobs = JobsOnNodes(node_cluster, namespace, image=image())
    try:
        (test_jobs.folder / "criteo.tsv").write_bytes(rows.read_bytes())
        yield test_jobs
    finally:
        test_jobs.uninstall()


def submit(jobs: JobsOnNodes, name: str = "clicks", **spec: Any) -> None:
    parameters = {"path": str(jobs.folder / "criteo.tsv"), "pause": "0.3"}
    jobs.submit(name, CODE, parameters=parameters, **JOB | spec)


def run_three(jobs: JobsOnNodes) -> None:
    jobs.install(SLOT)
    submit(jobs)
    jobs.until_training("clicks", 3)


def check(jobs: JobsOnNodes, calm: str) -> None:
    """Check that the job has ended as the calm one did, and that nothing is left of it."""
    status = jobs.until_ended("clicks")
    assert status["phase"] == "Done", status
    assert status["summary"]["weights_sha256"] == calm
    url = f"file://{jobs.run_of('clicks')}"
    account = json.loads(Driver().call("ledger", url, "--json", codes=(0, 1)).stdout)
    assert account["exact"], account
    done = Driver().call("evaluate", url, "--json", "--run-dir", str(jobs.folder / "again"))
    metrics = json.loads(done.stdout)["metrics"]
    assert metrics["auc"] == status["summary"]["metrics.auc"]
    until(lambda: not jobs.pods("clicks"), lambda: jobs.told("clicks"))
    jobs.kubectl("delete", "elasticjob", "clicks")
    kinds = "secrets,services,networkpolicies,configmaps"
    of_the_job = "-l=brim.dev/job=clicks"
    until(
        lambda: not jobs.kubectl("get", kinds, of_the_job, "-o", "name"),
        lambda: jobs.kubectl("get", kinds, of_the_job),
    )
    assert jobs.kill("-m", "brim", "agent") == jobs.kill("-m", "brim", "master") == 0


def test_a_job_outlives_its_pods_and_its_operator(jobs: JobsOnNodes, calm: str) -> None:
    jobs.add_priority("inference", 1_000)
    run_three(jobs)

    node = jobs.node_of(min(jobs.workers("clicks")))
    jobs.occupy("inference", node, "inference")
    jobs.until_training("clicks", 2)
    assert node not in jobs.workers("clicks").values()
    jobs.kubectl("delete", "pod", "inference")
    jobs.until_training("clicks", 3)

    deleted_pod = min(jobs.workers("clicks"))
    jobs.kubectl("delete", "pod", deleted_pod)
    jobs.until_training("clicks", 3)
    re_formed = jobs.events("clicks", "re_formed")
    assert re_formed
    assert all(event["redone"] == 0 for event in re_formed)

    assert jobs.kill(jobs.operator()) > 0
    deleted_pod = min(jobs.workers("clicks"))
    jobs.kubectl("delete", "pod", deleted_pod)
    jobs.until_training("clicks", 3)

    master = jobs.uids("clicks")["clicks-master"]
    assert jobs.kill("-m", "brim", "master") > 0

    def is_another() -> bool:
        return jobs.uids("clicks").get("clicks-master", master) != master

    until(is_another, lambda: jobs.told("clicks"))
    jobs.until_training("clicks", 3)
    jobs.hurry("clicks")
    check(jobs, calm)


@pytest.mark.parametrize("mode", ["planned", pytest.param("opportunistic", marks=pytest.mark.long)])
def test_processes_share_a_worker(jobs: JobsOnNodes, rows: Path, tmp_path: Path, mode: str) -> None:
    """Its pod comes and goes with all of them, on the node that kube-scheduler has bound it to."""
    jobs.add_priority("inference", 1_000)
    jobs.install(SLOT)
    submit(jobs, processesPerWorker=2, mode=mode, microBatches=4, workers={"min": 1, "max": 2})
    jobs.until_training("clicks", 2, processes=2)

    first = min(jobs.workers("clicks"))
    jobs.occupy("inference", jobs.workers("clicks")[first], "inference")
    until(lambda: first not in jobs.pods("clicks"), lambda: jobs.told("clicks"))
    jobs.until_training("clicks", 2, processes=2)
    jobs.kubectl("scale", "elasticjob", "clicks", "--replicas=1")
    jobs.until_training("clicks", 1, processes=2)
    assert all(event["redone"] == 0 for event in jobs.events("clicks", "re_formed"))
    jobs.hurry("clicks")
    check(jobs, calm_run(rows, tmp_path, parts=4))


@pytest.mark.long
def test_a_suspended_job_goes_on_from_its_volume(jobs: JobsOnNodes, calm: str) -> None:
    jobs.install(SLOT, "--volume-size=1Gi")
    volume = jobs.folder / "volume"
    volume.mkdir()
    volume.chmod(0o777)
    jobs.add_volume_for("clicks-master", volume)
    submit(jobs, runs=None)  # nowhere else

    def events(kind: str) -> list[dict[str, Any]]:
        files = volume.glob("*/events.jsonl")
        lines = [line for file in files for line in file.read_text().splitlines(keepends=True)]
        whole = [json.loads(line) for line in lines if line.endswith("\n")]
        return [event for event in whole if event["kind"] == kind]

    until(lambda: len(jobs.workers("clicks")) == 3, lambda: jobs.told("clicks"))
    until(lambda: events("checkpoint"), lambda: jobs.told("clicks"))
    suspend = '{"spec": {"suspend": true}}'
    jobs.kubectl("patch", "elasticjob", "clicks", "--type=merge", "-p", suspend)
    until(lambda: not jobs.pods("clicks"), lambda: jobs.told("clicks"))
    last_checkpoint = events("checkpoint")[-1]["step"]
    jobs.kubectl(
        "patch", "elasticjob", "clicks", "--type=merge", "-p", suspend.replace("true", "false")
    )
    until(lambda: len(jobs.workers("clicks")) == 3, lambda: jobs.told("clicks"))
    until(lambda: events("restored"), lambda: jobs.told("clicks"))
    assert events("restored")[-1]["step"] == last_checkpoint >= 20
    jobs.hurry("clicks")
    status = jobs.until_ended("clicks")
    assert status["phase"] == "Done", status
    assert status["summary"]["weights_sha256"] == calm


def test_a_job_outlives_nodes(jobs: JobsOnNodes, calm: str) -> None:
    cluster = jobs.cluster
    run_three(jobs)

    other_nodes = [node for node in cluster.nodes if node != jobs.node_of("clicks-master")]
    cluster.kill(other_nodes[0])
    try:
        jobs.until_training("clicks", 2)
    finally:
        cluster.boot(other_nodes[0])
    jobs.until_training("clicks", 3)

    cluster.partition(other_nodes[1])
    try:
        jobs.until_training("clicks", 2)
    finally:
        cluster.heal(other_nodes[1])
    jobs.until_training("clicks", 3)

    node = jobs.node_of("clicks-master")
    cluster.kill(node)
    try:
        until(lambda: jobs.node_of("clicks-master") not in ("", node), lambda: jobs.told("clicks"))
        jobs.until_training("clicks", 2)
    finally:
        cluster.boot(node)
    jobs.until_training("clicks", 3)
    jobs.hurry("clicks")
    check(jobs, calm)


@pytest.mark.long
def test_a_full_cluster_makes_room_for_masters(
    jobs: JobsOnNodes, rows: Path, tmp_path: Path
) -> None:
    jobs.add_priority("inference", 1_000)
    jobs.install({"cpu": "300m", "memory": "1Gi", GPU: "4"})  # two workers on each node
    first, *other_nodes = jobs.cluster.nodes
    for node in other_nodes:  # which then have 100m for others, where a master requests 250m
        cpu_beside = cpu_left(jobs, node) - Fraction("0.7")
        amount = f"{math.floor(cpu_beside * 1000)}m"
        jobs.occupy(f"beside-{node}", node, "inference", amount, resource="cpu")
    submit(jobs, microBatches=12, workers={"min": 1, "max": 6})
    jobs.until_training("clicks", 6)
    assert jobs.node_of("clicks-master") == first

    of_the_job = "--pod-selector=brim.dev/job=clicks"
    jobs.kubectl("drain", first, of_the_job, "--delete-emptydir-data", "--force")
    try:
        until(lambda: jobs.node_of("clicks-master") in other_nodes, lambda: jobs.told("clicks"))
        jobs.until_training("clicks", 3)
    finally:
        jobs.kubectl("uncordon", first)
    jobs.until_training("clicks", 4)  # five would be no faster with twelve micro-batches
    redone = [event["redone"] for event in jobs.events("clicks", "re_formed")]
    assert sum(redone) <= 1, "of the worker that made room"
    jobs.hurry("clicks")
    check(jobs, calm_run(rows, tmp_path, parts=12))


def cpu_left(jobs: JobsOnNodes, node: str) -> Fraction:
    """The processors of a node that no pod requests."""
    kube_node = msgspec.convert(jobs.api.ask(f"/api/v1/nodes/{node}"), KubeNode)
    pods = msgspec.convert(jobs.api.ask("/api/v1/pods")["items"], list[KubePod])
    pods_here = [pod for pod in pods if pod.spec.node_name == node and not pod.has_ended]
    requested = total(map(asked_by, pods_here)).get("cpu", Fraction(0))
    return parse_amount(kube_node.status.allocatable["cpu"]) - requested


@pytest.mark.long
def test_a_tenant_lends_and_takes_back(jobs: JobsOnNodes, calm: str) -> None:
    jobs.install(SMALL_SLOT)
    for tenant in ("ads", "maps", "search"):
        jobs.add_tenant(tenant, guaranteed=2)
    submit(jobs, "home", tenant="maps", workers={"min": 2, "max": 2})
    jobs.until_training("home", 2)
    submit(jobs, tenant="ads", workers={"min": 1, "max": 4}, microBatches=4)
    jobs.until_training("clicks", 4)
    at_home = jobs.uids("home")

    submit(jobs, "back", tenant="search", workers={"min": 2, "max": 2})
    jobs.until_training("back", 2)
    jobs.until_training("clicks", 2)
    assert all(event["redone"] == 0 for event in jobs.events("clicks", "re_formed"))

    jobs.hurry("back")
    assert jobs.until_ended("back")["summary"]["weights_sha256"] == calm
    jobs.until_training("clicks", 4)
    assert jobs.uids("home") == at_home
    jobs.hurry("home")
    assert jobs.until_ended("home")["summary"]["weights_sha256"] == calm
    jobs.hurry("clicks")
    assert jobs.until_ended("clicks")["summary"]["steps_redone"] == 0


@pytest.mark.long
def test_a_command_is_started_again_in_its_pods(jobs: JobsOnNodes) -> None:
    """It knows nothing of brim, loses a pod and is resized; its checkpoints are on a shared volume."""
    jobs.install(SLOT)
    folder = jobs.folder / "saved-by-counting"
    jobs.submit(
        "counting", {"counting.py": (FILES / "counting.py").read_bytes()}, file=None,
        command=["python", "counting.py", "400"], restart=True, grace="9s",
        progress="step (?P<step>[0-9]+)/(?P<total>[0-9]+) loss (?P<loss>[0-9.]+)",
        checkpoints=str(folder), workers={"min": 1, "max": 2},
    )  # fmt: skip
    starts = folder / "starts-0"
    until(
        lambda: len(lines(starts)) == 1 and jobs.status("counting").get("step", 0) > 5,
        lambda: jobs.told("counting"),
    )
    jobs.kubectl(
        "delete", "pod", "--force", "--grace-period=0", next(iter(jobs.workers("counting")))
    )
    until(lambda: len(lines(starts)) == 2, lambda: jobs.told("counting"))
    change = json.dumps({"spec": {"workers": {"min": 1, "max": 1}}})
    jobs.kubectl("patch", "elasticjob", "counting", "--type=merge", f"--patch={change}")
    until(lambda: len(lines(starts)) == 3, lambda: jobs.told("counting"))
    (folder / "hurry").touch()
    status = jobs.until_ended("counting")
    assert (status["phase"], status["summary"]["steps"]) == ("Done", 400), status
    assert [start["size"] for start in lines(starts)] == [2, 2, 1]


@pytest.mark.long
def test_a_job_gives_way_to_replicas_by_load(jobs: JobsOnNodes, calm: str) -> None:
    """A Deployment that the operator scales takes nodes from it and gives them back: nothing is redone."""
    jobs.add_priority("online", 1_000)
    jobs.add_namespace("restricted")
    metrics = jobs.folder / "metrics"
    metrics.mkdir()

    def load(number: int) -> None:
        write_whole(metrics / "load", str(number).encode())

    load(5)
    url = jobs.serve_files("metrics", metrics, 9090)
    jobs.install(SLOT, service_urls=(url,))
    about = {"replicas": "1:2", "per-replica": "10", "load": f"{url}load", "notice": "1s"}
    jobs.add_service("web", "online", {f"brim.dev/{name}": text for name, text in about.items()})

    def has_ready(count: int) -> bool:
        path = f"/apis/apps/v1/namespaces/{jobs.namespace}/deployments/web"
        deployment = jobs.api.ask(path)
        ready = deployment["status"].get("readyReplicas", 0)
        return bool(deployment["spec"]["replicas"] == ready == count)

    def words() -> str:
        return jobs.kubectl("describe", "deployment", "web") + jobs.told("clicks")

    until(lambda: has_ready(1), words)
    submit(jobs)
    jobs.until_training("clicks", 2)
    for number, replicas in ((15, 2), (5, 1)):
        load(number)
        until(partial(has_ready, replicas), words)
        jobs.until_training("clicks", 3 - replicas)
    assert all(event["redone"] == 0 for event in jobs.events("clicks", "re_formed"))
    events = jobs.kubectl("get", "events", "--field-selector=reason=Scaled", "-o", "wide")
    assert re.search(r"load .* now, .* foreseen in \d+ s: 2 replicas", events)
    jobs.hurry("clicks")
    check(jobs, calm)
