"""Figures of a simulation.

PNGs, and one page that loads nothing, drawn by the same functions. All is simulated.
"""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
from matplotlib.figure import Figure

from brim.simulator.run import Run, measure
from brim.telemetry.charts import ON_PAGE, Series, as_svg, both_widths, size, style
from brim.telemetry.pages import light_colours, page, table, tiles

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_POINTS = 2000  # most points of one line on a page
_MOMENT = 1e-6  # seconds: changes closer than this are of one cycle

Paint = Mapping[str, str]
Draw = Callable[["Axes", Paint], list[Series]]


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


def write_pngs(out: Path, runs: Mapping[str, Run], ceiling: float | None = None) -> None:
    """deadline_ratio.png, devices.png, jct.png, queue.png and tenants.png into `out`."""
    paint = light_colours()
    for chart in _charts(runs, ceiling):
        with matplotlib.rc_context(style(paint)):
            figure, axis = _figure(chart, narrow=False)
            chart.draw(axis, paint)
            figure.suptitle(f"{chart.title} (simulated)", fontsize=11)
            figure.savefig(out / f"{chart.name}.png", dpi=120, facecolor="white")


def _figure(chart: _Chart, *, narrow: bool) -> tuple[Figure, Axes]:
    figure = Figure(figsize=size(chart.height, narrow=narrow), layout="constrained")
    return figure, figure.subplots()


def _charts(runs: Mapping[str, Run], ceiling: float | None) -> list[_Chart]:
    policy, shares = _shares(runs)
    bars = 0.9 + 0.34 * len(runs)
    return [
        _Chart(
            "deadline_ratio", "Deadlines met", lambda a, p: _bars(a, p, runs, ceiling), "", bars
        ),
        _Chart("devices", "Devices in use", lambda a, p: _lines(a, p, runs, 1, "devices")),
        _Chart("queue", "Jobs that wait", lambda a, p: _lines(a, p, runs, 2, "jobs")),
        _Chart("jct", "Completion times", lambda a, p: _completions(a, p, runs)),
        _Chart(
            "tenants", f"Devices by tenant, under {policy}", lambda a, p: _tenants(a, p, shares)
        ),
    ]


def _colours(names: Sequence[str]) -> dict[str, str]:
    """A CSS variable for each policy or tenant."""
    return {name: f"j{number % 10}" for number, name in enumerate(names)}


def _bars(axis: Axes, paint: Paint, runs: Mapping[str, Run], ceiling: float | None) -> list[Series]:
    ratios = {
        policy: measure(run).deadline_satisfactory_ratio or 0.0 for policy, run in runs.items()
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
    axis: Axes, paint: Paint, runs: Mapping[str, Run], column: int, label: str
) -> list[Series]:
    found = []
    for (policy, run), colour in zip(runs.items(), _colours(list(runs)).values(), strict=True):
        if run.usage:
            hours, rows = _hours(run.usage)
            values = [float(row[column]) for row in rows]
            axis.step(
                hours,
                values,
                where="post",
                label=_short(policy),
                color=paint[colour],
                linewidth=1.2,
            )
            points = list(zip(hours, values, strict=True))
            found.append(Series(name=_short(policy), points=points, colour=colour, steps=True))
    _finish(axis, "hours since the first job", label)
    return found


def _completions(axis: Axes, paint: Paint, runs: Mapping[str, Run]) -> list[Series]:
    found = []
    for (policy, run), colour in zip(runs.items(), _colours(list(runs)).values(), strict=True):
        hours, share = _jct(run)
        if hours:
            axis.step(
                hours,
                [100 * each for each in share],
                where="post",
                label=_short(policy),
                color=paint[colour],
                linewidth=1.4,
            )
            points = list(zip(hours, [100 * each for each in share], strict=True))
            found.append(
                Series(name=_short(policy), points=points, colour=colour, unit=" %", steps=True)
            )
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    _finish(axis, "JCT, hours", "share of jobs, %")
    axis.margins(x=0.02)
    axis.autoscale(axis="x")
    return found


def _tenants(axis: Axes, paint: Paint, shares: list[tuple[float, dict[str, int]]]) -> list[Series]:
    found = []
    if shares:
        hours, rows = _hours(shares)
        names = sorted(rows[0][1])
        colours = _colours(names)
        stacks = [[float(row[1][name]) for row in rows] for name in names]
        axis.stackplot(
            hours,
            stacks,
            labels=names,
            step="post",
            colors=[paint[each] for each in colours.values()],
        )
        for name, values in zip(names, stacks, strict=True):
            points = list(zip(hours, values, strict=True))
            found.append(
                Series(name=name, points=points, colour=colours[name], steps=True, quiet=True)
            )
    _finish(axis, "hours since the first job", "devices")
    return found


