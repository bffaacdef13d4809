"""An API server in memory, with kubelets and kube-scheduler, as far as pods go.

It shows the findings of tests on a real server at every point in time and under every death.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Collection, Mapping
from copy import deepcopy
from typing import Any

import msgspec

from brim.kubernetes.client.kube_types import KubeNode, KubePod
from brim.kubernetes.client.refusals import NoAnswer
from brim.kubernetes.client.resources import PlainObject
from brim.kubernetes.nodes.places import NodePlaces, slot_of
from brim.kubernetes.objects.identities import SERVICE
from brim.kubernetes.pods.known_pods import KnownPods
from brim.kubernetes.pods.manifests import Manifest
from brim.storage.mirror import RecordsMirror
from kube_objects import SLOT, node


def nothing() -> None:
    pass


class FakeServer:
    """Objects by kind and name; pods live as a kubelet has them live.

    Args:
        point: called before each request that changes something, and after it.
    """

    def __init__(self, point: Callable[[], None] = nothing) -> None:
        self.point = point
        self.objects: dict[tuple[str, str, str], Manifest] = {}
        self.nodes = {f"node{k}": node(f"node{k}") for k in range(2)}
        self.made: list[str] = []
        self.down = ""  # why it does not answer
        self.refused: dict[str, Exception] = {}  # pods by name, and what is said of them
        self.bind = lambda name, planned: planned  # where a pod is to be, empty: it waits
        self.asked = 0  # how often a pod was asked for
        self._uids = itertools.count(1)

    # As `PodServer` -------------------------------------------------------------------------------

    async def make(self, manifest: Manifest) -> bool:
        return self._make(manifest) is not None

    async def keep(self, manifest: Manifest) -> None:
        meta = manifest["metadata"]
        current = self.objects.get((manifest["kind"], meta["namespace"], meta["name"]))
        if current is None:
            self._make(manifest)
            return
        self._ask()
        current["spec"] = deepcopy(manifest["spec"])
        self.point()

    async def share(self, manifest: Manifest, *, job: str) -> None:
        self._make(manifest)

    async def unshare(self, namespace: str) -> None:
        self._ask()
        self.objects.pop(("Service", namespace, SERVICE), None)

    async def make_pod(self, manifest: Manifest) -> KubePod | None:
        self.asked += 1
        if refusal := self.refused.get(manifest["metadata"]["name"]):
            raise refusal
        created = self._make(manifest)
        return None if created is None else msgspec.convert(created, KubePod)

    async def read_pod(self, name: str, namespace: str) -> KubePod | None:
        if self.down:
            raise NoAnswer(self.down)
        current = self.objects.get(("Pod", namespace, name))
        return None if current is None else msgspec.convert(current, KubePod)

    async def end_pod(self, pod: KubePod, *, grace: int | None = None) -> None:
        self._ask()
        key = "Pod", pod.metadata.namespace, pod.metadata.name
        current = self.objects.get(key)
        if current is not None and current["metadata"]["uid"] == pod.metadata.uid:
            current["metadata"]["deletionTimestamp"] = "2026-11-24T17:00:00Z"
            if grace == 0 or not current["spec"].get("nodeName"):
                del self.objects[key]
        self.point()

    async def remove(self, thing: PlainObject) -> None:
        self._ask()
        meta = thing["metadata"]
        self.objects.pop((thing["kind"], meta["namespace"], meta["name"]), None)
        self.point()

    async def remove_each(self, kind: str, *, namespace: str, labels: Mapping[str, str]) -> None:
        raise AssertionError("nothing here has Services of its own")

    async def annotate(self, pod: KubePod, notes: Mapping[str, str]) -> None:
        raise AssertionError("nothing here has a launcher")

    def _ask(self) -> None:
        if self.down:
            raise NoAnswer(self.down)
        self.point()

    def _make(self, manifest: Manifest) -> Manifest | None:
        self._ask()
        meta = manifest["metadata"]
        key = manifest["kind"], meta["namespace"], meta["name"]
        if key in self.objects:
            return None
        created = deepcopy(manifest)
        created["metadata"]["uid"] = f"uid {next(self._uids)}"
        created["status"] = {"phase": "Pending"}
        self.objects[key] = created
        self.made.append(f"{key[0]} {key[2]}")
        self.point()
        return deepcopy(created)

    # What happens there ---------------------------------------------------------------------------

    @property
    def pods(self) -> dict[str, Manifest]:
        return {
            name: manifest for (kind, _, name), manifest in self.objects.items() if kind == "Pod"
        }

    def settle(self) -> None:
        """Bind and run pending pods, and end leaving ones."""
        for key, manifest in list(self.objects.items()):
            if key[0] != "Pod":
                continue
            if "deletionTimestamp" in manifest["metadata"]:
                del self.objects[key]
            elif manifest["status"]["phase"] == "Pending":
                planned = manifest["metadata"].get("annotations", {}).get("brim.dev/node", "node0")
                if node := self.bind(key[2], planned):
                    manifest["spec"]["nodeName"] = node
                    manifest["status"] = {"phase": "Running", "podIP": "10.0.0.9"}

    def end(self, name: str, phase: str = "Failed", **status: Any) -> None:
        """The containers of a pod have ended."""
        self.pods[name]["status"] = {"phase": phase, **status}

    def foreign(self, name: str) -> None:
        """Somebody makes a pod that is of no job."""
        manifest: Manifest = {
            "metadata": {"name": name, "namespace": "team", "uid": f"uid {next(self._uids)}"},
            "spec": {"nodeName": "node0", "containers": [{"name": "main"}]},
            "status": {"phase": "Running"},
        }
        self.objects["Pod", "team", name] = manifest

    def vanish(self, name: str) -> None:
        """Somebody deletes a pod, and it is gone."""
        key = next(key for key in self.objects if key[0] == "Pod" and key[2] == name)
        del self.objects[key]


class NoPlaceholders:
    """The placeholders of an operator that makes none."""

    def is_calm(self) -> bool:
        return True

    def tend(self) -> None: ...

    async def make_way(self, nodes: Collection[str]) -> Collection[str]:
        return ()

    async def close(self) -> None: ...


class Watched:
    """The events of a watch of such a server, when it is asked to go on."""

    def __init__(self, server: FakeServer) -> None:
        self.places = NodePlaces(slot_of(SLOT))
        self.pods = KnownPods(self.places)
        self._server = server
        self._known: dict[str, KubePod] = {}
        self._nodes: dict[str, KubeNode] = {}

    def catch_up(self) -> None:
        now = {
            f"{manifest['metadata']['namespace']}/{name}": msgspec.convert(manifest, KubePod)
            for name, manifest in self._server.pods.items()
        }
        for key in self._known.keys() - now.keys():
            self.pods.observe(key, self._known[key], None)
        for key, current in now.items():
            previous = self._known.get(key)
            if previous is not None and previous.metadata.uid != current.metadata.uid:
                self.pods.observe(key, previous, None)
                previous = None
            if current != previous:
                self.pods.observe(key, previous, current)
        self._known = now
        for name in self._nodes.keys() | self._server.nodes.keys():
            if self._nodes.get(name) != self._server.nodes.get(name):
                self.places.take_node(name, self._server.nodes.get(name))
        self._nodes = dict(self._server.nodes)


class FakeFollower:
    """Follows no run: tests write the records of a run's master."""

    is_connected = False

    async def run(self) -> None:
        await asyncio.Event().wait()


def follow(
    mirror: RecordsMirror, address: str, token: str, news: Callable[[], None]
) -> FakeFollower:
    return FakeFollower()
