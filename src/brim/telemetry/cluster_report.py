"""`report.html` of a cluster: who had which devices when and why, and whether promises were kept,
in one page.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from html import escape

from brim.clock import local_time
from brim.telemetry.charts import Mark, both_widths, marks_of
from brim.telemetry.cluster_charts import colour_name, devices_chart, draw_png, jobs_chart
from brim.telemetry.cluster_history import ClusterHistory, JobHistory, sentence_of
from brim.telemetry.pages import duration, page, table, tiles

_TOLD = 3  # happenings at one moment that are named


def render_cluster_report(history: ClusterHistory) -> str:
    """The page."""
    marks = _marks(history)
    devices = both_widths(lambda narrow: devices_chart(history, marks, narrow=narrow))
    jobs = both_widths(lambda narrow: jobs_chart(history, narrow=narrow))
    return page(
        f"cluster {history.subject}",
        [
            _header(history),
            f'<section aria-label="Facts">{tiles(_facts(history))}</section>',
            _section("Devices", f"<figure>{devices}</figure>{_happened(marks)}"),
            _section("Jobs", f"{_left_out(history)}<figure>{jobs}</figure>")
            if history.jobs
            else "",
            _jobs(history),
            _stories(history),
            "<footer><p>Workers are those of the plan, from the moment at which it was made, while "
            "a job has "
            "processes; they follow within moments.</p></footer>",
        ],
    )


def render_cluster_png(history: ClusterHistory) -> bytes:
    """The figures of the page as a picture."""
    return draw_png(history, _marks(history))


def _marks(history: ClusterHistory) -> list[Mark]:
    """What happened, by the wall clock; what belongs together in time is one flag."""
    told = [(each.at - history.start, each.kind, each.text) for each in history.happenings]
    found = marks_of(told, history.end - history.start)
    return [replace(mark, at=mark.at + history.start, text=_short(mark.text)) for mark in found]


def _short(text: str) -> str:
    parts = text.split(" → ")
    more = f" → … and {len(parts) - _TOLD} more" if len(parts) > _TOLD else ""
    return " → ".join(parts[:_TOLD]) + more


def _header(history: ClusterHistory) -> str:
    badge = (
        '<span class="badge good">up</span>'
        if history.running
        else '<span class="badge warm">down</span>'
    )
    return (
        f'<header><p class="kind">brim cluster report</p><h1>{escape(history.subject)} {badge}</h1>'
        f"<p>{history.when} · policy {escape(history.policy)}</p></header>"
    )


def _facts(history: ClusterHistory) -> list[tuple[str, str, str]]:
    jobs, end = history.jobs, history.end
    counts = {
        state: sum(job.state == state for job in jobs)
        for state in sorted({job.state for job in jobs})
    }
    promised = [job for job in jobs if job.promised and job.state != "cancelled"]
    kept = [job.kept(end) for job in promised]
    waits = [job.first_worker - job.submitted for job in jobs if job.first_worker is not None]
    used = sum(job.attained for job in jobs) / history.capacity if history.capacity else 0.0
    changes = sum(max(0, sum(span.workers > 0 for span in job.spans) - 1) for job in jobs)
    return [
        (
            "jobs",
            str(len(jobs)),
            ", ".join(f"{n} {state}" for state, n in counts.items()) or "none",
        ),
        ("promises kept", f"{kept.count(True)} of {len(kept)}", f"{kept.count(None)} not due yet"),
        (
            "devices",
            str(history.rights[-1].devices),
            f"{100 * min(used, 1.0):.0f} % in use on average",
        ),
        (
            "first worker",
            duration(statistics.median(waits)) if waits else "–",
            "after submission, median",
        ),
        ("resizes", str(changes), "and returns of jobs"),
        ("schedulers", str(history.lives), "one after the other"),
    ]


def _left_out(history: ClusterHistory) -> str:
    """What a reader might miss."""
    if not history.is_long:
        return ""
    return (
        f"<p>The {len(history.newest)} jobs of {len(history.jobs):,} that ended last, or not yet. "
        "The table below has all of them; brim report --cluster --last 2h shows the jobs of some "
        "hours.</p>"
    )


def _section(title: str, content: str) -> str:
    return f"<section><h2>{title}</h2>{content}</section>"


def _happened(marks: Sequence[Mark]) -> str:
    listed = "".join(
        f'<li class="{mark.kind}"><b>{mark.number}</b> <time>{_clock(mark.at)}</time> '
        f"{escape(mark.text)}</li>"
        for mark in marks
    )
    return f'<ol class="marks clock" aria-label="What happened">{listed}</ol>' if listed else ""


def _jobs(history: ClusterHistory) -> str:
    rows = [
        (
            job.job,
            job.tenant,
            job.state,
            _steps(job),
            _clock(job.submitted),
            "–" if job.first_worker is None else duration(job.first_worker - job.submitted),
            "–" if job.ended is None else _clock(job.ended),
            f"{job.attained:,.0f}",
            _deadline(job, history.end),
        )
        for job in history.jobs
    ]
    head = (
        "job",
        "tenant",
        "state",
        "steps",
        "submitted",
        "waited",
        "ended",
        "worker-seconds",
        "deadline",
    )
    return _section("Every job", table(head, rows))


def _steps(job: JobHistory) -> str:
    """Where a job runs, its own records know how far it is."""
    done = "…" if job.ended is None else f"{job.step:,}"
    return f"{done}/{job.steps:,}" if job.steps else done


def _deadline(job: JobHistory, end: float) -> str:
    if job.deadline is None:
        return "–"
    promise = "promised" if job.promised else "not promised"
    open_yet = "not due yet" if job.ended is None else "withdrawn"
    kept = {True: "kept", False: "not kept", None: open_yet}[job.kept(end)]
    return f"{_clock(job.deadline)}, {promise}, {kept}"


def _stories(history: ClusterHistory) -> str:
    told = "".join(
        "<details><summary><i "
        f'style="background:var(--{colour_name(number)})"></i>{escape(job.job)}</summary><ol>'
        + "".join(
            f"<li><time>{_clock(each.at)}</time> {escape(sentence_of(each))}</li>"
            for each in job.story
        )
        + "</ol></details>"
        for number, job in enumerate(history.newest)
    )
    return _section(
        "Why: the story of each job, as brim explain tells it", _left_out(history) + told
    )


def _clock(at: float) -> str:
    return local_time(at).strftime("%H:%M:%S")
