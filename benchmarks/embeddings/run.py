"""The cost of a step with a large embedding, beside torch, fbgemm and a bare copy of the rows: see
README.md.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.embeddings import clicks
from benchmarks.embeddings.peers import BATCH, ManyTables, Sparse, copy_of_rows, plain
from benchmarks.harness.brim_run import repository
from benchmarks.harness.report import Report, table
from benchmarks.harness.turns import Program, Run, Step, Turn, await_all, by_turns

BENCHMARK = Path(__file__).parent
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


class Sides(dict[str, list[Turn]]):
    """The turns of each side."""

    def median(self, side: str) -> float:
        """Milliseconds of a step."""
        return 1000 * statistics.median(turn.seconds for turn in self[side])

    def cpu(self, side: str) -> float:
        """Milliseconds of CPU time for a step, over all processes."""
        return 1000 * statistics.median(turn.cpu for turn in self[side])

    def speed(self, side: str, peer: str) -> float:
        """How many times as fast a side is, round by round: disturbances of a round hit both."""
        turns = zip(self[peer], self[side], strict=True)
        return statistics.median(
            peer_turn.seconds / own_turn.seconds for peer_turn, own_turn in turns
        )

    def phase(self, side: str, phase: str) -> float:
        """Milliseconds of a step's phase, mean over the workers."""
        return 1000 * statistics.median(turn.phases[phase] for turn in self[side])

    @property
    def recorded(self) -> list[str]:
        """Sides whose phases are known."""
        return [name for name, turns in self.items() if turns[0].phases]


def _words(rows: int, workers: int, *words: str) -> list[str]:
    return [
        str(BENCHMARK / "clicks.py"),
        *("--set", f"rows={rows}", "--global-batch-size", str(BATCH), "--epochs", "10000"),
        *("--workers", str(workers), "--spares", "0", "--checkpoint-every", "1000000", *words),
    ]


def _loops(rows: int) -> dict[str, Step]:
    loops = {FLOOR: copy_of_rows(rows), SPARSE: plain(rows, Sparse)}
    if rows <= DENSE_LIMIT:
        loops |= {DENSE: plain(rows, clicks.Clicks), MANY: plain(rows, ManyTables)}
    return loops


def _runs(rows: int) -> dict[str, list[str]]:
    """Return the arguments of `brim train`, by side."""
    if rows > MANY_LIMIT:
        runs_wanted = {brim(workers): _words(rows, workers) for workers in WORKERS[:2]}
    else:
        runs_wanted = {brim(workers): _words(rows, workers) for workers in WORKERS}
        runs_wanted |= {
            brim(workers, exact=False): _words(rows, workers, "--no-exact") for workers in WORKERS
        }
    return runs_wanted if rows == TABLES[0] else {REFERENCE: _words(TABLES[0], 1), **runs_wanted}


def measure(rows: int, rounds: int, seconds: float, fbgemm: str) -> Sides:
    """Return the measurements of all sides.

    Args:
        fbgemm: a Python that has fbgemm-gpu-cpu; empty where there is none.
    """
    loops, current = _loops(rows), repository()
    with contextlib.ExitStack() as stack:
        programs: dict[str, Program] = {}

        def start(name: str, program: Program) -> None:
            programs[name] = program
            stack.callback(program.end)
            await_all([program])

        def folder() -> Path:
            return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="brim-benchmark-")))

        if fbgemm:
            run_folder = folder()
            command = [
                fbgemm,
                "-m",
                "benchmarks.embeddings.fbgemm",
                str(rows),
                str(run_folder / "run" / "steps.jsonl"),
            ]
            start(FBGEMM, Program(run_folder, command, current))
        for name, words in _runs(rows).items():
            start(name, Run(folder(), words, current))
        return Sides(by_turns(loops, programs, rounds=rounds, seconds=seconds))


