"""The objects that install an operator: its rights, and the Deployment that keeps it up. Pure.

Rights are the fewest with which it works. What it makes in the namespaces of jobs, it makes and
deletes; Secrets of jobs it never reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from brim.domain.quantities import counted
from brim.errors import SpecError
from brim.host.process import run_module
from brim.kubernetes.kinds import foreign_families
from brim.kubernetes.objects.elastic_jobs import JOBS
from brim.kubernetes.objects.identities import GROUP, MANAGED_BY, SERVICE
from brim.kubernetes.objects.scaled_services import (
    APPS,
    AUTOSCALING,
    SCALED_KINDS,
)
from brim.kubernetes.objects.schemas import crds
from brim.kubernetes.objects.tenants import TENANTS
from brim.kubernetes.pods.evictions import LIFECYCLE
from brim.kubernetes.pods.gangs import KUBERNETES, VOLCANO
from brim.kubernetes.pods.placeholders import priority_class

Manifest = dict[str, Any]

NAME = "brim-operator"  # the name of all that is its own
MEMORY = f"{NAME}-memory"  # the ConfigMap of what a cycle leaves to the next
LOADS = f"{NAME}-loads"  # the ConfigMap of what services' loads were
STATE = "/var/lib/brim"
_TEMPORARY = "/tmp"
_USER = 1000  # no image has to name one
_READ = ["get", "list", "watch"]
_NAMESPACE = "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_IMAGE = "[A-Za-z0-9][^\\s\\x00-\\x1f]{0,511}"
_PORT = 8080  # for probes and metrics
# Namespaces whose pods may read metrics, as the scaffolds of operators have it.
_MEASURES = {"metrics": "enabled"}
_LABELS = {"app.kubernetes.io/name": NAME, MANAGED_BY: "brim-install"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """The choices for an operator's installation.

    Args:
        image: of the operator: has brim with its extra `cluster`.
        job_image: of jobs that name none; empty: the operator's.
        slot: resources of a worker.
        namespace: of the operator.
        of: the one namespace whose jobs it runs; empty: those of all. It sees nodes and pods of the
            whole cluster in any case, since others' pods take devices.
        foreign_kinds: it runs the jobs of kinds that others have defined, too: see `kinds`.
        gangs: jobs may ask for gangs.
        evictions: it answers evictions of jobs' pods.
        placeholders: jobs that wait for places and have placeholders, at most.
        service_urls: how the URLs of services' loads may begin; none: it scales no service.
        arguments: of `brim operator`, beside those that follow from the above.
        replicas: one of them decides; the others wait to take over.
        resources: of each, as a container has them.
    """

    image: str
    job_image: str = ""
    slot: Mapping[str, str | int | float] = field(
        default_factory=lambda: {"cpu": 1, "memory": "2Gi"}
    )
    namespace: str = "brim-system"
    of: str = ""
    foreign_kinds: bool = False
    gangs: bool = False
    evictions: bool = False
    placeholders: int = 0
    service_urls: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    replicas: int = 1
    resources: Mapping[str, Any] = field(
        default_factory=lambda: {
            "requests": {"cpu": "250m", "memory": "512Mi"},
            "limits": {"memory": "2Gi"},
        }
    )

    def __post_init__(self) -> None:
        if not self.image or self.replicas < 1:
            actual = f"image {self.image!r}, {counted(self.replicas, 'replica')}"
            raise SpecError("installation", got=actual, need="an image, and at least one replica")
        for option, name in (("--namespace", self.namespace), ("--watch", self.of)):
            if not re.fullmatch(_NAMESPACE, name) and (name or option == "--namespace"):
                need = "a namespace: 1 to 63 letters a to z, digits and '-', no '-' at either end"
                raise SpecError(option, got=repr(name), need=need, hint=f"{option} brim-system")
        for option, image in (("--image", self.image), ("--job-image", self.job_image)):
            if image and not re.fullmatch(_IMAGE, image):
                need = "the name of an image, as a pod has it"
                raise SpecError(option, got=repr(image), need=need, hint=f"{option} images/brim:1")
        if self.of == self.namespace:
            raise SpecError(
                "--watch",
                got=f"{self.of}, the operator's own namespace",
                need="another one: a pod of a job there could have the operator's key and rights",
                hint=f"--namespace brim-system --watch {self.of}",
            )


def manifests(chosen: Installation) -> list[Manifest]:
    """Return all objects of an installation, in the order in which a server can take them."""
    return [
        _namespace(chosen),
        *crds().values(),
        *(foreign_definitions() if chosen.foreign_kinds else ()),
        *roles_of_people(foreign_kinds=chosen.foreign_kinds),
        _object("v1", "ServiceAccount", chosen.namespace) | {"automountServiceAccountToken": False},
        *_rights(chosen),
        _callers(chosen),
        *([_labelled(priority_class())] if chosen.placeholders else ()),
        deployment(chosen),
    ]


def _namespace(chosen: Installation) -> Manifest:
    thing = _object("v1", "Namespace", "", name=chosen.namespace)
    for mode in ("enforce", "audit", "warn"):
        thing["metadata"]["labels"][f"pod-security.kubernetes.io/{mode}"] = "restricted"
    return thing


def foreign_definitions() -> list[Manifest]:
    """Return the definitions of foreign kinds that stand for their makers' where those are absent.

    Their labels say whose they are.
    """
    definitions = (family.definitions().values() for family in foreign_families())
    return [_labelled(definition) for of_family in definitions for definition in of_family]


# Rights -------------------------------------------------------------------------------------------


def _rights(chosen: Installation) -> Iterator[Manifest]:
    """The operator's: to see the cluster, to run jobs in its namespaces, to keep its own."""
    seen = [
        _rule("", ["nodes", "pods"], ["list", "watch"]),
        _rule(GROUP, [TENANTS], ["list", "watch"]),
    ]
    jobs = [
        _rule(GROUP, [JOBS], ["list", "watch"]),
        _rule(GROUP, [f"{JOBS}/status"], ["patch"]),
        # An owner that is to be deleted behind what it owns is changed, to those who check that.
        _rule(GROUP, [f"{JOBS}/finalizers"], ["update"]),
        _rule("", ["pods"], ["create", "delete"]),
        _rule("", ["secrets"], ["create", "delete"]),
        _rule("", ["configmaps"], ["get"]),  # the code that people put there
        # get: an object of that name may be there, and be somebody else's.
        _rule("", ["persistentvolumeclaims"], ["get", "create"]),
        _rule("networking.k8s.io", ["networkpolicies"], ["get", "create"]),
        _rule("", ["services"], ["create"]),
        _rule("", ["services"], ["get", "list", "delete"], [SERVICE]),
        *(_for_foreign_kinds() if chosen.foreign_kinds else ()),
        *(_for_gangs() if chosen.gangs else ()),
        *(_for_evictions() if chosen.evictions else ()),
        *(_for_services() if chosen.service_urls else ()),
    ]
    own_rules = [
        _rule("coordination.k8s.io", ["leases"], ["create"]),
        _rule("coordination.k8s.io", ["leases"], ["get", "update"], [NAME]),
        _rule("", ["configmaps", "secrets"], ["create"]),
        _rule("", ["configmaps"], ["get", "patch"], [MEMORY]),
        _rule("", ["secrets"], ["get"], [NAME]),
        *([_rule("", ["configmaps"], ["get", "patch"], [LOADS])] if chosen.service_urls else ()),
    ]
    # Names of what has no namespace are the whole cluster's: several operators may be there.
    name = f"{NAME}-{chosen.namespace}"
    if chosen.of:
        yield from _granted(chosen, seen, name=name)
        yield from _granted(chosen, jobs, name=name, namespace=chosen.of)
    else:
        yield from _granted(chosen, [*seen, *jobs], name=name)
    yield from _granted(chosen, own_rules, name=NAME, namespace=chosen.namespace)


