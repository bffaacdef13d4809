"""Draws a trace under several policies: their deadlines, devices, waits and completion times.

As PNGs and as one page that loads nothing, by the same functions. All is simulated, but for the past,
where that is known: it is one of the courses.
"""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

from brim.domain.course import Course, Origin
from brim.report.course import CourseView, devices_figure, jobs_figure, stories
from brim.report.drawing import ON_PAGE, Series, as_svg, both_widths, drawing, size
from brim.report.page import duration, light_colours, page, section, table, tiles
from brim.storage.files import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes

T = TypeVar("T")
_POINTS = 2000  # most points of one line on a page
_MOST_TENANTS = 9  # with an area of their own; there are ten colours

Paint = Mapping[str, str]
Courses = Mapping[str, Course]
"""By policy."""
Draw = Callable[["Axes", Paint], list[Series]]
Points = Sequence[tuple[float, int]]


@dataclass(frozen=True, slots=True)
class _Chart:
    """One figure.

    `draw` draws it and says what can be read off it, `unit` stands behind a place on its axis.
    """

    name: str
    title: str
    draw: Draw
    unit: str = " h"
    height: float = 3.0


def write_pngs(out_folder: Path, courses: Courses, summary: Mapping[str, Any]) -> None:
    """deadline_ratio.png, devices.png, jct.png, queue.png and tenants.png into `out_folder`.

    Args:
        summary: of `brim simulate --json`.
    """
    paint = light_colours()
    for chart in _charts(courses, summary):
        with drawing(paint):
            figure, axis = _figure(chart, narrow=False)
            chart.draw(axis, paint)
            figure.suptitle(f"{chart.title} (simulated)", fontsize=11)
            figure.savefig(out_folder / f"{chart.name}.png", dpi=120, facecolor="white")


def _figure(chart: _Chart, *, narrow: bool) -> tuple[Figure, Axes]:
    figure = Figure(figsize=size(chart.height, narrow=narrow), layout="constrained")
    return figure, figure.subplots()


def _charts(courses: Courses, summary: Mapping[str, Any]) -> list[_Chart]:
    recorded = _first_shown(courses)
    bars = 0.9 + 0.34 * len(courses)
    devices = {policy: course.held() for policy, course in courses.items() if _is_recorded(course)}
    queues = {policy: course.waiting() for policy, course in courses.items() if policy in devices}
    happened = _happened(courses)
    has_deadlines = summary["ceiling"]["per_job"] is not None
    ratios = _Chart("deadline_ratio", "Deadlines met", lambda a, p: _bars(a, p, summary), "", bars)
    return [
        *([ratios] if has_deadlines else []),
        _Chart("devices", "Devices in use", lambda a, p: _lines(a, p, courses, devices, "devices")),
        _Chart("queue", "Jobs that wait", lambda a, p: _lines(a, p, courses, queues, "jobs")),
        _Chart("jct", "Completion times", lambda a, p: _completions(a, p, courses)),
        _Chart(
            "tenants",
            f"Devices by tenant, under {_short(recorded.policy)}",
            lambda a, p: _tenants(a, p, recorded),
        ),
        *(
            []
            if happened is None
            else [
                _Chart(
                    "tenants_as_it_happened",
                    "Devices by tenant, as it happened",
                    lambda a, p: _tenants(a, p, happened),
                )
            ]
        ),
    ]


def _first_shown(courses: Courses) -> Course:
    """The first one with known holdings, or the first one."""
    return next(filter(_is_recorded, courses.values()), next(iter(courses.values())))


def _happened(courses: Courses) -> Course | None:
    """Return the past, where it is known."""
    return next((c for c in courses.values() if c.origin is Origin.RECORDED), None)


def _is_recorded(course: Course) -> bool:
    return any(job.holdings for job in course.jobs)


def _colours(names: Sequence[str]) -> dict[str, str]:
    """A CSS variable for each policy or tenant."""
    return {name: f"j{number % 10}" for number, name in enumerate(names)}


def _bars(axis: Axes, paint: Paint, summary: Mapping[str, Any]) -> list[Series]:
    ceiling = summary["ceiling"]["per_job"]
    ratios = {
        policy: figures["deadline_satisfactory_ratio"] or 0.0
        for policy, figures in summary["policies"].items()
    }
    colours = [paint[name] for name in _colours(list(ratios)).values()]
    bars = axis.barh(range(len(ratios)), list(ratios.values()), color=colours, height=0.62)
    axis.bar_label(bars, fmt="%.3f", padding=4, color=paint["ink"])
    axis.set_yticks(range(len(ratios)), [_short(name) for name in ratios])
    axis.invert_yaxis()
    axis.grid(visible=False, axis="y")
    axis.set_xlim(0, 1.12)
    axis.set_xticks([0, 0.25, 0.5, 0.75, 1])
    axis.set_xlabel(
        "deadline satisfactory ratio"
        + ("" if ceiling is None else f" (dotted: ceiling {ceiling:.3f})")
    )
    if ceiling is not None:
        axis.axvline(ceiling, color=paint["ink"], linestyle=":", linewidth=1.4)
    return []  # the numbers stand beside the bars


