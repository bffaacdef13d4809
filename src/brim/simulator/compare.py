"""Compares policies on one trace: runs them, measures them, and reads every ratio.

Each ratio is read against the ceiling.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from brim.domain.cluster import Cluster
from brim.domain.schedule import Policy
from brim.domain.workload import Job
from brim.errors import EnvironmentFault, InternalError, SpecError, did_you_mean
from brim.host.clock import SystemClock
from brim.policies.baselines.ceiling import ceiling_per_job, ceiling_with_capacity
from brim.simulator.engine import Settings, simulate
from brim.simulator.own_policy import checked_policy, own_policy
from brim.simulator.profiles import Profiles, read_profiles
from brim.simulator.run import Metrics, SimulatedRun, measure
from brim.simulator.traces import needed_profiles
from brim.user_code.from_file import is_in_file
from brim.user_code.plugins import POLICIES as ADDED
from brim.user_code.plugins import how_to_install, load_plugin, plugins
from brim.user_code.policies import POLICIES


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One trace under one policy: the course, its metrics, and the processor time that it took."""

    policy: str
    run: SimulatedRun
    metrics: Metrics
    cpu_seconds: float
    slot: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """A policy as somebody published it, clock included: it replays a whole trace by itself.

    It never sees a snapshot, and settings (overheads, faults, tenants) do not reach it.

    Args:
        run: the run of these jobs, by time of submission, on this cluster, with this slot.
        slots: seconds between two cycles that were published, the usual one last.
    """

    run: Callable[[Sequence[Job], Cluster, float], SimulatedRun]
    slots: tuple[float, ...]

    @property
    def slot(self) -> float:
        """The default seconds between two cycles."""
        return self.slots[-1]


def known_policies(tell: Callable[[str], None] = lambda _: None) -> list[str]:
    """Return every name that `--policy` takes.

    Args:
        tell: hears why a package's policies are not among them.
    """
    names = list(POLICIES)
    for family in plugins(ADDED):
        try:
            names += [f"{name}:{family}" for name in _family(family)]
        except EnvironmentFault as error:
            tell(str(error))
    return sorted(names)


def _family(name: str) -> Mapping[str, Policy | Replica]:
    """Return the policies of a package by name; empty where no package has such a family."""
    plugin = plugins(ADDED).get(name)
    found: Mapping[str, Policy | Replica] = {} if plugin is None else load_plugin(plugin)
    return found


def policy_called(name: str) -> Policy | Replica:
    """One of brim's policies, one that a package adds, or the function that `FILE.py:NAME` names.

    Raises:
        SpecError: there is no such policy, file or function, or what is there is no policy.
        UserCodeError: the user's file raises.
        EnvironmentFault: the package that has the policy cannot be imported.
    """
    if is_in_file(name):
        return own_policy(name, field="--policy")
    if name in POLICIES:
        return POLICIES[name]
    function, _, family = name.rpartition(":")
    found = _family(family).get(function)
    if found is None:
        raise _unknown(name, family)
    return found if isinstance(found, Replica) else checked_policy(found, name, field="--policy")


def _unknown(name: str, family: str) -> SpecError:
    install = how_to_install(ADDED, family)
    if install and family not in plugins(ADDED):
        return SpecError(
            "--policy", got=repr(name), need=f"the package that has :{family}", hint=install
        )
    return SpecError(
        "--policy",
        got=name or "an empty name",
        need="a known policy, or FILE.py:NAME",
        hint=did_you_mean(name, known_policies()),
    )


def is_replica(name: str) -> bool:
    """Return whether a known policy is a replica."""
    return isinstance(policy_called(name), Replica)


def check_policies(names: Sequence[str], slot: float | None) -> None:
    """Refuse impossible policies before anything is read or run.

    Raises:
        SpecError: a policy that does not exist or is named twice, or a slot that it does not have.
    """
    for name in names:
        policy = policy_called(name)
        if isinstance(policy, Replica) and slot is not None and slot < 1:
            need = " or ".join(f"{slot:g}" for slot in policy.slots)
            raise SpecError(
                "--slot",
                got=f"{slot:g}",
                need=f"{need} for {name}",
                hint=f"--slot {policy.slot:g}",
            )
    if len(set(names)) < len(names):
        raise SpecError("--policy", got=",".join(names), need="each policy once")
    if slot is not None and not math.isfinite(slot):
        raise SpecError("--slot", got=str(slot), need="seconds, 0 or more", hint="--slot 240")


