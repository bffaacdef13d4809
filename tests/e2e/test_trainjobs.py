"""The pods of a TrainJob as processes: the runtime's own command, and the variables that pods get.

What the trainer, JobSet and the controller of Jobs do is done here: a pod that is killed ends with all
of its processes, and one of its name is started in its place, without its files.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from brim.kubernetes.install.training_runtime import RUNS, TERMINATION_LOG, training_runtime
from brim.launch.progress import ProgressServer
from brim.loggers import trainjob
from brim_lab.chaos.hosts import Host, can_make_hosts, hosts_in
from brim_lab.driver import Driver
from e2e.running import DEADLINE, DIGITS, JOB, free_port, lines, undisturbed, until
from tiers import long_after

pytestmark = pytest.mark.e2e
VARIABLE = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)")
UID = "5d1c"


class TrainJob:
    """A TrainJob of so many nodes, whose pods are on this host.

    Args:
        args: of its trainer.
        hosts: one for each pod; none: all are on this one.
        variables: that the trainer gives containers beside those of its policy.
    """

    def __init__(
        self,
        folder: Path,
        nodes: int,
        *args: str,
        hosts: Sequence[Host] = (),
        **variables: str,
    ) -> None:
        self.folder, self.nodes, self.args, self.hosts = folder, nodes, args, hosts
        self.address = hosts[0].address if hosts else "127.0.0.1"
        self.variables, self.uid = variables, UID
        self.port = free_port()
        self.starts = 0
        self.pods: dict[int, Pod] = {}

    def start(self, index: int, *, failures: int = 0) -> Pod:
        """Start the pod of an index, as the controller of Jobs does."""
        self.starts += 1
        self.pods[index] = Pod(self, index, failures)
        return self.pods[index]

    def end(self) -> None:
        for pod in self.pods.values():
            pod.kill()

    def container(self, index: int, failures: int) -> tuple[list[str], dict[str, str]]:
        """The command and the environment of a pod's container."""
        runtime = training_runtime(image="brim:1")
        (replicated,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
        (container,) = replicated["template"]["spec"]["template"]["spec"]["containers"]
        facts = {
            "metadata.labels['batch.kubernetes.io/controller-uid']": self.uid,
            "metadata.labels['jobset.sigs.k8s.io/jobset-uid']": "9f2e",
            "metadata.annotations['batch.kubernetes.io/job-index-failure-count']": str(failures),
            "spec.nodeName": f"n{index}",
        }
        environment: dict[str, str] = {}
        for variable in container["env"]:
            environment[variable["name"]] = value_of(variable, facts, environment)
        environment |= {
            **self.variables,
            "PET_NNODES": str(self.nodes),
            "PET_NPROC_PER_NODE": "1",
            "PET_NODE_RANK": str(index),
            "PET_MASTER_ADDR": self.address,
            "PET_MASTER_PORT": "29400",
            "JOB_COMPLETION_INDEX": str(index),
        }
        words = [expanded(word, environment) for word in [*container["command"], *self.args]]
        return words[words.index("pod") :], environment


class Pod:
    """A pod of it; its files are its own."""

    def __init__(self, job: TrainJob, index: int, failures: int) -> None:
        words, environment = job.container(index, failures)
        host = job.hosts[index] if job.hosts else None
        self.folder = (host.folder if host else job.folder) / f"pod-{index}-{job.starts}"
        self.folder.mkdir()
        self.log = self.folder / "log"
        places = {RUNS: str(self.folder / "brim"), TERMINATION_LOG: str(self.folder / "end")}
        for place, own in places.items():
            words = [word.replace(place, own) for word in words]
        words = [word.replace(":4000", f":{job.port}") for word in words]
        self.end = self.folder / "end"
        self.end.touch()
        self.driver = Driver(self.folder, **environment).with_prefix(host.prefix if host else ())
        with self.log.open("wb") as log:
            self.process = self.driver.start(*words, stdout=log, stderr=subprocess.STDOUT)

    @property
    def run(self) -> Path:
        """The directory of the run, in the first pod."""
        return self.folder / "brim" / "9f2e"

    def rounds(self) -> list[dict[str, Any]]:
        return [event for event in lines(self.run / "events.jsonl") if event["kind"] == "round"]

    def kill(self) -> None:
        """End it with all of its processes, as an OOM killer or a lost node does."""
        self.process.kill()
        self.driver.end()
        self.process.wait(timeout=DEADLINE)

    def status(self) -> int:
        return self.process.wait(timeout=DEADLINE)


def value_of(variable: dict[str, Any], facts: dict[str, str], before: dict[str, str]) -> str:
    source = variable.get("valueFrom", {})
    if "secretKeyRef" in source:
        return "of-the-namespace"
    if "fieldRef" in source:
        return facts[source["fieldRef"]["fieldPath"]]
    return expanded(variable["value"], before)


def expanded(text: str, variables: dict[str, str]) -> str:
    """Expand `$(NAME)` as kubelets do: an unknown name stays as it is."""
    return VARIABLE.sub(lambda found: variables.get(found[1], found[0]), text)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def trainjob_of(
    stack: ExitStack,
    folder: Path,
    nodes: int,
    *args: str,
    hosts: Sequence[Host] = (),
    **variables: str,
) -> TrainJob:
    job = TrainJob(folder, nodes, *args, hosts=hosts, **variables)
    stack.callback(job.end)
    return job


def trains_on_all(job: TrainJob, *, beyond: int = 0) -> int:
    """Wait until all pods train together, and a step is done; the step."""
    first = job.pods[0]

    def steps() -> list[dict[str, Any]]:
        return lines(first.run / "steps.jsonl")

    def is_so() -> bool:
        assert first.process.poll() is None, first.log.read_text()
        rounds = first.rounds()
        return (
            bool(rounds)
            and len(rounds[-1]["workers"]) == job.nodes
            and bool(steps())
            and steps()[-1]["round"] == rounds[-1]["round"]
            and steps()[-1]["step"] > beyond
        )

    until(is_so, f"a step of {job.nodes} pods")
    return int(steps()[-1]["step"])


@pytest.mark.parametrize("nodes", long_after(1, [2, 4]))
def test_pods_are_lost_and_replaced(tmp_path: Path, stack: ExitStack, nodes: int) -> None:
    server = ProgressServer()
    stack.callback(server.close)
    reports: dict[str, Any] = {name: server.variables(1)[name] for name in trainjob.VARIABLES}
    hurry = tmp_path / "hurry"
    slow = ("--set", "pause=0.1", "--set", f"hurry={hurry}")
    job = trainjob_of(stack, tmp_path, nodes, *JOB, *slow, **reports)
    for index in range(nodes):
        job.start(index)
    step = trains_on_all(job)
    job.pods[nodes - 1].kill()
    job.start(nodes - 1, failures=1)
    step = trains_on_all(job, beyond=step)
    job.pods[0].kill()  # with the master and its records
    job.start(0, failures=1)
    trains_on_all(job, beyond=step)
    hurry.touch()
    statuses = [job.pods[index].status() for index in range(nodes)]
    assert statuses == [0] * nodes, job.pods[0].log.read_text()
    summary = json.loads(job.pods[0].end.read_text())
    assert summary["weights_sha256"] == undisturbed(*JOB)["weights_sha256"]
    assert summary["steps_redone"] <= 2
    last = server.fresh(1)[-1]
    assert (last.step, last.total) == (summary["steps"], summary["steps"])
    assert last.values["accuracy"] == pytest.approx(summary["metrics"]["accuracy"])


@pytest.mark.long
@pytest.mark.netns
@pytest.mark.skipif(not can_make_hosts(), reason="needs root, ip and /dev/net/tun")
def test_pods_on_hosts_of_their_own(tmp_path: Path, stack: ExitStack) -> None:
    hosts = stack.enter_context(hosts_in(tmp_path, 2))
    job = trainjob_of(stack, tmp_path, 2, *JOB, "--set", "pause=0.1", hosts=hosts)
    for index in range(2):
        job.start(index)
    step = trains_on_all(job)
    for index in (1, 0):
        job.pods[index].kill()
        job.start(index, failures=1)
        step = trains_on_all(job, beyond=step)
    assert [job.pods[index].status() for index in range(2)] == [0, 0], job.pods[0].log.read_text()
    summary = json.loads(job.pods[0].end.read_text())
    assert summary["weights_sha256"] == undisturbed(*JOB)["weights_sha256"]


def test_failure_of_the_run_needs_no_other_pod(tmp_path: Path, stack: ExitStack) -> None:
    file = tmp_path / "bad.py"
    text = (
        Path(DIGITS)
        .read_text()
        .replace("def loss(output, target):", "def loss(output, target):\n    1 / 0", 1)
    )
    file.write_text(text)
    job = trainjob_of(stack, tmp_path, 1, str(file))
    pod = job.start(0)
    assert pod.status() == 1, pod.log.read_text()
    assert json.loads(pod.end.read_text())["exit"] == "failed"
    assert "ZeroDivisionError" in pod.log.read_text()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((), "FILE: got nothing"),
        (("nowhere.py",), "nowhere.py"),
        ((DIGITS, "--", "python", "loop.py"), "a command"),
        ((DIGITS, "--workers", "none"), "--workers"),
        ((DIGITS, "--workers", "3"), "3, and 2 in all pods together"),
    ],
)
def test_wrong_args_need_no_other_pod(
    tmp_path: Path, stack: ExitStack, args: tuple[str, ...], words: str
) -> None:
    pod = trainjob_of(stack, tmp_path, 2, *args).start(0)
    assert pod.status() == 2, pod.log.read_text()
    assert words in pod.log.read_text()


