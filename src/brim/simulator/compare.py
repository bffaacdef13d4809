"""One trace under several policies: runs them, measures them, and reads every ratio against the
ceiling.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from brim.clock import SystemClock
from brim.domain.cluster import Cluster
from brim.domain.schedule import Policy
from brim.domain.workload import Job
from brim.errors import InternalError, SpecError, did_you_mean
from brim.from_file import is_in_file
from brim.policies.ceiling import ceiling_per_job, ceiling_with_capacity
from brim.policies.named import POLICIES
from brim.simulator.as_coded.named import AS_CODED, DEFAULT_SLOT, replay
from brim.simulator.engine import Settings, simulate
from brim.simulator.own_policy import own_policy
from brim.simulator.profiles import Profiles, read_profiles
from brim.simulator.run import Metrics, Run, measure
from brim.simulator.traces import needed_profiles

_FAITHFUL = ":as-coded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One trace under one policy: what happened, its metrics,
    and the processor time that it took.
    """

    policy: str
    run: Run
    metrics: Metrics
    cpu_seconds: float
    slot: float


def known_policies() -> list[str]:
    """Every name that `--policy` takes."""
    return sorted([*POLICIES, *(name + _FAITHFUL for name in AS_CODED)])


def policy_called(name: str) -> Policy:
    """One of brim's policies, or the function that `FILE.py:NAME` names.

    Raises:
        SpecError: there is no such policy, file or function, or what is there is no policy.
        UserCodeError: the user's file raises.
    """
    return own_policy(name, field="--policy") if is_in_file(name) else POLICIES[name]


def check_policies(names: Sequence[str], slot: float | None) -> None:
    """Refuse what cannot run before anything is read or run.

    Raises:
        SpecError: a policy that does not exist or is named twice, or a slot that it does not have.
    """
    known = known_policies()
    for name in names:
        if is_in_file(name):
            policy_called(name)
        elif name not in known:
            hint = did_you_mean(name, known)
            raise SpecError(
                "--policy",
                got=name or "an empty name",
                need="a known policy, or FILE.py:NAME",
                hint=hint,
            )
        if name.endswith(_FAITHFUL) and slot is not None and slot < 1:
            raise SpecError(
                "--slot",
                got=f"{slot:g}",
                need="60 or 240 for :as-coded",
                hint=f"--slot {DEFAULT_SLOT:g}",
            )
    if len(set(names)) < len(names):
        raise SpecError("--policy", got=",".join(names), need="each policy once")
    if slot is not None and not math.isfinite(slot):
        raise SpecError("--slot", got=str(slot), need="seconds, 0 or more", hint="--slot 240")


def run_policy(
    name: str,
    jobs: Sequence[Job],
    cluster: Cluster,
    *,
    settings: Settings,
    slot: float | None = None,
    progress: Callable[[int], None] | None = None,
) -> Result:
    """Run `jobs` under the policy called `name`.

    Args:
        slot: None is 0 for brim's own policies and the published 240 s for `:as-coded`.

    Raises:
        SpecError: there is no such policy.
    """
    check_policies([name], slot)
    clock = SystemClock()
    start = clock.cpu()
    if name.endswith(_FAITHFUL):
        slot = DEFAULT_SLOT if slot is None else slot
        run = replay(name.removesuffix(_FAITHFUL), jobs, cluster, slot=slot)
    else:
        slot = 0.0 if slot is None else slot
        run = _simulate(name, jobs, cluster, replace(settings, slot=slot), progress)
    seconds = clock.cpu() - start
    return Result(policy=name, run=run, metrics=measure(run), cpu_seconds=seconds, slot=slot)


def _simulate(
    name: str,
    jobs: Sequence[Job],
    cluster: Cluster,
    settings: Settings,
    progress: Callable[[int], None] | None,
) -> Run:
    try:
        return simulate(jobs, cluster, policy_called(name), settings=settings, progress=progress)
    except InternalError as error:
        if not is_in_file(name):
            raise
        # Each decision was one that can be carried out; all of them together led nowhere.
        need, hint = "workers for every job in the end", "give what is free to those that wait"
        raise SpecError(f"--policy {name}", got=str(error), need=need, hint=hint) from error


def ceilings(jobs: Sequence[Job], cluster: Cluster) -> dict[str, float | None]:
    """What no policy can exceed; `capacity` is None where the solver is not installed."""
    devices = cluster.devices
    try:
        capacity = ceiling_with_capacity(jobs, devices=devices)
    except ModuleNotFoundError:
        capacity = None
    return {"per_job": ceiling_per_job(jobs, devices=devices), "capacity": capacity}


def summary(results: Sequence[Result], ceiling: dict[str, float | None]) -> dict[str, Any]:
    """The object that `--json` prints."""
    policies: dict[str, Any] = {}
    for result in results:
        figures = {key: _rounded(value) for key, value in asdict(result.metrics).items()}
        policies[result.policy] = figures | {
            "cpu_seconds": round(result.cpu_seconds, 4),
            "slot_seconds": result.slot,
        }
    notes = {
        "deadline_satisfactory_ratio": "exact finish, overheads included, at most the deadline; "
        "jobs that "
        "were refused and dropped have missed it; :as-coded as the published artifact judges",
        "average_jct_seconds": "over every job that ran to its end: best-effort jobs and refused "
        "jobs that "
        "were kept as best effort included, dropped jobs not (see `dropped`)",
    }
    return {
        "policies": policies,
        "ceiling": {k: _rounded(v) for k, v in ceiling.items()},
        "notes": notes,
    }


def _rounded(value: Any) -> Any:
    return round(value, 6) if isinstance(value, float) else value


def find_profiles(trace: Path) -> tuple[Path, Profiles] | None:
    """A folder of profiles near `trace` that has every model of it; None where there is none."""
    wanted = needed_profiles(trace)
    for root in (trace.parent, trace.parent.parent):
        for folder in sorted({root, *root.glob("profiles"), *root.glob("profiles/*")}):
            if folder.is_dir():
                try:
                    found = read_profiles(folder)
                except SpecError:
                    continue
                if wanted <= found.keys():
                    return folder, found
    return None
