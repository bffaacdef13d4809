"""Draws a report's charts as inline SVG.

Colours are written as placeholders and become CSS variables, so that one drawing is right on a light page, on
a dark one and on paper.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import matplotlib

matplotlib.use("Agg")
from matplotlib.figure import Figure  # the backend is chosen before anything of it is loaded
from matplotlib.ticker import MaxNLocator

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "ON_PAGE", "Mark", "as_svg", "colour_of", "flag", "marks_of", "metrics_chart", "phases_chart", "style",
    "timeline_chart",
]  # fmt: skip

# Placeholder -> CSS variable. The placeholders are colours that nothing else draws.
_COLOURS = {
    "#010203": "ink",
    "#010204": "faint",
    "#010205": "grid",
    "#010206": "accent",
    "#010207": "accent-faint",
    "#010208": "good",
    "#010209": "bad",
    "#01020a": "warm",
    "#01020b": "p1",
    "#01020c": "p2",
    "#01020d": "p3",
    "#01020e": "p4",
    "#01020f": "p5",
    "#010210": "card",
    **{f"#0103{number:02x}": f"j{number}" for number in range(10)},
}
# CSS variable -> how it is drawn where a page is to colour it.
ON_PAGE: Mapping[str, str] = {variable: placeholder for placeholder, variable in _COLOURS.items()}
_INK, _FAINT, _GRID, _ACCENT, _ACCENT_FAINT, _GOOD, _BAD, _WARM, *_PHASES = list(_COLOURS)[:13]
_MARK_COLOURS = {  # the gravest last
    "round": "faint",
    "joined": "good",
    "left": "warm",
    "restored": "warm",
    "lost": "bad",
    "fault": "bad",
}


def style(paint: Mapping[str, str]) -> Any:
    """What matplotlib is to draw with.

    Args:
        paint: a colour for each CSS variable.
    """
    return {
        "svg.fonttype": "none",
        "svg.hashsalt": "brim",
        "font.family": "sans-serif",
        "font.size": 9.5,
        "text.color": paint["ink"],
        "axes.edgecolor": paint["grid"],
        "axes.labelcolor": paint["ink"],
        "axes.titlesize": 10,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.titlecolor": paint["ink"],
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": paint["grid"],
        "grid.linewidth": 0.7,
        "xtick.color": paint["faint"],
        "ytick.color": paint["faint"],
        "xtick.labelcolor": paint["faint"],
        "ytick.labelcolor": paint["faint"],
        "path.simplify": True,
        "path.simplify_threshold": 0.2,
    }


_STYLE = style(ON_PAGE)
Line = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Something that happened at `at` seconds into the run, as flag `number` of the charts."""

    at: float
    number: int
    kind: str
    text: str


def marks_of(told: Iterable[tuple[float, str, str]], end: float) -> list[Mark]:
    """Numbered marks from (seconds, kind, text), in order; what belongs together in time is one."""
    marks: list[Mark] = []
    for at, kind, text in told:
        if marks and at - marks[-1].at < end * 0.012:
            before = marks[-1]
            kind = max(before.kind, kind, key=list(_MARK_COLOURS).index)
            marks[-1] = replace(before, kind=kind, text=f"{before.text} → {text}")
        else:
            marks.append(Mark(at=at, number=len(marks) + 1, kind=kind, text=text))
    return marks


def colour_of(mark: Mark, paint: Mapping[str, str]) -> str:
    return paint[_MARK_COLOURS[mark.kind]]


def timeline_chart(
    *,
    loss: Line,
    throughput: Line,
    world: Line,
    marks: Sequence[Mark],
    epochs: Sequence[float],
    end: float,
) -> str:
    """Loss, throughput and world size over one axis of time, with flags where something happened.

    Args:
        loss: (seconds, loss) per step, in order.
        throughput: (seconds, samples per second).
        world: (seconds, workers) at each change, in order.
        epochs: the seconds at which epochs ended.
        end: seconds, the right edge.
    """
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(10.4, 6.6), layout="constrained")
        axes = figure.subplots(3, 1, sharex=True, height_ratios=[3, 2, 1.3])
        _draw_loss(axes[0], loss)
        _draw_throughput(axes[1], throughput)
        _draw_world(axes[2], world, end)
        for axis in axes:
            for at in epochs if len(epochs) <= 40 else ():
                axis.axvline(at, color=_FAINT, linewidth=0.8, linestyle=(0, (1, 2)))
            for mark in marks:
                axis.axvline(mark.at, color=colour_of(mark, ON_PAGE), linewidth=1.1, alpha=0.75)
        flag(axes[0], marks, end, ON_PAGE)
        axes[2].set_xlim(0, end)
        axes[2].set_xlabel("seconds since the start (dotted: end of an epoch)")
        return as_svg(figure, "timeline", "Loss, throughput and world size over time")


def phases_chart(times: Sequence[float], phases: Mapping[str, Sequence[float]]) -> str:
    """What a step spent its time on, over the run: milliseconds, stacked.

    Args:
        times: seconds into the run.
        phases: name -> milliseconds at each of the times.
    """
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(10.4, 2.6), layout="constrained")
        axis = figure.subplots()
        for part in _unbroken(times):
            stacked = [values[part] for values in phases.values()]
            axis.stackplot(times[part], *stacked, colors=_PHASES, linewidth=0)
        axis.set_title("milliseconds of a step")
        axis.set_xlabel("seconds since the start")
        axis.set_xlim(times[0], times[-1])
        axis.set_ylim(0)
        return as_svg(figure, "phases", "Milliseconds of a step by phase, over time")


