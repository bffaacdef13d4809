"""Draws a report's charts as inline SVG.

Colours are written as placeholders and become CSS variables, so that one drawing is right on a
light page, on a dark one and on paper. Each chart is drawn for a wide page or, with `narrow`, for a
telephone's, since text that is scaled with its drawing could not be read there. What was drawn goes
along as numbers, for `hover.js` to read off.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
        "axes.titley": 1.0,  # else all ticks are measured, again and again, to find room for it
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
        "text.parse_math": False,  # names are others', and a dollar in them is no formula
        "path.simplify": True,
        "path.simplify_threshold": 0.2,
    }


@contextlib.contextmanager
def drawing(paint: Mapping[str, str]) -> Iterator[None]:
    """Draw with these colours, whatever letters there are in names that others chose."""
    with matplotlib.rc_context(style(paint)), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Glyph \d+ .* missing from font")
        yield


def name_of(job: str) -> str:
    """A job's name, short enough to stand beside a chart."""
    return job if len(job) <= _LONGEST else f"{job[: _LONGEST // 2]}…{job[1 - _LONGEST // 2 :]}"


_LONGEST = 28
_WIDE, _NARROW = 10.4, 4.4  # inches
_READ_OFF = 400  # most points of one line that can be read off
Line = Sequence[tuple[float, float]]


def size(height: float, *, narrow: bool, width: float = _WIDE) -> tuple[float, float]:
    """Of a figure, inches; `width` is that on a wide page."""
    return (_NARROW if narrow else width, height)


def both_widths(draw: Callable[[bool], str]) -> str:
    """A chart for wide pages and one for narrow ones, of which the page shows what fits."""
    return f'<div class="wide">{draw(False)}</div><div class="narrow">{draw(True)}</div>'


