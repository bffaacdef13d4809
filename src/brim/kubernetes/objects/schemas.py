"""The kinds of objects that brim adds to Kubernetes, as CustomResourceDefinitions. Pure.

The options of jobs in them are those of `brim.domain.job.OPTIONS`. `crds/` has what is made here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from brim.domain.job import OPTIONS
from brim.domain.options import LARGEST_COUNT, Option
from brim.domain.quantities import DURATION_PATTERN
from brim.kubernetes.client.reading import LONGEST_TEXT, MOST_PAIRS, MOST_WORDS, NAME
from brim.kubernetes.client.times import NO_TIME
from brim.kubernetes.objects.elastic_jobs import (
    CODE_KEY,
    DIGEST,
    FIELDS,
    JOB_NAME,
    JOBS,
    PRIORITIES,
)
from brim.kubernetes.objects.failed_pods import LONGEST_LINES, MOST_FAILED
from brim.kubernetes.objects.fields import (
    ENV,
    LONGEST_NAME,
    PARAMETERS,
    PLAIN_FIELDS,
    WORKERS,
    in_the_objects_text,
    needed,
)
from brim.kubernetes.objects.identities import GROUP, KIND, MASTER, VERSION, WORKER
from brim.kubernetes.objects.record_text import LARGEST
from brim.kubernetes.objects.status import LONGEST_LINE, LONGEST_MESSAGE, MOST_LINES, STATES
from brim.kubernetes.objects.templates import (
    CONTAINER_LISTS,
    MODES,
    MOST_CONTAINERS,
    MOST_PARTS,
    MOST_PROCESSES,
    POD_LISTS,
    POD_OBJECTS,
    PROCESSES,
    QUANTITY,
)
from brim.kubernetes.objects.tenants import (
    EVERY_NAMESPACE,
    MOST_NAMESPACES,
    NAMESPACE,
    TENANT_KIND,
    TENANTS,
)

Schema = dict[str, Any]

MAY_CHANGE = frozenset({WORKERS, "suspend", "template", "masterTemplate", "priorityClassName"})
_NAME = 253  # characters of the name of an object of Kubernetes
_LABEL = 63
_LARGEST_BOUND = 2**53  # servers read bounds as floating-point numbers; int64 has its own
_RULES = "x-kubernetes-validations"


def job_crd() -> Schema:
    """The definition of ElasticJob."""
    return _crd(
        kind=KIND,
        plural=JOBS,
        scope="Namespaced",
        short=["ej"],
        categories=["all"],
        description="A training job whose number of workers follows the cluster.",
        spec=_job_spec(),
        status=_job_status(),
        rules=[
            _rule(
                f"self.metadata.name.matches('^{JOB_NAME}$')",
                f"metadata.name: need 1 to {LONGEST_NAME} letters a to z, digits and '-', the first a "
                "letter, the last no '-': pods are named after it",
            )
        ],
        columns=[
            _column("State", ".status.phase"),
            _column("Workers", ".status.workers.summary"),
            _column("Progress", ".status.progress"),
            _column("Deadline", ".status.deadline"),
            _column("Promised", ".status.promised"),
            _column("Age", ".metadata.creationTimestamp", type="date"),
            _column("Tenant", ".spec.tenant", wide=True),
            _column("End", ".status.estimatedEnd", wide=True),
            _column("Reason", ".status.reason", wide=True),
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
    return _crd(
        kind=TENANT_KIND,
        plural=TENANTS,
        scope="Cluster",
        short=[],
        categories=[],
        description="An owner of devices, and the namespaces whose jobs may use them.",
        spec=_tenant_spec(),
        status=None,
        rules=[],
        columns=[
            _column("Cohort", ".spec.cohort"),
            _column("Guaranteed", ".spec.guaranteed", type="integer"),
            _column("Limit", ".spec.limit", type="integer"),
            _column("Weight", ".spec.weight", type="number"),
            _column("Age", ".metadata.creationTimestamp", type="date"),
        ],
        scale=None,
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
    fields: dict[str, Schema] = {
        "file": _text(
            "The training file that the workers run: by its name in the bundle, or its path in the "
            "image. Either this or command."
        ),
        "command": {
            "type": "array",
            "description": "The command that runs a training loop, word by word: [python, loop.py]. "
            "Either this or file.",
            "minItems": 1,
            "maxItems": MOST_WORDS,
            "items": {"type": "string", "maxLength": LONGEST_TEXT},
            "x-kubernetes-list-type": "atomic",
        },
        "bundle": _object(
            "The code of the job, where it is not in the image.",
            {
                "configMap": _text(
                    f"The name of a ConfigMap that has the code as {CODE_KEY} in its binaryData.",
                    most=_NAME,
                ),
                "sha256": _text("The sha256 of the code.", pattern=f"^{DIGEST}$", most=64),
            },
            required=["configMap", "sha256"],
        ),
        PARAMETERS: _pairs("Parameters that the file reads with brim.param, by name."),
        ENV: _pairs("Variables of the workers' environment. The run's records keep them."),
        WORKERS: _job_workers(),
        "deadline": _text("The time by which the job is to be done: 2026-12-01T08:00:00Z.", most=40)
        | {"format": "date-time"},
        "deadlineIn": _text(
            "The deadline as a duration from the creation of the object: 2h.", most=40
        )
        | {_RULES: [_matching(DURATION_PATTERN, "a duration above 0, such as 10m or 1h30m")]},
        "tenant": _text(
            "The tenant whose devices the job uses. [default: the one that lists this namespace]",
            most=_NAME,
            pattern=f"^{NAME}$",
        ),
        "priority": _words("The job's rank among others of its tenant.", PRIORITIES),
        "priorityClassName": _text("The PriorityClass of the job's pods.", most=_NAME),
        "suspend": {
            "type": "boolean",
            "default": False,
            "description": "Hold the job: it writes a checkpoint and has no workers until this is "
            "false.",
        },
        "gang": {
            "type": "boolean",
            "default": False,
            "description": "Have the fewest workers bound together, or none, by a PodGroup: of the "
            "server, or of Volcano where schedulerName in the template is volcano. Workers beyond the "
            "fewest come and go one by one.",
        },
        "mode": _words(
            "Who decides on which node a worker is: the operator, whose plan pins each pod to a node, or "
            "the scheduler that binds pods: then the plan says how many workers there are.",
            MODES,
        ),
        PROCESSES: {
            "type": "integer",
            "format": "int32",
            "default": 1,
            "minimum": 1,
            "maximum": MOST_PROCESSES,
            "description": "The processes that train in each worker's pod, and share its slot and its "
            "memory. To the run each of them is a worker.",
        },
        "template": _template("Pods of workers", WORKER),
        "masterTemplate": _template("The pod of the master", MASTER),
        "volumeClaim": _object(
            "A volume of the master's, for the records of the run. [default: none; the workers have "
            "copies]",
            {
                "storageClassName": _text("The StorageClass of the volume.", most=_NAME),
                "size": {
                    "x-kubernetes-int-or-string": True,
                    "description": "The size of the volume: 1Gi.",
                    "maxLength": 40,
                    "pattern": f"^{QUANTITY}$",
                },
            },
            required=["size"],
        ),
    }
    fields |= {name: _option(OPTIONS[inside]) for name, inside in PLAIN_FIELDS.items()}
    assert fields.keys() == FIELDS
    rules = [
        _rule("has(self.file) != has(self.command)", "need either file or command", at=".file"),
        _rule(
            "!(has(self.deadline) && has(self.deadlineIn))",
            "need either deadline or deadlineIn",
            at=".deadline",
        ),
        *_unchanged(name for name in sorted(fields) if name not in MAY_CHANGE),
    ]
    return _object("The job that is wanted.", fields, required=[WORKERS]) | {_RULES: rules}


def _job_workers() -> Schema:
    bounds = {"type": "integer", "format": "int32", "minimum": 1, "maximum": LARGEST_COUNT}
    schema = _object(
        "The numbers of workers that the job may have: it starts with the fewest, and grows. The "
        "number does not change the result.",
        {
            "min": bounds | {"default": 1, "description": "The fewest; with fewer it has none."},
            "max": bounds | {"description": "The most; kubectl scale changes it."},
        },
        required=["max"],
    )
    return schema | {_RULES: [_rule("self.min <= self.max", "need min <= max", at=".min")]}


def _unchanged(names: Iterable[str]) -> list[Schema]:
    """Rules by which fields stay as they were: a run has one spec from its beginning to its end.

    The rule stands above the field, which would have none for one that is added or removed.
    """
    return [
        _rule(
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
        numbers = f"self >= {kind.least} && self <= {kind.most}"
        schema[_RULES] = [_rule(f"type(self) == int ? {numbers} : {texts}", f"need {needed(kind)}")]
    elif int in kind.written_as:
        schema |= {"type": "integer", "format": "int64", "minimum": kind.least}
        if kind.most is not None and kind.most < _LARGEST_BOUND:
            schema["maximum"] = kind.most
    elif float in kind.written_as:
        schema |= {"type": "number", "minimum": kind.above, "exclusiveMinimum": True}
    elif kind.words:
        schema |= {"type": "string", "enum": list(kind.words)}
    else:
        schema |= {"type": "string", "maxLength": LONGEST_TEXT}
        if kind.pattern:
            schema[_RULES] = [_matching(kind.pattern, needed(kind))]
    if option.shown not in (None, ""):
        is_number = int in kind.written_as and str(option.shown).isdigit()
        schema["default"] = int(option.shown) if is_number else option.shown
    return schema


def _template(what: str, container: str) -> Schema:
    """Return the schema of a PodTemplateSpec, as far as it is not the API server's own to check."""
    return _object(
        f"{what}, as a PodTemplateSpec with a container {container!r}. What the operator needs of a pod "
        "is added to it. A change is for pods that are made from then on.",
        {
            "metadata": _object(
                "Labels and annotations of the pods.",
                {
                    "labels": _pairs("Labels."),
                    "annotations": _pairs("Annotations."),
                },
            ),
            "spec": _object(
                "The PodSpec.",
                {
                    "containers": {
                        "type": "array",
                        "description": "The containers.",
                        "minItems": 1,
                        "maxItems": MOST_CONTAINERS,
                        "items": _object(
                            "A container.",
                            {
                                "name": _text("Its name.", most=_LABEL),
                                "image": _text("Its image.", most=LONGEST_TEXT),
                                **{each: _part_list(each) for each in CONTAINER_LISTS},
                            },
                            required=["name"],
                        )
                        | _OPEN,
                        "x-kubernetes-list-type": "map",
                        "x-kubernetes-list-map-keys": ["name"],
                        _RULES: [
                            _rule(
                                f"self.exists(each, each.name == '{container}')",
                                f"need a container {container!r}",
                            )
                        ],
                    },
                    **{each: _part_list(each) for each in POD_LISTS},
                    **{
                        each: _object(f"As in PodSpec: {each}.", {}) | _OPEN | {"nullable": True}
                        for each in POD_OBJECTS
                    },
                },
                required=["containers"],
            )
            | _OPEN,
        },
        required=["spec"],
    )


