"""Fifty seeded runs of a scheduler with a few jobs, broken at random, and the promises of each: see
README.md.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from benchmarks.harness.report import Report
from brim.domain.job import WorkerRange
from brim_lab.chaos.cluster import ClusterTrial, run_cluster_trial
from brim_lab.chaos.deeds import SUBMITS, DeedKind
from brim_lab.chaos.random_deeds import beside_service, random_deeds, random_nodes
from brim_lab.chaos.report import as_plain, figure, markdown
from brim_lab.chaos.results import Calm, Job, Result
from brim_lab.chaos.trial import calm_run

BENCHMARK = Path(__file__).parent
OPTIONS = "--set pause=0.008 --global-batch-size 128 --checkpoint-every 20 --heartbeat-timeout 3s"
JOB = Job(file="benchmarks/chaos/job.py", options=tuple(OPTIONS.split()))
EPOCHS = 4
WORKERS = WorkerRange.parse("1:4")
DEADLINE = 200.0


def calm_runs(folder: Path) -> dict[int, Calm]:
    """How jobs of both lengths end that nothing is done to."""
    found = {}
    for epochs in (EPOCHS, 2 * EPOCHS):
        job = replace(JOB, options=(*JOB.options, "--epochs", str(epochs)))
        found[epochs] = calm_run(job, folder / f"calm-{epochs}", deadline=DEADLINE)
    return found


def trial_of(seed: int, *, service: bool) -> ClusterTrial:
    """Return the run of `brim chaos --cluster --seed SEED --runs 1 --epochs 4`.

    Args:
        service: that of `--service` as well.
    """
    kinds = [kind for kind in DeedKind if kind not in SUBMITS]
    nodes = random_nodes(seed, devices=WORKERS.maximum)
    deeds = random_deeds(seed, kinds=kinds, epochs=EPOCHS, workers=WORKERS, nodes=nodes)
    if service:
        deeds = beside_service(deeds, seed, kinds=kinds, workers=WORKERS)
    return ClusterTrial(seed=seed, workers=WORKERS, nodes=nodes, deeds=deeds)


def main() -> None:
    parser = argparse.ArgumentParser(description=f"{__doc__} Takes 11 minutes on 2 cores.")
    parser.add_argument("--quick", action="store_true", help="a smoke run: no report is written")
    parser.add_argument(
        "--service", action="store_true", help="an online service beside the jobs; needs haproxy"
    )
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument(
        "--at-once", type=int, default=2, help="runs side by side: jobs mostly wait"
    )
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # nothing of a trial may stay behind
    seeds = range(arguments.seed, arguments.seed + (2 if arguments.quick else arguments.runs))
    title = "A cluster under chaos" + ", with an online service" * arguments.service
    report = Report(BENCHMARK, title, seed=arguments.seed)
    folder = Path(tempfile.mkdtemp(prefix="brim-cluster-chaos-"))
    calm = calm_runs(folder)

    def perform(seed: int) -> Result:
        trial = trial_of(seed, service=arguments.service)
        result = run_cluster_trial(JOB, trial, calm, folder / f"seed-{seed}", deadline=DEADLINE)
        outcome = "; ".join(result.broken) or f"held ({result.seconds:.1f} s)"
        report.say(f"seed {seed}: {trial.schedule}: {outcome} (load {os.getloadavg()[0]:.1f})")
        return result

    with ThreadPoolExecutor(arguments.at_once) as pool:
        results = list(pool.map(perform, seeds))
    report.add(markdown(JOB, results))
    if not arguments.quick:
        name = f"{'services-' * arguments.service}seeds-{seeds[0]}-{seeds[-1]}"
        report.write(
            as_plain(JOB, results) | {"load_at_end": os.getloadavg()[0]}, figure(results), name=name
        )
    if any(result.broken for result in results):
        sys.exit(f"promises were broken; what is left of those runs: {folder}")
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
