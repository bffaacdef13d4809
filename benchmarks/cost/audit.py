"""The cost of audits: a step in which micro-batches are computed twice, beside others of its run.

See README.md. All steps are of one run; which of them are audited follows from their numbers.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

from benchmarks.harness.brim_run import repository
from benchmarks.harness.report import Report, table
from brim.coordination.job.audits import AuditPlan

BENCHMARK = Path(__file__).parent
TRAINING_FILE = BENCHMARK.parent / "harness" / "training_file.py"
CASES = (("tiny", 64), ("wide_deep", 512), ("cnn", 512))
WORLDS = ((1, 8), (2, 8), (2, 2))  # workers and micro-batches; in the last, one for each worker
NEIGHBOURS = range(2, 12)  # steps on both sides that an audited one is compared with
AIM = 0.01  # of a step


def gaps(kind: str, batch: int, *, workers: int, parts: int, steps: int) -> dict[int, float]:
    """Train so many steps, and return the seconds of each."""
    with tempfile.TemporaryDirectory(prefix="brim-benchmark-") as folder:
        run = Path(folder) / "run"
        words = [
            *(sys.executable, "-m", "brim", "train", str(TRAINING_FILE), "--run-dir", str(run)),
            *("--set", f"kind={kind}", "--set", f"samples={batch * steps}", "--spares", "0"),
            *("--workers", str(workers), "--micro-batches", str(parts), "--epochs", "1"),
            *("--global-batch-size", str(batch), "--checkpoint-every", "1000000"),
        ]
        subprocess.run(words, check=True, cwd=repository(), capture_output=True, timeout=600)
        lines = (run / "steps.jsonl").read_text().splitlines()
    step_times = [(line["step"], line["at"]) for line in map(json.loads, lines)]
    return {step - 1: moment - previous for (_, previous), (step, moment) in pairwise(step_times)}


def cost_of(found: dict[int, float]) -> tuple[float, float, int]:
    """Return the median step, how much of it an audit adds, and how many were looked at."""
    plan = AuditPlan((range(1),), first=0)
    extra = []
    for step in found:
        if plan.covers(step) and step > max(NEIGHBOURS):
            neighbours = [
                found[neighbour]
                for distance in NEIGHBOURS
                for neighbour in (step - distance, step + distance)
                if neighbour in found
            ]
            extra.append(found[step] / statistics.median(neighbours) - 1)
    return statistics.median(found.values()), statistics.median(extra), len(extra)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1100)
    arguments = parser.parse_args()
    report = Report(BENCHMARK, "The cost of audits", seed=0)
    plan = AuditPlan((range(1),), first=0)
    audited = sum(plan.covers(256 + step) for step in range(2560)) / 2560
    rows, figures = [], {}
    for kind, batch in CASES:
        for workers, parts in WORLDS:
            report.say(f"{kind}, {batch}, {workers} workers")
            found = gaps(kind, batch, workers=workers, parts=parts, steps=arguments.steps)
            step, extra, count = cost_of(found)
            share = extra * audited
            figures[f"{kind} {batch} {workers} {parts}"] = [step, extra, share]
            rows.append(
                [
                    kind,
                    batch,
                    workers,
                    parts,
                    f"{1e3 * step:.2f}",
                    count,
                    f"{extra:.2f}",
                    f"{share:.2%}",
                ]
            )
    head = [
        "network",
        "batch",
        "workers",
        "micro-batches",
        "step, ms",
        "audits",
        "an audit adds, steps",
        "of all steps",
    ]
    report.add(table(head, rows))
    worst = max(share for _, _, share in figures.values())
    report.add(f"At most {worst:.2%} of a step; the aim is {AIM:.0%}.")
    report.write(figures, name="audit")


if __name__ == "__main__":
    main()