def tell(rows: int, sides: Sides, report: Report) -> None:
    first, lines = brim(1), []
    for name in sides:
        one_part = f"{name}, --no-exact"
        peers_of_side = [
            f"{sides.speed(name, peer):.2f}" if peer in sides else ""
            for peer in (SPARSE, first, one_part)
        ]
        lines.append([name, f"{sides.median(name):.1f}", f"{sides.cpu(name):.1f}", *peers_of_side])
    head = [
        "side",
        "ms a step",
        "CPU ms a step",
        *(f"speed, {peer} = 1" for peer in (SPARSE, first, "--no-exact")),
    ]
    report.add(f"## {rows:,} rows\n\n{table(head, lines)}")
    if FBGEMM not in sides:
        report.add("fbgemm was not measured: no Python that has it was named.")
    lines = [
        [name, *(f"{sides.phase(name, phase):.1f}" for phase in PHASES)] for name in sides.recorded
    ]
    report.add(
        "### Where a step's milliseconds go, mean over the "
        f"workers\n\n{table(['run', *PHASES], lines)}"
    )


def _judged(results: dict[int, Sides]) -> list[list[str]]:
    """Return the aims, and the values found."""
    smallest = results[TABLES[0]]
    torchs = [name for name in (SPARSE, DENSE, MANY) if name in smallest]
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
            if REFERENCE in sides
        ),
    ]
    return [
        [aim_name, f"{found_text:.2f}", f"{aim:.2f}", "yes" if found_text >= aim else "**no**"]
        for aim_name, found_text, aim in rows
    ]


def plot(results: dict[int, Sides]) -> Any:
    """Steps by rows, and the phases of a step at the fewest rows."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.6, 4.2))
    by_rows, by_phase = figure.subplots(1, 2)
    for name in (FLOOR, MANY, DENSE, SPARSE, FBGEMM, *map(brim, WORKERS)):
        medians = {rows: sides.median(name) for rows, sides in results.items() if name in sides}
        style = "-" if name.startswith("brim") else ":" if name == FLOOR else "--"
        by_rows.plot(list(medians), list(medians.values()), marker="o", linestyle=style, label=name)
    by_rows.set(
        xscale="log",
        yscale="log",
        xlabel="rows of the table",
        ylabel="ms a step, 4,096 samples of 26 ids",
    )
    by_rows.legend(fontsize=7)
    sides = results[TABLES[0]]
    bottom = dict.fromkeys(sides.recorded, 0.0)
    for phase in PHASES:
        height = [sides.phase(name, phase) for name in bottom]
        by_phase.barh(list(bottom), height, left=list(bottom.values()), label=phase)
        bottom = {
            name: start + addition
            for (name, start), addition in zip(bottom.items(), height, strict=True)
        }
    by_phase.axvline(sides.median(FLOOR), color="black", linestyle=":", label=FLOOR)
    by_phase.set(xlabel=f"ms of a step, {TABLES[0]:,} rows, mean over the workers")
    by_phase.legend(
        fontsize=7,
        ncol=3,
        loc="lower center",
        bbox_to_anchor=(0.5, 1.0),
        frameon=False,
        handlelength=1,
    )
    figure.tight_layout()
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="turns of every side")
    parser.add_argument("--seconds", type=float, default=1.5, help="that a turn counts")
    parser.add_argument(
        "--rows", type=int, action="append", help=f"of further tables, beside {TABLES}"
    )
    parser.add_argument(
        "--fbgemm",
        default="",
        help="a Python that has fbgemm-gpu-cpu 1.8.0; without, it is left out",
    )
    parser.add_argument(
        "--quick", action="store_true", help="a smoke run: one table, two rounds, no report"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    report, results = Report(BENCHMARK, "A step with a large embedding", seed=0), {}
    for rows in TABLES[:1] if arguments.quick else sorted({*TABLES, *(arguments.rows or ())}):
        report.say(f"{rows:,} rows")
        rounds = 2 if arguments.quick else arguments.rounds
        results[rows] = report.attempt(measure, rows, rounds, arguments.seconds, arguments.fbgemm)
        tell(rows, results[rows], report)
    report.add(f"## Aims\n\n{table(['speed', 'found', 'aim', 'met'], _judged(results))}")
    if not arguments.quick:
        data = {
            str(rows): {name: [turn._asdict() for turn in turns] for name, turns in sides.items()}
            for rows, sides in results.items()
        }
        report.write({"results": data}, plot(results))


if __name__ == "__main__":
    main()
