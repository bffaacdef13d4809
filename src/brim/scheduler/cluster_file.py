"""The file that describes a cluster: a wrong word in it is said to be wrong, with its place."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec

from brim.domain.channels import Channel, Mail, Webhook
from brim.domain.cluster import Cluster, ClusterSpec, Node
from brim.domain.options import LARGEST_COUNT
from brim.domain.promising import PromiseAt
from brim.domain.quantities import parse_bytes, parse_duration
from brim.domain.services import ServiceRules
from brim.domain.tenancy import MOST_CODE, MOST_JOBS, Quota, Tenant
from brim.errors import SpecError, did_you_mean
from brim.policies.quota import check_quota
from brim.storage.yaml_file import read_yaml
from brim.user_code.policies import POLICIES


class _NodeEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    workers: int
    switch: int = 0


class _TenantEntry(Quota, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    user: str = ""
    jobs: int = MOST_JOBS
    code: str = ""


class _ServicesEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    ports: str = ""
    address: str = ""
    urls: list[str] = []
    certificate: str = ""
    key: str = ""


class _ClusterFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    nodes: list[_NodeEntry]
    tenants: list[_TenantEntry] = []
    policy: str = "brim"
    promise: str = PromiseAt.ARRIVAL
    headroom: int = 0
    grace: str | float = 30.0
    keep_ended: str | None = None
    usage_half_life: str | float | None = None
    notify: list[Channel] = []
    services: _ServicesEntry = _ServicesEntry()


_AS_YAML = {
    "array": "a list",
    "object": "NAME: VALUE pairs",
    "bool": "yes or no",
    "float": "a number",
    "int": "a whole number",
    "str": "a word",
    "null": "nothing",
}
_LARGEST_SHOWN = 60  # characters of a wrong value
_EXAMPLE = "nodes: [{name: n1, workers: 8}]"
_SECTIONS: dict[str, tuple[type[msgspec.Struct], ...]] = {
    "at the top": (_ClusterFile,),
    "under nodes": (_NodeEntry,),
    "under tenants": (_TenantEntry,),
    "under services": (_ServicesEntry,),
    "under notify": (Channel, Mail, Webhook),
}
_PLACES = {
    name: place
    for place, structs in reversed(_SECTIONS.items())
    for struct in structs
    for name in struct.__struct_encode_fields__
}


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
    _check_counts(content, name)
    try:
        file = msgspec.convert(content, _ClusterFile)
    except msgspec.ValidationError as error:
        raise _explained(str(error), name, content) from None
    except SpecError as error:
        raise _in_file(error, name) from None
    if file.policy not in POLICIES:
        hint = did_you_mean(file.policy, POLICIES)
        raise SpecError(
            f"{name}: policy", got=repr(file.policy), need="the name of a policy", hint=hint
        )
    POLICIES[file.policy]  # raises where its package is missing
    if file.promise not in list(PromiseAt):
        hint = did_you_mean(file.promise, list(PromiseAt))
        need = " or ".join(PromiseAt)
        raise SpecError(f"{name}: promise", got=repr(file.promise), need=need, hint=hint)
    grace = parse_duration(str(file.grace), field=f"{name}: grace")
    durations = {
        key: None if text is None else parse_duration(str(text), field=f"{name}: {key}")
        for key in ("keep_ended", "usage_half_life")
        for text in (getattr(file, key),)
    }
    try:
        return _spec_of(file, grace=grace, **durations)
    except SpecError as error:
        raise _in_file(error, name) from None


def _check_counts(content: object, place: str, separator: str = ": ") -> None:
    """Refuse whole numbers that nothing can count.

    Raises:
        SpecError: with the place in the file.
    """
    parts: list[tuple[str, object]] = []
    if isinstance(content, dict):
        parts = [(f"{separator}{key}", value) for key, value in content.items()]
    elif isinstance(content, list):
        parts = [(f"[{index}]", value) for index, value in enumerate(content)]
    elif isinstance(content, int) and content > LARGEST_COUNT:
        raise SpecError(place, got=_brief(str(content)), need=f"at most {LARGEST_COUNT:,}")
    for name, part in parts:
        _check_counts(part, f"{place}{name}", ".")


def _in_file(error: SpecError, name: str) -> SpecError:
    return SpecError(f"{name}: {error.field}", got=error.got, need=error.need, hint=error.hint)


def _spec_of(
    file: _ClusterFile, *, grace: float, keep_ended: float | None, usage_half_life: float | None
) -> ClusterSpec:
    """Raises SpecError where its content is impossible."""
    spec = ClusterSpec(
        cluster=Cluster(
            # The file says `workers`, since each worker has a device of its own: an accelerator or
            # a CPU core.
            nodes=tuple(
                Node(id=node.name, devices=node.workers, switch=node.switch) for node in file.nodes
            )
        ),
        tenants=tuple(_tenant(**msgspec.structs.asdict(each)) for each in file.tenants),
        policy=file.policy,
        promise=PromiseAt(file.promise),
        headroom=file.headroom,
        grace=grace,
        keep_ended=keep_ended,
        usage_half_life=usage_half_life,
        channels=tuple(file.notify),
        services=_rules(file.services),
    )
    if not spec.is_open:  # else nodes that join have the devices
        check_quota(spec.tenants, spec.capacity)
    return spec


def _rules(entry: _ServicesEntry) -> ServiceRules:
    ports: Any = {}
    if entry.ports:
        first, _, last = entry.ports.partition("-")
        if not (first.isdecimal() and (last or first).isdecimal()):
            need = "a range of ports"
            hint = "ports: 8000-8099"
            raise SpecError("services: ports", got=repr(entry.ports), need=need, hint=hint)
        ports = {"first_port": int(first), "last_port": int(last or first)}
    return ServiceRules(
        **ports,
        address=entry.address,
        urls=tuple(entry.urls),
        certificate=entry.certificate,
        key=entry.key,
    )


def _tenant(name: str, code: str, **others: Any) -> Tenant:
    most = parse_bytes(code, field=f"tenant {name}: code") if code else MOST_CODE
    return Tenant(id=name, code=most, **others)


def _explained(message: str, name: str, content: object) -> SpecError:
    """Turn msgspec's error into field, got, need and hint."""
    text, _, place = message.partition(" - at `")
    place_text = place.rstrip("`").removeprefix("$").removeprefix(".")
    field = f"{name}: {place_text}" if place_text else name
    unknown = re.search(r"unknown field `(.*)`", text)
    if unknown:
        odd = unknown.group(1)
        hint = did_you_mean(odd, _PLACES)
        if odd in _PLACES:
            hint = f"{odd} stands {_PLACES[odd]}"
        return SpecError(field, got=repr(odd), need="a key that is known here", hint=hint)
    missing = re.search(r"missing required field `(.*)`", text)
    if missing:
        return SpecError(field, got=f"no {missing.group(1)!r}", need=f"{missing.group(1)!r}")
    expected = re.search(r"Expected `(.*)`, got `(.*)`", text)
    if expected:
        needs = [word for word in expected.group(1).split(" | ") if word != "null"]
        need = " or ".join(_AS_YAML.get(word, word) for word in needs)
        actual = _AS_YAML.get(expected.group(2), expected.group(2))
        is_secret = place_text.startswith(
            "notify"
        )  # addresses that make whoever knows them the sender
        value = None if is_secret else _value_at(content, place_text)
        return SpecError(
            field,
            got=_shown(value, otherwise=actual),
            need=need,
            hint=_hint_of(expected.group(2), need),
        )
    return SpecError(field, got=text, need="what docs/guides/cluster.md shows")


def _value_at(content: object, place: str) -> object:
    """Return the value at a place such as `nodes[0].workers`; None where there is none."""
    for key, index in re.findall(r"([^.\[\]]+)|\[(\d+)\]", place):
        if key and isinstance(content, dict):
            content = content.get(key)
        elif index and isinstance(content, list) and int(index) < len(content):
            content = content[int(index)]
        else:
            return None
    return content


def _shown(value: object, *, otherwise: str) -> str:
    """A wrong value as its author knows it; lists and mappings by their kind."""
    if isinstance(value, bool):
        return "true (yes)" if value else "false (no)"
    if isinstance(value, (str, int, float)):
        return _brief(repr(value))
    return otherwise


def _brief(text: str) -> str:
    return text if len(text) <= _LARGEST_SHOWN else f"{text[: _LARGEST_SHOWN - 1]}…"


def _hint_of(actual: str, need: str) -> str:
    """Return the way to write it, where one can tell."""
    if actual == "bool" and need == _AS_YAML["str"]:
        return "write it in quotes: 'yes', 'no'"
    return f"docs/guides/cluster.md shows one: {_EXAMPLE}"
