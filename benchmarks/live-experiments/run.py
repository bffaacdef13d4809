"""ElasticDL's experiments, live, beside the simulator's forecast: see README.md."""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Protocol

from benchmarks.harness.brim_run import repository
from benchmarks.harness.report import Report, seconds, spread, table
from brim_lab.experiments import scale as scales
from brim_lab.experiments.beside_service import BesideService, beside_service
from brim_lab.experiments.changing_workers import ChangingWorkers, changing_workers
from brim_lab.experiments.claims import error
from brim_lab.experiments.cluster import MakeCluster, Tell, demo_cluster
from brim_lab.experiments.course import makespan
from brim_lab.experiments.figures import (
    beside_service_figure,
    changing_workers_figure,
    two_jobs_figure,
    web_service_figure,
)
from brim_lab.experiments.joined import joined_cluster
from brim_lab.experiments.on_nodes import nodes_cluster
from brim_lab.experiments.outcome import numbers_of, table_of
from brim_lab.experiments.scale import Scale
from brim_lab.experiments.two_jobs import SIDES, TwoJobs, two_jobs
from brim_lab.experiments.web_service import WebService, a_day, beside_web_service
from brim_lab.kubernetes.cluster import DEFAULT, NodeCluster, is_up

Found = TwoJobs | BesideService | WebService | ChangingWorkers
BENCHMARK = Path(__file__).parent


class Experiment(Protocol):
    """An experiment, run with a cluster of the caller's choice."""

    def __call__(
        self, scale: Scale, folder: Path, tell: Tell, *, repeat: int, make_cluster: MakeCluster
    ) -> Found: ...


EXPERIMENTS: dict[int, Experiment] = {
    1: two_jobs,
    2: beside_service,
    3: changing_workers,
}
_REPEAT = 2


def tell_two_jobs(report: Report, found: TwoJobs) -> None:
    rows = []
    for side in SIDES:
        spans = [makespan(round_of_jobs[side]) for round_of_jobs in found.rounds]
        waits = [round_of_jobs[side][1].to_first_step for round_of_jobs in found.rounds]
        means = [
            fmean(job.ended - job.submitted for job in round_of_jobs[side])
            for round_of_jobs in found.rounds
        ]
        predicted = found.predicted[side].makespan
        errors = [100 * error(span, predicted) for span in spans]
        same_count = sum(
            course.digest == found.calm[course.name]
            for round_of_jobs in found.rounds
            for course in round_of_jobs[side]
        )
        rows.append(
            [
                *(
                    side,
                    SIDES[side],
                    len(spans),
                    seconds(spans),
                    f"{predicted:.2f}",
                    spread(errors),
                ),
                *(seconds(means), seconds(waits), f"{same_count} of {2 * len(spans)}"),
            ]
        )
    head = ["run", "policy", "times", "makespan, s", "simulated, s", "live beyond simulated, %"]
    head += [
        "mean time of a job, s",
        "second: submission to first step, s",
        "weights as undisturbed",
    ]
    gains = [
        100 * error(makespan(round_of_jobs["elastic"]), makespan(round_of_jobs["gang"]))
        for round_of_jobs in found.rounds
    ]
    report.add(
        f"## Two jobs that want {found.scale.workers} of {found.scale.slots} slots each, the "
        "second "
        f"{found.scale.gap:g} s after the first\n\nMedian (minimum–maximum).\n\n"
        + table(head, rows)
        + f"\n\nElastic against gang: {spread(gains)} % of the makespan."
    )


def tell_beside_service(report: Report, found: BesideService) -> None:
    slots, rounds = found.scale.slots, found.rounds
    waited = [wait for run in rounds for wait in run.waited]
    used = [100 * run.use(slots) for run in rounds]
    lone_use = [100 * run.use_of_service(slots) for run in rounds]
    same_count = sum(run.course.digest == found.calm for run in rounds)
    rows: list[list[object]] = [
        ["slots in use from the job's first step to its last, %", spread(used)],
        ["simulated", f"{100 * found.predicted_use:.1f}"],
        ["of these the service's", spread(lone_use)],
        ["the service wants more, times", len(waited)],
        ["until it has all of it, s", seconds(waited)],
        [f"until it has {max(found.scale.service)} that are free, s", f"{found.alone:.2f}"],
        ["changes of workers", spread([float(len(run.course.workers) - 2) for run in rounds], digits=0)],
        ["starts of the job", spread([float(run.launches) for run in rounds], digits=0)],
        ["steps", spread([float(len(run.course.steps)) for run in rounds], digits=0)],
        ["steps redone", sum(run.course.redone for run in rounds)],
        ["the longest time without a step, s", seconds([run.longest_pause for run in rounds])],
        ["the job took, s", seconds([run.course.ended for run in rounds])],
        ["simulated, s", f"{found.predicted.makespan:.2f}"],
        ["weights as undisturbed", f"{same_count} of {len(rounds)}"],
    ]  # fmt: skip
    report.add(
        "## A job beside an online service that takes and gives slots every "
        f"{found.scale.every:g} s, {len(rounds)} times\n\nMedian (minimum–maximum).\n\n"
        + table(["", ""], rows)
    )


