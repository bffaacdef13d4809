"""Judgement of a cluster's promises, from its records and its user's answers.

Pure: no file is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from brim.domain.course import Change
from brim.domain.lifecycle import Phase
from brim.domain.scheduled_job import ScheduledJob
from brim_lab.chaos.deeds import SUBMITS, Deed, DeedKind

# A promise follows from measured steps, which take a little longer or shorter: seconds, and a part
# of its time.
_TOLERANCE, _ERROR = 1.0, 0.1
_PHASES = frozenset(phase.value for phase in Phase)
# What each word of a story says of the deadline: promised from then on, or not. Who is held or
# resized is judged again.
_PROMISED = {
    "promised": True,
    "refused": False,
    "accepted": False,
    "hold": False,
    "release": False,
    "resized": False,
}
Span = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The scheduler said yes to a deed; `job` is the id that it gave, or was asked about."""

    deed: Deed
    job: str


def nobody_is_forgotten(
    acknowledged: Iterable[Acknowledged], jobs: Mapping[str, ScheduledJob]
) -> list[str]:
    """Check that every job that was taken in is known, and is done unless it was cancelled."""
    all_acknowledged = list(acknowledged)
    cancelled = {item.job for item in all_acknowledged if item.deed.kind is DeedKind.CANCEL}
    taken_in = {item.job for item in all_acknowledged if item.deed.kind in SUBMITS}
    broken = [f"{job} was acknowledged and is forgotten" for job in sorted(taken_in - jobs.keys())]
    broken += [
        f"{job} exists, and was never acknowledged" for job in sorted(jobs.keys() - taken_in)
    ]
    for name, record in jobs.items():
        allowed = {Phase.DONE, Phase.CANCELLED} if name in cancelled else {Phase.DONE}
        if record.life.phase not in allowed:
            broken.append(f"{name} ended as {record.life.phase.value}: {record.problem}")
    return broken


def stories_make_sense(
    stories: Mapping[str, Sequence[Change]], jobs: Mapping[str, ScheduledJob]
) -> list[str]:
    """Check that the jobs' stories are possible.

    No job starts while it runs or is held, each is submitted once, and a promise that was given is
    remembered.
    """
    broken = []
    for name, story in stories.items():
        submitted = sum(change.event == "submitted" for change in story)
        if submitted != 1:
            broken.append(f"{name} was submitted {submitted} times in its story")
        broken += [
            f"{name} was started while it {false_start}" for false_start in _false_starts(story)
        ]
        if promised_at(story) is not None and not jobs[name].promised:
            broken.append(f"{name} was promised its deadline, and that is forgotten")
    return broken


def _false_starts(story: Sequence[Change]) -> list[str]:
    found, running, is_held = [], False, False
    for change in story:
        if change.event == Phase.RUNNING.value:
            found += ["ran"] * running + ["was held"] * is_held
        if change.event in _PHASES:
            running = change.event == Phase.RUNNING.value
        is_held = {"hold": True, "release": False}.get(change.event, is_held)
    return found


def promised_at(story: Sequence[Change]) -> float | None:
    """Return when the deadline was promised; None where it was not, or no longer is."""
    promised_time = None
    for change in story:
        if change.event in _PROMISED:
            promised_time = change.at if _PROMISED[change.event] else None
    return promised_time


def deadlines_are_kept(
    stories: Mapping[str, Sequence[Change]],
    jobs: Mapping[str, ScheduledJob],
    spans: Sequence[Span],
    applied: Sequence[float],
) -> list[str]:
    """A promised deadline is met, or missed by no more than the faults took since it was given.

    A fault of one job can make another late: the first needs more of the devices to keep its own
    promise. So all time that faults took counts for all. Who owns less than when a promise was made
    cannot be held to it.

    Args:
        spans: when faults held something up, see `disturbed`.
        applied: when the cluster was described again.
    """
    broken = []
    for name, record in jobs.items():
        promised_time, due, ended = (
            promised_at(stories[name]),
            record.submission.deadline,
            record.ended,
        )
        if (
            promised_time is None
            or due is None
            or ended is None
            or any(promised_time <= applied_at <= ended for applied_at in applied)
        ):
            continue
        # `deadline_kept` says only whether a deadline was kept; here faults excuse some lateness.
        late, lost = ended - due, _covered_length(spans, promised_time, ended)
        if record.life.phase is Phase.DONE and late > lost + _TOLERANCE + _ERROR * (
            ended - promised_time
        ):
            broken.append(
                f"{name} was {late:.1f} s late for a promised deadline; faults took {lost:.1f} s "
                "since then"
            )
    return broken


def disturbed(moment: float, commits: Iterable[tuple[float, int]], *, end: float) -> Span:
    """Return the span in which a job that was struck made no headway.

    It lasts until the job's first commit past the steps that it had, or until `end`.

    >>> disturbed(2.0, [(1.0, 1), (1.5, 2), (4.0, 1), (5.0, 2), (6.0, 3)], end=9.0)
    (2.0, 6.0)
    """
    best = 0
    for committed_at, step in commits:
        if committed_at <= moment:
            best = max(best, step)
        elif step > best:
            return moment, committed_at
    return moment, end


def _covered_length(spans: Iterable[Span], start: float, end: float) -> float:
    """The length of `[start, end]` that spans cover."""
    total, covered = 0.0, start
    for begin, stop in sorted(spans):
        begin, stop = max(begin, covered), min(stop, end)
        if stop > begin:
            total, covered = total + stop - begin, stop
    return total
