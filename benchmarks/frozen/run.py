"""A checkpoint, a join and a kill with frozen weights, beside an older brim: see README.md."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness.brim_run import repository
from benchmarks.harness.report import Report, table

HERE = Path(__file__).parent
JOB = (
    *("train", str(HERE / "lora_gpt.py"), "--workers", "2", "--micro-batches", "2"),
    *("--epochs", "1", "--global-batch-size", "8", "--checkpoint-every", "5", "--json"),
)
KILL = "kill rank 1 at step 12"


@dataclass(slots=True)
class Found:
    """What one brim came to: bytes, seconds, and the weights' digests."""

    first_bytes: list[int] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)
    written: list[float] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)
    to_next_step: list[float] = field(default_factory=list)
    weights: set[str] = field(default_factory=set)
    join_bytes: int = 0
    joins: list[float] = field(default_factory=list)


def environment(source: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{repository()}"}


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def run(source: Path, found: Found, *, samples: int) -> None:
    """Train once, with a checkpoint every five steps and a kill."""
    directory = Path(tempfile.mkdtemp(prefix="brim-benchmark-"))
    command = [sys.executable, "-m", "brim", *JOB, "--set", f"samples={samples}"]
    command += ["--faults", KILL, "--run-dir", str(directory / "run")]
    output = subprocess.run(
        command, env=environment(source), cwd=directory, check=True, stdout=subprocess.PIPE
    )
    found.weights.add(json.loads(output.stdout)["weights_sha256"])
    events = records(directory / "run" / "events.jsonl")
    checkpoints = sorted(
        (event for event in events if event["kind"] == "checkpoint"), key=lambda e: e["step"]
    )
    found.first_bytes.append(checkpoints[0]["bytes"])
    for event in checkpoints[1:]:
        found.bytes.append(event["bytes"])
        found.written.append(event["seconds"])
        found.pauses.append(event["pause"])
    killed = next(event["at"] for event in events if event["kind"] == "fault")
    steps = [step["at"] for step in records(directory / "run" / "steps.jsonl")]
    found.to_next_step.append(min(at for at in steps if at > killed) - killed)
    shutil.rmtree(directory, ignore_errors=True)


def join(source: Path, found: Found, *, times: int) -> None:
    command = [sys.executable, "-m", "benchmarks.frozen.join", "--times", str(times)]
    output = subprocess.run(
        command, env=environment(source), cwd=repository(), check=True, stdout=subprocess.PIPE
    )
    joined = json.loads(output.stdout)
    found.join_bytes = joined["bytes"]
    found.joins += joined["seconds"]


def ms(values: list[float]) -> str:
    low, middle, high = (1e3 * f(values) for f in (min, statistics.median, max))
    return f"{middle:.0f} ({low:.0f}–{high:.0f})"


def rows(ways: dict[str, Found]) -> list[tuple[str, ...]]:
    def mb(value: float) -> str:
        return f"{value / 1e6:.1f}"

    found = ways.values()
    return [
        ("the first checkpoint, MB", *(mb(max(way.first_bytes)) for way in found)),
        ("each further one, MB", *(mb(statistics.median(way.bytes)) for way in found)),
        ("to write it, ms", *(ms(way.written) for way in found)),
        ("training's pause for it, ms", *(ms(way.pauses) for way in found)),
        ("a join, MB", *(mb(way.join_bytes) for way in found)),
        ("a join, ms", *(ms(way.joins) for way in found)),
        ("a kill to the next step, ms", *(ms(way.to_next_step) for way in found)),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path, help="src of another checkout, to compare with")
    parser.add_argument("--quick", action="store_true", help="a smoke run")
    options = parser.parse_args()
    report = Report(HERE, "Frozen weights: a checkpoint, a join and a kill", seed=0)
    times = 1 if options.quick else 5
    sources = {"before": options.before} if options.before else {}
    sources["now"] = repository() / "src"
    ways = {name: Found() for name in sources}
    for number in range(times):
        for name, source in sources.items():
            run(source.resolve(), ways[name], samples=200)
            join(source.resolve(), ways[name], times=3)
            report.say(f"{number + 1} of {times}, {name}: {rows({name: ways[name]})}")
    if len(set.union(*(way.weights for way in ways.values()))) > 1:
        raise RuntimeError("the runs end with different weights")
    report.add(
        f"{times} runs each, by turns: median (minimum–maximum). All end with the same weights.\n\n"
        + table(["", *ways], rows(ways))
    )
    if not options.quick:
        data = {
            name: {"join_bytes": way.join_bytes, "bytes": way.bytes, "written": way.written}
            | {"pauses": way.pauses, "joins": way.joins, "to_next_step": way.to_next_step}
            for name, way in ways.items()
        }
        report.write(data)


if __name__ == "__main__":
    main()
