"""Makes the files of deploy/ from the objects that `brim install` applies, and from the runtime of TrainJobs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import brim
from brim.kubernetes.install.manifests import Installation, Manifest, foreign_definitions, manifests
from brim.kubernetes.install.training_runtime import training_runtime
from brim.kubernetes.objects.schemas import in_yaml

FOLDER = Path(__file__).parent
IMAGE = "brim:1"  # of the base, which an overlay replaces
NAMESPACE, TEAM = "brim-system", "team"  # of the operator, and of the jobs of the second overlay
_HEAD = "# Made by `python deploy/make_deploy.py`: change what that reads.\n"

# What stands in an object where the chart has a value; nothing else in it reads like that.
_IMAGE, _JOB_IMAGE, _OWN, _WATCHED = "value-image", "value-job-image", "value-own", "value-watched"
# Values of the chart that switch something on, with the field of an installation.
_SWITCHES = {"kubeflow": "foreign_kinds", "gangs": "gangs", "evictions": "evictions"}
_ARGUMENT, _SLOT, _REPLICAS, _RESOURCES = "value-argument", "value-slot", 99, "value-resources"
_PLACEHOLDERS = 98
_SERVICE_URL = "http://value-service-url/"
_RIGHTS: dict[str, dict[str, Any]] = {  # values that more rights follow from
    **{switch: {field: True} for switch, field in _SWITCHES.items()},
    "serviceUrls": {"service_urls": (_SERVICE_URL,)},
}
# Of the components, which have to have a number and a URL.
_USUAL_PLACEHOLDERS, _USUAL_URL = 10, "http://prometheus.monitoring.svc:9090/"
_COMPONENTS: dict[str, dict[str, Any]] = {
    "gangs": {"gangs": True},
    "evictions": {"evictions": True},
    "placeholders": {"placeholders": _USUAL_PLACEHOLDERS},
    "services": {"service_urls": (_USUAL_URL,)},
}


def render() -> dict[str, str]:
    """The text of each file, by its path."""
    kinds = ("kubeflow-kinds.yaml", _kinds_of_kubeflow())
    return dict((*_kustomize(), *_helm(), *_runtimes(), kinds))


def _kinds_of_kubeflow() -> str:
    """The definitions of Kubeflow's kinds, apart: they are made where they are absent, or not at all."""
    return _HEAD + _documents(foreign_definitions())


def _runtimes() -> Iterable[tuple[str, str]]:
    """The runtime of TrainJobs, for all namespaces and for one."""
    for name, namespace in (("cluster-training-runtime", ""), ("training-runtime", TEAM)):
        runtime = training_runtime(image=IMAGE, namespace=namespace)
        yield f"kubeflow-trainer/{name}.yaml", _HEAD + in_yaml(runtime)


# Kustomize ----------------------------------------------------------------------------------------


def _kustomize() -> Iterable[tuple[str, str]]:
    everywhere = manifests(Installation(image=IMAGE))
    in_one = manifests(Installation(image=IMAGE, of=TEAM))
    base = [each for each in everywhere if each in in_one or each["kind"] == "Deployment"]
    yield "kustomize/base/objects.yaml", _HEAD + _documents(base)
    yield "kustomize/base/kustomization.yaml", _customization(["objects.yaml"])
    yield "kustomize/all-namespaces/rights.yaml", _HEAD + _documents(_but(everywhere, base))
    yield (
        "kustomize/all-namespaces/kustomization.yaml",
        _customization(["../base", "rights.yaml"], **_image(everywhere[-1])),
    )
    rights = [each for each in _but(in_one, base) if each["kind"] != "Deployment"]
    yield "kustomize/one-namespace/rights.yaml", _HEAD + _documents(rights)
    command = _command(in_one[-1])
    watched = [
        {"op": "add", "path": "/spec/template/spec/containers/0/command/-", "value": word}
        for word in command[-2:]
    ]
    patch = {"target": {"kind": "Deployment"}, "patch": json.dumps(watched)}
    yield (
        "kustomize/one-namespace/kustomization.yaml",
        _customization(["../base", "rights.yaml"], patches=[patch], **_image(in_one[-1])),
    )
    for overlay, of, before in (
        ("all-namespaces", "", everywhere),
        ("one-namespace", TEAM, in_one),
    ):
        after = manifests(Installation(image=IMAGE, of=of, foreign_kinds=True))
        yield (
            f"kustomize/{overlay}-kubeflow/kustomization.yaml",
            _customization(
                [f"../{overlay}"], patches=list(_patches(before, after)), **_image(before[-1])
            ),
        )
        for name, more in _COMPONENTS.items():
            yield from _component(
                f"kustomize/components/{overlay}/{name}",
                before,
                manifests(Installation(image=IMAGE, of=of, **more)),
            )


