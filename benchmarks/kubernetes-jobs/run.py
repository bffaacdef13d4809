"""A job on real nodes: how soon a pod trains, and the cost of its end: see README.md."""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.harness.report import Report, seconds, table
from brim_lab.kubernetes.cluster import NodeCluster, is_up
from brim_lab.kubernetes.groups import members
from brim_lab.kubernetes.jobs import GPU, JobsOnNodes, until
from brim_lab.kubernetes.settings import group_of

BENCHMARK = Path(__file__).parent
FILES = BENCHMARK.parents[1] / "tests" / "e2e" / "files"
SLOT = {"cpu": "100m", "memory": "1Gi", GPU: "8"}  # one worker on each node
TURNS = 3
JOB = "digits"
_IMPORT = "import time; began = time.time(); import torch; print(began, time.time() - began)"


class Measured:
    """The job, and the operations on it."""

    def __init__(self, jobs: JobsOnNodes, say: Callable[[str], None]) -> None:
        self._jobs, self.say = jobs, say

    def begin(self, free: str) -> None:
        """Submit the job, with a pod of others on one node."""
        self._jobs.add_priority("others", 1_000)
        self._jobs.occupy("others", free, "others")
        self._jobs.submit(
            JOB,
            {"digits.py": (FILES / "digits.py").read_bytes()},
            workers={"min": 1, "max": 3},
            microBatches=3,
            globalBatchSize=96,
            epochs=10_000,
            parameters={"pause": "0.02", "hurry": "/tmp/hurry"},
        )
        self._jobs.until_training(JOB, 2)

    def join(self, free: str) -> float:
        """Let a worker come; return the seconds from its pod's POST to its first step."""
        uids_before = self._jobs.uids(JOB)
        self._jobs.kubectl("delete", "pod", "others")
        until(lambda: len(self._jobs.uids(JOB)) > len(uids_before), self._told)
        posted = time.time()
        self._jobs.until_training(JOB, 3)
        formed = [event for event in self._jobs.events(JOB, "round") if event["world_size"] == 3][
            -1
        ]
        first = self._first_step(start=formed["at"])
        self.say(f"a pod that joins makes a step {first - posted:.2f} s after its POST")
        return float(first - posted)

    def leave(self, free: str) -> tuple[float, int]:
        """Let it go; return the seconds from SIGTERM to the next step, and the steps redone."""
        (name,) = [pod for pod, node in self._jobs.workers(JOB).items() if node == free]
        asked_at = time.time()
        agent = self._agent_of(name)
        signalled = time.time()
        os.kill(agent, signal.SIGTERM)
        self._jobs.occupy("others", free, "others")
        self._jobs.until_training(JOB, 2)
        formed = next(
            event for event in self._jobs.events(JOB, "re_formed") if event["at"] > asked_at
        )
        took: float = self._first_step(start=formed["at"]) - signalled
        self.say(f"the next step comes {took:.3f} s after SIGTERM, {formed['redone']} redone")
        return took, int(formed["redone"])

    def step_seconds(self) -> float:
        """The median time of the last steps."""
        times = [record["at"] for record in self._jobs.records(JOB, "steps")][-50:]
        return float(statistics.median(b - a for a, b in itertools.pairwise(times)))

    def import_torch(self, node: str) -> tuple[float, float]:
        """The seconds from the POST of a pod on a node until it runs Python, and of `import torch` there."""
        manifest: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "imports", "namespace": self._jobs.namespace},
            "spec": {
                "nodeName": node,
                "restartPolicy": "Never",
                "securityContext": {
                    "runAsNonRoot": True,
                    "seccompProfile": {"type": "RuntimeDefault"},
                },
                "containers": [
                    {
                        "name": "main",
                        "image": "localhost/brim:1",
                        "command": ["python3", "-c", _IMPORT],
                        "securityContext": {
                            "allowPrivilegeEscalation": False,
                            "capabilities": {"drop": ["ALL"]},
                        },
                    }
                ],
            },
        }
        asked_at = time.time()
        path = f"/api/v1/namespaces/{self._jobs.namespace}/pods"
        self._jobs.api.ask(path, method="POST", body=manifest)
        words = ("pod/imports", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=120s")
        self._jobs.kubectl("wait", *words)
        started, took = map(float, self._jobs.kubectl("logs", "imports").split())
        self._jobs.kubectl("delete", "pod", "imports", "--now")
        return started - asked_at, took

    def _first_step(self, *, start: float) -> float:
        def look() -> float | None:
            later_steps = (
                record["at"] for record in self._jobs.records(JOB, "steps") if record["at"] > start
            )
            return next(later_steps, None)

        return float(until(look, self._told))

    def _agent_of(self, pod: str) -> int:
        """The first process of a worker's pod, which a kubelet asks to end."""
        uid = self._jobs.uids(JOB)[pod].replace("-", "_")
        for pid in members(group_of(self._jobs.cluster.name)):
            try:
                group = Path(f"/proc/{pid}/cgroup").read_text().replace("-", "_")
                command = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            except OSError:
                continue
            if uid in group and "agent" in command:
                return pid
        raise AssertionError(f"no agent of {pod}")

    def _told(self) -> str:
        return self._jobs.told(JOB)


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    if not is_up():
        raise SystemExit("no cluster is up: make cluster NODES=3")
    cluster = NodeCluster()
    report = Report(BENCHMARK, "A job on real nodes", seed=0)
    jobs = JobsOnNodes(cluster, "job-measured")
    measured, free = Measured(jobs, report.say), cluster.nodes[-1]
    joined, starts, imports, departures, redone = [], [], [], [], 0
    try:
        jobs.install(SLOT)
        measured.begin(free)
        for _ in range(TURNS):
            start, took = measured.import_torch(free)
            starts.append(start)
            imports.append(took)
            joined.append(measured.join(free))
            took, repeated = measured.leave(free)
            departures.append(took)
            redone += repeated
        step = measured.step_seconds()
    finally:
        jobs.uninstall()
    rows: list[list[object]] = [
        ["POST of a worker's pod to its first step", seconds(joined)],
        ["`import torch` in a pod there", seconds(imports)],
        ["POST of a pod there until it runs Python", seconds(starts)],
        ["POST to first step, less `import torch`", f"{statistics.median(joined) - statistics.median(imports):.2f}"],
        ["SIGTERM to the next step of the others", seconds(departures)],
        ["a step before", f"{step:.3f}"],
        ["steps redone", redone],
    ]  # fmt: skip
    report.add(table(["seconds, median (least to most)", ""], rows))
    report.write(
        {
            "joined": joined,
            "starts": starts,
            "imports": imports,
            "left": departures,
            "redone": redone,
        }
    )


if __name__ == "__main__":
    main()