def tell_web_service(report: Report, found: WebService) -> None:
    head, rows = table_of(found)
    alone, beside = found.alone.requests.slowest, found.beside.requests.slowest
    report.add(
        f"## A day of {found.day.seconds:.0f} s of a web service\n\n"
        + table(head, rows)
        + f"\n\nOf the requests beside training 99 % were answered within {beside / alone:.2f} times as long as "
        "without: on this host training takes processor time from the service, with fixed parts too."
    )


def tell_changing_workers(report: Report, found: ChangingWorkers) -> None:
    rows = []
    for name, courses in (
        ("elastic", list(found.rounds)),
        *(
            (f"{n} workers", [fixed_course])
            for n, fixed_course in zip(found.scale.fixed, found.fixed, strict=True)
        ),
    ):
        changes = [float(len(course.workers) - 2) for course in courses]
        sizes = sorted({count for course in courses for _, count in course.workers if count})
        auc = sorted({f"{course.metric[-1][1]:.9f}" for course in courses})
        digests = sorted({course.digest[:12] for course in courses})
        redone = sum(course.redone for course in courses)
        rows.append(
            [
                *(name, len(courses), spread(changes, digits=0), " ".join(map(str, sizes)), redone),
                *(", ".join(auc), ", ".join(digests)),
            ]
        )
    head = ["run", "times", "changes of workers", "sizes", "steps redone", "AUC", "weights, sha256"]
    ends = [course.ended for course in found.rounds]
    report.add(
        f"## A job beside an online service that takes and gives slots every {found.scale.every:g} "
        "s\n\n"
        + table(head, rows)
        + f"\n\nThe elastic job took {seconds(ends)} s; simulated {found.predicted.makespan:.2f} s "
        "(which knows "
        "nothing of the evaluation after each epoch)."
    )


