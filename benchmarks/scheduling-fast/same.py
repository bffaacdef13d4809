"""A digest of every decision of `brim` over traces: a faster version decides the same, bit for bit.

python -m benchmarks.scheduling-fast.same DATA > FILE    # with each version, then diff the files
"""

from __future__ import annotations

import hashlib
import sys
from dataclasses import replace
from pathlib import Path

from benchmarks.harness.traces import SHAPES, read
from brim.domain.cluster import Cluster
from brim.domain.promising import PromiseAt
from brim.domain.schedule import Decision, Snapshot
from brim.domain.workload import Job
from brim.policies.brim import brim
from brim.simulator.engine import Settings, simulate

LARGEST = "itp/cluster09"  # takes too long


def digest(jobs: tuple[Job, ...], cluster: Cluster, settings: Settings) -> str:
    """Of all that is decided, with reasons and plans."""
    found = hashlib.sha256()

    def watched(snapshot: Snapshot) -> Decision:
        decision = brim(snapshot)
        sets = sorted(decision.pinned), sorted(decision.moved)
        rest = replace(
            decision, pinned=frozenset(), moved=frozenset(), memory=decision.memory.plans
        )
        found.update(repr((snapshot.now, sets, rest)).encode())
        return decision

    simulate(jobs, cluster, watched, settings=settings)
    return found.hexdigest()


def main(data: Path) -> None:
    for trace, (nodes, devices) in SHAPES.items():
        if trace == LARGEST:
            continue
        jobs = read(data, trace)
        for part in (1, 2, 4):
            cluster = Cluster.uniform(nodes=nodes // part, devices=devices)
            print(trace, cluster.devices, digest(jobs, cluster, Settings()), flush=True)
        cluster = Cluster.uniform(nodes=nodes // 2, devices=devices)
        for promise in PromiseAt:
            settings = Settings(profile_error=0.2, promise=promise)
            print(
                trace, cluster.devices, promise.value, digest(jobs, cluster, settings), flush=True
            )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
