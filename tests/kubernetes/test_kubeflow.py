"""Kubeflow's objects, pods and statuses as its operator has them, and as brim has them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from brim.domain.job import WorkerRange
from brim.domain.lifecycle import Life, Phase, Wish
from brim.domain.scheduled_job import ScheduledJob
from brim.domain.submission import Submission
from brim.kubernetes.client.kube_types import KubePod
from brim.kubernetes.kubeflow.autoscalers import autoscaler_of, is_as_asked
from brim.kubernetes.kubeflow.objects import KubeflowStart
from brim.kubernetes.kubeflow.pods import pod_of, service
from brim.kubernetes.kubeflow.ranks import NewPod, changes, failures_of, outcome_of, ranked
from brim.kubernetes.kubeflow.request import (
    KubeflowSpec,
    Rank,
    first_replicas,
    read_asked,
    submission_of,
    wishes_of,
)
from brim.kubernetes.kubeflow.status import status_of
from brim.kubernetes.nodes.places import slot_of
from brim.kubernetes.objects.tenants import KnownTenants

FILES = Path(__file__).parent / "files"
SLOT = slot_of({"cpu": "1", "memory": "2Gi", "nvidia.com/gpu": 1})
NOW = 1_796_112_000.0


def thing(file: str = "pytorchjob.yaml", **spec: Any) -> dict[str, Any]:
    """The object of a file as a server has it, with other fields in its spec."""
    thing_made: dict[str, Any] = yaml.safe_load((FILES / file).read_text())
    times = {"creationTimestamp": "2026-12-01T08:00:00Z", "uid": "uid 1", "namespace": "team"}
    thing_made["metadata"] |= times
    thing_made["spec"] |= spec
    return thing_made


def asked_of(file: str = "pytorchjob.yaml", **spec: Any) -> KubeflowSpec:
    request = read_asked(thing(file, **spec), slot=SLOT)
    assert isinstance(request, KubeflowSpec), [str(problem) for problem in request]
    return request


def replicas(count: int, policy: str = "OnFailure", **fields: Any) -> dict[str, Any]:
    container = {"name": "pytorch", "image": "a:1", **fields}
    template = {"spec": {"containers": [container]}}
    return {"replicas": count, "restartPolicy": policy, "template": template}


def record_of(request: KubeflowSpec, **fields: Any) -> ScheduledJob:
    submission = submission_of(thing(), request, KnownTenants())
    assert isinstance(submission, Submission)
    return ScheduledJob(
        number=1, id=request.job.id, submission=submission, submitted=NOW, key="uid 1", **fields
    )


def pod_for(request: KubeflowSpec, rank: Rank, node: str = "n1") -> dict[str, Any]:
    start = KubeflowStart(request=request, uid="uid 1", launch=1, slot=SLOT)
    return pod_of(start, NewPod(rank, node))


def seen(request: KubeflowSpec, number: int, node: str = "n1", **status: Any) -> KubePod:
    thing = pod_for(request, Rank("worker", number), node)
    thing["metadata"]["uid"] = f"uid of {number}"
    leaving = {"deletionTimestamp": "2026-12-01T09:00:00Z"} if status.pop("leaving", False) else {}
    thing["metadata"] |= leaving
    return msgspec.convert(thing | {"status": {"phase": "Running", **status}}, KubePod)


def ended(code: int, **status: Any) -> dict[str, Any]:
    state = {"terminated": {"exitCode": code, "reason": "Error", "message": "out of luck\n"}}
    return {"phase": "Failed", "containerStatuses": [{"name": "pytorch", "state": state}], **status}


def env_of(pod: dict[str, Any]) -> dict[str, str]:
    return {variable["name"]: variable["value"] for variable in pod["spec"]["containers"][0]["env"]}


# What is asked ------------------------------------------------------------------------------------


def test_guides_pytorchjob_has_one_or_two_workers() -> None:
    request = asked_of()
    assert (request.pods, request.elastic) == (WorkerRange(minimum=1, maximum=2), True)
    assert request.job.id == "team.elastic-example-imagenet.pytorchjob"
    assert request.of("worker") is not None


@pytest.mark.parametrize(
    ("spec", "pods"),
    [
        ({"elasticPolicy": None}, "2"),
        ({"elasticPolicy": {"maxReplicas": 6}}, "2:6"),
        ({"elasticPolicy": {"minReplicas": 1}}, "1:2"),
        ({"elasticPolicy": {"minReplicas": 1, "maxReplicas": 6, "metrics": [{}]}}, "1:2"),
        ({"pytorchReplicaSpecs": {"master": replicas(1), "WORKER": replicas(3)}}, "2:3"),
        (
            {
                "pytorchReplicaSpecs": {"Master": replicas(1), "Worker": replicas(3)},
                "elasticPolicy": None,
            },
            "4",
        ),
    ],
)
def test_how_many_pods_it_may_have(spec: dict[str, Any], pods: str) -> None:
    assert str(asked_of(**spec).pods) == pods


def launched(*words: str, count: int = 4, env: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The workers of a job that runs a command, with variables."""
    pairs = [{"name": name, "value": value} for name, value in (env or {}).items()]
    return {"Worker": replicas(count, command=list(words), env=pairs)}


