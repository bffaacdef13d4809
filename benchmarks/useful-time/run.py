"""The share of wall time spent on new steps, under a kill -9 every few seconds, beside torchrun:
see README.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.harness.brim_run import BrimRun
from benchmarks.harness.report import Report, ms, table
from benchmarks.harness.torchrun import Torchrun
from brim.domain.accounting import time_breakdown
from brim.domain.checkpointing import Interval
from brim.telemetry.events import RoundFormed, WorldReFormed

BENCHMARK = Path(__file__).parent
JOB = BENCHMARK / "job.py"
WORKERS, BATCH, CHECKPOINT_EVERY, SEED = 4, 512, 50, 0
Progress = list[tuple[float, int]]  # (wall clock, steps done), as it grew


@dataclass(frozen=True, slots=True)
class Course:
    """The progress of one side in the measured time.

    Args:
        progress: each new step, and when it was done; seconds since the start of the measured time.
        faults: when processes were killed.
        seconds: the time measured.
        more: further figures for the report.
    """

    name: str
    progress: Progress
    faults: list[float]
    seconds: float
    more: dict[str, Any]

    @property
    def new_steps(self) -> int:
        return self.progress[-1][1] - self.progress[0][1] if self.progress else 0

    @property
    def step(self) -> float:
        """The usual time between two steps, where nothing was killed in between."""
        gaps = [current[0] - previous[0] for previous, current in pairwise(self.progress)]
        return statistics.median(gaps) if gaps else float("nan")


def strike_often(
    victims: Callable[[], Sequence[int]], deadline: float, interval: float, rng: random.Random
) -> list[float]:
    """Kill -9 one of the victims, again and again; when it was done."""
    struck: list[float] = []
    due = time.time() + interval
    while due < deadline:
        time.sleep(max(0.0, due - time.time()))
        with contextlib.suppress(ProcessLookupError):
            pids = victims()
            if pids:
                os.kill(rng.choice(list(pids)), signal.SIGKILL)
                struck.append(time.time())
        due += interval
    time.sleep(max(0.0, deadline - time.time()))
    return struck


def new_steps(steps: Sequence[tuple[float, int]], start: float, end: float) -> Progress:
    """The steps done for the first time, of those between `start` and `end`."""
    maximum = max((step for moment, step in steps if moment <= start), default=0)
    progress: Progress = [(0.0, maximum)]
    for moment, step in steps:
        if start < moment <= end and step > maximum:
            maximum = step
            progress.append((moment - start, step))
    return progress


def brim_course(
    path: str, seconds: float, interval: float, rng: random.Random, *, master: bool = False
) -> Course:
    """brim, with a random member of the world killed, or its master, or none where `interval` is
    infinite.
    """
    with BrimRun(
        JOB,
        workers=WORKERS,
        parameters={"path": path},
        global_batch_size=BATCH,
        epochs=100_000,
        checkpoint_every=Interval(steps=CHECKPOINT_EVERY),
    ) as run:
        run.until_steady(WORKERS, spares=1, timeout=120.0)
        start = time.time()

        def victims() -> list[int]:
            run.poll()
            if master:
                return [json.loads((run.directory / "master.json").read_bytes())["pid"]]
            return [life.pid for life in run.members]

        faults = strike_often(victims, start + seconds, interval, rng)
        run.poll()
        steps = [(step.at, step.step) for step in run.steps]
        account = _where_it_went(run, start, start + seconds)
    name = "brim, its master killed" if master else "brim"
    return Course(
        name,
        new_steps(steps, start, start + seconds),
        [fault - start for fault in faults],
        seconds,
        account,
    )


def _where_it_went(run: BrimRun, start: float, end: float) -> dict[str, Any]:
    """brim's own account of the measured time."""
    history = run.history
    steps_inside = [step for step in history.steps if start < step.at <= end]
    rounds = [
        event
        for event in history.events
        if isinstance(event, RoundFormed) and start < event.at <= end
    ]
    formed = [
        event
        for event in history.events
        if isinstance(event, WorldReFormed) and start < event.at <= end
    ]
    parts = time_breakdown(
        [],
        steps_inside,
        history.restores,
        re_forming=sum(event.seconds for event in formed),
        rounds=[event.at for event in rounds],
    )
    return {
        "rounds": len(rounds),
        "redone": sum(event.redone for event in formed),
        "seconds": {name: round(value, 3) for name, value in parts.items() if value},
    }


