"""Asynchronous training beside exact training: updates that count under kills, speed, and AUC.

See README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from benchmarks.harness.brim_run import BrimRun
from benchmarks.harness.pacing import VARIABLE, Pace
from benchmarks.harness.report import Report, spread, table
from brim_lab.driver import Driver

BENCHMARK = Path(__file__).parent
ROOT = BENCHMARK.parents[1]
CRITEO = ROOT / "examples" / "01-first-job" / "criteo.py"
SUMS = ROOT / "tests" / "e2e" / "files" / "sums.py"
PACED = BENCHMARK.parent / "harness" / "training_file.py"
AHEAD, UNBOUNDED = 4, 1000
SIZES = (1, 2, 4)
BATCH, PER_SAMPLE, TIMES = 128, 0.001, 3.0
SETTLE, MEASURE = (
    12.0,
    8.0,
)  # seconds: until shares have moved away from a slow worker, and of a figure


def train(*arguments: str, run: Path) -> subprocess.Popen[str]:
    words = ("train", "--run-dir", str(run), "--json", *arguments)
    return Driver().start(*words, stderr=subprocess.DEVNULL)


def summary_of(process: subprocess.Popen[str]) -> dict[str, Any]:
    output, _ = process.communicate(timeout=300)
    if process.returncode:
        raise RuntimeError(f"a run ended with exit status {process.returncode}: {output}")
    found: dict[str, Any] = json.loads(output)
    return found


def lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().rpartition("\n")[0].splitlines()]


def is_exact(run: Path) -> bool:
    found = Driver().call("ledger", str(run), "--json", codes=())
    return bool(json.loads(found.stdout)["exact"])


# Kills --------------------------------------------------------------------------------------------


def kill_members(
    process: subprocess.Popen[str], run: Path, *, kills: int, rng: random.Random
) -> int:
    """Kill a member of the round at a moment independent of its work; return how many were killed."""
    done, deadline = 0, time.monotonic() + 240
    while done < kills and process.poll() is None and time.monotonic() < deadline:
        time.sleep(rng.uniform(0.3, 1.0))
        events = lines(run / "events.jsonl")
        pids = {
            event["worker"]: event["pid"]
            for event in events
            if event["kind"] == "worker" and event["pid"]
        }
        rounds = [event["workers"] for event in events if event["kind"] == "round"]
        steps = lines(run / "steps.jsonl")
        if not rounds or not steps or steps[-1]["round"] != len(rounds):
            # a round that has made no step is not disturbed: workers that die young are given up
            continue
        victim = rng.choice(rounds[-1])
        try:
            os.kill(pids[victim], signal.SIGKILL)
        except ProcessLookupError:
            continue
        done += 1
    return done


def under_kills(seed: int, kills: int, expected: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="brim-async-") as scratch:
        run = Path(scratch, "run")
        job = (
            str(SUMS),
            "--epochs",
            str(EPOCHS),
            "--global-batch-size",
            "64",
            "--set",
            "pause=0.02",
        )
        process = train(*job, "--workers", "3", "--async", str(AHEAD), run=run)
        done = kill_members(process, run, kills=kills, rng=random.Random(seed))
        (run / "hurry").touch()
        summary = summary_of(process)
        return {
            "kills": done,
            "redone": summary["steps_redone"],
            "ledger": is_exact(run),
            "sum": summary["weights_sha256"] == expected,
        }


EPOCHS = 30


def measure_kills(report: Report, *, kills: int, parts: int) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="brim-async-") as scratch:
        job = (str(SUMS), "--epochs", str(EPOCHS), "--global-batch-size", "64")
        exact = summary_of(train(*job, run=Path(scratch, "run")))
    found = []
    for seed in range(parts):
        found.append(report.attempt(under_kills, seed, kills // parts, exact["weights_sha256"]))
        report.say(f"kills, seed {seed}: {found[-1]}")
    return found


# Speed --------------------------------------------------------------------------------------------


def speed(pace: Pace, workers: int, lead: int | None, *, slow: bool) -> float:
    """Samples a second, of workers that sleep for each sample."""
    pace.say(TIMES if slow else 1.0)
    with BrimRun(PACED, workers=workers, global_batch_size=BATCH, asynchronous=lead) as run:
        run.until_steady(workers, steps=10, timeout=120.0)
        first = time.time() + (SETTLE if slow else 0.0)
        run.until("figures", lambda: time.time() > first + MEASURE, timeout=60.0)
        steps_inside = [step for step in run.steps if step.at > first]
    return sum(step.samples for step in steps_inside[1:]) / (
        steps_inside[-1].at - steps_inside[0].at
    )


def measure_speed(report: Report, rounds: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "pace.json"
        os.environ[VARIABLE] = str(file)
        pace = Pace(file, per_sample=PER_SAMPLE, slow=("w4", "3"))
        for _ in range(rounds):
            for workers in SIZES:
                for name, lead in (("exact", None), ("async", AHEAD)):
                    key = f"{name} {workers}"
                    found[key].append(
                        report.attempt(lambda a=lead, w=workers: speed(pace, w, a, slow=False))
                    )
                    report.say(f"{key}: {found[key][-1]:.0f} samples/s")
            for name, lead in (("exact", None), ("async", AHEAD), ("unbounded", UNBOUNDED)):
                key = f"{name} one slow"
                found[key].append(report.attempt(lambda a=lead: speed(pace, 4, a, slow=True)))
                report.say(f"{key}: {found[key][-1]:.0f} samples/s")
        del os.environ[VARIABLE]
    return dict(found)


# Quality ------------------------------------------------------------------------------------------


def criteo(path: str, seed: int, workers: int, lead: int | None) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="brim-async-") as scratch:
        run = Path(scratch, "run")
        more = () if lead is None else ("--async", str(lead))
        options = ("--set", f"path={path}", "--seed", str(seed), "--workers", str(workers), *more)
        summary = summary_of(train(str(CRITEO), *options, run=run))
        steps = lines(run / "steps.jsonl")
        rate = sum(step["samples"] for step in steps[1:]) / (steps[-1]["at"] - steps[0]["at"])
        stale = Counter(step.get("staleness", 0) for step in steps)
        return {
            "auc": summary["metrics"]["auc"],
            "speed": rate,
            "staleness": dict(sorted(stale.items())),
            "ledger": is_exact(run),
        }


def measure_quality(report: Report, path: str, seeds: int) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for seed in range(1, seeds + 1):
        for name, lead in (("exact", None), ("async", AHEAD)):
            for workers in SIZES:
                key = f"{name} {workers}"
                found[key].append(report.attempt(criteo, path, seed, workers, lead))
                report.say(f"{key}, seed {seed}: {found[key][-1]}")
    return dict(found)


# The report ---------------------------------------------------------------------------------------


def tell(
    report: Report, kills: list[dict[str, Any]], speeds: dict[str, list[float]], quality: Any
) -> None:
    total = sum(kill["kills"] for kill in kills)
    rows = [
        [seed, kill["kills"], kill["redone"], kill["ledger"], kill["sum"]]
        for seed, kill in enumerate(kills)
    ]
    report.add(
        f"## {total} kills at any moment\n\n3 workers, `--async {AHEAD}`. The sum is that of all "
        "batches once, to the "
        "bit, in the network and in the table.\n\n"
        + table(["seed", "kills", "batches redone", "ledger exact", "sum right"], rows)
    )
    rows = [
        [
            f"{workers}, alike",
            *(spread(speeds[f"{name} {workers}"], digits=0) for name in ("exact", "async")),
            "",
        ]
        for workers in SIZES
    ]
    slow = [
        spread(speeds[f"{name} one slow"], digits=0) for name in ("exact", "async", "unbounded")
    ]
    rows.append([f"4, one {TIMES:g} times as slow", *slow])
    report.add(
        f"## Samples a second of workers that sleep {1000 * PER_SAMPLE:g} ms for each\n\n"
        + table(["workers", "exact", f"--async {AHEAD}", f"--async {UNBOUNDED}"], rows)
    )
    rows = []
    for key, results in quality.items():
        stale: Counter[int] = Counter()
        for result in results:
            stale.update({int(value): count for value, count in result["staleness"].items()})
        values = sorted(stale.elements())
        rows.append(
            [
                key,
                spread([result["auc"] for result in results], digits=4),
                spread([result["speed"] for result in results], digits=0),
                f"{statistics.median(values):.0f}, at most {values[-1]}"
                if key.startswith("async")
                else "–",
                all(result["ledger"] for result in results),
            ]
        )
    head = ["mode and workers", "test AUC", "samples a second", "staleness", "ledger exact"]
    report.add(
        f"## Criteo's sample, Wide & Deep, one epoch, {len(results)} seeds\n\n" + table(head, rows)
    )


def plot(speeds: dict[str, list[float]], quality: Any) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.2))
    left, right = figure.subplots(1, 2)
    for offset, name in enumerate(("exact", "async")):
        left.bar(
            [place + 0.4 * offset for place in range(len(SIZES))],
            [statistics.median(speeds[f"{name} {workers}"]) for workers in SIZES],
            width=0.38,
            label=name,
        )
        for workers in SIZES:
            values = [result["auc"] for result in quality[f"{name} {workers}"]]
            place = SIZES.index(workers) + 0.2 * offset - 0.1
            right.plot([place] * len(values), values, "o" if offset else "s", color=f"C{offset}")
    left.set_xticks(
        [place + 0.2 for place in range(len(SIZES))], [f"{size} workers" for size in SIZES]
    )
    left.set_ylabel("samples a second, paced")
    left.legend(fontsize=8)
    right.set_xticks(range(len(SIZES)), [f"{size} workers" for size in SIZES])
    right.set_ylabel("test AUC, Criteo, one epoch")
    figure.tight_layout()
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--path", required=True, help="Criteo's dac_sample, tab separated, without a header"
    )
    parser.add_argument("--quick", action="store_true", help="a smoke run: no report is written")
    parser.add_argument("--rounds", type=int, default=1, help="runs of each speed, in turns")
    arguments = parser.parse_args()
    report = Report(BENCHMARK, "Asynchronous training beside exact training", seed=0)
    kills = measure_kills(
        report, kills=5 if arguments.quick else 50, parts=1 if arguments.quick else 2
    )
    quality = measure_quality(report, arguments.path, 1 if arguments.quick else 3)
    speeds = measure_speed(report, arguments.rounds)
    tell(report, kills, speeds, quality)
    if not arguments.quick:
        report.write({"kills": kills, "speeds": speeds, "quality": quality}, plot(speeds, quality))
    if not all(kill["ledger"] and kill["sum"] for kill in kills):
        sys.exit("a batch was lost or came twice")


if __name__ == "__main__":
    main()
