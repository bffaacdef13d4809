"""The status of an ElasticJob, as `kubectl get`, `describe` and `wait` show it. Pure.

Equal inputs give an equal status, so who compares it with the one that is there need not write it
twice. Nothing in it is null, and all of it is within limits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from brim.domain.course import Change, reason_of, sentence_of
from brim.domain.lifecycle import Phase, Wish
from brim.domain.printable import printable
from brim.domain.quantities import counted
from brim.domain.scheduled_job import ScheduledJob
from brim.errors import EnvironmentFault, SpecError
from brim.kubernetes.client.declared import (
    LIST_KEYS,
    LIST_TYPE,
    OPEN,
    Count,
    Int32,
    Text,
    Time,
    keywords,
)
from brim.kubernetes.client.times import NO_TIME, write_time
from brim.kubernetes.objects.failed_pods import MOST_FAILED, FailedPodEntry, failed_pods
from brim.kubernetes.objects.fields import camel
from brim.kubernetes.objects.record_text import LARGEST, pack_record, unpack_record

STATES = (*(phase.value.capitalize() for phase in Phase), "Invalid")
CONDITIONS = (
    "Admitted", "Promised", "Running", "Suspended", "Succeeded", "Failed", "Reconciling", "Stalled",
)  # fmt: skip
MOST_LINES = 20  # of a job's story, the last
LONGEST_LINE = 400  # characters
LONGEST_MESSAGE = 4_096
_LONGEST_REASON = 200
MOST_FACTS = 60  # of a summary
MOST_NODES = 200  # that are named
INVALID_SPEC, UNREADABLE, OPERATOR_FAULT = "InvalidSpec", "RecordUnreadable", "OperatorFault"
NAME_TAKEN, PODS_REFUSED = "NameTaken", "PodsRefused"
MASTER_UNPLACED = "MasterUnschedulable"
STALLS = (INVALID_SPEC, UNREADABLE, OPERATOR_FAULT, NAME_TAKEN, PODS_REFUSED, MASTER_UNPLACED)
_WAITS = "it waits for workers"
_ENDED_BADLY = frozenset({Phase.FAILED, Phase.CANCELLED, Phase.REFUSED})
_LARGEST_NUMBER = 2**53
_TO_BE_JUDGED = 5.0  # seconds before a status says that a job waits for its judgement
_IN_LINE = 120.0  # seconds before it says that a job waits for its first start


class Stall(NamedTuple):
    """The reason why a job, or a change of it, makes no progress without an intervention.

    Attributes:
        reason: one of those above.
        message: the fault, with the field where there is one.
    """

    reason: str
    message: str


class WorkersStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Workers of the job.

    Args:
        wanted: as many as the last plan gives it.
        ready: as many as train.
        summary: READY/FEWEST-MOST.
        selector: the selector of their pods.
        nodes: as many as it was asked to have, by node.
    """

    wanted: Count | None = None
    ready: Count | None = None
    summary: Text | None = None
    selector: Text | None = None
    nodes: dict[str, Int32] | None = None


