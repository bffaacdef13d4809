"""The kinds of objects that brim adds to Kubernetes, as CustomResourceDefinitions. Pure.

The options of jobs in them are those of `brim.domain.job.OPTIONS`. `crds/` has them as files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from brim.domain.job import OPTIONS
from brim.domain.options import Option
from brim.kubernetes.client.declared import RULES, Schema, matching, rule, schema_of
from brim.kubernetes.client.reading import LONGEST_TEXT
from brim.kubernetes.client.times import NO_TIME
from brim.kubernetes.objects.elastic_jobs import FIELDS, JOB_NAME, JOBS
from brim.kubernetes.objects.fields import (
    LONGEST_NAME,
    PLAIN_FIELDS,
    WORKERS,
    in_the_objects_text,
    needed,
)
from brim.kubernetes.objects.identities import GROUP, KIND, MASTER, VERSION, WORKER
from brim.kubernetes.objects.job_spec import ElasticJobSpec
from brim.kubernetes.objects.status import JobStatus
from brim.kubernetes.objects.templates import PodTemplate, PodTemplates
from brim.kubernetes.objects.tenants import TENANT_KIND, TENANTS, TenantSpec

MAY_CHANGE = frozenset({WORKERS, "suspend", "template", "masterTemplate", "priorityClassName"})
_LARGEST_BOUND = 2**53  # servers read bounds as floating-point numbers; int64 has its own


def job_crd() -> Schema:
    """The definition of ElasticJob."""
    return crd_of(
        kind=KIND,
        plural=JOBS,
        names={"shortNames": ["ej"], "categories": ["all"]},
        schema={
            "type": "object",
            "description": "A training job whose number of workers follows the cluster.",
            "properties": {
                "spec": _job_spec(),
                "status": schema_of(JobStatus) | {"default": {"conditions": [dict(UNSEEN)]}},
            },
            "required": ["spec"],
            RULES: [
                rule(
                    f"self.metadata.name.matches('^{JOB_NAME}$')",
                    f"metadata.name: need 1 to {LONGEST_NAME} letters a to z, digits and '-', the "
                    "first a letter, the last no '-': pods are named after it",
                )
            ],
        },
        columns=[
            column("State", ".status.phase"),
            column("Workers", ".status.workers.summary"),
            column("Progress", ".status.progress"),
            column("Deadline", ".status.deadline"),
            column("Promised", ".status.promised"),
            column("Age", ".metadata.creationTimestamp", type="date"),
            column("Tenant", ".spec.tenant", wide=True),
            column("End", ".status.estimatedEnd", wide=True),
            column("Reason", ".status.reason", wide=True),
        ],
        # The most workers, and not how many there are: between the fewest and the most the scheduler
        # decides. So `kubectl scale` and autoscalers say how far a job may grow, as `brim resize` does.
        scale={
            "specReplicasPath": f".spec.{WORKERS}.max",
            "statusReplicasPath": ".status.workers.ready",
            "labelSelectorPath": ".status.workers.selector",
        },
    )


def tenant_crd() -> Schema:
    """The definition of Tenant."""
    return crd_of(
        kind=TENANT_KIND,
        plural=TENANTS,
        scope="Cluster",
        schema={
            "type": "object",
            "description": "An owner of devices, and the namespaces whose jobs may use them.",
            "properties": {"spec": _tenant_spec()},
            "required": ["spec"],
        },
        columns=[
            column("Cohort", ".spec.cohort"),
            column("Guaranteed", ".spec.guaranteed", type="integer"),
            column("Limit", ".spec.limit", type="integer"),
            column("Weight", ".spec.weight", type="number"),
            column("Age", ".metadata.creationTimestamp", type="date"),
        ],
    )


def crds() -> Mapping[str, Schema]:
    """All definitions, by the name of the file in which each is kept."""
    return {f"{JOBS}.yaml": job_crd(), f"{TENANTS}.yaml": tenant_crd()}


def in_yaml(thing: Mapping[str, Any]) -> str:
    """Return an object as YAML, in the order in which it was made."""
    import yaml

    class Plain(yaml.SafeDumper):  # type: ignore[misc]  # yaml has no types
        def ignore_aliases(self, data: object) -> bool:
            return True

    text: str = yaml.dump(thing, Dumper=Plain, sort_keys=False, width=100, allow_unicode=True)
    return text


# The spec of a job --------------------------------------------------------------------------------


def _job_spec() -> Schema:
    pods = schema_of(PodTemplates)["properties"]
    options = {name: _option(OPTIONS[option]) for name, option in PLAIN_FIELDS.items()}
    schema = schema_of(ElasticJobSpec, **pods, **options)
    schema["properties"]["template"] = _template("Pods of workers", WORKER)
    schema["properties"]["masterTemplate"] = _template("The pod of the master", MASTER)
    assert schema["properties"].keys() == FIELDS
    rules = [
        rule("has(self.file) != has(self.command)", "need either file or command", at=".file"),
        rule(
            "!(has(self.deadline) && has(self.deadlineIn))",
            "need either deadline or deadlineIn",
            at=".deadline",
        ),
        *_unchanged(name for name in sorted(FIELDS) if name not in MAY_CHANGE),
    ]
    return schema | {RULES: rules}


def _unchanged(names: Iterable[str]) -> list[Schema]:
    """Rules by which fields stay as they were: a run has one spec from its beginning to its end.

    The rule stands above the field, which would have none for one that is added or removed.
    """
    return [
        rule(
            f"has(self.{name}) == has(oldSelf.{name}) && "
            f"(!has(self.{name}) || self.{name} == oldSelf.{name})",
            "cannot be changed: make another job",
            at=f".{name}",
            reason="FieldValueForbidden",
        )
        for name in names
    ]


def _option(option: Option) -> Schema:
    """Return the schema of an option of a job."""
    kind = option.kind
    schema: Schema = {"description": in_the_objects_text(option.help)}
    if bool in kind.written_as:
        schema["type"] = "boolean"
    elif int in kind.written_as and str in kind.written_as:
        schema |= {"x-kubernetes-int-or-string": True, "maxLength": LONGEST_TEXT}
        texts = f"self.matches('^({kind.pattern})$')"
        numbers = f"self >= {kind.minimum} && self <= {kind.maximum}"
        schema[RULES] = [rule(f"type(self) == int ? {numbers} : {texts}", f"need {needed(kind)}")]
    elif int in kind.written_as:
        schema |= {"type": "integer", "format": "int64", "minimum": kind.minimum}
        if kind.maximum is not None and kind.maximum < _LARGEST_BOUND:
            schema["maximum"] = kind.maximum
    elif float in kind.written_as:
        schema |= {"type": "number", "minimum": kind.exclusive_minimum, "exclusiveMinimum": True}
    elif kind.words:
        schema |= {"type": "string", "enum": list(kind.words)}
    else:
        schema |= {"type": "string", "maxLength": LONGEST_TEXT}
        if kind.pattern:
            schema[RULES] = [matching(kind.pattern, needed(kind))]
    if option.default not in (None, ""):
        is_number = int in kind.written_as and str(option.default).isdigit()
        schema["default"] = int(option.default) if is_number else option.default
    return schema


def _template(pods: str, container: str) -> Schema:
    schema = schema_of(PodTemplate)
    schema["description"] = (
        f"{pods}, as a PodTemplateSpec with a container {container!r}. What the operator needs of a pod "
        "is added to it. A change is for pods that are made from then on."
    )
    schema["properties"]["spec"]["properties"]["containers"][RULES] = [
        rule(f"self.exists(each, each.name == '{container}')", f"need a container {container!r}")
    ]
    return schema


# The status of a job ------------------------------------------------------------------------------


# As long as no operator has said anything, others are told that there is none.
UNSEEN: Schema = {
    "type": "Reconciling",
    "status": "True",
    "reason": "Pending",
    "message": "no operator of brim has seen this job yet",
    "lastTransitionTime": NO_TIME,
}


# Tenants ------------------------------------------------------------------------------------------


def _tenant_spec() -> Schema:
    return schema_of(TenantSpec) | {
        RULES: [
            rule(
                "self.exclusive <= self.guaranteed", "need exclusive <= guaranteed", at=".exclusive"
            ),
            rule(
                "!has(self.limit) || self.guaranteed <= self.limit",
                "need guaranteed <= limit",
                at=".limit",
            ),
        ]
    }


# Parts of schemas ---------------------------------------------------------------------------------


def column(title: str, path: str, *, type: str = "string", wide: bool = False) -> Schema:
    schema: Schema = {"name": title, "type": type, "jsonPath": path}
    return schema | {"priority": 1} if wide else schema


def crd_of(
    *,
    group: str = GROUP,
    version: str = VERSION,
    kind: str,
    plural: str,
    scope: str = "Namespaced",
    names: Mapping[str, Any] = MappingProxyType({}),
    schema: Schema,
    others: Mapping[str, Schema] = MappingProxyType({}),
    columns: list[Schema],
    scale: Schema | None = None,
) -> Schema:
    """Return the definition of a kind of objects.

    Args:
        names: beside the usual ones.
        schema: of the objects, but for the fields of all kinds.
        others: as `schema`, of further versions, by their names. Objects are kept in the first.
        scale: of the subresource; None: there is none.
    """
    common = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}}
    common |= {"metadata": {"type": "object"}}
    subresources: Schema = ({"status": {}} if "status" in schema["properties"] else {}) | (
        {"scale": scale} if scale else {}
    )
    versions: list[Schema] = [
        {
            "name": name,
            "served": True,
            "storage": name == version,
            "additionalPrinterColumns": columns,
            "subresources": subresources,
            "schema": {"openAPIV3Schema": fields | {"properties": common | fields["properties"]}},
        }
        for name, fields in {version: schema, **others}.items()
    ]
    usual = {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": scope,
            "names": {**usual, **names},
            "versions": versions,
        },
    }
