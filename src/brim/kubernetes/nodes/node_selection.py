"""Nodes on which a pod may be: as its affinity says it, and as its owner has chosen them. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from brim.errors import SpecError
from brim.kubernetes.client.kube_types import KubeNode, ObjectFields, Taint
from brim.kubernetes.client.reading import part_of

_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_EVICTS = "NoExecute"  # the effect of a taint
_NAME = "metadata.name"  # the one field of nodes by which they can be chosen
_KEY = r"(?P<key>[A-Za-z0-9](?:[-A-Za-z0-9_./]{0,315}[A-Za-z0-9])?)"
_VALUE = r"[-A-Za-z0-9_.]{0,63}"
_WHOLE = re.compile(r"[-+]?[0-9]{1,18}")  # as kube-scheduler reads it: no more than 64 bits
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


def nodes_for(node_affinity: object, *, labels: str = "", node: str = "") -> Any:
    """Return the affinity to nodes of a pod, with more requirements beside its owner's.

    Args:
        node_affinity: of the owner, which holds as well. Refusing bad ones is left to the server.
        labels: of the nodes that it has to be on, as a selector; empty: any will do.
        node: that it has to be on; empty: any will do.

    >>> nodes_for(None, labels="pool=training")["requiredDuringSchedulingIgnoredDuringExecution"]
    {'nodeSelectorTerms': [{'matchExpressions': [{'key': 'pool', 'operator': 'In', 'values': ['training']}]}]}
    """
    affinity = {} if node_affinity is None else node_affinity
    terms = part_of(part_of(affinity, _REQUIRED), "nodeSelectorTerms") or None
    node_fields = [{"key": _NAME, "operator": "In", "values": [node]}] if node else []
    parts = {"matchExpressions": node_requirements(labels), "matchFields": node_fields}
    requirements = {name: items for name, items in parts.items() if items}
    if not requirements or not isinstance(affinity, Mapping) or not isinstance(terms, list | None):
        return affinity
    merged_terms = (
        [requirements]
        if terms is None
        else [_with_requirements(term, requirements) for term in terms]
    )
    return {**affinity, _REQUIRED: {"nodeSelectorTerms": merged_terms}}


def preferring(affinity_of_owner: object, node: str) -> Any:
    """Return the affinity to nodes of a pod, with a node that it is to have where it may.

    Args:
        affinity_of_owner: holds as well. Refusing bad ones is left to the server.

    >>> preferring({}, "n1")[_PREFERRED]
    [{'weight': 100, 'preference': {'matchFields': [{'key': 'metadata.name', 'operator': 'In', 'values': ['n1']}]}}]
    """
    affinity = {} if affinity_of_owner is None else affinity_of_owner
    preferences = part_of(affinity, _PREFERRED) or []
    if not isinstance(affinity, Mapping) or not isinstance(preferences, list):
        return affinity
    node_term = {"matchFields": [{"key": _NAME, "operator": "In", "values": [node]}]}
    return {**affinity, _PREFERRED: [*preferences, {"weight": 100, "preference": node_term}]}


def _with_requirements(term: object, requirements: Mapping[str, Sequence[Any]]) -> object:
    """Return a term with more requirements, all of which have to hold; an empty one holds nowhere."""
    if not isinstance(term, Mapping) or not any(term.values()):
        return term
    term_parts = {name: part_of(term, name) or [] for name in requirements}
    merged = {
        name: [*items, *requirements[name]]
        for name, items in term_parts.items()
        if isinstance(items, list)
    }
    return {**term, **merged} if merged.keys() == term_parts.keys() else term


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
    requirement = {"key": parts["key"], "operator": _OPERATORS[parts["operator"]]}
    if "values" not in parts:
        return requirement
    return {**requirement, "values": [value.strip() for value in parts["values"].split(",")]}


# What an owner has chosen -------------------------------------------------------------------------


class Requirement(ObjectFields, frozen=True, kw_only=True):
    """One requirement of a node.

    Args:
        key: a label of the node, or `metadata.name`.
    """

    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    values: tuple[str, ...] | None = None

    def holds(self, found: Mapping[str, str]) -> bool:
        """Return whether it holds for a node's labels."""
        value, values = found.get(self.key), self.values or ()
        match self.operator:
            case "In":
                return value in values
            case "NotIn":
                return value not in values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case _:
                return _compares(self.operator, value, values)


