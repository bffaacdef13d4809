"""Test AUC and speed of `brim train` beside a plain torch loop, on the same rows."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.harness.report import Report, ratio, spread, table
from brim_lab.driver import Driver

BENCHMARK = Path(__file__).parent
EXAMPLES = BENCHMARK.parents[1] / "examples"
CRITEO = "01-first-job/criteo.py"
MODELS = ("wide_deep", "deepfm", "xdeepfm", "dcn_v2", "final_mlp")
SPREAD = (0.766, 0.772)  # of plain torch, DeepCTR-Torch, TorchRec and torch-rechub on the same rows


def plain(example: str, path: str, model: str, seed: int) -> dict[str, Any]:
    command = [sys.executable, str(BENCHMARK / "plain.py"), example, "--seeds", str(seed)]
    command += ["--set", f"path={path}", "--set", f"model={model}"]
    result: dict[str, Any] = json.loads(_output(command))
    return {"auc": result["metrics"]["auc"], "speed": result["samples_per_second"]}


def brim(example: str, path: str, model: str, seed: int, *options: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="brim-quality-") as scratch:
        words = ["train", str(EXAMPLES / example), "--json", "--seed", str(seed)]
        words += [
            "--run-dir",
            f"{scratch}/run",
            "--set",
            f"path={path}",
            "--set",
            f"model={model}",
            *options,
        ]
        summary = json.loads(Driver().call(*words, timeout=300).stdout)
        steps = [
            json.loads(line)
            for line in Path(scratch, "run", "steps.jsonl").read_text().splitlines()
        ]
    first, last = steps[0], steps[-1]
    samples = sum(step["samples"] for step in steps[1:])
    speed = samples / (last["at"] - first["at"])
    return {"auc": summary["metrics"]["auc"], "speed": speed, "digest": summary["weights_sha256"]}


def _output(command: list[str]) -> str:
    return subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, timeout=300
    ).stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--path", required=True, help="Criteo's dac_sample, tab separated, without a header"
    )
    parser.add_argument("--quick", action="store_true", help="one seed, no report")
    arguments = parser.parse_args()
    seeds = (1,) if arguments.quick else (1, 2, 3)
    report = Report(BENCHMARK, "Quality on Criteo's sample, beside a plain torch loop", seed=1)
    rows, data, failed = [], {}, False
    for model in MODELS:
        results: dict[str, list[dict[str, Any]]] = {
            "plain": [],
            "one": [],
            "four": [],
            "inexact": [],
        }
        for seed in seeds:
            report.say(f"{model}, seed {seed}")
            common = (CRITEO, arguments.path, model, seed)
            results["plain"].append(plain(*common))
            results["one"].append(brim(*common, "--workers", "1"))
            results["four"].append(brim(*common, "--workers", "4"))
            results["inexact"].append(brim(*common, "--workers", "1", "--no-exact"))
        same_weights = [
            a["digest"] == b["digest"] for a, b in zip(results["one"], results["four"], strict=True)
        ]
        low, high = (end(result["auc"] for result in results["plain"]) for end in (min, max))
        is_inside = all(
            min(low, SPREAD[0]) <= result["auc"] <= max(high, SPREAD[1])
            for result in results["one"]
        )
        failed |= not (all(same_weights) and is_inside)
        rows.append(
            [
                model,
                *(_auc(results[name]) for name in ("plain", "one", "four", "inexact")),
                all(same_weights),
            ]
        )
        data[model] = results
    report.add("## Test AUC after one epoch, median (lowest to highest) of the seeds\n")
    head = [
        "model",
        "plain torch",
        "brim, 1 worker",
        "brim, 4 workers",
        "brim, 1, --no-exact",
        "1 = 4, bit for bit",
    ]
    report.add(table(head, rows))
    report.add("## Speed of one worker against the plain loop (its time over ours, medians)\n")
    speeds = [
        [
            model,
            *(ratio(times(results["plain"]), times(results[name])) for name in ("one", "inexact")),
        ]
        for model, results in data.items()
    ]
    report.add(table(["model", "exact", "--no-exact"], speeds))
    if not arguments.quick:
        report.write({"results": data})
    if failed:
        sys.exit("an AUC is outside the spread of the plain implementations, or the bits differ")


def _auc(results: list[dict[str, Any]]) -> str:
    return spread([result["auc"] for result in results], digits=4)


def times(results: list[dict[str, Any]]) -> list[float]:
    """Return the seconds that a sample takes."""
    return [1 / result["speed"] for result in results]


if __name__ == "__main__":
    main()
