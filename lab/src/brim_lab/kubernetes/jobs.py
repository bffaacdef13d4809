"""Jobs on the real nodes of a test cluster, scheduled by an operator that is installed there."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import tempfile
from base64 import b64encode
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from brim.errors import EnvironmentFault
from brim.host.clock import monotonic, sleep
from brim.kubernetes.install.manifests import NAME, Installation, manifests
from brim.storage.bundles import digest_of, pack
from brim_lab.kubernetes.cluster import NodeCluster
from brim_lab.kubernetes.groups import members
from brim_lab.kubernetes.images import BRIM
from brim_lab.kubernetes.settings import group_of

GPU = "example.com/gpu"  # of which each node has 8
OPERATORS = "brim-system"
WITHIN = 240.0  # seconds: a node that is lost is seen to be after 17, and the machine may be busy
_POLL_INTERVAL = 0.1
CLASS = "of-tests"  # of volumes
_SIZE = {"storage": "1Gi"}
_PAUSE = ("python3", "-c", "import signal; signal.pause()")
_OWN_LABELS = {"app.kubernetes.io/part-of": "brim-tests"}


def until(holds: Callable[[], Any], describe: Callable[[], object], within: float = WITHIN) -> Any:
    """Wait for something that must happen; else fail with the present state."""
    deadline = monotonic() + within
    while True:
        try:
            if found := holds():
                return found
        except EnvironmentFault:  # an object is not there, or the server is not
            pass
        if monotonic() > deadline:
            raise AssertionError(describe())
        sleep(_POLL_INTERVAL)


class JobsOnNodes:
    """A namespace for jobs, restricted as Pod Security has it, on a cluster with an operator.

    Args:
        namespace: for the jobs.
        image: has brim with torch.

    Attributes:
        folder: of this machine, which pods have as a volume in the same place.
    """

    def __init__(self, cluster: NodeCluster, namespace: str, *, image: str = BRIM) -> None:
        self.cluster, self.api, self.namespace = cluster, cluster.api, namespace
        self._image = image
        self.folder = Path(tempfile.mkdtemp(prefix="brim-jobs-", dir="/var/tmp"))
        self.folder.chmod(0o777)

    # The operator ---------------------------------------------------------------------------------

    def install(
        self,
        slot: Mapping[str, str],
        *arguments: str,
        kubeflow: bool = False,
        gangs: bool = False,
        security: str = "restricted",
        service_urls: tuple[str, ...] = (),
    ) -> None:
        """Install two operators, of which one waits, and the namespace with its volume.

        Done again with other arguments, operators with these take over.

        Args:
            arguments: of `brim operator`.
            kubeflow, gangs, service_urls: as `brim install` has them.
            security: the standard of Pod Security that the namespace enforces.
        """
        chosen = Installation(
            image=self._image,
            slot=slot,
            replicas=2,
            foreign_kinds=kubeflow,
            gangs=gangs,
            service_urls=service_urls,
            arguments=arguments,
            resources={"requests": {"cpu": "50m", "memory": "128Mi"}},
        )
        self.apply(*manifests(chosen))
        self.add_namespace(security)
        words = ("rollout", "status", f"deployment/{NAME}", f"--namespace={OPERATORS}")
        self.cluster.kubectl(*words, "--timeout=110s")
        self.operator()

    def add_namespace(self, security: str) -> None:
        """Add the namespace, and the claim `data` of its volume.

        Args:
            security: the standard of Pod Security that it enforces.
        """
        labels = {"pod-security.kubernetes.io/enforce": security, **_OWN_LABELS}
        meta = {"name": self.namespace, "labels": labels}
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
        self.add_volume("data", self.folder)
        self._add_claim("data")

    def uninstall(self) -> None:
        """Remove all of that, jobs first: their operator has to see them go."""
        with contextlib.suppress(EnvironmentFault):  # it was never installed
            self.kubectl("delete", "elasticjobs", "--all", "--timeout=60s")
        self.cluster.kubectl(
            "delete", "namespace", self.namespace, OPERATORS, "--ignore-not-found", "--timeout=90s"
        )
        own_labels = ",".join(f"{name}={value}" for name, value in _OWN_LABELS.items())
        for kind in ("persistentvolumes", "priorityclasses", "tenants"):
            with contextlib.suppress(EnvironmentFault):  # there is no such kind
                self.cluster.kubectl("delete", kind, "-l", own_labels)
        shutil.rmtree(self.folder, ignore_errors=True)

    def operator(self) -> str:
        """The name of the operator's pod that holds the Lease and is to stay; waits for one."""
        lease = f"/apis/coordination.k8s.io/v1/namespaces/{OPERATORS}/leases/{NAME}"
        pods = f"/api/v1/namespaces/{OPERATORS}/pods"

        def look() -> str:
            holder = self.api.ask(lease)["spec"].get("holderIdentity", "")
            metas = [item["metadata"] for item in self.api.ask(pods)["items"]]
            names = [meta["name"] for meta in metas if "deletionTimestamp" not in meta]
            return next((name for name in names if name and holder.startswith(name)), "")

        return str(until(look, lambda: self.cluster.kubectl("get", "pods,events", "-n", OPERATORS)))

    def kill(self, *words: str, pod: str = "") -> int:
        """Send SIGKILL to the processes in containers whose command has all these arguments.

        Args:
            pod: the uid of the only one to look in; empty: all are.
        """
        pids = members(group_of(self.cluster.name))
        found = [pid for pid in pids if _has_words(pid, words) and _is_in(pid, pod)]
        for pid in found:
            os.kill(pid, signal.SIGKILL)
        return len(found)

    # Objects --------------------------------------------------------------------------------------

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        return self.cluster.kubectl(f"--namespace={self.namespace}", *words, stdin=stdin)

    def apply(self, *things: Mapping[str, Any]) -> None:
        text = "\n---\n".join(json.dumps(thing) for thing in things)
        self.cluster.kubectl("apply", "--server-side", "-f", "-", stdin=text)

    def add_volume(self, claim: str, folder: Path) -> None:
        """Have a folder of this machine as the volume of a claim to come, on all nodes."""
        meta = {"name": f"{self.namespace}-{claim}", "labels": _OWN_LABELS}
        path = {"hostPath": {"path": str(folder)}, "persistentVolumeReclaimPolicy": "Retain"}
        reference = {"claimRef": {"namespace": self.namespace, "name": claim}}
        volume = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": meta}
        modes = ["ReadWriteMany", "ReadWriteOnce"]
        volume_spec = {"accessModes": modes, "capacity": _SIZE, "storageClassName": CLASS}
        self.apply(volume | {"spec": {**volume_spec, **path, **reference}})

    def _add_claim(self, name: str) -> None:
        meta = {"name": name, "namespace": self.namespace}
        claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": meta}
        wants = {"accessModes": ["ReadWriteMany"], "resources": {"requests": _SIZE}}
        self.apply(claim | {"spec": {**wants, "storageClassName": CLASS}})

    def add_volume_for(self, claim: str, folder: Path) -> None:
        """Have a folder of this machine for a claim without a class."""
        size = {"storage": "1Gi"}
        meta = {"name": f"{self.namespace}-{claim}", "labels": _OWN_LABELS}
        shared = {"accessModes": ["ReadWriteOnce"], "capacity": size}
        path = {"hostPath": {"path": str(folder)}, "persistentVolumeReclaimPolicy": "Retain"}
        reference = {"claimRef": {"namespace": self.namespace, "name": claim}}
        volume = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": meta}
        self.apply(volume | {"spec": {**shared, **path, **reference}})

    def add_priority(self, name: str, value: int) -> None:
        meta = {"name": name, "labels": _OWN_LABELS}
        kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": meta}
        self.apply(kind | {"value": value})

    def add_tenant(self, name: str, *, guaranteed: int) -> None:
        """Have a tenant whose jobs are in this namespace; others of these may borrow idle devices."""
        spec = {"cohort": "all", "guaranteed": guaranteed, "namespaces": [self.namespace]}
        meta = {"name": name, "labels": _OWN_LABELS}
        tenant = {"apiVersion": "brim.dev/v1alpha1", "kind": "Tenant", "metadata": meta}
        self.apply(tenant | {"spec": spec})

    def submit(
        self,
        name: str,
        code: Mapping[str, bytes],
        *,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        scheduler: str = "default-scheduler",
        **spec: Any,
    ) -> None:
        """Submit a job with this code, of which the first file is the one to run.

        Args:
            labels, annotations: of the object.
            scheduler: that binds the workers' pods.
            spec: of the object, beside what it says of code and pods; None leaves a field out.
        """
        bundle = pack(code)
        meta = {"name": f"{name}-code", "namespace": self.namespace}
        config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta}
        volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
        mounts = [{"name": "data", "mountPath": str(self.folder)}]
        job_spec = {
            "file": next(iter(code)),
            "bundle": {"configMap": f"{name}-code", "sha256": digest_of(bundle)},
            "runs": f"{self.folder}/runs",
            **{
                key: {
                    "spec": {
                        "volumes": volumes,
                        "containers": [{"name": role, "volumeMounts": mounts}],
                    }
                }
                for key, role in (("template", "worker"), ("masterTemplate", "master"))
            },
            **spec,
        }
        job_spec["template"]["spec"]["schedulerName"] = scheduler
        metadata = {"name": name, "namespace": self.namespace, "labels": dict(labels or {})}
        metadata["annotations"] = dict(annotations or {})
        job_spec = {name: value for name, value in job_spec.items() if value is not None}
        job = {"apiVersion": "brim.dev/v1alpha1", "kind": "ElasticJob", "metadata": metadata}
        code_of_it = {"binaryData": {"code.tar": b64encode(bundle).decode()}}
        self.apply(config_map | code_of_it, job | {"spec": job_spec})

    def occupy(
        self, name: str, node: str, priority: str, amount: str = "8", *, resource: str = GPU
    ) -> None:
        """Have a pod of a higher priority take the devices of a node, or so much of another resource."""
        place = {
            "priorityClassName": priority,
            "nodeSelector": {"kubernetes.io/hostname": node},
            "terminationGracePeriodSeconds": 0,
        }
        spec = self._pod_spec(*_PAUSE, limits={resource: amount}) | place
        meta = {"name": name, "namespace": self.namespace}
        self.apply({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})

    def serve_files(self, name: str, folder: Path, port: int) -> str:
        """Have a pod that serves a folder within that of this machine; return its URL once it is up."""
        meta = {"name": name, "namespace": self.namespace}
        words = ("python3", "-m", "http.server", str(port), f"--directory={folder}")
        spec = self._pod_spec(*words, limits={"cpu": "100m"}, mounted=True)
        self.apply({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
        self.kubectl("wait", "pod", name, "--for=condition=Ready", "--timeout=60s")
        path = f"/api/v1/namespaces/{self.namespace}/pods/{name}"
        return f"http://{self.api.ask(path)['status']['podIP']}:{port}/"

    def add_service(self, name: str, priority: str, annotations: Mapping[str, str]) -> None:
        """Have a Deployment whose pods take all devices of a node each, at first one."""
        labels = {"app": name}
        spec = self._pod_spec(*_PAUSE, limits={GPU: "8"}) | {
            "priorityClassName": priority,
            "terminationGracePeriodSeconds": 0,
        }
        meta = {"name": name, "namespace": self.namespace, "annotations": dict(annotations)}
        template = {"metadata": {"labels": labels}, "spec": spec}
        deployment = {"selector": {"matchLabels": labels}, "template": template}
        head = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta}
        self.apply(head | {"spec": deployment})

    def _pod_spec(
        self, *command: str, limits: Mapping[str, str], mounted: bool = False
    ) -> dict[str, Any]:
        """A pod of one container, as restricted as Pod Security has it.

        Args:
            mounted: the folder of this machine is there.
        """
        container: dict[str, Any] = {
            "name": "main",
            "image": self._image,
            "command": list(command),
            "resources": {"limits": dict(limits)},
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            },
        }
        spec: dict[str, Any] = {
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [container],
        }
        if mounted:
            container["volumeMounts"] = [{"name": "data", "mountPath": str(self.folder)}]
            spec["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
        return spec

    # What there is --------------------------------------------------------------------------------

    def pods(self, job: str) -> dict[str, dict[str, Any]]:
        """The pods of a job by name."""
        path = f"/api/v1/namespaces/{self.namespace}/pods?labelSelector=brim.dev/job%3D{job}"
        return {pod["metadata"]["name"]: pod for pod in self.api.ask(path)["items"]}

    def status(self, job: str) -> dict[str, Any]:
        path = f"/apis/brim.dev/v1alpha1/namespaces/{self.namespace}/elasticjobs/{job}"
        return dict(self.api.ask(path).get("status", {}))

    def workers(self, job: str) -> dict[str, str]:
        """The nodes of a job's workers that train, by the names of their pods."""
        return {
            name: pod["spec"]["nodeName"]
            for name, pod in self.pods(job).items()
            if name != f"{job}-master" and _is_ready(pod)
        }

    def uids(self, job: str) -> dict[str, str]:
        """The uids of a job's pods by name: one that was made again has another."""
        return {name: pod["metadata"]["uid"] for name, pod in self.pods(job).items()}

    def node_of(self, pod: str) -> str:
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod}"
        return str(self.api.ask(path)["spec"].get("nodeName", ""))

    def run_of(self, job: str) -> Path:
        """The copy of a run's records, which is at most a few seconds old."""
        return self.folder / "runs" / f"{self.namespace}.{job}"

    def records(self, job: str, name: str) -> list[dict[str, Any]]:
        """The lines of `events` or `steps` that have come there."""
        parts = sorted((self.run_of(job) / f"{name}.jsonl").glob("part-*"))
        text = "".join(part.read_text() for part in parts).rpartition("\n")[0]
        return [json.loads(line) for line in text.splitlines()]

    def events(self, job: str, kind: str) -> list[dict[str, Any]]:
        return [record for record in self.records(job, "events") if record["kind"] == kind]

    def step(self, job: str) -> int:
        steps = self.records(job, "steps")
        return int(steps[-1]["step"]) if steps else 0

    def until_training(
        self, job: str, workers: int, timeout: float = WITHIN, *, processes: int = 1
    ) -> None:
        """Wait until so many workers are there, and they have made steps since.

        Args:
            processes: that train in each of them.
        """
        until(lambda: len(self.workers(job)) == workers, lambda: self.told(job), timeout)
        stood_at = self.step(job)

        def look() -> bool:
            rounds = self.events(job, "round")
            is_whole = bool(rounds) and rounds[-1]["world_size"] == workers * processes
            return is_whole and self.step(job) > stood_at

        until(look, lambda: self.told(job), timeout)

    def hurry(self, job: str) -> None:
        """End the pauses of a job's workers."""
        for name in self.workers(job):
            self.kubectl("exec", name, "-c", "worker", "--", "touch", "/tmp/hurry")

    def until_ended(self, job: str, timeout: float = WITHIN) -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            status = self.status(job)
            return status if status.get("completionTime") else None

        ended: dict[str, Any] = until(look, lambda: self.told(job), timeout)
        return ended

    def told(self, job: str) -> str:
        """A description of a job, for a failure."""
        parts = [json.dumps(self.status(job), indent=1)]
        with contextlib.suppress(EnvironmentFault):
            parts.append(self.kubectl("get", "pods", "-o", "wide"))
        for name in self.pods(job):
            with contextlib.suppress(EnvironmentFault):
                parts.append(f"{name}:\n{self.kubectl('logs', name, '--tail=30')}")
        for line in self.cluster.kubectl("get", "pods", "-n", OPERATORS, "-o", "name").split():
            with contextlib.suppress(EnvironmentFault):
                logs = self.cluster.kubectl("logs", "-n", OPERATORS, line, "--tail=30")
                parts.append(f"{line}:\n{logs}")
        return "\n".join(parts)


def _has_words(pid: int, words: tuple[str, ...]) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return False
    return set(words) <= set(command)


def _is_in(pid: int, pod: str) -> bool:
    try:
        return pod in Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:
        return False


def _is_ready(pod: Mapping[str, Any]) -> bool:
    conditions = pod["status"].get("conditions", [])
    ready = any(
        condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions
    )
    return ready and "deletionTimestamp" not in pod["metadata"]
