"""Nodes on which a pod may be, as its affinity says it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from brim.errors import SpecError
from brim.kubernetes.reading import part_of

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_KEY = r"(?P<key>[A-Za-z0-9](?:[-A-Za-z0-9_./]{0,315}[A-Za-z0-9])?)"
_VALUE = r"[-A-Za-z0-9_.]{0,63}"
_PARTS = re.compile(r",(?![^(]*\))")  # commas outside of brackets
_FORMS = [
    re.compile(form)
    for form in (
        rf"{_KEY}\s*(?P<operator>==|=|!=)\s*(?P<values>{_VALUE})",
        rf"{_KEY}\s+(?P<operator>in|notin)\s+\((?P<values>{_VALUE}(?:\s*,\s*{_VALUE})*)\)",
        rf"{_KEY}\s*(?P<operator>[<>])\s*(?P<values>\d{{1,18}})",
        rf"(?P<operator>!?)\s*{_KEY}",
    )
]
_OPERATORS = {
    "=": "In", "==": "In", "in": "In", "!=": "NotIn", "notin": "NotIn", "<": "Lt", ">": "Gt", "": "Exists",
    "!": "DoesNotExist",
}  # fmt: skip


def only_on(node: str) -> dict[str, Any]:
    """Return the affinity of a pod that has to be on this node."""
    here = {"key": "metadata.name", "operator": "In", "values": [node]}
    return {_REQUIRED: {"nodeSelectorTerms": [{"matchFields": [here]}]}}


def only_with(labels: str, given: object) -> Any:
    """Return the affinity of a pod that has to be on nodes with these labels.

    Args:
        labels: a selector as the API server takes it; empty: any node will do.
        given: the affinity that the pod has to nodes already, which holds as well. What the server
            would refuse is left to it.

    >>> only_with("pool=training", None)["requiredDuringSchedulingIgnoredDuringExecution"]
    {'nodeSelectorTerms': [{'matchExpressions': [{'key': 'pool', 'operator': 'In', 'values': ['training']}]}]}
    """
    affinity = {} if given is None else given
    terms = part_of(part_of(affinity, _REQUIRED), "nodeSelectorTerms") or [{}]
    if not labels or not isinstance(affinity, Mapping) or not isinstance(terms, list):
        return affinity
    required = node_requirements(labels)
    both = [_with(term, required) for term in terms]
    return {**affinity, _REQUIRED: {"nodeSelectorTerms": both}}


def _with(term: object, required: Sequence[Any]) -> object:
    given = part_of(term, "matchExpressions") or []
    if not isinstance(term, Mapping) or not isinstance(given, list):
        return term
    return {**term, "matchExpressions": [*given, *required]}


def node_requirements(selector: str) -> list[dict[str, Any]]:
    """Return a selector of nodes as the `matchExpressions` of an affinity.

    Raises:
        SpecError: it is none.

    >>> node_requirements("pool in (a, b),!spot")
    [{'key': 'pool', 'operator': 'In', 'values': ['a', 'b']}, {'key': 'spot', 'operator': 'DoesNotExist'}]
    """
    return [_requirement(part.strip()) for part in _PARTS.split(selector)] if selector else []


def _requirement(part: str) -> dict[str, Any]:
    found = next(filter(None, (form.fullmatch(part) for form in _FORMS)), None)
    if found is None:
        need = "labels as kubectl's -l takes them"
        hint = "--node-labels pool=training"
        raise SpecError("--node-labels", got=repr(part), need=need, hint=hint)
    parts = found.groupdict()
    said = {"key": parts["key"], "operator": _OPERATORS[parts["operator"]]}
    if "values" not in parts:
        return said
    return {**said, "values": [each.strip() for each in parts["values"].split(",")]}
