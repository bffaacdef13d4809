"""Cycles of the scheduler as bytes, so that they can be explained and replayed.

A cycle is its snapshot and its decision.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

import msgspec

from brim.decoding import UNDECODABLE
from brim.domain.cluster import Cluster
from brim.domain.promising import PromiseAt
from brim.domain.resizing import Overheads
from brim.domain.scaling import ScalingCurve
from brim.domain.schedule import Admitted, Decision, JobState, Reason, Rejected, Snapshot, Standing
from brim.domain.tenancy import Tenant
from brim.domain.usage import RecentUse
from brim.domain.workload import Job, Priority
from brim.errors import EnvironmentFault, SpecError
from brim.policies.brim import Remembered
from brim.policies.cycle import CycleMemory
from brim.policies.placement import DeviceBlock

# What these policies remember decides what they do next; what elasticflow does only saves it work.
_GAVEL_ACCOUNT = tuple[float, float, float, float, float, bool]
_GAVEL = tuple[float, float, float, bool, dict[str, _GAVEL_ACCOUNT]]
_REMEMBERS: dict[str, Any] = {
    "brim": Remembered,
    "gavel": _GAVEL,
    "gavel-finish-time": _GAVEL,
    "gavel-makespan": _GAVEL,
    "pollux": tuple[float, dict[str, int]],
    "sia": tuple[float, dict[str, tuple[int, int, int]]],
}

_MAX_CYCLE_BYTES = 1 << 30  # bytes of a cycle: one of 10,000 jobs has some millions

# What is raised where bytes, or what they say, are no cycle.
_NO_CYCLE = (
    zlib.error,
    LookupError,
    TypeError,
    AttributeError,
    OverflowError,
    SpecError,
    *UNDECODABLE,
)

_JOB = tuple(field.name for field in fields(Job) if field.name not in ("curve", "nodes"))
_SNAPSHOT = (
    "now",
    "cluster",
    "capacity",
    "arrived",
    "overheads",
    "tenants",
    "assured",
    "promise",
    "recent",
    "unavailable",
)
_DECISION = ("workers", "verdicts", "wake", "reasons", "needed", "nodes")


def encode_cycle(snapshot: Snapshot, decision: Decision) -> bytes:
    """Both but for their memory, which follows from the cycles before.

    The nodes that owners have chosen are written once for all jobs that have the same.
    """
    choices: dict[tuple[str, ...], int] = {}
    jobs = [
        {"job": {name: getattr(state.job, name) for name in _JOB}}
        | {"chosen": _index(state.job.nodes, choices)}
        | {"curve": state.job.curve.points, "stepped": state.job.curve.stepped}
        | {name: getattr(state, name) for name in JobState._fields if name != "job"}
        | {"nodes": dict(state.nodes)}
        for state in snapshot.jobs
    ]
    saw = {name: getattr(snapshot, name) for name in _SNAPSHOT} | {"jobs": jobs}
    saw["choices"] = list(choices)
    decided = {name: getattr(decision, name) for name in _DECISION}
    decided |= {"pinned": sorted(decision.pinned), "moved": sorted(decision.moved)}
    decided["verdicts"] = [
        {"yes": isinstance(verdict, Admitted), **msgspec.to_builtins(verdict)}
        for verdict in decision.verdicts
    ]
    return zlib.compress(msgspec.json.encode({"saw": saw, "decided": decided}))


def _index(chosen: tuple[str, ...] | None, choices: dict[tuple[str, ...], int]) -> int | None:
    """Return the number of a choice among all, which it joins; None: nothing was chosen."""
    return None if chosen is None else choices.setdefault(chosen, len(choices))


@contextlib.contextmanager
def _checked(subject: str) -> Iterator[None]:
    """Call it damaged where reading it goes wrong."""
    try:
        yield
    except _NO_CYCLE as error:
        raise EnvironmentFault(f"{subject} is damaged: {error}") from error


@_checked("the record of a cycle")
def decode_cycle(data: bytes) -> tuple[Snapshot, Decision]:
    """Return the cycle that `encode_cycle` was given, without memory.

    Raises:
        EnvironmentFault: the bytes are damaged.
    """
    found = msgspec.json.decode(zlib.decompressobj().decompress(data, _MAX_CYCLE_BYTES))
    return _snapshot(found["saw"]), _decision(found["decided"])


def _snapshot(saw: dict[str, Any]) -> Snapshot:
    choices = [tuple(choice) for choice in saw.get("choices", ())]
    return Snapshot(
        now=saw["now"],
        cluster=msgspec.convert(saw["cluster"], Cluster),
        capacity=saw["capacity"],
        jobs=tuple(_state(row, choices) for row in saw["jobs"]),
        arrived=tuple(saw["arrived"]),
        overheads=msgspec.convert(saw["overheads"], Overheads),
        tenants=msgspec.convert(saw["tenants"], tuple[Tenant, ...]),
        assured=saw["assured"],
        promise=PromiseAt(saw.get("promise", PromiseAt.ARRIVAL)),
        recent=msgspec.convert(saw.get("recent"), RecentUse | None),
        unavailable=msgspec.convert(saw.get("unavailable", {}), dict[str, str]),
    )


def _state(row: dict[str, Any], choices: Sequence[tuple[str, ...]]) -> JobState:
    job = row.pop("job")
    points = tuple((n, rate) for n, rate in row.pop("curve"))
    curve = ScalingCurve(points=points, stepped=row.pop("stepped"))
    kinds, chosen = job.get("kinds"), row.pop("chosen", None)
    job["kinds"] = None if kinds is None else tuple(kinds)
    job["nodes"] = None if chosen is None else choices[chosen]
    decoded_job = Job(**job | {"curve": curve, "priority": Priority(job["priority"])})
    return JobState(decoded_job, **row | {"standing": Standing(row["standing"])})


def _decision(decided: dict[str, Any]) -> Decision:
    verdicts: list[Admitted | Rejected] = []
    for row in decided["verdicts"]:
        kind: type[Admitted | Rejected] = Admitted if row.pop("yes") else Rejected
        verdicts.append(msgspec.convert(row, kind))
    return Decision(
        workers=decided["workers"],
        verdicts=tuple(verdicts),
        wake=decided["wake"],
        reasons={job: (Reason(reason), text) for job, (reason, text) in decided["reasons"].items()},
        pinned=frozenset(decided["pinned"]),
        needed=decided["needed"],
        moved=frozenset(decided["moved"]),
        nodes=decided["nodes"],
    )


def encode_memory(memory: CycleMemory, *, policy: str) -> bytes:
    """Encode a cycle's memory for the next, as far as that decides anything.

    Args:
        policy: whose it is.
    """
    policies = memory.policies.items() if policy in _REMEMBERS else ()
    rows = [[tenant, priority, memory] for (tenant, priority), memory in policies]
    return msgspec.msgpack.encode({"policies": rows, "blocks": memory.blocks})


@_checked("what a cycle left to the next one")
def decode_memory(data: bytes, *, policy: str) -> CycleMemory:
    """Return the memory that `encode_memory` was given.

    Raises:
        EnvironmentFault: the bytes are damaged.
    """
    found = msgspec.msgpack.decode(data)
    kind = _REMEMBERS.get(policy)
    return CycleMemory(
        policies={
            (tenant, priority): msgspec.convert(memory, kind)
            for tenant, priority, memory in found["policies"]
        },
        blocks=msgspec.convert(found["blocks"], dict[str, tuple[DeviceBlock, ...]]),
    )