@pytest.mark.parametrize("nodes", long_after(1, [1, 2]))
def test_suspended_job_continues_from_its_checkpoint(
    tmp_path: Path, stack: ExitStack, nodes: int
) -> None:
    hurry, kept = tmp_path / "hurry", tmp_path / "kept"
    words = ("--set", "pause=0.1", "--set", f"hurry={hurry}", "--checkpoints", str(kept))
    job = trainjob_of(stack, tmp_path, nodes, *JOB, *words)
    for index in range(nodes):
        job.start(index)
    step = trains_on_all(job)
    pods = list(job.pods.values())
    for pod in pods:
        pod.process.terminate()
    assert [pod.status() for pod in pods] == [143] * nodes, "to a Job, 0 would be complete"
    assert not pods[0].end.read_text()
    hurry.touch()
    for index in range(nodes):
        job.start(index)
    assert [pod.status() for pod in job.pods.values()] == [0] * nodes
    summary = json.loads(job.pods[0].end.read_text())
    assert summary["weights_sha256"] == undisturbed(*JOB)["weights_sha256"]
    assert lines(job.pods[0].run / "steps.jsonl")[0]["step"] > step


@pytest.mark.long
def test_killed_processes_start_again_in_their_pod(tmp_path: Path, stack: ExitStack) -> None:
    job = trainjob_of(stack, tmp_path, 1, *JOB)
    pod = job.start(0)
    until((pod.run / "master.json").exists, "the master")
    os.kill(json.loads((pod.run / "master.json").read_text())["pid"], 9)
    assert pod.status() == 0, pod.log.read_text()
    assert "the master was killed, and is started again" in pod.log.read_text()
    summary = json.loads(pod.end.read_text())
    assert summary["weights_sha256"] == undisturbed(*JOB)["weights_sha256"]