def _short(name: str) -> str:
    """A policy's name where there is little room: a file without its directories."""
    return name.rpartition("/")[2]


def _lines(
    axis: Axes, paint: Paint, courses: Courses, lines: Mapping[str, Points], label: str
) -> list[Series]:
    found = []
    colours = _colours(list(courses))
    for policy, points in lines.items():
        colour = colours[policy]
        course = courses[policy]
        whole = [*points, (course.end, points[-1][1])]
        hours = [
            ((moment - course.start) / 3600, float(count)) for moment, count in _thinned_rows(whole)
        ]
        axis.step(
            [hour for hour, _ in hours],
            [count for _, count in hours],
            where="post",
            label=_short(policy),
            color=paint[colour],
            linewidth=1.2,
        )
        found.append(Series(name=_short(policy), points=hours, colour=colour, steps=True))
    _finish(axis, "hours since the first job", label)
    return found


def _completions(axis: Axes, paint: Paint, courses: Courses) -> list[Series]:
    found = []
    colours = _colours(list(courses))
    for policy, course in courses.items():
        hours = _completion_hours(course)
        if hours:
            points = [(hour, 100 * (k + 1) / len(hours)) for k, hour in enumerate(hours)]
            axis.step(
                hours,
                [share for _, share in points],
                where="post",
                label=_short(policy),
                color=paint[colours[policy]],
                linewidth=1.4,
            )
            colour = colours[policy]
            name = _short(policy)
            found.append(Series(name=name, points=points, colour=colour, unit=" %", steps=True))
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.xaxis.set_minor_formatter(LogFormatter())  # otherwise in the markup of formulas
    _finish(axis, "JCT, hours", "share of jobs, %")
    axis.margins(x=0.02)
    axis.autoscale(axis="x")
    return found


def _completion_hours(course: Course) -> list[float]:
    done = [job for job in course.jobs if job.state == "done" and job.ended is not None]
    return sorted(((job.ended or 0.0) - job.submitted) / 3600 for job in done)


def _tenants(axis: Axes, paint: Paint, course: Course) -> list[Series]:
    found = []
    if _is_recorded(course):
        largest = _largest_tenants(course)
        total = dict(course.held())
        curves = {name: dict(course.held(name)) for name in largest}
        times = sorted({*total, *(moment for curve in curves.values() for moment in curve)})
        counts = {name: _at_all(times, curve) for name, curve in curves.items()}
        if len(course.tenants) > len(largest):
            named = [sum(row) for row in zip(*counts.values(), strict=True)]
            rest = [count - part for count, part in zip(_at_all(times, total), named, strict=True)]
            counts[f"{len(course.tenants) - len(largest)} others"] = rest
        names = list(counts)
        colours = _colours(names)
        rows = _thinned_rows([*zip(times, zip(*counts.values(), strict=True), strict=True)])
        hours = [(moment - course.start) / 3600 for moment, _ in rows]
        stacks = [[float(counts[place]) for _, counts in rows] for place in range(len(names))]
        axis.stackplot(
            hours,
            stacks,
            labels=names,
            step="post",
            colors=[paint[colour] for colour in colours.values()],
        )
        for name, values in zip(names, stacks, strict=True):
            points = list(zip(hours, values, strict=True))
            colour = colours[name]
            found.append(Series(name=name, points=points, colour=colour, steps=True, quiet=True))
    _finish(axis, "hours since the first job", "devices")
    return found


def _largest_tenants(course: Course) -> list[str]:
    """The tenants that get an area of their own: those with the most device time."""
    had = dict.fromkeys(course.tenants, 0.0)
    for job in course.jobs:
        had[job.tenant] += job.attained
    return sorted(sorted(had, key=lambda name: -had[name])[:_MOST_TENANTS])


def _at_all(times: Sequence[float], curve: Mapping[float, int]) -> list[int]:
    counts = []
    count = 0
    for moment in times:
        count = curve.get(moment, count)
        counts.append(count)
    return counts