def _for_foreign_kinds() -> list[Manifest]:
    """The operator's rights for jobs of foreign kinds, beside those that all jobs take."""
    return [_rule(*right) for family in foreign_families() for right in family.rights]


def _for_gangs() -> list[Manifest]:
    """The operator's rights for jobs whose workers are gangs."""
    return [_rule(api, ["podgroups"], ["get", "create", "patch"]) for api in (KUBERNETES, VOLCANO)]


def _for_evictions() -> list[Manifest]:
    """The operator's rights to answer evictions of jobs' pods."""
    return [
        _rule(LIFECYCLE, ["evictions"], ["list", "watch"]),
        _rule(LIFECYCLE, ["evictions/status"], ["patch"]),
    ]


def _for_services() -> list[Manifest]:
    """The operator's rights to scale services: their scale alone, and words about them."""
    scales = [f"{plural}/scale" for plural in SCALED_KINDS]
    return [
        _rule(APPS, [*SCALED_KINDS], ["list", "watch"]),
        _rule(APPS, scales, ["patch"]),
        _rule(AUTOSCALING, ["horizontalpodautoscalers"], ["list", "watch"]),
        _rule("", ["events"], ["create", "patch"]),
    ]


def _granted(
    chosen: Installation, rules: Sequence[Manifest], *, name: str, namespace: str = ""
) -> Iterator[Manifest]:
    """Rules that the operator's account has: in one namespace, or everywhere."""
    group, kind = "rbac.authorization.k8s.io", "Role" if namespace else "ClusterRole"
    version = f"{group}/v1"
    yield _object(version, kind, namespace, name=name) | {"rules": list(rules)}
    yield _object(version, f"{kind}Binding", namespace, name=name) | {
        "roleRef": {"apiGroup": group, "kind": kind, "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": chosen.namespace}],
    }