@pytest.mark.parametrize(
    ("words", "env", "pods"),
    [
        (["torchrun", "--nnodes=4", "train.py"], {}, "4"),
        (["torchrun", "--nnodes", "4", "train.py"], {}, "4"),
        (["torchrun", "--nnodes=$(N)", "train.py"], {"N": "4"}, "4"),
        (["sh", "-c", 'exec torchrun --nnodes="${N}" train.py'], {"M": "4", "N": "$(M)"}, "4"),
        (["accelerate", "launch", "--num_machines", "4", "train.py"], {}, "4"),
        (["torchrun", "--nnodes=4:4", "train.py"], {}, "4"),
        (["torchrun", "--nnodes=2:6", "train.py"], {}, "2:6"),
        (["sh", "-c", "torchrun --nnodes $N train.py"], {"N": "3:16"}, "3:8"),
        (["torchrun", "--nnodes=$(PET_NNODES)", "train.py"], {}, "1:8"),
        (["torchrun", "--nnodes=$(PET_NNODES)", "train.py"], {"PET_NNODES": "4"}, "1:8"),
        (["torchrun", "--nproc_per_node=4", "train.py"], {}, "1:8"),
    ],
)
def test_nodes_in_a_command_bound_an_elastic_policy(
    words: list[str], env: dict[str, str], pods: str
) -> None:
    policy = {"minReplicas": 1, "maxReplicas": 8, "metrics": []}
    request = asked_of(elasticPolicy=policy, pytorchReplicaSpecs=launched(*words, env=env))
    assert (str(request.pods), request.elastic) == (pods, ":" in pods)
    assert env_of(pod_for(request, Rank("worker", 0)))["PET_NNODES"] == pods


def test_master_counts_among_nodes_of_the_command() -> None:
    policy = {"minReplicas": 1, "maxReplicas": 8}

    def pods(nodes: str) -> str:
        workers = launched("torchrun", f"--nnodes={nodes}", count=3)
        specs = {"Master": replicas(1), **workers}
        return str(asked_of(elasticPolicy=policy, pytorchReplicaSpecs=specs).pods)

    assert [pods(nodes) for nodes in ("4", "3:5")] == ["4", "3:5"]


def test_a_fixed_number_of_nodes_has_no_autoscaler() -> None:
    policy = {"minReplicas": 1, "maxReplicas": 8, "metrics": [METRIC]}
    workers = launched("torchrun", "--nnodes=4")
    assert autoscaler_of(asked_of(elasticPolicy=policy, pytorchReplicaSpecs=workers), "u") is None


