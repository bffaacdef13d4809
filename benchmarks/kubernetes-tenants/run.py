"""A tenant takes its quota back from an elastic job, under brim and under Kueue: see README.md."""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from benchmarks.harness.report import Report, table
from brim.errors import EnvironmentFault
from brim.kubernetes.nodes.neighbours import VOLCANO_QUEUE
from brim_lab.kubernetes.cluster import NodeCluster, is_up
from brim_lab.kubernetes.guide import IMAGE, Guide
from brim_lab.kubernetes.jobs import GPU, JobsOnNodes, until
from brim_lab.kubernetes.peers import KUEUE, TRAINING_OPERATOR, install_peer, peer_manifests
from brim_lab.kubernetes.volcano import NAMESPACE, volcano_manifests

BENCHMARK = Path(__file__).parent
FILES = BENCHMARK.parents[1] / "tests" / "e2e" / "files"
WORKERS, QUOTA = 6, 3  # on three nodes of 8 GPUs, 4 for each worker; of each of two tenants
SLOT = {"cpu": "100m", "memory": "512Mi", GPU: "4"}
SETTLED = 20.0  # seconds after the owner trains, when idle devices are counted
LIMIT = 150.0
QUEUE = "kueue.x-k8s.io/queue-name"
SCHEDULER, VOLCANO_QUEUES = BENCHMARK / "volcano-scheduler.yaml", BENCHMARK / "volcano-queues.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reclaim:
    """The figures of one side.

    Args:
        pods_after, steps_after: seconds from the owner's request until all its pods ran, and until it
            made a step.
        killed: pods of the borrower that ended.
        workers: that the borrower had a while after.
        idle: devices, in workers, that were unused then.
        stood: the longest time between two steps of the borrower, in seconds; None: it made none any
            more.
        lost: its steps that were made again.
        back: seconds from the owner's end until it had all workers; None: not within `LIMIT`.
        state: the borrower's state, as the user saw it while the owner trained.
    """

    pods_after: float
    steps_after: float
    killed: int
    workers: int
    idle: int
    stood: float | None
    lost: int
    back: float | None
    state: str


class Side(Protocol):
    """A way to run the two jobs."""

    def begin(self, name: str, tenant: str, workers: int, fewest: int) -> None:
        """Submit a job."""
        ...

    def running(self, name: str) -> dict[str, str]:
        """The uids of a job's worker pods that run, by name."""
        ...

    def steps(self, name: str) -> list[tuple[float, int, int]]:
        """The steps of a job so far: when (seconds since the epoch), its number, by how many."""
        ...

    def state(self, name: str) -> str:
        """Return a job's state as a user sees it."""
        ...

    def end(self, name: str) -> None:
        """End a job."""
        ...


def story(side: Side, say: Callable[[str], None]) -> Reclaim:
    """Lend everything to one job, and let the owner come."""
    side.begin("borrower", "ads", WORKERS, 1)
    _until(lambda: _trains_with(side, "borrower", WORKERS), lambda: side.state("borrower"))
    borrowed = side.running("borrower")
    say(f"the borrower trains with {len(borrowed)}")
    asked_at = time.time()
    side.begin("owner", "search", QUOTA, QUOTA)
    _until(lambda: len(side.running("owner")) == QUOTA, lambda: side.state("owner"))
    pods_after = time.time() - asked_at
    _until(lambda: bool(side.steps("owner")), lambda: side.state("owner"))
    steps_after = time.time() - asked_at
    say(f"the owner's pods run after {pods_after:.1f} s, and train after {steps_after:.1f} s")
    time.sleep(SETTLED)
    now = side.running("borrower")
    state, killed = side.state("borrower"), len(borrowed.keys() - now.keys())
    idle = WORKERS - len(now) - len(side.running("owner"))
    say(f"the borrower has {len(now)} ({state}), {idle} idle")
    ended = time.time()
    side.end("owner")
    try:
        _until(
            lambda: _trains_with(side, "borrower", WORKERS, ended), lambda: side.state("borrower")
        )
        back: float | None = time.time() - ended
    except AssertionError:
        back = None
    stood = _longest_pause(side.steps("borrower"), asked_at)
    say(f"the borrower has all back: {back}")
    numbers = [number for _, number, _ in side.steps("borrower")]
    lost = len(numbers) - len(set(numbers))
    return Reclaim(
        pods_after=pods_after,
        steps_after=steps_after,
        killed=killed,
        workers=len(now),
        idle=idle,
        stood=stood,
        lost=lost,
        back=back,
        state=state,
    )


def _until(holds: Callable[[], bool], describe: Callable[[], str]) -> None:
    until(holds, describe, LIMIT)


