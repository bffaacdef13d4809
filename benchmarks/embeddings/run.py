"""What a step with a large embedding costs, by rows and densely, beside plain torch: see README.md."""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.embeddings import clicks
from benchmarks.harness.brim_run import repository
from benchmarks.harness.report import Report, table
from benchmarks.harness.turns import Run, Step, await_all, by_turns

HERE = Path(__file__).parent
BATCH = 4096
TABLES = (20_000, 200_000, 1_000_000, 3_000_000)
DENSE_TORCH, SPARSE_TORCH = "torch, dense", "torch, sparse=True"
DENSE_LIMIT = 1_000_000  # rows above which the dense way is not measured on two workers: too little memory
Sides = dict[str, list[float]]


def by_rows(workers: int, parts: int) -> str:
    return f"brim by rows, {workers} worker{'s' * (workers > 1)}, M = {parts}"


def densely(workers: int) -> str:
    return f"brim, dense, {workers} worker{'s' * (workers > 1)}, M = 8"


class Sparse(clicks.Clicks):
    """The same network as torch offers it for large tables: `nn.Embedding(sparse=True)`."""

    def __init__(self, rows: int) -> None:
        super().__init__(rows)
        self.inner.embedding = nn.Embedding(rows, clicks.DIM, sparse=True)
        self.inner.wide.weight = nn.Embedding(rows, 1, sparse=True)


def _plain(rows: int, kind: type[clicks.Clicks]) -> Step:
    """A loop as anyone writes it."""
    torch.manual_seed(0)
    network, ids = kind(rows), clicks.ids_of(rows)
    target = (ids.sum(1) % 4 == 0).float()
    optimizer = torch.optim.Adagrad(network.parameters(), lr=0.02)
    at = 0

    def step() -> None:
        nonlocal at
        optimizer.zero_grad()
        batch = slice(at, at + BATCH)
        functional.binary_cross_entropy_with_logits(network(ids[batch]), target[batch]).backward()
        optimizer.step()
        at = (at + BATCH) % (len(ids) - BATCH)

    return step


def _words(rows: int, workers: int, *words: str) -> list[str]:
    return [
        str(HERE / "clicks.py"),
        *("--set", f"rows={rows}", "--global-batch-size", str(BATCH), "--epochs", "10000"),
        *("--workers", str(workers), "--spares", "0", "--checkpoint-every", "1000000", *words),
    ]


def measure(rows: int, *, rounds: int, seconds: float) -> Sides:
    """Return the median step of each side in each round, in seconds."""
    loops = {SPARSE_TORCH: _plain(rows, Sparse), DENSE_TORCH: _plain(rows, clicks.Clicks)}
    wanted = {
        by_rows(workers, parts): _words(rows, workers, "--micro-batches", str(parts))
        for workers, parts in ((1, 1), (1, 8), (2, 8))
    }
    wanted[densely(1)] = _words(rows, 1, "--embeddings", "dense")
    if rows <= DENSE_LIMIT:
        wanted[densely(2)] = _words(rows, 2, "--embeddings", "dense")
    with contextlib.ExitStack() as stack:
        runs = {}
        for name, words in wanted.items():
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="brim-benchmark-")))
            runs[name] = Run(folder, words, repository())
            stack.callback(runs[name].end)
            await_all([runs[name]])
        return by_turns(loops, runs, rounds=rounds, seconds=seconds)


def _ratio(peer: list[float], side: list[float]) -> float:
    """Round by round: what disturbs a round disturbs both."""
    return statistics.median(a / b for a, b in zip(peer, side, strict=True))


def tell(results: dict[int, Sides], report: Report) -> None:
    for rows, sides in results.items():
        lines = [
            [
                name,
                f"{1000 * statistics.median(steps):.1f}",
                f"{_ratio(sides[SPARSE_TORCH], steps):.2f}",
                f"{_ratio(sides[DENSE_TORCH], steps):.2f}",
            ]
            for name, steps in sides.items()
        ]
        head = ["side", "ms a step", f"speed, {SPARSE_TORCH} = 1", f"speed, {DENSE_TORCH} = 1"]
        report.add(f"## {rows:,} rows\n\n{table(head, lines)}")


def plot(results: dict[int, Sides]) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.2))
    axis = figure.subplots()
    for name in (
        DENSE_TORCH,
        SPARSE_TORCH,
        densely(1),
        densely(2),
        by_rows(1, 1),
        by_rows(1, 8),
        by_rows(2, 8),
    ):
        known = {rows: sides[name] for rows, sides in results.items() if name in sides}
        medians = [1000 * statistics.median(steps) for steps in known.values()]
        axis.plot(list(known), medians, marker="o", linestyle="-" if "brim" in name else "--", label=name)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("rows of the embedding")
    axis.set_ylabel("ms a step, 4,096 samples of 26 ids")
    axis.legend(fontsize=7)
    figure.tight_layout()
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="turns of every side")
    parser.add_argument("--seconds", type=float, default=1.5, help="that a turn counts")
    parser.add_argument("--quick", action="store_true", help="a smoke run: one table, two rounds, no report")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    report, results = Report(HERE, "A step with a large embedding", seed=0), {}
    for rows in TABLES[1:2] if arguments.quick else TABLES:
        report.say(f"{rows:,} rows")
        rounds = 2 if arguments.quick else arguments.rounds
        results[rows] = measure(rows, rounds=rounds, seconds=arguments.seconds)
    tell(results, report)
    if not arguments.quick:
        report.write({"results": {str(rows): sides for rows, sides in results.items()}}, plot(results))


if __name__ == "__main__":
    main()
