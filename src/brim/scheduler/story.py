"""The history of a cluster from its scheduler's database, whether a scheduler runs or not."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from brim.domain.cluster import ClusterSpec
from brim.domain.lifecycle import Phase
from brim.domain.quantities import counted
from brim.domain.scheduled_job import ScheduledJob
from brim.errors import EnvironmentFault
from brim.scheduler.loop import CLUSTER
from brim.storage.book import Book, Change
from brim.storage.cycles import decode_cycle
from brim.storage.database import Database
from brim.telemetry.cluster_history import (
    ClusterHistory,
    Happening,
    JobHistory,
    Rights,
    Span,
)

# Whether a job has processes after an event; "refused" is also said of a deadline whose job runs
# nevertheless.
_RUNS = {phase.value: phase is Phase.RUNNING for phase in Phase if phase is not Phase.REFUSED}
_KINDS = {"up": "joined", "node back": "joined", "down": "left", "node lost": "lost"}


def cluster_history(
    database: Database, *, subject: str, now: float | None, since: float | None = None
) -> ClusterHistory:
    """What happened, as far as it was written down.

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
    happenings = [
        *_of_cluster(own),
        *(each for job in jobs for each in _of_job(job, stories[job.job], end)),
    ]
    return ClusterHistory(
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
        rights=_rights(database, own, spec, start),
        happenings=sorted(each for each in happenings if start <= each.at <= end),
        lives=max(1, sum(change.event == "up" for change in own)),
    )


def spans_of(story: Sequence[Change], end: float) -> list[Span]:
    """What a job had from its submission on: the plan's workers while it has processes, none while
    it waits.

    Args:
        end: its own, or that of the history.
    """
    spans: list[Span] = []
    given, runs, why = 0, False, ""
    since = story[0].at if story else end
    for change in story:
        before = given if runs else 0
        if change.event == "workers":
            given = change.after
        runs = _RUNS.get(change.event, runs)
        workers = given if runs else 0
        if workers != before:
            spans.append(Span(since, change.at, before, why))
            since = change.at
        if change.reason:
            why = f"{change.reason}: {change.detail}" if change.detail else change.reason
    return [*spans, Span(since, end, given if runs else 0, why)]


def _job(record: ScheduledJob, story: Sequence[Change], end: float) -> JobHistory:
    return JobHistory(
        job=record.id,
        tenant=record.submission.tenant,
        state=record.life.phase.value,
        step=record.progress.step,
        steps=record.progress.steps,
        maximum=record.submission.spec.workers.maximum,
        submitted=record.submitted,
        ended=record.ended,
        deadline=record.submission.deadline,
        promised=record.promised,
        spans=[
            span
            for span in spans_of(story, end if record.ended is None else record.ended)
            if span.end > span.start
        ],
        story=story,
    )


def _of_cluster(story: Sequence[Change]) -> list[Happening]:
    found, runs = [], False
    for change in story:
        again = " (the one before ended without brim down)" if change.event == "up" and runs else ""
        kind = "lost" if again else _KINDS.get(change.event, "round")
        what = change.event if " " in change.event else f"brim {change.event}"
        detail = f": {change.detail}" if change.detail else ""
        found.append(Happening(change.at, kind, f"{what}{detail}{again}"))
        runs = change.event == "up" or (runs and change.event != "down")
    return found


def _of_job(job: JobHistory, story: Sequence[Change], end: float) -> list[Happening]:
    found = []
    for change in story:
        told = f"{job.job}: {change.detail}"
        if change.event == "forced":
            found.append(Happening(change.at, "lost", f"{job.job}: workers taken by force"))
        elif change.event in (Phase.FAILED.value, Phase.SUSPENDED.value) and change.detail:
            found.append(Happening(change.at, "lost", told.splitlines()[0]))
        elif change.event == "workers" and change.reason == "reclaimed-by-owner":
            text = f"{job.job}: {change.before} to {counted(change.after, 'worker')}, reclaimed"
            found.append(Happening(change.at, "left", text))
    if job.promised and job.deadline is not None and job.kept(end) is False:
        found.append(
            Happening(job.deadline, "lost", f"{job.job} did not keep its promised deadline")
        )
    return found


def _rights(
    database: Database, story: Sequence[Change], spec: ClusterSpec, start: float
) -> list[Rights]:
    """What there was whenever that may have changed, as the next cycle saw it."""
    described = [change.at for change in story if change.event != "down" and change.at > start]
    found: list[Rights] = []
    for at in [start, *described]:
        row = database.cycle_after(at)
        if row is None:  # nobody has decided anything since
            cluster, tenants = spec.cluster, spec.tenants
        else:
            snapshot, _ = decode_cycle(row.content)
            cluster, tenants = snapshot.cluster, snapshot.tenants
        found.append(
            Rights(at, cluster.devices, {tenant.id: tenant.guaranteed for tenant in tenants})
        )
    return found