def test_queued_job_stays_within_the_replicas_counted() -> None:
    queued = thing(elasticPolicy={"minReplicas": 1, "maxReplicas": 4})
    queued["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] = 3
    free = read_asked(queued, slot=SLOT)
    queued["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "team"}
    bounded = read_asked(queued, slot=SLOT)
    assert isinstance(free, KubeflowSpec)
    assert isinstance(bounded, KubeflowSpec)
    assert (str(free.pods), str(bounded.pods)) == ("1:4", "1:3")


def test_changed_replicas_bound_the_pods_above() -> None:
    policy = {"minReplicas": 2, "maxReplicas": 8}
    job = record_of(asked_of(elasticPolicy=policy))
    assert first_replicas(job) == 2

    def bounds_of(count: int) -> list[str]:
        spec = {"Worker": replicas(count)}
        changed = thing(elasticPolicy=policy, pytorchReplicaSpecs=spec)
        events, problems = wishes_of(changed, job, slot=SLOT)
        assert not problems
        return [event.detail for event in events]

    assert bounds_of(2) == [], "it may grow as it is"
    assert [bounds_of(count) for count in (0, 5, 20)] == [["2 to 2 pods"], ["2 to 5 pods"], []]


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"pytorchReplicaSpecs": None}, "spec.pytorchReplicaSpecs"),
        ({"pytorchReplicaSpecs": {"Ps": replicas(1)}}, "spec.pytorchReplicaSpecs.Ps"),
        ({"pytorchReplicaSpecs": {"Master": replicas(2)}}, "Master.replicas"),
        ({"pytorchReplicaSpecs": {"Master": replicas(1)}}, "spec.elasticPolicy"),
        ({"pytorchReplicaSpecs": {"Worker": replicas(1, "Maybe")}}, "Worker.restartPolicy"),
        ({"pytorchReplicaSpecs": {"Worker": replicas(1, name="main")}}, "spec.containers"),
        ({"pytorchReplicaSpecs": {"Worker": replicas(1, image="")}}, "containers[0].image"),
        ({"elasticPolicy": {"minReplicas": 3, "maxReplicas": 2}}, "elasticPolicy.minReplicas"),
        ({"elasticPolicy": {"nProcPerNode": 1}, "nprocPerNode": "1"}, "elasticPolicy.nProcPerNode"),
        ({"runPolicy": {"cleanPodPolicy": "Some"}}, "spec.runPolicy.cleanPodPolicy"),
        (
            {
                "pytorchReplicaSpecs": {
                    "Worker": replicas(1, resources={"limits": {"nvidia.com/gpu": 2}})
                }
            },
            "nvidia.com/gpu: got 2, need at most what a slot of this operator has, 1\n"
            "  hint: have the operator's slots as large: brim install --slot nvidia.com/gpu=2",
        ),
        (
            {"pytorchReplicaSpecs": launched("torchrun", "--nnodes=3")},
            "spec.pytorchReplicaSpecs.Worker.replicas: got 4, need 3",
        ),
        (
            {"pytorchReplicaSpecs": launched("torchrun", "--nnodes=9:12")},
            "Worker.template.spec.containers[0]: got --nnodes 9:12, need from 1 to 8",
        ),
        (
            {"pytorchReplicaSpecs": launched("torchrun", "--nnodes=$(MANY)")},
            "Worker.template.spec.containers[0]: got --nnodes '$(MANY)', need numbers",
        ),
        *(
            ({"pytorchReplicaSpecs": {"Worker": replicas(1, **fields)}}, f"containers[0].{field}")
            for fields, field in (
                ({"resources": {"limits": {"memory": "16GB"}}}, "resources.limits.memory"),
                ({"resources": {"requests": {"cpu": "two"}}}, "resources.requests.cpu"),
                ({"resources": {"limits": {"cpu": None}}}, "resources.limits.cpu"),
                (
                    {"resources": {"limits": {"cpu": "1 "}, "requests": {"cpu": 1}}},
                    "resources.limits.cpu",
                ),
                ({"resources": {"limits": 3}}, "resources.limits"),
                ({"resources": "much"}, "resources"),
                ({"ports": [{"name": "pytorchjob-port"}]}, "ports[0].containerPort"),
                (
                    {"ports": [{"name": "pytorchjob-port", "containerPort": 70_000}]},
                    "ports[0].containerPort",
                ),
                ({"ports": [29511]}, "ports[0]"),
                ({"env": ["A=1"]}, "env[0]"),
            )
        ),
    ],
)
def test_what_cannot_be_is_told_with_its_field(spec: dict[str, Any], field: str) -> None:
    policy = {"minReplicas": 1, "maxReplicas": 8}
    problems = read_asked(thing(**{"elasticPolicy": policy, **spec}), slot=SLOT)
    assert not isinstance(problems, KubeflowSpec)
    assert any(field in str(problem) for problem in problems), [
        str(problem) for problem in problems
    ]


