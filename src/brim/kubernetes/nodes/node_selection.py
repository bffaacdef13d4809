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
    terms = part_of(part_of(affinity, _REQUIRED), "nodeSelectorTerms") or None
    here = [{"key": _NAME, "operator": "In", "values": [node]}] if node else []
    wanted = {"matchExpressions": node_requirements(labels), "matchFields": here}
    ours = {name: each for name, each in wanted.items() if each}
    if not ours or not isinstance(affinity, Mapping) or not isinstance(terms, list | None):
        return affinity
    both = [ours] if terms is None else [_with(term, ours) for term in terms]
    return {**affinity, _REQUIRED: {"nodeSelectorTerms": both}}


def preferring(given: object, node: str) -> Any:
    """Return the affinity to nodes of a pod, with a node that it is to have where it may.

    Args:
        given: what its owner asks for, which holds as well. What the server would refuse is left to it.

    >>> preferring({}, "n1")[_PREFERRED]
    [{'weight': 100, 'preference': {'matchFields': [{'key': 'metadata.name', 'operator': 'In', 'values': ['n1']}]}}]
    """
    affinity = {} if given is None else given
    theirs = part_of(affinity, _PREFERRED) or []
    if not isinstance(affinity, Mapping) or not isinstance(theirs, list):
        return affinity
    here = {"matchFields": [{"key": _NAME, "operator": "In", "values": [node]}]}
    return {**affinity, _PREFERRED: [*theirs, {"weight": 100, "preference": here}]}


def _with(term: object, ours: Mapping[str, Sequence[Any]]) -> object:
    """Return a term with more requirements, all of which have to hold; an empty one holds nowhere."""
    if not isinstance(term, Mapping) or not any(term.values()):
        return term
    theirs = {name: part_of(term, name) or [] for name in ours}
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
        """Return whether it holds for what a node has."""
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
    if len(sides) != 2 or not all(_WHOLE.fullmatch(each) for each in sides):
        return False
    here, bound = map(int, sides)
    return here > bound if operator == "Gt" else here < bound


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
            all(each.holds(found) for each in term) for term in self.terms
        )
        return is_chosen and all(
            any(each.bears(taint) for each in self.tolerations) for taint in taints
        )


ANY_NODE = NodeChoice()


def choice_in(spec: object) -> NodeChoice:
    """Return the choice of nodes in the spec of a pod.

    What the server refuses chooses nothing: once a pod is made, the server says what is wrong.
    """
    required = part_of(part_of(part_of(spec, "affinity"), "nodeAffinity"), _REQUIRED)
    try:
        selector = msgspec.convert(part_of(spec, "nodeSelector") or {}, dict[str, str])
        terms = msgspec.convert(part_of(required, "nodeSelectorTerms"), tuple[NodeTerm, ...] | None)
        given = msgspec.convert(part_of(spec, "tolerations") or (), tuple[Toleration, ...])
    except msgspec.ValidationError:
        return ANY_NODE
    every = tuple(
        Requirement(key=key, operator="In", values=(each,)) for key, each in selector.items()
    )
    if terms is None:
        return NodeChoice((every,) if every else None, given)
    chosen = tuple((*every, *term.requirements) for term in terms if term.requirements)
    return NodeChoice(chosen, given)


def common_choice(choices: Collection[NodeChoice]) -> NodeChoice:
    """Return what several choices have in common: their nodes if these are the same, and tolerations of all."""
    if not choices:
        return ANY_NODE
    first, *others = choices
    same = all(each.terms == first.terms for each in others)
    borne = tuple(
        each for each in first.tolerations if all(each in other.tolerations for other in others)
    )
    return NodeChoice(first.terms if same else None, borne)