def _trains_with(side: Side, name: str, workers: int, start: float = 0.0) -> bool:
    sizes = [size for moment, _, size in side.steps(name) if moment > start][-2:]
    return len(side.running(name)) == workers and sizes == [workers] * 2


def _longest_pause(steps: list[tuple[float, int, int]], start: float) -> float | None:
    """The longest time between two steps, the later of them after a time; None: there are none."""
    times = [moment for moment, _, _ in steps]
    pauses = [
        current - previous for previous, current in itertools.pairwise(times) if current > start
    ]
    return max(pauses, default=None)


class Brim:
    """ElasticJobs of two tenants."""

    def __init__(self, jobs: JobsOnNodes) -> None:
        self._jobs = jobs

    @contextmanager
    def installed(self) -> Iterator[None]:
        try:
            self._jobs.install(SLOT)
            for tenant in ("ads", "search"):
                self._jobs.add_tenant(tenant, guaranteed=QUOTA)
            yield
        finally:
            self._jobs.uninstall()

    def begin(self, name: str, tenant: str, workers: int, fewest: int) -> None:
        self._begin(name, workers, fewest, tenant=tenant)

    def _begin(self, name: str, workers: int, fewest: int, **options: Any) -> None:
        self._jobs.submit(
            name,
            {"digits.py": (FILES / "digits.py").read_bytes()},
            **options,
            workers={"min": fewest, "max": workers},
            microBatches=WORKERS,
            globalBatchSize=16 * WORKERS,
            epochs=100,
            parameters={"pause": "0.3", "hurry": "/tmp/hurry"},
        )

    def running(self, name: str) -> dict[str, str]:
        pods = self._jobs.pods(name)
        return _running(pod for key, pod in pods.items() if key != f"{name}-master")

    def steps(self, name: str) -> list[tuple[float, int, int]]:
        rounds = [(event["at"], event["world_size"]) for event in self._jobs.events(name, "round")]
        return [
            (record["at"], record["step"], _size_at(rounds, record["at"]))
            for record in self._jobs.records(name, "steps")
        ]

    def state(self, name: str) -> str:
        status = self._jobs.status(name)
        return f"{status.get('phase')}, {status.get('workers', {}).get('ready')} workers"

    def end(self, name: str) -> None:
        self._jobs.kubectl("delete", "elasticjob", name)


class BrimInQueues(Brim):
    """ElasticJobs in two queues of Kueue, which knows nothing of jobs: it takes and gives pods."""

    @contextmanager
    def installed(self) -> Iterator[None]:
        cluster = self._jobs.cluster
        kueue = peer_manifests(cluster, KUEUE, excluded_kind="APIService")
        try:
            self._jobs.install(SLOT)
            install_peer(cluster, KUEUE, kueue)
            queues = (BENCHMARK / "queues.yaml").read_text()
            apply = ("apply", "-f", "-")
            until(lambda: [self._jobs.kubectl(*apply, stdin=queues)], lambda: "no webhook")
            yield
        finally:
            self._jobs.uninstall()
            _remove(cluster, kueue)

    def begin(self, name: str, tenant: str, workers: int, fewest: int) -> None:
        self._begin(name, workers, fewest, labels={QUEUE: tenant})


class BrimUnderVolcano(Brim):
    """ElasticJobs whose pods Volcano binds, as gangs of the fewest workers, in two queues of its own."""

    @contextmanager
    def installed(self) -> Iterator[None]:
        kubectl = self._jobs.cluster.kubectl
        volcano = volcano_manifests(self._jobs.cluster, SCHEDULER.read_text())
        queues = VOLCANO_QUEUES.read_text()
        try:
            kubectl("apply", "--server-side", "-f", "-", stdin=volcano)
            ready = ("--for=condition=Available", "--timeout=180s")
            kubectl("wait", "deployment", "--all", "-n", NAMESPACE, *ready)
            kubectl("apply", "-f", "-", stdin=queues)
            self._jobs.install(SLOT, gangs=True)
            yield
        finally:
            self._jobs.uninstall()
            for text in (queues, volcano):
                kubectl("delete", "-f", "-", "--ignore-not-found", stdin=text)

    def begin(self, name: str, tenant: str, workers: int, fewest: int) -> None:
        self._begin(
            name,
            workers,
            fewest,
            annotations={VOLCANO_QUEUE: tenant},
            scheduler="volcano",
            gang=True,
            mode="opportunistic",
        )


def _remove(cluster: NodeCluster, kueue: str) -> None:
    """Take Kueue away, once nothing is in its queues any more."""
    cluster.kubectl("delete", "clusterqueues,resourceflavors", "--all", "--timeout=60s")
    cluster.kubectl("delete", "-f", "-", "--ignore-not-found", stdin=kueue)


