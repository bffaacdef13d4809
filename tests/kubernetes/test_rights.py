"""The operator's rights, all of them used, and the attempts of a namespace's people to get more.

On a server with rights and a log of all requests: the operator has its account's token alone.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import re
from collections.abc import AsyncIterator, Iterator
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from attempts import check_page
from brim.errors import EnvironmentFault
from brim.kubernetes.client.access import find_access
from brim.kubernetes.client.api_server import ApiServer
from brim.kubernetes.client.holder import LeaseHolder
from brim.kubernetes.install.manifests import LOADS, MEMORY, NAME, Installation, manifests
from brim.kubernetes.objects.identities import GROUP, SERVICE
from brim.kubernetes.objects.schemas import in_yaml
from brim.storage.bundles import pack
from brim_lab.kubernetes.api import PATCH, Api, kubeconfig
from brim_lab.kubernetes.control_plane import (
    API_SERVER,
    CONTROLLERS,
    ETCD,
    KWOK,
    ControlPlane,
    Features,
    control_plane,
)
from brim_lab.kubernetes.jobs import until
from clusters import need
from kubernetes.test_evictions import Evicting
from kubernetes.test_operator import OPERATORS_NAMESPACE, House, run
from number_server import numbers

OPERATOR = f"system:serviceaccount:{OPERATORS_NAMESPACE}:{NAME}"
CODE = pack({"flights.py": b""})
ANN = "3f1c9a6e5d7b4a20"  # a token of somebody of a namespace
POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "None", "users": ["admin"]}, {"level": "Metadata"}],
}


# The PodGroups of Volcano, as far as an operator writes them.
VOLCANOS = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "podgroups.scheduling.volcano.sh"},
    "spec": {
        "group": "scheduling.volcano.sh",
        "scope": "Namespaced",
        "names": {"kind": "PodGroup", "plural": "podgroups"},
        "versions": [
            {
                "name": "v1beta1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {
                                "type": "object",
                                "properties": {
                                    "minMember": {"type": "integer", "format": "int32"},
                                    "queue": {"type": "string"},
                                    "priorityClassName": {"type": "string"},
                                },
                            }
                        },
                    }
                },
            }
        ],
    },
}


class Request(NamedTuple):
    """A request as the server has noted it: a name is that of an object, or empty."""

    user: str
    namespace: str
    group: str
    resource: str
    verb: str
    name: str
    code: int


class Audit:
    """The log of an API server."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def by(self, user: str) -> list[Request]:
        """The requests of an account, in order."""
        return [request for request in self._all() if request.user == user]

    def _all(self) -> Iterator[Request]:
        for line in self._path.read_text().splitlines():
            event = json.loads(line)
            reference = event.get("objectRef")
            if reference is None:  # what there is, and its versions
                continue
            sub = f"/{reference['subresource']}" if reference.get("subresource") else ""
            yield Request(
                user=event["user"]["username"],
                namespace=reference.get("namespace", ""),
                group=reference.get("apiGroup", ""),
                resource=f"{reference['resource']}{sub}",
                verb=event["verb"],
                name=reference.get("name", ""),
                code=event["responseStatus"]["code"],
            )


class Right(NamedTuple):
    """One verb on one resource: in a namespace, or in all; of one name, or of any."""

    namespace: str
    group: str
    resource: str
    verb: str
    name: str


def rights_of(manifests_made: list[dict[str, Any]]) -> set[Right]:
    """All that the roles of an operator allow."""
    return {
        Right(manifest["metadata"].get("namespace", ""), group, resource, verb, name)
        for manifest in manifests_made
        if manifest["kind"] in ("Role", "ClusterRole") and NAME in manifest["metadata"]["name"]
        for rule in manifest["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", [""])
    }


