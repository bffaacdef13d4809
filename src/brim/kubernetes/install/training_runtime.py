"""The runtime by which a TrainJob of Kubeflow Trainer trains with brim: `brim pod` in each node. Pure.

The trainer makes a JobSet of it, whose Job has a pod for each node. A pod that fails is replaced
under the same name. The first one leads, and with its end the Job is complete: a pod that died
just before is waited for by nobody.

Source: `trainer.kubeflow.org/v1alpha1`, and Kubernetes' `batch/v1`.
"""

from __future__ import annotations

from typing import Any

from brim.host.process import run_module

Manifest = dict[str, Any]

GROUP, VERSION = "trainer.kubeflow.org", "v1alpha1"
CLUSTER_KIND, KIND = "ClusterTrainingRuntime", "TrainingRuntime"
NAME = "brim"
SECRET, SECRET_KEY = "brim", "token"  # of each namespace with TrainJobs, made by its owner
CONTAINER = "node"  # by this name, and the job's, the trainer knows which is whose
RUNS = "/tmp/brim"  # a volume may be mounted there
PORT = 4000
TERMINATION_LOG = "/dev/termination-log"
USUAL_PROBLEMS = (1, 2)  # statuses of `brim pod` that no other pod would end without
_TO_END = 60  # seconds from SIGTERM on: workers leave at a step boundary
_MOST_FAILURES = 1000  # of a node: preemptions and lost machines are among them


def training_runtime(*, image: str, namespace: str = "") -> Manifest:
    """Return the runtime of all namespaces, or of one.

    Args:
        image: of the pods, unless a TrainJob names another: has brim with its extra `train`.
        namespace: empty: all may refer to it.
    """
    place = {"namespace": namespace} if namespace else {}
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND if namespace else CLUSTER_KIND,
        # Without this label Kubeflow's SDK does not list it.
        "metadata": {"name": NAME, **place, "labels": {f"{GROUP}/framework": "torch"}},
        "spec": {
            # By this policy pods are told of their number, and of the first one's name.
            "mlPolicy": {"numNodes": 1, "torch": {}},
            "template": {"spec": {"replicatedJobs": [_job(image)]}},
        },
    }


def _job(image: str) -> Manifest:
    on_exit = {"containerName": CONTAINER, "operator": "In", "values": list(USUAL_PROBLEMS)}
    pod = {
        "restartPolicy": "Never",
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": _TO_END,
        "containers": [_container(image)],
    }
    return {
        "name": CONTAINER,
        "template": {
            "metadata": {"labels": {f"{GROUP}/trainjob-ancestor-step": "trainer"}},
            "spec": {
                "completionMode": "Indexed",
                "backoffLimitPerIndex": _MOST_FAILURES,
                "podFailurePolicy": {"rules": [{"action": "FailJob", "onExitCodes": on_exit}]},
                "podReplacementPolicy": "Failed",  # never two of one name
                "successPolicy": {"rules": [{"succeededIndexes": "0"}]},
                "template": {"spec": pod},
            },
        },
    }


def _container(image: str) -> Manifest:
    command = run_module("brim", "pod", python="python3")
    command += ["--index", "$(JOB_COMPLETION_INDEX)", "--pods", "$(PET_NNODES)"]
    command += ["--workers-per-pod", "$(PET_NPROC_PER_NODE)"]
    command += ["--first", f"$(PET_MASTER_ADDR):{PORT}", "--failures", "$(POD_FAILURES)"]
    command += ["--run-dir", f"{RUNS}/$(JOBSET_UID)", "--summary-file", TERMINATION_LOG]
    secret = {"secretKeyRef": {"name": SECRET, "key": SECRET_KEY}}
    return {
        "name": CONTAINER,
        "image": image,
        "command": command,
        "env": [
            {"name": "RUN_SECRET", "valueFrom": secret},
            _of_pod("JOB_UID", "metadata.labels['batch.kubernetes.io/controller-uid']"),
            # Another for each TrainJob, and for each of its restarts.
            {"name": "BRIM_TOKEN", "value": "$(RUN_SECRET).$(JOB_UID)"},
            _of_pod("JOBSET_UID", "metadata.labels['jobset.sigs.k8s.io/jobset-uid']"),
            _of_pod(
                "POD_FAILURES",
                "metadata.annotations['batch.kubernetes.io/job-index-failure-count']",
            ),
            _of_pod("BRIM_MACHINE", "spec.nodeName"),
        ],
        "ports": [{"name": "master", "containerPort": PORT}],
    }


def _of_pod(name: str, path: str) -> Manifest:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