def _running(pods: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The uids of those that run and are to stay, by name."""
    return {
        pod["metadata"]["name"]: pod["metadata"]["uid"]
        for pod in pods
        if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]
    }


def _size_at(rounds: list[tuple[float, int]], time: float) -> int:
    return next((size for moment, size in reversed(rounds) if moment <= time), 0)


class Kueue:
    """PyTorchJobs of Kubeflow's operator in two queues of one cohort."""

    def __init__(self, guide: Guide) -> None:
        self._guide = guide

    @contextmanager
    def installed(self) -> Iterator[None]:
        guide, kubectl = self._guide, self._guide.cluster.kubectl
        guide.add_its_image()
        peer_parts = peer_manifests(guide.cluster, TRAINING_OPERATOR, excluded_kind="Webhook")
        kueue = peer_manifests(
            guide.cluster,
            KUEUE,
            excluded_kind="APIService",  # which would keep namespaces from being deleted
            changes={'# - "kubeflow.org/pytorchjob"': '- "kubeflow.org/pytorchjob"'},
        )
        try:
            install_peer(guide.cluster, TRAINING_OPERATOR, peer_parts)
            install_peer(guide.cluster, KUEUE, kueue)
            meta = {"name": guide.namespace}
            guide.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
            queues = (BENCHMARK / "queues.yaml").read_text()
            until(lambda: [guide.kubectl("apply", "-f", "-", stdin=queues)], lambda: "no webhook")
            yield
        finally:
            guide.kubectl("delete", "pytorchjobs", "--all", "--timeout=60s")
            kubectl("delete", "-f", "-", "--ignore-not-found", stdin=peer_parts)
            kubectl("delete", "namespace", guide.namespace, "--timeout=90s")
            _remove(guide.cluster, kueue)

    def begin(self, name: str, tenant: str, workers: int, fewest: int) -> None:
        self._begin(name, workers, fewest, labels={QUEUE: tenant})

    def _begin(
        self,
        name: str,
        workers: int,
        fewest: int,
        *,
        labels: Mapping[str, str] | None = None,
        scheduling: Mapping[str, Any] | None = None,
    ) -> None:
        checkpoint = {"name": "checkpoints", "hostPath": {"path": str(self._guide.folder)}}
        container = {
            "name": "pytorch",
            "image": IMAGE,
            "command": ["python", "-m", "torch.distributed.run", "/workspace/examples/imagenet.py"],
            "args": ["--arch=resnet18", "--epochs=100", "--batch-size=32", "--workers=0", "/data"],
            "env": [
                {"name": "CHECKPOINT", "value": f"{self._guide.folder}/{name}.pt"},
                # Without it torch does not live through a change of its workers.
                {"name": "TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "value": "1"},
            ],
            "resources": {"limits": {GPU: "4"}},
            "volumeMounts": [{"name": "checkpoints", "mountPath": str(self._guide.folder)}],
        }
        template = {
            "metadata": {"labels": {"volcano.sh/preemptable": "true"}},
            "spec": {"containers": [container], "volumes": [checkpoint]},
        }
        policy = {"minReplicas": fewest, "maxReplicas": workers, "maxRestarts": 100}
        replicas = {"replicas": workers, "restartPolicy": "OnFailure", "template": template}
        meta = {"name": name, "namespace": self._guide.namespace, "labels": dict(labels or {})}
        policy_of_run = {"schedulingPolicy": scheduling} if scheduling else {}
        self._guide.apply(
            {
                "apiVersion": "kubeflow.org/v1",
                "kind": "PyTorchJob",
                "metadata": meta,
                "spec": {
                    "nprocPerNode": "1",
                    "runPolicy": policy_of_run,
                    "elasticPolicy": {"rdzvBackend": "c10d", **policy},
                    "pytorchReplicaSpecs": {"Worker": replicas},
                },
            }
        )

    def _pods(self, name: str) -> list[Mapping[str, Any]]:
        label = f"training.kubeflow.org/job-name%3D{name}"
        path = f"/api/v1/namespaces/{self._guide.namespace}/pods?labelSelector={label}"
        pods: list[Mapping[str, Any]] = self._guide.api.ask(path)["items"]
        return pods

    def running(self, name: str) -> dict[str, str]:
        return _running(self._pods(name))

    def steps(self, name: str) -> list[tuple[float, int, int]]:
        log = self._guide.folder / f"{name}.steps"  # the logs of pods that are gone are gone
        lines = log.read_text().splitlines() if log.exists() else []
        return [
            (float(moment), int(step), int(size)) for moment, step, size in map(str.split, lines)
        ]

    def state(self, name: str) -> str:
        path = f"/apis/kubeflow.org/v1/namespaces/{self._guide.namespace}/pytorchjobs/{name}"
        conditions = self._guide.api.ask(path).get("status", {}).get("conditions", [])
        true = [condition["type"] for condition in conditions if condition["status"] == "True"]
        return f"{true[-1] if true else 'no condition'}, {len(self.running(name))} pods"

    def end(self, name: str) -> None:
        self._guide.kubectl("delete", "pytorchjob", name)


class Volcano(Kueue):
    """PyTorchJobs of Kubeflow's operator, which asks Volcano for gangs of the fewest workers."""

    @contextmanager
    def installed(self) -> Iterator[None]:
        guide, kubectl = self._guide, self._guide.cluster.kubectl
        guide.add_its_image()
        volcano = volcano_manifests(guide.cluster, SCHEDULER.read_text())
        asks = {"- /manager": "- /manager\n        - --gang-scheduler-name=volcano"}
        peer_parts = peer_manifests(
            guide.cluster, TRAINING_OPERATOR, excluded_kind="Webhook", changes=asks
        )
        assert "gang-scheduler-name" in peer_parts
        queues = VOLCANO_QUEUES.read_text()
        try:
            for text in (volcano, peer_parts):
                kubectl("apply", "--server-side", "-f", "-", stdin=text)
            for namespace in (NAMESPACE, TRAINING_OPERATOR.namespace):
                ready = ("--for=condition=Available", "--timeout=180s")
                kubectl("wait", "deployment", "--all", "-n", namespace, *ready)
            meta = {"name": guide.namespace}
            guide.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
            kubectl("apply", "-f", "-", stdin=queues)
            yield
        finally:
            guide.kubectl("delete", "pytorchjobs", "--all", "--timeout=60s")
            for text in (peer_parts, queues):
                kubectl("delete", "-f", "-", "--ignore-not-found", stdin=text)
            kubectl("delete", "namespace", guide.namespace, "--timeout=90s")
            kubectl("delete", "-f", "-", "--ignore-not-found", stdin=volcano)

    def begin(self, name: str, tenant: str, workers: int, fewest: int) -> None:
        self._begin(name, workers, fewest, scheduling={"queue": tenant, "minAvailable": fewest})


SIDES: dict[str, Callable[[NodeCluster], Any]] = {
    "brim": lambda cluster: Brim(JobsOnNodes(cluster, "tenants-brim")),
    "brim in Kueue's queues": lambda cluster: BrimInQueues(JobsOnNodes(cluster, "queues-brim")),
    "brim under Volcano": lambda cluster: BrimUnderVolcano(JobsOnNodes(cluster, "volcano-brim")),
    "Kueue": lambda cluster: Kueue(Guide(cluster, "tenants-kueue")),
    "Volcano": lambda cluster: Volcano(Guide(cluster, "tenants-volcano")),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", choices=SIDES, help="this one alone, and no report")
    arguments = parser.parse_args()
    if not is_up():
        raise SystemExit("no cluster is up: make cluster NODES=3")
    report = Report(BENCHMARK, "A tenant takes its quota back", seed=0)
    reclaims: dict[str, Reclaim] = {}
    for name in [arguments.side] if arguments.side else SIDES:
        report.say(name)
        side = SIDES[name](NodeCluster())
        with side.installed():
            reclaims[name] = story(side, report.say)
    if arguments.side:
        print(json.dumps(asdict(reclaims[arguments.side]), indent=1))
        return
    report.add(_table(reclaims))
    report.write({"reclaims": {name: asdict(reclaim) for name, reclaim in reclaims.items()}})


def _table(told: Mapping[str, Reclaim]) -> str:
    def seconds(value: float | None) -> str:
        return "never" if value is None else f"{value:.1f} s"

    rows: list[tuple[str, Callable[[Reclaim], object]]] = [
        ("the owner's pods run after", lambda reclaim: seconds(reclaim.pods_after)),
        ("the owner makes a step after", lambda reclaim: seconds(reclaim.steps_after)),
        ("pods of the borrower that ended", lambda reclaim: reclaim.killed),
        ("workers that the borrower kept", lambda reclaim: reclaim.workers),
        ("devices idle then, of 24", lambda reclaim: 4 * reclaim.idle),
        ("longest time without a step of the borrower", lambda reclaim: seconds(reclaim.stood)),
        ("its steps made again", lambda reclaim: reclaim.lost),
        ("all workers again after the owner's end", lambda reclaim: seconds(reclaim.back)),
        ("what its user saw", lambda reclaim: reclaim.state),
    ]
    return table(
        ["", *told], [[row_name, *(read(told[name]) for name in told)] for row_name, read in rows]
    )


if __name__ == "__main__":
    try:
        main()
    except EnvironmentFault as fault:
        raise SystemExit(f"error: {fault}") from None
