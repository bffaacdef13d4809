"""Pods as they are rendered: restricted, pinned, of one slot, and owned by their job."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any

import pytest

from brim.kubernetes.nodes.neighbours import handed_on
from brim.kubernetes.pods.manifests import (
    Manifest,
    PodWishes,
    master_pod,
    masters_service,
    network_policy,
    secret,
    volume_claim,
    with_preferred_node,
    worker_pod,
)
from kube_objects import JOB, SLOT, WISHES, start_of

START = start_of()


def pods(wishes: PodWishes = WISHES) -> list[Manifest]:
    return [
        master_pod(START, wishes, rejoins=False),
        worker_pod(START, wishes, name=JOB.worker(1, 0), node="n1"),
    ]


@pytest.mark.parametrize("pod", pods(), ids=["master", "worker"])
def test_pods_are_restricted(pod: Manifest) -> None:
    """As the standard of Pod Security has it, which a test on a server enforces."""
    spec, (container,) = pod["spec"], pod["spec"]["containers"]
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not spec["automountServiceAccountToken"]
    assert spec["restartPolicy"] == "Never"
    kinds = {kind for volume in spec["volumes"] for kind in volume if kind != "name"}
    assert kinds <= {"emptyDir", "projected"}


def test_everything_has_the_job_as_its_owner() -> None:
    extras = [secret(START, b"{}")]
    extras += [network_policy(START, "brim-system"), volume_claim(START, {"size": "1Gi"})]
    manifests = [*pods(), *extras]
    for manifest in manifests:
        (owner,) = manifest["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["controller"]) == (
            "ElasticJob",
            "flights",
            True,
        )
        assert owner["uid"] == START.uid
        assert manifest["metadata"]["namespace"] == "team"
    names = [(manifest["kind"], manifest["metadata"]["name"]) for manifest in manifests]
    assert len(set(names)) == len(names)


def test_only_workers_join_the_queue_of_their_job() -> None:
    marks = {"kueue.x-k8s.io/queue-name": "team", "kai.scheduler/queue": "team"}
    notes = {"scheduling.volcano.sh/queue-name": "team"}
    job = {"metadata": {"labels": {**marks, "color": "blue"}, "annotations": {**notes, "a": "b"}}}
    plain, queued = pods(), pods(replace(WISHES, handed_on=handed_on(job)))
    assert queued[0] == plain[0]
    previous, current = (pair[1]["metadata"] for pair in (plain, queued))
    assert current["labels"] == {**previous["labels"], **marks}
    assert current["annotations"] == {**previous["annotations"], **notes}
    assert pods(replace(WISHES, handed_on=handed_on({"metadata": {}}))) == plain


def test_template_may_change_the_queue_only() -> None:
    job = {"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "team"}}}
    labels = {"kueue.x-k8s.io/queue-name": "others", "brim.dev/job": "theirs"}
    wishes = replace(WISHES, handed_on=handed_on(job), template={"metadata": {"labels": labels}})
    labels_made = pods(wishes)[1]["metadata"]["labels"]
    assert labels_made["kueue.x-k8s.io/queue-name"] == "others"
    assert labels_made["brim.dev/job"] == JOB.name


def test_worker_requests_one_slot_and_its_node() -> None:
    _, pod = pods()
    (container,) = pod["spec"]["containers"]
    assert container["resources"] == {"requests": SLOT, "limits": {"memory": "2Gi"}}
    (term,) = pod["spec"]["affinity"]["nodeAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]["nodeSelectorTerms"]
    assert term == {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
    env = {variable["name"]: variable for variable in container["env"]}
    assert env["BRIM_MACHINE"]["valueFrom"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}
    assert env["BRIM_TOKEN"]["valueFrom"]["secretKeyRef"]["name"] == START.files
    assert container["command"][4:8] == [
        "agent", "flights-master.brim-masters:7077", "--workers", "1",
    ]  # fmt: skip


def test_processes_of_a_worker_share_its_slot() -> None:
    first, two = (
        worker_pod(START, WISHES, name="flights-1-0", node="n1", processes=count)["spec"]
        for count in (1, 2)
    )
    (container,) = two["containers"]
    assert container["command"][6:8] == ["--workers", "2"]
    container["command"][7] = "1"
    assert first == two


def node_affinity(*, anywhere: bool = True, **wishes: Any) -> Any:
    _, pod = pods(replace(WISHES, anywhere=anywhere, **wishes))
    return pod["spec"].get("affinity", {}).get("nodeAffinity")


def test_unpinned_worker_keeps_to_nodes_of_the_operator() -> None:
    """The requests of its template hold, too."""
    assert node_affinity() is None
    pool = {"key": "pool", "operator": "In", "values": ["training"]}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    assert node_affinity(node_labels="pool=training") == {
        required: {"nodeSelectorTerms": [{"matchExpressions": [pool]}]}
    }
    zone = {"key": "zone", "operator": "Exists"}
    fields = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n7"]}]}
    affinity_given = {
        required: {"nodeSelectorTerms": [{"matchExpressions": [zone]}, fields]},
        "more": [1],
    }
    template = {
        "spec": {"affinity": {"nodeAffinity": affinity_given}, "containers": [{"name": "worker"}]}
    }
    assert node_affinity(template=template) == affinity_given
    assert node_affinity(template=template, node_labels="pool=training") == {
        "more": [1],
        required: {
            "nodeSelectorTerms": [
                {"matchExpressions": [zone, pool]},
                {**fields, "matchExpressions": [pool]},
            ]
        },
    }
    pinned = {"key": "metadata.name", "operator": "In", "values": ["n1"]}
    assert node_affinity(anywhere=False, template=template) == {
        "more": [1],
        required: {
            "nodeSelectorTerms": [
                {"matchExpressions": [zone], "matchFields": [pinned]},
                {"matchFields": [*fields["matchFields"], pinned]},
            ]
        },
    }


@pytest.mark.parametrize(
    "affinity", ["x", [], {"a": 1}, {"requiredDuringSchedulingIgnoredDuringExecution": 3}]
)
def test_unreadable_affinity_is_left_to_the_server(affinity: Any) -> None:
    template = {
        "spec": {"affinity": {"nodeAffinity": affinity}, "containers": [{"name": "worker"}]}
    }
    labels_made = node_affinity(template=template, node_labels="pool")
    assert labels_made == affinity or isinstance(affinity, dict)


def test_device_is_requested_as_a_limit() -> None:
    wishes = replace(WISHES, slot={"nvidia.com/gpu": 1, "cpu": "4"})
    resources = pods(wishes)[1]["spec"]["containers"][0]["resources"]
    assert resources["limits"] == {"nvidia.com/gpu": 1}


def test_what_brim_decides_no_template_changes() -> None:
    template: dict[str, Any] = {
        "metadata": {"labels": {"team": "ads", "brim.dev/job": "other"}, "annotations": {"a": "b"}},
        "spec": {
            "restartPolicy": "Always",
            "tolerations": [{"key": "gpus", "operator": "Exists"}],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
            "affinity": {"podAffinity": {}, "nodeAffinity": {"its": "own"}},
            "containers": [
                {
                    "name": "worker",
                    "image": "registry.example/mine:2",
                    "command": ["sleep"],
                    "env": [{"name": "BRIM_TOKEN", "value": "x"}, {"name": "LR", "value": "1"}],
                    "resources": {"requests": {"cpu": "64"}},
                    "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                    "securityContext": {"privileged": True},
                }
            ],
        },
    }
    pod = worker_pod(START, replace(WISHES, template=template), name="flights-1-0", node="n1")
    spec, (container,) = pod["spec"], pod["spec"]["containers"]
    assert pod["metadata"]["labels"] == {
        "team": "ads",
        "app.kubernetes.io/managed-by": "brim",
        "brim.dev/job": "flights",
        "brim.dev/role": "worker",
        "brim.dev/launch": "1",
    }
    assert pod["metadata"]["annotations"] == {"a": "b", "brim.dev/node": "n1"}
    assert spec["restartPolicy"] == "Never"
    assert spec["tolerations"] == template["spec"]["tolerations"]
    assert spec["affinity"].keys() == {"podAffinity", "nodeAffinity"}
    pinned = {"key": "metadata.name", "operator": "In", "values": ["n1"]}
    assert spec["affinity"]["nodeAffinity"] == {
        "its": "own",
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchFields": [pinned]}]
        },
    }
    assert [volume["name"] for volume in spec["volumes"]] == ["tmp", "data"]
    assert (container["image"], container["command"][3]) == ("registry.example/mine:2", "brim")
    assert next(
        variable for variable in container["env"] if variable["name"] == "BRIM_TOKEN"
    ).keys() == {
        "name",
        "valueFrom",
    }
    assert {"name": "LR", "value": "1"} in container["env"]
    assert container["resources"]["requests"] == SLOT
    assert "privileged" not in container["securityContext"]
    assert template["spec"]["containers"][0]["command"] == ["sleep"], "it is changed in place"


def test_run_is_kept_on_the_requested_volume() -> None:
    claim = {"storageClassName": "fast", "size": "1Gi"}
    wishes = replace(WISHES, claim=claim)
    volumes = {volume["name"]: volume for volume in pods(wishes)[0]["spec"]["volumes"]}
    claim_made = volume_claim(START, claim)
    assert volumes["run"]["persistentVolumeClaim"] == {"claimName": claim_made["metadata"]["name"]}
    assert claim_made["spec"]["resources"]["requests"] == {"storage": "1Gi"}
    assert claim_made["spec"]["storageClassName"] == "fast"
    assert "storageClassName" not in volume_claim(START, {"size": 1})["spec"]
    assert "run" not in {volume["name"] for volume in pods(wishes)[1]["spec"]["volumes"]}


def test_first_master_does_not_wait_for_copies() -> None:
    rejoining = master_pod(START, WISHES, rejoins=True)["spec"]["containers"][0]["command"]
    first = master_pod(START, WISHES, rejoins=False)["spec"]["containers"][0]["command"]
    assert first == [*rejoining, "--rejoin-timeout", "0s"]


def test_preferred_node_keeps_the_templates_affinity() -> None:
    affinity_given = {
        "weight": 1,
        "preference": {"matchExpressions": [{"key": "a", "operator": "Exists"}]},
    }
    preferred, required = (
        f"{kind}DuringSchedulingIgnoredDuringExecution" for kind in ("preferred", "required")
    )
    terms: dict[str, Any] = {"nodeSelectorTerms": [{"matchFields": []}]}
    nodes = {required: terms, preferred: [affinity_given]}
    template = {"spec": {"affinity": {"nodeAffinity": nodes, "podAffinity": {}}}}
    pod = master_pod(START, replace(WISHES, master_template=template), rejoins=False)
    affinity = with_preferred_node(pod, "n1")["spec"]["affinity"]
    assert affinity["podAffinity"] == {}
    assert affinity["nodeAffinity"][required] == terms
    first, own_preference = affinity["nodeAffinity"][preferred]
    assert first == affinity_given
    assert (own_preference["weight"], own_preference["preference"]["matchFields"][0]["values"]) == (
        100,
        ["n1"],
    )
    assert pod["spec"]["affinity"] == template["spec"]["affinity"]


def test_unready_master_is_reachable_by_its_own_workers() -> None:
    service = masters_service("team")
    spec = service["spec"]
    assert (spec["clusterIP"], spec["publishNotReadyAddresses"]) == ("None", True)
    odd = {"spec": {"containers": [{"name": "master"}], "hostname": "other", "subdomain": "other"}}
    master, worker = pods(replace(WISHES, master_template=odd))
    name = f"{master['spec']['hostname']}.{master['spec']['subdomain']}"
    assert name == f"flights-master.{service['metadata']['name']}"
    assert f"{name}:7077" in worker["spec"]["containers"][0]["command"]
    selected = spec["selector"].items()
    assert selected <= master["metadata"]["labels"].items()
    assert not selected <= worker["metadata"]["labels"].items()
    policy = network_policy(START, "brim-system")["spec"]
    for pod in (master, worker):
        chosen = policy["podSelector"]["matchLabels"].items()
        assert chosen <= pod["metadata"]["labels"].items()
    called = {port["port"] for rule in policy["ingress"] for port in rule["ports"]}
    assert called == {7077, 7100}
    _, operator = policy["ingress"][0]["from"]
    namespace_selector = {"matchLabels": {"kubernetes.io/metadata.name": "brim-system"}}
    assert (
        operator["namespaceSelector"] == namespace_selector
    )  # its label alone can be had by anybody's pod


def test_master_finds_spec_and_code_in_one_folder() -> None:
    pod = master_pod(START, replace(WISHES, code="flights-code"), rejoins=False)
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    sources = volumes["files"]["projected"]["sources"]
    spec = {"key": "job.json", "path": "job.json"}
    assert sources == [
        {"secret": {"name": START.files, "items": [spec]}},  # without the token
        {"configMap": {"name": "flights-code"}},
    ]
    assert START.files != replace(START, token="another").files, "others can guess its name"
    data = secret(START, b"{}")["data"]
    assert {key: base64.b64decode(value) for key, value in data.items()} == {
        "token": START.token.encode(),
        "job.json": b"{}",
    }
