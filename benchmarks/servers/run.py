"""From kill -9 of a server, or of a worker beside it, to the next committed step: see README.md."""

from __future__ import annotations

import argparse
import os
import random
import signal
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness.brim_run import BrimRun
from benchmarks.harness.report import Report, ms, table
from brim.domain.checkpointing import Interval
from brim.telemetry.history import WorkerLife

BENCHMARK = Path(__file__).parent
TRAINING_FILE = BENCHMARK.parent / "embeddings" / "clicks.py"
WORKERS, SERVERS, BATCH, ROWS, SEED = 2, 1, 4096, 200_000, 0
STEADY = 10  # steps since the last change
PATIENCE = 60.0


@dataclass(frozen=True, slots=True)
class Recovery:
    """One kill; seconds after it.

    Args:
        first: until anybody's next step.
        re_forming: of this, from when the master heard of it until all members of the next round
            had the state.
        whole: until the next step with as many servers and workers as before.
        step: the median step of the round that the kill ended.
        redone: steps that were done again.
    """

    first: float
    re_forming: float
    whole: float
    step: float
    redone: int


def _is_whole(run: BrimRun, number: int) -> bool:
    round = run.rounds[number]
    return (round.world_size, round.servers) == (WORKERS, SERVERS)


def _steady(run: BrimRun) -> bool:
    round = run.history.round
    if round is None or not _is_whole(run, round.round):
        return False
    return len(run.steps_of(round.round)) >= STEADY and run.spares_ready >= 1


def _usual_step(run: BrimRun) -> float:
    steps = run.steps_of(run.round.round)[1:]
    return median(current.at - previous.at for previous, current in pairwise(steps))


def _victim(run: BrimRun, rng: random.Random, *, server: bool) -> WorkerLife:
    shares = dict(zip(run.round.workers, run.round.shares, strict=True))
    return rng.choice([life for life in run.members if (shares[life.worker] == 0) == server])


def kill_one(run: BrimRun, rng: random.Random, *, server: bool) -> Recovery:
    """Kill a server or a worker of a steady world at any moment of a step, and follow the
    consequences.
    """
    run.until("steady steps of the whole world", lambda: _steady(run), timeout=PATIENCE)
    round_before, usual, victim = (
        run.round.round,
        _usual_step(run),
        _victim(run, rng, server=server),
    )
    time.sleep(rng.uniform(0, usual))
    killed = time.time()
    os.kill(victim.pid, signal.SIGKILL)

    def first_after(*, whole: bool) -> Any:
        steps = (step for step in run.steps[-500:] if step.round > round_before)
        return next((step for step in steps if not whole or _is_whole(run, step.round)), None)

    whole = run.until("step of the whole world", lambda: first_after(whole=True), timeout=PATIENCE)
    first = first_after(whole=False)
    return Recovery(
        first=first.at - killed,
        re_forming=run.re_formed[first.round].seconds,
        whole=whole.at - killed,
        step=usual,
        redone=sum(
            event.redone for number, event in run.re_formed.items() if number > round_before
        ),
    )


def kills(victim: str, count: int, rng: random.Random) -> list[Recovery]:
    """Kill so many servers, or workers, one after the other, in one run."""
    with BrimRun(
        TRAINING_FILE,
        workers=WORKERS,
        servers=SERVERS,
        parameters={"rows": str(ROWS)},
        global_batch_size=BATCH,
        epochs=10_000,
        spares=1,
        checkpoint_every=Interval.parse("1000000"),
    ) as run:
        return [kill_one(run, rng, server=victim == "server") for _ in range(count)]


def tell(report: Report, found: dict[str, list[Recovery]]) -> None:
    rows = []
    for victim, kills_of_victim in found.items():
        beyond = [kill.first - kill.step for kill in kills_of_victim]
        rows.append(
            [
                *(
                    victim,
                    len(kills_of_victim),
                    ms([kill.step for kill in kills_of_victim]),
                    ms([kill.first for kill in kills_of_victim]),
                ),
                *(
                    ms(beyond),
                    ms([kill.re_forming for kill in kills_of_victim]),
                    ms([kill.whole for kill in kills_of_victim]),
                ),
                max(kill.redone for kill in kills_of_victim),
            ]
        )
    head = ["killed", "kills", "a usual step, ms", "to the next step, ms", "beyond a step, ms"]
    head += ["re-forming, ms", "to the next step of the whole world, ms", "redone, most"]
    report.add(
        f"## {WORKERS} workers and {SERVERS} server, {ROWS:,} rows, a batch of {BATCH:,}\n\n"
        "Median (minimum–maximum).\n\n" + table(head, rows)
    )


def plot(found: dict[str, list[Recovery]]) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 2.4))
    axis = figure.subplots()
    series = {
        f"a step before the kill of a {victim}": [k.step for k in kills_of_victim]
        for victim, kills_of_victim in found.items()
    }
    series |= {
        f"from the kill of a {victim}": [k.first for k in kills_of_victim]
        for victim, kills_of_victim in found.items()
    }
    for place, times in enumerate(series.values()):
        axis.plot([1000 * second for second in times], [place] * len(times), "|", markersize=14)
        axis.plot([1000 * median(times)], [place], "o", color="black", markersize=4)
    axis.set_yticks(range(len(series)), list(series))
    axis.set_ylim(len(series) - 0.5, -0.5)
    axis.set_xlabel("milliseconds to the next step (dot: median)")
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke run: no report is written")
    quick = parser.parse_args().quick
    rng = random.Random(SEED)
    report = Report(BENCHMARK, "Recovery from kill -9 of a server", seed=SEED)
    found: dict[str, list[Recovery]] = {"server": [], "worker": []}
    rounds, count = (1, 3) if quick else (4, 10)
    for number in range(rounds):
        for victim, kills_of_victim in found.items():
            report.say(f"round {number + 1} of {rounds}: {count} kills of a {victim}")
            kills_of_victim += report.attempt(kills, victim, count, rng)
    tell(report, found)
    if not quick:
        fields = ("first", "re_forming", "whole", "step", "redone")
        data = {
            victim: {name: [getattr(kill, name) for kill in kills_of_victim] for name in fields}
            for victim, kills_of_victim in found.items()
        }
        report.write(data, plot(found))


if __name__ == "__main__":
    main()