def test_amounts_of_init_containers_are_read_too() -> None:
    odd = thing()
    template = odd["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
    resources = {"limits": {"memory": "1GB"}}
    template["spec"]["initContainers"] = [{"name": "a", "image": "a:1", "resources": resources}]
    problems = read_asked(odd, slot=SLOT)
    assert not isinstance(problems, KubeflowSpec)
    assert "spec.initContainers[0].resources.limits.memory" in str(problems[0])


def test_dynamic_workers_are_elastic_and_servers_fixed() -> None:
    request = asked_of("tfjob.yaml")
    assert str(request.pods) == "2:4"
    assert request.firsts == (Rank("ps", 0), Rank("worker", 0))
    policy = {"schedulingPolicy": {"minAvailable": 3}}
    assert str(asked_of("tfjob.yaml", runPolicy=policy).pods) == "3:4"
    assert str(asked_of("tfjob.yaml", enableDynamicWorker=False).pods) == "4"


# Pods ---------------------------------------------------------------------------------------------


def test_guides_pod_has_kubeflows_names_labels_and_variables() -> None:
    pod = pod_for(asked_of(), Rank("worker", 0))
    assert pod["metadata"]["name"] == "elastic-example-imagenet-worker-0"
    labels = {
        name.removeprefix("training.kubeflow.org/"): value
        for name, value in pod["metadata"]["labels"].items()
        if name.startswith("training")
    }
    assert labels == {
        "operator-name": "pytorchjob-controller",
        "job-name": "elastic-example-imagenet",
        "replica-type": "worker",
        "replica-index": "0",
        "job-role": "master",
    }
    assert env_of(pod) == {
        "LOGLEVEL": "DEBUG",
        "PYTHONUNBUFFERED": "1",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "PET_NPROC_PER_NODE": "auto",
        "PET_RDZV_ENDPOINT": "elastic-example-imagenet-worker-0:23456",
        "PET_RDZV_BACKEND": "c10d",
        "PET_NNODES": "1:2",
        "PET_MAX_RESTARTS": "100",
    }
    spec = pod["spec"]
    assert spec["restartPolicy"] == "OnFailure"
    assert spec["containers"][0]["ports"] == [{"name": "pytorchjob-port", "containerPort": 23456}]
    assert "job-role" not in str(pod_for(asked_of(), Rank("worker", 1))["metadata"]["labels"])


def test_pod_requests_a_slot_despite_its_template() -> None:
    request = asked_of(
        pytorchReplicaSpecs={"Worker": replicas(2, resources={"requests": {"cpu": "250m"}})}
    )
    resources = pod_for(request, Rank("worker", 0))["spec"]["containers"][0]["resources"]
    assert resources["requests"] == {"cpu": "1", "memory": str(2 << 30), "nvidia.com/gpu": "1"}
    assert resources["limits"] == {"nvidia.com/gpu": "1"}


def test_pod_keeps_its_node_and_its_templates_affinity() -> None:
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    zone = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
    worker = replicas(2)
    worker["template"]["spec"]["affinity"] = {
        "nodeAffinity": {required: {"nodeSelectorTerms": [zone]}}
    }
    request = asked_of(pytorchReplicaSpecs={"Worker": worker})
    node = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
    affinity = pod_for(request, Rank("worker", 0))["spec"]["affinity"]
    assert affinity == {"nodeAffinity": {required: {"nodeSelectorTerms": [{**zone, **node}]}}}


def test_with_a_master_ranks_count_from_it() -> None:
    specs = {"Master": replicas(1), "Worker": replicas(2, "ExitCode")}
    request = asked_of(elasticPolicy=None, pytorchReplicaSpecs=specs, nprocPerNode="2")
    env = env_of(pod_for(request, Rank("worker", 1)))
    assert (env["RANK"], env["WORLD_SIZE"], env["PET_NNODES"]) == ("2", "6", "3")
    assert env["MASTER_ADDR"] == "elastic-example-imagenet-master-0"
    assert env_of(pod_for(request, Rank("master", 0)))["RANK"] == "0"
    assert pod_for(request, Rank("worker", 0))["spec"]["restartPolicy"] == "Never"


def test_owner_may_override_the_store_of_torch() -> None:
    own_variable = {"name": "TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "value": "0"}
    request = asked_of(pytorchReplicaSpecs={"Worker": replicas(2, env=[own_variable])})
    assert env_of(pod_for(request, Rank("worker", 0)))[own_variable["name"]] == "0"


def test_a_dynamic_worker_knows_itself_and_the_servers() -> None:
    config = json.loads(env_of(pod_for(asked_of("tfjob.yaml"), Rank("worker", 2)))["TF_CONFIG"])
    server = "dynamic-ps-0.team.svc:2222"
    cluster = {"ps": [server], "worker": {"2": "dynamic-worker-2.team.svc:2222"}}
    assert config == {"cluster": cluster, "task": {"type": "worker", "index": 2}}
    request = asked_of("tfjob.yaml", enableDynamicWorker=False)
    config = json.loads(env_of(pod_for(request, Rank("ps", 0)))["TF_CONFIG"])
    assert config["environment"] == "cloud"
    assert config["cluster"]["worker"] == [f"dynamic-worker-{k}.team.svc:2222" for k in range(3)]


@pytest.mark.parametrize("dynamic", [False, True])
def test_an_evaluator_is_not_of_the_cluster(dynamic: bool) -> None:
    spec = replicas(1, name="tensorflow")
    types = ("Chief", "PS", "Worker", "Evaluator")
    request = asked_of(
        "tfjob.yaml", tfReplicaSpecs=dict.fromkeys(types, spec), enableDynamicWorker=dynamic
    )
    assert str(request.pods) == "4"
    for rank in request.firsts:
        config = json.loads(env_of(pod_for(request, rank))["TF_CONFIG"])
        assert "evaluator" not in config["cluster"]
        assert config["task"] == {"type": rank.type, "index": 0}
    config = json.loads(env_of(pod_for(request, Rank("evaluator", 0)))["TF_CONFIG"])
    assert bool(config["cluster"]["ps"]) is not dynamic


PORT = 29511


def meets_at(kind: str, number: int) -> dict[str, Any]:
    return {"ports": [{"containerPort": 80}, {"name": f"{kind}-port", "containerPort": number}]}


def test_replicas_of_torch_meet_at_their_owners_port() -> None:
    specs = {
        "Master": replicas(1, **meets_at("pytorchjob", PORT)),
        "Worker": replicas(1, **meets_at("pytorchjob", PORT + 1)),
    }
    request = asked_of(elasticPolicy=None, pytorchReplicaSpecs=specs)
    for rank in request.firsts:
        env = env_of(pod_for(request, rank))
        assert (env["MASTER_PORT"], env["PET_MASTER_PORT"]) == (str(PORT), str(PORT))
    elastic = asked_of(pytorchReplicaSpecs={"Worker": specs["Worker"]})
    end = env_of(pod_for(elastic, Rank("worker", 0)))["PET_RDZV_ENDPOINT"]
    assert end == f"elastic-example-imagenet-worker-0:{PORT + 1}"
    policy = {"rdzvPort": 5, "rdzvHost": "store"}
    elastic = asked_of(pytorchReplicaSpecs={"Worker": specs["Worker"]}, elasticPolicy=policy)
    assert env_of(pod_for(elastic, Rank("worker", 0)))["PET_RDZV_ENDPOINT"] == "store:5"


def test_replicas_of_tensorflow_meet_at_their_owners_ports() -> None:
    specs = {
        "PS": replicas(1, name="tensorflow", **meets_at("tfjob", PORT)),
        "Worker": replicas(1, name="tensorflow"),
    }
    request = asked_of("tfjob.yaml", tfReplicaSpecs=specs, enableDynamicWorker=False)
    config = json.loads(env_of(pod_for(request, Rank("worker", 0)))["TF_CONFIG"])
    assert config["cluster"] == {
        "ps": [f"dynamic-ps-0.team.svc:{PORT}"],
        "worker": ["dynamic-worker-0.team.svc:2222"],
    }


def test_services_have_the_named_ports_of_their_pods() -> None:
    ports = [
        {"name": "metrics", "containerPort": 9100},
        {"name": "trace", "containerPort": 9100, "protocol": "UDP"},
        {"containerPort": 80},
    ]
    specs = {"Worker": replicas(2, **meets_at("pytorchjob", PORT))}
    specs["Worker"]["template"]["spec"]["containers"][0]["ports"] += ports
    start = KubeflowStart(
        request=asked_of(pytorchReplicaSpecs=specs), uid="uid 1", launch=1, slot=SLOT
    )
    assert service(start, Rank("worker", 0))["spec"]["ports"] == [
        {"name": "pytorchjob-port", "port": PORT},
        {"name": "metrics", "port": 9100},
        {"name": "trace", "port": 9100, "protocol": "UDP"},
    ]


def test_each_pod_has_a_service_of_its_name() -> None:
    request = asked_of()
    start = KubeflowStart(request=request, uid="uid 1", launch=1, slot=SLOT)
    found = service(start, Rank("worker", 1))
    assert found["metadata"]["name"] == "elastic-example-imagenet-worker-1"
    assert found["spec"]["clusterIP"] == "None"
    labels = pod_for(request, Rank("worker", 1))["metadata"]["labels"]
    assert found["spec"]["selector"].items() <= labels.items()


METRIC = {
    "type": "Resource",
    "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}},
}


def test_metrics_make_an_autoscaler_within_the_policys_bounds() -> None:
    policy = {"minReplicas": 1, "maxReplicas": 6, "metrics": [METRIC]}
    request = asked_of(elasticPolicy=policy)
    assert (str(request.pods), request.bounds) == ("1:2", WorkerRange(minimum=1, maximum=6))
    thing_made = autoscaler_of(request, "uid 1")
    assert thing_made is not None
    meta, spec = thing_made["metadata"], thing_made["spec"]
    assert (meta["name"], meta["namespace"]) == ("elastic-example-imagenet", "team")
    assert (meta["ownerReferences"][0]["uid"], meta["ownerReferences"][0]["controller"]) == (
        "uid 1",
        True,
    )
    assert spec == {
        "scaleTargetRef": {
            "apiVersion": "kubeflow.org/v1",
            "kind": "PyTorchJob",
            "name": "elastic-example-imagenet",
        },
        "minReplicas": 1,
        "maxReplicas": 6,
        "metrics": [METRIC],
    }
    assert env_of(pod_for(request, Rank("worker", 0)))["PET_NNODES"] == "1:6"
    existing = {**thing_made, "spec": spec | {"behavior": {}}}
    assert is_as_asked(existing, thing_made), "a server adds to it"
    wider = autoscaler_of(asked_of(elasticPolicy=policy | {"maxReplicas": 8}), "uid 1")
    second = autoscaler_of(request, "uid 2")
    assert wider is not None
    assert second is not None
    assert not is_as_asked(existing, wider)
    assert not is_as_asked(existing, second), "it is that of a job of the same name"


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"elasticPolicy": {"metrics": []}},
        {"elasticPolicy": {"metrics": [METRIC]}, "runPolicy": {"suspend": True}},
    ],
)
def test_unmeasured_or_suspended_job_has_no_autoscaler(
    spec: dict[str, Any],
) -> None:
    assert autoscaler_of(asked_of(**spec), "uid 1") is None


