"""Draws a course: devices by job and time with reasons, and whether promises were kept.

As a page that loads nothing, as a PNG and as a table. A second course of the same jobs, such as what
the simulator foretold of them, can be laid beside the first.
"""

from __future__ import annotations

import functools
import io
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from brim.domain.course import Course, Holding, JobCourse, Origin, sentence_of
from brim.domain.quantities import counted
from brim.host.clock import local_time
from brim.report.drawing import (
    ON_PAGE,
    Flag,
    Series,
    as_svg,
    both_widths,
    colour_of,
    drawing,
    flag,
    marks_of,
    name_of,
    size,
    wrapped,
)
from brim.report.page import duration, light_colours, page, section, table, tiles

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDTH = 10.4  # inches, of the picture
_MOST_POINTS = 1_000  # of a curve
_MOST_TENANTS = 6  # with a panel of their own
_MOST_TOLD = 3  # incidents at one moment that are named
_UNITS = (("seconds", 1.0, 600.0), ("minutes", 60.0, 3 * 3600.0), ("hours", 3600.0, float("inf")))
_NARROW = 0.018  # part of the width below which a bar has no room for a number
_DEADLINES = {True: ("v", "good"), False: ("X", "bad"), None: ("v", "faint")}

Paint = Mapping[str, str]
Points = Sequence[tuple[float, int]]


# The page ------------------------------------------------------------------------------------------


def render_course(course: Course, compared: Course | None = None) -> str:
    """The page.

    Args:
        compared: another course of the same jobs, which is drawn beside the first.
    """
    view = CourseView(course, compared)
    return page(
        f"cluster {course.subject}",
        [
            _header(view),
            f'<section aria-label="Facts">{tiles(_facts(view))}</section>',
            section("Devices", f"<figure>{devices_figure(view)}</figure>{_happened(view)}"),
            section("Jobs", f"{_left_out(course)}<figure>{jobs_figure(view)}</figure>")
            if course.jobs
            else "",
            section("Every job", table(*rows_of(view))),
            stories(course),
            "<footer>"
            + "".join(f"<p>{_FOOTERS[course.origin]}</p>" for course in view.courses)
            + "</footer>",
        ],
    )


_RELATIVE = (Origin.SIMULATED, Origin.RECORDED)  # times are since the beginning of a trace
_FOOTERS = {
    Origin.LIVE: "Workers are those of the plan, from the moment at which it was made, while a job "
    "has processes; they follow within moments.",
    Origin.SIMULATED: "What is simulated happened on a virtual clock.",
    Origin.RECORDED: "What happened is as the log of the cluster has it.",
    Origin.REPLAYED: "What was decided again is what each cycle would have given, on what was really "
    "so at that time: jobs end when they did, whatever they would have been given.",
}


def _header(view: CourseView) -> str:
    course = view.course
    policy = f"policy {escape(course.policy)}"
    if view.beside is not None:
        kind = "two courses"
        badge = ""
        policy += f", and beside it {escape(_called(view.beside))}"
    elif course.origin is Origin.LIVE:
        kind = "cluster report"
        badge = _badge("up", "good") if course.running else _badge("down", "warm")
    else:
        kind = "cluster report"
        badge = _badge(course.origin.value, "warm")
    return (
        f'<header><p class="kind">brim {kind}</p><h1>{escape(course.subject)}{badge}</h1>'
        f"<p>{when_of(course)} · {policy}</p></header>"
    )


def _badge(word: str, kind: str) -> str:
    return f' <span class="badge {kind}">{word}</span>'


def _called(course: Course) -> str:
    if course.origin is Origin.RECORDED:
        return course.origin.value
    return f"policy {course.policy}, {course.origin.value}"


