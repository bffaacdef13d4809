"""What the operator may do, and uses: on a server that notes every request, with its account alone."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from brim.errors import EnvironmentFault
from brim.kubernetes.access import find_access
from brim.kubernetes.api_server import ApiServer
from brim.kubernetes.holder import LeaseHolder
from brim.kubernetes.identities import GROUP
from brim.kubernetes.manifests import MEMORY, NAME, Installation, manifests
from brim.kubernetes.schemas import in_yaml
from brim.storage.bundles import pack
from brim_lab.kubernetes.api import PATCH, Api, kubeconfig
from brim_lab.kubernetes.control_plane import (
    API_SERVER,
    CONTROLLERS,
    ETCD,
    KWOK,
    ControlPlane,
    control_plane,
)
from clusters import need
from kubernetes.test_operator import OWN, House, run

OPERATOR = f"system:serviceaccount:{OWN}:{NAME}"
CODE = pack({"flights.py": b""})
POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "None", "users": ["admin"]}, {"level": "Metadata"}],
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
        """What somebody has asked, in order."""
        return [each for each in self._all() if each.user == user]

    def _all(self) -> Iterator[Request]:
        for line in self._path.read_text().splitlines():
            event = json.loads(line)
            at = event.get("objectRef")
            if at is None:  # what there is, and its versions
                continue
            sub = f"/{at['subresource']}" if at.get("subresource") else ""
            yield Request(
                user=event["user"]["username"],
                namespace=at.get("namespace", ""),
                group=at.get("apiGroup", ""),
                resource=f"{at['resource']}{sub}",
                verb=event["verb"],
                name=at.get("name", ""),
                code=event["responseStatus"]["code"],
            )


class Right(NamedTuple):
    """One verb on one resource: in a namespace, or in all; of one name, or of any."""

    namespace: str
    group: str
    resource: str
    verb: str
    name: str


def rights_of(made: list[dict[str, Any]]) -> set[Right]:
    """All that the roles of an operator allow."""
    return {
        Right(each["metadata"].get("namespace", ""), group, resource, verb, name)
        for each in made
        if each["kind"] in ("Role", "ClusterRole") and NAME in each["metadata"]["name"]
        for rule in each["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", [""])
    }


def used(requests: list[Request]) -> set[Right]:
    """The rights that somebody has needed, as far as roles of one namespace and of all go."""
    found = set()
    for each in requests:
        # What an apply makes is asked for as a patch, and allowed as a creation, too.
        verbs = [each.verb, *(["create"] if (each.verb, each.code) == ("patch", 201) else [])]
        for namespace in (each.namespace, ""):
            if namespace == "" and each.namespace == OWN:
                continue  # where it has a role of its own
            for name in (each.name, ""):
                at = namespace, each.group, each.resource
                found |= {Right(*at, verb, name) for verb in verbs}
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
    with control_plane(folder, programs=programs, api_server_flags=flags) as plane:
        plane.add_fake_nodes(1)
        yield plane


@pytest.fixture
def audit(plane: ControlPlane) -> Audit:
    return Audit(plane.folder / "audit.log")


@pytest.fixture
def house(plane: ControlPlane, namespace: str, tmp_path: Path) -> House:
    return House(plane, namespace, tmp_path, first_node="fake-1")


@pytest.fixture(params=["everywhere", "in one"])
def installed(
    request: pytest.FixtureRequest, plane: ControlPlane, house: House
) -> Iterator[list[dict[str, Any]]]:
    """An installation for all namespaces, or for that of the house alone."""
    of = house.namespace if request.param == "in one" else ""
    made = manifests(Installation(image="images/brim:1", namespace=OWN, of=of))
    text = "---\n".join(in_yaml(each) for each in made if each["kind"] != "Deployment")
    plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=text)
    yield made
    for each in made:
        if "rbac" in each["apiVersion"] and NAME in each["metadata"]["name"]:
            where = each["metadata"].get("namespace")
            words = ["delete", each["kind"], each["metadata"]["name"]]
            plane.kubectl(*words, *(["-n", where] if where else []))
    left = (f"lease/{NAME}", f"secret/{NAME}", f"configmap/{MEMORY}")  # which the next one makes
    plane.kubectl("delete", "-n", OWN, "--ignore-not-found", *left)


def token_of(plane: ControlPlane) -> str:
    """A token of the operator's account, as its pod has one."""
    path = f"/api/v1/namespaces/{OWN}/serviceaccounts/{NAME}/token"
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    return str(plane.api.ask(path, method="POST", body=body)["status"]["token"])


