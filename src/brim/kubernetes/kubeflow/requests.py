"""Requests to an API server by which Kubeflow's jobs get their pods, and lose them."""

from __future__ import annotations

from collections.abc import Mapping

from brim.kubernetes.client.api_server import ApiServer
from brim.kubernetes.client.kube_types import KubePod
from brim.kubernetes.client.resources import PlainObject
from brim.kubernetes.kubeflow.jobs import KubeflowJobs
from brim.kubernetes.objects.identities import KubeJob
from brim.kubernetes.pods.manifests import Manifest
from brim.kubernetes.pods.pod_requests import PodRequests


class KubeflowRequests:
    """Makes and ends the objects of jobs; see `KubeflowServer`."""

    def __init__(self, server: ApiServer, jobs: KubeflowJobs) -> None:
        self._pods, self._jobs = PodRequests(server), jobs

    async def make(self, manifest: Manifest) -> bool:
        return await self._pods.make(manifest)

    async def keep(self, manifest: Manifest) -> None:
        await self._pods.keep(manifest)

    async def remove(self, thing: PlainObject) -> None:
        await self._pods.remove(thing)

    async def remove_each(self, kind: str, *, namespace: str, labels: Mapping[str, str]) -> None:
        await self._pods.remove_each(kind, namespace=namespace, labels=labels)

    async def make_pod(self, manifest: Manifest) -> KubePod | None:
        return await self._pods.make_pod(manifest)

    async def read_pod(self, name: str, namespace: str) -> KubePod | None:
        return await self._pods.read_pod(name, namespace)

    async def annotate(self, pod: KubePod, notes: Mapping[str, str]) -> None:
        await self._pods.annotate(pod, notes)

    async def end_pod(self, pod: KubePod, *, grace: int | None = None) -> None:
        await self._pods.end_pod(pod, grace=grace)

    async def end_job(self, job: KubeJob, uid: str) -> None:
        await self._jobs.end_job(job, uid)