def _facts(view: CourseView) -> list[tuple[str, str, str]]:
    course = view.course
    states = {
        state: sum(job.state == state for job in course.jobs)
        for state in sorted({job.state for job in course.jobs})
    }
    first = [
        job.first_worker - job.submitted for job in course.jobs if job.first_worker is not None
    ]
    used = sum(job.attained for job in course.jobs) / course.capacity if course.capacity else 0.0
    summary = ", ".join(f"{count} {state}" for state, count in states.items())
    return [
        ("jobs", f"{len(course.jobs):,}", summary or "none"),
        ("promises kept", *_promises(view)),
        (
            "devices",
            f"{course.supply[-1].devices:,}",
            f"{100 * min(used, 1.0):.0f} % in use on average",
        ),
        (
            "first worker",
            duration(statistics.median(first)) if first else "–",
            "after submission, median",
        ),
        ("last end", duration(course.makespan), _last_end(view)),
        ("resizes", f"{_resizes(course):,}", "and returns of jobs"),
        *(
            [("schedulers", str(course.schedulers), "one after the other")]
            if course.schedulers
            else []
        ),
    ]


def _last_end(view: CourseView) -> str:
    compared = view.beside
    if compared is None or compared.origin is Origin.REPLAYED:
        return "after the first submission"
    return f"{compared.origin.value}: {duration(compared.makespan)}"


def _promises(view: CourseView) -> tuple[str, str]:
    counts, *compared_counts = [
        [job.kept(course.end) for job in course.jobs if job.promised and job.state != "cancelled"]
        for course in view.courses
    ]
    kept_text = f"{counts.count(True)} of {len(counts)}"
    if compared_counts:
        compared_text = f"{compared_counts[0].count(True)} of {len(compared_counts[0])}"
        return kept_text, f"{view.courses[1].origin.value}: {compared_text}"
    return kept_text, f"{counts.count(None)} not due yet"


def _resizes(course: Course) -> int:
    return sum(
        max(0, sum(holding.workers > 0 for holding in job.holdings) - 1) for job in course.jobs
    )


def _left_out(course: Course) -> str:
    """A note on the jobs that are not shown."""
    if not course.is_long:
        return ""
    range_note = (
        "jobs.csv has all of them"
        if course.origin is Origin.SIMULATED
        else "The table below has all of them; brim report --cluster --last 2h shows the jobs of "
        "some hours"
    )
    counts_text = f"{len(course.newest)} jobs of {len(course.jobs):,}"
    return f"<p>The {counts_text} that ended last, or not yet. {range_note}.</p>"


def _happened(view: CourseView) -> str:
    listed = "".join(
        f'<li class="{mark.kind}"><b>{mark.number}</b> '
        f"<time>{moment(view.course, mark.at)}</time> {escape(mark.text)}</li>"
        for mark in view.marks
    )
    return f'<ol class="marks clock" aria-label="What happened">{listed}</ol>' if listed else ""


def stories(course: Course) -> str:
    """The story of each job, to be unfolded."""
    story_rows = "".join(
        f'<details><summary><i style="background:var(--{colour_name(number)})"></i>'
        f"{escape(job.job)}</summary><ol>"
        + "".join(
            f"<li><time>{moment(course, line.at)}</time> {escape(sentence_of(line))}</li>"
            for line in job.story
        )
        + "</ol></details>"
        for number, job in enumerate(course.newest)
        if job.story
    )
    if not story_rows:
        return ""
    if course.is_long:
        story_rows = f"<details><summary>{counted(len(course.newest), 'job')}</summary>{story_rows}</details>"
    title = "Why: the story of each job, as brim explain tells it"
    return section(title, _left_out(course) + story_rows)


# The table -----------------------------------------------------------------------------------------


def rows_of(view: CourseView) -> tuple[list[str], list[list[str]]]:
    """A heading, and a row for each job."""
    course, compared = view.course, view.beside
    head = ["job", "tenant", "state", "steps", "submitted", "waited", "ended", "worker-seconds"]
    head.append("deadline")
    compared_jobs: Mapping[str, JobCourse] = {}
    if compared is not None:
        compared_jobs = {job.job: job for job in compared.jobs}
        word = compared.origin.value
        head += [f"{word}: ended", f"{word}: worker-seconds", f"{word}: deadline"]
    rows = []
    for job in course.jobs:
        row = [
            job.job,
            job.tenant,
            job.state,
            _steps(job),
            moment(course, job.submitted),
            "–" if job.first_worker is None else duration(job.first_worker - job.submitted),
            "–" if job.ended is None else moment(course, job.ended),
            f"{job.attained:,.0f}",
            _deadline(course, job),
        ]
        if compared is not None:
            compared_job = compared_jobs.get(job.job)
            row += (
                ["–", "–", "–"]
                if compared_job is None
                else _beside_row(job, compared, compared_job)
            )
        rows.append(row)
    return head, rows


