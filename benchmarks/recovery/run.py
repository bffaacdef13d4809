"""From kill -9 of a worker to the next committed step, beside torchrun: see README.md."""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import statistics
import time
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.harness.brim_run import BrimRun, alive
from benchmarks.harness.report import Report, ms, ratio, seconds, table
from benchmarks.harness.torchrun import Torchrun, TorchrunStuck
from brim.domain.step_records import StepRecord

BENCHMARK = Path(__file__).parent
TRAINING_FILE = BENCHMARK.parent / "harness" / "training_file.py"
BATCH, SEED = 512, 0
PARTS = ("notice", "name the round", "install it", "the step")


@dataclass(frozen=True, slots=True)
class Recovery:
    """One kill; seconds after it."""

    survivors: float
    full_world: float
    step: float  # a usual step of this world
    parts: tuple[float, ...]  # of `survivors`: see PARTS
    redone: int


@dataclass(frozen=True, slots=True)
class Setting:
    workers: int
    optimizer: str
    spares: int

    def __str__(self) -> str:
        return f"{self.workers} workers, {self.optimizer}, {self.spares} spare"


Found = dict[Setting, list[Recovery]]


def kill_one(run: BrimRun, setting: Setting, rng: random.Random) -> Recovery:
    """Kill a random member of a steady world, and follow the consequences."""
    run.until_steady(setting.workers, spares=setting.spares)
    round_before = run.round.round
    victim = rng.choice(run.members)
    time.sleep(rng.uniform(0, run.median_step(setting.workers)))  # anywhere in a step
    killed = time.time()
    os.kill(victim.pid, signal.SIGKILL)

    def first_after(world_size: int) -> Any:
        rounds = run.rounds
        return next(
            (
                step
                for step in run.steps[-2000:]
                if step.round > round_before and rounds[step.round].world_size >= world_size
            ),
            None,
        )

    full = run.until("step of the full world", lambda: first_after(setting.workers))
    first = first_after(1)
    round = run.rounds[first.round]
    re_formed = run.until("record of the round", lambda: run.re_formed.get(first.round))
    lost_at = run.lost_at(victim.worker) or round.at
    times = (killed, lost_at, round.at, re_formed.at, first.at)
    return Recovery(
        survivors=first.at - killed,
        full_world=full.at - killed,
        step=run.median_step(setting.workers),
        parts=tuple(current - previous for previous, current in pairwise(times)),
        redone=sum(
            event.redone for number, event in run.re_formed.items() if number > round_before
        ),
    )


def kill_under_brim(setting: Setting, kills: int, rng: random.Random) -> list[Recovery]:
    with BrimRun(
        TRAINING_FILE,
        workers=setting.workers,
        parameters={"optimizer": setting.optimizer},
        global_batch_size=BATCH,
        spares=setting.spares,
    ) as run:
        return [kill_one(run, setting, rng) for _ in range(kills)]


def kill_under_torchrun(workers: int, optimizer: str, rng: random.Random) -> tuple[float, int]:
    """Seconds to the first step on all ranks after the restart,
    and how many steps were lost by it.
    """
    with Torchrun(workers=workers, parameters={"optimizer": optimizer}, batch=BATCH) as run:
        run.until_all_stepped(steps=60)  # behind its first checkpoint
        lines = run.lines()
        victim = rng.choice(sorted({line.pid for line in lines}))
        killed = time.time()
        os.kill(victim, signal.SIGKILL)
        took = run.until_all_stepped(restart=1) - killed
        lines = run.lines()
        reached = max(line.step for line in lines if line.restart == 0)
        resumed = min(line.step for line in lines if line.restart > 0)
        lost = reached - resumed + 1
    shutil.rmtree(run.directory, ignore_errors=True)
    return took, lost


def _first_behind(run: BrimRun, round: int) -> StepRecord | None:
    return next((step for step in run.steps[-500:] if step.round > round), None)