def used(requests: list[Request]) -> set[Right]:
    """The rights that somebody has needed, as far as roles of one namespace and of all go."""
    found = set()
    for request in requests:
        # What an apply makes is asked for as a patch, and allowed as a creation, too.
        verbs = [
            request.verb,
            *(["create"] if (request.verb, request.code) == ("patch", 201) else []),
        ]
        for namespace in (request.namespace, ""):
            if namespace == "" and request.namespace == OPERATORS_NAMESPACE:
                continue  # where it has a role of its own
            for name in (request.name, ""):
                reference = namespace, request.group, request.resource
                found |= {Right(*reference, verb, name) for verb in verbs}
    return found


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A server with rights and a log, a node on which pods only seem to run, and controllers."""
    need(ETCD, API_SERVER, "kubectl", CONTROLLERS, KWOK)
    folder = tmp_path_factory.mktemp("plane")
    policy = folder / "audit-policy.json"
    policy.write_text(json.dumps(POLICY))
    flags = [
        f"--audit-policy-file={policy}",
        f"--audit-log-path={folder / 'audit.log'}",
        # Who names an owner that is to outlive it needs a right on that: stricter than usual.
        "--enable-admission-plugins=OwnerReferencesPermissionEnforcement",
    ]
    programs = (CONTROLLERS, KWOK)
    features = Features(
        gates=["GenericWorkload", "EvictionRequestAPI"],
        apis=["scheduling.k8s.io/v1beta1", "lifecycle.k8s.io/v1alpha1"],
    )
    people = {"ann": (ANN, "people")}
    with control_plane(
        folder, features=features, programs=programs, api_server_flags=flags, tokens=people
    ) as plane:
        plane.add_fake_nodes(1)
        plane.add_kinds([VOLCANOS])
        yield plane


@pytest.fixture
def audit(plane: ControlPlane) -> Audit:
    return Audit(plane.folder / "audit.log")


@pytest.fixture
def house(plane: ControlPlane, namespace: str, tmp_path: Path) -> House:
    return House(plane, namespace, tmp_path, first_node="fake-1")


@pytest.fixture(params=["everywhere", "in one", "with neighbours"])
def installed(
    request: pytest.FixtureRequest, plane: ControlPlane, house: House
) -> Iterator[list[dict[str, Any]]]:
    """An installation for all namespaces, or for that of the house alone; more is allowed in one."""
    watched = "" if request.param == "everywhere" else house.namespace
    with_neighbours = house.evictions = request.param == "with neighbours"
    objects = manifests(
        Installation(
            image="images/brim:1",
            namespace=OPERATORS_NAMESPACE,
            of=watched,
            gangs=with_neighbours,
            evictions=with_neighbours,
            service_urls=("http://metrics:9090/",) if with_neighbours else (),
        )
    )
    text = "---\n".join(
        in_yaml(manifest) for manifest in objects if manifest["kind"] != "Deployment"
    )
    plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=text)
    yield objects
    for manifest in objects:
        if "rbac" in manifest["apiVersion"] and NAME in manifest["metadata"]["name"]:
            namespace_of = manifest["metadata"].get("namespace")
            words = ["delete", manifest["kind"], manifest["metadata"]["name"]]
            plane.kubectl(*words, *(["-n", namespace_of] if namespace_of else []))
    leftovers = (
        f"lease/{NAME}",
        f"secret/{NAME}",
        f"configmap/{MEMORY}",
        f"configmap/{LOADS}",
    )  # which the next one makes
    plane.kubectl("delete", "-n", OPERATORS_NAMESPACE, "--ignore-not-found", *leftovers)


def token_of(plane: ControlPlane) -> str:
    """A token of the operator's account, as its pod has one."""
    path = f"/api/v1/namespaces/{OPERATORS_NAMESPACE}/serviceaccounts/{NAME}/token"
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    return str(plane.api.ask(path, method="POST", body=body)["status"]["token"])


