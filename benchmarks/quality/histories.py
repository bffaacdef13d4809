"""Test AUC and speed of DIN and DCN-V2 with histories, by `brim train` beside a plain torch loop."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from benchmarks.harness.report import Report, ratio, spread, table
from benchmarks.quality.run import BENCHMARK, brim, plain, times

EXAMPLE = "05-parameter-servers/din.py"
MODELS = ("din", "dcn_v2")
MARGIN = 0.005  # of AUC, about what seeds differ by


def measure(path: str, model: str, seed: int) -> dict[str, dict[str, Any]]:
    """Return the result of each side, run in turn."""
    common = (EXAMPLE, path, model, seed)
    return {
        "plain torch": plain(*common),
        "brim, 1 worker": brim(*common, "--workers", "1"),
        "brim, 4 workers": brim(*common, "--workers", "4"),
        "brim, 1, --capture": brim(*common, "--workers", "1", "--capture"),
        "brim, 1, --no-exact": brim(*common, "--workers", "1", "--no-exact"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--path", required=True, help="what histories.py of the example writes")
    parser.add_argument("--quick", action="store_true", help="one seed, no report")
    arguments = parser.parse_args()
    seeds = (1,) if arguments.quick else (1, 2, 3)
    title = "Models of histories on MovieLens, beside a plain torch loop"
    report = Report(BENCHMARK, title, seed=1)
    quality, speed, data, failed = [], [], {}, False
    for model in MODELS:
        results: dict[str, list[dict[str, Any]]] = {}
        for seed in seeds:
            report.say(f"{model}, seed {seed}")
            for side, result in measure(arguments.path, model, seed).items():
                results.setdefault(side, []).append(result)
        torch_loop, lone_run, four, captured, inexact = results.values()
        digests = [[run["digest"] for run in side] for side in (lone_run, four, captured)]
        is_same = digests[0] == digests[1] == digests[2]
        gaps = [abs(a["auc"] - b["auc"]) for a, b in zip(torch_loop, lone_run, strict=True)]
        failed |= not is_same or sum(gaps) / len(gaps) > MARGIN
        aucs = [spread([result["auc"] for result in side], digits=4) for side in results.values()]
        quality.append([model, *aucs, is_same])
        speed.append(
            [
                model,
                *(ratio(times(torch_loop), times(side)) for side in (lone_run, captured, inexact)),
            ]
        )
        data[model] = results
    report.add("## Test AUC after one epoch, median (lowest to highest) of the seeds\n")
    report.add(table(["model", *results, "1 = 4 = captured, bit for bit"], quality))
    report.add("## Speed of one worker against the plain loop (its time over ours, medians)\n")
    report.add(table(["model", "exact", "exact, --capture", "--no-exact"], speed))
    if not arguments.quick:
        report.write({"results": data}, name="histories")
    if failed:
        sys.exit("the bits differ, or the AUC is not that of the plain loop")


if __name__ == "__main__":
    main()
