"""Draws charts as inline SVG: the common part of a run's, a cluster's and a simulation's.

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
from typing import TYPE_CHECKING, Any

import matplotlib

matplotlib.use("Agg")
from matplotlib.figure import Figure  # the backend is chosen before anything of it is loaded

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
_MARK_COLOURS = {  # the gravest last
    "round": "faint",
    "joined": "good",
    "left": "warm",
    "restored": "warm",
    "lost": "bad",
    "fault": "bad",
}


def style(paint: Mapping[str, str]) -> Any:
    """Settings for matplotlib.

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
        "axes.titley": 1.0,  # else all ticks are measured many times to find room for it
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
    """Draw with these colours, and without warnings of letters in names that the font lacks."""
    with matplotlib.rc_context(style(paint)), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Glyph \d+ .* missing from font")
        yield


def name_of(job: str) -> str:
    """A job's name, short enough to stand beside a chart."""
    return (
        job
        if len(job) <= _MAX_NAME_LETTERS
        else f"{job[: _MAX_NAME_LETTERS // 2]}…{job[1 - _MAX_NAME_LETTERS // 2 :]}"
    )


_MAX_NAME_LETTERS = 28  # letters of a name
WIDE = 10.4  # inches
_NARROW = 4.4  # inches
_READ_OFF = 400  # most points of one line that can be read off
Line = Sequence[tuple[float, float]]


def size(height: float, *, narrow: bool, width: float = WIDE) -> tuple[float, float]:
    """Return the size of a figure, in inches.

    `width` is that on a wide page.
    """
    return (_NARROW if narrow else width, height)


def both_widths(draw: Callable[[bool], str]) -> str:
    """A chart for wide pages and one for narrow ones, of which the page shows the fitting one."""
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
    """The values that can be read off a figure, as JSON.

    They are the place of each panel, its axis, and its lines.

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
                "box": [round(edge, 1) for edge in box],
                "x": [float(limit) for limit in axis.get_xlim()],
                "y": [float(limit) for limit in axis.get_ylim()],
                "log": axis.get_xscale() == "log",
                "series": [_read_off(line) for line in series if line.points],
            }
        )
    return json.dumps({"unit": unit, "panels": found}, separators=(",", ":"))


def _read_off(series: Series) -> dict[str, Any]:
    points = series.points if series.steps else thinned(series.points, _READ_OFF)
    numbers = {
        key: [float(f"{point[place]:.5g}") for point in points] for place, key in enumerate("xy")
    }
    flags = {"steps": series.steps, "quiet": series.quiet}
    return {"name": series.name, "colour": series.colour, "unit": series.unit, **numbers, **flags}


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """An event at `at` seconds into the run, as flag `number` of the charts."""

    at: float
    number: int
    kind: str
    text: str


def marks_of(notes: Iterable[tuple[float, str, str]], end: float) -> list[Flag]:
    """Number marks from (seconds, kind, text), in order; merge those that are close in time."""
    marks: list[Flag] = []
    for moment, kind, text in notes:
        if marks and moment - marks[-1].at < end * 0.012:
            previous = marks[-1]
            kind = max(previous.kind, kind, key=list(_MARK_COLOURS).index)
            marks[-1] = replace(previous, kind=kind, text=f"{previous.text} → {text}")
        else:
            marks.append(Flag(at=moment, number=len(marks) + 1, kind=kind, text=text))
    return marks


def colour_of(mark: Flag, paint: Mapping[str, str]) -> str:
    return paint[_MARK_COLOURS[mark.kind]]


def flag(
    axis: Axes, marks: Sequence[Flag], end: float, paint: Mapping[str, str], *, narrow: bool = False
) -> None:
    """The marks' numbers above the chart, on as many rows as keep neighbours apart."""
    rows: list[float] = []
    gap = end * (0.055 if narrow else 0.022)
    for mark in marks:
        row = next((index for index, edge in enumerate(rows) if mark.at - edge > gap), len(rows))
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


def thinned(line: Line, limit: int) -> Line:
    """Reduce a line to a number of points, each the mean of its neighbours."""
    width = -(-len(line) // limit)
    groups = [line[index : index + width] for index in range(0, len(line), width)]
    return [
        (sum(x for x, _ in group) / len(group), sum(y for _, y in group) / len(group))
        for group in groups
    ]


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
