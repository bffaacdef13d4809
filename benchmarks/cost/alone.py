"""The cost of a step of one worker beside plain torch, before and after: see README.md.

The sides take turns: plain torch and torch alone making M passes a step ("kernels") in this
process, and one run of `brim train` for each of the others.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.harness import jobs
from benchmarks.harness.brim_run import repository
from benchmarks.harness.report import Report, table
from benchmarks.harness.turns import Run, Step, await_all, by_turns
from brim.data.batches import Tensors, fetch
from brim.data.feed import Feed, requests
from brim.domain.batch import Schedule
from brim.domain.order import EpochOrder
from brim.train.context import spec_of_a_loner
from brim.train.exchange.contribution import StepOutcome
from brim.train.job import Job
from brim.train.state.digests import root_of

BENCHMARK = Path(__file__).parent
TRAINING_FILE = BENCHMARK.parent / "harness" / "training_file.py"
SIZE = 1 << 20
CASES = (
    ("tiny", 64),
    ("wide_deep", 256),
    ("wide_deep", 512),
    ("wide_deep", 4096),
    ("cnn", 512),
)
PARTS = (8, 4, 2, 1)
PLAIN, INEXACT = "plain torch", "brim, inexact"
CAPTURED = "brim, exact, M = 8, captured"
AIMS = {
    ("wide_deep", 256): 0.5,
    ("wide_deep", 512): 0.75,
    ("wide_deep", 4096): 0.9,
}  # exact, of plain torch
CAPTURED_AIMS = {
    ("tiny", 64): 0.45,
    ("wide_deep", 256): 0.65,
    ("wide_deep", 512): 0.85,
    ("wide_deep", 4096): 1.0,
    ("cnn", 512): 0.8,
}
CHECKPOINT_EVERY = 50  # steps, for the cost of digests


def kernels(parts: int) -> str:
    return f"kernels alone, M = {parts}"


def exact(parts: int) -> str:
    return f"brim, exact, M = {parts}"


def before(side: str) -> str:
    return f"{side}, before"


@dataclass(slots=True, kw_only=True)
class Case:
    """One network and batch: the median step of each side in each round, in seconds, the processor
    time of its steps, and the cost of single things.
    """

    kind: str
    batch: int
    steps: dict[str, list[float]] = field(default_factory=dict)
    cpu: dict[str, list[float]] = field(default_factory=dict)
    costs: dict[str, float] = field(default_factory=dict)

    def median(self, side: str) -> float:
        return statistics.median(self.steps[side])

    def ratio(self, peer: str, side: str) -> float:
        """How many times as fast a side is, round by round: disturbances of a round hit both."""
        return _ratio(self.steps[peer], self.steps[side])

    def cpu_ratio(self, peer: str, side: str) -> float:
        """The same, of processor time over all processes of a side."""
        return _ratio(self.cpu[peer], self.cpu[side])

    def beyond(self, parts: int) -> float:
        """Seconds of brim, exact, beyond its kernels, for each micro-batch."""
        step_pairs = zip(self.steps[exact(parts)], self.steps[kernels(parts)], strict=True)
        return statistics.median(brim - torch_alone for brim, torch_alone in step_pairs) / parts


def _ratio(peer: Sequence[float], side: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(peer, side, strict=True) if b)


# Sides --------------------------------------------------------------------------------------------


def _plain(kind: str, batch: int, data: Any, *, parts: int) -> Step:
    """A loop as anyone writes it; with several parts, one that accumulates their gradients."""
    torch.manual_seed(0)
    network = jobs.model(kind)
    optimizer = jobs.optimizer("sgd", network)
    order = EpochOrder(seed=0, epoch=0, size=SIZE).samples(0, SIZE)
    position = 0

    def step() -> None:
        nonlocal position
        optimizer.zero_grad()
        for part in np.array_split(order[position : position + batch], parts):
            inputs, target = fetch(data, part)
            loss = jobs.loss(kind, network(inputs), target)
            (loss / parts if parts > 1 else loss).backward()
        optimizer.step()
        position = (position + batch) % (SIZE - batch)

    return step


def _words(case: Case, *words: str) -> list[str]:
    return [
        str(TRAINING_FILE),
        *("--set", f"kind={case.kind}", "--global-batch-size", str(case.batch), "--epochs", "1000"),
        *("--workers", "1", "--spares", "0", "--checkpoint-every", "1000000", *words),
    ]


@contextlib.contextmanager
def _runs(case: Case, former: Path | None) -> Iterator[dict[str, Run]]:
    """A run of `brim train` for each side, all waiting."""
    current = repository()
    runs_wanted = {INEXACT: (_words(case, "--no-exact"), current)}
    runs_wanted[CAPTURED] = (_words(case, "--capture"), current)
    for parts in PARTS:
        runs_wanted[exact(parts)] = (_words(case, "--micro-batches", str(parts)), current)
    if former is not None:
        runs_wanted[before(INEXACT)] = (_words(case, "--no-exact"), former)
        runs_wanted[before(exact(8))] = (_words(case), former)
        runs_wanted[before(CAPTURED)] = (_words(case, "--capture"), former)
    with contextlib.ExitStack() as stack:
        sides = {}
        for name, (words, checkout) in runs_wanted.items():
            folder = Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix="brim-benchmark-"))
            )
            sides[name] = Run(folder, words, checkout)
            stack.callback(sides[name].end)
        await_all(sides.values())
        yield sides


def measure(case: Case, former: Path | None, *, rounds: int, seconds: float) -> None:
    """Fill in the steps of all sides."""
    data = jobs.dataset(case.kind, SIZE)
    plain_programs = {PLAIN: _plain(case.kind, case.batch, data, parts=1)}
    plain_programs |= {
        kernels(parts): _plain(case.kind, case.batch, data, parts=parts) for parts in PARTS
    }
    with _runs(case, former) as sides:
        turns = by_turns(plain_programs, sides, rounds=rounds, seconds=seconds)
    for name, turns_of_side in turns.items():
        case.steps[name] = [turn.seconds for turn in turns_of_side]
        case.cpu[name] = [turn.cpu for turn in turns_of_side]


# Single things ------------------------------------------------------------------------------------


def _seconds(function: Callable[[], object], count: int) -> float:
    """Of processor time, for one call: the least of five, as others can only add to it."""
    times = []
    for _ in range(5):
        cpu_before = time.process_time()
        for _ in range(count):
            function()
        times.append((time.process_time() - cpu_before) / count)
    return min(times)


def measure_costs(case: Case) -> None:
    """Seconds for each step with 8 micro-batches: of a NaN check, of feeding beyond fetching, of
    comparing digests.
    """
    data, network = jobs.dataset(case.kind, SIZE), jobs.model(case.kind)
    job = Job(
        network,
        jobs.optimizer("sgd", network),
        spec=replace(spec_of_a_loner(), micro_batches=8),
        context=None,
    )
    for number, batch in enumerate(job.batches(data, global_batch_size=case.batch, epochs=1)):
        if number == 8 * 5:
            break
        job.step(jobs.loss(case.kind, network(batch.inputs), batch.target))
    outcome = StepOutcome(losses=(0.5,), used=(), stop=False, due=False)
    case.costs["NaN check"] = _seconds(lambda: job._loop.steps._is_to_be_applied(outcome), 1000)
    digests = _seconds(lambda: root_of(job.parts.state.digests()), 3)
    case.costs["digests"] = digests / CHECKPOINT_EVERY
    tensors_data = Tensors(
        torch.zeros(1 << 16, 1), torch.zeros(1 << 16)
    )  # of a kind whose reading draws nothing by chance
    feed = Feed(tensors_data, seed=0, global_batch_size=case.batch)
    schedule = Schedule(samples=len(tensors_data), global_batch_size=case.batch, epochs=10_000)
    all_requests = partial(requests, schedule, parts=8, micro_batches=range(8), after=0)
    reads = feed.read(all_requests())
    rows = itertools.cycle(
        [feed.indices(0, request.span) for request in itertools.islice(all_requests(), 64)]
    )
    beyond = _seconds(lambda: next(reads), 1000) - _seconds(
        lambda: fetch(tensors_data, next(rows)), 1000
    )
    case.costs["feed"] = 8 * beyond


# The report ---------------------------------------------------------------------------------------


def tell(cases: list[Case], report: Report, former: Path | None) -> None:
    for case in cases:
        rows = []
        for side in case.steps:
            row = [side, f"{1000 * case.median(side):.2f}", f"{case.ratio(PLAIN, side):.2f}"]
            cpu = statistics.median(case.cpu[side])
            row += [f"{1000 * cpu:.2f}", f"{case.cpu_ratio(PLAIN, side):.2f}"]
            if former is not None:
                is_measured = before(side) in case.steps
                row += [
                    f"{ratio(before(side), side):.2f}" if is_measured else ""
                    for ratio in (case.ratio, case.cpu_ratio)
                ]
            rows.append(row)
        head = ["side", "ms a step", "speed, plain torch = 1", "processor ms", "by it"]
        head += ["speed, before = 1", "by processor time"] if former is not None else []
        aim = AIMS.get((case.kind, case.batch))
        captured = CAPTURED_AIMS.get((case.kind, case.batch))
        aims = "Aims: inexact 1.0" + (f", exact {aim}" if aim else "")
        aims += f", captured {captured}." if captured else "."
        beyond = ", ".join(f"{1e6 * case.beyond(parts):.0f} (M = {parts})" for parts in PARTS)
        report.add(
            f"## {case.kind}, batch {case.batch}\n\n{table(head, rows)}\n\n{aims} "
            f"Beyond its kernels a micro-batch of exact brim takes {beyond} µs."
        )
    rows = [
        [
            case.kind,
            str(case.batch),
            *(
                f"{1e6 * cost:.1f} µs: {cost / case.median(exact(8)):.2%}"
                for cost in case.costs.values()
            ),
        ]
        for case in cases
    ]
    report.add(
        "## What single things cost\n\nOf a step with 8 micro-batches, processor time: looking for "
        "a NaN; feeding "
        "(which samples, in which order, and the checksum of their indices) beyond fetching them; "
        "comparing digests "
        f"with a checkpoint every {CHECKPOINT_EVERY} steps, which is done where there are several "
        "workers.\n\n" + table(["network", "batch", *cases[0].costs], rows)
    )


def plot(cases: list[Case]) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.4 * len(cases), 3.4))
    for axis, case in zip(figure.subplots(1, len(cases), squeeze=False)[0], cases, strict=True):
        ticks = range(len(PARTS))
        lines = {
            "kernels alone": [kernels(parts) for parts in PARTS],
            "exact": [exact(parts) for parts in PARTS],
        }
        for label, sides in lines.items():
            axis.plot(ticks, [case.ratio(PLAIN, side) for side in sides], marker="o", label=label)
        for name, style in (
            (CAPTURED, "-."),
            (INEXACT, "--"),
            (before(INEXACT), ":"),
            (before(exact(8)), "x"),
            (before(CAPTURED), (0, (1, 4))),
        ):
            if name not in case.steps:
                continue
            speed = case.ratio(PLAIN, name)
            if style == "x":
                axis.plot([0], [speed], "x", color="black", label="exact, before")
            else:
                axis.axhline(
                    speed, linestyle=style, color="grey", label=name.removeprefix("brim, ")
                )
        axis.set_xticks(ticks, [str(parts) for parts in PARTS])
        axis.set_xlabel("micro-batches")
        axis.set_ylim(0, 1.3)
        axis.set_title(f"{case.kind}, batch {case.batch}", fontsize=9)
        axis.set_ylabel("speed, plain torch = 1")
        axis.legend(fontsize=7)
    figure.tight_layout()
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--before", type=Path, metavar="CHECKOUT", help="an older checkout of brim beside it"
    )
    parser.add_argument("--rounds", type=int, default=7, help="turns of every side")
    parser.add_argument("--seconds", type=float, default=0.4, help="that a turn counts")
    parser.add_argument(
        "--case", action="append", help="only these (no report), as tiny:64; may be repeated"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    former = None if arguments.before is None else arguments.before.resolve()
    chosen = [case.split(":") for case in arguments.case or ()]
    cases = [Case(kind=kind, batch=int(batch)) for kind, batch in chosen or CASES]
    report = Report(BENCHMARK, "A step of one worker beside plain torch", seed=0)
    for case in cases:
        report.say(f"{case.kind}, batch {case.batch}")
        report.attempt(
            lambda case=case: measure(
                case, former, rounds=arguments.rounds, seconds=arguments.seconds
            )
        )
        measure_costs(case)
    tell(cases, report, former)
    if not chosen:
        data = [
            {
                "kind": case.kind,
                "batch": case.batch,
                "steps": case.steps,
                "cpu": case.cpu,
                "costs": case.costs,
            }
            for case in cases
        ]
        report.write({"cases": data}, plot(cases), name="alone")


if __name__ == "__main__":
    main()
