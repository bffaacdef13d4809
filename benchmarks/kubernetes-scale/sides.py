"""The operators that are measured, each as a process in the place of its Deployment's pod."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path

import psutil
import yaml

from brim.kubernetes.client.resources import PlainObject, Resource
from brim.kubernetes.objects.identities import JOB, ROLE, WORKER
from brim.kubernetes.objects.schemas import crds
from brim.kubernetes.record import ELASTIC_JOBS
from brim_lab.kubernetes.control_plane import HALF, ControlPlane
from brim_lab.kubernetes.peers import TRAINING_OPERATOR, build_peer

TEAM = "team"  # the namespace of all jobs
_LAST_LINES = 60  # of an operator's log
_TO_START = 120.0  # seconds
_MOST_RESTARTS = 5
# Where the operator of Kubeflow looks for the certificates of its webhook; it does not begin without.
_THEIR_CERTIFICATES = Path("/tmp/k8s-webhook-server/serving-certs")


class Side(ABC):
    """An operator as a process.

    Args:
        folder: for its log and its files.
        config: its kubeconfig.

    Attributes:
        name: in the report.
        namespace, account: as which it asks.
        jobs: the kind of its jobs.
        restarts: how often it has ended by itself, and was started again.
    """

    name: str
    namespace: str
    account: str
    jobs: Resource[PlainObject]

    def __init__(self, folder: Path, config: Path) -> None:
        self.folder, self.config = folder, config
        self.restarts = 0
        self._spent = 0.0  # CPU seconds of processes that have ended
        self._cpu = 0.0
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def user(cls) -> str:
        """The name of its account on the server."""
        return f"system:serviceaccount:{cls.namespace}:{cls.account}"

    @staticmethod
    @abstractmethod
    def whose_worker(labels: Mapping[str, str]) -> str:
        """Return the job that a pod with these labels is a worker of; empty: it is none."""

    @abstractmethod
    def a_job(self, name: str, workers: int, slot: Mapping[str, str]) -> PlainObject:
        """Return a job of so many workers, each of which asks for a slot."""

    @abstractmethod
    def install(self, plane: ControlPlane) -> None:
        """Put its objects on the server."""

    @abstractmethod
    def command(self) -> list[str]:
        """Return how it is started."""

    @abstractmethod
    def reconciles(self) -> tuple[float, float]:
        """Return the median and the 99th percentile of the time to reconcile, in seconds."""

    @abstractmethod
    def has_reconciled(self, jobs: int) -> bool:
        """Return whether it has looked at so many jobs since it was started."""

    def start(self) -> None:
        """Start it; again after `stop`."""
        env = {**os.environ, "KUBECONFIG": str(self.config)}
        with (self.folder / "operator.log").open("ab") as log:
            self._process = subprocess.Popen(self.command(), stdout=log, stderr=log, env=env)

    def stop(self) -> None:
        """Ask it to end, and wait for that."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(60)
            self._process, self._spent, self._cpu = None, 0.0, 0.0

    def keep_up(self) -> None:
        """Start it again where it has ended, as its Deployment would.

        Raises:
            RuntimeError: it does so again and again.
        """
        assert self._process is not None
        if self._process.poll() is None:
            return
        self.restarts += 1
        if self.restarts > _MOST_RESTARTS:
            last_lines = (self.folder / "operator.log").read_text().splitlines()[-_LAST_LINES:]
            raise RuntimeError("the operator has ended:\n" + "\n".join(last_lines))
        self._spent, self._cpu = self._spent + self._cpu, 0.0
        self.start()

    @property
    def cpu(self) -> float:
        """CPU seconds of user and system so far, to a second of one that has ended."""
        with contextlib.suppress(psutil.NoSuchProcess):
            times = self._there.cpu_times()
            self._cpu = float(times.user + times.system)
        return self._spent + self._cpu

    @property
    def _there(self) -> psutil.Process:
        assert self._process is not None
        return psutil.Process(self._process.pid)

    @property
    def peak_mib(self) -> float:
        """MiB of memory at most so far."""
        status = Path(f"/proc/{self._there.pid}/status").read_text()
        (line,) = [line for line in status.splitlines() if line.startswith("VmHWM")]
        return int(line.split()[1]) / 1024.0


class Brim(Side):
    """brim's operator; its cycles are those of all jobs together."""

    name, namespace, account = "brim", "brim-system", "brim-operator"
    jobs = ELASTIC_JOBS
    slot: Mapping[str, str] = {"cpu": "1", "memory": "1Gi"}

    @property
    def _cycles(self) -> Path:
        return self.folder / "cycles.jsonl"

    def start(self) -> None:
        self._cycles.write_text("")
        super().start()

    @staticmethod
    def whose_worker(labels: Mapping[str, str]) -> str:
        return labels.get(JOB, "") if labels.get(ROLE) == WORKER else ""

    def a_job(self, name: str, workers: int, slot: Mapping[str, str]) -> PlainObject:
        return {
            "apiVersion": "brim.dev/v1alpha1",
            "kind": "ElasticJob",
            "metadata": {"name": name, "namespace": TEAM},
            "spec": {"file": "/opt/train.py", "workers": {"min": workers, "max": workers}},
        }

    def install(self, plane: ControlPlane) -> None:
        plane.add_kinds(crds().values())

    def command(self) -> list[str]:
        module = f"{__package__}.timed_operator"
        command = [sys.executable, "-m", module, str(self._cycles), "operator"]
        command += ["--state", str(self.folder / "state"), "--namespace", self.namespace]
        command += ["--image", "registry.example/brim:1", "--watch", TEAM]
        for name, amount in self.slot.items():
            command += ["--slot", f"{name}={amount}"]
        return command

    def reconciles(self) -> tuple[float, float]:
        lines = self._cycles.read_text().splitlines()
        found = sorted(json.loads(line)[0] for line in lines)
        return percentile(found, 0.5), percentile(found, 0.99)

    def has_reconciled(self, jobs: int) -> bool:
        return self._cycles.stat().st_size > 0  # its first cycle has looked at all