def stop_under_brim(heartbeat: float, stops: int, rng: random.Random) -> list[dict[str, Any]]:
    """SIGSTOP a worker: when do the others go on, and can it do anything once it is woken?"""
    found = []
    with BrimRun(
        TRAINING_FILE, workers=4, global_batch_size=BATCH, heartbeat_timeout=heartbeat
    ) as run:
        for _ in range(stops):
            run.until_steady(4, spares=1)
            round_before, victim = run.round.round, rng.choice(run.members)
            stopped = time.time()
            os.kill(victim.pid, signal.SIGSTOP)
            first = run.until(
                "step without the stopped worker",
                partial(_first_behind, run, round_before),
            )
            was_alive = alive(victim.pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim.pid, signal.SIGCONT)
            time.sleep(0.3)
            run.poll()
            found.append(
                {
                    "seconds": first.at - stopped,
                    "alive_when_others_went_on": was_alive,
                    "alive_after_waking": alive(victim.pid),
                    "lost_for": run.reason(victim.worker),
                    "in_a_later_round": any(
                        victim.worker in formed.workers
                        for number, formed in run.rounds.items()
                        if number > round_before
                    ),
                }
            )
    return found


def stop_under_torchrun(patience: float) -> float | None:
    """Seconds until torchrun's workers go on after one was stopped; None: not within `patience`."""
    with Torchrun(workers=4, batch=BATCH) as run:
        run.until_all_stepped(steps=60)
        victim = run.lines()[-1].pid
        stopped = time.time()
        os.kill(victim, signal.SIGSTOP)
        try:
            return run.until_all_stepped(restart=1, timeout=patience) - stopped
        except TorchrunStuck:
            return None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)


def tell(
    report: Report, found: Found, peer: dict[tuple[int, str], list[tuple[float, int]]]
) -> None:
    rows = []
    for setting, kills in found.items():
        times = [took for took, _ in peer.get((setting.workers, setting.optimizer), [])]
        full = [kill.full_world for kill in kills]
        rows.append(
            [
                *(setting.workers, setting.optimizer, setting.spares, len(kills)),
                *(
                    ms([kill.survivors for kill in kills]),
                    ms(full),
                    ms([kill.step for kill in kills]),
                ),
                *(
                    max(kill.redone for kill in kills),
                    seconds(times),
                    len(times),
                    ratio(times, full),
                ),
            ]
        )
    head = [
        "workers",
        "optimizer",
        "spares",
        "kills",
        "next step by anybody, ms",
        "by the full world, ms",
    ]
    head += ["a usual step, ms", "redone, most", "torchrun, s", "its kills", "torchrun / brim"]
    report.add(
        "## From kill -9 to the next committed step\n\n"
        "Median (minimum–maximum). A kill comes anywhere in a step; steps that the old round still "
        "commits "
        "after it do not count. torchrun: to the first step on all ranks after its restart.\n\n"
        + table(head, rows)
    )
    rows = [
        [setting.workers, setting.optimizer, setting.spares]
        + [ms([kill.parts[index] for kill in kills]) for index in range(len(PARTS))]
        for setting, kills in found.items()
    ]
    report.add(
        "## Where the time to the next step by anybody goes\n\nMilliseconds. *Notice*: the kernel "
        "tears the "
        "process down, the agent tells the master. *Name the round*: the master decides. *Install "
        "it*: every "
        "member has agreed, and a newcomer has fetched the state. *The step*: the first commit "
        "after that.\n\n" + table(["workers", "optimizer", "spares", *PARTS], rows)
    )
    lost = [redone for values in peer.values() for _, redone in values]
    if lost:
        report.add(
            f"torchrun lost {min(lost)} to {max(lost)} steps by a kill (a checkpoint every 50)."
        )


def tell_stops(
    report: Report, stops: dict[float, list[dict[str, Any]]], peer: float | None, patience: float
) -> None:
    rows = []
    for heartbeat, stops_of_timeout in stops.items():
        rows.append(
            [
                f"{heartbeat:g}",
                len(stops_of_timeout),
                seconds([stop["seconds"] for stop in stops_of_timeout]),
            ]
            + [
                sum(stop[key] for stop in stops_of_timeout)
                for key in ("alive_when_others_went_on", "alive_after_waking")
            ]
            + [
                sum(stop["in_a_later_round"] for stop in stops_of_timeout),
                ", ".join({stop["lost_for"] for stop in stops_of_timeout}),
            ]
        )
    head = ["heartbeat timeout, s", "stops", "to the next step, s", "alive when the others went on"]
    head += ["alive after SIGCONT", "in a later round", "recorded as lost by"]
    note = (
        "it was not tried"
        if not patience
        else f"nothing within {patience:g} s"
        if peer is None
        else seconds([peer])
    )
    report.add(
        "## From SIGSTOP to the next committed step, 4 workers\n\n"
        + table(head, rows)
        + f"\n\ntorchrun, one worker stopped: {note}."
    )