def _finish(axis: Axes, x: str, y: str) -> None:
    axis.set_xlabel(x)
    axis.set_ylabel(y)
    axis.set_ylim(0, axis.get_ylim()[1] * 1.02)
    names = axis.get_legend_handles_labels()[1]
    if names:
        inches = axis.get_window_extent().width / 100
        label_length = max(1, int(inches * 11 // (max(map(len, names)) + 6)))
        axis.legend(
            frameon=False,
            fontsize=8.5,
            ncols=min(label_length, len(names)),
            loc="lower center",
            bbox_to_anchor=(0.5, 1.0),
        )
    axis.margins(x=0)


def _thinned_rows(rows: Sequence[T]) -> Sequence[T]:
    """Return up to `_POINTS` of `rows`, the last always among them."""
    return [*rows[:: max(1, -(-len(rows) // _POINTS))], rows[-1]]


def write_page(path: Path, courses: Courses, summary: Mapping[str, Any]) -> None:
    """Write one page that loads nothing: ratio by policy, devices, waits and completion times.

    It also shows who had the devices, and why, under the first policy whose course was recorded.
    """
    sections = [_header(courses), _facts(courses, summary), _assumed(summary)]
    first = _first_shown(courses)
    for chart in _charts(courses, summary):
        if chart.name != "tenants" or not _is_recorded(first):
            sections.append(section(chart.title, f"<figure>{_drawn(chart)}</figure>"))
    sections += [*_story(first, _happened(courses)), _policies(summary), _numbers(summary)]
    write_whole(path, page("brim simulate", sections).encode())


def _story(course: Course, happened: Course | None) -> list[str]:
    """The sections on devices by job and their reasons; the chart says which tenant, too.

    The past is drawn beside them.
    """
    if not _is_recorded(course):
        return []
    view = CourseView(course, None if happened is course else happened)
    policy_note = f", under {_short(course.policy)}"
    return [
        section(f"Who had the devices{policy_note}", f"<figure>{devices_figure(view)}</figure>"),
        section(f"Jobs{policy_note}", f"<figure>{jobs_figure(view)}</figure>"),
        stories(course),
    ]


def _drawn(chart: _Chart) -> str:
    def draw(narrow: bool) -> str:
        with drawing(ON_PAGE):
            figure, axis = _figure(chart, narrow=narrow)
            series = chart.draw(axis, ON_PAGE)
            panels = [(axis, series)] if series else []
            name = f"compared-{chart.name.replace('_', '-')}"
            return as_svg(figure, name, chart.title, panels=panels, unit=chart.unit, narrow=narrow)

    return both_widths(draw)


def _header(courses: Courses) -> str:
    simulated = [policy for policy, c in courses.items() if c.origin is not Origin.RECORDED]
    names = html.escape(", ".join(simulated))
    happened = _happened(courses)
    note = "on a virtual clock: nothing here was measured on a cluster"
    if happened is not None:
        note = f"on a virtual clock, beside what happened: {html.escape(happened.subject)}"
    return (
        '<header><p class="kind">brim simulate</p><h1>Policies compared '
        '<span class="badge warm">simulated</span></h1>'
        f"<p>{names} · {note}</p></header>"
    )


def _facts(courses: Courses, summary: Mapping[str, Any]) -> str:
    first = next(iter(summary["policies"].values()))
    ceiling = summary["ceiling"]["per_job"]
    devices = next(iter(courses.values())).supply[0].devices
    happened = summary.get("as_it_happened")
    facts = [
        ("jobs", f"{first['jobs']:,}", f"{first['deadline_jobs']:,} with a deadline"),
        ("devices", f"{devices:,}", "in the cluster"),
        ("policies", str(len(summary["policies"])), "on the same trace"),
        ("ceiling", "–" if ceiling is None else f"{ceiling:.3f}", "of deadlines, for any policy")
        if happened is None
        else ("mean JCT", duration(happened["average_jct_seconds"]), "as it happened"),
    ]
    return f'<section aria-label="Facts">{tiles(facts)}</section>'


def _assumed(summary: Mapping[str, Any]) -> str:
    """The section on the assumptions; empty where there are none."""
    items = "".join(f"<li>{html.escape(text)}</li>" for text in summary.get("assumed", ()))
    return section("Assumed", f"<ul>{items}</ul>") if items else ""


def _policies(summary: Mapping[str, Any]) -> str:
    rows = []
    happened = {"as it happened": summary["as_it_happened"]} if "as_it_happened" in summary else {}
    for policy, figures in {**happened, **summary["policies"]}.items():
        ratio = figures["deadline_satisfactory_ratio"]
        wait, jct = figures["average_wait_seconds"], figures["average_jct_seconds"]
        rows.append(
            (
                policy,
                "–" if ratio is None else f"{ratio:.4f}",
                "–" if ratio is None else str(figures["admitted"]),
                "–" if ratio is None else str(figures["admitted_missed"]),
                "–" if wait is None else f"{wait / 3600:.3f}",
                "–" if jct is None else f"{jct / 3600:.3f}",
                f"{figures['makespan_seconds'] / 3600:.1f}",
                f"{100 * figures['utilisation']:.0f} %",
                f"{figures['changes']:,}",
            )
        )
    head = (
        "policy",
        "deadlines met",
        "promised",
        "broken",
        "mean wait h",
        "mean JCT h",
        "makespan h",
        "in use",
        "changes",
    )
    return section("Every policy", table(head, rows))


def _numbers(summary: Mapping[str, Any]) -> str:
    numbers = html.escape(json.dumps(summary, indent=2))
    return (
        "<section><details><summary>The numbers (summary.json)</summary>"
        f'<pre class="scroll">{numbers}</pre></details></section>'
    )
