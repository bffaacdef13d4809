"""Two agents on each of two hosts, without and with the names of their machines: see README.md."""

from __future__ import annotations

import argparse
import statistics

from benchmarks.network.hosts import hosts
from benchmarks.network.run import NETWORKS, Measured, measure_brim


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.network.pods", description=__doc__)
    parser.add_argument("--gbit", type=float, default=1.0, help="of each cable (0: no limit)")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    found: dict[bool, list[Measured]] = {False: [], True: []}
    with hosts(2, mbit=round(1000 * given.gbit) or None) as (one, other):
        places = [one, one, other, other]
        for turn in range(given.rounds):
            for named in (False, True) if turn % 2 else (True, False):
                got = measure_brim(
                    places, (1, 1, 1, 1), NETWORKS["20 M"], side="exact", named=named
                )
                found[named].append(got)
    for named, words in ((False, "each agent alone"), (True, "meeting on machines")):
        step = statistics.median(each.step for each in found[named])
        sent = statistics.median(each.sent for each in found[named])
        print(f"{words}: {1000 * step:.0f} ms, {sent / 1e6:.1f} MB a step and host")


if __name__ == "__main__":
    main()
