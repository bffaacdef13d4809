"""Options of ECharts for the dashboard's curves. Pure: no script, and texts as texts."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeVar

from brim.dashboard.series import OTHER_TENANTS, REST, Curve, Picture, StepCurves, Steps
from brim.domain.quantities import counted

# Colours that can be told apart by most eyes, on light and on dark ground alike.
COLOURS = (
    "#4c78c8", "#e08a2e", "#3f9a5c", "#c85a5a", "#8a68c4", "#94705f", "#cf7cb4", "#3aa7b5",
    "#b3a936", "#6f9bea", "#d99a56", "#63b87f",
)  # fmt: skip
_GREY = "#8a8f98"
# Variables of the style: drawn as SVG, a chart follows the light and dark of its page.
_FAINT, _GRID, _INK, _CARD = "var(--faint)", "var(--line)", "var(--ink)", "var(--card)"
_MILLISECONDS = 1000
_DAY, _MINUTES = 86_400, 600

Options = dict[str, Any]
T = TypeVar("T")


def devices_chart(picture: Picture) -> Options:
    """Stacked devices over time; the plan is paler, right of the line of now."""
    colours = colours_of([curve.name for curve in picture.past])
    series = [
        _area(curve, picture.times, colours[curve.name], stack="past", opacity=0.85)
        for curve in picture.past
    ]
    series += [
        _area(curve, picture.future, colours[curve.name], stack="planned", opacity=0.35)
        for curve in picture.planned
    ]
    names = [curve.name for curve in picture.past if any(_values_of(picture, curve.name))]
    if is_known := any(picture.devices):
        names.append("devices")
    series.append(
        {
            "type": "line",
            "name": "devices",
            "step": "end",
            "symbol": "none",
            "data": _points([*picture.times, *picture.future[1:]], _held_on(picture)),
            "lineStyle": {"color": _INK, "width": 1.5, "type": "dashed", "opacity": int(is_known)},
            "itemStyle": {"color": _INK},
            "markLine": {
                "symbol": "none",
                "silent": True,
                "animation": False,
                "data": [{"xAxis": picture.now * _MILLISECONDS}],
                "label": {"formatter": "now", "color": _FAINT},
                "lineStyle": {"color": _FAINT, "type": "solid", "width": 1},
            },
        }
    )
    options = _frame(series, legend=names)
    options["yAxis"]["minInterval"] = 1
    return options


def _values_of(picture: Picture, name: str) -> list[int]:
    curves = [*picture.past, *picture.planned]
    return [value for curve in curves if curve.name == name for value in curve.values]


def _held_on(picture: Picture) -> list[int]:
    last = picture.devices[-1:] or [0]
    return [*picture.devices, *(last * max(0, len(picture.future) - 1))]


def words_of(picture: Picture) -> str:
    """The chart of devices in a sentence."""
    in_use = [curve for curve in picture.past if curve.values and curve.values[-1]]
    total = sum(curve.values[-1] for curve in in_use)
    devices = picture.devices[-1] if picture.devices else 0
    parts = ", ".join(f"{curve.name} {curve.values[-1]}" for curve in in_use)
    of = f"{total} of {counted(devices, 'device')}" if devices else counted(total, "device")
    now = f"Now {of}" + (f": {parts}." if parts else ".")
    if not picture.future:
        return now
    changes = sum(new != old for curve in picture.planned for old, new in pairwise(curve.values))
    return (
        f"{now} Right of now, paler: the plan, if nothing new comes; {counted(changes, 'change')}."
    )


def tenants_chart(rows: list[dict[str, Any]]) -> Options:
    """Devices that tenants own, use, have lent and have borrowed, as bars."""
    kinds = {"owed": COLOURS[0], "used": COLOURS[2], "lent": COLOURS[1], "borrowed": COLOURS[4]}
    series = [
        {
            "type": "bar",
            "name": kind,
            "barMaxWidth": 28,
            "itemStyle": {"color": colour},
            "data": [row[kind] for row in rows],
        }
        for kind, colour in kinds.items()
    ]
    options = _frame(series, legend=list(kinds))
    options["xAxis"] = options["xAxis"] | {
        "type": "category",
        "data": [row["tenant"] for row in rows],
    }
    options["yAxis"]["minInterval"] = 1
    options["tooltip"]["order"] = "seriesAsc"
    return options


def workers_chart(steps: Steps, start: float, end: float) -> Options:
    """The workers of one job over time."""
    times = [start, *(moment for moment, _ in steps), end]
    counts = [count for _, count in steps]
    values = [0, *counts, counts[-1] if counts else 0]
    series = [_area(Curve("workers", values), times, COLOURS[0], stack="", opacity=0.35)]
    options = _frame(series)
    options["yAxis"]["minInterval"] = 1
    return options


def loss_chart(course: StepCurves) -> Options:
    """The loss of a run over time."""
    return _frame([_line("loss", course.times, course.loss, COLOURS[3])], from_zero=False)


def rate_chart(course: StepCurves) -> Options:
    """The samples a second of a run over time."""
    return _frame([_line("samples/s", course.times, course.rate, COLOURS[2])])


def pair_chart(
    names: Sequence[str],
    curves: Sequence[Sequence[tuple[float, float | None]]],
    *,
    unit: str,
    from_zero: bool = True,
    holds: bool = False,
) -> Options:
    """A curve of each of two jobs, over steps or over seconds.

    Args:
        curves: points of each, by x.
        holds: each value holds until the next point.
    """
    series = [
        _line(name, [], [], colour)
        | {"data": [list(point) for point in points], "step": "end" if holds else False}
        for name, points, colour in zip(names, curves, (COLOURS[0], COLOURS[1]), strict=True)
    ]
    options = _frame(series, legend=list(names), from_zero=from_zero)
    text = {"color": _FAINT, "fontSize": 12, "hideOverlap": True}
    options["xAxis"] = options["xAxis"] | {
        "type": "value",
        "axisLabel": text | {"formatter": f"{{value}} {unit}"},
    }
    return options


def since_first(points: Sequence[tuple[float, T]]) -> list[tuple[float, T]]:
    """Points by the seconds since the first of them.

    >>> since_first([(5.0, 1), (7.5, 2)])
    [(0.0, 1), (2.5, 2)]
    """
    return [(round(moment - points[0][0], 3), value) for moment, value in points]


def colours_of(names: list[str]) -> dict[str, str]:
    """A colour for each name: that of its own, where no other one has it.

    A name keeps its colour from one picture to the next as long as it can.
    """
    found: dict[str, str] = {}
    for name in names:
        if name in (REST, OTHER_TENANTS):
            found[name] = _GREY
            continue
        start = _number_of(name)
        tries = [COLOURS[(start + k) % len(COLOURS)] for k in range(len(COLOURS))]
        free = [colour for colour in tries if colour not in found.values()]
        found[name] = (free or tries)[0]
    return found


def _number_of(name: str) -> int:
    """The number at the end of a job's id, or one that the name always has."""
    number = name.rpartition("-")[2]
    return int(number) if number.isdecimal() else zlib.crc32(name.encode())