@contextlib.asynccontextmanager
async def operator(house: House, identity: str) -> AsyncIterator[LeaseHolder]:
    """An operator with its own account and nothing else, which has the Lease before it begins."""
    plane, file = house.plane, house.folder / f"{identity}.kubeconfig"
    file.write_bytes(kubeconfig(plane.url, plane.api.authority, token_of(plane)))
    access = find_access({"KUBECONFIG": str(file)})
    holder = LeaseHolder(access, namespace=OPERATORS_NAMESPACE, name=NAME, identity=identity)
    started = asyncio.Event()

    async def work() -> None:
        async with (
            ApiServer(access, qps=500, burst=500, may_write=holder.holds) as own_server,
            house.operator(lambda _: own_server),
        ):
            started.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(holder.run(work))
    waiting = asyncio.create_task(started.wait())
    try:
        await asyncio.wait((task, waiting), return_when=asyncio.FIRST_COMPLETED)
        yield holder
    finally:
        task.cancel()
        waiting.cancel()
        await asyncio.wait((task, waiting))


def make_tenant(house: House, name: str, *namespaces: str) -> None:
    tenant = {
        "apiVersion": f"{GROUP}/v1alpha1",
        "kind": "Tenant",
        "metadata": {"name": name},
        "spec": {"namespaces": namespaces, "guaranteed": 4},
    }
    house.plane.api.ask(f"/apis/{GROUP}/v1alpha1/tenants", method="POST", body=tenant)


def make_code(house: House) -> dict[str, str]:
    code = {"code.tar": base64.b64encode(CODE).decode()}
    body = {"metadata": {"name": "flights-code"}, "binaryData": code}
    house.plane.api.ask(f"{house.core}/configmaps", method="POST", body=body)
    return {"configMap": "flights-code", "sha256": hashlib.sha256(CODE).hexdigest()}


async def live_beside_neighbours(house: House) -> None:
    """Jobs begin whose workers are bound together, by kube-scheduler and Volcano; a pod is evicted.

    Services are scaled.
    """
    template = {"spec": {"schedulerName": "volcano", "containers": [{"name": "worker"}]}}
    with numbers(["25"]) as port:
        house.service_urls = (f"http://127.0.0.1:{port}/",)
        async with operator(house, "three"):
            await live_with_services(house, f"{house.service_urls[0]}web")
    async with operator(house, "four"):
        house.submit("first", gang=True)
        house.submit("second", gang=True, template=template)
        for name in ("first", "second"):
            await house.until_running(3, name)
            evicting = Evicting(house, f"{name}-master")
            evicting.begin()
            await house.until(evicting.is_complete)
            house.delete(name)
        await house.until(lambda: not house.kubelets.pods())


async def live_with_services(house: House, url: str) -> None:
    """A Deployment and a StatefulSet have replicas by a load, and these become ready."""
    apps = f"/apis/apps/v1/namespaces/{house.namespace}"
    annotations = {"replicas": "1:8", "per-replica": "10", "load": url, "day": "30s"}
    labels = {"app": "web"}
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "w", "image": "w:1"}]}}
    for plural in ("deployments", "statefulsets"):
        meta = {"annotations": {f"{GROUP}/{name}": text for name, text in annotations.items()}}
        labels["app"] = plural
        spec = {"selector": {"matchLabels": labels}, "template": pod}
        body = {"metadata": {**meta, "name": "web"}, "spec": spec}
        house.plane.api.ask(f"{apps}/{plural}", method="POST", body=body)

    def are_ready() -> bool:
        things = [
            house.plane.api.ask(f"{apps}/{plural}/web")
            for plural in ("deployments", "statefulsets")
        ]
        return all(thing["status"].get("readyReplicas") == 3 for thing in things)

    await house.until(are_ready)
    assert house.present is not None
    figures = house.present.figures()
    assert figures is not None
    assert {(service.kind, service.wanted) for service in figures.services} == {
        ("Deployment", 3), ("StatefulSet", 3),
    }  # fmt: skip
    loads = f"/api/v1/namespaces/{OPERATORS_NAMESPACE}/configmaps/{LOADS}"
    assert house.plane.api.ask(loads)["binaryData"]
    for plural in ("deployments", "statefulsets"):
        house.plane.api.ask(f"{apps}/{plural}/web", method="DELETE")
    await house.until(lambda: not house.kubelets.pods())