def _finish(axis: Axes, x: str, y: str) -> None:
    axis.set_xlabel(x)
    axis.set_ylabel(y)
    axis.set_ylim(0, axis.get_ylim()[1] * 1.02)
    names = axis.get_legend_handles_labels()[1]
    if names:
        inches = axis.get_window_extent().width / 100
        most = max(1, int(inches * 11 // (max(map(len, names)) + 6)))
        axis.legend(
            frameon=False,
            fontsize=8.5,
            ncols=min(most, len(names)),
            loc="lower center",
            bbox_to_anchor=(0.5, 1.0),
        )
    axis.margins(x=0)


def _hours(rows: Sequence[Any]) -> tuple[list[float], list[Any]]:
    """At most `_POINTS` of `rows`, the last always among them, and the hours since the first."""
    kept = [*rows[:: max(1, -(-len(rows) // _POINTS))], rows[-1]]
    return [(row[0] - rows[0][0]) / 3600 for row in kept], kept


def _jct(run: Run) -> tuple[list[float], list[float]]:
    hours = sorted(
        (o.finished - o.job.submitted) / 3600 for o in run.outcomes if o.finished is not None
    )
    return hours, [(k + 1) / len(hours) for k in range(len(hours))]


def _shares(runs: Mapping[str, Run]) -> tuple[str, list[tuple[float, dict[str, int]]]]:
    """The first policy whose changes were recorded, and what each tenant has under it."""
    policy = next((name for name, run in runs.items() if run.changes), next(iter(runs)))
    return _short(policy), tenant_usage(runs[policy])


def tenant_usage(run: Run) -> list[tuple[float, dict[str, int]]]:
    """Devices in use by tenant, at each time at which some changed hands, once all had."""
    tenant = {outcome.job.id: outcome.job.tenant for outcome in run.outcomes}
    now: dict[str, int] = dict.fromkeys(sorted(set(tenant.values())), 0)
    rows: list[tuple[float, dict[str, int]]] = []
    for change in run.changes:
        now[tenant[change.job]] += change.after - change.before
        if rows and change.time - rows[-1][0] < _MOMENT:
            rows[-1] = (rows[-1][0], dict(now))
        else:
            rows.append((change.time, dict(now)))
    return rows


def write_page(path: Path, runs: Mapping[str, Run], summary: Mapping[str, Any]) -> None:
    """One self-contained page: ratio by policy, devices, JCT, queue, and shares by tenant."""
    ceiling = summary["ceiling"]["per_job"]
    sections = [_header(runs), _facts(runs, ceiling)]
    for chart in _charts(runs, ceiling):
        sections.append(
            f"<section><h2>{html.escape(chart.title)}</h2><figure>{_drawn(chart)}</figure></section>"
        )
    sections += [_policies(runs), _numbers(summary)]
    path.write_text(page("brim simulate", sections), encoding="utf-8")


def _drawn(chart: _Chart) -> str:
    def draw(narrow: bool) -> str:
        with matplotlib.rc_context(style(ON_PAGE)):
            figure, axis = _figure(chart, narrow=narrow)
            series = chart.draw(axis, ON_PAGE)
            panels = [(axis, series)] if series else []
            name = chart.name.replace("_", "-")
            return as_svg(figure, name, chart.title, panels=panels, unit=chart.unit, narrow=narrow)

    return both_widths(draw)


def _header(runs: Mapping[str, Run]) -> str:
    names = html.escape(", ".join(runs))
    return (
        '<header><p class="kind">brim simulate</p><h1>Policies compared <span class="badge '
        'warm">simulated</span></h1>'
        f"<p>{names} · on a virtual clock: nothing here was measured on a cluster</p></header>"
    )


def _facts(runs: Mapping[str, Run], ceiling: float | None) -> str:
    first = next(iter(runs.values()))
    metrics = measure(first)
    facts = [
        ("jobs", f"{metrics.jobs:,}", f"{metrics.deadline_jobs:,} with a deadline"),
        ("devices", f"{first.devices:,}", "in the cluster"),
        ("policies", str(len(runs)), "on the same trace"),
        ("ceiling", "–" if ceiling is None else f"{ceiling:.3f}", "of deadlines, for any policy"),
    ]
    return f'<section aria-label="Facts">{tiles(facts)}</section>'


def _policies(runs: Mapping[str, Run]) -> str:
    rows = []
    for policy, run in runs.items():
        m = measure(run)
        ratio, jct = m.deadline_satisfactory_ratio, m.average_jct_seconds
        rows.append(
            (
                policy,
                "–" if ratio is None else f"{ratio:.4f}",
                str(m.admitted),
                str(m.admitted_missed),
                "–" if jct is None else f"{jct / 3600:.3f}",
                f"{m.makespan_seconds / 3600:.1f}",
                f"{100 * m.utilisation:.0f} %",
                f"{m.changes:,}",
            )
        )
    head = (
        "policy",
        "deadlines met",
        "promised",
        "broken",
        "mean JCT h",
        "makespan h",
        "in use",
        "changes",
    )
    return f"<section><h2>Every policy</h2>{table(head, rows)}</section>"


def _numbers(summary: Mapping[str, Any]) -> str:
    numbers = html.escape(json.dumps(summary, indent=2))
    return (
        "<section><details><summary>The numbers (summary.json)</summary>"
        f'<pre class="scroll">{numbers}</pre></details></section>'
    )