def plot(found: Found, peer: dict[tuple[int, str], list[tuple[float, int]]]) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 0.45 * (len(found) + len(peer)) + 1.2))
    axis = figure.subplots()
    series = {str(setting): [kill.full_world for kill in kills] for setting, kills in found.items()}
    series |= {
        f"torchrun, {workers} workers, {name}": [recovery for recovery, _ in kills]
        for (workers, name), kills in peer.items()
    }
    for place, (label, times) in enumerate(series.items()):
        axis.plot(
            times,
            [place] * len(times),
            "|",
            markersize=14,
            color="C1" if "torchrun" in label else "C0",
        )
        axis.plot([statistics.median(times)], [place], "o", color="black", markersize=4)
    axis.set_yticks(range(len(series)), list(series))
    axis.set_ylim(len(series) - 0.5, -0.5)
    axis.set_xscale("log")
    axis.set_xlabel("seconds from kill -9 to the next step of the full world (dot: median)")
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke run: no report is written")
    quick = parser.parse_args().quick
    rng = random.Random(SEED)
    settings = [Setting(4, name, spares) for name in ("sgd", "adam") for spares in (1, 0)]
    other_numbers = (
        []
        if quick
        else [Setting(workers, "sgd", spares) for workers in (2, 8) for spares in (1, 0)]
    )
    rounds, kills = (1, 2) if quick else (5, 4)
    if quick:
        settings = settings[:2]
    found: Found = {setting: [] for setting in settings + other_numbers}
    peer: dict[tuple[int, str], list[tuple[float, int]]] = defaultdict(list)
    report = Report(BENCHMARK, "Recovery from kill -9, beside torchrun", seed=SEED)
    for number in range(rounds):
        for setting in settings:
            report.say(f"round {number + 1} of {rounds}: brim, {setting}, {kills} kills")
            found[setting] += report.attempt(kill_under_brim, setting, kills, rng)
        report.say(f"round {number + 1} of {rounds}: torchrun, 4 workers")
        peer[4, "sgd"].append(report.attempt(kill_under_torchrun, 4, "sgd", rng))
    for setting in other_numbers:
        report.say(f"brim, {setting}, 10 kills")
        found[setting] += report.attempt(kill_under_brim, setting, 10, rng)
    if not quick:
        for workers in (2, 8):
            report.say(f"torchrun, {workers} workers")
            peer[workers, "sgd"].append(report.attempt(kill_under_torchrun, workers, "sgd", rng))
    tell(report, found, peer)
    patience = 0.0 if quick else 20.0
    stops = {}
    for heartbeat, count in ((3.0, 1),) if quick else ((3.0, 4), (0.5, 6)):
        report.say(f"brim, SIGSTOP, heartbeat timeout {heartbeat:g} s")
        stops[heartbeat] = report.attempt(stop_under_brim, heartbeat, count, rng)
    stopped_peer = None
    if patience:
        report.say("torchrun, SIGSTOP")
        stopped_peer = stop_under_torchrun(patience)
    tell_stops(report, stops, stopped_peer, patience)
    if not quick:
        data = {
            "brim": [
                {
                    "workers": setting.workers,
                    "optimizer": setting.optimizer,
                    "spares": setting.spares,
                    "survivors": [kill.survivors for kill in kills],
                    "full_world": [kill.full_world for kill in kills],
                    "parts": {part: [k.parts[i] for k in kills] for i, part in enumerate(PARTS)},
                    "redone": [kill.redone for kill in kills],
                }
                for setting, kills in found.items()
            ],
            "torchrun": [
                {
                    "workers": workers,
                    "optimizer": name,
                    "seconds": [s for s, _ in values],
                    "lost": [n for _, n in values],
                }
                for (workers, name), values in peer.items()
            ],
            "stops": [
                {"heartbeat_timeout": timeout, "stops": stops_of_timeout}
                for timeout, stops_of_timeout in stops.items()
            ],
            "torchrun_stopped": {"patience": patience, "seconds": stopped_peer},
        }
        report.write(data, plot(found, peer))


if __name__ == "__main__":
    main()