# Which pods ---------------------------------------------------------------------------------------

WIDE = {"minReplicas": 1, "maxReplicas": 8}


@pytest.mark.parametrize(
    ("present", "workers", "end", "make"),
    [
        ([], {"n1": 2}, [], ["0 on n1", "1 on n1"]),
        ([(0, "n1"), (1, "n2")], {"n1": 1}, [1], []),
        ([(0, "n1"), (1, "n1")], {"n1": 1, "n2": 1}, [1], []),
        # The first worker goes over, and another one has to give it its place.
        ([(0, "n1"), (1, "n2")], {"n2": 1}, [0, 1], []),
        ([(1, "n2")], {"n2": 2}, [], ["0 on n2"]),
        ([(0, "n1"), (2, "n1")], {"n1": 3}, [], ["1 on n1"]),
    ],
)
def test_the_lowest_numbers_stay(
    present: list[tuple[int, str]], workers: dict[str, int], end: list[int], make: list[str]
) -> None:
    request = asked_of(elasticPolicy=WIDE)
    pods = ranked((seen(request, number, node) for number, node in present), 1, "uid 1")
    todo = changes(request, pods, workers)
    assert sorted(pod.metadata.name[-1] for pod in todo.end) == [str(number) for number in end]
    assert [f"{new.rank.number} on {new.node}" for new in todo.make] == make