def _part_list(name: str) -> Schema:
    """Return the schema of a list of a pod or a container to which the operator adds something."""
    schema = {
        "type": "array",
        "description": f"As in PodSpec: {name}.",
        "nullable": True,
        "maxItems": MOST_PARTS,
        "items": {"type": "object"} | _OPEN,
        "x-kubernetes-list-type": "atomic",
    }
    if name == "env":
        named = {
            "properties": {"name": {"type": "string", "minLength": 1, "maxLength": LONGEST_TEXT}}
        }
        schema["items"] = {"type": "object", "required": ["name"], **named} | _OPEN
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


def _failed_pod() -> Schema:
    text = {"type": "string", "maxLength": LONGEST_MESSAGE}
    return _object(
        "A pod that has failed.",
        {
            "pod": text | {"description": "Its name."},
            "node": text | {"description": "The node that it was on."},
            "reason": text
            | {"description": "Why, as Kubernetes says it: Error, OOMKilled, Evicted."},
            "exitCode": {
                "type": "integer",
                "format": "int32",
                "description": "The exit code of its container.",
            },
            "finishTime": {
                "type": "string",
                "format": "date-time",
                "description": "When that ended.",
            },
            "lastLines": {
                "type": "string",
                "maxLength": LONGEST_LINES,
                "description": "The last lines of its log.",
            },
        },
    )