def _beside_row(job: JobCourse, compared: Course, compared_job: JobCourse) -> list[str]:
    return [
        _later_by(job, compared_job),
        f"{compared_job.attained:,.0f}",
        _promise(compared, compared_job),
    ]


def _later_by(job: JobCourse, compared_job: JobCourse) -> str:
    """Say by how much sooner or later it ended beside: two courses have two clocks."""
    if compared_job.ended is None or job.ended is None:
        return "–" if compared_job.ended is None else "ended"
    difference = (compared_job.ended - compared_job.submitted) - (job.ended - job.submitted)
    if abs(difference) < 0.05:
        return "the same"
    return f"{duration(abs(difference))} {'later' if difference > 0 else 'sooner'}"


def _steps(job: JobCourse) -> str:
    """The steps of a job; of one that runs, its own records know how many are done."""
    if job.step is None:
        return "–"
    done = "…" if job.ended is None else f"{job.step:,}"
    return f"{done}/{job.steps:,}" if job.steps else done


def _deadline(course: Course, job: JobCourse) -> str:
    if job.deadline is None:
        return "–"
    return f"{moment(course, job.deadline)}, {_promise(course, job)}"


def _promise(course: Course, job: JobCourse) -> str:
    """The promise that was made for a deadline, and its outcome."""
    if job.deadline is None:
        return "–"
    promise = "promised" if job.promised else "not promised"
    open_yet = "not due yet" if job.ended is None else "withdrawn"
    result = {True: "kept", False: "not kept", None: open_yet}[job.kept(course.end)]
    return f"{promise}, {result}"


def moment(course: Course, timestamp: float) -> str:
    """A time for people: by the clock, or since the beginning of a simulation."""
    if course.origin in _RELATIVE:
        return f"+{(timestamp - course.start) / 3600:.2f} h"
    return local_time(timestamp).strftime("%H:%M:%S")


def when_of(course: Course) -> str:
    """The dates or the duration of a course, in words."""
    if course.origin is Origin.SIMULATED:
        return f"{duration(course.end - course.start)} on a virtual clock"
    start, end = (local_time(moment) for moment in (course.start, course.end))
    end_text = end.strftime("%H:%M" if start.date() == end.date() else "%-d %B %Y, %H:%M")
    return f"{start.strftime('%-d %B %Y, %H:%M')} to {end_text}"


# The charts ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class CourseView:
    """The courses to draw, and the places of their times on the axis.

    Each course begins at its own start.
    """

    course: Course
    beside: Course | None = None

    @functools.cached_property
    def courses(self) -> list[Course]:
        """The course, and the one beside it."""
        return [self.course] if self.beside is None else [self.course, self.beside]

    @functools.cached_property
    def marks(self) -> list[Flag]:
        """The incidents as flags; those close in time are one flag."""
        course = self.course
        incidents = [
            (incident.at - course.start, incident.kind, incident.text)
            for incident in course.incidents
        ]
        return [
            replace(mark, at=mark.at + course.start, text=_short(mark.text))
            for mark in marks_of(incidents, course.end - course.start)
        ]

    @functools.cached_property
    def seconds(self) -> float:
        """The length of the longest one."""
        return max(course.end - course.start for course in self.courses)

    @functools.cached_property
    def unit(self) -> tuple[str, float]:
        """The unit of the axis: its name, and how many seconds it has."""
        return next((name, unit) for name, unit, limit in _UNITS if self.seconds < limit)

    @functools.cached_property
    def label(self) -> str:
        """The words below the axis."""
        return f"{self.unit[0]} since the start"

    @functools.cached_property
    def end(self) -> float:
        """The right edge of the axis."""
        return self.seconds / self.unit[1]

    def x_of(self, time: float, course: Course | None = None) -> float:
        """The place of a time of the course, or of the one beside it."""
        start = (course or self.course).start
        return (max(time, start) - start) / self.unit[1]