def test_leaving_pod_keeps_its_place_and_name() -> None:
    request = asked_of(elasticPolicy=WIDE)
    pods = [seen(request, 0, "n1", leaving=True), seen(request, 1, "n2")]
    assert changes(request, ranked(pods, 1, "uid 1"), {"n1": 1, "n2": 1}) == ((), ())
    assert changes(request, ranked(pods, 1, "uid 1"), {"n1": 1, "n2": 2}).make == (), "it is for 0"
    assert changes(request, ranked(pods[1:], 1, "uid 1"), {"n1": 2}, waits={"n1"}).make == ()


# How it ends --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "status", "outcome"),
    [
        ("OnFailure", ended(1), ""),
        ("Never", ended(1), "failed"),
        ("ExitCode", ended(1), "failed"),
        ("ExitCode", ended(143), ""),
        ("Never", ended(143, reason="Evicted"), ""),
        ("Never", ended(143, leaving=True), ""),
        ("Never", {"phase": "Succeeded"}, "done"),
        ("Never", {"phase": "Succeeded", "leaving": True}, ""),
    ],
)
def test_what_one_pod_makes_of_a_job(policy: str, status: dict[str, Any], outcome: str) -> None:
    request = asked_of(pytorchReplicaSpecs={"Worker": replicas(2, policy)})
    pods = ranked([seen(request, 0), seen(request, 1, **status)], 1, "uid 1")
    found = outcome_of(request, pods, failures=0, age=0.0)
    assert found.outcome == outcome
    if outcome == "failed":
        assert (
            found.explanation
            == "elastic-example-imagenet-worker-1: pytorch exited with 1: out of luck"
        )