def _component(
    folder: str, before: Sequence[Manifest], after: Sequence[Manifest]
) -> Iterator[tuple[str, str]]:
    """What an overlay has beyond that for one choice, to be named beside it."""
    known = {_key(each) for each in before}
    new = [each for each in after if _key(each) not in known]
    if new:
        yield f"{folder}/objects.yaml", _HEAD + _documents(new)
    component = {"apiVersion": "kustomize.config.k8s.io/v1alpha1", "kind": "Component"}
    parts = {"resources": ["objects.yaml"]} if new else {}
    patches = {"patches": list(_patches(before, after))}
    yield f"{folder}/kustomization.yaml", _HEAD + in_yaml({**component, **parts, **patches})


def _patches(before: Sequence[Manifest], after: Sequence[Manifest]) -> Iterator[Manifest]:
    """The patches that make of an installation one that has more rules and options."""
    for plain, more in _pairs(before, after):
        at, target = "/rules/-", {"kind": plain["kind"], "name": plain["metadata"]["name"]}
        new = more.get("rules", [])[len(plain.get("rules", [])) :]
        if plain["kind"] == "Deployment":
            at = "/spec/template/spec/containers/0/command/-"
            new = [word for word in _command(more) if word not in _command(plain)]
        if new:
            added = [{"op": "add", "path": at, "value": each} for each in new]
            yield {"target": target, "patch": json.dumps(added)}


def _pairs(
    before: Sequence[Manifest], after: Sequence[Manifest]
) -> Iterator[tuple[Manifest, Manifest]]:
    """The objects that differ between two installations, by what they are."""
    known = {_key(each): each for each in after}
    return ((each, known[_key(each)]) for each in before if each != known[_key(each)])


def _key(thing: Manifest) -> tuple[str, str, str]:
    meta = thing["metadata"]
    return thing["kind"], meta.get("namespace", ""), meta["name"]


def _command(deployment: Manifest) -> list[str]:
    found: list[str] = deployment["spec"]["template"]["spec"]["containers"][0]["command"]
    return found


def _image(deployment: Manifest) -> dict[str, Any]:
    """The name of the image in one place: the operator's, and that of jobs that name none."""
    command = _command(deployment)
    at, container = command.index("--image") + 1, "spec.template.spec.containers.0"
    one = {"kind": "Deployment"}
    return {
        "images": [{"name": "brim", "newName": "brim", "newTag": "1"}],
        "replacements": [
            {
                "source": {**one, "fieldPath": f"{container}.image"},
                "targets": [{"select": one, "fieldPaths": [f"{container}.command.{at}"]}],
            }
        ],
    }


def _customization(resources: Sequence[str], **more: Any) -> str:
    head = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
    return _HEAD + in_yaml({**head, "resources": list(resources), **more})


def _but(things: Sequence[Manifest], others: Sequence[Manifest]) -> list[Manifest]:
    return [each for each in things if each not in others]


# Helm ---------------------------------------------------------------------------------------------