def _job_status() -> Schema:
    text = {"type": "string", "maxLength": LONGEST_MESSAGE}
    time = {"type": "string", "format": "date-time"}
    schema = _object(
        "The state of the job, as the operator sees it.",
        {
            "observedGeneration": _whole("The generation of the object that this is about."),
            "phase": {
                "type": "string",
                "enum": list(STATES),
                "description": "The state of the job.",
            },
            "reason": text | {"description": "Why the job has the workers that it has, in a word."},
            "message": text | {"description": "The same in a sentence, with the numbers."},
            "workers": _object(
                "Workers of the job.",
                {
                    "wanted": _whole("As many as the last plan gives it."),
                    "ready": _whole("As many as train."),
                    "summary": text | {"description": "READY/FEWEST-MOST."},
                    "selector": text | {"description": "The selector of their pods."},
                    "nodes": {
                        "type": "object",
                        "additionalProperties": {"type": "integer", "format": "int32"},
                        "description": "As many as it was asked to have, by node.",
                    },
                },
            ),
            "step": _whole("Steps that are done."),
            "steps": _whole("Steps that there are in all, once that is known."),
            "progress": text | {"description": "STEP/STEPS."},
            "startTime": time | {"description": "When the first step was made."},
            "completionTime": time | {"description": "When the job ended."},
            "estimatedEnd": time | {"description": "When the job ends if nothing new happens."},
            "deadline": time | {"description": "The deadline of the job."},
            "promised": text
            | {"description": "Yes where the deadline is promised, No, or Unknown."},
            "earliestDeadline": time
            | {"description": "The earliest deadline that could have been promised."},
            "story": {
                "type": "array",
                "maxItems": MOST_LINES,
                "items": {"type": "string", "maxLength": LONGEST_LINE},
                "x-kubernetes-list-type": "atomic",
                "description": "The last things that happened to the job, with their reasons.",
            },
            "failedPods": {
                "type": "array",
                "maxItems": MOST_FAILED,
                "items": _failed_pod(),
                "x-kubernetes-list-type": "atomic",
                "description": "The last pods that failed. They are deleted, with their logs.",
            },
            "summary": {
                "type": "object",
                "description": "What brim train --json says of a run, once it has ended.",
            }
            | _OPEN,
            "conditions": _conditions(),
            "record": {
                "type": "string",
                "maxLength": LARGEST + 16,
                "description": "What the operator remembers of the job. Nobody else writes it.",
            },
        },
    )
    return schema | {"default": {"conditions": [dict(UNSEEN)]}}