async def live_through_everything(house: House) -> None:
    """A job is started, resized, suspended, resumed, handed over to another operator, cancelled."""
    make_tenant(house, house.namespace, house.namespace)
    async with operator(house, "one"):
        house.submit(bundle=make_code(house), volumeClaim={"size": "1Gi"}, tenant=house.namespace)
        await house.until_running(3)
        check_accounts(house)
        house.change(workers={"min": 1, "max": 1})
        await house.until_running(1)
        house.change(suspend=True)
        await house.until(lambda: house.phase() == "Suspended" and not house.kubelets.pods())
        house.change(suspend=False)
        await house.until_running(1)
    async with operator(house, "two"):
        house.change(workers={"min": 2, "max": 2})
        await house.until_running(2)
        house.delete()
        services = f"{house.core}/services"  # of which the last job's end leaves none
        await house.until(
            lambda: not (house.kubelets.pods() or house.plane.api.ask(services)["items"])
        )


def check_accounts(house: House) -> None:
    """No pod of a job has a token of any account, on a server that gives one by default."""
    pods = list(house.kubelets.pods().values())
    assert len(pods) == 4
    for pod in pods:
        assert pod["spec"]["automountServiceAccountToken"] is False
        assert pod["spec"]["serviceAccountName"] == "default"
        sources = [
            set(source)
            for volume in pod["spec"]["volumes"]
            for source in volume.get("projected", {}).get("sources", [])
        ]
        assert {"serviceAccountToken"} not in sources
    silent = {"containers": [{"name": "main", "image": "images/other:1"}]}
    body = {"metadata": {"name": "silent"}, "spec": silent}
    (answered,) = house.plane.api.ask(
        f"{house.kubelets.path}?dryRun=All", method="POST", body=body
    )["spec"]["volumes"]
    assert "serviceAccountToken" in answered["projected"]["sources"][0]


def test_operator_has_exactly_the_rights_it_uses(
    house: House, installed: list[dict[str, Any]], audit: Audit
) -> None:
    previous = len(audit.by(OPERATOR))
    run(lambda: live_through_everything(house))
    if any(right.resource == "podgroups" for right in rights_of(installed)):
        run(lambda: live_beside_neighbours(house))
    requests = audit.by(OPERATOR)[previous:]
    assert [request for request in requests if request.code in (401, 403)] == []
    # No request of its own: the server asks for it where an object is made that names a job as its owner.
    asked_beside = {
        right for right in rights_of(installed) if right.resource == "elasticjobs/finalizers"
    }
    assert rights_of(installed) - used(requests) == asked_beside
    assert {right.verb for right in asked_beside} == {"update"}


def test_that_right_is_needed_where_owners_are_checked(
    plane: ControlPlane, house: House, installed: list[dict[str, Any]]
) -> None:
    house.submit()
    owner = {
        "apiVersion": f"{GROUP}/v1alpha1",
        "kind": "ElasticJob",
        "name": "flights",
        "uid": house.job()["metadata"]["uid"],
        "blockOwnerDeletion": True,
    }
    own_server = Api(plane.url, plane.api.authority, token_of(plane))
    path = f"{house.core}/secrets"

    def make(name: str) -> None:
        meta = {"name": name, "ownerReferences": [owner]}
        own_server.ask(path, method="POST", body={"metadata": meta})

    make("first")
    (role,) = (
        manifest
        for manifest in installed
        if manifest["kind"] in ("Role", "ClusterRole")
        and any("elasticjobs/finalizers" in rule["resources"] for rule in manifest["rules"])
    )
    target = role["metadata"].get("namespace")
    base = f"/apis/rbac.authorization.k8s.io/v1/{f'namespaces/{target}/roles' if target else 'clusterroles'}"
    rules = [rule for rule in role["rules"] if "elasticjobs/finalizers" not in rule["resources"]]
    name = role["metadata"]["name"]
    plane.api.ask(f"{base}/{name}", method="PATCH", body={"rules": rules}, kind=PATCH)
    names = map(str, count())

    def is_refused() -> bool:  # a change of a role is in force some time after the answer to it
        try:
            make(f"later-{next(names)}")
        except EnvironmentFault as fault:
            return "cannot set blockOwnerDeletion" in str(fault)
        return False

    until(is_refused, lambda: "the right was taken away, and the server still acts by it")