@contextlib.asynccontextmanager
async def operator(house: House, identity: str) -> AsyncIterator[LeaseHolder]:
    """An operator with its own account and nothing else, which has the Lease before it begins."""
    plane, file = house.plane, house.folder / f"{identity}.kubeconfig"
    file.write_bytes(kubeconfig(plane.url, plane.api.authority, token_of(plane)))
    access = find_access({"KUBECONFIG": str(file)})
    holder = LeaseHolder(access, namespace=OWN, name=NAME, identity=identity)
    begun = asyncio.Event()

    async def work() -> None:
        async with (
            ApiServer(access, qps=500, burst=500, may_write=holder.holds) as mine,
            house.operator(lambda _: mine),
        ):
            begun.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(holder.run(work))
    waiting = asyncio.create_task(begun.wait())
    try:
        await asyncio.wait((task, waiting), return_when=asyncio.FIRST_COMPLETED)
        yield holder
    finally:
        task.cancel()
        waiting.cancel()
        await asyncio.wait((task, waiting))


def make_tenant(house: House) -> None:
    tenant = {
        "apiVersion": f"{GROUP}/v1alpha1",
        "kind": "Tenant",
        "metadata": {"name": house.namespace},
        "spec": {"namespaces": [house.namespace], "guaranteed": 4},
    }
    house.plane.api.ask(f"/apis/{GROUP}/v1alpha1/tenants", method="POST", body=tenant)


def make_code(house: House) -> dict[str, str]:
    code = {"code.tar": base64.b64encode(CODE).decode()}
    body = {"metadata": {"name": "flights-code"}, "binaryData": code}
    house.plane.api.ask(f"{house.core}/configmaps", method="POST", body=body)
    return {"configMap": "flights-code", "sha256": hashlib.sha256(CODE).hexdigest()}


async def live_through_everything(house: House) -> None:
    """A job is started, resized, suspended, resumed, handed over to another operator, cancelled."""
    make_tenant(house)
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
        await house.until(lambda: not house.kubelets.pods())


def check_accounts(house: House) -> None:
    """No pod of a job has a token of any account, on a server that gives one to whoever is silent."""
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
        assert all(kinds == {"configMap"} for kinds in sources), sources
    silent = {"containers": [{"name": "main", "image": "images/other:1"}]}
    body = {"metadata": {"name": "silent"}, "spec": silent}
    (given,) = house.plane.api.ask(f"{house.kubelets.path}?dryRun=All", method="POST", body=body)[
        "spec"
    ]["volumes"]
    assert "serviceAccountToken" in given["projected"]["sources"][0]


def test_the_operator_uses_each_of_its_rights_and_needs_no_other(
    house: House, installed: list[dict[str, Any]], audit: Audit
) -> None:
    before = len(audit.by(OPERATOR))
    run(lambda: live_through_everything(house))
    requests = audit.by(OPERATOR)[before:]
    assert [each for each in requests if each.code in (401, 403)] == []
    # No request of its own: the server asks for it where an object is made that names a job as its owner.
    asked_beside = {
        each for each in rights_of(installed) if each.resource == "elasticjobs/finalizers"
    }
    assert rights_of(installed) - used(requests) == asked_beside
    assert {each.verb for each in asked_beside} == {"update"}


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
    mine = Api(plane.url, plane.api.authority, token_of(plane))
    path = f"{house.core}/secrets"

    def make(name: str) -> None:
        meta = {"name": name, "ownerReferences": [owner]}
        mine.ask(path, method="POST", body={"metadata": meta})

    make("first")
    (role,) = (
        each
        for each in installed
        if each["kind"] in ("Role", "ClusterRole")
        and any("elasticjobs/finalizers" in rule["resources"] for rule in each["rules"])
    )
    where = role["metadata"].get("namespace")
    base = f"/apis/rbac.authorization.k8s.io/v1/{f'namespaces/{where}/roles' if where else 'clusterroles'}"
    rules = [rule for rule in role["rules"] if "elasticjobs/finalizers" not in rule["resources"]]
    name = role["metadata"]["name"]
    plane.api.ask(f"{base}/{name}", method="PATCH", body={"rules": rules}, kind=PATCH)
    with pytest.raises(EnvironmentFault, match="cannot set blockOwnerDeletion"):
        make("second")


def test_the_roles_name_what_is_the_operators_own() -> None:
    named = {
        (each.resource, each.name)
        for each in rights_of(manifests(Installation(image="images/brim:1")))
        if each.name
    }
    assert named == {("leases", NAME), ("configmaps", MEMORY), ("secrets", NAME)}