def check_fit(jobs: Sequence[Job], devices: int, *, option: str = "--trace") -> None:
    """Refuse jobs that no policy can ever start.

    Args:
        option: that named the file of the jobs, for messages.

    Raises:
        SpecError: a job that runs only on more devices than there are.
    """
    for job in jobs:
        minimum = max(job.minimum, job.curve.points[0][0])
        if minimum > devices:
            raise SpecError(
                f"{option}, job {job.id}",
                got=f"a minimum of {minimum} workers",
                need=f"at most {devices}, the devices of the cluster",
                hint=f"--cluster 1x{minimum}",
            )


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
        slot: None is 0, and for a replica the slot that was published.

    Raises:
        SpecError: there is no such policy.
    """
    check_policies([name], slot)
    clock = SystemClock()
    start = clock.cpu()
    policy = policy_called(name)
    if isinstance(policy, Replica):
        slot = policy.slot if slot is None else slot
        run = policy.run(sorted(jobs, key=lambda job: (job.submitted, job.id)), cluster, slot)
    else:
        slot = 0.0 if slot is None else slot
        try:
            run = simulate(
                jobs, cluster, policy, settings=replace(settings, slot=slot), progress=progress
            )
        except InternalError as error:
            if name in POLICIES:
                raise
            # Each decision was one that can be carried out; all of them together led nowhere.
            need, hint = "workers for every job in the end", "give what is free to those that wait"
            raise SpecError(f"--policy {name}", got=str(error), need=need, hint=hint) from error
    seconds = clock.cpu() - start
    return Result(policy=name, run=run, metrics=measure(run), cpu_seconds=seconds, slot=slot)


def ceilings(jobs: Sequence[Job], cluster: Cluster) -> dict[str, float | None]:
    """Return bounds that no policy can exceed; `capacity` is None without the solver."""
    devices = cluster.devices
    try:
        capacity = ceiling_with_capacity(jobs, devices=devices)
    except ModuleNotFoundError:
        capacity = None
    return {"per_job": ceiling_per_job(jobs, devices=devices), "capacity": capacity}


def summary(
    results: Sequence[Result],
    ceiling: dict[str, float | None],
    *,
    happened: SimulatedRun | None = None,
    assumed: Sequence[str] = (),
) -> dict[str, Any]:
    """The object that `--json` prints.

    Args:
        happened: the past, with which the policies are compared.
        assumed: sentences on all that was taken for granted.
    """
    policies: dict[str, Any] = {}
    for result in results:
        policies[result.policy] = figures_of(result.metrics) | {
            "cpu_seconds": round(result.cpu_seconds, 4),
            "slot_seconds": result.slot,
        }
    history = (
        {}
        if happened is None
        else {"as_it_happened": figures_of(measure(happened)), "assumed": list(assumed)}
    )
    notes = {
        "deadline_satisfactory_ratio": "exact finish, overheads included, at most the deadline; "
        "jobs that "
        "were refused and dropped have missed it; :as-coded as the published artifact judges",
        "average_wait_seconds": "from submission to the first workers, over every job that had any",
        "average_jct_seconds": "over every job that ran to its end: best-effort jobs and refused "
        "jobs that "
        "were kept as best effort included, dropped jobs not (see `dropped`)",
    }
    return history | {
        "policies": policies,
        "ceiling": {k: _rounded(v) for k, v in ceiling.items()},
        "notes": notes,
    }


def figures_of(metrics: Metrics) -> dict[str, Any]:
    """The figures of a run by name."""
    return {key: _rounded(value) for key, value in asdict(metrics).items()}


def _rounded(value: Any) -> Any:
    return round(value, 6) if isinstance(value, float) else value


def find_profiles(trace: Path) -> tuple[Path, Profiles] | None:
    """A folder of profiles near `trace` that has every model of it; None where there is none."""
    models = needed_profiles(trace)
    for root in (trace.parent, trace.parent.parent):
        for folder in sorted({root, *root.glob("profiles"), *root.glob("profiles/*")}):
            if folder.is_dir():
                try:
                    found = read_profiles(folder)
                except SpecError:
                    continue
                if models <= found.keys():
                    return folder, found
    return None