def _conditions() -> Schema:
    return {
        "type": "array",
        "description": "Conditions, as kubectl wait --for=condition=TYPE reads them.",
        "maxItems": 32,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": _object(
            "A condition.",
            {
                "type": {
                    "type": "string",
                    "maxLength": 316,
                    "pattern": r"^[A-Za-z0-9]([-A-Za-z0-9_./]*[A-Za-z0-9])?$",
                },
                "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
                "reason": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": 1024,
                    "pattern": r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
                },
                "message": {"type": "string", "maxLength": 32_768},
                "observedGeneration": {"type": "integer", "format": "int64", "minimum": 0},
                "lastTransitionTime": {"type": "string", "format": "date-time"},
            },
            required=["type", "status", "reason", "message", "lastTransitionTime"],
        ),
    }


# Tenants ------------------------------------------------------------------------------------------


def _tenant_spec() -> Schema:
    schema = _object(
        "The rights of the tenant, in devices: a device is what one worker gets.",
        {
            "cohort": _text(
                "Tenants of one cohort lend each other what they do not use.",
                most=_NAME,
                pattern=f"^{NAME}$",
            )
            | {"default": "default"},
            "guaranteed": _devices(
                "Its own devices: lent while they are idle, taken back on demand.", default=0
            ),
            "exclusive": _devices("The part of these that is never lent.", default=0),
            "limit": _devices(
                "The most that it may have, borrowed ones included. [default: no limit]"
            ),
            "weight": {
                "type": "number",
                "minimum": 0,
                "exclusiveMinimum": True,
                "maximum": LARGEST_COUNT,
                "default": 1,
                "description": "Its part of what nobody needs, against the weights of others.",
            },
            "namespaces": {
                "type": "array",
                "maxItems": MOST_NAMESPACES,
                "items": {"type": "string", "maxLength": _LABEL, "pattern": f"^({NAMESPACE})$"},
                "x-kubernetes-list-type": "set",
                "description": f"The namespaces whose jobs may use it; {EVERY_NAMESPACE}: all.",
            },
        },
        required=["namespaces"],
    )
    return schema | {
        _RULES: [
            _rule(
                "self.exclusive <= self.guaranteed", "need exclusive <= guaranteed", at=".exclusive"
            ),
            _rule(
                "!has(self.limit) || self.guaranteed <= self.limit",
                "need guaranteed <= limit",
                at=".limit",
            ),
        ]
    }


