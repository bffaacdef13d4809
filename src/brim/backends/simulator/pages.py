"""Figures of a simulation: PNG by matplotlib and one interactive page by plotly. All is simulated."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
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


def write_pngs(out: Path, runs: Mapping[str, Run]) -> None:
    """deadline_ratio.png, devices.png, jct.png and queue.png into `out`."""
    _bars(out / "deadline_ratio.png", runs)
    _lines(out / "devices.png", runs, column=1, label="devices in use")
    _lines(out / "queue.png", runs, column=2, label="jobs that wait")
    figure, axes = plt.subplots(figsize=(7, 4))
    for policy, run in runs.items():
        hours = _jct_hours(run)
        if hours:
            axes.plot(
                hours, [(k + 1) / len(hours) for k in range(len(hours))], label=policy, drawstyle="steps"
            )
    axes.set(xscale="log", xlabel="JCT, hours", ylabel="share of jobs", title="Simulated")
    _save(figure, axes, out / "jct.png")


def _bars(path: Path, runs: Mapping[str, Run]) -> None:
    figure, axes = plt.subplots(figsize=(7, 4))
    ratios = {policy: measure(run).deadline_satisfactory_ratio or 0.0 for policy, run in runs.items()}
    bars = axes.bar(list(ratios), list(ratios.values()))
    axes.bar_label(bars, fmt="%.3f")
    axes.set(ylim=(0, 1.05), ylabel="deadline satisfactory ratio", title="Simulated")
    axes.tick_params(axis="x", rotation=30)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _lines(path: Path, runs: Mapping[str, Run], *, column: int, label: str) -> None:
    figure, axes = plt.subplots(figsize=(9, 4))
    for policy, run in runs.items():
        if run.usage:
            start = run.usage[0][0]
            rows = _thinned(run.usage)
            axes.step(
                [(r[0] - start) / 3600 for r in rows], [r[column] for r in rows], where="post", label=policy
            )
    axes.set(xlabel="hours", ylabel=label, title="Simulated")
    _save(figure, axes, path)


def _save(figure: Any, axes: Any, path: Path) -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _thinned(rows: Any) -> list[Any]:
    step = max(1, len(rows) // _POINTS)
    return list(rows[::step])


def _jct_hours(run: Run) -> list[float]:
    return sorted((o.finished - o.job.submitted) / 3600 for o in run.outcomes if o.finished is not None)


def tenant_usage(run: Run) -> dict[str, list[tuple[float, int]]]:
    """Devices in use over time by tenant, from the recorded changes."""
    tenant = {outcome.job.id: outcome.job.tenant for outcome in run.outcomes}
    now: dict[str, int] = dict.fromkeys(sorted(set(tenant.values())), 0)
    lines: dict[str, list[tuple[float, int]]] = {name: [] for name in now}
    for change in run.changes:
        name = tenant[change.job]
        now[name] += change.after - change.before
        lines[name].append((change.time, now[name]))
    return lines


def write_page(path: Path, runs: Mapping[str, Run], summary: Mapping[str, Any]) -> None:
    """One self-contained page: ratio by policy, devices, JCT, queue, and shares by tenant."""
    titles = ("Deadlines met", "Devices in use", "JCT", "Jobs that wait", "Devices by tenant (first policy)")
    specs: Any = [[{}, {}], [{}, {}], [{"colspan": 2}, None]]
    figure = make_subplots(rows=3, cols=2, subplot_titles=titles, specs=specs)
    for policy, run in runs.items():
        ratio = measure(run).deadline_satisfactory_ratio or 0.0
        same = {"name": policy, "legendgroup": policy}
        figure.add_trace(go.Bar(x=[policy], y=[ratio], **same), row=1, col=1)
        hours = _jct_hours(run)
        share = [(k + 1) / len(hours) for k in range(len(hours))]
        figure.add_trace(go.Scatter(x=hours, y=share, showlegend=False, **same), row=2, col=1)
        if run.usage:
            start, rows = run.usage[0][0], _thinned(run.usage)
            x = [(row[0] - start) / 3600 for row in rows]
            line = {"line_shape": "hv", "showlegend": False, **same}
            figure.add_trace(go.Scatter(x=x, y=[row[1] for row in rows], **line), row=1, col=2)
            figure.add_trace(go.Scatter(x=x, y=[row[2] for row in rows], **line), row=2, col=2)
    first = next(iter(runs.values()))
    for name, points in tenant_usage(first).items():
        rows = _thinned(points)
        x = [(time - points[0][0]) / 3600 for time, _ in rows]
        y = [count for _, count in rows]
        figure.add_trace(
            go.Scatter(x=x, y=y, name=f"tenant {name}", line_shape="hv", fill="tozeroy"), row=3, col=1
        )
    ceiling = summary["ceiling"]["per_job"]
    if ceiling is not None:
        figure.add_hline(y=ceiling, line_dash="dot", annotation_text="ceiling", row=1, col=1)
    figure.update_xaxes(type="log", title_text="hours", row=2, col=1)
    figure.update_layout(height=1100, title="Simulated: brim simulate", template="plotly_white")
    body = figure.to_html(full_html=False, include_plotlyjs=True)
    numbers = html.escape(json.dumps(summary, indent=2))
    path.write_text(
        "<!doctype html><meta charset=utf-8><title>brim simulate</title>"
        f"{body}<details><summary>numbers</summary><pre>{numbers}</pre></details>"
    )
