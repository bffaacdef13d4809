"""The cost of a resize and of a start, beside torchrun: see README.md."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.harness.brim_run import BrimRun, import_path
from benchmarks.harness.report import Report, ms, ratio, seconds, table
from benchmarks.harness.torchrun import Torchrun
from brim.domain.step_records import StepRecord
from brim.telemetry.events import WorkerChanged

BENCHMARK = Path(__file__).parent
TRAINING_FILE = BENCHMARK.parent / "harness" / "training_file.py"
BATCH, SMALL, LARGE = 512, 4, 6
_COUNTED_STEPS = 40  # steps behind a change that still belong to it
PARTS = ("get newcomers ready", "come to a boundary", "name the round", "install it", "the step")


@dataclass(frozen=True, slots=True)
class Change:
    """One resize; seconds."""

    to_new_world: float  # from the request to the first commit of the world asked for
    pauses: tuple[
        float, ...
    ]  # at each change of rounds: the gap between commits beyond a usual step
    # the longest gap from the request to some steps behind the change, beyond a usual step
    longest: float
    lost: float  # in all that time: beyond what the same steps take usually
    usual: float
    parts: tuple[float, ...]  # of `to_new_world`: see PARTS


@dataclass(slots=True)
class Found:
    grow: list[Change] = field(default_factory=list)
    shrink: list[Change] = field(default_factory=list)
    redone: int = 0
    repeated: int = 0
    starts: list[float] = field(default_factory=list)
    second_starts: list[float] = field(default_factory=list)
    peer_starts: list[float] = field(default_factory=list)
    peer_grow: list[float] = field(default_factory=list)
    peer_lost: list[int] = field(default_factory=list)


def resize(run: BrimRun, workers: int) -> tuple[float, int, int]:
    """Ask, and wait until the world asked for has done its steps; when, and the first and last
    rounds of it.
    """
    round_before = run.round.round
    asked_at = run.resize(workers)
    run.until_steady(workers, steps=_COUNTED_STEPS, spares=1)
    return asked_at, round_before, run.round.round


def change_of(
    run: BrimRun, asked_at: float, first: int, last: int, usual: dict[int, float]
) -> Change:
    sizes = {number: formed.world_size for number, formed in run.rounds.items()}
    steps = [step for step in run.steps if first <= step.round <= last]
    pairs = [(a, b) for a, b in pairwise(steps) if b.at > asked_at]
    settled = [step for step in steps if step.round == last]
    pairs = [(a, b) for a, b in pairs if b.at <= settled[min(_COUNTED_STEPS, len(settled)) - 1].at]

    def beyond(a: StepRecord, b: StepRecord) -> float:
        return b.at - a.at - usual[sizes[b.round]]

    return Change(
        to_new_world=settled[0].at - asked_at,
        pauses=tuple(beyond(a, b) for a, b in pairs if a.round != b.round),
        longest=max(beyond(a, b) for a, b in pairs),
        lost=sum(beyond(a, b) for a, b in pairs),
        usual=usual[sizes[last]],
        parts=_parts(run, asked_at, last, steps),
    )


def _parts(run: BrimRun, asked_at: float, last: int, steps: list[StepRecord]) -> tuple[float, ...]:
    """The time from the request to the first step of the last round, in parts: see PARTS."""
    named = run.rounds[last]
    installed = run.until("record of the round", lambda: run.re_formed.get(last))
    ready = [
        event.at
        for event in run.history.events
        if isinstance(event, WorkerChanged)
        and event.state == "ready"
        and event.worker in named.workers
        and asked_at < event.at < named.at
    ]
    before = max(step.at for step in steps if step.round < last)
    first = next(step.at for step in steps if step.round == last)
    times = (asked_at, max([asked_at, *ready]), before, named.at, installed.at, first)
    return tuple(current - previous for previous, current in pairwise(times))


def resize_brim(times: int, found: Found) -> None:
    """One run that grows and shrinks so many times."""
    with BrimRun(TRAINING_FILE, workers=SMALL, global_batch_size=BATCH) as run:
        run.until_steady(SMALL, steps=2 * _COUNTED_STEPS, spares=1)
        grown, shrunk = [], []
        for _ in range(times):
            grown.append(resize(run, LARGE))
            shrunk.append(resize(run, SMALL))
        seen = {formed.world_size for formed in run.rounds.values()}
        usual = {size: run.median_step(size) for size in seen if _has_steps(run, size)}
        usual |= dict.fromkeys(seen - usual.keys(), usual[LARGE])
        found.grow += [change_of(run, *resize_made, usual) for resize_made in grown]
        found.shrink += [change_of(run, *resize_made, usual) for resize_made in shrunk]
        found.redone += sum(event.redone for event in run.re_formed.values())
        found.repeated += sum(
            count - 1 for count in Counter(step.step for step in run.steps).values()
        )


def _has_steps(run: BrimRun, size: int) -> bool:
    sizes = {number: formed.world_size for number, formed in run.rounds.items()}
    return any(a.round == b.round and sizes[b.round] == size for a, b in pairwise(run.steps))


def start_brim(found: Found) -> None:
    """Start a first run, and a second one that begins with the warm process of the first."""
    with tempfile.TemporaryDirectory(prefix="brim-runtime-") as runtime:
        found.starts.append(start_beside(runtime))
        found.second_starts.append(start_beside(runtime))


def start_beside(runtime: str) -> float:
    """From the command `brim train` to the first commit of 4 workers; the run is short and ends by
    itself.

    Args:
        runtime: the folder of warm processes, which end with it.
    """
    directory = Path(tempfile.mkdtemp(prefix="brim-benchmark-"))
    command = [
        *(str(Path(sys.executable).with_name("brim")), "train", str(TRAINING_FILE)),
        *(
            "--workers",
            str(SMALL),
            "--global-batch-size",
            str(BATCH),
            "--set",
            f"samples={20 * BATCH}",
        ),
        *("--run-dir", str(directory / "run"), "--json"),
    ]
    environment = {**os.environ, "PYTHONPATH": import_path(), "XDG_RUNTIME_DIR": runtime}
    environment.pop("BRIM_KEEP_WARM", None)
    started = time.time()
    process = subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=60)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    summary = json.loads(output)
    if summary["exit"] != "done":
        raise RuntimeError(f"the run ended as {summary['exit']}: see {directory}")
    first = json.loads((directory / "run" / "steps.jsonl").read_text().partition("\n")[0])
    shutil.rmtree(directory, ignore_errors=True)
    return float(first["at"] - started)


def start_and_grow_torchrun(found: Found) -> None:
    """From the command to the first step on all of 4 ranks; then stop it and start 6 from its
    checkpoint.
    """
    with Torchrun(workers=SMALL, batch=BATCH) as run:
        found.peer_starts.append(run.until_all_stepped() - run.started)
        run.until_all_stepped(steps=60)
        asked_at = time.time()
        run.end()
        reached = max(line.step for line in run.lines())
    with Torchrun(workers=LARGE, batch=BATCH, directory=run.directory) as larger:
        found.peer_grow.append(larger.until_all_stepped() - asked_at)
        found.peer_lost.append(reached - min(line.step for line in larger.lines()) + 1)
    shutil.rmtree(run.directory, ignore_errors=True)


def tell(report: Report, found: Found) -> None:
    rows = []
    for name, changes in ((f"{SMALL} → {LARGE}", found.grow), (f"{LARGE} → {SMALL}", found.shrink)):
        pauses = [pause for change in changes for pause in change.pauses]
        rows.append(
            [
                name,
                len(changes),
                ms(pauses),
                statistics.median(len(change.pauses) for change in changes),
            ]
            + [
                ms([getattr(change, field_name) for change in changes])
                for field_name in ("longest", "lost", "usual")
            ]
            + [ms([change.to_new_world for change in changes])]
        )
    head = [
        "resize",
        "times",
        "pause at a change of rounds",
        "such changes",
        "longest gap",
        "time lost",
    ]
    head += ["a usual step", "request to the first step of the new world"]
    report.add(
        "## Resize under brim\n\nMilliseconds, median (minimum–maximum); gaps are counted beyond a "
        "usual step of "
        "the world that makes the step (targets: pause 10 ms, request to first step 200 ms). *Time "
        "lost* is "
        f"summed from the request to {_COUNTED_STEPS} steps behind the change: it has the starts of "
        "newcomers in it.\n\n"
        + table(head, rows)
        + f"\n\nSteps redone: {found.redone}; step numbers committed twice: {found.repeated}."
    )
    rows = [
        [name, *(ms([change.parts[index] for change in changes]) for index in range(len(PARTS)))]
        for name, changes in (
            (f"{SMALL} → {LARGE}", found.grow),
            (f"{LARGE} → {SMALL}", found.shrink),
        )
    ]
    report.add(
        "## Where the time to the first step of the new world goes\n\nMilliseconds. Training goes on "
        "during the first two parts; the last three are the pause and a usual step. *Get newcomers "
        "ready*: the last that joins is warm. *Come to a boundary*: the last commit of the old "
        "round. *Name the round*: the members compare their state, the master decides. *Install it*: "
        "newcomers have fetched the state. *The step*: the first commit after that.\n\n"
        + table(["resize", *PARTS], rows)
    )
    grow = [change.to_new_world for change in found.grow]
    rows = [
        [row_name, seconds(own_times), seconds(peer_times), ratio(peer_times, own_times)]
        for row_name, own_times, peer_times in (
            (f"command to first step, {SMALL} workers", found.starts, found.peer_starts),
            (f"request to first step, {SMALL} → {LARGE}", grow, found.peer_grow),
        )
    ]
    lost = (
        f" and loses {min(found.peer_lost)} to {max(found.peer_lost)} steps"
        if found.peer_lost
        else ""
    )
    report.add(
        "## Beside torchrun\n\nSeconds. torchrun cannot be resized on one host: it is ended and "
        "started again from "
        f"its checkpoint (one every 50 steps){lost}.\n\n"
        + table(["what", "brim", "torchrun", "torchrun / brim"], rows)
        + f"\n\n{len(found.starts)} starts of brim, {len(found.peer_starts)} of torchrun. "
        f"Command to first step of a second run: {seconds(found.second_starts)} s."
    )


def plot(found: Found) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3))
    left, right = figure.subplots(1, 2)
    for place, changes in enumerate((found.grow, found.shrink)):
        pauses = [1000 * pause for change in changes for pause in change.pauses]
        left.plot([place] * len(pauses), pauses, "_", markersize=16)
    left.axhline(10, color="grey", linewidth=0.8)
    left.set_xticks([0, 1], [f"{SMALL} → {LARGE}", f"{LARGE} → {SMALL}"])
    left.set_xlim(-0.5, 1.5)
    left.set_ylabel("pause beyond a usual step, ms")
    series = {
        "start, brim": found.starts,
        "start again, brim": found.second_starts,
        "start, torchrun": found.peer_starts,
        "grow, brim": [change.to_new_world for change in found.grow],
        "grow, torchrun": found.peer_grow,
    }
    for place, (label, times) in enumerate(series.items()):
        right.plot(
            times,
            [place] * len(times),
            "|",
            markersize=14,
            color="C1" if "torchrun" in label else "C0",
        )
    right.set_yticks(range(len(series)), list(series))
    right.set_ylim(len(series) - 0.5, -0.5)
    right.set_xscale("log")
    right.set_xlabel("seconds to the first step")
    figure.tight_layout()
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke run: no report is written")
    quick = parser.parse_args().quick
    rounds, times = (1, 1) if quick else (5, 3)
    report = Report(BENCHMARK, "Resize and start, beside torchrun", seed=0)
    found = Found()
    for number in range(rounds):
        label = f"round {number + 1} of {rounds}:"
        report.say(f"{label} brim, {times} × {SMALL} → {LARGE} → {SMALL}")
        report.attempt(resize_brim, times, found)
        report.say(f"{label} brim train, from the command to its first step")
        report.attempt(start_brim, found)
        report.say(f"{label} torchrun, started with {SMALL}, ended, started with {LARGE}")
        report.attempt(start_and_grow_torchrun, found)
    tell(report, found)
    if not quick:
        data = {
            "brim": {
                name: [
                    {
                        "to_new_world": change.to_new_world,
                        "pauses": change.pauses,
                        "longest": change.longest,
                        "lost": change.lost,
                        "usual": change.usual,
                        "parts": dict(zip(PARTS, change.parts, strict=True)),
                    }
                    for change in changes
                ]
                for name, changes in (("grow", found.grow), ("shrink", found.shrink))
            },
            "steps_redone": found.redone,
            "steps_repeated": found.repeated,
            "starts": {
                "brim": found.starts,
                "brim, second run": found.second_starts,
                "torchrun": found.peer_starts,
            },
            "torchrun_grow": {"seconds": found.peer_grow, "steps_lost": found.peer_lost},
        }
        report.write(data, plot(found))


if __name__ == "__main__":
    main()
