"""Reads cluster.yaml, and YAML for people in general: a wrong word is said to be wrong, with its
place.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import yaml

from brim.decoding import UNDECODABLE
from brim.domain.cluster import Cluster, ClusterSpec, Node
from brim.domain.promising import PromiseAt
from brim.domain.quantities import parse_duration
from brim.domain.tenancy import Tenant
from brim.errors import SpecError, did_you_mean
from brim.policies.named import POLICIES
from brim.policies.quota import check_quota
from brim.storage.files import nearby


class _Node(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    workers: int
    switch: int = 0


class _Tenant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    cohort: str = "default"
    guaranteed: int = 0
    exclusive: int = 0
    limit: int | None = None
    weight: float = 1.0
    user: str = ""


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    nodes: list[_Node]
    tenants: list[_Tenant] = []
    policy: str = "brim"
    promise: str = PromiseAt.ARRIVAL
    headroom: int = 0
    grace: str | float = 30.0
    keep_ended: str | None = None


_AS_YAML = {
    "array": "a list",
    "object": "NAME: VALUE pairs",
    "int": "a whole number",
    "str": "a word",
    "null": "nothing",
}
_LARGEST_BYTES = 1 << 20
_MOST_VALUES = 1_000_000  # of a file, with what its aliases stand for each time that they are named
_EXAMPLE = "nodes: [{name: n1, workers: 8}]"
_WORDS = {name for struct in (_File, _Node, _Tenant) for name in struct.__struct_fields__}


class _NoKeyTwice:
    """YAML's standard forbids it, its readers let it pass.

    Nor are keys merged: a short file can merge without end.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        counts = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        line = node.start_mark.line + 1
        twice = sorted(key for key, count in counts.items() if count > 1)
        if twice:
            raise yaml.MarkedYAMLError(problem=f"{twice[0]!r} twice in the mapping of line {line}")
        if "<<" in counts:
            raise yaml.MarkedYAMLError(
                problem=f"'<<', which is not supported, in the mapping of line {line}"
            )
        found: dict[Any, Any] = super().construct_mapping(node, deep)  # type: ignore[misc]
        return found


class _Typed(_NoKeyTwice, yaml.SafeLoader):  # type: ignore[misc]  # yaml has no types
    pass


class _Words(_NoKeyTwice, yaml.BaseLoader):  # type: ignore[misc]
    pass


def read_yaml(path: Path, *, words: bool = False) -> Any:
    """The content of a YAML file.

    Args:
        words: leave every value as it was written: `1:4` is a number of base 60 else.

    Raises:
        SpecError: it cannot be read, is no YAML, or is larger than any file that people write.
    """
    try:
        return _parsed(path, _Words if words else _Typed)
    except FileNotFoundError:
        hint = nearby(path, (".yaml", ".yml"))
        raise SpecError(str(path), got="no such file", need="a YAML file", hint=hint) from None
    except OSError as error:
        raise SpecError(
            str(path), got=str(error.strerror), need="a file that can be read"
        ) from None
    except yaml.YAMLError as error:
        problem = getattr(error, "problem", None) or str(error)
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        raise SpecError(where, got=str(problem), need="valid YAML") from None
    # What yaml itself raises of values that are not what their tags say, and of nesting without
    # end.
    except (LookupError, TypeError, AttributeError, *UNDECODABLE) as error:
        raise SpecError(str(path), got=str(error), need="valid YAML") from None


def _parsed(path: Path, loader: Any) -> Any:
    with path.open("rb") as file:
        content = file.read(_LARGEST_BYTES + 1)
    if len(content) > _LARGEST_BYTES:
        raise SpecError(str(path), got="a larger file", need=f"at most {_LARGEST_BYTES >> 20} MiB")
    found = yaml.load(content, loader)
    if _count(found, {}) > _MOST_VALUES:
        raise SpecError(
            str(path),
            got="aliases that stand for more",
            need=f"at most {_MOST_VALUES:,} values in all",
        )
    return found