def test_fixed_job_is_done_with_its_last_worker() -> None:
    request = asked_of(elasticPolicy=None)
    pods = [seen(request, 0, phase="Succeeded"), seen(request, 1)]
    assert not outcome_of(request, ranked(pods, 1, "uid 1"), failures=0, age=0.0).outcome
    pods[1] = seen(request, 1, phase="Succeeded")
    assert outcome_of(request, ranked(pods, 1, "uid 1"), failures=0, age=0.0).outcome == "done"


def test_deadline_and_failures_end_a_job() -> None:
    request = asked_of(runPolicy={"activeDeadlineSeconds": 60, "backoffLimit": 2})
    pods = ranked([seen(request, 0)], 1, "uid 1")
    assert not outcome_of(request, pods, failures=2, age=60.0).outcome
    assert outcome_of(request, pods, failures=2, age=61.0).reason == "DeadlineExceeded"
    assert outcome_of(request, pods, failures=3, age=0.0).reason == "BackoffLimitExceeded"


def test_restarts_and_bad_exits_count_as_failures() -> None:
    request = asked_of()
    state = {"name": "pytorch", "restartCount": 2, "state": {}}
    assert failures_of(seen(request, 0, containerStatuses=[state])) == 2
    assert failures_of(seen(request, 0, **ended(1))) == 1
    assert failures_of(seen(request, 0, **ended(143, reason="Evicted"))) == 0
    assert failures_of(seen(request, 0, phase="Succeeded")) == 0


