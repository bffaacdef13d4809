"""Draws a run: `report.html` is one self-contained page for absent readers."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from html import escape
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from brim.domain.accounting import PART_NAMES, throughput
from brim.domain.quantities import counted, format_bytes
from brim.domain.step_records import STEP_PHASES, Session, StepRecord, lasting
from brim.report.drawing import (
    ON_PAGE,
    WIDE,
    Flag,
    Line,
    Series,
    as_svg,
    both_widths,
    colour_of,
    drawing,
    flag,
    marks_of,
    size,
    thinned,
    wrapped,
)
from brim.report.page import duration, page, table, tiles
from brim.telemetry.events import (
    CheckpointPublished,
    CommandProgressed,
    FaultPerformed,
    Restored,
    RoundFormed,
    Warned,
    WorkerChanged,
    WorldReFormed,
)
from brim.telemetry.history import RunHistory, milliseconds, reason_in_brackets

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def render_report(history: RunHistory) -> str:
    """The page for a run that has at least started.

    >>> render_report(RunHistory())
    Traceback (most recent call last):
    ...
    ValueError: a report needs the records of a run that started
    """
    if history.started is None:
        raise ValueError("a report needs the records of a run that started")
    times = _RunTime(history.sessions)
    sections = [
        _header(history),
        _failure(history),
        _facts(history),
        _timeline(history, times),
        _time_spent(history, times),
        _metrics(history),
        _staleness(history),
        _rounds(history, times),
        _tables(history),
        _workers(history, times),
        _footer(history),
    ]
    return page(_subject(history), sections)


@dataclass(frozen=True, slots=True)
class _RunTime:
    """Wall time as seconds into the run: the time between two sessions does not count."""

    sessions: Sequence[Session]

    def __call__(self, timestamp: float) -> float:
        index = max(0, bisect_right([session.start for session in self.sessions], timestamp) - 1)
        elapsed = sum(session.end - session.start for session in self.sessions[:index])
        return elapsed + max(0.0, timestamp - self.sessions[index].start)

    @property
    def end(self) -> float:
        return max(sum(session.end - session.start for session in self.sessions), 1e-3)


def _subject(history: RunHistory) -> str:
    assert history.started is not None
    return history.started.file or " ".join(history.started.command)


def _header(history: RunHistory) -> str:
    assert history.started is not None
    result = str(history.ended.summary.get("exit", "done")) if history.ended else "unfinished"
    start_text = datetime.fromtimestamp(history.sessions[0].start).strftime("%-d %B %Y, %H:%M")
    heading = f"{start_text} · {history.started.host}" if history.started.host else start_text
    kind = {"done": "good", "failed": "bad"}.get(result, "warm")
    return (
        f'<header><p class="kind">brim training report</p><h1>{escape(_subject(history))} '
        f'<span class="badge {kind}">{escape(result)}</span></h1>'
        f"<p>{escape(heading)} · <code>{escape(history.started.run)}</code></p>"
        "</header>"
    )


def _failure(history: RunHistory) -> str:
    if not history.failed:
        return ""
    trace = f"<pre>{escape(history.failed.trace)}</pre>" if history.failed.trace else ""
    message = escape(history.failed.message)
    return f'<section class="failure"><h2>Why it failed</h2><p>{message}</p>{trace}</section>'


def _facts(history: RunHistory) -> str:
    summary: dict[str, Any] = history.ended.summary if history.ended else {}
    last = history.epochs[max(history.epochs)].metrics if history.epochs else {}
    metrics = summary.get("metrics") or last
    seconds = summary.get("seconds") or {}
    sizes = summary.get("world_sizes") or sorted(
        {formed.world_size for formed in _events_of(history, RoundFormed)}
    )
    servers = max((formed.servers for formed in _events_of(history, RoundFormed)), default=0)
    redone = summary.get(
        "steps_redone", len(history.steps) - len(lasting(history.steps, history.restores))
    )
    facts = [
        *(
            (name.replace("_", " "), _number(value), "test split")
            for name, value in metrics.items()
        ),
        (
            "workers",
            f"{min(sizes)} – {max(sizes)}"
            if len(sizes) > 1
            else ", ".join(map(str, sizes)) or "none",
            f"and up to {counted(servers, 'server')}" if servers else "world sizes",
        ),
        ("steps", f"{history.step:,}", f"{redone} redone"),
        ("time", duration(_RunTime(history.sessions).end), _first_step(seconds)),
        *_useful_time(history),
        _speed(history, summary.get("samples_per_second")),
        _arithmetic(history),
    ]
    digest = summary.get("weights_sha256")
    weights = (
        f'<p class="digest">weights sha256 <code>{escape(str(digest))}</code></p>' if digest else ""
    )
    return f'<section aria-label="Facts">{tiles(facts)}{weights}</section>'


def _useful_time(history: RunHistory) -> list[tuple[str, str, str]]:
    """The part of the time that went into lasting steps, with the conditions that it depends on."""
    if not history.steps:
        return []
    parts = history.time_parts()
    total = sum(parts.values()) or 1.0
    useful = sum(parts[phase] for phase in STEP_PHASES) / total
    losses = sum(event.state == "lost" for event in _events_of(history, WorkerChanged))
    rate = f"{losses / total * 3600.0:,.3g} lost workers an hour" if losses else "no worker lost"
    state_bytes = max(
        (event.bytes for event in _events_of(history, CheckpointPublished)), default=0
    )
    state = f"{format_bytes(state_bytes)} of state" if state_bytes else "no checkpoint"
    return [("useful time", f"{100 * useful:.1f} %", f"ETTR; {rate}, {state}")]


def _speed(history: RunHistory, samples_per_second: float | None) -> tuple[str, str, str]:
    if history.verb == "restart":
        _, paces = _course_of_command(history, _RunTime(history.sessions))
        middle = f"{median(pace for _, pace in paces):,.1f}" if paces else "unknown"
        return "speed", middle, "steps per second between reports, the median"
    if samples_per_second:
        return "speed", f"{samples_per_second:,.0f}", "samples per second"
    return "speed", f"{history.samples_per_second():,.0f}", "samples per second, lately"


def _arithmetic(history: RunHistory) -> tuple[str, str, str]:
    if history.verb == "restart":
        return "result", "restarts", "started again at each change, from its checkpoints"
    if history.ahead is not None:
        return "arithmetic", "asynchronous", f"at most {history.ahead} ahead: depends on timing"
    if history.spec.get("exact", True):
        return "arithmetic", "exact", "same bits at any number of workers"
    return "arithmetic", "inexact", "depends on the workers"


def _first_step(seconds: dict[str, Any]) -> str:
    first = seconds.get("to_first_step")
    return f"{first:.1f} s to the first step" if isinstance(first, (int, float)) else "in all"


def render_timeline(history: RunHistory) -> str:
    """Draw loss, speed and workers over time as an `<svg>`.

    Its colours are variables of the page that it stands on.

    Raises:
        ValueError: of a run that never started there is nothing to draw.
    """
    if history.started is None:
        raise ValueError("a picture needs the records of a run that started")
    times = _RunTime(history.sessions)
    return _timeline_svg(history, times, _marks(history, times))


def _timeline_svg(
    history: RunHistory, times: _RunTime, marks: Sequence[Flag], *, narrow: bool = False
) -> str:
    formed = [
        (times(event.at), float(event.world_size)) for event in _events_of(history, RoundFormed)
    ]
    if history.verb == "restart":
        steps_made, paces = _course_of_command(history, times)
        return _timeline_chart(
            loss=steps_made,
            throughput=paces,
            world=formed,
            marks=marks,
            epochs=(),
            end=times.end,
            narrow=narrow,
            titles=("step", "steps per second"),
        )
    steps = [replace(step, at=times(step.at)) for step in history.steps]
    first = steps[0].at if steps else 0.0  # before that there is no speed
    return _timeline_chart(
        loss=[(step.at, step.loss) for step in steps if step.loss is not None],
        throughput=throughput(
            steps, start=first, end=times.end, buckets=max(1, min(120, len(steps) // 6))
        ),
        world=formed,
        marks=marks,
        epochs=[times(event.at) for event in history.epochs.values()],
        end=times.end,
        rates=_rates_that_change(steps),
        narrow=narrow,
    )


def _course_of_command(
    history: RunHistory, times: _RunTime
) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """The steps that a command reported over time, and how fast it made them between reports."""
    reports = [event for event in _events_of(history, CommandProgressed) if event.step]
    steps = [(times(report.at), float(report.step)) for report in reports]
    paces = [
        (times(report.at), (report.step - previous.step) / (report.at - previous.at))
        for previous, report in pairwise(reports)
        if report.round == previous.round
        and report.step > previous.step
        and report.at > previous.at
    ]
    return steps, paces


def _rates_that_change(steps: Sequence[StepRecord]) -> dict[str, list[tuple[float, float]]]:
    """The learning rates over time; nothing where they are constant."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for step in steps:
        for name, rate in step.learning_rates().items():
            lines.setdefault(name, []).append((step.at, rate))
    change = any(rate != line[0][1] for line in lines.values() for _, rate in line)
    return lines if change else {}


