"""The course of a live cluster from its scheduler's database, whether a scheduler runs or not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from brim.domain.cluster import ClusterSpec
from brim.domain.course import (
    Change,
    Course,
    Holding,
    Incident,
    JobCourse,
    Origin,
    Supply,
    holdings_of,
    reason_of,
)
from brim.domain.lifecycle import Phase
from brim.domain.quantities import counted
from brim.domain.scheduled_job import ScheduledJob
from brim.errors import EnvironmentFault
from brim.scheduler.cycles import decode_cycle
from brim.scheduler.loop import CLUSTER
from brim.storage.book import Book
from brim.storage.database import Database

# Whether a job has processes after an event; "refused" is also said of a deadline whose job runs
# nevertheless.
_RUNS = {phase.value: phase is Phase.RUNNING for phase in Phase if phase is not Phase.REFUSED}
_KINDS = {"up": "joined", "node back": "joined", "down": "left", "node lost": "lost"}


def cluster_course(
    database: Database, *, subject: str, now: float | None, start_time: float | None = None
) -> Course:
    """The course of a cluster, as far as it was written down.

    Args:
        now: where a scheduler runs; None: the history ends with the last thing that happened.
        start_time: seconds before the end that are shown; None: all.

    Raises:
        EnvironmentFault: there is nothing to show yet.
    """
    described = database.get(CLUSTER)
    book = Book(database)
    cluster_changes = book.cluster_story()
    records = list(book.jobs.values())
    stories = book.stories()
    times = [change.at for story in (cluster_changes, *stories.values()) for change in story]
    if described is None or not times:
        raise EnvironmentFault(f"nothing has happened yet in {subject}: brim submit FILE.py")
    spec = msgspec.json.decode(described, type=ClusterSpec)
    end = max(max(times), now or 0.0)
    first = min(times)
    start = first if start_time is None else max(first, end - start_time)
    jobs = [_job(record, stories[record.id], end) for record in records]
    incidents = [
        *_of_cluster(cluster_changes),
        *(incident for job in jobs for incident in _of_job(job, stories[job.job], end)),
    ]
    return Course(
        origin=Origin.LIVE,
        subject=subject,
        policy=spec.policy,
        running=now is not None,
        start=start,
        end=max(end, start + 1e-3),
        jobs=[
            job
            for job in jobs
            if job.submitted <= end and (job.ended is None or job.ended >= start)
        ],
        supply=_supply(database, cluster_changes, spec, start),
        incidents=sorted(incident for incident in incidents if start <= incident.at <= end),
        schedulers=max(1, sum(change.event == "up" for change in cluster_changes)),
    )


def holdings_by(story: Sequence[Change], end: float) -> list[Holding]:
    """The workers of a job from its submission on.

    The workers are those of the plan while the job has processes, none while it waits.

    Args:
        end: its own, or that of the course.
    """
    return holdings_of(_workers(story), start=story[0].at if story else end, end=end)


def _workers(story: Sequence[Change]) -> Iterator[tuple[float, int, str]]:
    count = 0
    runs = False
    for change in story:
        if change.event == "workers":
            count = change.after
        runs = _RUNS.get(change.event, runs)
        yield change.at, count if runs else 0, reason_of(change) if change.reason else ""


def _job(record: ScheduledJob, story: Sequence[Change], end: float) -> JobCourse:
    return JobCourse(
        job=record.id,
        tenant=record.submission.tenant,
        state=record.life.phase.value,
        submitted=record.submitted,
        ended=record.ended,
        deadline=record.submission.deadline,
        promised=record.promised,
        holdings=holdings_by(story, end if record.ended is None else record.ended),
        story=story,
        step=record.progress.step,
        steps=record.progress.steps,
    )


def _of_cluster(story: Sequence[Change]) -> list[Incident]:
    found = []
    runs = False
    for change in story:
        crash_note = (
            " (the one before ended without brim down)" if change.event == "up" and runs else ""
        )
        kind = "lost" if crash_note else _KINDS.get(change.event, "round")
        title = change.event if " " in change.event else f"brim {change.event}"
        detail = f": {change.detail}" if change.detail else ""
        found.append(Incident(change.at, kind, f"{title}{detail}{crash_note}"))
        runs = change.event == "up" or (runs and change.event != "down")
    return found


def _of_job(job: JobCourse, story: Sequence[Change], end: float) -> list[Incident]:
    found = []
    for change in story:
        sentence = f"{job.job}: {change.detail}"
        if change.event == "forced":
            found.append(Incident(change.at, "lost", f"{job.job}: workers taken by force"))
        elif change.event in (Phase.FAILED.value, Phase.SUSPENDED.value) and change.detail:
            found.append(Incident(change.at, "lost", sentence.splitlines()[0]))
        elif change.event == "workers" and change.reason == "reclaimed-by-owner":
            text = f"{job.job}: {change.before} to {counted(change.after, 'worker')}, reclaimed"
            found.append(Incident(change.at, "left", text))
    if job.promised and job.deadline is not None and job.kept(end) is False:
        found.append(
            Incident(job.deadline, "lost", f"{job.job} did not keep its promised deadline")
        )
    return found


def _supply(
    database: Database, story: Sequence[Change], spec: ClusterSpec, start: float
) -> list[Supply]:
    """The devices that there were whenever that may have changed, as the next cycle saw it."""
    described = [change.at for change in story if change.event != "down" and change.at > start]
    found: list[Supply] = []
    for moment in [start, *described]:
        row = database.cycle_after(moment)
        if row is None:  # nobody has decided anything since
            cluster, tenants = spec.cluster, spec.tenants
        else:
            snapshot, _ = decode_cycle(row.content)
            cluster, tenants = snapshot.cluster, snapshot.tenants
        found.append(
            Supply(moment, cluster.devices, {tenant.id: tenant.guaranteed for tenant in tenants})
        )
    return found