def _short(text: str) -> str:
    parts = text.split(" → ")
    rest = f" → … and {len(parts) - _MOST_TOLD} more" if len(parts) > _MOST_TOLD else ""
    return " → ".join(parts[:_MOST_TOLD]) + rest


def colour_name(number: int) -> str:
    """The CSS variable of a job's colour, by order of submission."""
    return f"j{number % 10}"


def draw_png(course: Course, compared: Course | None = None) -> bytes:
    """Devices and jobs in one picture, on white."""
    view = CourseView(course, compared)
    paint = light_colours()
    with drawing(paint):
        panels = 1 + len(_panel_tenants(course))
        jobs_height = _height(view)
        heights = [3.2, *[1.0] * (panels - 1), jobs_height]
        figure = Figure(figsize=(_WIDTH, sum(heights) + 0.6), layout="constrained")
        axes = figure.subplots(panels + 1, 1, sharex=True, height_ratios=heights)
        _draw_devices(axes[:-1], view, paint)
        _draw_jobs(axes[-1], view, paint, [])
        title = f"{course.subject}: {when_of(course)}, policy {course.policy}"
        figure.suptitle(title, fontsize=11)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=120, facecolor="white")
        return buffer.getvalue()


def devices_figure(view: CourseView) -> str:
    """Draw the devices, job by job, and below it tenant by tenant."""
    return both_widths(lambda narrow: _devices_svg(view, narrow=narrow))


def jobs_figure(view: CourseView) -> str:
    """Draw each job from its submission to its end: its waits, and the workers it ran on."""
    return both_widths(lambda narrow: _jobs_svg(view, narrow=narrow))


def _devices_svg(view: CourseView, *, narrow: bool) -> str:
    panel_tenants = _panel_tenants(view.course)
    heights = [3.2, *[1.0] * len(panel_tenants)]
    with drawing(ON_PAGE):
        tall = size(3.2 + 1.05 * len(panel_tenants), narrow=narrow)
        figure = Figure(figsize=tall, layout="constrained")
        axes = figure.subplots(
            len(heights), 1, sharex=True, squeeze=False, height_ratios=heights
        ).ravel()
        _draw_devices(axes, view, ON_PAGE, narrow=narrow)
        lines = [
            [*_jobs_lines(view), *_beside_line(view)],
            *([_tenant_line(view, tenant)] for tenant in panel_tenants),
        ]
        panels = list(zip(axes, lines, strict=True))
        title = "Devices over time, by job and by tenant"
        unit = f" {view.unit[0]}"
        return as_svg(figure, "devices", title, panels=panels, unit=unit, narrow=narrow)


def _jobs_lines(view: CourseView) -> list[Series]:
    course = view.course
    if course.is_long:
        return [_tenant_line(view, tenant) for tenant in course.tenants[:_MOST_TENANTS]]
    found = []
    for number, job in enumerate(course.jobs):
        points = [
            (view.x_of(holding.start), float(holding.workers))
            for holding in job.holdings
            if holding.end > course.start
        ]
        if job.holdings:
            points.append((view.x_of(job.holdings[-1].end), 0.0))
        colour = colour_name(number)
        found.append(Series(name=job.job, points=points, colour=colour, steps=True, quiet=True))
    return found


def _tenant_line(view: CourseView, tenant: str) -> Series:
    points = [(view.x_of(time), float(count)) for time, count in _curves(view.course)[tenant]]
    colour = _tenant_colour(view.course, tenant) if view.course.is_long else "accent"
    return Series(name=f"tenant {tenant}", points=points, colour=colour, steps=True)


def _tenant_colour(course: Course, tenant: str) -> str:
    """The CSS variable of a tenant where colours are tenants'."""
    return colour_name(course.tenants.index(tenant))


def _beside_line(view: CourseView) -> list[Series]:
    if view.beside is None:
        return []
    points = [
        (view.x_of(moment, view.beside), float(count))
        for moment, count in _workers_over_time(view.beside)
    ]
    name = f"all, {view.beside.origin.value}"
    return [Series(name=name, points=points, colour="ink", steps=True)]


