"""Kubeflow's kinds as CustomResourceDefinitions, for servers that have none of Kubeflow's own. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from brim.kubernetes.client.declared import OPEN, Schema
from brim.kubernetes.kubeflow.request import (
    AT_STARTUP,
    CLEAN_ALL,
    CLEAN_NOTHING,
    CLEAN_RUNNING,
    INTEL,
    KEYS_FIELD,
    KINDS,
    KUBEFLOW,
    MPI,
    MPICH,
    NEWER_MPI,
    ONCE_READY,
    OPEN_MPI,
    PYTORCH,
    RESTART_POLICIES,
    ROOT_KEYS,
    WORKER,
    KubeflowKind,
)
from brim.kubernetes.objects.schemas import column, crd_of

_COUNT: Schema = {"type": "integer", "format": "int32", "minimum": 0}
_TEXT: Schema = {"type": "string"}
_SWITCH: Schema = {"type": "boolean"}
_TIME: Schema = {"type": "string", "format": "date-time"}
_CLEAN: Schema = {"type": "string", "enum": [CLEAN_NOTHING, CLEAN_RUNNING, CLEAN_ALL]}


def _fields(**fields: Schema) -> Schema:
    return {"type": "object", "properties": fields}


def _run_policy() -> Schema:
    amount: Schema = {"x-kubernetes-int-or-string": True}
    return _fields(
        cleanPodPolicy=_CLEAN,
        ttlSecondsAfterFinished=_COUNT,
        activeDeadlineSeconds={**_COUNT, "format": "int64"},
        backoffLimit=_COUNT,
        suspend=_SWITCH,
        managedBy=_TEXT,
        schedulingPolicy=_fields(
            minAvailable=_COUNT,
            queue=_TEXT,
            minResources={"type": "object", "additionalProperties": amount},
            priorityClass=_TEXT,
            scheduleTimeoutSeconds=_COUNT,
        ),
    )


def _replicas(kind: KubeflowKind) -> Schema:
    replicas = _fields(
        replicas=_COUNT,
        restartPolicy={"type": "string", "enum": list(RESTART_POLICIES)},
        template={"type": "object", **OPEN},
    )
    # Types may be written in any letters: the operator checks them.
    maximum = len(kind.types)
    return {"type": "object", "maxProperties": maximum, "additionalProperties": replicas}


def _kind_fields(kind: KubeflowKind) -> Schema:
    """Return the fields that a kind alone has."""
    if kind.word == PYTORCH:
        pair = _fields(key=_TEXT, value=_TEXT)
        elastic = _fields(
            minReplicas=_COUNT,
            maxReplicas=_COUNT,
            rdzvBackend=_TEXT,
            rdzvPort=_COUNT,
            rdzvHost=_TEXT,
            rdzvId=_TEXT,
            rdzvConf={"type": "array", "items": pair},
            standalone=_SWITCH,
            nProcPerNode=_COUNT,
            maxRestarts=_COUNT,
            metrics={"type": "array", "items": {"type": "object", **OPEN}},
        )
        return {"nprocPerNode": _TEXT, "elasticPolicy": elastic}
    if kind.word == MPI:
        return {"cleanPodPolicy": _CLEAN, "mainContainer": _TEXT, **_mpi_fields(kind)}
    policy = {"type": "string", "enum": ["", "AllWorkers"]}
    return {"successPolicy": policy, "enableDynamicWorker": _SWITCH}


def _mpi_fields(kind: KubeflowKind) -> dict[str, Schema]:
    """Return the fields of a launcher, which the newer version fills in.

    Both versions have them, so that an object loses nothing where it is read as the other. What is
    filled in tells which one it is of.
    """
    fields: dict[str, tuple[Schema, object]] = {
        "slotsPerWorker": (_COUNT, 1),
        "runLauncherAsWorker": (_SWITCH, False),
        KEYS_FIELD: (_TEXT, ROOT_KEYS),
        "launcherCreationPolicy": ({**_TEXT, "enum": [AT_STARTUP, ONCE_READY]}, AT_STARTUP),
        "mpiImplementation": ({**_TEXT, "enum": [OPEN_MPI, INTEL, MPICH]}, OPEN_MPI),
    }
    return {
        name: {**schema, "default": usual} if kind.reached_by_ssh else schema
        for name, (schema, usual) in fields.items()
    }


def _status() -> Schema:
    condition = _fields(
        type=_TEXT,
        status=_TEXT,
        reason=_TEXT,
        message=_TEXT,
        lastUpdateTime=_TIME,
        lastTransitionTime=_TIME,
    )
    replicas = _fields(active=_COUNT, succeeded=_COUNT, failed=_COUNT, selector=_TEXT)
    return _fields(
        conditions={"type": "array", "items": {**condition, "required": ["type", "status"]}},
        replicaStatuses={"type": "object", "additionalProperties": replicas},
        startTime=_TIME,
        completionTime=_TIME,
        lastReconcileTime=_TIME,
    )


def _schema(kind: KubeflowKind) -> Schema:
    # Kubeflow's SDK reads no object without a run policy.
    policy = {**_run_policy(), "default": {}}
    spec = _fields(**_kind_fields(kind), **{kind.specs: _replicas(kind)}, runPolicy=policy)
    return _fields(spec={**spec, "required": [kind.specs]}, status=_status())


def _crd(kind: KubeflowKind) -> Schema:
    """Return the definition of a kind: as Kubeflow's own operator has it, without its defaults."""
    scale = {
        "specReplicasPath": f".spec.{kind.specs}.{WORKER}.replicas",
        "statusReplicasPath": f".status.replicaStatuses.{WORKER}.active",
        "labelSelectorPath": f".status.replicaStatuses.{WORKER}.selector",
    }
    return crd_of(
        group=KUBEFLOW,
        version=kind.version,
        others={NEWER_MPI.version: _schema(NEWER_MPI)} if kind.word == MPI else {},
        kind=kind.name,
        plural=kind.plural,
        schema=_schema(kind),
        columns=[
            column("State", ".status.conditions[-1:].type"),
            column("Age", ".metadata.creationTimestamp", type="date"),
        ],
        scale=scale if kind.word == PYTORCH else None,
    )


def kubeflow_crds() -> Mapping[str, Schema]:
    """All definitions, by the name of the file in which each is kept."""
    return {f"kubeflow-{kind.plural}.yaml": _crd(kind) for kind in KINDS.values()}