def test_the_roles_name_what_is_the_operators_own() -> None:
    named = {
        (right.resource, right.name)
        for right in rights_of(manifests(Installation(image="images/brim:1")))
        if right.name
    }
    assert named == {
        ("leases", NAME), ("configmaps", MEMORY), ("secrets", NAME), ("services", SERVICE),
    }  # fmt: skip


# People of a namespace ----------------------------------------------------------------------------

ROLES = "/apis/rbac.authorization.k8s.io/v1"
OTHER = "other-team"
Wish = tuple[dict[str, Any], dict[str, Any]]
# What a pod of theirs would have beside what is usual: in its spec, and in its first container.
WISHES: dict[str, Wish] = {
    "a folder of the node (`hostPath`)": (
        {"volumes": [{"name": "root", "hostPath": {"path": "/"}}]},
        {"volumeMounts": [{"name": "root", "mountPath": "/host"}]},
    ),
    "a privileged container beside the worker": ({"privileged": True}, {}),
    "the network of the node (`hostNetwork`)": ({"hostNetwork": True}, {}),
    "the processes of the node (`hostPID`)": ({"hostPID": True}, {}),
    "another account of the namespace, and its token": (
        {
            "serviceAccountName": "another",
            "volumes": [
                {
                    "name": "root",
                    "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]},
                }
            ],
        },
        {"volumeMounts": [{"name": "root", "mountPath": "/host"}]},
    ),
    "a Secret of the namespace": (
        {},
        {"envFrom": [{"secretRef": {"name": "password"}}]},
    ),
    "the priority `system-node-critical`": ({"priorityClassName": "system-node-critical"}, {}),
}


class Tenant:
    """Somebody with the role `edit` in two namespaces: an ordinary one, and a restricted one."""

    def __init__(self, house: House) -> None:
        plane = self.plane = house.plane
        self.house, self.restricted = house, f"{house.namespace}-restricted"
        self.api = Api(plane.url, plane.api.authority, ANN)
        strict = {"pod-security.kubernetes.io/enforce": "restricted"}
        for name, labels in ((self.restricted, strict), (OTHER, {})):
            body = {"metadata": {"name": name, "labels": labels}}
            plane.api.ask("/api/v1/namespaces", method="POST", body=body)
        for name in (house.namespace, self.restricted):
            bound: dict[str, Any] = {
                "metadata": {"name": "ann"},
                "roleRef": {
                    "apiGroup": "rbac.authorization.k8s.io",
                    "kind": "ClusterRole",
                    "name": "edit",
                },
                "subjects": [{"kind": "User", "name": "ann"}],
            }
            plane.api.ask(f"{ROLES}/namespaces/{name}/rolebindings", method="POST", body=bound)

    def may_have_jobs(self) -> bool:
        """Whether the controller has added the rights on jobs to the role."""
        return self.tried("POST", f"{self.house.jobs}?dryRun=All", elastic_job("mine")) == "201"

    def tried(self, method: str, path: str, body: object = None, kind: str = PATCH) -> str:
        """The code that a request of theirs is answered with."""
        kind = kind if method == "PATCH" else "application/json"
        try:
            self.api.ask(path, method=method, body=body, kind=kind)
        except EnvironmentFault as fault:
            return str(re.findall(r": ([0-9]{3}): ", str(fault))[0])
        return "201" if method == "POST" else "200"


