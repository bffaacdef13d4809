"""Four workers in pods on two hosts, one or two in each pod: see README.md."""

from __future__ import annotations

import argparse
import statistics

from benchmarks.network.hosts import Place, hosts
from benchmarks.network.run import NETWORKS, Measured, measure_brim

PODS = {  # workers of each pod, and whether pods of a host meet there
    "one worker in each pod, unnamed machines": ((1, 1, 1, 1), False),
    "one worker in each pod": ((1, 1, 1, 1), True),
    "two workers in each pod": ((2, 2), True),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.network.pods", description=__doc__)
    parser.add_argument("--gbit", type=float, default=1.0, help="of each cable (0: no limit)")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    found: dict[str, list[Measured]] = {words: [] for words in PODS}
    with hosts(2, mbit=round(1000 * arguments.gbit) or None) as two:
        for turn in range(arguments.rounds):
            for words in PODS if turn % 2 else reversed(PODS):
                found[words].append(measure(two, *PODS[words]))
    for words, runs in found.items():
        step = statistics.median(run.step for run in runs)
        sent = statistics.median(run.sent for run in runs)
        processor = statistics.median(run.processor for run in runs)
        memory = statistics.median(run.memory for run in runs)
        print(
            f"{words}: {1000 * step:.0f} ms, {sent / 1e6:.1f} MB a step and host, "
            f"{1000 * processor:.0f} ms of processors, {memory / 2**20:.0f} MiB"
        )


def measure(two: list[Place], split: tuple[int, ...], named: bool) -> Measured:
    workers_each = len(split) // len(two)
    places = [host for host in two for _ in range(workers_each)]
    return measure_brim(places, split, NETWORKS["20 M"], side="exact", named=named)


if __name__ == "__main__":
    main()