def _count(value: Any, known: dict[int, int]) -> int:
    """How many values there are in a value; what is part of itself has no end.

    Args:
        known: the counts of lists and mappings that were counted, by their `id`.
    """
    if not isinstance(value, (list, dict)):
        return 1
    if id(value) not in known:
        known[id(value)] = _MOST_VALUES + 1  # while it is being counted
        inner = value.values() if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_count(each, known) for each in inner)
    return known[id(value)]


def read_cluster_file(path: Path) -> ClusterSpec:
    """The cluster that a file describes.

    Raises:
        SpecError: with the place in the file.
    """
    return cluster_spec(read_yaml(path), name=str(path))


def cluster_spec(content: object, *, name: str = "cluster") -> ClusterSpec:
    """The cluster that the decoded content of a file describes.

    Args:
        name: of the file, for errors.

    Raises:
        SpecError: with the place in the file.

    >>> cluster_spec({"nodes": [{"name": "n1", "workers": 4}], "headroom": 1}).capacity
    3
    """
    try:
        file = msgspec.convert(content, _File)
    except msgspec.ValidationError as error:
        raise _explained(str(error), name) from None
    if file.policy not in POLICIES:
        hint = did_you_mean(file.policy, POLICIES)
        raise SpecError(
            f"{name}: policy", got=repr(file.policy), need="the name of a policy", hint=hint
        )
    if file.promise not in list(PromiseAt):
        hint = did_you_mean(file.promise, list(PromiseAt))
        need = " or ".join(PromiseAt)
        raise SpecError(f"{name}: promise", got=repr(file.promise), need=need, hint=hint)
    grace = parse_duration(str(file.grace), field=f"{name}: grace")
    keep = file.keep_ended
    keep_ended = None if keep is None else parse_duration(keep, field=f"{name}: keep_ended")
    try:
        return _spec_of(file, grace=grace, keep_ended=keep_ended)
    except SpecError as error:
        raise SpecError(
            f"{name}: {error.field}", got=error.got, need=error.need, hint=error.hint
        ) from None


def _spec_of(file: _File, *, grace: float, keep_ended: float | None) -> ClusterSpec:
    """Raises SpecError where what it says cannot be."""
    spec = ClusterSpec(
        cluster=Cluster(
            nodes=tuple(
                Node(id=each.name, devices=each.workers, switch=each.switch) for each in file.nodes
            )
        ),
        tenants=tuple(
            Tenant(
                id=each.name,
                cohort=each.cohort,
                guaranteed=each.guaranteed,
                exclusive=each.exclusive,
                limit=each.limit,
                weight=each.weight,
                user=each.user,
            )
            for each in file.tenants
        ),
        policy=file.policy,
        promise=PromiseAt(file.promise),
        headroom=file.headroom,
        grace=grace,
        keep_ended=keep_ended,
    )
    check_quota(spec.tenants, spec.capacity)
    return spec


def _explained(message: str, name: str) -> SpecError:
    """What msgspec found wrong, as field, got, need and hint."""
    text, _, place = message.partition(" - at `")
    where = place.rstrip("`").removeprefix("$").removeprefix(".")
    field = f"{name}: {where}" if where else name
    unknown = re.search(r"unknown field `(.*)`", text)
    if unknown:
        odd = unknown.group(1)
        return SpecError(
            field, got=repr(odd), need="a key of this file", hint=did_you_mean(odd, _WORDS)
        )
    missing = re.search(r"missing required field `(.*)`", text)
    if missing:
        return SpecError(field, got=f"no {missing.group(1)!r}", need=f"{missing.group(1)!r}")
    expected = re.search(r"Expected `(.*)`, got `(.*)`", text)
    if expected:
        got, need = (_AS_YAML.get(word, word) for word in (expected.group(2), expected.group(1)))
        return SpecError(
            field, got=got, need=need, hint=f"docs/guides/cluster.md shows one: {_EXAMPLE}"
        )
    return SpecError(field, got=text, need="what docs/guides/cluster.md shows")