def jobs_in(namespace: str) -> str:
    return f"/apis/{GROUP}/v1alpha1/namespaces/{namespace}/elasticjobs"


def elastic_job(name: str, **spec: Any) -> dict[str, Any]:
    spec_fields = {"file": "flights.py", "workers": {"min": 1, "max": 1}} | spec
    kind = {"apiVersion": f"{GROUP}/v1alpha1", "kind": "ElasticJob"}
    return {**kind, "metadata": {"name": name}, "spec": spec_fields}


def at_others(ann: Tenant) -> Iterator[tuple[str, set[str]]]:
    """The answer to requests about objects of others."""
    other_path, own_path = (
        f"/api/v1/namespaces/{OTHER}",
        f"/api/v1/namespaces/{OPERATORS_NAMESPACE}",
    )
    job, tried = jobs_in(OTHER), ann.tried
    yield (
        "another namespace's jobs: list, read, create, change, delete",
        {
            tried("GET", job),
            tried("GET", f"{job}/victim"),
            tried("POST", job, elastic_job("mine")),
            tried("PATCH", f"{job}/victim", {"spec": {"suspend": True}}),
            tried("DELETE", f"{job}/victim"),
            tried("GET", f"/apis/{GROUP}/v1alpha1/elasticjobs"),
        },
    )
    yield (
        "its Secrets and ConfigMaps, its pods' logs, a shell in them, their eviction",
        {
            tried("GET", f"{other_path}/secrets/victim-1"),
            tried("GET", f"{other_path}/secrets"),
            tried("GET", f"{other_path}/configmaps/victim-code"),
            tried("GET", f"{other_path}/pods/victim-1-0/log"),
            tried("POST", f"{other_path}/pods/victim-1-0/exec?command=sh"),
            tried("POST", f"{other_path}/pods/victim-1-0/eviction", {"metadata": {"name": "x"}}),
            tried("DELETE", f"{other_path}/pods/victim-1-0"),
        },
    )
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{OPERATORS_NAMESPACE}/leases/{NAME}"
    yield (
        "the operator's namespace: its key, memory, Lease and pods; a token of its account; a job there",
        {
            tried("GET", f"{own_path}/secrets/{NAME}"),
            tried("PATCH", f"{own_path}/configmaps/{MEMORY}", {"data": {}}),
            tried("PATCH", lease, {"spec": {"holderIdentity": "ann"}}),
            tried("DELETE", f"{own_path}/pods/{NAME}-0"),
            tried("GET", f"{own_path}/pods/{NAME}-0/log"),
            tried("POST", f"{own_path}/serviceaccounts/{NAME}/token", {"spec": {}}),
            tried("POST", jobs_in(OPERATORS_NAMESPACE), elastic_job("mine")),
        },
    )
    tenants = f"/apis/{GROUP}/v1alpha1/tenants"
    tenant = {"apiVersion": f"{GROUP}/v1alpha1", "kind": "Tenant", "metadata": {"name": "mine"}}
    yield (
        "a Tenant: create one, add a namespace to another's",
        {
            tried("POST", tenants, tenant | {"spec": {"namespaces": ["*"]}}),
            tried("PATCH", f"{tenants}/theirs", {"spec": {"namespaces": ["*"]}}),
        },
    )


def at_their_own_job(ann: Tenant) -> Iterator[tuple[str, set[str]]]:
    """The answer to a write of a status, which has the promises to a job."""
    status = ann.house.job()["status"]
    forged = {**status, "promised": "Yes", "record": "1.forged"}
    path = f"{ann.house.jobs}/flights"
    yield (
        "the status of their own job: write a promise, or a record",
        {
            ann.tried("PATCH", f"{path}/status", {"status": forged}),
            ann.tried("PUT", f"{path}/status", ann.house.job() | {"status": forged}),
            ann.tried("PATCH", f"{path}/finalizers", {"metadata": {"finalizers": []}}),
        },
    )
    assert ann.tried("PATCH", path, {"status": forged}) == "200"
    copy = elastic_job("copy", workers={"min": 99, "max": 99}) | {"status": status}
    assert ann.tried("POST", ann.house.jobs, copy) == "201"
    ignored = {
        str(ann.house.job("flights")["status"]["record"] == status["record"]),
        str("record" not in ann.house.job("copy")["status"]),
    }
    yield (
        "the same as part of the object, or of a copy of it",
        {"is left out" if ignored == {"True"} else "is taken"},
    )