def _jobs_svg(view: CourseView, *, narrow: bool) -> str:
    tips: list[str] = []
    with drawing(ON_PAGE):
        figure = Figure(figsize=size(_height(view), narrow=narrow), layout="constrained")
        _draw_jobs(figure.subplots(), view, ON_PAGE, tips, narrow=narrow)
        svg = as_svg(figure, "jobs", "Each job over time", narrow=narrow)
        return _with_tips(svg, "jobs-narrow" if narrow else "jobs", tips)


@functools.lru_cache(maxsize=2)  # several charts of one course, and of the one beside it
def _curves(course: Course) -> Mapping[str, Points]:
    """The devices that each tenant held."""
    return {tenant: _workers_over_time(course, tenant) for tenant in course.tenants}


def _workers_over_time(course: Course, tenant: str | None = None) -> Points:
    """Workers of a tenant's jobs at each change.

    Where changes are very many, return what they left at as many moments.
    """
    points = course.held(tenant)
    width = (course.end - course.start) / _MOST_POINTS
    last_of = {int((moment - course.start) / width): (moment, count) for moment, count in points}
    return points if len(points) <= _MOST_POINTS else list(last_of.values())


def _draw_devices(
    axes: Iterable[Axes], view: CourseView, paint: Paint, *, narrow: bool = False
) -> None:
    course = view.course
    axis, *tenant_axes = axes
    if course.is_long:
        _stack_tenants(axis, view, paint)
    else:
        _stack_jobs(axis, view, paint)
    supply = [(supply.at, supply.devices) for supply in course.supply]
    supply.append((course.end, supply[-1][1]))
    _draw_steps(axis, view, supply, color=paint["ink"], linewidth=1.1, linestyle=(0, (5, 3)))
    largest = max(count for _, count in supply)
    words = ["dashed: all that there are"]
    if view.beside is not None:
        compared_points = [
            point for point in _workers_over_time(view.beside) if point[0] < view.beside.end
        ]
        compared_points.append((view.beside.end, compared_points[-1][1]))
        largest = max(largest, *(count for _, count in compared_points))
        _draw_steps(
            axis, view, compared_points, course=view.beside, color=paint["ink"], linewidth=1.5
        )
        words.append(f"line: {_called(view.beside)}")
    unit_name = "tenant" if course.is_long else "job"
    title = f"devices, by {unit_name} ({'; '.join(words)})"
    axis.set_title(wrapped(title, narrow=narrow))
    axis.set_ylim(0, largest * 1.06)
    for panel, tenant in zip(tenant_axes, _panel_tenants(course), strict=True):
        _draw_tenant(panel, view, tenant, paint)
    marks = view.marks
    for device_axis in [axis, *tenant_axes]:
        device_axis.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=4))
        for mark in marks:
            colour = colour_of(mark, paint)
            device_axis.axvline(view.x_of(mark.at), color=colour, linewidth=0.9, alpha=0.6)
    placed = [replace(mark, at=view.x_of(mark.at)) for mark in marks]
    flag(axis, placed, view.end, paint, narrow=narrow)
    last = tenant_axes[-1] if tenant_axes else axis
    last.set_xlim(0, view.end)
    last.set_xlabel(view.label)


def _draw_steps(
    axis: Axes, view: CourseView, points: Points, *, course: Course | None = None, **line: Any
) -> None:
    places = [view.x_of(moment, course) for moment, _ in points]
    axis.step(places, [count for _, count in points], where="post", **line)


def _stack_jobs(axis: Axes, view: CourseView, paint: Paint) -> None:
    """One area for each job, on top of those that were submitted before it."""
    course = view.course
    times = course.times()
    places = [view.x_of(time) for time in times]
    index_of = {time: index for index, time in enumerate(times)}
    low = [0] * len(times)
    gap = 0.3 if len(course.jobs) <= 40 else 0.0
    for number, job in enumerate(course.jobs):
        own_counts = [0] * len(times)
        for holding in job.holdings:
            first = index_of.get(max(holding.start, course.start))
            last = index_of.get(min(holding.end, course.end))
            if holding.workers and first is not None and last is not None:
                own_counts[first:last] = [holding.workers] * (last - first)
        used = [index for index, workers in enumerate(own_counts) if workers]
        if not used:
            continue
        part = slice(used[0], min(used[-1] + 2, len(times)))
        top = [base + workers for base, workers in zip(low, own_counts, strict=True)]
        axis.fill_between(
            places[part],
            low[part],
            top[part],
            step="post",
            facecolor=paint[colour_name(number)],
            edgecolor=paint["card"],
            linewidth=gap,
        )
        low = top