def _timeline(history: RunHistory, times: _RunTime) -> str:
    marks = _marks(history, times)
    svg = both_widths(lambda narrow: _timeline_svg(history, times, marks, narrow=narrow))
    listed = "".join(
        f'<li class="{mark.kind}"><b>{mark.number}</b> <time>{mark.at:.2f} s</time> '
        f"{escape(mark.text)}</li>"
        for mark in marks
    )
    happened = f'<ol class="marks" aria-label="What happened">{listed}</ol>' if listed else ""
    return f"<section><h2>Training</h2><figure>{svg}</figure>{happened}</section>"


def _marks(history: RunHistory, times: _RunTime) -> list[Flag]:
    """The events that stand beside the curves; those close in time are one flag."""
    last_step = history.steps[-1].at if history.steps else float("inf")
    notes: list[tuple[float, str, str]] = []
    for event in history.events:
        match event:
            case FaultPerformed():
                notes.append(
                    (event.at, "fault", event.text + (f" ({event.worker})" if event.worker else ""))
                )
            case WorkerChanged(state="lost"):
                notes.append(
                    (event.at, "lost", f"{event.worker} lost" + reason_in_brackets(event.reason))
                )
            case WorkerChanged(state="left") if event.at <= last_step:
                notes.append(
                    (event.at, "left", f"{event.worker} left" + reason_in_brackets(event.reason))
                )
            case RoundFormed() if event.round > 1:
                notes.append((event.at, "round", f"round {event.round}: {event.members}"))
            case Restored():
                notes.append((event.at, "restored", f"restored step {event.step}"))
            case Warned():
                notes.append((event.at, "left", f"warning: {event.message}"))
            case _:
                pass
    marks = marks_of([(times(moment), kind, text) for moment, kind, text in notes], times.end)
    return [replace(mark, kind=_flag_kind(mark)) for mark in marks]


