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
from brim.kubernetes.kubeflow.objects import JOB_NAME, OPERATOR_NAME, TYPE
from brim.kubernetes.kubeflow.ranks import rank_of
from brim.kubernetes.kubeflow.request import LAUNCHER, MASTER, KubeflowSpec
from brim.kubernetes.objects.status import INVALID_SPEC, Stall

CREATED, RUNNING, RESTARTING = "Created", "Running", "Restarting"
SUCCEEDED, FAILED, SUSPENDED = "Succeeded", "Failed", "Suspended"
_LONGEST = 4_096  # characters of a message
_EXCLUDED = {RUNNING: RESTARTING, RESTARTING: RUNNING}


class _Conditions:
    """The conditions of an object: the newest stands last, and is its state."""

    def __init__(self, status: object, now: str) -> None:
        self._now = now
        conditions = status.get("conditions") if isinstance(status, Mapping) else None
        self.all = [
            dict(condition)
            for condition in (conditions if isinstance(conditions, list) else [])
            if isinstance(condition, Mapping) and isinstance(condition.get("type"), str)
        ]

    def holds(self, type: str) -> bool:
        return any(
            condition["type"] == type and condition.get("status") == "True"
            for condition in self.all
        )

    def knows(self, type: str) -> bool:
        return any(condition["type"] == type for condition in self.all)

    def set(self, type: str, reason: str, message: str, *, holds: bool = True) -> None:
        """Have a condition be so; one that is so already keeps its times and its place."""
        status, message = "True" if holds else "False", message[:_LONGEST]
        present = next((condition for condition in self.all if condition["type"] == type), None)
        unchanged = present is not None and (present.get("status"), present.get("reason")) == (
            status,
            reason,
        )
        if present is not None and unchanged:
            if present.get("message") != message:
                present["message"], present["lastUpdateTime"] = message, self._now
            return
        changed = self._now
        if present is not None and present.get("status") == status:
            changed = present.get("lastTransitionTime", changed)
        if holds:
            self.all = [
                condition for condition in self.all if condition["type"] != _EXCLUDED.get(type)
            ]
        new = {
            "type": type,
            "status": status,
            "reason": reason,
            "message": message,
            "lastUpdateTime": self._now,
            "lastTransitionTime": changed,
        }
        self.all = [condition for condition in self.all if condition["type"] != type]
        # What is not so any more is no state of the job.
        self.all.insert(len(self.all) if holds else 0, new)


def status_of(
    job: ScheduledJob,
    request: KubeflowSpec | None,
    pods: Iterable[KubePod],
    *,
    before: object,
    now: float,
    explanation: str = "",
    stall: Stall | None = None,
) -> dict[str, Any]:
    """Return the status of a job's object.

    Args:
        request: by its object; None: it cannot be understood any more.
        pods: of the job.
        before: the status that is there.
        now: seconds since 1970.
        explanation: the reason of its number of workers, in words.
        stall: the reason why it, or a change of it, makes no progress; None: there is none.
    """
    kind = request.kind.name if request is not None else job.submission.spec.command[0]
    last = dict(before) if isinstance(before, Mapping) else {}
    stamp = write_time(now) or ""
    conditions = _Conditions(last, stamp)
    of_the_job = list(pods)
    done = job.life.phase is Phase.DONE
    replicas = _replica_statuses(request, of_the_job, last, done=done)
    active = {name: entry.get("active", 0) for name, entry in replicas.items()}
    is_held = job.life.wish is Wish.HOLD and not job.running and not job.life.ended
    name = f"{kind} {job.id.split('.')[1]}"
    detail = "; ".join([explanation, stall.message if stall else ""]).strip("; ")
    suffix = f": {detail}" if detail else ""
    conditions.set(CREATED, f"{kind}{CREATED}", f"{name} is created{suffix}")
    if is_held:
        sentence = f"{name} is suspended"
        conditions.set(SUSPENDED, f"{kind}{SUSPENDED}", sentence)
        for type in (RUNNING, RESTARTING):
            if conditions.holds(type):
                conditions.set(type, f"{kind}{SUSPENDED}", sentence, holds=False)
    elif conditions.holds(SUSPENDED):
        conditions.set(SUSPENDED, f"{kind}Resumed", f"{name} is resumed", holds=False)
        last.pop("startTime", None)
    if job.running and _leads(request, active):
        total = sum(active.values())
        conditions.set(RUNNING, f"{kind}{RUNNING}", f"{name} is running: {total} active{suffix}")
    elif conditions.holds(RUNNING) and job.life.may_run:
        conditions.set(RESTARTING, f"{kind}{RESTARTING}", f"{name} is restarting{suffix}")
    if job.life.ended:
        _end(conditions, job, kind, name)
    return {
        "conditions": conditions.all,
        "replicaStatuses": replicas,
        **_time("startTime", last, stamp if job.running else None),
        **_time("completionTime", last, write_time(job.ended) if job.life.ended else None),
    }