class BrimWithSelectors(Brim):
    """The same with jobs of which each may be on one half of the nodes."""

    name = "brim, each job on one half of the nodes"

    def a_job(self, name: str, workers: int, slot: Mapping[str, str]) -> PlainObject:
        job = super().a_job(name, workers, slot)
        half = "odd" if zlib.crc32(name.encode()) % 2 else "even"
        spec = {"nodeSelector": {HALF: half}, "containers": [{"name": "worker"}]}
        job["spec"]["template"] = {"spec": spec}
        return job


class TrainingOperator(Side):
    """Kubeflow's operator, with the limits of its client and its threads raised."""

    name, namespace, account = "training-operator v1.9.4", "kubeflow", "training-operator"
    jobs = Resource("kubeflow.org/v1", "pytorchjobs", PlainObject)
    limits: tuple[str, ...] = (
        "--kube-api-qps=200",
        "--kube-api-burst=300",
        "--controller-threads=10",
    )
    _label = "training.kubeflow.org"

    def __init__(self, folder: Path, config: Path) -> None:
        super().__init__(folder, config)
        self._program = build_peer(TRAINING_OPERATOR)
        self._plane: ControlPlane | None = None
        self._port = 0  # of its metrics

    @classmethod
    def whose_worker(cls, labels: Mapping[str, str]) -> str:
        is_worker = labels.get(f"{cls._label}/replica-type") == "worker"
        return labels.get(f"{cls._label}/job-name", "") if is_worker else ""

    def a_job(self, name: str, workers: int, slot: Mapping[str, str]) -> PlainObject:
        resources = {"requests": dict(slot)}
        container = {"name": "pytorch", "image": "registry.example/x:1", "resources": resources}
        template = {"spec": {"containers": [container]}}
        worker = {"replicas": workers, "restartPolicy": "OnFailure", "template": template}
        elastic = {"rdzvBackend": "c10d", "minReplicas": 1, "maxReplicas": workers}
        return {
            "apiVersion": "kubeflow.org/v1",
            "kind": "PyTorchJob",
            "metadata": {"name": name, "namespace": TEAM},
            "spec": {"elasticPolicy": elastic, "pytorchReplicaSpecs": {"Worker": worker}},
        }

    def install(self, plane: ControlPlane) -> None:
        self._plane = plane
        overlay = str(self._program / "source" / TRAINING_OPERATOR.overlay)
        manifests = yaml.safe_load_all(plane.kubectl("kustomize", overlay))
        kinds = ("CustomResourceDefinition", "Secret")
        text = yaml.safe_dump_all(manifest for manifest in manifests if manifest["kind"] in kinds)
        plane.kubectl("apply", "--server-side", "-f", "-", stdin=text)

    def command(self) -> list[str]:
        ports = [_free_port(), _free_port()]
        self._port = ports[0]
        return [
            str(self._program / "program"),
            f"--metrics-bind-address=127.0.0.1:{ports[0]}",
            "--health-probe-bind-address=0",
            f"--webhook-server-port={ports[1]}",
            "--enable-scheme=pytorchjob",
            "--zap-log-level=info",
            *self.limits,
        ]

    def start(self) -> None:
        super().start()
        self._mount_certificates()

    def _mount_certificates(self) -> None:
        """Do as a kubelet: put the Secret that it fills where it looks for that."""
        assert self._plane is not None
        path = f"/api/v1/namespaces/{self.namespace}/secrets/training-operator-webhook-cert"
        deadline = time.monotonic() + _TO_START
        while not (data := self._plane.api.ask(path).get("data")):
            if time.monotonic() > deadline:
                raise RuntimeError("the operator does not make its certificates")
            time.sleep(0.05)
        _THEIR_CERTIFICATES.mkdir(parents=True, exist_ok=True)
        for name, content in data.items():
            (_THEIR_CERTIFICATES / name).write_bytes(base64.b64decode(content))

    def reconciles(self) -> tuple[float, float]:
        pattern = r"controller_runtime_reconcile_time_seconds_bucket\{(.*?)\} (\S+)"
        bounds: list[tuple[float, float]] = []
        for labels, count in re.findall(pattern, self._metrics()):
            if "pytorchjob" in labels and (bound := re.search(r'le="([^"]+)"', labels)):
                bounds.append((float(bound[1].replace("+Inf", "inf")), float(count)))
        return within(sorted(bounds), 0.5), within(sorted(bounds), 0.99)

    def has_reconciled(self, jobs: int) -> bool:
        pattern = r"controller_runtime_reconcile_total\{(.*?)\} (\S+)"
        found = re.findall(pattern, self._metrics())
        return sum(float(count) for labels, count in found if "pytorchjob" in labels) >= jobs

    def _metrics(self) -> str:
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=5) as response,
        ):
            return str(response.read().decode())
        return ""


class TrainingOperatorByDefault(TrainingOperator):
    """The same with the limits that it has by default."""

    name = "training-operator v1.9.4, its defaults"
    limits = ()


def percentile(ordered: list[float], part: float) -> float:
    """Return a percentile of values in order; 0 of none."""
    return ordered[min(len(ordered) - 1, round(part * (len(ordered) - 1)))] if ordered else 0.0


def within(buckets: list[tuple[float, float]], part: float) -> float:
    """Return the least bound of a histogram's buckets below which this part of all values is."""
    total = buckets[-1][1] if buckets else 0.0
    return next((bound for bound, count in buckets if count >= part * total), 0.0)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
