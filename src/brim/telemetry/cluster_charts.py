"""Draws a cluster's history: as inline SVG that the page colours and that tells of itself on hover,
and as a PNG.
"""

from __future__ import annotations

import functools
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from brim.domain.quantities import counted
from brim.telemetry.charts import (
    ON_PAGE,
    Mark,
    Series,
    as_svg,
    colour_of,
    drawing,
    flag,
    name_of,
    size,
    wrapped,
)
from brim.telemetry.cluster_history import ClusterHistory, JobHistory, Span
from brim.telemetry.pages import light_colours

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_WIDTH = 10.4  # inches, of the picture
_MOST_POINTS = 1_000  # of a curve
_MOST_TENANTS = 6  # with a panel of their own
_UNITS = (("seconds", 1.0, 600.0), ("minutes", 60.0, 3 * 3600.0), ("hours", 3600.0, float("inf")))
_NARROW = 0.018  # part of the width below which a bar has no room for a number
_Curves = Mapping[str, Sequence[tuple[float, int]]]
_NOT_YET = {True: ("v", "good"), False: ("X", "bad"), None: ("v", "faint")}


def colour_name(number: int) -> str:
    """The CSS variable of a job's colour, by order of submission."""
    return f"j{number % 10}"


def devices_chart(history: ClusterHistory, marks: Sequence[Mark], *, narrow: bool = False) -> str:
    """Who had the devices, job by job, and below it tenant by tenant."""
    with drawing(ON_PAGE):
        shown = _shown(history)
        tall = size(3.2 + 1.05 * len(shown), narrow=narrow)
        figure = Figure(figsize=tall, layout="constrained")
        axes = figure.subplots(
            1 + len(shown), 1, sharex=True, squeeze=False, height_ratios=[3.2, *[1.0] * len(shown)]
        ).ravel()
        curves = _curves(history)
        _draw_devices(axes, history, marks, ON_PAGE, curves, narrow=narrow)
        lines = [
            _jobs_lines(history, curves),
            *([_tenant_line(history, tenant, curves)] for tenant in shown),
        ]
        unit = _scale(history)[1].split()[0]
        return as_svg(
            figure, "devices", "Devices over time, by job and by tenant",
            panels=list(zip(axes, lines, strict=True)), unit=f" {unit}", narrow=narrow,
        )  # fmt: skip


def _jobs_lines(history: ClusterHistory, curves: _Curves) -> list[Series]:
    if history.is_long:
        return [_tenant_line(history, tenant, curves) for tenant in history.tenants[:_MOST_TENANTS]]
    at, _ = _scale(history)
    found = []
    for number, job in enumerate(history.jobs):
        points = [
            (at(span.start), float(span.workers)) for span in job.spans if span.end > history.start
        ]
        if job.spans:
            points.append((at(job.spans[-1].end), 0.0))
        colour = colour_name(number)
        found.append(Series(name=job.job, points=points, colour=colour, steps=True, quiet=True))
    return found


def _tenant_line(history: ClusterHistory, tenant: str, curves: _Curves) -> Series:
    at, _ = _scale(history)
    points = [(at(time), float(count)) for time, count in curves[tenant]]
    return Series(name=f"tenant {tenant}", points=points, colour="accent", steps=True)


def jobs_chart(history: ClusterHistory, *, narrow: bool = False) -> str:
    """Each job from its submission to its end: when it waited, and on how many workers it ran."""
    tips: list[str] = []
    with drawing(ON_PAGE):
        figure = Figure(figsize=size(_height(history), narrow=narrow), layout="constrained")
        _draw_jobs(figure.subplots(), history, ON_PAGE, tips, narrow=narrow)
        svg = as_svg(figure, "jobs", "Each job over time", narrow=narrow)
        return _with_tips(svg, "jobs-narrow" if narrow else "jobs", tips)


def draw_png(history: ClusterHistory, marks: Sequence[Mark]) -> bytes:
    """Both in one picture, on white."""
    paint = light_colours()
    with drawing(paint):
        panels, below = 1 + len(_shown(history)), _height(history)
        heights = [3.2, *[1.0] * (panels - 1), below]
        figure = Figure(figsize=(_WIDTH, sum(heights) + 0.6), layout="constrained")
        axes = figure.subplots(panels + 1, 1, sharex=True, height_ratios=heights)
        _draw_devices(axes[:-1], history, marks, paint, _curves(history))
        _draw_jobs(axes[-1], history, paint, [])
        figure.suptitle(f"{history.subject}: {history.when}, policy {history.policy}", fontsize=11)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=120, facecolor="white")
        return buffer.getvalue()


@functools.lru_cache(maxsize=1)  # several charts of one history
def _curves(history: ClusterHistory) -> _Curves:
    """Who held how many devices, by tenant."""
    return {tenant: _held(history, tenant) for tenant in history.tenants}