def stalled_status(kind: str, last: object, stall: Stall, *, now: float) -> dict[str, Any]:
    """Return the status of an object that makes no progress, or cannot be followed now."""
    conditions = _Conditions(last, write_time(now) or "")
    if stall.reason == INVALID_SPEC:
        conditions.set(FAILED, f"{kind}FailedValidation", stall.message)
    else:
        conditions.set(CREATED, f"{kind}{stall.reason}", stall.message)
    content = dict(last) if isinstance(last, Mapping) else {}
    return {**content, "conditions": conditions.all}


def _end(conditions: _Conditions, job: ScheduledJob, kind: str, name: str) -> None:
    if job.life.phase is Phase.DONE:
        conditions.set(SUCCEEDED, f"{kind}{SUCCEEDED}", f"{name} is successfully completed")
    else:
        reason = str(job.summary.get("reason") or "") or FAILED
        explanation = job.problem or job.judgement.detail or job.life.phase.value
        conditions.set(FAILED, f"{kind}{reason}", f"{name} has failed: {explanation}")
    for type in (RUNNING, RESTARTING):
        if conditions.holds(type):
            ended = SUCCEEDED if job.life.phase is Phase.DONE else FAILED
            conditions.set(type, f"{kind}{ended}", f"{name} has ended", holds=False)


def _leads(request: KubeflowSpec | None, active: Mapping[str, int]) -> bool:
    """Return whether the replicas run by which a job is said to run."""
    types = [] if request is None else [replicas.type for replicas in request.replicas]
    leader = next((type for type in (LAUNCHER, MASTER) if type in types), "")
    return bool(active.get(leader)) if leader else any(active.values())


def _replica_statuses(
    request: KubeflowSpec | None, pods: Sequence[KubePod], last: Mapping[str, Any], *, done: bool
) -> dict[str, Any]:
    """Count the pods of each type; those running when a job succeeded count as succeeded."""
    if request is None or (done and last.get("completionTime")):
        return dict(last.get("replicaStatuses") or {})
    found: dict[str, Any] = {}
    for part in request.replicas:
        phases = [
            _counted(pod, done=done)
            for pod in pods
            if (rank := rank_of(pod)) is not None and rank.type == part.type.lower()
        ]
        counts = {
            "active": phases.count("Running"),
            "succeeded": phases.count("Succeeded"),
            "failed": phases.count("Failed"),
        }
        selector = (
            f"{JOB_NAME}={request.job.name},{OPERATOR_NAME}={request.kind.operator},"
            f"{TYPE}={part.type.lower()}"
        )
        found[part.type] = {name: n for name, n in counts.items() if n} | {"selector": selector}
    return found


def _counted(pod: KubePod, *, done: bool) -> str:
    """Return the phase as which a pod counts."""
    if done and pod.status.phase == "Running":
        return "Succeeded"
    return "Failed" if pod.is_leaving else pod.status.phase


def _time(name: str, last: Mapping[str, Any], now: str | None) -> dict[str, str]:
    value = last.get(name) or now
    return {name: value} if value else {}