def roles_of_people(*, foreign_kinds: bool = False) -> list[Manifest]:
    """Rights on jobs that come with the roles `view`, `edit` and `admin` of a namespace.

    Nobody's are those on the status: who writes that says what a job was promised.

    Args:
        foreign_kinds: on jobs of these, too.
    """
    write = ["create", "update", "patch", "delete", "deletecollection"]
    groups: dict[str, Sequence[str]] = {GROUP: [JOBS]}
    for family in foreign_families() if foreign_kinds else ():
        groups |= family.resources
    changed: list[Manifest] = []
    seen: list[Manifest] = []
    for group, plurals in groups.items():
        scales = [f"{plural}/scale" for plural in plurals]
        statuses = [f"{plural}/status" for plural in plurals]
        changed += [_rule(group, plurals, [*_READ, *write])]
        changed += [_rule(group, scales, ["get", "update", "patch"])]
        seen += [_rule(group, [*plurals, *statuses, *scales], _READ)]
    roles = []
    for name, rules in (("edit", changed), ("view", seen)):
        role = _object("rbac.authorization.k8s.io/v1", "ClusterRole", "", name=f"brim-jobs-{name}")
        for aggregate_role in ("edit", "admin") if name == "edit" else ("view",):
            label = f"rbac.authorization.k8s.io/aggregate-to-{aggregate_role}"
            role["metadata"]["labels"][label] = "true"
        roles.append(role | {"rules": rules})
    return roles


def _rule(
    group: str, resources: Sequence[str], verbs: Sequence[str], names: Sequence[str] = ()
) -> Manifest:
    rule: Manifest = {"apiGroups": [group], "resources": list(resources), "verbs": list(verbs)}
    return rule | {"resourceNames": list(names)} if names else rule


def _callers(chosen: Installation) -> Manifest:
    """The operator calls the masters of jobs; metrics collectors may call its port.

    Kubelets may call pods of their own nodes under any policy.
    """
    return _object("networking.k8s.io/v1", "NetworkPolicy", chosen.namespace) | {
        "spec": {
            "podSelector": {"matchLabels": {"app.kubernetes.io/name": NAME}},
            "policyTypes": ["Ingress"],
            "ingress": [
                {
                    "from": [{"namespaceSelector": {"matchLabels": _MEASURES}}],
                    "ports": [{"protocol": "TCP", "port": _PORT}],
                }
            ],
        }
    }


# The operator -------------------------------------------------------------------------------------


def deployment(chosen: Installation) -> Manifest:
    """Return the Deployment that keeps the operator up.

    Its volumes may be lost: all that counts is in objects.
    """
    names = {"app.kubernetes.io/name": NAME}
    command = run_module("brim", "operator", "--state", STATE, python="python3")
    command += ["--namespace", chosen.namespace, "--identity", "$(POD_NAME)"]
    command += ["--listen", f"0.0.0.0:{_PORT}"]
    command += ["--image", chosen.job_image or chosen.image]
    command += [f"--slot={resource}={amount}" for resource, amount in chosen.slot.items()]
    command += ["--watch", chosen.of] if chosen.of else []
    command += ["--kubeflow"] if chosen.foreign_kinds else []
    command += ["--gangs"] if chosen.gangs else []
    command += ["--evictions"] if chosen.evictions else []
    command += [f"--placeholders={chosen.placeholders}"] if chosen.placeholders else []
    command += [f"--service-url={url}" for url in chosen.service_urls]
    # With the version that a server adds: who applies this by another manager changes nothing then.
    pod_name = {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}
    container = {
        "name": "operator",
        "image": chosen.image,
        "command": command,
        **({"args": list(chosen.arguments)} if chosen.arguments else {}),
        "env": [
            {"name": "HOME", "value": _TEMPORARY},
            {"name": "POD_NAME", "valueFrom": pod_name},
        ],
        "ports": [{"name": "http", "containerPort": _PORT}],
        # Generous: what is slow on a busy node is not started again for that.
        "startupProbe": _probe("/healthz", period=5, failures=60),
        "livenessProbe": _probe("/healthz", period=30, failures=4),
        "readinessProbe": _probe("/readyz", period=5, failures=3),
        "resources": dict(chosen.resources),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "state", "mountPath": STATE},
            {"name": "tmp", "mountPath": _TEMPORARY},
        ],
    }
    pod = {
        "serviceAccountName": NAME,
        "automountServiceAccountToken": True,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 30,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "fsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [{"name": "state", "emptyDir": {}}, {"name": "tmp", "emptyDir": {}}],
    }
    return _object("apps/v1", "Deployment", chosen.namespace) | {
        "spec": {
            "replicas": chosen.replicas,
            "selector": {"matchLabels": names},
            "template": {"metadata": {"labels": dict(_LABELS)}, "spec": pod},
        }
    }


def _probe(path: str, *, period: int, failures: int) -> Manifest:
    """Return a probe that fails once so many answers in turn were bad, or took longer than 20 s."""
    return {
        "httpGet": {"path": path, "port": "http"},
        "periodSeconds": period,
        "timeoutSeconds": 20,
        "failureThreshold": failures,
    }


def _labelled(thing: Manifest) -> Manifest:
    return {**thing, "metadata": {**thing["metadata"], "labels": dict(_LABELS)}}


def _object(version: str, kind: str, namespace: str, *, name: str = NAME) -> Manifest:
    meta: Manifest = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": version, "kind": kind, "metadata": meta | {"labels": dict(_LABELS)}}