def _held(history: ClusterHistory, tenant: str) -> list[tuple[float, int]]:
    """Workers of a tenant's jobs at each change; of very many changes, as they were left at as many
    moments.
    """
    points = history.held(tenant)
    width = (history.end - history.start) / _MOST_POINTS
    last_of = {int((at - history.start) / width): (at, count) for at, count in points}
    return points if len(points) <= _MOST_POINTS else list(last_of.values())


def _draw_devices(
    axes: Iterable[Axes],
    history: ClusterHistory,
    marks: Sequence[Mark],
    paint: Mapping[str, str],
    curves: _Curves,
    *,
    narrow: bool = False,
) -> None:
    at, label = _scale(history)
    axes = list(axes)
    axis, below = axes[0], axes[1:]
    _stack_tenants(axis, history, paint, curves) if history.is_long else _stack(
        axis, history, paint
    )
    ends = [*(each.at for each in history.rights[1:]), history.end]
    steps = [(each.at, each.devices) for each in history.rights]
    axis.step(
        [at(time) for time, _ in steps] + [at(ends[-1])],
        [n for _, n in steps] + [steps[-1][1]],
        where="post", color=paint["ink"], linewidth=1.1, linestyle=(0, (5, 3)),
    )  # fmt: skip
    axis.set_title(
        f"devices, by {'tenant' if history.is_long else 'job'} (dashed: all that there are)"
    )
    axis.set_ylim(0, max(n for _, n in steps) * 1.06)
    for place, tenant in enumerate(_shown(history)):
        _draw_tenant(below[place], history, tenant, paint, curves[tenant])
    for each in axes:
        each.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=4))
        for mark in marks:
            each.axvline(at(mark.at), color=colour_of(mark, paint), linewidth=0.9, alpha=0.6)
    flag(
        axis,
        [Mark(at=at(m.at), number=m.number, kind=m.kind, text=m.text) for m in marks],
        at(history.end),
        paint,
        narrow=narrow,
    )
    axes[-1].set_xlim(0, at(history.end))
    axes[-1].set_xlabel(label)


def _stack(axis: Axes, history: ClusterHistory, paint: Mapping[str, str]) -> None:
    """One area for each job, on top of those that were submitted before it."""
    at, _ = _scale(history)
    times = history.times()
    place = {time: index for index, time in enumerate(times)}
    low = [0] * len(times)
    apart = 0.3 if len(history.jobs) <= 40 else 0.0
    for number, job in enumerate(history.jobs):
        mine = [0] * len(times)
        for span in job.spans:
            first, last = (
                place.get(max(span.start, history.start)),
                place.get(min(span.end, history.end)),
            )
            if span.workers and first is not None and last is not None:
                mine[first:last] = [span.workers] * (last - first)
        used = [index for index, workers in enumerate(mine) if workers]
        if not used:
            continue
        part = slice(used[0], min(used[-1] + 2, len(times)))
        top = [under + workers for under, workers in zip(low, mine, strict=True)]
        axis.fill_between(
            [at(time) for time in times[part]], low[part], top[part],
            step="post", facecolor=paint[colour_name(number)], edgecolor=paint["card"], linewidth=apart,
        )  # fmt: skip
        low = top


def _stack_tenants(
    axis: Axes, history: ClusterHistory, paint: Mapping[str, str], curves: _Curves
) -> None:
    """One area for each tenant: nobody could tell thousands of jobs apart."""
    at, _ = _scale(history)
    times = sorted({history.end, *(time for curve in curves.values() for time, _ in curve)})
    low = [0] * len(times)
    for number, curve in enumerate(curves.values()):
        top = [under + count for under, count in zip(low, _counts_at(times, curve), strict=True)]
        axis.fill_between(
            [at(time) for time in times], low, top,
            step="post", facecolor=paint[colour_name(number)], linewidth=0.0,
        )  # fmt: skip
        low = top


def _counts_at(times: Sequence[float], curve: Sequence[tuple[float, int]]) -> list[int]:
    changes = dict(curve)
    counts, count = [], 0
    for time in times:
        count = changes.get(time, count)
        counts.append(count)
    return counts


def _draw_tenant(
    axis: Axes,
    history: ClusterHistory,
    tenant: str,
    paint: Mapping[str, str],
    curve: Sequence[tuple[float, int]],
) -> None:
    at, _ = _scale(history)
    points = [*curve, (history.end, 0)]
    axis.fill_between(
        [at(time) for time, _ in points],
        [n for _, n in points],
        step="post",
        color=paint["accent-faint"],
    )
    owned = [(each.at, each.guaranteed.get(tenant, 0)) for each in history.rights]
    owned.append((history.end, owned[-1][1]))
    axis.step(
        [at(time) for time, _ in owned],
        [n for _, n in owned],
        where="post",
        color=paint["good"],
        linewidth=1.6,
    )
    most = max(*(n for _, n in points), *(n for _, n in owned), 1)
    axis.set_ylim(0, most * 1.15)
    axis.set_title(f"tenant {name_of(tenant)} (line: guaranteed {owned[-1][1]})", fontsize=9)