def beside_workers(ann: Tenant, *, owned: bool) -> dict[str, Any]:
    """A pod with the labels of a worker of their own job, and on request its owner."""
    (worker,) = (pod for name, pod in ann.house.kubelets.pods().items() if name == "flights-1-0")
    meta = {name: worker["metadata"][name] for name in ("labels", "annotations")}
    if owned:  # without the right on the job that a server may ask for where this outlives it
        (owner,) = worker["metadata"]["ownerReferences"]
        meta["ownerReferences"] = [{**owner, "blockOwnerDeletion": False}]
    large = {"requests": {"cpu": "20", "memory": "1Gi"}}
    containers = [{"name": "worker", "image": "images/other:1", "resources": large}]
    spec = {"containers": containers, "nodeName": "fake-1"}
    return {"metadata": {**meta, "name": f"flights-1-{8 + owned}"}, "spec": spec}


async def with_the_labels_of_a_worker(ann: Tenant) -> AsyncIterator[tuple[str, set[str]]]:
    house = ann.house
    path = house.kubelets.path

    def slots() -> int:
        figures = house.present.figures() if house.present else None
        assert figures is not None
        return figures.slots

    previous = slots()
    assert ann.tried("POST", path, beside_workers(ann, owned=False)) == "201"
    async with asyncio.timeout(60.0):
        while slots() >= previous:  # the operator sees what others have before the next job
            await asyncio.sleep(0.02)
    house.submit("next", workers={"min": 14, "max": 14})
    await house.until(lambda: house.phase("next") in ("Admitted", "Running"))
    waits = house.phase("next") == "Admitted" and house.job()["status"]["workers"]["ready"] == 1
    yield "a pod with the labels of a worker", {"counts as others' do" if waits else "is a worker"}
    ann.tried("DELETE", f"{path}/flights-1-8")
    await house.until(lambda: house.phase("next") == "Running")
    house.delete("next")
    assert ann.tried("POST", path, beside_workers(ann, owned=True)) == "201"
    await house.until(lambda: "flights-1-9" not in house.kubelets.pods())
    yield "the same with the job as its owner", {"is ended"}


