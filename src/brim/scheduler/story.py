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
    database: Database, *, subject: str, now: float | None, since: float | None = None
) -> Course:
    """The course of a cluster, as far as it was written down.

    Args:
        now: where a scheduler runs; None: the history ends with the last thing that happened.
        since: seconds before the end that are shown; None: all.

    Raises:
        EnvironmentFault: there is nothing to show yet.
    """
    described = database.get(CLUSTER)
    book = Book(database)
    own = book.cluster_story()
    records = list(book.jobs.values())
    stories = book.stories()
    times = [change.at for story in (own, *stories.values()) for change in story]
    if described is None or not times:
        raise EnvironmentFault(f"nothing has happened yet in {subject}: brim submit FILE.py")
    spec = msgspec.json.decode(described, type=ClusterSpec)
    end = max(max(times), now or 0.0)
    first = min(times)
    start = first if since is None else max(first, end - since)
    jobs = [_job(record, stories[record.id], end) for record in records]
    incidents = [
        *_of_cluster(own),
        *(each for job in jobs for each in _of_job(job, stories[job.job], end)),
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
        supply=_supply(database, own, spec, start),
        incidents=sorted(each for each in incidents if start <= each.at <= end),
        schedulers=max(1, sum(change.event == "up" for change in own)),
    )


def holdings_by(story: Sequence[Change], end: float) -> list[Holding]:
    """The workers of a job from its submission on.

    The workers are those of the plan while the job has processes, none while it waits.

    Args:
        end: its own, or that of the course.
    """
    return holdings_of(_workers(story), start=story[0].at if story else end, end=end)


def _workers(story: Sequence[Change]) -> Iterator[tuple[float, int, str]]:
    given = 0
    runs = False
    for change in story:
        if change.event == "workers":
            given = change.after
        runs = _RUNS.get(change.event, runs)
        yield change.at, given if runs else 0, reason_of(change) if change.reason else ""


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
        again = " (the one before ended without brim down)" if change.event == "up" and runs else ""
        kind = "lost" if again else _KINDS.get(change.event, "round")
        what = change.event if " " in change.event else f"brim {change.event}"
        detail = f": {change.detail}" if change.detail else ""
        found.append(Incident(change.at, kind, f"{what}{detail}{again}"))
        runs = change.event == "up" or (runs and change.event != "down")
    return found


def _of_job(job: JobCourse, story: Sequence[Change], end: float) -> list[Incident]:
    found = []
    for change in story:
        told = f"{job.job}: {change.detail}"
        if change.event == "forced":
            found.append(Incident(change.at, "lost", f"{job.job}: workers taken by force"))
        elif change.event in (Phase.FAILED.value, Phase.SUSPENDED.value) and change.detail:
            found.append(Incident(change.at, "lost", told.splitlines()[0]))
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
    for at in [start, *described]:
        row = database.cycle_after(at)
        if row is None:  # nobody has decided anything since
            cluster, tenants = spec.cluster, spec.tenants
        else:
            snapshot, _ = decode_cycle(row.content)
            cluster, tenants = snapshot.cluster, snapshot.tenants
        found.append(
            Supply(at, cluster.devices, {tenant.id: tenant.guaranteed for tenant in tenants})
        )
    return found
