"""One digest for any number of workers and servers, through kills of both and a repartition: see
README.md.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.harness.brim_run import BrimRun, BrimStuck
from benchmarks.harness.report import Report, table
from brim import client
from brim.telemetry.events import RunEnded

BENCHMARK = Path(__file__).parent
WORKERS, SERVERS = (1, 2, 3, 4, 8), (0, 1, 2, 4)
SOME = ((1, 0), (2, 1), (3, 2), (4, 4), (8, 2))
TRAINED = (
    ("wide_deep", "adagrad"),
    ("xdeepfm", "adagrad"),
    ("wide_deep", "sgd"),
    ("factors", "sparse_adam"),
    ("wide_deep", "momentum"),
    ("wide_deep", "adam"),
)
BATCH, EPOCHS, SEED = 512, 2, 0
LIMIT = 240.0  # seconds for a run
KILLS = 8
RESIZES = (
    (0.2, 3, 4),
    (0.4, 1, 4),
    (0.6, 4, 2),
)  # after this part of the steps so many workers, and servers


class World(NamedTuple):
    """One run.

    Args:
        is_disturbed: members are killed; workers go from 3 to 1 to 4, servers from 2 to 4 to 2.
    """

    workers: int
    servers: int
    is_disturbed: bool = False

    def __str__(self) -> str:
        text = f"{self.workers} workers, {self.servers} servers"
        return (
            f"{text}, {KILLS} kills, then 3, 1, 4 workers, 4, 4, 2 servers"
            if self.is_disturbed
            else text
        )


def worlds_of(number: int) -> Iterator[World]:
    """The worlds of the models and optimizers at that place of `TRAINED`: of the first, all."""
    all_worlds = [(workers, servers) for workers in WORKERS for servers in SERVERS]
    yield from (World(*world_sizes) for world_sizes in (SOME if number else all_worlds))
    yield World(3, 2, is_disturbed=True)


def _has_come_to(run: BrimRun, step: int) -> bool:
    return bool(run.steps) and run.steps[-1].step >= step


def _disturb(run: BrimRun, rng: random.Random, steps: int) -> None:
    """Kill members and ask for other numbers of them, as the run goes on."""
    events: list[tuple[int, tuple[int, ...]]] = [
        (int(steps * part), (workers, servers)) for part, workers, servers in RESIZES
    ]
    events += [(rng.randrange(steps // 10, steps * 9 // 10), ()) for _ in range(KILLS)]
    for event_step, size in sorted(events):
        run.until(f"step {event_step}", partial(_has_come_to, run, event_step), timeout=LIMIT)
        if size:
            client.resize(run.directory, size[0], servers=size[1])
        else:
            with suppress(ProcessLookupError):  # it has died of another kill
                os.kill(rng.choice(run.members).pid, signal.SIGKILL)


def digest(world: World, model: str, optimizer: str, rng: random.Random) -> str:
    """Return the weights that a run ends with."""
    with BrimRun(
        BENCHMARK / "worlds.py",
        workers=world.workers,
        servers=world.servers,
        parameters={"model": model, "optimizer": optimizer},
        global_batch_size=BATCH,
        epochs=EPOCHS,
        seed=SEED,
    ) as run:
        if world.is_disturbed:
            from benchmarks.servers.worlds import SAMPLES

            _disturb(run, rng, EPOCHS * SAMPLES // BATCH)
        ended: RunEnded = _end_of(run)
        return str(ended.summary["weights_sha256"])


def _end_of(run: BrimRun) -> Any:
    end = time.monotonic() + LIMIT
    while run.history.ended is None:
        run.poll()
        if run.history.failed or time.monotonic() > end:
            raise BrimStuck(
                run.history.failed.message if run.history.failed else "the run does not end"
            )
        time.sleep(0.05)
    return run.history.ended


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke run: no report is written")
    quick = parser.parse_args().quick
    rng, report = (
        random.Random(SEED),
        Report(BENCHMARK, "One digest for any number of servers", seed=SEED),
    )
    found: dict[str, dict[str, str]] = {}
    for number, (model, optimizer) in enumerate(TRAINED[: 2 if quick else None]):
        worlds = list(worlds_of(number))
        ends = found[f"{model}, {optimizer}"] = {}
        for world in worlds[-2:] if quick else worlds:
            report.say(f"{model}, {optimizer}: {world}")
            ends[str(world)] = report.attempt(digest, world, model, optimizer, rng)
    lines = [
        [name, len(ends), ", ".join(sorted({end[:12] for end in ends.values()}))]
        for name, ends in found.items()
    ]
    different = [name for name, ends in found.items() if len(set(ends.values())) > 1]
    report.add(table(["model, optimizer", "runs", "digests"], lines))
    if not quick:
        report.write(found, name="digests")
    if different:
        raise SystemExit(f"more than one digest: {', '.join(different)}")


if __name__ == "__main__":
    main()