def _flag_kind(mark: Flag) -> str:
    """A fault that adds workers is no loss, and one that asks a worker to leave is a leave."""
    if mark.text.startswith("add "):
        return "joined"
    return "left" if mark.text.startswith("term ") else mark.kind


def _time_spent(history: RunHistory, times: _RunTime) -> str:
    if not history.steps:
        return ""
    parts = history.time_parts()
    total = sum(parts.values()) or 1.0
    bar = "".join(
        f'<span class="part {name}" title="{PART_NAMES[name]}" '
        f'style="flex-grow:{share:.5f}"></span>'
        for name, seconds in parts.items()
        if (share := seconds / total) > 0.0005
    )
    rows = [
        (
            f'<i class="part {name}"></i> {PART_NAMES[name]}',
            f"{seconds:.3f}",
            f"{100 * seconds / total:.1f} %",
        )
        for name, seconds in parts.items()
    ]
    shares = table(("", "seconds", "share"), rows, raw=True)
    return (
        "<section><h2>Where the time went</h2>"
        '<div class="bar" role="img" aria-label="Shares of the run\'s time, listed in the '
        f'table">{bar}</div>'
        f'<div class="side">{shares}</div>{_phases_figure(history.steps, times)}</section>'
    )


def _phases_figure(steps: Sequence[StepRecord], times: _RunTime) -> str:
    width = -(-len(steps) // 120)
    groups = [steps[index : index + width] for index in range(0, len(steps), width)]
    if len(groups) < 3:
        return ""
    phases = {
        phase: [
            1000 * sum(step.seconds.get(phase, 0.0) for step in group) / len(group)
            for group in groups
        ]
        for phase in STEP_PHASES
    }
    middle = [times(group[len(group) // 2].at) for group in groups]
    drawn = both_widths(lambda narrow: _phases_chart(middle, phases, narrow=narrow))
    return f"<figure>{drawn}</figure>"


def _metrics(history: RunHistory) -> str:
    epochs = [history.epochs[epoch] for epoch in sorted(history.epochs)]
    names = sorted({name for event in epochs for name in event.metrics})
    if not names:
        return ""
    rows = [
        (str(event.epoch), f"{event.step:,}", *(_number(event.metrics.get(name)) for name in names))
        for event in epochs
    ]
    whole = {
        name: [value for event in epochs if (value := event.metrics.get(name)) is not None]
        for name in names
    }
    drawn = {name: values for name, values in whole.items() if len(values) == len(epochs) > 1}
    numbers = [event.epoch for event in epochs]
    svg = both_widths(lambda narrow: _metrics_chart(numbers, drawn, narrow=narrow)) if drawn else ""
    figure = f'<figure class="small">{svg}</figure>' if drawn else ""
    return f"<section><h2>Metrics</h2>{figure}{table(('epoch', 'step', *names), rows)}</section>"


def _staleness(history: RunHistory) -> str:
    if not history.staleness:
        return ""
    total = sum(history.staleness.values())
    rows = [
        (f"{value:,}", f"{steps:,}", f"{100 * steps / total:.1f} %")
        for value, steps in sorted(history.staleness.items())
    ]
    caption = "Steps that others applied between the state that a step was computed on and its own."
    return f"<section><h2>Staleness</h2><p>{caption}</p>{table(('staleness', 'steps', 'share'), rows)}</section>"


def _rounds(history: RunHistory, times: _RunTime) -> str:
    re_formed = {event.round: event for event in _events_of(history, WorldReFormed)}
    rows = []
    for event in _events_of(history, RoundFormed):
        pause = re_formed.get(event.round)
        rows.append(
            (
                str(event.round),
                f"{times(event.at):.2f} s",
                event.cause,
                f"{event.world_size} + {event.servers} ps"
                if event.servers
                else str(event.world_size),
                ", ".join(map(str, event.shares)) or "–",
                f"{event.step:,}",
                milliseconds(pause.seconds) if pause else "–",
                str(pause.redone) if pause else "–",
            )
        )
    head = ("round", "at", "cause", "workers", "shares", "after step", "re-forming", "redone")
    return f"<section><h2>Rounds</h2>{table(head, rows)}</section>" if rows else ""


def _tables(history: RunHistory) -> str:
    """Embeddings that were trained by rows: their sizes, and the traffic over all steps."""
    assert history.started is not None
    steps = [step for step in history.steps if step.tables]
    span = steps[-1].at - steps[0].at if steps else 0.0
    rows = []
    for row_table in history.started.tables:
        traffic = [
            step.tables[row_table.name] for step in steps[1:] if row_table.name in step.tables
        ]
        read, changed = (
            sum(table_step.read for table_step in traffic),
            sum(table_step.changed for table_step in traffic),
        )
        hottest = history.hottest(row_table.name)
        rows.append(
            (
                row_table.name,
                f"{row_table.rows:,}",
                str(row_table.dim),
                format_bytes(row_table.bytes),
                f"{read / span:,.0f}" if span > 0 else "–",
                f"{changed / span:,.0f}" if span > 0 else "–",
                ", ".join(f"{id} ({count})" for id, count in hottest) or "–",
            )
        )
    head = (
        "table",
        "rows",
        "dimension",
        "bytes",
        "rows read/s",
        "rows changed/s",
        "hottest ids (lookups)",
    )
    note = (
        ""
        if not history.spec.get("delay")
        else f"<p>Rows change {history.spec['delay']} steps late.</p>"
    )
    return (
        f"<section><h2>Embeddings by rows</h2>{table(head, rows)}{note}</section>" if rows else ""
    )


def _workers(history: RunHistory, times: _RunTime) -> str:
    rows = [
        (
            f"{life.worker} (server)" if life.serves else life.worker,
            str(life.pid or "–"),
            life.agent or "–",
            "–" if life.rank is None else str(life.rank),
            f"{times(life.at):.2f} s",
            f"{times(life.until):.2f} s" if life.until is not None else "–",
            life.state + reason_in_brackets(life.reason),
        )
        for life in history.workers.values()
    ]
    head = ("worker", "pid", "agent", "last rank", "started", "gone", "state")
    return f"<section><h2>Workers</h2>{table(head, rows)}</section>" if rows else ""


def _footer(history: RunHistory) -> str:
    assert history.started is not None
    spec = ", ".join(
        f"{name} {value}"
        for name, value in sorted(history.spec.items())
        if value not in ("", [], {})
    )
    versions = ", ".join(
        f"{name} {version}" for name, version in sorted(history.started.versions.items())
    )
    start = (
        f" · workers started by {escape(history.started.start_method)}"
        if history.started.start_method
        else ""
    )
    return f"<footer><p>{escape(versions)}{start}</p><p>{escape(spec)}</p></footer>"


def _events_of(history: RunHistory, kind: type[Any]) -> list[Any]:
    return [event for event in history.events if isinstance(event, kind)]


def _number(value: object) -> str:
    if value is None:
        return "–"
    return f"{value:.4f}" if isinstance(value, float) else str(value)


# Its charts ----------------------------------------------------------------------------------------

_PHASES = ("p1", "p2", "p3", "p4", "p5")  # the colours of `STEP_PHASES`


_OF_TRAINING = ("loss", "samples per second")  # the titles of the first two panels


def _timeline_chart(
    *,
    loss: Line,
    throughput: Line,
    world: Line,
    marks: Sequence[Flag],
    epochs: Sequence[float],
    end: float,
    rates: Mapping[str, Line] | None = None,
    narrow: bool = False,
    titles: tuple[str, str] = _OF_TRAINING,
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
        titles: of the first two panels, where they show other figures.
    """
    with drawing(ON_PAGE):
        figure = Figure(figsize=size(8.0 if rates else 6.6, narrow=narrow), layout="constrained")
        heights = [3, 2, 1.3, *([1.3] if rates else [])]
        axes = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights)
        _draw_loss(axes[0], loss, titles[0])
        _draw_throughput(axes[1], throughput, titles[1])
        _draw_world(axes[2], world, end)
        if rates:
            _draw_rates(axes[3], rates)
        for axis in axes:
            for moment in epochs if len(epochs) <= 40 else ():
                axis.axvline(moment, color=ON_PAGE["faint"], linewidth=0.8, linestyle=(0, (1, 2)))
            for mark in marks:
                axis.axvline(mark.at, color=colour_of(mark, ON_PAGE), linewidth=1.1, alpha=0.75)
        flag(axes[0], marks, end, ON_PAGE, narrow=narrow)
        axes[-1].set_xlim(0, end)
        axes[-1].set_xlabel(
            wrapped("seconds since the start (dotted: end of an epoch)", narrow=narrow)
        )
        drawn = [
            [Series(name=titles[0], points=loss, colour="accent")],
            [Series(name=titles[1], points=throughput, colour="accent")],
            [Series(name="workers", points=world, colour="good", steps=True)],
            [Series(name=name, points=line, colour="warm") for name, line in (rates or {}).items()],
        ]
        others = ", world size and learning rate" if rates else " and world size"
        subject = "Loss, throughput" if titles == _OF_TRAINING else "Step, speed"
        return as_svg(
            figure, "timeline", f"{subject}{others} over time",
            panels=list(zip(axes, drawn, strict=False)), unit=" s", narrow=narrow,
        )  # fmt: skip


def _phases_chart(
    times: Sequence[float], phases: Mapping[str, Sequence[float]], *, narrow: bool = False
) -> str:
    """Draw the milliseconds of a step by phase, over the run, stacked.

    Args:
        times: seconds into the run.
        phases: name -> milliseconds at each of the times.
    """
    with drawing(ON_PAGE):
        figure = Figure(figsize=size(2.6, narrow=narrow), layout="constrained")
        axis = figure.subplots()
        for part in _unbroken(times):
            stacked = [values[part] for values in phases.values()]
            axis.stackplot(
                times[part], *stacked, colors=[ON_PAGE[phase] for phase in _PHASES], linewidth=0
            )
        axis.set_title("milliseconds of a step")
        axis.set_xlabel("seconds since the start")
        axis.set_xlim(times[0], times[-1])
        axis.set_ylim(0)
        drawn = [
            Series(
                name=name,
                points=list(zip(times, values, strict=True)),
                colour=colour,
                unit=" ms",
            )
            for (name, values), colour in zip(phases.items(), _PHASES, strict=True)
        ]
        return as_svg(
            figure, "phases", "Milliseconds of a step by phase, over time",
            panels=[(axis, drawn)], unit=" s", narrow=narrow,
        )  # fmt: skip


def _metrics_chart(
    epochs: Sequence[int], metrics: Mapping[str, Sequence[float]], *, narrow: bool = False
) -> str:
    """Draw one small panel per metric, over epochs."""
    with drawing(ON_PAGE):
        count = len(metrics)
        tall = size(2.2 * count if narrow else 2.2, narrow=narrow, width=min(WIDE, 3.4 * count))
        figure = Figure(figsize=tall, layout="constrained")
        panels = figure.subplots(*((count, 1) if narrow else (1, count)), squeeze=False).ravel()
        drawn = [
            Series(name=name, points=list(zip(epochs, values, strict=True)), colour="accent")
            for name, values in metrics.items()
        ]
        for axis, (name, values) in zip(panels, metrics.items(), strict=True):
            axis.plot(
                epochs, values, color=ON_PAGE["accent"], linewidth=1.8, marker="o", markersize=4
            )
            axis.set_title(name)
            axis.set_xticks(list(epochs) if len(epochs) <= 8 else list(epochs)[:: len(epochs) // 6])
            axis.ticklabel_format(axis="y", useOffset=False)
            axis.margins(x=0.08, y=0.2)
            axis.set_xlabel("epoch")
        return as_svg(
            figure, "metrics", "Metrics of the test split by epoch",
            panels=[(axis, [series]) for axis, series in zip(panels, drawn, strict=True)], narrow=narrow,
        )  # fmt: skip


def _draw_loss(axis: Axes, loss: Line, title: str) -> None:
    axis.set_title(title)
    if not loss:
        return
    times, values = zip(*thinned(loss, 1500), strict=True)
    smooth = _smoothed(values)
    for part in _unbroken(times):
        axis.plot(times[part], values[part], color=ON_PAGE["accent-faint"], linewidth=0.8)
        axis.plot(times[part], smooth[part], color=ON_PAGE["accent"], linewidth=1.8)
    # The first steps of a run may be orders of magnitude above the rest, and would flatten it.
    ordered = sorted(values)
    low, high = ordered[0], ordered[int(len(ordered) * 0.995)]
    margin = (high - low) * 0.08 or 0.1
    axis.set_ylim(low - margin, high + margin)


def _draw_throughput(axis: Axes, throughput: Line, title: str) -> None:
    axis.set_title(title)
    if throughput:
        times, rates = zip(*throughput, strict=True)
        axis.fill_between(times, rates, color=ON_PAGE["accent-faint"], alpha=0.45, linewidth=0)
        axis.plot(times, rates, color=ON_PAGE["accent"], linewidth=1.4)
    axis.set_ylim(0)
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def _draw_world(axis: Axes, world: Line, end: float) -> None:
    axis.set_title("workers")
    if world:
        times, sizes = zip(*world, (end, world[-1][1]), strict=True)
        axis.fill_between(times, sizes, step="post", color=ON_PAGE["good"], alpha=0.22, linewidth=0)
        axis.step(times, sizes, where="post", color=ON_PAGE["good"], linewidth=1.8)
        axis.set_ylim(0, max(sizes) + 1)
    axis.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=4))


def _draw_rates(axis: Axes, rates: Mapping[str, Line]) -> None:
    axis.set_title("learning rate")
    for line in rates.values():
        times, values = zip(*thinned(line, 1500), strict=True)
        axis.plot(times, values, color=ON_PAGE["warm"], linewidth=1.4)
    axis.set_ylim(0)


def _unbroken(times: Sequence[float]) -> list[slice]:
    """Stretches without a pause.

    A line drawn over a pause would show training where there was none.
    """
    steps = sorted(current - previous for previous, current in pairwise(times))
    if not steps:
        return [slice(0, len(times))]
    longest = max(20 * steps[len(steps) // 2], 0.01 * (times[-1] - times[0]))
    cuts = [
        index
        for index, (previous, current) in enumerate(pairwise(times), 1)
        if current - previous > longest
    ]
    return [slice(low, high) for low, high in pairwise([0, *cuts, len(times)])]


def _smoothed(values: Sequence[float]) -> list[float]:
    weight = min(0.98, 1 - 2 / (len(values) / 25 + 1)) if len(values) > 25 else 0.0
    smooth, total, result = 0.0, 0.0, []
    for value in values:
        smooth, total = weight * smooth + value, weight * total + 1
        result.append(smooth / total)
    return result