# Its status ---------------------------------------------------------------------------------------


def conditions(status: dict[str, Any]) -> list[str]:
    return [f"{condition['type']} {condition['status']}" for condition in status["conditions"]]


def test_conditions_through_a_life() -> None:
    request = asked_of()
    job, pods = record_of(request), [seen(request, 0), seen(request, 1, phase="Pending")]
    status = status_of(job, request, [], before=None, now=NOW)
    assert conditions(status) == ["Created True"]
    job.life = Life(Phase.RUNNING)
    status = status_of(job, request, pods, before=status, now=NOW + 1)
    assert conditions(status) == ["Created True", "Running True"]
    assert status["conditions"][-1]["reason"] == "PyTorchJobRunning"
    assert status["replicaStatuses"]["Worker"]["active"] == 1
    assert status == status_of(job, request, pods, before=status, now=NOW + 9), "nothing is new"
    job.life = Life(Phase.SUSPENDED)
    status = status_of(
        job, request, [], before=status, now=NOW + 2, explanation="others come first"
    )
    assert conditions(status) == ["Created True", "Restarting True"]
    assert "others come first" in status["conditions"][-1]["message"]
    job.life = Life(Phase.SUSPENDED, Wish.HOLD)
    status = status_of(job, request, [], before=status, now=NOW + 3)
    assert conditions(status)[-1] == "Suspended True"
    assert "Restarting False" in conditions(status)
    job.life = Life(Phase.RUNNING)
    status = status_of(job, request, pods, before=status, now=NOW + 4)
    assert conditions(status)[-1] == "Running True"
    assert "Suspended False" in conditions(status)
    job.life, job.ended = Life(Phase.FAILED), NOW + 5
    job.problem, job.summary = "worker-0: pytorch exited with 1", {"reason": "DeadlineExceeded"}
    status = status_of(job, request, pods, before=status, now=NOW + 5)
    assert conditions(status)[-1] == "Failed True"
    assert status["conditions"][-1]["reason"] == "PyTorchJobDeadlineExceeded"
    assert "Running False" in conditions(status)
    assert status["completionTime"]


def test_pods_running_at_success_count_as_succeeded() -> None:
    request = asked_of()
    job, pods = record_of(request), [seen(request, 0, phase="Succeeded"), seen(request, 1)]
    job.life, job.ended = Life(Phase.DONE), NOW
    status = status_of(job, request, pods, before=None, now=NOW)
    assert status["replicaStatuses"]["Worker"]["succeeded"] == 2
    leaving = [pods[0], seen(request, 1, leaving=True)]
    for remaining in (leaving, []):
        assert status_of(job, request, remaining, before=status, now=NOW + 1) == status


def test_job_with_an_unreadable_object_keeps_its_counts() -> None:
    request = asked_of()
    job = replace(record_of(request), life=Life(Phase.RUNNING))
    status = status_of(job, request, [seen(request, 0)], before=None, now=NOW)
    current = status_of(job, None, [seen(request, 0)], before=status, now=NOW + 1)
    assert current["replicaStatuses"] == status["replicaStatuses"]
