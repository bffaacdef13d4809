"""What a step with a large embedding costs, beside torch, fbgemm and a bare copy of the rows: see README.md."""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.embeddings import clicks
from benchmarks.embeddings.peers import BATCH, ManyTables, Sparse, copy_of_rows, plain
from benchmarks.harness.brim_run import repository
from benchmarks.harness.report import Report, table
from benchmarks.harness.turns import Program, Run, Step, await_all, by_turns

HERE = Path(__file__).parent
TABLES = (200_000, 1_000_000, 10_000_000)
WORKERS = (1, 2, 4)
SPARSE, DENSE, MANY, FBGEMM, FLOOR = (
    "torch, sparse=True",
    "torch, dense",
    "torch, a dense table for each field",
    "fbgemm, fused Adagrad",
    "one copy of each row",
)
DENSE_LIMIT = 3_000_000  # rows above which what walks over all of them is not measured
MANY_LIMIT = 3_000_000  # rows above which most sides would not fit into memory beside each other
PHASES = ("data", "compute", "reduce", "wait", "apply")


def brim(workers: int, *, exact: bool = True) -> str:
    return f"brim, {workers} worker{'s' * (workers > 1)}" + ("" if exact else ", --no-exact")


REFERENCE = f"{brim(1)}, {TABLES[0]:,} rows"


@dataclass(slots=True, kw_only=True)
class Sides:
    """Of each side, and each of its turns: the median step in seconds, and its phases where they are known."""

    steps: dict[str, list[float]]
    phases: dict[str, list[dict[str, float]]] = field(default_factory=dict)

    def median(self, side: str) -> float:
        return statistics.median(self.steps[side])

    def speed(self, side: str, peer: str) -> float:
        """How many times as fast a side is, round by round: what disturbs a round disturbs both."""
        return statistics.median(a / b for a, b in zip(self.steps[peer], self.steps[side], strict=True))


def _words(rows: int, workers: int, *words: str) -> list[str]:
    return [
        str(HERE / "clicks.py"),
        *("--set", f"rows={rows}", "--global-batch-size", str(BATCH), "--epochs", "10000"),
        *("--workers", str(workers), "--spares", "0", "--checkpoint-every", "1000000", *words),
    ]


def _loops(rows: int) -> dict[str, Step]:
    loops = {FLOOR: copy_of_rows(rows), SPARSE: plain(rows, Sparse)}
    if rows <= DENSE_LIMIT:
        loops |= {DENSE: plain(rows, clicks.Clicks), MANY: plain(rows, ManyTables)}
    return loops


def _runs(rows: int) -> dict[str, list[str]]:
    """What `brim train` is told, by side."""
    if rows > MANY_LIMIT:
        wanted = {brim(workers): _words(rows, workers) for workers in WORKERS[:2]}
    else:
        wanted = {brim(workers): _words(rows, workers) for workers in WORKERS}
        wanted |= {brim(workers, exact=False): _words(rows, workers, "--no-exact") for workers in WORKERS}
    return wanted if rows == TABLES[0] else {REFERENCE: _words(TABLES[0], 1), **wanted}


def measure(rows: int, rounds: int, seconds: float, fbgemm: str) -> Sides:
    """Return what all sides did.

    Args:
        fbgemm: a Python that has fbgemm-gpu-cpu; empty where there is none.
    """
    loops, here = _loops(rows), repository()
    with contextlib.ExitStack() as stack:
        programs: dict[str, Program] = {}

        def start(name: str, program: Program) -> None:
            programs[name] = program
            stack.callback(program.end)
            await_all([program])

        def folder() -> Path:
            return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="brim-benchmark-")))

        if fbgemm:
            at = folder()
            command = [
                fbgemm,
                "-m",
                "benchmarks.embeddings.fbgemm",
                str(rows),
                str(at / "run" / "steps.jsonl"),
            ]
            start(FBGEMM, Program(at, command, here))
        for name, words in _runs(rows).items():
            start(name, Run(folder(), words, here))
        steps = by_turns(loops, programs, rounds=rounds, seconds=seconds)
    return Sides(steps=steps, phases={name: each.phases for name, each in programs.items() if each.phases[0]})