def wrapped(label: str, *, narrow: bool) -> str:
    """A label of an axis, on as many lines as it needs."""
    return textwrap.fill(label, 46) if narrow else label


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A line whose values can be read off a chart.

    Args:
        points: (place on the axis, value), in order.
        colour: the CSS variable that it is drawn in.
        unit: behind a value, as in ` ms`.
        steps: each value holds until the next; else the nearest one is meant.
        quiet: a value of 0 is not worth a word.
    """

    name: str
    points: Line
    colour: str
    unit: str = ""
    steps: bool = False
    quiet: bool = False


def readings_of(
    figure: Figure, panels: Iterable[tuple[Axes, Sequence[Series]]], unit: str = ""
) -> str:
    """What can be read off a figure that was drawn, as JSON: the place of each panel, its axis, and
    its lines.

    Args:
        unit: behind a place on the axis, as in ` s`.
    """
    width, height = (72 * inches for inches in figure.get_size_inches())
    found = []
    for axis, series in panels:
        place = axis.get_position()
        box = [
            place.x0 * width,
            (1 - place.y1) * height,
            place.width * width,
            place.height * height,
        ]
        found.append(
            {
                "box": [round(each, 1) for each in box],
                "x": [float(each) for each in axis.get_xlim()],
                "y": [float(each) for each in axis.get_ylim()],
                "log": axis.get_xscale() == "log",
                "series": [_read_off(each) for each in series if each.points],
            }
        )
    return json.dumps({"unit": unit, "panels": found}, separators=(",", ":"))


def _read_off(series: Series) -> dict[str, Any]:
    points = series.points if series.steps else _thinned(series.points, _READ_OFF)
    numbers = {
        key: [float(f"{point[place]:.5g}") for point in points] for place, key in enumerate("xy")
    }
    flags = {"steps": series.steps, "quiet": series.quiet}
    return {"name": series.name, "colour": series.colour, "unit": series.unit, **numbers, **flags}


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
    rates: Mapping[str, Line] | None = None,
    narrow: bool = False,
) -> str:
    """Loss, throughput and world size over one axis of time, with flags where something happened.

    Args:
        loss: (seconds, loss) per step, in order.
        throughput: (seconds, samples per second).
        world: (seconds, workers) at each change, in order.
        epochs: the seconds at which epochs ended.
        end: seconds, the right edge.
        rates: name -> (seconds, learning rate) per step, in a panel of their own; None or empty: no
            such panel.
    """
    with drawing(ON_PAGE):
        figure = Figure(figsize=size(8.0 if rates else 6.6, narrow=narrow), layout="constrained")
        heights = [3, 2, 1.3, *([1.3] if rates else [])]
        axes = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights)
        _draw_loss(axes[0], loss)
        _draw_throughput(axes[1], throughput)
        _draw_world(axes[2], world, end)
        if rates:
            _draw_rates(axes[3], rates)
        for axis in axes:
            for at in epochs if len(epochs) <= 40 else ():
                axis.axvline(at, color=_FAINT, linewidth=0.8, linestyle=(0, (1, 2)))
            for mark in marks:
                axis.axvline(mark.at, color=colour_of(mark, ON_PAGE), linewidth=1.1, alpha=0.75)
        flag(axes[0], marks, end, ON_PAGE, narrow=narrow)
        axes[-1].set_xlim(0, end)
        axes[-1].set_xlabel(
            wrapped("seconds since the start (dotted: end of an epoch)", narrow=narrow)
        )
        drawn = [
            [Series(name="loss", points=loss, colour="accent")],
            [Series(name="samples per second", points=throughput, colour="accent")],
            [Series(name="workers", points=world, colour="good", steps=True)],
            [Series(name=name, points=line, colour="warm") for name, line in (rates or {}).items()],
        ]
        return as_svg(
            figure, "timeline", f"Loss, throughput{', world size and learning rate' if rates else ' and world size'} "
            "over time",
            panels=list(zip(axes, drawn, strict=False)), unit=" s", narrow=narrow,
        )  # fmt: skip


def phases_chart(
    times: Sequence[float], phases: Mapping[str, Sequence[float]], *, narrow: bool = False
) -> str:
    """What a step spent its time on, over the run: milliseconds, stacked.

    Args:
        times: seconds into the run.
        phases: name -> milliseconds at each of the times.
    """
    with drawing(ON_PAGE):
        figure = Figure(figsize=size(2.6, narrow=narrow), layout="constrained")
        axis = figure.subplots()
        for part in _unbroken(times):
            stacked = [values[part] for values in phases.values()]
            axis.stackplot(times[part], *stacked, colors=_PHASES, linewidth=0)
        axis.set_title("milliseconds of a step")
        axis.set_xlabel("seconds since the start")
        axis.set_xlim(times[0], times[-1])
        axis.set_ylim(0)
        drawn = [
            Series(
                name=name,
                points=list(zip(times, values, strict=True)),
                colour=_COLOURS[colour],
                unit=" ms",
            )
            for (name, values), colour in zip(phases.items(), _PHASES, strict=False)
        ]
        return as_svg(
            figure, "phases", "Milliseconds of a step by phase, over time",
            panels=[(axis, drawn)], unit=" s", narrow=narrow,
        )  # fmt: skip


def metrics_chart(
    epochs: Sequence[int], metrics: Mapping[str, Sequence[float]], *, narrow: bool = False
) -> str:
    """One small panel per metric, over epochs."""
    with drawing(ON_PAGE):
        count = len(metrics)
        tall = size(2.2 * count if narrow else 2.2, narrow=narrow, width=min(_WIDE, 3.4 * count))
        figure = Figure(figsize=tall, layout="constrained")
        panels = figure.subplots(*((count, 1) if narrow else (1, count)), squeeze=False).ravel()
        drawn = [
            Series(name=name, points=list(zip(epochs, values, strict=True)), colour="accent")
            for name, values in metrics.items()
        ]
        for axis, (name, values) in zip(panels, metrics.items(), strict=True):
            axis.plot(epochs, values, color=_ACCENT, linewidth=1.8, marker="o", markersize=4)
            axis.set_title(name)
            axis.set_xticks(list(epochs) if len(epochs) <= 8 else list(epochs)[:: len(epochs) // 6])
            axis.ticklabel_format(axis="y", useOffset=False)
            axis.margins(x=0.08, y=0.2)
            axis.set_xlabel("epoch")
        return as_svg(
            figure, "metrics", "Metrics of the test split by epoch",
            panels=[(axis, [series]) for axis, series in zip(panels, drawn, strict=True)], narrow=narrow,
        )  # fmt: skip


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


def _draw_rates(axis: Axes, rates: Mapping[str, Line]) -> None:
    axis.set_title("learning rate")
    for line in rates.values():
        times, values = zip(*_thinned(line, 1500), strict=True)
        axis.plot(times, values, color=_WARM, linewidth=1.4)
    axis.set_ylim(0)


def flag(
    axis: Axes, marks: Sequence[Mark], end: float, paint: Mapping[str, str], *, narrow: bool = False
) -> None:
    """The marks' numbers above the chart, on as many rows as keep neighbours apart."""
    rows: list[float] = []
    apart = end * (0.055 if narrow else 0.022)
    for mark in marks:
        row = next((index for index, edge in enumerate(rows) if mark.at - edge > apart), len(rows))
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
    """Stretches without a pause: a line drawn over a pause would show training where there was
    none.
    """
    steps = sorted(after - before for before, after in pairwise(times))
    if not steps:
        return [slice(0, len(times))]
    longest = max(20 * steps[len(steps) // 2], 0.01 * (times[-1] - times[0]))
    cuts = [
        index
        for index, (before, after) in enumerate(pairwise(times), 1)
        if after - before > longest
    ]
    return [slice(low, high) for low, high in pairwise([0, *cuts, len(times)])]


def _thinned(line: Line, most: int) -> Line:
    """At most so many points, each the mean of its neighbours."""
    width = -(-len(line) // most)
    groups = [line[index : index + width] for index in range(0, len(line), width)]
    return [
        (sum(x for x, _ in group) / len(group), sum(y for _, y in group) / len(group))
        for group in groups
    ]


def _smoothed(values: Sequence[float]) -> list[float]:
    weight = min(0.98, 1 - 2 / (len(values) / 25 + 1)) if len(values) > 25 else 0.0
    smooth, total, result = 0.0, 0.0, []
    for value in values:
        smooth, total = weight * smooth + value, weight * total + 1
        result.append(smooth / total)
    return result


def as_svg(
    figure: Figure,
    name: str,
    label: str,
    *,
    panels: Iterable[tuple[Axes, Sequence[Series]]] = (),
    unit: str = "",
    narrow: bool = False,
) -> str:
    """The figure as an `<svg>` element that scales, is named for screen readers, and shares no id.

    Args:
        name: of the chart, which no other one of the page has; `narrow` adds to it.
        panels: what can be read off; `unit` as in `readings_of`.
    """
    name = f"{name}-narrow" if narrow else name
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
    panels = list(panels)
    readings = (
        f" data-readings='{escape(readings_of(figure, panels, unit))}' tabindex=\"0\""
        if panels
        else ""
    )
    return text.replace("<svg", f'<svg role="img" aria-label="{escape(label)}"{readings}', 1)
