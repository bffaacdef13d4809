"""A table of 50 million rows on one host: see README.md."""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import threading
import time
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil

from benchmarks.harness.brim_run import BrimRun, repository
from benchmarks.harness.report import Report, ms, table
from brim import client
from brim.domain.checkpointing import Interval
from brim.domain.step_records import StepRecord
from brim.telemetry.events import CheckpointPublished, RoundFormed
from brim_lab.driver import Driver

BENCHMARK = Path(__file__).parent
TRAINING_FILE = BENCHMARK.parent / "embeddings" / "clicks.py"
SMALL, LARGE, BATCH = 200_000, 50_000_000, 4096
STEPS, EVERY, CHECKPOINTS = (
    30,
    145,
    3,
)  # measured in each world; between checkpoints; so many of them
MANY = 8  # workers, and servers, whose digest is compared with that of one worker
PATIENCE = 420.0
NEVER = Interval(steps=1_000_000)


class Memory:
    """The memory of all processes of a run together: shared memory counts once."""

    def __init__(self) -> None:
        self.peak_bytes, self._ends = 0, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ends.wait(3.0):
            processes = psutil.Process().children(recursive=True)
            self.peak_bytes = max(self.peak_bytes, sum(map(_share, processes)))

    def end(self) -> int:
        """The most that there was."""
        self._ends.set()
        self._thread.join()
        return self.peak_bytes


def _share(process: psutil.Process) -> int:
    try:
        lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # it has ended
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))


class Trial(BrimRun):
    """A run over a table of some rows."""

    def __init__(self, rows: int, *, workers: int, **fields: Any) -> None:
        super().__init__(
            TRAINING_FILE,
            workers=workers,
            parameters={"rows": str(rows)},
            global_batch_size=BATCH,
            epochs=100_000,
            spares=0,
            **fields,
        )

    def has_checkpoints(self, count: int) -> bool:
        return len(self.checkpoints()) >= count

    def begin(self) -> float:
        """Seconds until the first step."""
        started = time.time()
        self.until("a step", lambda: self.steps[:1], timeout=PATIENCE)
        return self.steps[0].at - started

    def steps_of_size(self, workers: int) -> list[float]:
        """Seconds of some steps with so many workers, once they are steady."""
        self.until_steady(workers, steps=STEPS + 5, timeout=PATIENCE)
        return gaps(self.steps_of(self.round.round)[5:])

    def checkpoints(self) -> list[CheckpointPublished]:
        return [event for event in self.history.events if isinstance(event, CheckpointPublished)]

    def serve_by(self, servers: int) -> dict[str, float]:
        """Change the number of servers; seconds until a step with so many, and of the longest step
        until then.
        """
        asked_at, step_before = time.time(), self.steps[-1]
        client.resize(self.directory, 0, servers=servers)

        def first() -> StepRecord | None:
            round = self.history.round
            is_it = isinstance(round, RoundFormed) and round.servers == servers
            found = self.steps_of(self.round.round) if is_it else []
            return found[2] if len(found) > 2 else None

        last = self.until(f"steps with {servers} servers", first, timeout=PATIENCE)
        steps_meanwhile = [step for step in self.steps if step_before.at <= step.at <= last.at]
        return {
            "servers": servers,
            "seconds": steps_meanwhile[-3].at - asked_at,
            "longest": max(gaps(steps_meanwhile)),
        }


def gaps(steps: Sequence[StepRecord]) -> list[float]:
    return [current.at - previous.at for previous, current in pairwise(steps)]


def steps_at(rows: int) -> dict[str, Any]:
    """A step with 1 and with 2 workers."""
    found: dict[str, Any] = {"rows": rows}
    memory = Memory()
    with Trial(rows, workers=1, checkpoint_every=NEVER) as run:
        found["begin"] = run.begin()
        found["one"] = run.steps_of_size(1)
        run.resize(2)
        found["two"] = run.steps_of_size(2)
    return {**found, "peak_bytes": memory.end()}


def large(report: Report, rows: int, place: Path) -> dict[str, Any]:
    """Steps, checkpoints beside them, a restore, and servers that come and go."""
    found: dict[str, Any] = {"rows": rows}
    memory = Memory()
    with Trial(
        rows, workers=1, checkpoints=str(place), checkpoint_every=Interval(steps=EVERY)
    ) as run:
        found["begin"] = run.begin()
        report.say(f"first step after {found['begin']:.0f} s")
        found["one"] = run.steps_of_size(1)
        run.resize(2)
        found["two"] = run.steps_of_size(2)
        report.say("steps with 1 and 2 workers are measured")
        found["checkpoints"], start = [], run.steps[-1].at
        for number in range(CHECKPOINTS):
            run.until(
                "a checkpoint",
                partial(run.has_checkpoints, number + 1),
                timeout=PATIENCE,
            )
            checkpoint_made = run.checkpoints()[number]
            steps_meanwhile = [step for step in run.steps if start <= step.at <= checkpoint_made.at]
            start = checkpoint_made.at
            found["checkpoints"].append(
                {
                    "step": checkpoint_made.step,
                    "bytes": checkpoint_made.bytes,
                    "pause": checkpoint_made.pause,
                    "longest_step": max(gaps(steps_meanwhile), default=0.0),
                }
            )
            report.say(
                f"checkpoint {number + 1}: {checkpoint_made.bytes / 1e9:.2f} GB, pause {checkpoint_made.pause:.3f} s"
            )
        found["beside"] = gaps(
            [step for step in run.steps if step.step >= found["checkpoints"][0]["step"]]
        )
    found["peak_bytes"] = memory.end()
    memory = Memory()
    resumed_spec = {
        "checkpoints": str(place),
        "checkpoint_every": NEVER,
        "servers": 2,
        "resume": True,
    }
    with Trial(rows, workers=1, **resumed_spec) as run:
        found["resumed"] = run.begin()
        report.say(f"first step from the checkpoint after {found['resumed']:.0f} s")
        found["served"] = run.steps_of_size(1)
        found["resizes"] = [run.serve_by(4), run.serve_by(2)]
    found["peak_bytes_served"] = memory.end()
    return found


