"""The objects that install an operator: whole, agreeing with each other, and no right too many."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from brim.errors import EnvironmentFault, SpecError
from brim.kubernetes.install.manifests import MEMORY, NAME, Installation, deployment, manifests
from brim.kubernetes.kubeflow.asked import KINDS, KUBEFLOW
from brim.kubernetes.objects.identities import GROUP, SERVICE, KubeJob
from brim.kubernetes.objects.schemas import in_yaml
from brim.kubernetes.pods.manifests import KubeStart, network_policy
from brim_lab.kubernetes.control_plane import ControlPlane

EVERYWHERE = Installation(image="images/brim:1", arguments=("--headroom", "1"))
IN_ONE = Installation(image="images/brim:1", namespace="team-brim", of="team")
WITH_KUBEFLOW = Installation(image="images/brim:1", namespace="kf-brim", of="team", kubeflow=True)
WITH_NEIGHBOURS = Installation(
    image="images/brim:1",
    namespace="many-brim",
    of="team",
    gangs=True,
    evictions=True,
    placeholders=3,
)
ALL = {
    "everywhere": EVERYWHERE,
    "in one": IN_ONE,
    "with Kubeflow": WITH_KUBEFLOW,
    "with neighbours": WITH_NEIGHBOURS,
}
CHOICES = pytest.mark.parametrize("chosen", ALL.values(), ids=list(ALL))


def named(made: list[dict[str, Any]], kind: str) -> dict[str, dict[str, Any]]:
    return {each["metadata"]["name"]: each for each in made if each["kind"] == kind}


@CHOICES
def test_manifests_are_yaml_in_the_order_of_what_they_need(chosen: Installation) -> None:
    made = manifests(chosen)
    text = "---\n".join(map(in_yaml, made))
    assert list(yaml.safe_load_all(text)) == json.loads(json.dumps(made))
    kinds = [each["kind"] for each in made]
    assert kinds[0] == "Namespace"
    assert kinds[-1] == "Deployment"
    assert all(each["metadata"]["name"] for each in made)
    keys = [
        (each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in made
    ]
    assert len(set(keys)) == len(keys)


@CHOICES
def test_names_agree(chosen: Installation) -> None:
    made = manifests(chosen)
    accounts, namespaces = named(made, "ServiceAccount"), named(made, "Namespace")
    for each in made:
        if each["kind"].endswith("Binding"):
            assert each["roleRef"]["name"] in named(made, each["roleRef"]["kind"])
            assert [subject["name"] for subject in each["subjects"]] == list(accounts)
            assert [subject["namespace"] for subject in each["subjects"]] == list(namespaces)
    there = deployment(chosen)
    pod = there["spec"]["template"]
    assert pod["spec"]["serviceAccountName"] in accounts
    assert there["metadata"]["namespace"] in namespaces
    assert pod["metadata"]["labels"].items() >= there["spec"]["selector"]["matchLabels"].items()


def test_jobs_let_the_operator_call_them() -> None:
    start = KubeStart(job=KubeJob("team", "flights"), uid="u", launch=1, token="t")
    callers = network_policy(start, "brim-system")["spec"]["ingress"][0]["from"]
    labels = deployment(EVERYWHERE)["spec"]["template"]["metadata"]["labels"].items()
    assert any(labels >= each["podSelector"]["matchLabels"].items() for each in callers)


def test_an_installation_that_cannot_be() -> None:
    for wrong in ({"image": ""}, {"image": "x", "replicas": 0}):
        with pytest.raises(SpecError, match="need an image, and at least one replica"):
            Installation(**wrong)


# On a server --------------------------------------------------------------------------------------

# Everything that the operator may do: (namespace, group, resource, verbs); "" is each namespace.
SEES = {("", "", "nodes", "list watch"), ("", "", "pods", "list watch")}
SEES |= {("", GROUP, "tenants", "list watch")}
RUNS = {
    ("", "", "pods", "create delete"),
    ("", "", "secrets", "create delete"),
    ("", "", "configmaps", "get"),
    ("", "", "services", "create"),
    ("", "", "persistentvolumeclaims", "get create"),
    ("", "networking.k8s.io", "networkpolicies", "get create"),
    ("", GROUP, "elasticjobs", "list watch"),
    ("", GROUP, "elasticjobs/status", "patch"),
    ("", GROUP, "elasticjobs/finalizers", "update"),
}
PLURALS = [kind.plural for kind in KINDS.values()]
RUNS_FOR_KUBEFLOW = {
    *(("", KUBEFLOW, plural, "get list watch patch delete") for plural in PLURALS),
    *(("", KUBEFLOW, f"{plural}/status", "patch") for plural in PLURALS),
    *(("", KUBEFLOW, f"{plural}/finalizers", "update") for plural in PLURALS),
    ("", "", "services", "get deletecollection"),
    ("", "", "pods", "get patch"),
    ("", "", "pods/exec", "create"),
    ("", "", "configmaps", "create patch"),
    ("", "", "serviceaccounts", "get create patch"),
    ("", "rbac.authorization.k8s.io", "roles", "get create patch"),
    ("", "rbac.authorization.k8s.io", "rolebindings", "get create patch"),
    ("", "autoscaling", "horizontalpodautoscalers", "get list watch create patch delete"),
}
RUNS_FOR_GANGS = {
    ("", "scheduling.k8s.io", "podgroups", "get create patch"),
    ("", "scheduling.volcano.sh", "podgroups", "get create patch"),
}
RUNS_FOR_EVICTIONS = {
    ("", "lifecycle.k8s.io", "evictions", "list watch"),
    ("", "lifecycle.k8s.io", "evictions/status", "patch"),
}
KEEPS = {
    ("coordination.k8s.io", "leases", "", "create"),
    ("coordination.k8s.io", "leases", NAME, "get update"),
    ("", "configmaps", "", "create"),
    ("", "configmaps", MEMORY, "get patch"),
    ("", "secrets", "", "create"),
    ("", "secrets", NAME, "get"),
}


@pytest.fixture(params=list(ALL.values()), ids=list(ALL))
def installed(request: pytest.FixtureRequest, api_server: ControlPlane) -> Iterator[Installation]:
    chosen: Installation = request.param
    made = manifests(chosen)
    text = "---\n".join(map(in_yaml, made))
    for namespace in ("team", "other"):
        thing = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
        api_server.kubectl("apply", "-f", "-", stdin=json.dumps(thing))
    api_server.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=text)
    yield chosen
    for each in made:
        if "rbac" in each["apiVersion"]:
            where = each["metadata"].get("namespace")
            words = ["delete", each["kind"], each["metadata"]["name"]]
            api_server.kubectl(*words, *(["-n", where] if where else []))


def may(server: ControlPlane, user: dict[str, Any], **attributes: str) -> bool:
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {**user, "resourceAttributes": attributes},
    }
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    return bool(server.api.ask(path, method="POST", body=review)["status"]["allowed"])


def rights(server: ControlPlane, chosen: Installation, namespace: str) -> set[tuple[str, str, str]]:
    """What the operator's account may do with any object of a namespace, and not every account may."""
    accounts = (f"system:serviceaccount:{chosen.namespace}:{name}" for name in (NAME, "nobody"))
    own, everybodys = (listed(server, account, namespace) for account in accounts)
    return own - everybodys


