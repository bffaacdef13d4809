"""Nodes on which a pod may be, as its affinity says it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from brim.kubernetes.reading import part_of

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
# One requirement of a selector of labels: `a=b`, `a!=b`, `a in (b,c)`, `a notin (b,c)`, `a`, `!a`.
_REQUIREMENT = re.compile(
    r"\s*(?P<absent>!?)\s*(?P<key>[^\s,!=()]+)\s*"
    r"(?:(?P<equal>==?|!=)\s*(?P<value>[^\s,=()]*)|(?P<set>in|notin)\s*\((?P<values>[^()]*)\))?"
    r"\s*(?:,|$)"
)


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
    required = _requirements(labels)
    both = [_with(term, required) for term in terms]
    return {**affinity, _REQUIRED: {"nodeSelectorTerms": both}}


def _with(term: object, required: Sequence[Any]) -> object:
    given = part_of(term, "matchExpressions") or []
    if not isinstance(term, Mapping) or not isinstance(given, list):
        return term
    return {**term, "matchExpressions": [*given, *required]}


def _requirements(labels: str) -> list[dict[str, Any]]:
    """Return a selector of labels, requirement by requirement.

    >>> [(each["operator"], each.get("values")) for each in _requirements("a!=b, c notin (d,e),!f,g")]
    [('NotIn', ['b']), ('NotIn', ['d', 'e']), ('DoesNotExist', None), ('Exists', None)]
    """
    found: list[dict[str, Any]] = []
    for each in _REQUIREMENT.finditer(labels):
        if each["equal"] or each["set"]:
            values = [each["value"]] if each["equal"] else each["values"].split(",")
            is_in = each["equal"] in ("=", "==") or each["set"] == "in"
            operator = "In" if is_in else "NotIn"
            values = [value.strip() for value in values]
            found.append({"key": each["key"], "operator": operator, "values": values})
        else:
            operator = "DoesNotExist" if each["absent"] else "Exists"
            found.append({"key": each["key"], "operator": operator})
    return found