def _devices(description: str, *, default: int | None = None) -> Schema:
    schema = _whole(description) | {"maximum": LARGEST_COUNT}
    return schema if default is None else schema | {"default": default}


# Parts of schemas ---------------------------------------------------------------------------------

_OPEN: Schema = {"x-kubernetes-preserve-unknown-fields": True}


def _object(
    description: str, fields: Mapping[str, Schema], *, required: Iterable[str] = ()
) -> Schema:
    schema: Schema = {"type": "object", "description": description}
    if fields:  # a server leaves empty ones out, and then takes them for a change
        schema["properties"] = dict(fields)
    needs = list(required)
    return schema | {"required": needs} if needs else schema


def _text(description: str, *, most: int = LONGEST_TEXT, pattern: str = "") -> Schema:
    schema: Schema = {
        "type": "string", "description": description, "minLength": 1, "maxLength": most,
    }  # fmt: skip
    return schema | {"pattern": pattern} if pattern else schema


def _words(description: str, words: tuple[str, ...]) -> Schema:
    return {
        "type": "string", "enum": list(words), "default": words[0], "description": description,
    }  # fmt: skip


def _pairs(description: str, *, most: int = LONGEST_TEXT) -> Schema:
    return {
        "type": "object",
        "description": description,
        "maxProperties": MOST_PAIRS,
        "additionalProperties": {"type": "string", "maxLength": most},
    }


def _whole(description: str) -> Schema:
    return {"type": "integer", "format": "int64", "minimum": 0, "description": description}


def _matching(pattern: str, need: str) -> Schema:
    return _rule(f"self.matches('^({pattern})$')", f"need {need}")


def _rule(rule: str, message: str, *, at: str = "", reason: str = "") -> Schema:
    """Return a rule of the Common Expression Language; a backslash in it is one of its own texts."""
    schema: Schema = {"rule": rule.replace("\\", "\\\\"), "message": message}
    if at:
        schema["fieldPath"] = at
    return schema | {"reason": reason} if reason else schema


def _column(title: str, path: str, *, type: str = "string", wide: bool = False) -> Schema:
    schema: Schema = {"name": title, "type": type, "jsonPath": path}
    return schema | {"priority": 1} if wide else schema


def _crd(
    *,
    kind: str,
    plural: str,
    scope: str,
    short: list[str],
    categories: list[str],
    description: str,
    spec: Schema,
    status: Schema | None,
    rules: list[Schema],
    columns: list[Schema],
    scale: Schema | None,
) -> Schema:
    names: Schema = {
        "kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower(),
    }  # fmt: skip
    names |= {"shortNames": short} if short else {}
    names |= {"categories": categories} if categories else {}
    root = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}}
    root |= {"metadata": {"type": "object"}, "spec": spec}
    root |= {"status": status} if status else {}
    schema = _object(description, root, required=["spec"])
    version: Schema = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "additionalPrinterColumns": columns,
        "subresources": ({"status": {}} if status else {}) | ({"scale": scale} if scale else {}),
        "schema": {"openAPIV3Schema": schema | ({_RULES: rules} if rules else {})},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {"group": GROUP, "scope": scope, "names": names, "versions": [version]},
    }