def _helm() -> Iterable[tuple[str, str]]:
    chosen: dict[str, Any] = {
        "image": _IMAGE, "job_image": _JOB_IMAGE, "namespace": _OWN, "slot": {_SLOT: 1},
        "arguments": (_ARGUMENT,), "replicas": _REPLICAS, "resources": {_RESOURCES: 1},
    }  # fmt: skip
    everywhere = manifests(Installation(**chosen))
    in_one = manifests(Installation(**chosen, of=_WATCHED))
    pairs = {
        switch: [
            *_pairs(in_one, manifests(Installation(**chosen, of=_WATCHED, **more))),
            *_pairs(everywhere, manifests(Installation(**chosen, **more))),
        ]
        for switch, more in _RIGHTS.items()
    }
    with_all = manifests(
        Installation(
            **chosen,
            of=_WATCHED,
            placeholders=_PLACEHOLDERS,
            service_urls=(_SERVICE_URL,),
            **dict.fromkeys(_SWITCHES.values(), True),
        )
    )
    (of_placeholders,) = [each for each in with_all if each["kind"] == "PriorityClass"]

    def text(things: Sequence[Manifest]) -> str:
        return _with_values("---\n".join(_templated(each, pairs) for each in things))

    for each in everywhere:
        if each["kind"] == "CustomResourceDefinition":
            yield f"helm/brim/crds/{each['spec']['names']['plural']}.yaml", _HEAD + in_yaml(each)
    left_out = ("Namespace", "CustomResourceDefinition", "Deployment")
    all_of, one_of = (
        [each for each in things if each["kind"] not in left_out] for things in (everywhere, in_one)
    )
    common = [each for each in all_of if each in one_of]
    yield "helm/brim/templates/objects.yaml", _HEAD + text(common)
    yield (
        "helm/brim/templates/rights.yaml",
        f"{_HEAD}{{{{- if .Values.watch }}}}\n{text(_but(one_of, common))}"
        f"{{{{- else }}}}\n{text(_but(all_of, common))}{{{{- end }}}}\n",
    )
    yield (
        "helm/brim/templates/placeholders.yaml",
        f"{_HEAD}{{{{- if .Values.placeholders }}}}\n{text([of_placeholders])}{{{{- end }}}}\n",
    )
    yield "helm/brim/templates/operator.yaml", _HEAD + _operator(in_yaml(with_all[-1]))
    usual = Installation(image=IMAGE)
    values = {
        "image": "", "jobImage": "", "watch": "", **dict.fromkeys(_SWITCHES, False), "placeholders": 0,
        "serviceUrls": [], "slot": dict(usual.slot), "arguments": [],
        "replicas": usual.replicas, "resources": dict(usual.resources),
    }  # fmt: skip
    yield "helm/brim/values.yaml", _HEAD + in_yaml(values)
    yield "helm/brim/values.schema.json", json.dumps(_schema(values), indent=2) + "\n"
    chart = {
        "apiVersion": "v2",
        "name": "brim",
        "description": "Elastic deep-learning training: the operator of brim and its objects.",
        "type": "application",
        "version": brim.__version__,
        "appVersion": brim.__version__,
    }
    yield "helm/brim/Chart.yaml", _HEAD + in_yaml(chart)


def _templated(thing: Manifest, pairs: Mapping[str, Sequence[tuple[Manifest, Manifest]]]) -> str:
    """An object; what it has beyond that for a switch is there where that is on."""
    plain = text = in_yaml(thing)
    for switch, changed in pairs.items():
        more = next((in_yaml(after) for before, after in changed if before is thing), plain)
        assert more.startswith(plain), "more rights are more rules, at the end"
        if more != plain:
            rules = more.removeprefix(plain)
            text += f"{{{{- if .Values.{switch} }}}}\n{rules}{{{{- end }}}}\n"
    return text


def _with_values(text: str) -> str:
    own, watched = "{{ .Release.Namespace }}", "{{ .Values.watch }}"
    return text.replace(_OWN, own).replace(_WATCHED, watched)


