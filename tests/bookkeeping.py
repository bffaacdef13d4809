"""Jobs in a book without a cluster: they are taken in, held and ended as a scheduler would."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from brim.backends.live import write_down
from brim.coordination.cluster.scheduled_jobs import Event, ScheduledJobs, Submitted, Wished
from brim.domain.cluster import Cluster, ClusterSpec
from brim.domain.estimates import Estimates
from brim.domain.lifecycle import Happening
from brim.domain.schedule import Judgement
from brim.domain.scheduled_job import Allocation, JobProgress, ScheduledJob, Starts
from brim.domain.submission import Submission
from brim.storage.book import Book

SPEC = ClusterSpec(cluster=Cluster.parse("1x8"))


def submit(book: Book, submission: Submission, *, now: float, **named: Any) -> ScheduledJob:
    """Take a job in."""
    job = book.new_job(submission, now=now, **{"name": "job", **named})
    hear(book, Submitted(job), now)
    return job


def wish(book: Book, job: ScheduledJob, wish: Happening, *, now: float) -> None:
    """Hold, release or cancel a job."""
    hear(book, Wished(job.id, wish), now)


def hear(book: Book, event: Event, now: float) -> None:
    """Have a scheduler with this book hear of an event."""
    jobs = ScheduledJobs(book.unfinished(), SPEC, book)
    write_down(book, jobs.handle(event, now))


_PARTS = {
    "judgement": Judgement,
    "allocation": Allocation,
    "progress": JobProgress,
    "starts": Starts,
    "estimates": Estimates,
}


def job_of(**values: Any) -> ScheduledJob:
    """Make a job of values by their names, in whichever of its parts they are."""
    parts: dict[str, Any] = {}
    for part, kind in _PARTS.items():
        names = {field.name for field in fields(kind)} & values.keys()
        parts[part] = kind(**{name: values.pop(name) for name in names})
    return ScheduledJob(**values, **parts)