def metrics_chart(epochs: Sequence[int], metrics: Mapping[str, Sequence[float]]) -> str:
    """One small panel per metric, over epochs."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(min(10.4, 3.4 * len(metrics)), 2.2), layout="constrained")
        panels = figure.subplots(1, len(metrics), squeeze=False)[0]
        for axis, (name, values) in zip(panels, metrics.items(), strict=True):
            axis.plot(epochs, values, color=_ACCENT, linewidth=1.8, marker="o", markersize=4)
            axis.set_title(name)
            axis.set_xticks(list(epochs) if len(epochs) <= 8 else list(epochs)[:: len(epochs) // 6])
            axis.ticklabel_format(axis="y", useOffset=False)
            axis.margins(x=0.08, y=0.2)
            axis.set_xlabel("epoch")
        return as_svg(figure, "metrics", "Metrics of the test split by epoch")


def _draw_loss(axis: Axes, loss: Line) -> None:
    axis.set_title("loss")
    if not loss:
        return
    times, values = zip(*_thinned(loss, 1500), strict=True)
    smooth = _smoothed(values)
    for part in _unbroken(times):
        axis.plot(times[part], values[part], color=_ACCENT_FAINT, linewidth=0.8)
        axis.plot(times[part], smooth[part], color=_ACCENT, linewidth=1.8)
    # The first steps of a run may be orders of magnitude above the rest, and would flatten it.
    ordered = sorted(values)
    low, high = ordered[0], ordered[int(len(ordered) * 0.995)]
    margin = (high - low) * 0.08 or 0.1
    axis.set_ylim(low - margin, high + margin)


def _draw_throughput(axis: Axes, throughput: Line) -> None:
    axis.set_title("samples per second")
    if throughput:
        times, rates = zip(*throughput, strict=True)
        axis.fill_between(times, rates, color=_ACCENT_FAINT, alpha=0.45, linewidth=0)
        axis.plot(times, rates, color=_ACCENT, linewidth=1.4)
    axis.set_ylim(0)
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def _draw_world(axis: Axes, world: Line, end: float) -> None:
    axis.set_title("workers")
    if world:
        times, sizes = zip(*world, (end, world[-1][1]), strict=True)
        axis.fill_between(times, sizes, step="post", color=_GOOD, alpha=0.22, linewidth=0)
        axis.step(times, sizes, where="post", color=_GOOD, linewidth=1.8)
        axis.set_ylim(0, max(sizes) + 1)
    axis.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=4))


def flag(axis: Axes, marks: Sequence[Mark], end: float, paint: Mapping[str, str]) -> None:
    """The marks' numbers above the chart, on as many rows as keep neighbours apart."""
    rows: list[float] = []
    for mark in marks:
        row = next((index for index, edge in enumerate(rows) if mark.at - edge > end * 0.022), len(rows))
        rows[row : row + 1] = [mark.at]
        axis.annotate(
            str(mark.number),
            (mark.at, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(0, 5 + 14 * row),
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize=8.5,
            fontweight="bold",
            color=colour_of(mark, paint),
        )
    axis.set_title(axis.get_title(loc="left"), pad=6 + 14 * len(rows))


def _unbroken(times: Sequence[float]) -> list[slice]:
    """Stretches without a pause: a line drawn over a pause would show training where there was none."""
    steps = sorted(after - before for before, after in pairwise(times))
    if not steps:
        return [slice(0, len(times))]
    longest = max(20 * steps[len(steps) // 2], 0.01 * (times[-1] - times[0]))
    cuts = [index for index, (before, after) in enumerate(pairwise(times), 1) if after - before > longest]
    return [slice(low, high) for low, high in pairwise([0, *cuts, len(times)])]


def _thinned(line: Line, most: int) -> Line:
    """At most so many points, each the mean of its neighbours."""
    width = -(-len(line) // most)
    groups = [line[index : index + width] for index in range(0, len(line), width)]
    return [
        (sum(x for x, _ in group) / len(group), sum(y for _, y in group) / len(group)) for group in groups
    ]


def _smoothed(values: Sequence[float]) -> list[float]:
    weight = min(0.98, 1 - 2 / (len(values) / 25 + 1)) if len(values) > 25 else 0.0
    smooth, total, result = 0.0, 0.0, []
    for value in values:
        smooth, total = weight * smooth + value, weight * total + 1
        result.append(smooth / total)
    return result


def as_svg(figure: Figure, name: str, label: str) -> str:
    """The figure as an `<svg>` element that scales, is named for screen readers, and shares no id."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{name}-", text)
    text = re.sub(r"(font: [^;\"]*?)'[^;\"]*", r"\1sans-serif", text)
    for placeholder, variable in _COLOURS.items():
        text = text.replace(placeholder, f"var(--{variable})")
    return text.replace("<svg", f'<svg role="img" aria-label="{escape(label, quote=True)}"', 1)