def _operator(text: str) -> str:
    """The Deployment, with values of the chart in the place of those that it was made with."""
    lines = {
        f"- {_JOB_IMAGE}": "- {{ .Values.jobImage | default .Values.image | quote }}",
        f"- --slot={_SLOT}=1": "{{- range $name, $amount := .Values.slot }}\n"
        '- {{ printf "--slot=%s=%v" $name $amount | quote }}\n{{- end }}',
        "- --watch": "{{- if .Values.watch }}\n- --watch",
        f"- {_WATCHED}": "- {{ .Values.watch | quote }}\n{{- end }}",
        "- --kubeflow": "{{- if .Values.kubeflow }}\n- --kubeflow\n{{- end }}",
        "- --gangs": "{{- if .Values.gangs }}\n- --gangs\n{{- end }}",
        "- --evictions": "{{- if .Values.evictions }}\n- --evictions\n{{- end }}",
        f"- --placeholders={_PLACEHOLDERS}": "{{- if .Values.placeholders }}\n"
        "- --placeholders={{ .Values.placeholders }}\n{{- end }}",
        f"- --service-url={_SERVICE_URL}": "{{- range .Values.serviceUrls }}\n"
        '- {{ printf "--service-url=%s" . | quote }}\n{{- end }}',
        "args:": None,
        f"- {_ARGUMENT}": "{{- with .Values.arguments }}\nargs: {{ toJson . }}\n{{- end }}",
        f"image: {_IMAGE}": 'image: {{ required "image" .Values.image | quote }}',
        f"replicas: {_REPLICAS}": "replicas: {{ .Values.replicas }}",
        "resources:": "resources: {{ toJson .Values.resources }}",
        f"{_RESOURCES}: 1": None,
    }
    made: list[str] = []
    for line in text.splitlines():
        plain = line.lstrip()
        new = lines.get(plain, plain)
        indent = line[: len(line) - len(plain)]
        for part in new.splitlines() if new is not None else ():
            made.append(part if part.startswith("{{-") else indent + part)
    return _with_values("\n".join(made) + "\n")


def _schema(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values as JSON Schema: what a chart refuses before it asks a server."""
    text, name = {"type": "string"}, "^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)?$"
    known: dict[str, dict[str, Any]] = {
        "image": {"type": "string", "minLength": 1, "pattern": r"^\S+$"},
        "jobImage": {"type": "string", "pattern": r"^\S*$"},
        "watch": {"type": "string", "pattern": name},
        **{switch: {"type": "boolean"} for switch in _SWITCHES},
        "placeholders": {"type": "integer", "minimum": 0},
        "serviceUrls": {
            "type": "array",
            "items": {"type": "string", "pattern": "^https?://[^/]+/"},
        },
        "slot": {
            "type": "object",
            "minProperties": 1,
            "additionalProperties": {"type": ["string", "number"]},
        },
        "arguments": {"type": "array", "items": text},
        "replicas": {"type": "integer", "minimum": 1},
        "resources": {"type": "object"},
    }
    assert known.keys() == values.keys()
    about = {
        "image": "Of the operator: it has brim with its extras cluster and kubernetes.",
        "jobImage": "Of jobs that name none. Empty: that of the operator.",
        "watch": "The one namespace whose jobs it runs. Empty: those of all.",
        "kubeflow": "It runs Kubeflow's PyTorchJobs, TFJobs and MPIJobs, too, in place of its own operator.",
        "gangs": "Jobs may have their fewest workers bound together: it may write PodGroups.",
        "evictions": "It answers EvictionRequests for jobs' pods, where the server has them.",
        "placeholders": "Jobs that wait for places and show pending pods to a cluster autoscaler, at most.",
        "serviceUrls": "How the URLs of services' loads may begin. Empty: no service is scaled.",
        "slot": "What a worker gets, by resource.",
        "arguments": "More options of brim operator, such as --headroom=2.",
        "replicas": "One decides; the others wait to take over.",
        "resources": "Of each operator, as a container has them.",
    }
    return {
        "$schema": "https://json-schema.org/draft-07/schema#",
        "type": "object",
        "additionalProperties": False,
        "required": ["image"],
        "properties": {key: {**each, "description": about[key]} for key, each in known.items()},
    }


def _documents(things: Sequence[Manifest]) -> str:
    return "---\n".join(in_yaml(each) for each in things)


if __name__ == "__main__":
    for path, text in render().items():
        file = FOLDER / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