def _draw_jobs(
    axis: Axes,
    history: ClusterHistory,
    paint: Mapping[str, str],
    tips: list[str],
    *,
    narrow: bool = False,
) -> None:
    at, label = _scale(history)
    most = max((span.workers for job in history.newest for span in job.spans), default=1) or 1
    for row, job in enumerate(history.newest):
        for span in job.spans:
            if span.end > history.start:
                _draw_span(axis, history, job, span, row=row, most=most, paint=paint, tips=tips)
        if job.deadline is not None and history.start <= job.deadline <= history.end:
            _draw_deadline(axis, at(job.deadline), row, job, history, paint)
        elif job.deadline is not None and job.deadline > history.end:
            axis.plot(at(history.end), row, ">", color=paint["faint"], markersize=4, clip_on=False)
    small = len(history.newest) > 40
    axis.set_yticks(
        range(len(history.newest)),
        [name_of(job.job) for job in history.newest],
        fontsize=6.5 if small else 8.5,
    )
    axis.set_ylim(len(history.newest) - 0.4, -0.6)
    axis.set_xlim(0, at(history.end))
    axis.grid(visible=False, axis="y")
    words = f"{label} (thin: waits; height and number: workers; ▼ deadline kept, ✖ not kept)"
    axis.set_xlabel(wrapped(words, narrow=narrow))


def _draw_span(
    axis: Axes,
    history: ClusterHistory,
    job: JobHistory,
    span: Span,
    *,
    row: int,
    most: int,
    paint: Mapping[str, str],
    tips: list[str],
) -> None:
    at, _ = _scale(history)
    left, right = at(max(span.start, history.start)), at(span.end)
    height = 0.28 + 0.5 * span.workers / most if span.workers else 0.07
    colour = paint[colour_name(row)] if span.workers else paint["faint"]
    # As barh draws it, which looks anew at all limits for each.
    bar = Rectangle((left, row - height / 2), right - left, height, facecolor=colour, linewidth=0)
    bar.set_in_layout(
        False
    )  # what is inside the axes takes no room beside them, and need not be measured
    axis.add_artist(bar)
    what = counted(span.workers, "worker") if span.workers else "waits"
    when = f"{span.end - span.start:.1f} s from {span.start - history.start:.1f} s on"
    bar.set_gid(_tip(tips, f"{job.job}: {what}, {when}{f' ({span.why})' if span.why else ''}"))
    if span.workers and right - left > _NARROW * at(history.end):
        axis.text(
            (left + right) / 2, row, str(span.workers), ha="center", va="center_baseline",
            fontsize=7.5, color=paint["card"], fontweight="bold", in_layout=False,
        )  # fmt: skip


def _draw_deadline(
    axis: Axes,
    when: float,
    row: int,
    job: JobHistory,
    history: ClusterHistory,
    paint: Mapping[str, str],
) -> None:
    marker, colour = _NOT_YET[job.kept(history.end)]
    size = 4.0 if len(history.jobs) > 40 else 6.0
    face = paint[colour] if job.promised else "none"
    axis.plot(
        when,
        row - 0.28,
        marker,
        color=paint[colour],
        markerfacecolor=face,
        markersize=size,
        clip_on=False,
        zorder=5,
    )


def _scale(history: ClusterHistory) -> tuple[Callable[[float], float], str]:
    """From the wall clock to the axis, and what the axis is called."""
    name, unit, _ = next(each for each in _UNITS if history.end - history.start < each[2])
    return lambda time: (max(time, history.start) - history.start) / unit, f"{name} since the start"


def _shown(history: ClusterHistory) -> list[str]:
    """Tenants with a panel: those that own something, or several that do not; who had most comes
    first.
    """
    names = history.tenants
    owners = {name for each in history.rights for name, count in each.guaranteed.items() if count}
    if not owners and len(names) < 2:
        return []
    had = {name: sum(job.attained for job in history.jobs if job.tenant == name) for name in names}
    return sorted(sorted(names, key=lambda name: -had[name])[:_MOST_TENANTS])


def _height(history: ClusterHistory) -> float:
    """Of the jobs' chart, inches."""
    count = max(1, len(history.newest))
    return 0.9 + count * (0.34 if count <= 20 else 0.22 if count <= 40 else 0.14)


def _tip(tips: list[str], text: str) -> str:
    """The id under which `_with_tips` finds what the text is about."""
    tips.append(text)
    return f"tip-{len(tips) - 1}"


def _with_tips(svg: str, name: str, tips: Sequence[str]) -> str:
    """Give what was drawn the words that `hover.js` shows of it, and that screen readers read."""

    def told(found: re.Match[str]) -> str:
        words = escape(tips[int(found[1])])
        return f'{found[0][:-1]} role="img" aria-label="{words}" data-tip="{words}">'

    return re.sub(rf'<g id="{name}-tip-(\d+)">', told, svg).replace('role="img"', 'role="group"', 1)
