"""Two hundred seeded runs under random faults, and the promises of each: see README.md."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from benchmarks.harness.report import Report
from brim.domain.faults import describe
from brim.domain.job import WorkerRange
from brim_lab.chaos.random_faults import random_faults, random_workers
from brim_lab.chaos.report import as_plain, figure, markdown
from brim_lab.chaos.results import Calm, Job, Result
from brim_lab.chaos.trial import Trial, calm_run, kinds_possible_here, run_trial

BENCHMARK = Path(__file__).parent
OPTIONS = "--epochs 24 --global-batch-size 128 --checkpoint-every 20 --heartbeat-timeout 1s"
JOB = Job(file="benchmarks/chaos/job.py", options=tuple(OPTIONS.split()))
WORKERS = WorkerRange.parse("1:4")
DEADLINE = 120.0


def trial_of(seed: int, hosts: int, calm: Calm) -> Trial:
    """Do the run of `brim chaos --seed SEED --runs 1 --workers 1:4 --hosts HOSTS`."""
    workers = random_workers(seed, WORKERS)
    kinds = [kind for kind, reason in kinds_possible_here(hosts).items() if not reason]
    faults = random_faults(
        seed, kinds=kinds, steps=calm.steps, workers=workers.maximum, hosts=hosts
    )
    return Trial(seed=seed, workers=workers, hosts=hosts, faults=faults)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke run: no report is written")
    parser.add_argument("--one-host", type=int, default=160, help="runs on one host")
    parser.add_argument("--two-hosts", type=int, default=40, help="runs on two")
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    arguments = parser.parse_args()
    counts = {1: 3, 2: 1} if arguments.quick else {1: arguments.one_host, 2: arguments.two_hosts}
    report = Report(BENCHMARK, "Runs under chaos", seed=arguments.seed)
    folder = Path(tempfile.mkdtemp(prefix="brim-chaos-runs-"))
    calm = calm_run(JOB, folder / "calm", deadline=DEADLINE)
    results: dict[int, list[Result]] = {1: [], 2: []}
    seed = arguments.seed
    for hosts, count in counts.items():
        for _ in range(count):
            trial = trial_of(seed, hosts, calm)
            result = run_trial(JOB, trial, calm, folder / f"seed-{seed}", deadline=DEADLINE)
            results[hosts].append(result)
            faults = "; ".join(map(describe, trial.faults))
            description = f"seed {seed}, {hosts} host{'s' * (hosts > 1)}: {faults}: "
            report.say(description + ("; ".join(result.broken) or f"held ({result.seconds:.1f} s)"))
            seed += 1
    all_results = [result for of_hosts in results.values() for result in of_hosts]
    for hosts, of_hosts in results.items():
        if of_hosts:
            report.add(
                f"## {len(of_hosts)} runs on {hosts} host{'s' * (hosts > 1)}\n\n"
                + markdown(JOB, of_hosts)
            )
    if not arguments.quick:
        report.write(as_plain(JOB, all_results), figure(all_results))
    if any(result.broken for result in all_results):
        sys.exit(f"promises were broken; what is left of those runs: {folder}")
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
