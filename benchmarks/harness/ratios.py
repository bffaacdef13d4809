"""Ratios between the two sides of a benchmark, beside those of its report: python -m
benchmarks.harness.ratios recovery.

The benchmark is run in full, and its new report is thrown away. Each ratio must reach a share of
that in the report of the repository, so no threshold is written down twice, and none is a time: a
new report moves its thresholds, and the change shows it. A share allows for the differences between
runs of one commit.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.report import FOLDER

BENCHMARKS = Path(__file__).resolve().parents[1]
# Tens of milliseconds beside a peer's seconds: between runs, and within one, either doubles.
RECOVERY = 0.5
# A step, or a start, beside another: within one run the three rounds of `cost` differ by 15 %.
STEPS = 0.8
# Turns of a second each, in 24 clusters: the median is known to 3 %.
TURNS = 0.95


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio that is better the larger it is.

    Args:
        name: of both sides, the better one last.
        value: takes it from the content of a report.
        share: of the report's ratio that a run must reach.
    """

    name: str
    value: Callable[[Any], float]
    share: float

    def bound(self, report: Any) -> float:
        return self.share * self.value(report)


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A benchmark that needs neither data from elsewhere nor a cluster.

    Args:
        ratios: that its README claims.
        words: of its command.
        report: the name of its report, without the extension.
    """

    ratios: Sequence[Ratio]
    words: Sequence[str] = ()
    report: str = "report"


def _times(peer: Sequence[float], own_seconds: Sequence[float]) -> float:
    """How many times less time ours takes, by medians."""
    return statistics.median(peer) / statistics.median(own_seconds)


def _recovery(workers: int, spares: int) -> Callable[[Any], float]:
    def value(report: Any) -> float:
        (peer,) = (kills for kills in report["torchrun"] if kills["workers"] == workers)
        setting = {"workers": workers, "optimizer": "sgd", "spares": spares}
        (own_kills,) = (kills for kills in report["brim"] if setting.items() <= kills.items())
        return _times(peer["seconds"], own_kills["full_world"])

    return value


def _cost(side: str, workers: int) -> Callable[[Any], float]:
    """The geometric mean over networks, optimizers and batches."""

    def value(report: Any) -> float:
        key = ("network", "optimizer", "batch", "workers", "side")
        steps = {tuple(map(cell.get, key)): cell["median_steps"] for cell in report["cells"]}
        return statistics.geometric_mean(
            _times(steps[(*setting, "ddp")], own_steps)
            for (*setting, name), own_steps in steps.items()
            if (setting[-1], name) == (workers, side)
        )

    return value


def _embeddings(peer: str, own_side: str) -> Callable[[Any], float]:
    def value(report: Any) -> float:
        turns = report["results"]["1000000"]
        seconds = {side: [turn["seconds"] for turn in turns[side]] for side in (peer, own_side)}
        return _times(seconds[peer], seconds[own_side])

    return value


def _servers(report: Any) -> float:
    """A usual step beside the first behind the kill of a server."""
    return _times(report["server"]["step"], report["server"]["first"])


def _victims(report: Any) -> float:
    """The first step behind the kill of a worker beside that behind the kill of a server."""
    return _times(report["worker"]["first"], report["server"]["first"])


def _hosts(event: str) -> Callable[[Any], float]:
    return lambda report: _times(
        report["torchrun"], [loss["next_step"] for loss in report["brim"][event]]
    )


def _stragglers(side: str) -> Callable[[Any], float]:
    return lambda report: _times(
        report["found"][side]["one slow"], report["found"][side]["other shares"]
    )


def _overhead(report: Any) -> float:
    """The speed of a job under a scheduler beside that under `brim train`."""

    def speed(cluster: Any) -> float:
        pace: dict[str, list[float]] = {
            side: [turn["steps"] / turn["seconds"] for turn in cluster[side]]
            for side in ("alone", "scheduled")
        }
        pairs = zip(pace["alone"], pace["scheduled"], strict=True)
        return statistics.median(scheduled / plain_speed for plain_speed, scheduled in pairs)

    return statistics.median(map(speed, report["speeds"]))


def _makespan(report: Any) -> float:
    def ends(policy: str) -> list[float]:
        return [max(job["ended"] for job in jobs[policy]) for jobs in report["rounds"]]

    return _times(ends("gang"), ends("elastic"))


COMPARED: Mapping[str, Benchmark] = {
    "recovery": Benchmark(
        [
            Ratio(
                f"torchrun to brim, {workers} workers, {spares} spare",
                _recovery(workers, spares),
                RECOVERY,
            )
            for workers in (2, 4, 8)
            for spares in (1, 0)
        ]
    ),
    "hosts": Benchmark(
        [
            Ratio(f"torchrun to brim, {event}", _hosts(event), RECOVERY)
            for event in (
                "SIGTERM to its agent",
                "kill -9 of all its processes",
                "its cable is cut",
                "kill -9 of the master's host",
            )
        ]
    ),
    "resize": Benchmark(
        [
            Ratio(
                "torchrun to brim, from 4 to 6 workers",
                lambda r: _times(
                    r["torchrun_grow"]["seconds"],
                    [change["to_new_world"] for change in r["brim"]["grow"]],
                ),
                RECOVERY,
            ),
            Ratio(
                "torchrun to brim, start",
                lambda r: _times(r["starts"]["torchrun"], r["starts"]["brim"]),
                STEPS,
            ),
        ]
    ),
    "servers": Benchmark(
        [
            Ratio("a usual step to that behind the kill of a server", _servers, STEPS),
            Ratio("the kill of a worker to that of a server", _victims, STEPS),
        ]
    ),
    "cost": Benchmark(
        [
            Ratio(f"DDP to brim, {side}, {workers} workers", _cost(side, workers), STEPS)
            for side in ("exact", "inexact")
            for workers in (1, 2, 4, 8)
        ]
    ),
    "embeddings": Benchmark(
        [
            Ratio(f"{peer} to {own_side}", _embeddings(peer, own_side), STEPS)
            for peer, own_side in (
                ("torch, dense", "brim, 1 worker"),
                ("torch, sparse=True", "brim, 1 worker"),
                ("brim, 1 worker", "brim, 2 workers"),
            )
        ]
    ),
    "stragglers": Benchmark(
        [
            Ratio(f"equal shares to others, {side}", _stragglers(side), STEPS)
            for side in ("brim, 8 micro-batches", "brim, 32 micro-batches")
        ]
    ),
    "warm-start": Benchmark(
        [
            Ratio(
                "brim train to a submission",
                lambda r: _times(r["from_train"], r["from_submission"]),
                RECOVERY,
            ),
            Ratio(
                "brim train to brim submit",
                lambda r: _times(r["from_train"], r["from_submit"]),
                RECOVERY,
            ),
        ]
    ),
    "live-overhead": Benchmark([Ratio("speed under a scheduler to alone", _overhead, TURNS)]),
    "live-experiments": Benchmark(
        [Ratio("makespan of gang to elastic", _makespan, TURNS)], ["1"], "report-experiment-1"
    ),
}


def reported(name: str) -> Any:
    """Return the content of the report in the repository."""
    return json.loads((BENCHMARKS / name / f"{COMPARED[name].report}.json").read_text())


def measured(name: str) -> Any:
    """Return the content of a new report.

    Raises:
        CalledProcessError: the benchmark failed.
    """
    compared = COMPARED[name]
    with tempfile.TemporaryDirectory(prefix="brim-ratios-") as folder:
        command = [sys.executable, "-m", f"benchmarks.{name}.run", *compared.words]
        subprocess.run(command, check=True, env={**os.environ, FOLDER: folder})
        return json.loads((Path(folder) / f"{compared.report}.json").read_text())


def verdict(ratio: Ratio, report: Any, found: Any) -> str:
    """Show a ratio, its threshold, and whether it holds."""
    value, bound = ratio.value(found), ratio.bound(report)
    verdict_word = "held" if value >= bound else "BROKEN"
    need = f"at least {bound:.3g}, {ratio.share:.0%} of the report's {ratio.value(report):.3g}"
    return f"{ratio.name}: {value:.3g} ({need}): {verdict_word}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=COMPARED)
    name = parser.parse_args().name
    found = measured(name)
    lines = [verdict(ratio, reported(name), found) for ratio in COMPARED[name].ratios]
    print("\n".join(lines), flush=True)
    sys.exit(any(line.endswith("BROKEN") for line in lines))


if __name__ == "__main__":
    main()
