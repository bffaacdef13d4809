"""The cluster of an experiment on real nodes of Kubernetes, where an operator decides."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from brim.client import Client
from brim.domain.cluster import Cluster, Node
from brim.domain.job import WorkerRange
from brim.host.clock import wall
from brim.kubernetes.client.resources import PlainObject
from brim.kubernetes.cluster_client import KubeJobs
from brim.wire.cluster import JobView, Submit
from brim_lab.experiments.cluster import DemoCluster, Tell
from brim_lab.experiments.course import TrainingCourse, Workers
from brim_lab.experiments.joined import shared
from brim_lab.experiments.scale import Scale
from brim_lab.kubernetes.cluster import NodeCluster
from brim_lab.kubernetes.images import BRIM
from brim_lab.kubernetes.jobs import CLASS, GPU, JobsOnNodes, until
from brim_lab.kubernetes.online_service import OnlineService

_NAMESPACE = "experiment"
_GPUS = 8  # of each node
_SLOT = {"cpu": "100m", "memory": "1Gi", GPU: "1"}
_ONLINE = "online"  # the PriorityClass of what comes before jobs


@contextlib.contextmanager
def nodes_cluster(
    scale: Scale, folder: Path, tell: Tell, *, cluster: NodeCluster
) -> Iterator[DemoCluster]:
    """Install an operator on three nodes that have the slots of the experiment between them.

    All is removed with the context, however that ends.

    Args:
        cluster: whose nodes have 8 GPUs each. Those that are no slots are taken by others' pods.
    """
    jobs = JobsOnNodes(cluster, _NAMESPACE)
    old_kubeconfig = os.environ.get("KUBECONFIG")
    os.environ["KUBECONFIG"] = str(cluster.kubeconfig)
    try:
        with contextlib.closing(_KubeCluster(scale, jobs, tell)) as kube_cluster:
            kube_cluster.warm_up(scale.slots)
            yield kube_cluster
    finally:
        jobs.uninstall()
        if old_kubeconfig is None:
            del os.environ["KUBECONFIG"]
        else:
            os.environ["KUBECONFIG"] = old_kubeconfig


class _Jobs(KubeJobs):
    """The jobs of a namespace, whose records are in a folder that their masters have as a volume."""

    def __init__(self, jobs: JobsOnNodes, tell: Tell) -> None:
        super().__init__(jobs.namespace, notice=tell)
        self._jobs = jobs
        self._submitted: dict[str, float] = {}

    def submit(self, request: Submit) -> JobView:
        submitted_at = wall()
        view = super().submit(request)
        self._submitted[view.job] = submitted_at  # an object's age is in whole seconds
        folder = self._folder_of(view.job)
        folder.mkdir()
        folder.chmod(0o777)
        self._jobs.add_volume(f"{view.job}-master", folder)
        return self._recorded(view)

    def job(self, job: str) -> JobView:
        return self._recorded(super().job(job))

    def _written(self, request: Submit, name: str) -> tuple[PlainObject | None, PlainObject]:
        code, job = super()._written(request, name)
        job["spec"]["volumeClaim"] = {"storageClassName": CLASS, "size": "1Gi"}
        return code, job

    def _folder_of(self, job: str) -> Path:
        return self._jobs.folder / job

    def _recorded(self, view: JobView) -> JobView:
        run = self._folder_of(view.job) / f"{self._jobs.namespace}.{view.job}"
        submitted = self._submitted.get(view.job, view.submitted)
        return msgspec.structs.replace(view, run=str(run), submitted=submitted)


class _KubeCluster(DemoCluster):
    """Jobs are ElasticJobs; the service is a Deployment that kube-scheduler makes room for."""

    def __init__(self, scale: Scale, jobs: JobsOnNodes, tell: Tell) -> None:
        self._jobs = jobs
        self.configure()
        jobs.add_priority(_ONLINE, 1_000)
        for node, slots in zip(jobs.cluster.nodes, shared(scale.slots), strict=True):
            jobs.occupy(f"others-{node}", node, _ONLINE, str(_GPUS - slots))
        client: Client = _Jobs(jobs, tell)
        nowhere = Cluster(nodes=(Node(id="nodes", devices=0),))  # jobs' code goes with them
        super().__init__(scale, client, tell, nowhere)
        self._service = OnlineService(
            jobs, image=BRIM, priority=_ONLINE, takes={"cpu": "50m", "memory": "64Mi", GPU: "1"}
        )

    def close(self) -> None:
        """End all processes here."""
        self._service.close()

    def configure(self, *, policy: str = "brim", headroom: int = 0) -> None:
        self._jobs.install(_SLOT, f"--policy={policy}", f"--headroom={headroom}")

    def serve(self, slots: int) -> None:
        self._service.scale(slots)

    def until_served(self, slots: int) -> None:
        self._service.until_serving(slots)

    def served(self, demand: Workers, course: TrainingCourse, origin: float) -> Workers:
        changes = [(moment - origin, count) for moment, count in self._service.changes()]
        return tuple((moment, count) for moment, count in changes if moment < course.ended)

    def warm_up(self, workers: int = 1) -> None:
        """Run a job to its first step: nodes have read the pods' files then."""
        worker_range = WorkerRange(minimum=workers, maximum=workers)
        job = self.submit("warm-up", worker_range, epochs=1).job
        until(lambda: self.client.job(job).started, lambda: self._jobs.told(job))
        self.client.suspend(job)  # workers whose job is deleted wait for another master
        until(lambda: not self._jobs.pods(job), lambda: self._jobs.told(job))
        self.client.cancel(job)
