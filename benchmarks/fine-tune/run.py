"""LoRA and full weights: a checkpoint, a join and a death, beside transformers' Trainer: README.md."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from benchmarks.frozen.join import join
from benchmarks.harness.brim_run import repository
from benchmarks.harness.report import Report, seconds, spread, table
from brim.train.context import spec_of_a_loner
from brim.train.job import Job

HERE = Path(__file__).parent
SCRIPT = HERE / "tune.py"
KILLED_AT = 15  # the middle between two of the Trainer's checkpoints
TO_END = 120.0  # seconds
TO_COME_BACK = 60.0


@dataclass(slots=True)
class Found:
    """What a way of tuning came to.

    Args:
        checkpoint: bytes of each but the first.
        first: bytes of the first checkpoint, with what is stored once.
        join: bytes that a newcomer is sent.
        lost: seconds from a death to the first step beyond those that were made before.
        again: steps that were made again.
        stuck: runs that did not come back within a minute.
        digests: of the weights.
    """

    checkpoint: int = 0
    first: int = 0
    join: int = 0
    lost: list[float] = field(default_factory=list)
    again: list[int] = field(default_factory=list)
    stuck: int = 0
    digests: set[str] = field(default_factory=set)


@contextlib.contextmanager
def place() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="brim-benchmark-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def by_brim(weights: str, found: Found) -> None:
    """Two workers, of which one is killed and replaced."""
    with place() as folder:
        run = folder / "run"
        command = [
            sys.executable,
            "-m",
            "brim",
            "run",
            "--workers",
            "2",
            "--checkpoint-every",
            "10",
        ]
        command += ["--faults", f"kill rank 1 at step {KILLED_AT}", "--run-dir", str(run), "--json"]
        command += ["--", sys.executable, str(SCRIPT), "brim", weights, str(folder)]
        environment = {**os.environ, "PYTHONPATH": str(repository() / "src")}
        output = subprocess.run(
            command, env=environment, cwd=folder, check=True, stdout=subprocess.PIPE, timeout=TO_END
        )
        found.digests.add(json.loads(output.stdout.splitlines()[-1])["weights_sha256"])
        events = lines(run / "events.jsonl")
        killed = next(event for event in events if event["kind"] == "fault")
        checkpoints = sorted(
            (event for event in events if event["kind"] == "checkpoint"), key=lambda e: e["step"]
        )
        found.first, found.checkpoint = checkpoints[0]["bytes"], checkpoints[-1]["bytes"]
        steps = lines(run / "steps.jsonl")
        found.lost.append(
            min(step["at"] for step in steps if step["at"] > killed["at"]) - killed["at"]
        )
        found.again.append(sum(event.get("redone", 0) for event in events))


def by_transformers(weights: str, found: Found) -> None:
    """Two processes by torchrun, of which one is killed: it starts both again."""
    with place() as folder:
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            "2",
        ]
        command += ["--max-restarts", "10", str(SCRIPT), "transformers", weights]
        process = subprocess.Popen(
            [*command, str(folder)],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            steps = wait_for_step(folder / "steps.jsonl", KILLED_AT, process)
            killed = time.time()
            os.kill(other_worker(process.pid, steps[-1]["pid"]), signal.SIGKILL)
            reached = max(step["step"] for step in lines(folder / "steps.jsonl"))
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(TO_COME_BACK)
        finally:
            end(process)
        steps = lines(folder / "steps.jsonl")
        after = [step for step in steps if step["pid"] != steps[0]["pid"]]
        reached = max([reached, *(s["step"] for s in steps if s["pid"] == steps[0]["pid"])])
        saved = folder / "checkpoint-10"
        found.first = found.checkpoint = sum(path.stat().st_size for path in saved.iterdir())
        new = [step["at"] for step in after if step["step"] > reached]
        if not new:
            found.stuck += 1
            return
        found.lost.append(min(new) - killed)
        found.again.append(reached + 1 - after[0]["step"])


def wait_for_step(
    path: Path, number: int, process: subprocess.Popen[bytes]
) -> list[dict[str, Any]]:
    end = time.monotonic() + TO_END
    while time.monotonic() < end and process.poll() is None:
        if path.exists() and (steps := lines(path)) and steps[-1]["step"] >= number:
            return steps
        time.sleep(0.01)
    raise RuntimeError(f"torchrun did not come to step {number}")


def end(launcher: subprocess.Popen[bytes]) -> None:
    """Kill torchrun and its workers, which have sessions of their own."""
    children = [] if launcher.poll() is not None else children_of(launcher.pid)
    launcher.kill()  # first, so that it starts no others
    launcher.wait()
    for pid in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)


def children_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def other_worker(launcher: int, first: int) -> int:
    """The process of torchrun that is not the first worker."""
    children = children_of(launcher)
    workers = [
        int(pid)
        for pid in children
        if str(SCRIPT).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    return next(pid for pid in workers if pid != first)


def bytes_of_join(weights: str) -> int:
    """Bytes of a state on its way to a newcomer that has built the same model."""

    def built() -> Job:
        network = runpy.run_path(str(SCRIPT))["model"](weights)
        trained = [part for part in network.parameters() if part.requires_grad]
        spec = replace(spec_of_a_loner(), micro_batches=1, audit=False)
        return Job(network, torch.optim.AdamW(trained), spec=spec, context=None)

    giver = built()
    data = runpy.run_path(str(SCRIPT))["samples"]()[:4]
    for batch in giver.batches(data, global_batch_size=4, epochs=1):
        giver.step(giver.model(**batch).loss)
    return join(giver, built())[0]


def row(ways: dict[str, Found], name: str, cell: Any) -> tuple[str, ...]:
    return (name, *(cell(way) for way in ways.values()))


def mb(value: float) -> str:
    return f"{value / 1e6:.1f}" if value else "–"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="a smoke run")
    options = parser.parse_args()
    times = 1 if options.quick else options.times
    report = Report(HERE, "Fine-tuning: a checkpoint, a join and a death", seed=0)
    ways = {
        f"{library}, {weights}": Found()
        for library in ("brim", "transformers")
        for weights in ("lora", "full")
    }
    for number in range(times):
        for name, way in ways.items():
            library, weights = name.split(", ")
            (by_brim if library == "brim" else by_transformers)(weights, way)
            report.say(f"{number + 1} of {times}, {name}: lost {seconds(way.lost)} s")
    for weights in ("lora", "full"):
        ways[f"brim, {weights}"].join = bytes_of_join(weights)
        if len(ways[f"brim, {weights}"].digests) > 1:
            raise RuntimeError("brim's runs end with different weights")
    rows = [
        row(ways, "the first checkpoint, MB", lambda way: mb(way.first)),
        row(ways, "each further one, MB", lambda way: mb(way.checkpoint)),
        row(ways, "sent to a newcomer, MB", lambda way: mb(way.join)),
        row(ways, "a death to the next new step, s", lambda way: seconds(way.lost)),
        row(ways, "steps made again", lambda way: spread(way.again, digits=0)),
        row(ways, "not back after a minute", lambda way: f"{way.stuck} of {times}"),
    ]
    packages = ", ".join(
        f"{name} {version(name)}" for name in ("transformers", "peft", "accelerate")
    )
    report.add(
        f"{times} runs each, by turns: median (minimum–maximum). {packages}. "
        "All runs of brim end with the same weights.\n\n" + table(["", *ways], rows)
    )
    if not options.quick:
        report.write(
            {
                name: {"first": way.first, "checkpoint": way.checkpoint, "join": way.join}
                | {"lost": way.lost, "again": way.again, "stuck": way.stuck}
                for name, way in ways.items()
            }
        )


if __name__ == "__main__":
    main()