def torchrun_course(path: str, seconds: float, interval: float, rng: random.Random) -> Course:
    """torchrun, with a random one of its workers killed."""
    with Torchrun(workers=WORKERS, file=JOB, parameters={"path": path}, batch=BATCH) as run:
        run.until_all_stepped(steps=15, timeout=120.0)
        start = time.time()
        faults = strike_often(run.pids, start + seconds, interval, rng)
        lines = run.lines()
    shutil.rmtree(run.directory, ignore_errors=True)
    steps = [(line.at, line.step) for line in lines]
    restarts = max((line.restart for line in lines), default=0)
    facts = {"restarts": restarts, "lives_that_trained": len({line.restart for line in lines})}
    return Course(
        "torchrun",
        new_steps(steps, start, start + seconds),
        [fault - start for fault in faults],
        seconds,
        facts,
    )


def useful(course: Course, calm: Course) -> float:
    """The share of the time that the new steps would have taken undisturbed."""
    return course.new_steps / calm.new_steps * calm.seconds / course.seconds


def plot(courses: Sequence[Course], calm: dict[str, Course]) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5))
    axis = figure.subplots()
    for number, course in enumerate(courses):
        first = course.progress[0][1]
        # A level line to the end: what was not done in the last seconds must be seen.
        points = [*course.progress, (course.seconds, course.progress[-1][1])]
        axis.step(
            [moment for moment, _ in points],
            [step - first for _, step in points],
            where="post",
            label=course.name,
        )
        axis.plot(course.faults, [-(number + 1) * 0.015] * len(course.faults), "|", color=f"C{number}",
                  transform=axis.get_xaxis_transform(), clip_on=False, markersize=5)  # fmt: skip
    for side, course in calm.items():
        rate = course.new_steps / course.seconds
        length = courses[0].seconds
        axis.plot(
            [0, length], [0, rate * length], ":", color="grey", label=f"{side}, nobody killed"
        )
    axis.set_xlabel("seconds (ticks below the axis: a kill -9)")
    axis.set_ylabel("new steps")
    axis.legend()
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--path", required=True, help="Criteo's dac_sample, tab separated, without a header"
    )
    parser.add_argument("--seconds", type=float, default=150.0, help="measured on each side")
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two faults")
    parser.add_argument("--quick", action="store_true", help="a smoke run: no report is written")
    arguments = parser.parse_args()
    path = str(Path(arguments.path).resolve())
    seconds, undisturbed = (15.0, 8.0) if arguments.quick else (arguments.seconds, 30.0)
    report = Report(
        BENCHMARK,
        f"Useful time under a kill -9 every {arguments.every:g} s, beside torchrun",
        seed=SEED,
    )
    no_kills = float("inf")
    calm = {}
    for name, course_of in (("brim", brim_course), ("torchrun", torchrun_course)):
        report.say(f"{name}, undisturbed, {undisturbed:g} s")
        calm[name] = report.attempt(course_of, path, undisturbed, no_kills, random.Random(SEED))
    courses = []
    for name, course_of in (("brim", brim_course), ("torchrun", torchrun_course)):
        report.say(f"{name}, a worker killed every {arguments.every:g} s, {seconds:g} s")
        courses.append(
            report.attempt(course_of, path, seconds, arguments.every, random.Random(SEED))
        )
    report.say(f"brim, its master killed every {arguments.every:g} s, {seconds:g} s")

    def master_killed() -> Course:
        return brim_course(path, seconds, arguments.every, random.Random(SEED), master=True)

    courses.append(report.attempt(master_killed))
    rows = [
        [
            course.name,
            len(course.faults),
            course.new_steps,
            f"{course.new_steps / course.seconds:.1f}",
            ms([calm[side].step]),
            f"{useful(course, calm[side]):.3f}",
        ]
        for course in courses
        for side in [course.name.partition(",")[0]]
    ]
    head = [
        "side",
        "kills",
        "new steps",
        "new steps a second",
        "a calm step, ms",
        "useful-time ratio",
    ]
    report.add(
        f"## {seconds:g} s with {WORKERS} workers, a checkpoint every {CHECKPOINT_EVERY} steps\n\n"
        "Useful-time ratio: the time that the new steps would have taken undisturbed, over the "
        "time that passed.\n\n" + table(head, rows)
    )
    for course in courses:
        report.add(f"{course.name}: {json.dumps(course.more)}")
    if not arguments.quick:
        plain = [
            {
                "name": c.name,
                "seconds": c.seconds,
                "progress": c.progress[:: max(1, len(c.progress) // 2000)],
                "faults": c.faults,
                "more": c.more,
            }
            for c in [*courses, *calm.values()]
        ]
        report.write({"courses": plain}, plot(courses, calm))


if __name__ == "__main__":
    main()