def _stack_tenants(axis: Axes, view: CourseView, paint: Paint) -> None:
    """One area for each tenant: thousands of jobs could not be told apart."""
    course = view.course
    curves = _curves(course)
    times = sorted({course.end, *(time for curve in curves.values() for time, _ in curve)})
    places = [view.x_of(time) for time in times]
    low = [0] * len(times)
    for tenant, curve in curves.items():
        top = [base + count for base, count in zip(low, _counts_at(times, curve), strict=True)]
        colour = paint[_tenant_colour(course, tenant)]
        axis.fill_between(places, low, top, step="post", facecolor=colour, linewidth=0.0)
        low = top


def _counts_at(times: Sequence[float], curve: Points) -> list[int]:
    changes = dict(curve)
    counts = []
    count = 0
    for time in times:
        count = changes.get(time, count)
        counts.append(count)
    return counts


def _draw_tenant(axis: Axes, view: CourseView, tenant: str, paint: Paint) -> None:
    course = view.course
    points = [*_curves(course)[tenant], (course.end, 0)]
    places = [view.x_of(time) for time, _ in points]
    counts = [count for _, count in points]
    colour = _tenant_colour(course, tenant) if course.is_long else "accent-faint"
    axis.fill_between(places, counts, step="post", facecolor=paint[colour], linewidth=0.0)
    owned = [(supply.at, supply.guaranteed.get(tenant, 0)) for supply in course.supply]
    owned.append((course.end, owned[-1][1]))
    _draw_steps(axis, view, owned, color=paint["good"], linewidth=1.6)
    axis.set_ylim(0, max(*counts, *(count for _, count in owned), 1) * 1.15)
    axis.set_title(f"tenant {name_of(tenant)} (line: guaranteed {owned[-1][1]})", fontsize=9)


def _draw_jobs(
    axis: Axes, view: CourseView, paint: Paint, tips: list[str], *, narrow: bool = False
) -> None:
    course = view.course
    jobs = course.newest
    widest = max((holding.workers for job in jobs for holding in job.holdings), default=1) or 1
    rows = _Rows(axis, view, paint, tips, widest)
    compared_jobs = {} if view.beside is None else {job.job: job for job in view.beside.jobs}
    for row, job in enumerate(jobs):
        rows.draw(row, job, compared_jobs.get(job.job))
        if job.deadline is not None and course.start <= job.deadline <= course.end:
            _draw_deadline(axis, view, row, job, paint)
        elif job.deadline is not None and job.deadline > course.end:
            axis.plot(view.end, row, ">", color=paint["faint"], markersize=4, clip_on=False)
    names = [name_of(job.job) for job in jobs]
    axis.set_yticks(range(len(jobs)), names, fontsize=7.5 if len(jobs) > 40 and not narrow else 8.5)
    axis.set_ylim(len(jobs) - 0.4, -0.6)
    axis.set_xlim(0, view.end)
    axis.grid(visible=False, axis="y")
    compared_note = "" if view.beside is None else f"; below: {_called(view.beside)}"
    words = "thin: waits; height and number: workers; ▼ deadline kept, ✖ not kept"
    axis.set_xlabel(wrapped(f"{view.label} ({words}{compared_note})", narrow=narrow))