def listed(server: ControlPlane, account: str, namespace: str) -> set[tuple[str, str, str]]:
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": namespace},
    }
    words = ["create", "-f", "-", "-o", "json", "--validate=false", f"--as={account}"]
    answer = json.loads(server.kubectl(*words, stdin=json.dumps(review)))
    assert not answer["status"]["incomplete"]
    return {
        (group, resource, verb)
        for rule in answer["status"]["resourceRules"]
        if not rule.get("resourceNames")
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def expected(table: set[tuple[str, str, str, str]]) -> set[tuple[str, str, str]]:
    return {
        (group, resource, verb) for _, group, resource, verbs in table for verb in verbs.split()
    }


def test_the_operator_has_these_rights_and_no_others(
    api_server: ControlPlane, installed: Installation
) -> None:
    seen, run = expected(SEES), expected(RUNS)
    run |= expected(RUNS_FOR_KUBEFLOW) if installed.kubeflow else set()
    run |= expected(RUNS_FOR_GANGS) if installed.gangs else set()
    run |= expected(RUNS_FOR_EVICTIONS) if installed.evictions else set()
    own = {(group, resource, "create") for group, resource, name, _ in KEEPS if not name}
    everywhere = seen if installed.of else seen | run
    assert rights(api_server, installed, "team") == seen | run
    assert rights(api_server, installed, "other") == everywhere
    assert rights(api_server, installed, installed.namespace) == everywhere | own
    user = {"user": f"system:serviceaccount:{installed.namespace}:{NAME}"}
    for group, resource, name, verbs in KEEPS:
        for verb in verbs.split():
            at = {"namespace": installed.namespace, "group": group, "resource": resource}
            at |= {"name": name} if name else {}
            assert may(api_server, user, verb=verb, **at), (resource, name, verb)
    for name in (SERVICE, "theirs"):  # of Services, it deletes the one that its jobs share
        at = {"namespace": "team", "group": "", "resource": "services", "name": name}
        assert may(api_server, user, verb="delete", **at) == (name == SERVICE)


def test_people_of_a_namespace_may_have_jobs_and_no_word_in_their_status(
    api_server: ControlPlane, installed: Installation
) -> None:
    made = {each["metadata"]["name"]: each for each in manifests(installed)}
    edit, view = made["brim-jobs-edit"], made["brim-jobs-view"]
    assert edit["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-edit"] == "true"
    assert view["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-view"] == "true"
    api_server.kubectl(
        "create", "rolebinding", "ann", "--clusterrole=brim-jobs-edit", "--user=ann", "-n", "team"
    )
    user = {"user": "ann"}
    try:
        for verb in ("create", "patch", "delete", "get"):
            at = {"group": GROUP, "resource": "elasticjobs", "verb": verb}
            assert may(api_server, user, namespace="team", **at)
            assert not may(api_server, user, namespace="other", **at)
        scale = {
            "group": GROUP,
            "resource": "elasticjobs",
            "subresource": "scale",
            "verb": "update",
        }
        assert may(api_server, user, namespace="team", **scale)
        for sub in ("status", "finalizers"):
            for verb in ("update", "patch"):
                at = {"group": GROUP, "resource": "elasticjobs", "subresource": sub, "verb": verb}
                assert not may(api_server, user, namespace="team", **at)
        assert not may(api_server, user, group=GROUP, resource="tenants", verb="create")
        for plural in PLURALS:
            at = {"namespace": "team", "group": KUBEFLOW, "resource": plural}
            assert may(api_server, user, verb="create", **at) == installed.kubeflow
            assert not may(api_server, user, verb="patch", subresource="status", **at)
    finally:
        api_server.kubectl("delete", "rolebinding", "ann", "-n", "team")


def test_the_operators_pod_is_admitted_where_pods_are_restricted(
    api_server: ControlPlane, installed: Installation
) -> None:
    template = deployment(installed)["spec"]["template"]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        **template,
        "metadata": {**template["metadata"], "name": "one"},
    }
    path = f"/api/v1/namespaces/{installed.namespace}/pods?dryRun=All"
    made = api_server.api.ask(path, method="POST", body=pod)
    assert made["spec"]["containers"][0]["command"][1:5] == ["-P", "-m", "brim", "operator"]
    pod["spec"] = {**template["spec"], "hostNetwork": True}
    with pytest.raises(EnvironmentFault, match="violates PodSecurity"):
        api_server.api.ask(path, method="POST", body=pod)
