"""The status of Kubeflow's objects, as its SDK, `kubectl get` and `kubectl wait` read it. Pure.

Equal inputs give an equal status, so who compares it with the one that is there need not write it
twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from brim.domain.lifecycle import Phase, Wish
from brim.domain.scheduled_job import ScheduledJob
from brim.kubernetes.client.kube_types import KubePod
from brim.kubernetes.client.times import write_time
from brim.kubernetes.kubeflow.asked import LAUNCHER, MASTER, KubeflowSpec
from brim.kubernetes.kubeflow.objects import JOB_NAME, OPERATOR_NAME, TYPE
from brim.kubernetes.kubeflow.ranks import rank_of
from brim.kubernetes.objects.status import INVALID_SPEC, Stall

CREATED, RUNNING, RESTARTING = "Created", "Running", "Restarting"
SUCCEEDED, FAILED, SUSPENDED = "Succeeded", "Failed", "Suspended"
_LONGEST = 4_096  # characters of a message
_EXCLUDED = {RUNNING: RESTARTING, RESTARTING: RUNNING}


class _Conditions:
    """The conditions of an object: the newest stands last, and is its state."""

    def __init__(self, before: object, now: str) -> None:
        self._now = now
        given = before.get("conditions") if isinstance(before, Mapping) else None
        self.all = [
            dict(each)
            for each in (given if isinstance(given, list) else [])
            if isinstance(each, Mapping) and isinstance(each.get("type"), str)
        ]

    def holds(self, type: str) -> bool:
        return any(each["type"] == type and each.get("status") == "True" for each in self.all)

    def knows(self, type: str) -> bool:
        return any(each["type"] == type for each in self.all)

    def set(self, type: str, reason: str, message: str, *, holds: bool = True) -> None:
        """Have a condition be so; one that is so already keeps its times and its place."""
        status, message = "True" if holds else "False", message[:_LONGEST]
        there = next((each for each in self.all if each["type"] == type), None)
        same = there is not None and (there.get("status"), there.get("reason")) == (status, reason)
        if there is not None and same:
            if there.get("message") != message:
                there["message"], there["lastUpdateTime"] = message, self._now
            return
        since = self._now
        if there is not None and there.get("status") == status:
            since = there.get("lastTransitionTime", since)
        if holds:
            self.all = [each for each in self.all if each["type"] != _EXCLUDED.get(type)]
        new = {
            "type": type,
            "status": status,
            "reason": reason,
            "message": message,
            "lastUpdateTime": self._now,
            "lastTransitionTime": since,
        }
        self.all = [each for each in self.all if each["type"] != type]
        # What is not so any more is no state of the job.
        self.all.insert(len(self.all) if holds else 0, new)


def status_of(
    job: ScheduledJob,
    asked: KubeflowSpec | None,
    pods: Iterable[KubePod],
    *,
    before: object,
    now: float,
    why: str = "",
    stall: Stall | None = None,
) -> dict[str, Any]:
    """Return the status of a job's object.

    Args:
        asked: by its object; None: it cannot be understood any more.
        pods: of the job.
        before: the status that is there.
        now: seconds since 1970.
        why: it has what it has, in words.
        stall: why nothing comes of it, or of what was changed of it; None: there is no reason.
    """
    kind = asked.kind.name if asked is not None else job.submission.spec.command[0]
    last = dict(before) if isinstance(before, Mapping) else {}
    stamp = write_time(now) or ""
    conditions = _Conditions(last, stamp)
    of_the_job = list(pods)
    done = job.life.phase is Phase.DONE
    replicas = _replica_statuses(asked, of_the_job, last, done=done)
    active = {name: each.get("active", 0) for name, each in replicas.items()}
    held = job.life.wish is Wish.HOLD and not job.running and not job.life.ended
    name = f"{kind} {job.id.split('.')[1]}"
    detail = "; ".join([why, stall.message if stall else ""]).strip("; ")
    more = f": {detail}" if detail else ""
    conditions.set(CREATED, f"{kind}{CREATED}", f"{name} is created{more}")
    if held:
        said = f"{name} is suspended"
        conditions.set(SUSPENDED, f"{kind}{SUSPENDED}", said)
        for type in (RUNNING, RESTARTING):
            if conditions.holds(type):
                conditions.set(type, f"{kind}{SUSPENDED}", said, holds=False)
    elif conditions.holds(SUSPENDED):
        conditions.set(SUSPENDED, f"{kind}Resumed", f"{name} is resumed", holds=False)
        last.pop("startTime", None)
    if job.running and _leads(asked, active):
        total = sum(active.values())
        conditions.set(RUNNING, f"{kind}{RUNNING}", f"{name} is running: {total} active{more}")
    elif conditions.holds(RUNNING) and job.life.may_run:
        conditions.set(RESTARTING, f"{kind}{RESTARTING}", f"{name} is restarting{more}")
    if job.life.ended:
        _end(conditions, job, kind, name)
    return {
        "conditions": conditions.all,
        "replicaStatuses": replicas,
        **_time("startTime", last, stamp if job.running else None),
        **_time("completionTime", last, write_time(job.ended) if job.life.ended else None),
    }


def stalled_status(kind: str, before: object, stall: Stall, *, now: float) -> dict[str, Any]:
    """Return the status of an object of which nothing comes, or that nobody can follow now."""
    conditions = _Conditions(before, write_time(now) or "")
    if stall.reason == INVALID_SPEC:
        conditions.set(FAILED, f"{kind}FailedValidation", stall.message)
    else:
        conditions.set(CREATED, f"{kind}{stall.reason}", stall.message)
    kept = dict(before) if isinstance(before, Mapping) else {}
    return {**kept, "conditions": conditions.all}


def _end(conditions: _Conditions, job: ScheduledJob, kind: str, name: str) -> None:
    if job.life.phase is Phase.DONE:
        conditions.set(SUCCEEDED, f"{kind}{SUCCEEDED}", f"{name} is successfully completed")
    else:
        reason = str(job.summary.get("reason") or "") or FAILED
        why = job.problem or job.judgement.detail or job.life.phase.value
        conditions.set(FAILED, f"{kind}{reason}", f"{name} has failed: {why}")
    for type in (RUNNING, RESTARTING):
        if conditions.holds(type):
            ended = SUCCEEDED if job.life.phase is Phase.DONE else FAILED
            conditions.set(type, f"{kind}{ended}", f"{name} has ended", holds=False)


def _leads(asked: KubeflowSpec | None, active: Mapping[str, int]) -> bool:
    """Return whether the replicas run by which a job is said to run."""
    types = [] if asked is None else [each.type for each in asked.replicas]
    leader = next((type for type in (LAUNCHER, MASTER) if type in types), "")
    return bool(active.get(leader)) if leader else any(active.values())


def _replica_statuses(
    asked: KubeflowSpec | None, pods: Sequence[KubePod], last: Mapping[str, Any], *, done: bool
) -> dict[str, Any]:
    """Count the pods of each type; what ran when a job succeeded has succeeded, though it ends later."""
    if asked is None or (done and last.get("completionTime")):
        return dict(last.get("replicaStatuses") or {})
    found: dict[str, Any] = {}
    for each in asked.replicas:
        phases = [
            _counted(pod, done=done)
            for pod in pods
            if (rank := rank_of(pod)) is not None and rank.type == each.type.lower()
        ]
        counts = {
            "active": phases.count("Running"),
            "succeeded": phases.count("Succeeded"),
            "failed": phases.count("Failed"),
        }
        selector = (
            f"{JOB_NAME}={asked.job.name},{OPERATOR_NAME}={asked.kind.word}-controller,"
            f"{TYPE}={each.type.lower()}"
        )
        found[each.type] = {name: n for name, n in counts.items() if n} | {"selector": selector}
    return found


def _counted(pod: KubePod, *, done: bool) -> str:
    """Return the phase as which a pod counts."""
    if done and pod.status.phase == "Running":
        return "Succeeded"
    return "Failed" if pod.is_leaving else pod.status.phase


def _time(name: str, last: Mapping[str, Any], now: str | None) -> dict[str, str]:
    value = last.get(name) or now
    return {name: value} if value else {}