def digest(directory: Path, *, rows: int, workers: int, servers: int) -> dict[str, Any]:
    """The weights' digest of an epoch, and the seconds that it takes."""
    words = ["--set", f"rows={rows}", "--epochs", "1", "--global-batch-size", str(BATCH)]
    words += ["--micro-batches", "8", "--workers", str(workers), "--ps", str(servers)]
    words += ["--spares", "0", "--run-dir", str(directory)]
    driver = Driver(repository())
    started, memory = time.monotonic(), Memory()
    try:
        run = driver.call("train", str(TRAINING_FILE), "--json", *words, timeout=PATIENCE)
    finally:
        peak = memory.end()
    sha256 = json.loads(run.stdout)["weights_sha256"]
    return {
        "workers": workers,
        "servers": servers,
        "sha256": sha256,
        "seconds": time.monotonic() - started,
        "peak_bytes": peak,
    }


def tell(
    report: Report, small: dict[str, Any], big: dict[str, Any], digests: list[dict[str, Any]]
) -> None:
    sides = (small, big)
    rows: list[list[object]] = [
        ["from the command to the first step, s", *(f"{side['begin']:.1f}" for side in sides)],
        ["a step, 1 worker, ms", *(ms(side["one"]) for side in sides)],
        ["a step, 2 workers, ms", *(ms(side["two"]) for side in sides)],
        ["a step, 1 worker and 2 servers, ms", "–", ms(big["served"])],
        [
            "memory of all processes at most, GB",
            *(f"{side['peak_bytes'] / 1e9:.1f}" for side in sides),
        ],
        ["… of the resumed run with servers, GB", "–", f"{big['peak_bytes_served'] / 1e9:.1f}"],
        ["from a command that resumes to the first step, s", "–", f"{big['resumed']:.1f}"],
    ]
    report.add("Median (minimum–maximum) where there are several.")
    report.add(table(["", *(f"{side['rows']:,} rows" for side in sides)], rows))
    report.add("## Checkpoints, beside steps with 2 workers")
    checkpoint_rows = [
        [
            checkpoint_row["step"],
            f"{checkpoint_row['bytes'] / 1e9:.2f}",
            f"{1000 * checkpoint_row['pause']:.0f}",
            f"{1000 * checkpoint_row['longest_step']:.0f}",
        ]
        for checkpoint_row in big["checkpoints"]
    ]
    report.add(
        table(
            [
                "of step",
                "written, GB",
                "training waits, ms",
                "longest step since the one before, ms",
            ],
            checkpoint_rows,
        )
    )
    report.add(f"A step from the first checkpoint to the last, ms: {ms(big['beside'])}.")
    report.add("## Servers that come and go while it trains")
    changes = [
        [resize_row["servers"], f"{resize_row['seconds']:.1f}", f"{resize_row['longest']:.1f}"]
        for resize_row in big["resizes"]
    ]
    head = ["servers from then on", "to the first step with them, s", "longest step meanwhile, s"]
    report.add(table(head, changes))
    report.add(f"## {MANY} workers and {MANY} servers, {SMALL:,} rows, an epoch of 30 steps")
    lines = [
        [
            digest["workers"],
            digest["servers"],
            digest["sha256"][:12],
            f"{digest['seconds']:.0f}",
            f"{digest['peak_bytes'] / 1e9:.1f}",
        ]
        for digest in digests
    ]
    report.add(table(["workers", "servers", "weights", "seconds", "memory at most, GB"], lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=LARGE)
    parser.add_argument(
        "--quick", action="store_true", help="a smoke run: 2 million rows, no report"
    )
    arguments = parser.parse_args()
    rows = 2_000_000 if arguments.quick else arguments.rows
    report = Report(BENCHMARK, "A table of 50 million rows on one host", seed=0)
    scratch = Path(tempfile.mkdtemp(prefix="brim-scale-tables-"))
    try:
        digests = [
            digest(scratch / f"{workers}-{servers}", rows=SMALL, workers=workers, servers=servers)
            for workers, servers in ((1, 0), (MANY, MANY))
        ]
        report.say(f"digests: {', '.join(digest_row['sha256'][:12] for digest_row in digests)}")
        if len({digest_row["sha256"] for digest_row in digests}) != 1:
            raise SystemExit("the digests differ")
        small = steps_at(SMALL)
        report.say(f"{SMALL:,} rows are measured")
        big = large(report, rows, scratch / "checkpoints")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    tell(report, small, big, digests)
    if not arguments.quick:
        report.write({"small": small, "large": big, "digests": digests})


if __name__ == "__main__":
    main()