def tell_claims(report: Report, found: Found) -> None:
    costs = found.learnt.overheads
    steps = ", ".join(f"{1 / rate:.3f} s on {n}" for n, rate in sorted(found.learnt.rates.items()))
    rows = [
        [claim.claim, claim.got, claim.need, "yes" if claim.held else "**no**"]
        for claim in found.claims
    ]
    report.add(
        "## What the simulator was told, and what held\n\nMeasured before, on a job of its own: a "
        "step takes "
        f"{steps} workers; a start costs {costs.start:.2f} s, a change of workers "
        f"{costs.fixed:.3f} s, an end "
        f"{costs.end:.2f} s. A claim holds if it held in every repetition.\n\n"
        + table(["claim", "found", "needed", "holds"], rows)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=f"{__doc__} Takes about 5 minutes each.")
    parser.add_argument("experiment", type=int, choices=EXPERIMENTS)
    parser.add_argument(
        "--repeat", type=int, default=_REPEAT, help=f"repetitions; default: {_REPEAT}"
    )
    parser.add_argument(
        "--path", help="experiment 3 on a sample of Criteo's logs: label, I1 to I13, C1 to C26"
    )
    parser.add_argument(
        "--by-rows",
        action="store_true",
        help="with --path: one table of hashed ids, trained by rows",
    )
    parser.add_argument(
        "--hosts",
        action="store_true",
        help="the slots on three hosts, the scheduler on a fourth, made of namespaces; needs root",
    )
    parser.add_argument(
        "--kubernetes",
        nargs="?",
        const=DEFAULT,
        metavar="CLUSTER",
        help="experiments 1 and 2 on the three nodes of a cluster that is up; default: "
        f"that of `make cluster`, {DEFAULT}",
    )
    parser.add_argument(
        "--web",
        action="store_true",
        help="experiment 2 with a web service that answers requests; needs haproxy",
    )
    parser.add_argument("--quick", action="store_true", help="a smoke run: no report is written")
    arguments = parser.parse_args()
    if (arguments.hosts or arguments.kubernetes) and arguments.path:
        parser.error("--path names a file of this host, which the others do not have")
    if arguments.kubernetes and (arguments.hosts or arguments.experiment == 3):
        parser.error("--kubernetes is for experiments 1 and 2, and without --hosts")
    if arguments.hosts and arguments.experiment == 2:
        parser.error("--hosts is for experiments 1 and 3")
    if arguments.web and (arguments.experiment != 2 or arguments.kubernetes):
        parser.error("--web is for experiment 2, without --kubernetes")
    os.environ["PYTHONPATH"] = str(repository())
    run = EXPERIMENTS[arguments.experiment]
    make_cluster = _cluster(arguments)
    repeat = 1 if arguments.quick else arguments.repeat
    title = f"ElasticDL's experiment {arguments.experiment}, live" + (
        " on Criteo" if arguments.path else ""
    )
    title += ", by rows" if arguments.by_rows else ""
    title += ", over three hosts" if arguments.hosts else ""
    title += ", on Kubernetes" if arguments.kubernetes else ""
    title += ", a web service" if arguments.web else ""
    report = Report(BENCHMARK, title, seed=0)
    folder = Path(tempfile.mkdtemp(prefix="brim-benchmark-"))
    found: Found
    if arguments.web:
        size = scales.QUICK_BESIDE_WEB_SERVICE if arguments.quick else scales.BESIDE_WEB_SERVICE
        found = beside_web_service(size, a_day(quick=arguments.quick), folder, report.say)
    else:
        found = run(_scale(arguments), folder, report.say, repeat=repeat, make_cluster=make_cluster)
    if isinstance(found, TwoJobs):
        tell_two_jobs(report, found)
        figure = two_jobs_figure(found)
    elif isinstance(found, WebService):
        tell_web_service(report, found)
        figure = web_service_figure(found)
    elif isinstance(found, BesideService):
        tell_beside_service(report, found)
        figure = beside_service_figure(found)
    else:
        tell_changing_workers(report, found)
        figure = changing_workers_figure(found)
    tell_claims(report, found)
    shutil.rmtree(folder, ignore_errors=True)
    if not arguments.quick:
        name = f"experiment-{arguments.experiment}" + ("-criteo" if arguments.path else "")
        name += "-by-rows" if arguments.by_rows else ""
        name += "-hosts" if arguments.hosts else ""
        name += "-kubernetes" if arguments.kubernetes else ""
        name += "-web" if arguments.web else ""
        report.write(numbers_of(found), figure, name=name)


def _cluster(arguments: argparse.Namespace) -> MakeCluster:
    if not arguments.kubernetes:
        return joined_cluster if arguments.hosts else demo_cluster
    if not is_up(arguments.kubernetes):
        raise SystemExit(f"no cluster {arguments.kubernetes} is up: make cluster NODES=3")
    cluster = NodeCluster(arguments.kubernetes)
    if len(cluster.nodes) != 3:
        raise SystemExit(f"{arguments.kubernetes} has {len(cluster.nodes)} nodes, and this takes 3")
    return partial(nodes_cluster, cluster=cluster)


def _scale(arguments: argparse.Namespace) -> Scale:
    scale = _usual_scale(arguments)
    if arguments.quick and arguments.kubernetes:  # pods take longer to start than such jobs take
        scale = replace(scale, parameters={"months": "4"})
    return scale


def _usual_scale(arguments: argparse.Namespace) -> Scale:
    if arguments.experiment == 1:
        return scales.QUICK_TWO_JOBS if arguments.quick else scales.TWO_JOBS
    if arguments.experiment == 2:
        return scales.QUICK_BESIDE_SERVICE if arguments.quick else scales.BESIDE_SERVICE
    scale = scales.QUICK_CHANGING_WORKERS if arguments.quick else scales.CHANGING_WORKERS
    if arguments.path:
        # A tenth of the rows that the flights have: smaller batches and more epochs, for as many
        # steps.
        scale = replace(
            scale,
            file=BENCHMARK / "criteo.py",
            parameters={
                "path": str(Path(arguments.path).resolve()),
                "kind": "by_rows" if arguments.by_rows else "dense",
            },
            global_batch_size=1200,
            wait=0.8e-3,
            epochs=2 if arguments.quick else 5,
        )
    return scale


if __name__ == "__main__":
    main()
