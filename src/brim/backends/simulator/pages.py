"""Figures of a simulation: PNG by matplotlib and one interactive page by plotly. All is simulated."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # no display: files only

import matplotlib.pyplot as plt
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from brim.backends.simulator.run import Run, measure

__all__ = ["tenant_usage", "write_page", "write_pngs"]

_POINTS = 4000  # most points of one line on a page
_MOMENT = 1e-6  # seconds: changes closer than this are of one cycle
_COLOURS = (
    "#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22",
    "#17becf",
)  # fmt: skip


def write_pngs(out: Path, runs: Mapping[str, Run], ceiling: float | None = None) -> None:
    """deadline_ratio.png, devices.png, jct.png, queue.png and tenants.png into `out`."""
    _bars(out / "deadline_ratio.png", runs, ceiling)
    _lines(out / "devices.png", runs, column=1, label="devices in use")
    _lines(out / "queue.png", runs, column=2, label="jobs that wait")
    figure, axes = plt.subplots(figsize=(7, 4))
    for policy, run in runs.items():
        hours, share = _jct(run)
        if hours:
            axes.plot(hours, share, label=policy, drawstyle="steps-post")
    axes.set(xscale="log", xlabel="JCT, hours", ylabel="share of jobs", title="Completion times (simulated)")
    _save(figure, axes, out / "jct.png")
    _tenants(out / "tenants.png", runs)


def _bars(path: Path, runs: Mapping[str, Run], ceiling: float | None) -> None:
    figure, axes = plt.subplots(figsize=(7, 4))
    ratios = {policy: measure(run).deadline_satisfactory_ratio or 0.0 for policy, run in runs.items()}
    colours = [f"C{k % 10}" for k in range(len(ratios))]
    bars = axes.bar(list(ratios), list(ratios.values()), color=colours)
    axes.bar_label(bars, fmt="%.3f", padding=-14, color="white")
    if ceiling is not None:
        axes.axhline(ceiling, color="black", linestyle=":", label=f"ceiling {ceiling:.3f}")
    axes.set(ylim=(0, 1.12), ylabel="deadline satisfactory ratio", title="Deadlines met (simulated)")
    axes.tick_params(axis="x", rotation=30)
    plt.setp(axes.get_xticklabels(), ha="right", rotation_mode="anchor")
    _save(figure, axes, path)


def _lines(path: Path, runs: Mapping[str, Run], *, column: int, label: str) -> None:
    figure, axes = plt.subplots(figsize=(9, 4))
    for policy, run in runs.items():
        if run.usage:
            hours, rows = _hours(run.usage)
            axes.step(hours, [row[column] for row in rows], where="post", label=policy, linewidth=1.0)
    axes.set(xlabel="hours since the first job", ylabel=label, title=f"{label.capitalize()} (simulated)")
    _save(figure, axes, path)


def _tenants(path: Path, runs: Mapping[str, Run]) -> None:
    policy, rows = _shares(runs)
    figure, axes = plt.subplots(figsize=(9, 4))
    if rows:
        hours, rows = _hours(rows)
        names = sorted(rows[0][1])
        axes.stackplot(hours, [[row[1][name] for row in rows] for name in names], labels=names, step="post")
    axes.set(xlabel="hours since the first job", ylabel="devices", title=f"By tenant, {policy} (simulated)")
    _save(figure, axes, path)


def _save(figure: Any, axes: Any, path: Path) -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _hours(rows: Sequence[Any]) -> tuple[list[float], list[Any]]:
    """At most `_POINTS` of `rows`, the last always among them, and the hours since the first."""
    kept = [*rows[:: max(1, len(rows) // _POINTS)], rows[-1]]
    return [(row[0] - rows[0][0]) / 3600 for row in kept], kept


def _jct(run: Run) -> tuple[list[float], list[float]]:
    hours = sorted((o.finished - o.job.submitted) / 3600 for o in run.outcomes if o.finished is not None)
    return hours, [(k + 1) / len(hours) for k in range(len(hours))]


def _shares(runs: Mapping[str, Run]) -> tuple[str, list[tuple[float, dict[str, int]]]]:
    """The first policy whose changes were recorded, and what each tenant has under it."""
    policy = next((name for name, run in runs.items() if run.changes), next(iter(runs)))
    return policy, tenant_usage(runs[policy])


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
    policy_shown, shares = _shares(runs)
    titles = ("Deadlines met", "Devices in use", "Completion times", "Jobs that wait")
    specs: Any = [[{}, {}], [{}, {}], [{"colspan": 2}, None]]
    figure = make_subplots(
        rows=3, cols=2, subplot_titles=(*titles, f"Devices by tenant, under {policy_shown}"), specs=specs,
        vertical_spacing=0.11,
    )  # fmt: skip
    for k, (policy, run) in enumerate(runs.items()):
        ratio = measure(run).deadline_satisfactory_ratio or 0.0
        colour = _COLOURS[k % len(_COLOURS)]
        same = {"name": policy, "legendgroup": policy}
        bar = go.Bar(x=[policy], y=[ratio], text=[f"{ratio:.3f}"], marker_color=colour, **same)
        figure.add_trace(bar, row=1, col=1)
        line = {"line": {"color": colour, "shape": "hv", "width": 1.5}, "showlegend": False, **same}
        hours, share = _jct(run)
        figure.add_trace(go.Scatter(x=hours, y=share, **line), row=2, col=1)
        if run.usage:
            x, rows = _hours(run.usage)
            figure.add_trace(go.Scatter(x=x, y=[row[1] for row in rows], **line), row=1, col=2)
            figure.add_trace(go.Scatter(x=x, y=[row[2] for row in rows], **line), row=2, col=2)
    if shares:
        x, rows = _hours(shares)
        for k, name in enumerate(sorted(rows[0][1])):
            colour = _COLOURS[-1 - k % len(_COLOURS)]
            y = [row[1][name] for row in rows]
            area = {"stackgroup": "tenants", "line": {"shape": "hv", "width": 0.5, "color": colour}}
            figure.add_trace(go.Scatter(x=x, y=y, name=f"tenant {name}", **area), row=3, col=1)
    ceiling = summary["ceiling"]["per_job"]
    if ceiling is not None:
        text = f"ceiling {ceiling:.3f}"
        figure.add_hline(y=ceiling, line_dash="dot", annotation_text=text, row=1, col=1)
    _label(figure)
    # No logo: it is a link out. Nothing here is loaded from anywhere.
    body = figure.to_html(full_html=False, include_plotlyjs=True, config={"displaylogo": False})
    numbers = html.escape(json.dumps(summary, indent=2))
    path.write_text(
        "<!doctype html><html lang=en><meta charset=utf-8><title>brim simulate</title>"
        "<style>body{font:14px system-ui,sans-serif;max-width:1300px;margin:1em auto;padding:0 1em}</style>"
        f"{body}<details><summary>The numbers (summary.json)</summary><pre>{numbers}</pre></details>"
    )


def _label(figure: Any) -> None:
    for row, column, x, y in (
        (1, 1, "", "deadline satisfactory ratio"),
        (1, 2, "hours since the first job", "devices"),
        (2, 1, "JCT, hours", "share of jobs"),
        (2, 2, "hours since the first job", "jobs"),
        (3, 1, "hours since the first job", "devices"),
    ):
        figure.update_xaxes(title_text=x, row=row, col=column)
        figure.update_yaxes(title_text=y, rangemode="tozero", row=row, col=column)
    figure.update_xaxes(type="log", dtick=1, row=2, col=1)
    figure.update_yaxes(range=[0, 1.1], row=1, col=1)
    figure.update_layout(height=1200, title="brim simulate: simulated, not measured", template="plotly_white")
