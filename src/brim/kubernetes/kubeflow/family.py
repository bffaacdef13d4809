"""Kubeflow's kinds as a family that the operator and its installation can take in."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from brim.kubernetes.client.declared import Schema
from brim.kubernetes.kinds import OperatorContext, RoleRule
from brim.kubernetes.kubeflow.jobs import KubeflowJobs
from brim.kubernetes.kubeflow.request import KINDS, KUBEFLOW
from brim.kubernetes.kubeflow.schemas import kubeflow_crds

_READ = ("get", "list", "watch")
_PLURALS = tuple(kind.plural for kind in KINDS.values())


class KubeflowFamily:
    """PyTorchJobs, TFJobs and MPIJobs."""

    @property
    def words(self) -> Collection[str]:
        return KINDS.keys()

    @property
    def resources(self) -> Mapping[str, Sequence[str]]:
        return {KUBEFLOW: _PLURALS}

    @property
    def rights(self) -> Sequence[RoleRule]:
        return (
            # patch: the record of a job is an annotation of its object; delete: that has its time
            # to live.
            RoleRule(KUBEFLOW, _PLURALS, (*_READ, "patch", "delete")),
            RoleRule(KUBEFLOW, [f"{plural}/status" for plural in _PLURALS], ["patch"]),
            RoleRule(KUBEFLOW, [f"{plural}/finalizers" for plural in _PLURALS], ["update"]),
            RoleRule(
                "autoscaling",
                ["horizontalpodautoscalers"],
                (*_READ, "create", "patch", "delete"),
            ),
            RoleRule("", ["services"], ["get", "deletecollection"]),  # all of a job at once
            # For launchers of MPIJobs, which are told of their hosts, and given no right that the
            # operator lacks.
            RoleRule("", ["pods"], ["get", "patch"]),
            RoleRule("", ["pods/exec"], ["create"]),
            RoleRule("", ["configmaps"], ["create", "patch"]),
            RoleRule("", ["serviceaccounts"], ["get", "create", "patch"]),
            RoleRule(
                "rbac.authorization.k8s.io",
                ["roles", "rolebindings"],
                ["get", "create", "patch"],
            ),
        )

    def definitions(self) -> Mapping[str, Schema]:
        return kubeflow_crds()

    def objects(self, context: OperatorContext) -> KubeflowJobs:
        return KubeflowJobs(context)


FAMILY = KubeflowFamily()
