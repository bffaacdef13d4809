"""The cost in AUC of rows of embeddings that change some steps late (`brim train --delay K`)."""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

from benchmarks.harness.report import Report, spread, table
from benchmarks.quality.one_table import Result, brim

BENCHMARK = Path(__file__).parent
DELAYS, BATCHES = (0, 1, 2, 4), (512, 4096)
Results = dict[int, dict[int, list[Result]]]  # by batch and delay, of each seed


def measure(path: str, batch: int, delay: int, seed: int, epochs: int, workers: int) -> Result:
    words = ("--global-batch-size", str(batch), "--delay", str(delay), "--workers", str(workers))
    return brim(("--set", f"path={path}"), seed, epochs, *words)


def tell(report: Report, results: Results, epochs: int) -> None:
    for epoch in range(epochs):
        lines = [
            [
                f"{batch:,}",
                *(
                    spread([seed["auc"][epoch] for seed in seeds], digits=4)
                    for seeds in delays.values()
                ),
            ]
            for batch, delays in results.items()
        ]
        head = ["batch", *(f"{delay} steps late" for delay in next(iter(results.values())))]
        report.add(
            f"## Test AUC after epoch {epoch + 1}: median (lowest–highest) of the "
            f"seeds\n\n{table(head, lines)}"
        )


def plot(results: Results) -> Any:
    """AUC after the first epoch by delay: each seed, and the median."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.6, 3.8))
    axis = figure.subplots()
    for (batch, delays), color in zip(results.items(), ("tab:blue", "tab:orange"), strict=False):
        first = {delay: [seed["auc"][0] for seed in seeds] for delay, seeds in delays.items()}
        for delay, found in first.items():
            axis.plot([delay] * len(found), found, "o", markersize=4, color=color, alpha=0.5)
        axis.plot(
            list(first),
            [statistics.median(found) for found in first.values()],
            color=color,
            label=f"batch {batch}",
        )
    axis.set(xlabel="steps late", ylabel="test AUC after epoch 1", xticks=DELAYS)
    axis.legend()
    figure.tight_layout()
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--path", required=True, help="Criteo's dac_sample, tab separated, without a header"
    )
    parser.add_argument("--epochs", type=int, default=2, help="epochs; default: 2")
    parser.add_argument("--quick", action="store_true", help="one seed and two delays, no report")
    arguments = parser.parse_args()
    delays, seeds = ((0, 1), (1,)) if arguments.quick else (DELAYS, (1, 2, 3))
    report = Report(BENCHMARK, "Quality under a delay of rows", seed=1)
    results: Results = {}
    is_same = True
    for batch in BATCHES:
        for delay in delays:
            report.say(f"batch {batch}, {delay} steps late")
            common = (arguments.path, batch, delay)
            found = [report.attempt(measure, *common, seed, arguments.epochs, 2) for seed in seeds]
            undelayed = report.attempt(measure, *common, seeds[0], arguments.epochs, 1)
            is_same &= undelayed["digest"] == found[0]["digest"]
            results.setdefault(batch, {})[delay] = found
    tell(report, results, arguments.epochs)
    report.add(
        "One worker has the bits of two, for each batch and delay: "
        f"{'yes' if is_same else '**no**'}."
    )
    if not arguments.quick:
        report.write({"results": results, "same_bits": is_same}, plot(results), name="delay")
    if not is_same:
        sys.exit("the bits differ between numbers of workers")


if __name__ == "__main__":
    main()
