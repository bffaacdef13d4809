"""Test AUC of click models on Frappe beside BARS, on its split and with its settings."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

from benchmarks.harness.report import Report, spread, table
from benchmarks.quality.frappe_loop import MODELS
from benchmarks.quality.run import BENCHMARK
from brim_lab.driver import Driver

EPOCHS = 60  # at most; validation ends a training before
COMPARED = 2  # epochs of the runs whose bits are compared
MARGIN = 0.002  # of AUC, about what the seeds of BARS differ by
_KEPT = ("metrics", "steps", "weights_sha256", "samples_per_second")  # of a summary
# Test AUC by seeds 2021, 190034, 992817, 27011 and 948432; of FinalMLP there is one.
# github.com/reczoo/BARS, ranking/ctr/MODEL/MODEL_frappe_x1/results.csv, as of 2023.
PUBLISHED = {
    "wide_deep": (0.984124, 0.983167, 0.981936, 0.982485, 0.983655),
    "deepfm": (0.984243, 0.983888, 0.983816, 0.983981, 0.983806),
    "xdeepfm": (0.984507, 0.984446, 0.983468, 0.984208, 0.984059),
    "dcn_v2": (0.984478, 0.984184, 0.983331, 0.983632, 0.983495),
    "final_mlp": (0.986072,),
}


def train(
    run: Path, split: Path, model: str, seed: int, epochs: int, workers: int
) -> dict[str, Any]:
    """Return the summary of a training, which is made once for each folder of a run."""
    summary = run.with_suffix(".json")
    if not summary.exists():
        command = [sys.executable, str(BENCHMARK / "frappe_loop.py")]
        command += [str(split), model, str(seed), str(epochs)]
        words = ["run", "--json", "--run-dir", str(run), "--workers", str(workers), "--"]
        summary.write_text(Driver().call(*words, *command, timeout=3600).stdout)
    found: dict[str, Any] = json.loads(summary.read_text())
    return {name: found[name] for name in _KEPT}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--split", type=Path, required=True, help="folder of frappe_rows.py")
    parser.add_argument("--runs", type=Path, required=True, help="folder of runs; ended ones count")
    parser.add_argument("--seeds", type=int, default=3, help="seeds of each model [default: 3]")
    arguments = parser.parse_args()
    report = Report(BENCHMARK, "Click models on Frappe, beside BARS", seed=1)
    results: dict[str, list[dict[str, Any]]] = {model: [] for model in MODELS}
    is_same = {}
    for seed in range(1, arguments.seeds + 1):
        for model in MODELS:
            report.say(f"{model}, seed {seed}")
            run = arguments.runs / f"{model}-{seed}"
            results[model].append(train(run, arguments.split, model, seed, EPOCHS, 1))
    for model in MODELS:
        report.say(f"{model}, {COMPARED} epochs with one and with four workers")
        digests = {
            train(
                arguments.runs / f"{model}-on-{workers}",
                arguments.split,
                model,
                1,
                COMPARED,
                workers,
            )["weights_sha256"]
            for workers in (1, 4)
        }
        is_same[model] = len(digests) == 1
    rows, failed = [], not all(is_same.values())
    for model, summaries in results.items():
        found = [summary["metrics"]["best_test_auc"] for summary in summaries]
        published = PUBLISHED[model]
        failed |= not (
            min(published) - MARGIN <= statistics.median(found) <= max(published) + MARGIN
        )
        rows.append([model, spread(found, digits=4), spread(published, digits=4), is_same[model]])
    head = ["model", "brim, 1 worker", "BARS", f"1 = 4 workers, {COMPARED} epochs, bit for bit"]
    report.add("## Test AUC at the best validation AUC, median (lowest to highest) of the seeds\n")
    report.add(table(head, rows))
    report.write({"results": results, "published": PUBLISHED}, name="frappe")
    if failed:
        sys.exit("an AUC is outside the spread of BARS, or the bits differ")


if __name__ == "__main__":
    main()
