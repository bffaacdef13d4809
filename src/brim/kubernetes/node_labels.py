"""Selectors of nodes by their labels, as a list of nodes takes them and as a pod's affinity does. Pure."""

from __future__ import annotations

import re
from typing import Any

from brim.errors import SpecError

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