@pytest.mark.long
def test_first_pod_leads_without_its_worker(tmp_path: Path, stack: ExitStack) -> None:
    hurry = tmp_path / "hurry"
    job = trainjob_of(stack, tmp_path, 2, *JOB, "--set", "pause=0.1", "--set", f"hurry={hurry}")
    for index in range(2):
        job.start(index)
    trains_on_all(job)
    inside = {p.pid for p in psutil.Process(job.pods[0].process.pid).children(recursive=True)}
    workers = {e["pid"] for e in lines(job.pods[0].run / "events.jsonl") if e["kind"] == "worker"}
    (own,) = inside & workers
    os.kill(own, signal.SIGTERM)
    until(lambda: len(job.pods[0].rounds()[-1]["workers"]) == 1, "a round without it")
    hurry.touch()
    assert [pod.status() for pod in job.pods.values()] == [0, 0], job.pods[0].log.read_text()
    summary = json.loads(job.pods[0].end.read_text())
    assert summary["weights_sha256"] == undisturbed(*JOB)["weights_sha256"]


@pytest.mark.long
def test_pods_of_another_job_are_not_let_in(tmp_path: Path, stack: ExitStack) -> None:
    job = trainjob_of(stack, tmp_path, 1, *JOB, "--set", "pause=0.1")
    job.start(0)
    trains_on_all(job)
    job.uid = "of another Job at this address"
    stranger = job.start(1)
    until(lambda: "token" in stranger.log.read_text(), "a refusal")
    assert len(job.pods[0].rounds()[-1]["workers"]) == 1


def test_command_runs_at_its_level(tmp_path: Path, stack: ExitStack) -> None:
    script = tmp_path / "script.sh"
    script.write_text("echo rank $RANK of $WORLD_SIZE in $PET_NNODES\n")
    pod = trainjob_of(stack, tmp_path, 1, "--", "sh", str(script)).start(0)
    assert pod.status() == 0, pod.log.read_text()
    assert "level: restart" in pod.log.read_text()
