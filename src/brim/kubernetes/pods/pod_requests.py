"""Requests to an API server by which jobs get their pods, and lose them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from brim.kubernetes.client.api_server import ApiServer
from brim.kubernetes.client.kube_types import KubePod
from brim.kubernetes.client.refusals import AlreadyExists, Conflict, NotFound
from brim.kubernetes.client.resources import PlainObject, Resource, resource_of
from brim.kubernetes.objects.identities import MANAGED_BY, OPERATOR, SERVICE
from brim.kubernetes.pods.manifests import Manifest
from brim.kubernetes.pods.pod_faults import NameTaken

PODS = Resource("v1", "pods", KubePod)
SECRETS = Resource("v1", "secrets", PlainObject)
CONFIG_MAPS = Resource("v1", "configmaps", PlainObject)
_DECIDES = ("clusterIP", "publishNotReadyAddresses", "selector")  # who has a name by a Service
_KINDS = {
    "Secret": SECRETS,
    "ConfigMap": CONFIG_MAPS,
    "Service": Resource("v1", "services", PlainObject),
    "PersistentVolumeClaim": Resource("v1", "persistentvolumeclaims", PlainObject),
    "NetworkPolicy": Resource("networking.k8s.io/v1", "networkpolicies", PlainObject),
    "ServiceAccount": Resource("v1", "serviceaccounts", PlainObject),
    "Role": Resource("rbac.authorization.k8s.io/v1", "roles", PlainObject),
    "RoleBinding": Resource("rbac.authorization.k8s.io/v1", "rolebindings", PlainObject),
    "HorizontalPodAutoscaler": Resource("autoscaling/v2", "horizontalpodautoscalers", PlainObject),
}


class PodRequests:
    """Makes and ends the objects of jobs; see `brim.kubernetes.pods.processes.PodServer`."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server

    async def make(self, manifest: Manifest) -> bool:
        kind, meta = _KINDS[manifest["kind"]], manifest["metadata"]
        try:
            await self._server.create(kind, manifest, namespace=meta["namespace"])
        except AlreadyExists:
            if kind is not SECRETS:  # whose names are of this object alone
                await self._check_owner(kind, manifest)
            return False
        return True

    async def share(self, manifest: Manifest, *, job: str) -> None:
        kind, meta = _KINDS[manifest["kind"]], manifest["metadata"]
        try:
            await self._server.create(kind, manifest, namespace=meta["namespace"])
        except AlreadyExists:
            present = await self._server.get(kind, meta["name"], namespace=meta["namespace"])
            spec = present.get("spec", {})
            if any(spec.get(name) != manifest["spec"][name] for name in _DECIDES):
                key = f"{meta['namespace']}/{meta['name']}"
                raise NameTaken(manifest["kind"], key, job) from None

    async def shared(self, namespace: str = "") -> list[str]:
        """Return the namespaces in which there is a Service that all jobs share.

        Args:
            namespace: the only one to look at; empty: all.
        """
        named = f"metadata.name={SERVICE}"
        selector = f"{MANAGED_BY}={OPERATOR}"
        found = await self._server.list(
            _KINDS["Service"], namespace=namespace, fields=named, labels=selector
        )
        return [service["metadata"]["namespace"] for service in found.items]

    async def unshare(self, namespace: str) -> None:
        with contextlib.suppress(NotFound):
            await self._server.delete(_KINDS["Service"], SERVICE, namespace=namespace)

    async def keep(self, manifest: Manifest) -> None:
        """Have an object be so; raises NameTaken where one of its name is not the job's."""
        kind, meta = resource_of(manifest), manifest["metadata"]
        with contextlib.suppress(NotFound):
            await self._check_owner(kind, manifest)
        await self._server.apply(kind, meta["name"], manifest, namespace=meta["namespace"])

    async def remove(self, thing: PlainObject) -> None:
        """Delete an object; one that is gone, or another of its name, is not there."""
        kind, meta = resource_of(thing), thing["metadata"]
        with contextlib.suppress(NotFound, Conflict):
            await self._server.delete(
                kind, meta["name"], namespace=meta["namespace"], uid=meta.get("uid", "")
            )

    async def _check_owner(self, kind: Resource[PlainObject], manifest: Manifest) -> None:
        """Raises NameTaken where the object of that name is not the job's."""
        meta = manifest["metadata"]
        (owner,) = meta["ownerReferences"]
        present = await self._server.get(kind, meta["name"], namespace=meta["namespace"])
        owners = present.get("metadata", {}).get("ownerReferences", [])
        if not any(reference.get("uid") == owner["uid"] for reference in owners):
            key = f"{meta['namespace']}/{meta['name']}"
            raise NameTaken(manifest["kind"], key, owner["name"])

    async def remove_each(self, kind: str, *, namespace: str, labels: Mapping[str, str]) -> None:
        """Delete the objects of a kind that have all these labels."""
        selector = ",".join(f"{name}={value}" for name, value in labels.items())
        await self._server.delete_each(_KINDS[kind], namespace=namespace, labels=selector)

    async def make_pod(self, manifest: Manifest) -> KubePod | None:
        namespace = manifest["metadata"]["namespace"]
        try:
            return await self._server.create(PODS, manifest, namespace=namespace)
        except AlreadyExists:
            return None

    async def read_pod(self, name: str, namespace: str) -> KubePod | None:
        # By a list, since an operator may list pods anyway.
        found = await self._server.list(PODS, namespace=namespace, fields=f"metadata.name={name}")
        return next(iter(found.items), None)

    async def annotate(self, pod: KubePod, notes: Mapping[str, str]) -> None:
        meta = pod.metadata
        body = {"metadata": {"uid": meta.uid, "annotations": dict(notes)}}
        with contextlib.suppress(NotFound, Conflict):  # it is gone, or another has its name
            await self._server.merge_patch(PODS, meta.name, body, namespace=meta.namespace)

    async def end_pod(self, pod: KubePod, *, grace: int | None = None) -> None:
        meta = pod.metadata
        with contextlib.suppress(NotFound, Conflict):  # it is gone, or another has its name
            await self._server.delete(
                PODS, meta.name, namespace=meta.namespace, grace=grace, uid=meta.uid
            )