class JobCondition(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A condition."""

    type: Annotated[
        str, Meta(max_length=316, pattern=r"^[A-Za-z0-9]([-A-Za-z0-9_./]*[A-Za-z0-9])?$")
    ]
    status: Annotated[str, Meta(extra_json_schema={"enum": ["True", "False", "Unknown"]})]
    reason: Annotated[
        str,
        Meta(min_length=1, max_length=1024, pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"),
    ]
    message: Annotated[str, Meta(max_length=32_768)]
    observed_generation: Count | None = None
    last_transition_time: Time


_Conditions = Annotated[
    list[JobCondition], Meta(max_length=32), keywords(**{LIST_TYPE: "map", LIST_KEYS: ["type"]})
]
_Line = Annotated[str, Meta(max_length=LONGEST_LINE)]
_Story = Annotated[list[_Line], Meta(max_length=MOST_LINES)]


class JobStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The state of the job, as the operator sees it.

    Args:
        observed_generation: the generation of the object that this is about.
        phase: the state of the job.
        reason: why the job has the workers that it has, in a word.
        message: the same in a sentence, with the numbers.
        step: steps that are done.
        steps: steps that there are in all, once that is known.
        progress: STEP/STEPS.
        start_time: when the first step was made.
        completion_time: when the job ended.
        estimated_end: when the job ends if nothing new happens.
        deadline: the deadline of the job.
        promised: yes where the deadline is promised, No, or Unknown.
        earliest_deadline: the earliest deadline that could have been promised.
        story: the last things that happened to the job, with their reasons.
        failed_pods: the last pods that failed. They are deleted, with their logs.
        summary: as of brim train --json, once the run has ended.
        conditions: conditions, as kubectl wait --for=condition=TYPE reads them.
        record: the operator's memory of the job. Only the operator writes it.
    """

    observed_generation: Count | None = None
    phase: Annotated[str | None, keywords(enum=list(STATES))] = None
    reason: Text | None = None
    message: Text | None = None
    workers: WorkersStatus | None = None
    step: Count | None = None
    steps: Count | None = None
    progress: Text | None = None
    start_time: Time | None = None
    completion_time: Time | None = None
    estimated_end: Time | None = None
    deadline: Time | None = None
    promised: Text | None = None
    earliest_deadline: Time | None = None
    story: _Story | None = None
    failed_pods: Annotated[list[FailedPodEntry], Meta(max_length=MOST_FAILED)] | None = None
    summary: Annotated[dict[str, Any] | None, keywords(**OPEN)] = None
    conditions: _Conditions | None = None
    record: Annotated[str, Meta(max_length=LARGEST + 16)] | None = None


class _Condition(NamedTuple):
    """A condition: True, False, or None while it is unknown."""

    type: str
    holds: bool | None
    reason: str
    message: str = ""


def status_of(
    job: ScheduledJob,
    *,
    generation: int,
    before: object,
    now: float,
    story: Sequence[Change] = (),
    ready: int = 0,
    selector: str = "",
    failed: Sequence[Mapping[str, Any]] = (),
    stall: Stall | None = None,
) -> dict[str, Any]:
    """Return the status of a job's object.

    Args:
        generation: of the object that was read.
        before: the status that is there, for the times at which conditions changed.
        now: seconds since 1970; only a condition that is another one now has this time.
        story: its history; the last lines are shown.
        ready: its workers that train.
        selector: of its workers' pods, for autoscalers.
        failed: pods of it that have failed, beside those that `before` has.
        stall: of the present object, or of its pods; all else goes on. None: there is none.
    """
    progress, deadline = job.progress, job.submission.deadline
    workers = job.submission.spec.workers
    last = next((change for change in reversed(story) if change.reason), None)
    message = _explanation(job, story)
    status = JobStatus(
        observed_generation=generation,
        phase=job.life.phase.value.capitalize(),
        reason=_reason(last.reason) if last else None,
        message=_cut(message, LONGEST_MESSAGE),
        workers=WorkersStatus(
            wanted=job.workers,
            ready=ready,
            summary=f"{ready}/{workers.minimum}-{workers.maximum}",
            selector=selector,
            nodes=dict(list(job.held.items())[:MOST_NODES]) if job.running else {},
        ),
        step=progress.step,
        steps=progress.steps,
        progress=f"{progress.step}/{progress.steps}" if progress.steps else str(progress.step),
        start_time=write_time(progress.started),
        completion_time=write_time(job.ended),
        estimated_end=_estimated_end(job),
        deadline=write_time(deadline),
        promised=None if deadline is None else _yes_or_no(job),
        earliest_deadline=write_time(job.judgement.earliest),
        story=[_line(change) for change in story[-MOST_LINES:]],
        failed_pods=failed_pods(before, failed),
        summary=dict(list(_facts(job.summary))[:MOST_FACTS]),
        conditions=_written(_conditions(job, message, stall), generation, before, now),
        record=pack_record(job),
    )
    return _without_nothing(msgspec.to_builtins(status))


def stalled_status(last: object, stall: Stall, *, generation: int, now: float) -> dict[str, Any]:
    """Return the status of an object that cannot be followed: the present one, its record first.

    There may be no job of it yet.
    """
    content = dict(last) if isinstance(last, Mapping) else {}
    conditions = [
        written
        for written in _conditions_in(last)
        if written["type"] not in ("Stalled", "Reconciling")
    ]
    condition = _Condition("Stalled", True, *stall)
    first = [] if conditions else [_Condition("Admitted", False, *stall)]
    new = _written([*first, condition], generation, last, now)
    return {
        **content,
        "observedGeneration": generation,
        "phase": content.get("phase", "Invalid"),
        "reason": stall.reason,
        "message": _cut(stall.message, LONGEST_MESSAGE),
        "conditions": [*conditions, *msgspec.to_builtins(new)],
    }


def stall_of(problems: Sequence[SpecError]) -> Stall | None:
    """Return all that is wrong with an object as one stall; None where nothing is."""
    if not problems:
        return None
    return Stall(INVALID_SPEC, _cut("\n".join(map(str, problems)), LONGEST_MESSAGE))


def stalled_jobs(objects: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Count the objects that are stalled, by each reason that somebody can do something about."""
    reasons = (
        condition.get("reason")
        for thing in objects
        for condition in _conditions_in(thing.get("status"))
        if condition["type"] == "Stalled" and condition.get("status") == "True"
    )
    counts = Counter(reasons)
    return {reason: counts[reason] for reason in STALLS}


# What need not be written ------------------------------------------------------------------------


def can_wait(record: ScheduledJob, now: float) -> bool:
    """Return whether the status of a job need not be written yet: more is known of it very soon.

    Such a job is about to be judged, or in line for its first start, and nothing was promised to
    it. Its start writes its status, and a next operator decides about the job as this one did.

    Args:
        now: seconds since 1970. After a long wait the status says so.
    """
    is_new = record.life.may_run and not (record.starts.launches or record.promised)
    waited = now - record.submitted
    if record.life.phase is Phase.SUBMITTED and not record.workers:
        return is_new and waited < _TO_BE_JUDGED
    return is_new and record.workers > 0 and waited < _IN_LINE


def says_the_same(before: object, status: Mapping[str, Any], *, uid: str) -> bool:
    """Return whether a status says nothing, to people or to a next operator, that another one does not.

    Args:
        uid: of the object of both.
    """
    if not isinstance(before, Mapping) or {**before, "record": ""} != {**status, "record": ""}:
        return False
    return records_the_same(before, status, uid=uid)


def records_the_same(before: object, status: Mapping[str, Any], *, uid: str) -> bool:
    """Return whether the records in two statuses are the same, but for times that grow.

    That is the time for which a job has had its workers: who reads the record goes on from there.
    """
    try:
        last, present = (
            unpack_record(written.get("record"), uid=uid)
            for written in (before, status)
            if isinstance(written, Mapping)
        )
    except (EnvironmentFault, ValueError):  # one cannot be read, or there is no status
        return False
    last.progress = replace(last.progress, attained=present.progress.attained)
    return last == present


# Conditions ---------------------------------------------------------------------------------------


def _conditions(job: ScheduledJob, why_so: str, stall: Stall | None) -> Iterator[_Condition]:
    """Names and meanings of the last two are those of kstatus, by which others wait for objects."""
    phase, judgement = job.life.phase, job.judgement
    state, explanation = phase.value.capitalize(), _reason(judgement.reason)
    is_held = job.life.wish is Wish.HOLD and not job.running and not job.life.ended
    waits = not (job.life.ended or job.running or is_held)
    if judgement.judged:
        yes = phase is not Phase.REFUSED
        yield _Condition("Admitted", yes, explanation or state, judgement.detail)
    else:
        yield _Condition("Admitted", None, "NotJudged", judgement.detail)
    if job.submission.deadline is not None:
        earliest = write_time(judgement.earliest)
        suffix = f"; the earliest that could be promised: {earliest}" if earliest else ""
        promise = job.promised if judgement.judged else None
        reason = (explanation or state) if judgement.judged else "NotJudged"
        yield _Condition("Promised", promise, reason, f"{judgement.detail}{suffix}")
    running = counted(job.target, "worker") if job.running else ""
    yield _Condition("Running", job.running, state, running)
    suspended = is_held or phase is Phase.SUSPENDED
    yield _Condition(
        "Suspended", suspended, "Held" if is_held else state, job.problem if suspended else ""
    )
    yield _Condition("Succeeded", phase is Phase.DONE, state)
    failed = phase in _ENDED_BADLY
    yield _Condition("Failed", failed, state, why_so if failed else "")
    yield _Condition("Reconciling", waits, state, (why_so or _WAITS) if waits else "")
    if stall is not None and not job.life.ended:
        yield _Condition("Stalled", True, *stall)
    else:
        yield _Condition("Stalled", failed, state, why_so if failed else "")


def _written(
    conditions: Iterator[_Condition] | Sequence[_Condition],
    generation: int,
    before: object,
    now: float,
) -> list[JobCondition]:
    """Return conditions as Kubernetes has them; their times change with their status alone."""
    last_conditions = {entry["type"]: entry for entry in _conditions_in(before)}
    found = []
    for condition in conditions:
        status = {True: "True", False: "False", None: "Unknown"}[condition.holds]
        last = last_conditions.get(condition.type, {})
        changed = last.get("lastTransitionTime") if last.get("status") == status else None
        if not isinstance(changed, str) or changed == NO_TIME:
            changed = write_time(now) or ""
        found.append(
            JobCondition(
                type=condition.type,
                status=status,
                reason=condition.reason,
                message=_cut(condition.message, LONGEST_MESSAGE),
                observed_generation=generation,
                last_transition_time=changed,
            )
        )
    return found


def _conditions_in(before: object) -> list[dict[str, Any]]:
    """Return the conditions of a status, without anything else in their place."""
    conditions = before.get("conditions") if isinstance(before, Mapping) else None
    return [
        dict(condition)
        for condition in (conditions if isinstance(conditions, list) else [])
        if isinstance(condition, Mapping) and isinstance(condition.get("type"), str)
    ]


# Words --------------------------------------------------------------------------------------------


def _reason(reason: str) -> str:
    """Return a reason as Kubernetes spells it.

    >>> _reason("surplus-by-marginal-return")
    'SurplusByMarginalReturn'
    """
    word = camel(
        "".join(letter if letter.isalnum() and letter.isascii() else "-" for letter in reason)
    )
    return (word[:1].upper() + word[1:])[:_LONGEST_REASON] if word[:1].isalpha() else ""


def _explanation(job: ScheduledJob, story: Sequence[Change]) -> str:
    if job.life.ended or not story:
        return job.problem or job.judgement.detail
    last = next((change for change in reversed(story) if reason_of(change)), None)
    return sentence_of(last) if last else job.judgement.detail


def _yes_or_no(job: ScheduledJob) -> str:
    if not job.judgement.judged:
        return "Unknown"
    return "Yes" if job.promised else "No"


def _estimated_end(job: ScheduledJob) -> str | None:
    last = job.estimates.last
    return None if last is None or job.life.ended else write_time(last.finish)


def _line(change: Change) -> str:
    head, _, _ = sentence_of(change).partition("\n")
    return _cut(f"{write_time(change.at) or '-'} {head}", LONGEST_LINE)


def _cut(text: str, longest: int) -> str:
    """Return a text as a terminal may have it, and no longer than that."""
    safe = printable(text[:longest].encode(errors="replace").decode())
    return safe if len(safe) <= longest and len(text) <= longest else f"{safe[: longest - 1]}…"


def _facts(summary: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Return the single values of a summary, each by its path: `metrics.auc`."""
    for name, value in summary.items():
        path = _cut(f"{prefix}{name}", LONGEST_LINE)
        if isinstance(value, Mapping) and not prefix:
            yield from _facts(value, f"{path}.")
        elif isinstance(value, str):
            yield path, _cut(value, LONGEST_LINE)
        elif isinstance(value, int | float) and -_LARGEST_NUMBER < value < _LARGEST_NUMBER:
            yield path, value
        elif isinstance(value, float):  # not all who read JSON have such a number
            yield path, str(value)


def _without_nothing(status: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in status.items() if value not in (None, "", [], {})}