def _area(curve: Curve, times: list[float], colour: str, *, stack: str, opacity: float) -> Options:
    return {
        "type": "line",
        "name": curve.name,
        **({"stack": stack} if stack else {}),
        "step": "end",
        "symbol": "none",
        "lineStyle": {"width": 0 if stack else 1.5, "color": colour},
        "itemStyle": {"color": colour},
        "areaStyle": {"opacity": opacity, "color": colour},
        "emphasis": {"focus": "series"},
        "data": _points(times, curve.values),
    }


def _line(name: str, times: list[float], values: list[Any], colour: str) -> Options:
    return {
        "type": "line",
        "name": name,
        "symbol": "none",
        "lineStyle": {"width": 1.5, "color": colour},
        "itemStyle": {"color": colour},
        "data": _points(times, values),
    }


def _points(times: list[float], values: list[Any]) -> list[list[Any]]:
    return [
        [round(moment * _MILLISECONDS), value] for moment, value in zip(times, values, strict=False)
    ]


def _frame(
    series: list[Options], *, legend: list[str] | None = None, from_zero: bool = True
) -> Options:
    text = {"color": _FAINT, "fontSize": 12}
    lines = {"lineStyle": {"color": _GRID}}
    return {
        "animation": False,
        "textStyle": {"fontFamily": "system-ui, sans-serif"},
        "grid": {
            "left": 8,
            "right": 16,
            "top": 40 if legend else 16,
            "bottom": 8,
            "containLabel": True,
        },
        **(
            {
                "legend": {
                    "type": "scroll",
                    "data": legend,
                    "top": 0,
                    "textStyle": text,
                    "pageTextStyle": text,
                    "icon": "roundRect",
                    "itemWidth": 12,
                    "itemHeight": 12,
                }
            }
            if legend
            else {}
        ),
        "tooltip": {
            "trigger": "axis",
            "confine": True,
            "renderMode": "richText",
            "order": "valueDesc",
            "backgroundColor": _CARD,
            "borderColor": _GRID,
            "textStyle": {"color": _INK, "fontSize": 12},
        },
        "xAxis": {
            "type": "time",
            "axisLabel": text | {"hideOverlap": True, "formatter": _clock_of(series)},
            "axisLine": lines,
            "splitLine": {"show": False},
        },
        "yAxis": {"type": "value", "scale": not from_zero, "axisLabel": text, "splitLine": lines},
        "series": series,
    }


def _clock_of(series: list[Options]) -> str:
    """The form of times on an axis: no finer than its length asks for."""
    times = [point[0] for line in series for point in line["data"] if isinstance(point, list)]
    span = (max(times) - min(times)) / _MILLISECONDS if times else 0.0
    if span > _DAY:
        return "{MM}-{dd} {HH}:{mm}"
    return "{HH}:{mm}" if span > _MINUTES else "{HH}:{mm}:{ss}"
