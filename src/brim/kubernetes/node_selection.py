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


def nodes_for(given: object, *, labels: str = "", node: str = "") -> Any:
    """Return the affinity to nodes of a pod, with what is required beside what its owner asks for.

    Args:
        given: what its owner asks for, which holds as well. What the server would refuse is left to it.
        labels: of the nodes that it has to be on, as a selector; empty: any will do.
        node: that it has to be on; empty: any will do.

    >>> nodes_for(None, labels="pool=training")["requiredDuringSchedulingIgnoredDuringExecution"]
    {'nodeSelectorTerms': [{'matchExpressions': [{'key': 'pool', 'operator': 'In', 'values': ['training']}]}]}
    """
    affinity = {} if given is None else given
    terms = part_of(part_of(affinity, _REQUIRED), "nodeSelectorTerms") or [{}]
    here = [{"key": "metadata.name", "operator": "In", "values": [node]}] if node else []
    ours = {"matchExpressions": node_requirements(labels), "matchFields": here}
    if not any(ours.values()) or not isinstance(affinity, Mapping) or not isinstance(terms, list):
        return affinity
    return {**affinity, _REQUIRED: {"nodeSelectorTerms": [_with(term, ours) for term in terms]}}


def _with(term: object, ours: Mapping[str, Sequence[Any]]) -> object:
    """Return a term with more requirements, all of which have to hold."""
    if not isinstance(term, Mapping):
        return term
    theirs = {name: part_of(term, name) or [] for name, more in ours.items() if more}
    both = {name: [*each, *ours[name]] for name, each in theirs.items() if isinstance(each, list)}
    return {**term, **both} if both.keys() == theirs.keys() else term


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