def pod_of(wish: Wish, **worker: Any) -> dict[str, Any]:
    """The spec of a pod with a wish, as restricted as that allows."""
    spec, container = dict(wish[0]), dict(wish[1])
    context = {
        "allowPrivilegeEscalation": False,
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    first = {"name": "worker", "image": "images/brim:1", "securityContext": context}
    containers = [first | container]
    if spec.pop("privileged", False):
        containers.append(
            {"name": "beside", "image": "images/b:1", "securityContext": {"privileged": True}}
        )
    return {**spec, "containers": containers}


def by_hand(ann: Tenant, namespace: str, wish: Wish) -> str:
    """The outcome of a pod that they make by themselves."""
    body = {"metadata": {"name": "by-hand"}, "spec": pod_of(wish)}
    code = ann.tried("POST", f"/api/v1/namespaces/{namespace}/pods?dryRun=All", body)
    return "made" if code == "201" else "refused"


async def by_a_job(ann: Tenant, namespace: str, name: str, wish: Wish) -> str:
    """The outcome of a job of this name with this template."""
    house, job = ann.house, f"{jobs_in(namespace)}/{name}"
    spec = pod_of(wish)
    priority = spec.pop("priorityClassName", None)
    chosen = {"priorityClassName": priority} if priority else {}
    body = elastic_job(name, template={"spec": spec}, **chosen)
    assert ann.tried("POST", jobs_in(namespace), body) == "201"
    path = f"/api/v1/namespaces/{namespace}/pods"
    found: set[str] = set()

    def is_told() -> bool:
        names = {thing["metadata"]["name"] for thing in ann.plane.api.ask(path)["items"]}
        found.update({"made"} if f"{name}-1-0" in names else ())
        conditions = ann.plane.api.ask(job).get("status", {}).get("conditions", [])
        reasons = {
            condition["reason"] for condition in conditions if condition["type"] == "Stalled"
        }
        found.update({"refused"} if "PodsRefused" in reasons else ())
        return bool(found)

    await house.until(is_told)
    ann.tried("DELETE", job)
    return ", ".join(found)


async def attempts(ann: Tenant) -> list[str]:
    """The table of all that is tried, as lines."""
    house = ann.house
    lines = ["| tried by somebody with `edit` in a namespace | it got |", "|---|---|"]

    def add(attempt: str, obtained: set[str]) -> None:
        lines.append(f"| {attempt} | {', '.join(sorted(obtained))} |")

    await house.until(ann.may_have_jobs)
    house.submit(workers={"min": 1, "max": 1}, tenant=house.namespace)
    await house.until_running(1)
    for row in (*at_others(ann), *at_their_own_job(ann)):
        add(*row)
    async for row in with_the_labels_of_a_worker(ann):
        add(*row)
    body = elastic_job("theirs", tenant="theirs")
    assert ann.tried("POST", house.jobs, body) == "201"
    await house.until(lambda: house.phase("theirs") == "Invalid")
    field, _, _ = house.job("theirs")["status"]["message"].partition(
        ": got 'theirs', need a tenant"
    )
    add("a job of a tenant that does not list their namespace", {f"`Invalid`: `{field}`"})
    pod = {"metadata": {"name": "late-master"}, "spec": pod_of(({}, {}))}
    assert ann.tried("POST", house.kubelets.path, pod) == "201"
    assert ann.tried("POST", house.jobs, elastic_job("late")) == "201"

    def reason() -> str:
        conditions = house.job("late").get("status", {}).get("conditions", [])
        return next(
            (condition["reason"] for condition in conditions if condition["type"] == "Stalled"), ""
        )

    await house.until(lambda: reason() == "NameTaken")
    add("a pod with a name that a job of the namespace needs", {"that job is told `NameTaken`"})
    lines += [
        "",
        "| their pod asks for | by hand | in a job | by hand, restricted | in a job, restricted |",
    ]
    lines += ["|---|---|---|---|---|"]
    for number, (attempt, wish) in enumerate(WISHES.items()):
        obtained = []
        for namespace in (house.namespace, ann.restricted):
            obtained.append(by_hand(ann, namespace, wish))
            obtained.append(await by_a_job(ann, namespace, f"wish-{number}", wish))
        lines.append(f"| {attempt} | {' | '.join(obtained)} |")
    return lines


@pytest.mark.parametrize("installed", ["everywhere"], indirect=True)
def test_what_somebody_of_a_namespace_gets(house: House, installed: list[dict[str, Any]]) -> None:
    ann = Tenant(house)
    make_tenant(house, house.namespace, house.namespace, ann.restricted)
    make_tenant(house, "theirs", OTHER)
    house.scheduled = ""
    api = house.plane.api
    api.ask(jobs_in(OTHER), method="POST", body=elastic_job("victim"))
    account = {"metadata": {"name": "another"}}
    for name in (house.namespace, ann.restricted):
        path = f"/api/v1/namespaces/{name}/serviceaccounts"
        api.ask(path, method="POST", body=account)
    found: list[str] = []

    async def work() -> None:
        async with operator(house, "one"):
            found.extend(await attempts(ann))

    run(work)
    check_page(Path(__file__).with_name("attempts_in_kubernetes.md"), "\n".join(found))
