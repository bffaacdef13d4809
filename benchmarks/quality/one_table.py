"""AUC of the click models over one table of hashed ids, by `brim train` on 1, 2 and 4 workers,
beside plain torch.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.report import Report, spread, table
from brim.storage.files import write_whole
from brim.telemetry.events import EpochEnded
from brim.telemetry.history import read_history
from brim_lab.driver import Driver

BENCHMARK = Path(__file__).parent
EXAMPLE = "05-parameter-servers/criteo.py"
FILE = BENCHMARK.parents[1] / "examples" / EXAMPLE
MODELS = ("wide_deep", "deepfm", "xdeepfm")
WORKERS = (1, 2, 4)
ADAGRAD, ADAM = "torch, Adagrad", "torch, Adam"
Result = dict[str, Any]  # "auc": after each epoch; of brim's runs also "digest"
Results = dict[str, list[dict[str, Result]]]  # by model, of each seed, by side
LIMIT = 1800.0  # seconds for a run


def brim_on(workers: int) -> str:
    return f"brim, {workers} worker{'s' * (workers > 1)}"


def plain(parameters: Sequence[str], seed: int, epochs: int, *words: str) -> Result:
    """A plain loop, whose gradients have all rows of the table."""
    command = [
        sys.executable,
        str(BENCHMARK / "plain.py"),
        EXAMPLE,
        "--seeds",
        str(seed),
        "--epochs",
        str(epochs),
    ]
    lines = _output([*command, *parameters, *words]).splitlines()
    return {"auc": [json.loads(line)["metrics"]["auc"] for line in lines]}


def brim(parameters: Sequence[str], seed: int, epochs: int, *words: str) -> Result:
    with tempfile.TemporaryDirectory(prefix="brim-quality-") as scratch:
        job = ["train", str(FILE), "--json", "--run-dir", f"{scratch}/run", "--seed", str(seed)]
        job += ["--epochs", str(epochs), "--spares", "0", *parameters, *words]
        digest = json.loads(Driver().call(*job, timeout=LIMIT).stdout)["weights_sha256"]
        events = read_history(Path(scratch, "run")).events
    return {
        "auc": [event.metrics["auc"] for event in events if isinstance(event, EpochEnded)],
        "digest": digest,
    }


def _output(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return done.stdout


def measure(path: str, rows: int, model: str, seed: int, epochs: int) -> dict[str, Result]:
    """Return the result of each side."""
    parameters = [
        word
        for name in (f"path={path}", f"model={model}", f"rows={rows}")
        for word in ("--set", name)
    ]
    common = parameters, seed, epochs
    sides = {ADAGRAD: plain(*common), ADAM: plain(*common, "--adam")}
    return sides | {
        brim_on(workers): brim(*common, "--workers", str(workers)) for workers in WORKERS
    }


def is_same(sides: dict[str, Result]) -> bool:
    """Whether the number of workers changed no bit."""
    return len({sides[brim_on(workers)]["digest"] for workers in WORKERS}) == 1


def tell(report: Report, results: Results, epochs: int) -> None:
    for epoch in range(epochs):
        lines = [
            [
                model,
                *(
                    spread([sides[name]["auc"][epoch] for sides in seeds], digits=4)
                    for name in seeds[0]
                ),
                f"{sum(map(is_same, seeds))} of {len(seeds)}",
            ]
            for model, seeds in results.items()
        ]
        head = ["model", *next(iter(results.values()))[0], "equal bits"]
        report.add(
            f"## Test AUC after epoch {epoch + 1}: median (lowest–highest) of the "
            f"seeds\n\n{table(head, lines)}"
        )


def plot(results: Results, epochs: int) -> Any:
    """A panel for each model: each seed's AUC by epoch, and their median."""
    from matplotlib.figure import Figure

    figure, panels = (
        Figure(figsize=(9.0, 3.4)),
        {ADAM: "gray", ADAGRAD: "tab:orange", brim_on(4): "tab:blue"},
    )
    axes = figure.subplots(1, len(results), sharey=True, squeeze=False)[0]
    for axis, (model, seeds) in zip(axes, results.items(), strict=True):
        for place, (name, color) in enumerate(panels.items()):
            positions = [epoch + 0.08 * (place - 1) for epoch in range(1, epochs + 1)]
            for sides in seeds:
                axis.plot(positions, sides[name]["auc"], "o", markersize=4, color=color, alpha=0.5)
            medians = [
                statistics.median(values)
                for values in zip(*(seed[name]["auc"] for seed in seeds), strict=True)
            ]
            axis.plot(positions, medians, "-", color=color, label=name)
        axis.set(title=model, xlabel="epoch", xticks=range(1, epochs + 1))
    axes[0].set_ylabel("test AUC of the seeds, and their median")
    axes[0].legend(fontsize=7)
    figure.tight_layout()
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--path", required=True, help="Criteo's dac_sample, tab separated, without a header"
    )
    parser.add_argument(
        "--rows", type=int, default=200_000, help="rows of the table; default: 200,000"
    )
    parser.add_argument("--epochs", type=int, default=2, help="epochs; default: 2")
    parser.add_argument(
        "--keep",
        type=Path,
        help="a file that keeps what each seed reached; another call goes on from it",
    )
    parser.add_argument(
        "--model", action="append", choices=MODELS, help="which model; default: all"
    )
    parser.add_argument("--seeds", type=int, default=3, help="how many seeds, from 1; default: 3")
    parser.add_argument("--quick", action="store_true", help="Wide & Deep with one seed, no report")
    arguments = parser.parse_args()
    models, seeds = arguments.model or MODELS, tuple(range(1, arguments.seeds + 1))
    if arguments.quick:
        models, seeds = MODELS[:1], (1,)
    report = Report(
        BENCHMARK,
        f"Quality over one table of {arguments.rows:,} hashed rows, beside plain torch",
        seed=1,
    )
    kept_path = arguments.keep
    known_results: Results = (
        json.loads(kept_path.read_text()) if kept_path and kept_path.exists() else {}
    )
    results = {model: known_results.get(model, []) for model in models}
    if any(results.values()):
        earlier_text = ", ".join(
            f"{model} (seeds 1 to {len(seeds_of_model)})"
            for model, seeds_of_model in results.items()
            if seeds_of_model
        )
        report.add(f"An earlier call measured {earlier_text}.")
    for model in models:
        for seed in seeds[len(results[model]) :]:
            report.say(f"{model}, seed {seed}")
            sides = report.attempt(
                measure, arguments.path, arguments.rows, model, seed, arguments.epochs
            )
            results[model].append(sides)
            if kept_path:
                write_whole(kept_path, json.dumps({**known_results, **results}).encode())
    tell(report, results, arguments.epochs)
    if not arguments.quick:
        report.write({"results": results}, plot(results, arguments.epochs), name="one-table")
    if not all(is_same(sides) for seeds in results.values() for sides in seeds):
        sys.exit("the bits differ between numbers of workers")


if __name__ == "__main__":
    main()
