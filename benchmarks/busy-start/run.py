"""Starts beside processes that leave no processor idle: see README.md."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.harness.brim_run import repository
from benchmarks.harness.report import Report, seconds, table

HERE = Path(__file__).parent
FILE = HERE.parent / "harness" / "training_file.py"
LOOP = HERE.parents[1] / "examples" / "03-your-script" / "mnist_brim.py"
DEADLINE = 600.0
VERBS = {
    "train": (str(FILE), "--workers", "1", "--global-batch-size", "512", "--set", "samples=5120"),
    "run": ("--workers", "1", "--", sys.executable, str(LOOP)),
    "up": ("--state", "state"),
}
BRIM = (sys.executable, "-m", "brim")


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """So many processes that compute until the end."""
    spin = (sys.executable, "-c", "while True: pass")
    processes = [subprocess.Popen(spin) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def starts(verb: str, count: int, folder: Path) -> list[float]:
    """Start a verb so many times at once, and return the seconds of those that did."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("BRIM_")}
    environment["PYTHONPATH"] = str(repository())
    begun: dict[Path, tuple[float, subprocess.Popen[bytes]]] = {}
    for number in range(count):
        place = folder / f"{verb}-{number}"
        place.mkdir()
        process = subprocess.Popen(
            [*BRIM, verb, *VERBS[verb]],
            cwd=place,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=(place / "said").open("wb"),
        )
        begun[place] = time.monotonic(), process
    took: dict[Path, float] = {}
    end = time.monotonic() + DEADLINE
    while len(took) < count and time.monotonic() < end:
        time.sleep(0.1)
        for place, (since, process) in begun.items():
            if place not in took and has_started(verb, place, process):
                took[place] = time.monotonic() - since
    for place, (_, process) in begun.items():
        if place not in took:
            print(f"{verb}: {(place / 'said').read_text()[-500:]}")
        process.send_signal(signal.SIGTERM)
    for place, (_, process) in begun.items():
        process.wait(DEADLINE)
        if verb == "up":
            down = [*BRIM, "down", "--state", "state"]
            subprocess.run(down, cwd=place, env=environment, check=False, capture_output=True)
    return list(took.values())


def has_started(verb: str, place: Path, process: subprocess.Popen[bytes]) -> bool:
    """Whether a scheduler is up, or a run has made its first step."""
    if verb == "up":
        return process.poll() == 0
    return any(steps.stat().st_size for steps in place.glob("runs/*/steps.jsonl"))


def tell(report: Report, found: dict[str, Sequence[float]], *, count: int, beside: int) -> None:
    rows = [
        (f"`brim {verb}`", f"{len(took)} of {count}", seconds(took)) for verb, took in found.items()
    ]
    report.add(
        f"All {count} at once, beside {beside} busy processes. Seconds, median (minimum–maximum).\n\n"
        + table(["verb", "started", "seconds"], rows)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, epilog="It takes about 9 minutes.")
    parser.add_argument("--quick", action="store_true", help="a smoke run: no report is written")
    quick: bool = parser.parse_args().quick
    count, beside = (2, 4) if quick else (20, 40)
    report = Report(HERE, "Starts beside 40 busy processes", seed=0)
    found: dict[str, Sequence[float]] = {}
    with tempfile.TemporaryDirectory(prefix="brim-benchmark-") as folder:
        for verb in VERBS:
            with busy(beside):
                found[verb] = report.attempt(starts, verb, count, Path(folder))
            report.say(f"brim {verb}: {len(found[verb])} of {count}")
    tell(report, found, count=count, beside=beside)
    if not quick:
        report.write(found)


if __name__ == "__main__":
    main()
