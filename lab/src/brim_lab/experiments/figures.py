"""Draws an experiment: its workers over time, and the AUC by step.

Live workers are areas, and simulated ones dashed lines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from brim.domain.quantities import counted
from brim_lab.experiments.beside_service import BesideService
from brim_lab.experiments.changing_workers import ChangingWorkers
from brim_lab.experiments.course import Workers, count_at, makespan
from brim_lab.experiments.two_jobs import SIDES, TwoJobs
from brim_lab.experiments.web_service import WebService

_SIZE = (9.0, 6.0)  # inches


def draw_two_jobs(found: TwoJobs, path: Path) -> None:
    """The last repetition of experiment 1, as a PNG."""
    _save(two_jobs_figure(found), path)


def two_jobs_figure(found: TwoJobs) -> Figure:
    """Gang above, elastic below, on one axis of time."""
    figure = Figure(figsize=_SIZE, layout="constrained")
    axes = figure.subplots(2, 1, sharex=True, sharey=True)
    for axis, side in zip(axes, SIDES, strict=True):
        courses, predicted = found.rounds[-1][side], found.predicted[side]
        _stack(axis, {f"{course.name} job": course.workers for course in courses})
        _outline(axis, [predicted.workers[course.name] for course in courses])
        for course in courses:
            axis.plot(course.submitted, 0, "k^", markersize=6, clip_on=False, zorder=5)
        _slots(axis, found.scale.slots)
        live = makespan(courses)
        text = f"both done after {live:.1f} s, simulated {predicted.makespan:.1f} s"
        waited = f"the second's first step {courses[1].to_first_step:.1f} s after its submission"
        axis.set_title(f"{side} ({SIDES[side]}): {text}; {waited}", loc="left", fontsize=9.5)
    axes[0].plot([], [], "k^", markersize=6, label="submitted")
    axes[0].legend(loc="upper right", ncols=2, fontsize=8.5)
    axes[1].set_xlabel("seconds since the first submission")
    return figure


def draw_changing_workers(found: ChangingWorkers, path: Path) -> None:
    """The last repetition of experiment 3, as a PNG."""
    _save(changing_workers_figure(found), path)


def changing_workers_figure(found: ChangingWorkers) -> Figure:
    """The workers over time above, the AUC by step below."""
    figure = Figure(figsize=_SIZE, layout="constrained")
    upper, lower = figure.subplots(2, 1, height_ratios=[1.2, 1.0])
    course = found.rounds[-1]
    _stack(upper, {"elastic job": course.workers})
    _outline(upper, [found.predicted.workers["elastic"]])
    left_slots = [*found.scale.capacity(end=course.ended), (course.ended, 0)]
    _steps(
        upper, tuple(left_slots), color="grey", linewidth=1.0, label="left by the online service"
    )
    _slots(upper, found.scale.slots)
    upper.legend(loc="upper right", ncols=2, fontsize=8.5)
    upper.set_xlabel("seconds since the submission")
    text = f"done after {course.ended:.1f} s, simulated {found.predicted.makespan:.1f} s"
    upper.set_title(f"the elastic job beside an online service: {text}", loc="left", fontsize=9.5)
    for place, fixed in enumerate(found.fixed):
        steps, values = zip(*fixed.metric, strict=True)
        size, workers = 13 - 4 * place, found.scale.fixed[place]
        label = f"{counted(workers, 'worker')}, fixed"
        lower.plot(steps, values, "o", markersize=size, fillstyle="none", label=label)
    steps, values = zip(*course.metric, strict=True)
    lower.plot(steps, values, "k.-", linewidth=0.8, label="elastic")
    lower.set(xlabel="step", ylabel="AUC of the test split")
    lower.legend(loc="best", fontsize=8.5)
    lower.grid(alpha=0.3)
    weights_note = "the same weights" if course.digest == found.fixed[0].digest else "OTHER WEIGHTS"
    lower.set_title(f"the AUC after each epoch: {weights_note}", loc="left", fontsize=9.5)
    return figure


def beside_service_figure(found: BesideService) -> Figure:
    """The slots of the last repetition of experiment 2: training below, the service on top."""
    figure = Figure(figsize=(9.0, 3.6), layout="constrained")
    axis = figure.subplots()
    run, slots = found.rounds[-1], found.scale.slots
    _stack(axis, {"training": run.course.workers, "the service": run.had})
    _outline(axis, [found.predicted.workers["elastic"]])
    left_slots = tuple((moment, slots - count) for moment, count in run.wanted)
    _steps(axis, left_slots, color="grey", linewidth=1.0, label="left by the service")
    _slots(axis, slots)
    axis.legend(loc="upper right", ncols=4, fontsize=8.5)
    axis.set_xlabel("seconds since the submission")
    text = f"{run.use(slots):.1%} of the slots in use, simulated {found.predicted_use:.1%}"
    axis.set_title(f"a job beside an online service: {text}", loc="left", fontsize=9.5)
    return figure


def draw_web_service(found: WebService, path: Path) -> None:
    """Experiment 2 with a service that answers, as a PNG."""
    _save(web_service_figure(found), path)


def web_service_figure(found: WebService) -> Figure:
    """The slots of the days beside training, with and without foresight, and with fixed parts."""
    figure = Figure(figsize=(_SIZE[0], 1.4 * _SIZE[1]), layout="constrained")
    axes = figure.subplots(3, 1, sharex=True, sharey=True)
    titles = {
        f"beside training: {found.beside.steps} steps": found.beside,
        f"the same, following the load: {found.following.steps} steps": found.following,
        f"with fixed parts: {found.fixed.steps} steps": found.fixed,
    }
    moments = [found.day.seconds * number / 240 for number in range(241)]
    for axis, (title, day) in zip(axes, titles.items(), strict=True):
        _stack(axis, {"training": day.training, "the service's replicas": day.held})
        _slots(axis, found.scale.slots)
        rate = axis.twinx()
        rate.plot(moments, [found.day.rate(moment) for moment in moments], "k:", linewidth=1.0)
        rate.set(ylabel="requests/s (dotted)", ylim=(0, None))
        requests = day.requests
        text = f"{requests.made:,} requests, {requests.lost} lost, 99 % within {1e3 * requests.slowest:.0f} ms"
        axis.set_title(f"{title}; {text}", loc="left", fontsize=9.5)
    axes[0].legend(loc="upper right", ncols=2, fontsize=8.5)
    axes[-1].set_xlabel("seconds since the begin of the day")
    return figure


def _stack(axis: Any, parts: Mapping[str, Workers]) -> None:
    """Live workers as areas, the first lowest."""
    times = sorted({0.0, *(moment for part in parts.values() for moment, _ in part)})
    rows = [[count_at(part, time) for time in times] for part in parts.values()]
    axis.stackplot(times, rows, step="post", labels=parts, colors=["C0", "C1"], alpha=0.55)


def _outline(axis: Any, jobs: Sequence[Workers]) -> None:
    """Simulated workers as dashed lines, each on top of the one before."""
    times = sorted({0.0, *(moment for job in jobs for moment, _ in job)})
    for number in range(len(jobs)):
        total = tuple(
            (time, sum(count_at(job, time) for job in jobs[: number + 1])) for time in times
        )
        label = "simulated" if number == 0 else None
        _steps(axis, total, color="black", linewidth=1.2, linestyle=(0, (4, 2)), label=label)


def _steps(axis: Any, points: Workers, **style: Any) -> None:
    axis.step(
        [moment for moment, _ in points], [count for _, count in points], where="post", **style
    )


def _slots(axis: Any, slots: int) -> None:
    axis.axhline(slots, color="grey", linewidth=0.8, linestyle=":")
    axis.annotate(
        f"{slots} slots", (0, slots), (4, 3), textcoords="offset points", color="grey", fontsize=8.5
    )
    axis.set(ylabel="workers", ylim=(0, slots + 2.4), yticks=range(0, slots + 1, 2), xlim=(0, None))
    axis.spines[["top", "right"]].set_visible(False)


def _save(figure: Figure, path: Path) -> None:
    figure.savefig(path, dpi=120)