def _compares(operator: str, value: str | None, values: Sequence[str]) -> bool:
    sides = [value or "", *values]
    if len(sides) != 2 or not all(_WHOLE.fullmatch(side) for side in sides):
        return False
    node_value, bound = map(int, sides)
    return node_value > bound if operator == "Gt" else node_value < bound


class NodeTerm(ObjectFields, frozen=True, kw_only=True):
    """Requirements of a node that hold together."""

    match_expressions: tuple[Requirement, ...] | None = None
    match_fields: tuple[Requirement, ...] | None = None

    @property
    def requirements(self) -> tuple[Requirement, ...]:
        """All of them; a term without any holds for no node."""
        return (*(self.match_expressions or ()), *(self.match_fields or ()))


class Toleration(ObjectFields, frozen=True, kw_only=True):
    """A taint that a pod bears, or several.

    Args:
        key: of the taint; none: any.
        operator: `Exists`, or `Equal` where there is none; by another one nothing is borne.
        value: of the taint, for `Equal`.
        effect: of the taint; none: any.
        toleration_seconds: for which it bears one that evicts; None: for ever.
    """

    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None
    toleration_seconds: int | None = None

    def bears(self, taint: Taint) -> bool:
        """Return whether a pod can come to a node with a taint, and stay there."""
        if taint.effect == _EVICTS and self.toleration_seconds is not None:
            return False
        if (self.key and self.key != taint.key) or (self.effect and self.effect != taint.effect):
            return False
        if self.operator == "Exists":
            return True
        return self.operator in (None, "", "Equal") and (self.value or "") == taint.value


class NodeChoice(NamedTuple):
    """The nodes that the template of a pod allows.

    Attributes:
        terms: one of which has to hold whole for a node; None: any node will do.
        tolerations: of the taints of nodes.
    """

    terms: tuple[tuple[Requirement, ...], ...] | None = None
    tolerations: tuple[Toleration, ...] = ()

    def allows(self, node: KubeNode, taints: Iterable[Taint] = ()) -> bool:
        """Return whether a pod may be on a node.

        Args:
            taints: of the node, all of which the pod has to bear.
        """
        found = {**node.metadata.labels, _NAME: node.metadata.name}
        is_chosen = self.terms is None or any(
            all(requirement.holds(found) for requirement in term) for term in self.terms
        )
        return is_chosen and all(
            any(toleration.bears(taint) for toleration in self.tolerations) for taint in taints
        )


ANY_NODE = NodeChoice()


def choice_in(spec: object) -> NodeChoice:
    """Return the choice of nodes in the spec of a pod.

    A refused selector chooses nothing: once a pod is made, the server names its fault.
    """
    required = part_of(part_of(part_of(spec, "affinity"), "nodeAffinity"), _REQUIRED)
    try:
        selector = msgspec.convert(part_of(spec, "nodeSelector") or {}, dict[str, str])
        terms = msgspec.convert(part_of(required, "nodeSelectorTerms"), tuple[NodeTerm, ...] | None)
        tolerations = msgspec.convert(part_of(spec, "tolerations") or (), tuple[Toleration, ...])
    except msgspec.ValidationError:
        return ANY_NODE
    requirements = tuple(
        Requirement(key=key, operator="In", values=(value,)) for key, value in selector.items()
    )
    if terms is None:
        return NodeChoice((requirements,) if requirements else None, tolerations)
    chosen = tuple((*requirements, *term.requirements) for term in terms if term.requirements)
    return NodeChoice(chosen, tolerations)


def common_choice(choices: Collection[NodeChoice]) -> NodeChoice:
    """Return the common part of several choices: equal nodes, and tolerations of all."""
    if not choices:
        return ANY_NODE
    first, *rest = choices
    are_equal = all(choice.terms == first.terms for choice in rest)
    borne = tuple(
        toleration
        for toleration in first.tolerations
        if all(toleration in choice.tolerations for choice in rest)
    )
    return NodeChoice(first.terms if are_equal else None, borne)