@dataclass(frozen=True, slots=True)
class _Rows:
    """Draws the workers of jobs, a row for each."""

    axis: Axes
    view: CourseView
    paint: Paint
    tips: list[str]
    widest: int

    def draw(self, row: int, job: JobCourse, compared_job: JobCourse | None) -> None:
        """One job, and below it the compared one."""
        is_alone = self.view.beside is None
        middle, part = (row, 1.0) if is_alone else (row - 0.14, 0.72)
        for holding in job.holdings:
            if holding.end > self.view.course.start:
                height = (
                    part * (0.28 + 0.5 * holding.workers / self.widest) if holding.workers else 0.07
                )
                colour = self.paint[colour_name(row)] if holding.workers else self.paint["faint"]
                self._bar(self.view.course, job, holding, middle, height, colour=colour)
                self._number(holding, middle)
        if self.view.beside is None or compared_job is None:
            return
        for holding in compared_job.holdings:
            height = 0.08 + 0.18 * holding.workers / self.widest if holding.workers else 0.03
            colour = self.paint[colour_name(row)] if holding.workers else self.paint["faint"]
            self._bar(self.view.beside, compared_job, holding, row + 0.34, height, colour=colour)

    def _bar(
        self,
        course: Course,
        job: JobCourse,
        holding: Holding,
        middle: float,
        height: float,
        *,
        colour: str,
    ) -> None:
        start = self.view.x_of(holding.start, course)
        wide = self.view.x_of(holding.end, course) - start
        outlined = course is not self.view.course and holding.workers > 0
        # As barh draws it, which looks again at all limits for each.
        bar = Rectangle(
            (start, middle - height / 2),
            wide,
            height,
            facecolor=self.paint["card"] if outlined else colour,
            edgecolor=colour,
            linewidth=1.4 if outlined else 0.0,
        )
        # What is inside the axes takes no room beside them, and need not be measured.
        bar.set_in_layout(False)
        self.axis.add_artist(bar)
        activity = counted(holding.workers, "worker") if holding.workers else "waits"
        duration_text = f"{duration(holding.end - holding.start)} from {duration(holding.start - course.start)} on"
        origin = "" if course is self.view.course else f", {_called(course)}"
        reason_text = f" ({holding.why})" if holding.why else ""
        self.tips.append(f"{job.job}{origin}: {activity}, {duration_text}{reason_text}")
        bar.set_gid(f"tip-{len(self.tips) - 1}")

    def _number(self, holding: Holding, middle: float) -> None:
        left, right = self.view.x_of(holding.start), self.view.x_of(holding.end)
        if holding.workers and right - left > _NARROW * self.view.end:
            self.axis.text(
                (left + right) / 2,
                middle,
                str(holding.workers),
                ha="center",
                va="center_baseline",
                fontsize=7.5,
                color=self.paint["card"],
                fontweight="bold",
                in_layout=False,
            )


def _draw_deadline(axis: Axes, view: CourseView, row: int, job: JobCourse, paint: Paint) -> None:
    assert job.deadline is not None
    marker, colour = _DEADLINES[job.kept(view.course.end)]
    axis.plot(
        view.x_of(job.deadline),
        row - (0.28 if view.beside is None else 0.42),
        marker,
        color=paint[colour],
        markerfacecolor=paint[colour] if job.promised else "none",
        markersize=4.0 if len(view.course.jobs) > 40 else 6.0,
        clip_on=False,
        zorder=5,
    )


def _panel_tenants(course: Course) -> list[str]:
    """Tenants with a panel: those that own something, or several that do not.

    The largest holder comes first.
    """
    names = course.tenants
    owners = {
        name for supply in course.supply for name, count in supply.guaranteed.items() if count
    }
    if not owners and len(names) < 2:
        return []
    had = dict.fromkeys(names, 0.0)
    for job in course.jobs:
        had[job.tenant] += job.attained
    return sorted(sorted(names, key=lambda name: -had[name])[:_MOST_TENANTS])


def _height(view: CourseView) -> float:
    """Return the height of the jobs' chart, in inches."""
    count = max(1, len(view.course.newest))
    row_height = 0.34 if count <= 20 else 0.22 if count <= 40 else 0.14
    return 0.9 + count * row_height * (1.0 if view.beside is None else 1.35)


def _with_tips(svg: str, name: str, tips: Sequence[str]) -> str:
    """Add the texts that `hover.js` shows of a drawing, and that screen readers read."""

    def titled(found: re.Match[str]) -> str:
        words = escape(tips[int(found[1])])
        return f'{found[0][:-1]} role="img" aria-label="{words}" data-tip="{words}">'

    return re.sub(rf'<g id="{name}-tip-(\d+)">', titled, svg).replace(
        'role="img"', 'role="group"', 1
    )