def tell(rows: int, sides: Sides, report: Report) -> None:
    first = brim(1)
    lines = []
    for name in sides.steps:
        exact = name.removesuffix(", --no-exact")
        against = [
            f"{sides.speed(name, peer):.2f}" if peer in sides.steps else "" for peer in (SPARSE, first)
        ]
        one_part = f"{exact}, --no-exact"
        share = f"{sides.speed(name, one_part):.2f}" if name == exact and one_part in sides.steps else ""
        lines.append([name, f"{1000 * sides.median(name):.1f}", *against, share])
    head = [
        "side",
        "ms a step",
        f"speed, {SPARSE} = 1",
        f"speed, {first} = 1",
        "speed, the same with --no-exact = 1",
    ]
    report.add(f"## {rows:,} rows\n\n{table(head, lines)}")
    if FBGEMM not in sides.steps:
        report.add("fbgemm was not measured: no Python that has it was named.")
    lines = [
        [name, *(f"{1000 * statistics.median(turn[phase] for turn in turns):.1f}" for phase in PHASES)]
        for name, turns in sides.phases.items()
    ]
    report.add(
        f"### Where a step's milliseconds go, mean over the workers\n\n{table(['run', *PHASES], lines)}"
    )


def _judged(results: dict[int, Sides]) -> list[list[str]]:
    """The aims, and what was found."""
    smallest = results[TABLES[0]]
    torchs = [name for name in (SPARSE, DENSE, MANY) if name in smallest.steps]
    fastest = min(torchs, key=smallest.median)
    rows = [
        (
            f"one worker, of {fastest}, the fastest of torch's, at {TABLES[0]:,} rows",
            smallest.speed(brim(1), fastest),
            1.0,
        ),
        (f"two workers, of one, at {TABLES[0]:,} rows", smallest.speed(brim(2), brim(1)), 1.8),
        *(
            (
                f"exact, of --no-exact, {count} workers",
                smallest.speed(brim(count), brim(count, exact=False)),
                0.9,
            )
            for count in WORKERS
        ),
        *(
            (f"speed at {rows:,} rows, of {TABLES[0]:,}", sides.speed(brim(1), REFERENCE), 1 / 1.5)
            for rows, sides in results.items()
            if REFERENCE in sides.steps
        ),
    ]
    return [[what, f"{got:.2f}", f"{aim:.2f}", "yes" if got >= aim else "**no**"] for what, got, aim in rows]


def plot(results: dict[int, Sides]) -> Any:
    """Steps by rows, and the phases of a step at the fewest rows."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.6, 4.2))
    by_rows, by_phase = figure.subplots(1, 2)
    for name in (FLOOR, MANY, DENSE, SPARSE, FBGEMM, *map(brim, WORKERS)):
        known = {rows: 1000 * sides.median(name) for rows, sides in results.items() if name in sides.steps}
        style = "-" if name.startswith("brim") else ":" if name == FLOOR else "--"
        by_rows.plot(list(known), list(known.values()), marker="o", linestyle=style, label=name)
    by_rows.set(
        xscale="log", yscale="log", xlabel="rows of the table", ylabel="ms a step, 4,096 samples of 26 ids"
    )
    by_rows.legend(fontsize=7)
    sides = results[TABLES[0]]
    bottom = dict.fromkeys(sides.phases, 0.0)
    for phase in PHASES:
        height = [1000 * statistics.median(turn[phase] for turn in turns) for turns in sides.phases.values()]
        by_phase.barh(list(bottom), height, left=list(bottom.values()), label=phase)
        bottom = {name: start + more for (name, start), more in zip(bottom.items(), height, strict=True)}
    by_phase.axvline(1000 * sides.median(FLOOR), color="black", linestyle=":", label=FLOOR)
    by_phase.set(xlabel=f"ms of a step, {TABLES[0]:,} rows, mean over the workers")
    by_phase.legend(fontsize=7)
    figure.tight_layout()
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="turns of every side")
    parser.add_argument("--seconds", type=float, default=1.5, help="that a turn counts")
    parser.add_argument("--rows", type=int, action="append", help=f"of further tables, beside {TABLES}")
    parser.add_argument(
        "--fbgemm", default="", help="a Python that has fbgemm-gpu-cpu 1.8.0; without, it is left out"
    )
    parser.add_argument("--quick", action="store_true", help="a smoke run: one table, two rounds, no report")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    report, results = Report(HERE, "A step with a large embedding", seed=0), {}
    for rows in TABLES[:1] if arguments.quick else sorted({*TABLES, *(arguments.rows or ())}):
        report.say(f"{rows:,} rows")
        rounds = 2 if arguments.quick else arguments.rounds
        results[rows] = report.attempt(measure, rows, rounds, arguments.seconds, arguments.fbgemm)
        tell(rows, results[rows], report)
    report.add(f"## Aims\n\n{table(['speed', 'found', 'aim', 'met'], _judged(results))}")
    if not arguments.quick:
        data = {str(rows): {"steps": sides.steps, "phases": sides.phases} for rows, sides in results.items()}
        report.write({"results": data}, plot(results))


if __name__ == "__main__":
    main()
